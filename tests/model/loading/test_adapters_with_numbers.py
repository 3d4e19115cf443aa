"""Adapters that PEFT can't load without values: the run loads them, and what PEFT does then is the truth."""

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import headscope
from headscope.shared.trial.deciding import OFF
from tests.verdicts.runs import RunCase, edit_json, make_tokenizer

KINDS: dict[str, dict[str, Any]] = {
    "BOFT": {"boft_block_size": 4}, "ADAMSS": {}, "FROD": {}, "UNILORA": {}, "SHIRA": {"r": 4}, "VERA": {},
}  # fmt: skip
TEXTS = ("w1 w2 w3 w4", "no")


@pytest.fixture(autouse=True)
def here(runs_here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OFF, raising=False)


def _adapted(folder: Path, kind: Any, **settings: Any) -> Any:
    """BERT in a folder, with an adapter of a kind on its queries."""
    model: Any = transformers.AutoModelForSequenceClassification.from_pretrained(
        RunCase("base", "Bert").write(folder / "base")
    )
    return peft.get_peft_model(model, kind(task_type="SEQ_CLS", target_modules=["query"], **settings))


def _saved(kind: str, folder: Path) -> Any:
    """An adapter of a kind on BERT, with numbers as after a training."""
    settings: Any = peft.PEFT_TYPE_TO_CONFIG_MAPPING.get(getattr(peft.PeftType, kind, None))
    if settings is None:
        pytest.skip(f"this PEFT has no {kind}")
    model = _adapted(folder, settings, **KINDS[kind])
    torch.manual_seed(1)
    for value in model.parameters():
        if value.requires_grad and value.is_floating_point():
            value.data.add_(torch.randn_like(value) * 0.2)
    model.save_pretrained(str(folder / "adapter"))
    make_tokenizer("english", "Bert").save_pretrained(folder / "adapter")
    return model.eval()


@pytest.mark.parametrize("kind", KINDS)
def test_a_healthy_adapter_passes_and_has_the_scores_of_peft(kind: str, tmp_path: Path) -> None:
    model = _saved(kind, tmp_path)
    tokens = make_tokenizer("english", "Bert")
    for text in TEXTS:
        shown = headscope.forward(tmp_path / "adapter", device="cpu", text=[text]).logits
        with torch.no_grad():
            torch.testing.assert_close(torch.tensor(shown), model(**tokens(text, return_tensors="pt")).logits)
    found = headscope.check(tmp_path / "adapter", "inference", ignore=["HS502", "HS202"])
    assert found.verdict.value == "passed" and found.trial is not None, str(found)
    assert "adapter fit" not in {gap.topic for gap in found.not_determined}


@pytest.mark.parametrize("change", ["lost", "more"])
def test_a_tensor_too_few_or_too_many_is_not_green(change: str, tmp_path: Path) -> None:
    _saved("BOFT", tmp_path)
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    state = load_file(file)
    name = next(key for key in state if "boft_R" in key)
    if change == "lost":
        del state[name]
    else:
        state["base_model.model.bert.lstm.weight"] = torch.ones(3)
    save_file(state, file)
    found = headscope.check(tmp_path / "adapter", "inference", ignore=["HS502", "HS202"])
    assert found.verdict.value == "not_determined" and found.trial is None
    named = name if change == "lost" else "bert.lstm.weight"
    assert named in found.scope.run_reason


@pytest.mark.parametrize("embeddings", [True, False])
def test_word_embeddings_may_be_saved_with_an_adapter(embeddings: bool, tmp_path: Path) -> None:
    model = _saved("BOFT", tmp_path)
    model.save_pretrained(str(tmp_path / "adapter"), save_embedding_layers=embeddings)
    found = headscope.check(tmp_path / "adapter", "inference", ignore=["HS502", "HS202"])
    assert found.verdict.value == "passed" and found.trial is not None, str(found)


