"""State dicts of PEFT models saved as whole checkpoints, held against PEFT's own merge."""

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from states.table.peft_saves import peft_model
from states.table.small import classifier

import headscope
from headscope.facts import Severity, StateKind


def _wrapped() -> Any:
    return peft_model("bert", ["query", "value"])


def _saved(folder: Path, state: dict[str, torch.Tensor], model: Any) -> Path:
    model.base_model.model.config.save_pretrained(folder)
    torch.save(state, folder / "pytorch_model.bin")
    return folder


def _is_merged(loaded: Any, model: Any) -> bool:
    """True if a model has what PEFT's own merge gives."""
    found, merged = loaded.state_dict(), model.merge_and_unload().state_dict()
    return all(torch.allclose(found[name], value, atol=1e-5) for name, value in merged.items())


@pytest.mark.parametrize("before", ["", "module."])
def test_a_peft_model_saved_whole_is_recognized_and_merged(
    before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _wrapped()
    _saved(tmp_path, {f"{before}{key}": value for key, value in model.state_dict().items()}, model)
    cls = transformers.BertForSequenceClassification
    _, info = cls.from_pretrained(tmp_path, output_loading_info=True)
    report = headscope.inspect(str(tmp_path), offline=True)
    (state,) = report.checkpoint.states
    assert (state.kind, state.rule, state.tool) == (StateKind.PEFT_KEYS, "HS803", "PEFT")
    assert any(item.startswith("4 layers (query, value) ") for item in state.evidence)
    assert any(item.startswith("PEFT saved classifier ") for item in state.evidence)
    assert set(report.weights.new) == set(info["missing_keys"])
    assert report.repaired.weights.new == ()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TypeError, match="ellipsis"):  # nobody merges with a number that nobody chose
        exec(state.repair.code, {})
    exec(state.repair.code.replace("lora_alpha = ...", "lora_alpha = 32"), {})
    assert _is_merged(cls.from_pretrained(tmp_path), model)
    result = headscope.check(str(tmp_path), "inference", offline=True)
    assert [item.id for item in result.findings if item.severity is Severity.ERROR] == []


def test_the_repair_of_a_base_model_saved_with_its_adapter_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _wrapped()
    model.get_base_model().save_pretrained(tmp_path)
    (state,) = headscope.inspect(str(tmp_path), offline=True).checkpoint.states
    assert state.rule == "HS803"
    assert not any("base_model.model." in item for item in state.evidence)
    monkeypatch.chdir(tmp_path)
    exec(state.repair.code.replace("lora_alpha = ...", "lora_alpha = 32"), {})
    assert _is_merged(transformers.BertForSequenceClassification.from_pretrained(tmp_path), model)


def test_a_merged_model_that_kept_the_prefix_needs_no_merge(tmp_path: Path) -> None:
    model = classifier("bert")
    model.config.save_pretrained(tmp_path)
    state = {f"base_model.model.{key}": value for key, value in model.state_dict().items()}
    torch.save(state, tmp_path / "pytorch_model.bin")
    (found,) = headscope.inspect(str(tmp_path), offline=True).checkpoint.states
    assert (found.rule, found.tool) == ("HS802", "PEFT")


_OWN_CODE = """
from transformers import BertConfig, BertForSequenceClassification


class OwnConfig(BertConfig):
    model_type = "own"


class OwnForSequenceClassification(BertForSequenceClassification):
    config_class = OwnConfig
"""


def test_a_class_with_code_of_its_own_is_built_from_that_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    model = _wrapped()
    config = model.base_model.model.config
    named = {"AutoConfig": "OwnConfig", "AutoModelForSequenceClassification": "OwnForSequenceClassification"}
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    settings = {"auto_map": {auto: f"modeling_own.{name}" for auto, name in named.items()}, "model_type": "own"}
    (folder / "config.json").write_text(json.dumps(config.to_dict() | settings))
    (folder / "modeling_own.py").write_text(_OWN_CODE)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    report = headscope.inspect(str(folder), offline=True, trust_remote_code=True)
    (state,) = report.checkpoint.states
    assert state.repair.sentence.startswith("If you trust ")
    monkeypatch.chdir(folder)
    exec(state.repair.code.replace("lora_alpha = ...", "lora_alpha = 32"), {})
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True)
    assert type(loaded).__name__ == "OwnForSequenceClassification"
    assert _is_merged(loaded, model)


_HEAD = "base_model.model.classifier.modules_to_save.default"
_POOLER = "base_model.model.bert.pooler.dense"
_QUERY = "base_model.model.bert.encoder.layer.0.attention.self.query"


