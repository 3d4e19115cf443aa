"""`verify` on models that were really loaded, really changed, really merged: the numbers are read here with safetensors
and compared with `torch.equal`, and every fault is made.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from families import FAMILIES
from safetensors.torch import load_file, save_file
from saving import FORMATS
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    MixtralConfig,
    MixtralForSequenceClassification,
)

import headscope
from headscope.core.checkpoints.formats import safetensors_header
from headscope.core.facts.verdict import Verdict
from headscope.core.model.tensors import numbers
from headscope.errors import NotFound, Unsupported, UsageError
from headscope.shared.loaded import verification
from headscope.shared.loaded.facts import Scope
from tests.edits import edit_json
from tests.model.loading.test_quantized import PACKINGS, save as quantized
from tests.verification.tiny import TINY, S, counts, ids, loaded, reloaded, statuses

# What is healthy raises no alarm.

OWN_CLASS = [(name, saved_as) for name in FAMILIES for saved_as in FORMATS]


@pytest.mark.parametrize(("family_name", "saved_as"), OWN_CLASS, ids=str)
def test_a_load_of_a_whole_save_is_equal(family_name: str, saved_as: str, tmp_path: Path) -> None:
    family = FAMILIES[family_name]
    FORMATS[saved_as](family.build(family.classifier), tmp_path)
    model = getattr(transformers, family.classifier).from_pretrained(tmp_path)
    result = headscope.verify(model, tmp_path)
    assert result.verdict is Verdict.PASSED, (result.findings, result.not_determined)
    assert not result.findings
    assert set(counts(result)) <= {"equal", "tied", "computed", "transformed"}
    own = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    assert own <= set(statuses(result))
    assert result.scope == Scope(len(result.tensors), len(result.tensors))
    stored = {id(item): item.nbytes for item in model.state_dict(keep_vars=True).values()}
    assert result.bytes_read >= sum(stored.values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_cast_is_named_with_its_largest_error(saved: Path, dtype: torch.dtype) -> None:
    result = headscope.verify(loaded(saved, dtype=dtype), saved, head=True)
    stored = load_file(saved / "model.safetensors")
    assert counts(result) == {"cast": 3, "equal": 1} or counts(result) == {"cast": 4}
    for item in result.tensors:
        lost = (stored[item.name].double() - stored[item.name].to(dtype).double()).abs().max()
        assert item.max_error == pytest.approx(float(lost), abs=1e-12)
    assert result.verdict is Verdict.PASSED


def test_shards_and_pieces_are_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "PIECE", 100)
    BertForSequenceClassification(BertConfig(**TINY)).save_pretrained(tmp_path, max_shard_size="40kB")
    model = loaded(tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert headscope.verify(model, tmp_path).verdict is Verdict.PASSED
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[-1, -1] += 1
    result = headscope.verify(model, tmp_path)
    assert ids(result) == ["HS705"]
    assert result.findings[0].parameters == ("bert.embeddings.word_embeddings.weight",)


def test_no_header_is_parsed_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    parse = safetensors_header._header_text
    monkeypatch.setattr(safetensors_header, "_header_text", lambda source: parsed.append(source.name) or parse(source))
    BertForSequenceClassification(BertConfig(**TINY)).save_pretrained(tmp_path, max_shard_size="40kB")
    shards = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    looks: tuple[tuple[Callable[[], object], int], ...] = (
        (lambda: headscope.verify(loaded(tmp_path), tmp_path), 1),
        (lambda: headscope.verify_save(loaded(tmp_path), tmp_path), 1),
        (lambda: headscope.compare(str(tmp_path), str(tmp_path), values=True), 2),
    )
    for look, times in looks:
        parsed.clear()
        look()
        assert sorted(parsed) == sorted(shards * times)


@pytest.mark.parametrize("look", [headscope.verify, headscope.verify_save], ids=["verify", "verify_save"])
def test_the_model_stays_as_it_is(look: Callable[..., Any], saved: Path) -> None:
    model = loaded(saved).train()
    before = {name: item.clone() for name, item in model.state_dict().items()}
    state = torch.get_rng_state()
    look(model, saved)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(item, before[name]) for name, item in model.state_dict().items())


# Each fault is made, and caught.


def test_a_base_model_that_changed_is_seen_unless_the_head_alone_is_wanted(model: Any, saved: Path) -> None:
    with torch.no_grad():
        model.bert.encoder.layer[0].output.dense.weight += 1
    part = headscope.verify(model, saved, head=True)
    assert (part.verdict, part.scope) == (Verdict.PASSED, Scope(43, 4, head_only=True))
    assert ": 4 of 43 tensors" in str(part)
    whole = headscope.verify(model, saved)
    assert (ids(whole), whole.scope) == (["HS705"], Scope(43, 43))


@pytest.mark.parametrize("source", ["mlm", "base"])
def test_a_head_that_the_checkpoint_lacks_is_random(source: str, tmp_path: Path) -> None:
    whole = BertForMaskedLM(BertConfig(**TINY))
    (whole if source == "mlm" else whole.bert).save_pretrained(tmp_path)
    model, info = BertForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    result = headscope.verify(model, tmp_path)
    assert {item.name for item in result.tensors if item.status is S.RANDOM} == set(info["missing_keys"])
    assert {item.name for item in result.tensors if item.status is S.DROPPED} == set(info["unexpected_keys"])
    assert ids(result) == ["HS702"]  # the heads of pretraining are dropped in every such load


@pytest.mark.parametrize("cls", [BertModel, BertForTokenClassification], ids=lambda cls: cls.__name__)
def test_a_trained_head_that_the_class_has_no_place_for_is_dropped(saved: Path, cls: Any) -> None:
    model, info = cls.from_pretrained(saved, output_loading_info=True)
    result = headscope.verify(model, saved)
    assert {item.name for item in result.tensors if item.status is S.DROPPED} == set(info["unexpected_keys"])
    assert "HS703" in ids(result)


def test_computed_buffers_are_computed_again(tmp_path: Path) -> None:
    model = reloaded(LlamaForSequenceClassification(LlamaConfig(**TINY, num_labels=3)), tmp_path)
    assert counts(headscope.verify(model, tmp_path))["computed"] == 2
    model.model.rotary_emb.inv_freq *= 2
    result = headscope.verify(model, tmp_path)
    assert ids(result) == ["HS705"]
    assert result.findings[0].parameters == ("model.rotary_emb.inv_freq",)


def test_tensors_that_the_loader_fuses_are_converted_again(tmp_path: Path) -> None:
    config = MixtralConfig(**TINY, num_key_value_heads=2, num_local_experts=4)
    model = reloaded(MixtralForSequenceClassification(config), tmp_path)
    keys = load_file(tmp_path / "model.safetensors")
    assert "model.layers.0.block_sparse_moe.experts.3.w1.weight" in keys
    result = headscope.verify(model, tmp_path)
    assert counts(result)["transformed"] == 4
    assert result.verdict is Verdict.PASSED
    with torch.no_grad():
        model.model.layers[1].mlp.experts.down_proj[2, 0, 0] += 1
    result = headscope.verify(model, tmp_path)
    changed = [item.name for item in result.tensors if item.status is S.DIFFERENT]
    assert changed == ["model.layers.1.mlp.experts.down_proj"]


def test_a_head_that_is_tied_no_longer_is_compared(tmp_path: Path) -> None:
    model = reloaded(LlamaForCausalLM(LlamaConfig(**TINY, tie_word_embeddings=True)), tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    assert headscope.verify(model, tmp_path).verdict is Verdict.PASSED
    model.lm_head.weight = nn.Parameter(model.lm_head.weight + 1)
    result = headscope.verify(model, tmp_path)
    assert ids(result) == ["HS701"]
    assert result.findings[0].parameters == ("lm_head.weight",)


def test_a_head_that_is_no_parameter_has_lost_its_numbers(model: Any, saved: Path) -> None:
    weight = model.classifier.weight.detach() + 1
    del model.classifier.weight
    model.classifier.weight = weight
    result = headscope.verify(model, saved)
    assert ids(result) == ["HS703"]
    assert result.findings[0].parameters == ("classifier.weight",)


def test_numbers_too_large_for_the_dtype_are_caught(tmp_path: Path) -> None:
    model = BertForSequenceClassification(BertConfig(**TINY))
    with torch.no_grad():
        model.classifier.weight[0, 0] = 1e5
    model.save_pretrained(tmp_path)
    assert loaded(tmp_path, dtype=torch.float16).classifier.weight.isinf().any()
    result = headscope.verify(loaded(tmp_path, dtype=torch.float16), tmp_path)
    assert ids(result) == ["HS701", "HS708"]
    assert "float16" in result.findings[0].message
    assert headscope.verify(loaded(tmp_path, dtype=torch.bfloat16), tmp_path).verdict is Verdict.PASSED


# What cannot be compared is never green; bad input is a sentence.


def test_a_model_without_numbers_is_not_determined(saved: Path) -> None:
    result = headscope.verify(loaded(saved, device_map="meta"), saved)
    assert result.verdict is Verdict.NOT_DETERMINED
    assert set(statuses(result).values()) == {S.UNKNOWN}


def test_packed_numbers_are_not_determined(model: Any, saved: Path) -> None:
    class Packed(torch.Tensor):
        pass

    weight = model.classifier.weight
    model.classifier.weight = nn.Parameter(weight.detach().as_subclass(Packed))  # type: ignore[arg-type]
    result = headscope.verify(model, saved)
    assert statuses(result)["classifier.weight"] is S.UNKNOWN
    assert result.verdict is Verdict.NOT_DETERMINED


@pytest.mark.parametrize("name", PACKINGS)
@pytest.mark.parametrize("is_told", [True, False])
def test_what_a_checkpoint_packs_is_not_determined_and_never_different(
    name: str, is_told: bool, tmp_path: Path
) -> None:
    folder = quantized(tmp_path, name)
    config = LlamaConfig.from_pretrained(folder)
    settings = config.quantization_config
    del config.quantization_config
    model = LlamaForSequenceClassification(config)
    stored = load_file(folder / "model.safetensors")
    model.load_state_dict({key: value for key, value in stored.items() if "proj" not in key}, strict=False)
    if is_told:
        model.config.quantization_config = settings
    result = headscope.verify(model, folder, head=True)
    lost = ids(result)  # the head is stored as it is; nothing in the model tells that what is left over was packed
    assert (result.verdict is Verdict.PASSED) if is_told or name in {"bnb8", "fp8"} else lost in ([], ["HS707"]), lost
    result = headscope.verify(model, folder)
    packed = {key: status for key, status in statuses(result).items() if "proj" in key and status is not S.DROPPED}
    if is_told or name in {"bnb8", "fp8"}:
        assert set(packed.values()) == {S.UNKNOWN}
        assert result.verdict is Verdict.NOT_DETERMINED
    else:  # nothing in the model says that it was packed, and no key bears the name of its weights
        assert result.verdict is not Verdict.PASSED


def test_another_class_and_other_shapes_fail(saved: Path, gpt2: Path) -> None:
    result = headscope.verify(loaded(saved), gpt2)
    assert result.verdict is Verdict.FAILED
    wide = BertForSequenceClassification(BertConfig(**TINY | {"hidden_size": 64}))
    result = headscope.verify(wide, saved)
    assert set(ids(result)) >= {"HS701"}
    assert statuses(result)["classifier.weight"] is S.DIFFERENT


def test_a_snapshot_holds_nothing_to_compare_with(saved: Path, tmp_path: Path) -> None:
    headscope.snapshot(saved, tmp_path / "s.json")
    with pytest.raises(Unsupported, match="weights"):
        headscope.verify(loaded(saved), tmp_path / "s.json")
    with pytest.raises(Unsupported, match=r"s.json is a snapshot"):
        headscope.verify(tmp_path / "s.json")


def test_a_checkpoint_that_is_gone_is_an_error(saved: Path) -> None:
    with pytest.raises(NotFound):
        headscope.verify(loaded(saved), saved / "nowhere")
    with pytest.raises(UsageError, match="checkpoint"):
        headscope.verify(loaded(saved))  # type: ignore[call-overload]


def test_a_file_that_changes_while_it_is_read_is_not_determined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = reloaded(BertForSequenceClassification(BertConfig(**TINY)), tmp_path)
    trace = verification.trace_checkpoint

    def change_and_trace(*given: Any) -> Any:
        save_file({"other": torch.ones(3)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
        return trace(*given)

    monkeypatch.setattr(verification, "trace_checkpoint", change_and_trace)
    result = headscope.verify(model, tmp_path)
    assert result.verdict is Verdict.NOT_DETERMINED
    assert "has changed" in result.not_determined[0].reason


def test_a_module_of_no_library_is_matched_by_its_names(model: Any, saved: Path) -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, **given: Any) -> Any:
            return self.inner(**given)

    result = headscope.verify(Wrapper(), saved)
    assert result.verdict is Verdict.PASSED, result
    assert "inner." in result.notes[0]
    with torch.no_grad():
        model.classifier.weight += 1
    assert headscope.verify(Wrapper(), saved).verdict is Verdict.FAILED


def test_what_is_dropped_from_a_checkpoint_of_no_named_class_is_not_determined(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    edit_json(tmp_path / "config.json", {}, without=("architectures",))
    result = headscope.verify(BertModel.from_pretrained(tmp_path), tmp_path)
    assert result.verdict is Verdict.NOT_DETERMINED
    assert "names no class" in result.not_determined[0].reason
    edit_json(tmp_path / "config.json", {"auto_map": {"AutoModelForSequenceClassification": "own.OwnClassifier"}})
    (tmp_path / "own.py").write_text("raise SystemExit('this code ran')")
    result = headscope.verify(BertModel.from_pretrained(tmp_path), tmp_path)
    assert "names OwnClassifier in auto_map" in result.not_determined[0].reason
    edit_json(tmp_path / "config.json", {}, without=("auto_map",))
    assert headscope.verify(loaded(tmp_path), tmp_path).verdict is Verdict.PASSED


def test_a_classifier_in_a_pickle_is_never_green(tmp_path: Path) -> None:
    model = reloaded(BertModel(BertConfig(**TINY)), tmp_path)
    module = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
    (tmp_path / "modules.json").write_text(json.dumps([module]))
    (tmp_path / "model_head.pkl").write_bytes(b"\x80\x04N.")
    result = headscope.verify(model, tmp_path)
    assert result.verdict is Verdict.NOT_DETERMINED
    assert result.not_determined[0].topic == "model_head.pkl"