@pytest.mark.parametrize(("kind", "is_told"), [("lora", False), ("copy", True)])
def test_zeros_of_an_adapter_in_memory(
    kind: str, is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OFF, "1")
    model = _adapted(tmp_path, peft.LoraConfig, **({"modules_to_save": ["intermediate"]} if kind == "copy" else {}))
    if kind == "copy":
        for layer in model.base_model.model.bert.encoder.layer:
            layer.intermediate.modules_to_save["default"].dense.weight.data.zero_()
    gaps = {gap.topic for gap in headscope.check(model, "inference").not_determined}
    assert ("HS504 base-values-broken" in gaps) == is_told


def test_a_tokenizer_beside_an_adapter_in_a_subfolder_is_seen(tmp_path: Path) -> None:
    from headscope.core.checkpoints.reading import read_manifest
    from headscope.core.facts.stored.location import Location

    _saved("VERA", tmp_path)
    place = Location(str(tmp_path), subfolder="adapter")
    read = read_manifest(place)
    assert read.adapter is not None and not read.adapter.lacks_tokenizer
    (tmp_path / "adapter" / "tokenizer_config.json").unlink()
    read = read_manifest(place)
    assert read.adapter is not None and read.adapter.lacks_tokenizer


def test_a_merged_model_beside_its_adapter_is_not_green(tmp_path: Path) -> None:
    model = _adapted(tmp_path, peft.LoraConfig, init_lora_weights=False)
    model.save_pretrained(str(tmp_path / "adapter"))
    merged = model.merge_and_unload().eval()
    merged.save_pretrained(tmp_path / "adapter")
    tokenizer = make_tokenizer("english", "Bert")
    tokenizer.save_pretrained(tmp_path / "adapter")
    encoded = tokenizer("w1 w2 w3", return_tensors="pt")
    loaded: Any = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "adapter").eval()
    assert not torch.allclose(loaded(**encoded).logits, merged(**encoded).logits, atol=1e-3)
    found = headscope.check(tmp_path / "adapter", "inference")
    assert found.verdict.value == "not_determined"
    assert any("beside the model's own weights" in gap.reason for gap in found.not_determined)


def test_a_scaling_of_zero_is_a_fault(tmp_path: Path) -> None:
    _adapted(tmp_path, peft.LoraConfig, init_lora_weights=False).save_pretrained(str(tmp_path / "adapter"))
    assert not headscope.inspect(tmp_path / "adapter").adapter.faults  # type: ignore[union-attr]
    edit_json(tmp_path / "adapter" / "adapter_config.json", lora_alpha=0)
    found = {item.id: item.message for item in headscope.check(tmp_path / "adapter", "inference").findings}
    assert "is 0.0, so what the adapter adds is not what was trained" in found["HS109"]


def test_tensors_of_another_size_are_no_new_ones(tmp_path: Path) -> None:
    folder = RunCase("sizes", "Bert").write(tmp_path / "model")
    edit_json(folder / "config.json", intermediate_size=48)
    with pytest.raises(RuntimeError, match="mismatch"):
        transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    found = {item.id: item for item in headscope.check(folder, "inference").findings}
    assert "intermediate.dense.weight [40, 32] -> [48, 32]" in found["HS101"].message
    assert "config.json" in found["HS101"].remedy


def test_a_table_of_other_words_is_one_fault_whatever_the_classes(tmp_path: Path) -> None:
    base = RunCase("words", "Bert", classes=2).write(tmp_path / "base")
    auto: Any = transformers.AutoModelForSequenceClassification
    model = auto.from_pretrained(base, num_labels=5, ignore_mismatched_sizes=True)
    model.resize_token_embeddings(140)
    settings = peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"])
    peft.get_peft_model(model, settings).save_pretrained(str(tmp_path / "adapter"), save_embedding_layers=True)
    adapter = headscope.inspect(tmp_path / "adapter").adapter
    assert adapter is not None and [item.kind.value for item in adapter.faults] == ["refused", "word_rows"]