@pytest.mark.parametrize(
    ("stray", "like", "named"),
    [
        ("classifier.weight", f"{_HEAD}.weight", "classifier.weight"),
        ("base_model.model.classifier.bias", f"{_HEAD}.bias", "classifier.bias"),
        (f"module.{_POOLER}.bias", f"{_POOLER}.bias", "pooler.dense.bias"),
        ("bert.pooler.dense.bias", f"{_POOLER}.bias", "bert.pooler.dense.bias"),
        (f"{_QUERY}.weight", f"{_QUERY}.base_layer.weight", "query.weight"),
        (f"module.{_QUERY}.lora_A.default.weight", f"{_QUERY}.lora_A.default.weight", "query.lora_A.default.weight"),
    ],
)
def test_no_merge_is_named_that_gives_a_parameter_two_tensors(
    stray: str, like: str, named: str, tmp_path: Path
) -> None:
    model = _wrapped()
    state = model.state_dict()
    folder = _saved(tmp_path / "model", state | {stray: torch.randn_like(state[like])}, model)
    report = headscope.inspect(folder)
    (found,) = report.checkpoint.states
    assert found.rule == "HS803" and found.repair is None and report.repaired is None
    assert f"{named}; the file doesn't say which one is meant" in found.seen()
    refused = headscope.repair(folder, tmp_path / "new", settings={"lora_alpha": 8})
    assert refused.verdict.value == "refused" and "two tensors stand for" in refused.proof.reason
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert any(item.severity is Severity.ERROR for item in headscope.check(folder, "inference").findings)


@pytest.mark.parametrize(
    "config",
    [
        peft.LoraConfig(r=4, lora_alpha=8, target_modules=["query", "value"]),
        peft.IA3Config(target_modules=["query"], feedforward_modules=[]),
        peft.LoHaConfig(r=4, target_modules=["query"]),
    ],
)
@pytest.mark.parametrize("names", [("default", "second"), ("en-1", "en-2")])
def test_of_several_adapters_in_one_file_none_is_chosen(config: Any, names: tuple[str, str], tmp_path: Path) -> None:
    model = peft.get_peft_model(classifier("bert"), config, adapter_name=names[0])
    model.add_adapter(names[1], config)
    folder = _saved(tmp_path / "model", model.state_dict(), model)
    (found,) = headscope.inspect(folder).checkpoint.states
    assert found.repair is None and f"2 adapters: {', '.join(names)}; the file doesn't say" in found.seen()
    assert found.remedy in {item.remedy for item in headscope.check(folder).findings}
    config.target_modules = ["query"]
    alone = peft.get_peft_model(classifier("bert"), config)
    (found,) = headscope.inspect(_saved(tmp_path / "alone", alone.state_dict(), alone)).checkpoint.states
    assert found.repair is not None


@pytest.mark.parametrize("name", ["mine", "my-adapter", "weight"])
def test_an_adapter_of_another_name_is_merged(name: str, tmp_path: Path) -> None:
    settings = {"task_type": "SEQ_CLS", "r": 4, "lora_alpha": 8, "target_modules": ["query"]}
    config = peft.LoraConfig(**settings, init_lora_weights=False)  # with zeros, a merge would change nothing
    model = peft.get_peft_model(classifier("bert"), config, adapter_name=name)
    folder = _saved(tmp_path / "model", model.state_dict(), model)
    done = headscope.repair(folder, tmp_path / "new", settings={"lora_alpha": 8})
    assert done.verdict.value == "proven"
    assert _is_merged(transformers.BertForSequenceClassification.from_pretrained(tmp_path / "new"), model)


@pytest.mark.parametrize("bias", [False, True])
def test_an_adapter_without_a_name_in_its_keys_has_no_repair(bias: bool, tmp_path: Path) -> None:
    """As `get_peft_model_state_dict` writes them, beside the base model's weights."""
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["query"], lora_bias=bias)
    model = peft.get_peft_model(classifier("bert"), config)
    state = {key.replace(".default", ""): value for key, value in model.state_dict().items()}
    folder = _saved(tmp_path / "model", state, model)
    (found,) = headscope.inspect(folder).checkpoint.states
    assert found.repair is None and "the keys of the adapter lack its name" in found.seen()
    refused = headscope.repair(folder, tmp_path / "new", settings={"lora_alpha": 8})
    assert refused.verdict.value == "refused" and refused.proof.reason.endswith(found.remedy)
