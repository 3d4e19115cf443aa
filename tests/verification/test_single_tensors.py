"""One tensor at a time: what it is compared with, and what is missing, unused or dropped beside it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, MixtralConfig, MixtralForSequenceClassification

import headscope
from headscope.checks.evidence.base_numbers import live_base_numbers
from headscope.core.checkpoints.reading import read_manifest
from headscope.core.facts.stored.location import Location
from headscope.core.facts.stored.sentence import SentencePipeline
from headscope.core.facts.stored.weights import DroppedGroup
from headscope.core.model.classes.unexpected_keys import describe_unused, find_dropped
from headscope.core.source.live.live_tensors import tensors_of
from headscope.core.source.request import Request
from headscope.core.source.stored_tensors import open_stored_files
from headscope.shared.loaded.facts import TensorStatus
from headscope.shared.loaded.pairing import StoredPairing
from headscope.shared.loaded.tensor_checks import IN_A_PICKLE, against_saved, checked, open_gaps, unchecked
from tests.edits import edit_tensors
from tests.families import FAMILIES
from tests.verification.tiny import TINY, adapted, loaded, reloaded, saved_adapter, with_adapter

# One tensor against the one that is stored, each way that numbers can differ

EQUAL, CAST, DIFFERENT, EMPTY = (
    TensorStatus.EQUAL, TensorStatus.CAST, TensorStatus.DIFFERENT, TensorStatus.PLACEHOLDER,
)  # fmt: skip
UNKNOWN = TensorStatus.UNKNOWN
NAN, INFINITE = float("nan"), float("inf")
ROW = torch.tensor([[0.1, -0.3], [2.0, 5.0]])
SHORT = ROW.bfloat16()
ROUNDING = float((ROW.double() - SHORT.double()).abs().max())
Case = tuple[torch.Tensor, torch.Tensor, bool, TensorStatus, float | None, str]
LOADED: dict[str, Case] = {  # stored, live, a buffer, and what a load of it is
    "equal": (ROW, ROW, False, EQUAL, 0.0, ""),
    "rounded": (ROW, SHORT, False, CAST, ROUNDING, ""),
    "widened": (SHORT, SHORT.float(), False, CAST, 0.0, ""),
    "another number": (ROW, ROW + torch.tensor([0, 0.5]), False, DIFFERENT, 0.5, ""),
    "rounded on the way": (ROW, SHORT.float(), False, DIFFERENT, ROUNDING, "rounded to bfloat16, which neither"),
    "NaN for a number": (ROW, ROW.where(ROW < 5, NAN), False, EMPTY, None, "NaN"),
    "NaN that is stored": (ROW * NAN, ROW * NAN, False, EMPTY, 0.0, "NaN"),
    "infinite as stored": (ROW / 0, ROW / 0, False, EMPTY, 0.0, "infinite values"),
    "infinite as stored, rounded": (ROW / 0, SHORT / 0, False, EMPTY, 0.0, "infinite values"),
    "a mask as stored": (ROW / 0, ROW / 0, True, EQUAL, 0.0, ""),
    "too large": (ROW * 1e30, (ROW * 1e30).half(), False, DIFFERENT, None, "too large for float16"),
    "a mask too large": (ROW * 1e30, (ROW * 1e30).half(), True, CAST, None, ""),
    "infinite for a number": (ROW, ROW / 0, False, DIFFERENT, None, "finite values are where the other has none"),
    "zeros for numbers": (ROW, ROW * 0, False, EMPTY, 5.0, "zeros throughout"),
    "zeros as stored": (ROW * 0, ROW * 0, False, EQUAL, 0.0, ""),
    "zeros as stored, rounded": (ROW * 0, SHORT * 0, False, CAST, 0.0, ""),
    "a vector of zeros": (ROW[0], ROW[0] * 0, False, DIFFERENT, float(ROW[0].abs().max()), ""),
    "no elements": (ROW, ROW[:0], False, EMPTY, None, "ZeRO-3"),
    "no elements as stored": (ROW[:0], ROW[:0], False, EQUAL, 0.0, ""),
    "rounded by a save": (SHORT, ROW, False, DIFFERENT, ROUNDING, ""),
    "another shape": (ROW, ROW[:1], False, DIFFERENT, None, "2x2, another shape"),
    "without an axis": (ROW[0, 0], ROW[0, :1], False, DIFFERENT, None, "one number, another shape"),
    "no numbers": (ROW, ROW.to("meta"), False, UNKNOWN, None, "meta device"),
    "whole numbers as a matrix": (ROW.to(torch.int8), ROW.to(torch.int8).float(), False, UNKNOWN, None, "as int8 "),
    "whole numbers": (ROW.long(), ROW.long(), True, EQUAL, 0.0, ""),
    "floats of 8 bits, widened": (ROW.to(torch.float8_e4m3fn), ROW.to(torch.float8_e4m3fn).float(), False, CAST, 0.0,
                                  ""),
    "floats of 8 bits": (ROW.to(torch.float8_e4m3fn), ROW.to(torch.float8_e4m3fn), False, EQUAL, 0.0, ""),
    "whole numbers, widened": (ROW.to(torch.int8), ROW.long(), True, CAST, 0.0, ""),
}  # fmt: skip
SAVED: dict[str, tuple[TensorStatus, float | None, str]] = {  # where a save of that is something else
    "rounded": (CAST, ROUNDING, "stored as float32"),
    "widened": (CAST, 0.0, "stored as bfloat16"),
    "rounded on the way": (DIFFERENT, ROUNDING, ""),
    "NaN for a number": (EMPTY, None, "NaN"),
    "NaN that is stored": (EMPTY, None, "NaN"),
    "infinite as stored": (EMPTY, None, "infinite"),
    "infinite as stored, rounded": (EMPTY, None, "infinite"),
    "too large": (EMPTY, None, "infinite"),
    "a mask too large": (CAST, INFINITE, "stored as float32"),
    "infinite for a number": (EMPTY, None, "infinite"),
    "zeros for numbers": (DIFFERENT, 5.0, ""),
    "zeros as stored, rounded": (CAST, 0.0, "stored as float32"),
    "no elements": (DIFFERENT, None, "the save holds 2x2"),
    "rounded by a save": (CAST, ROUNDING, "stored as bfloat16"),
    "another shape": (DIFFERENT, None, "the save holds 2x2"),
    "without an axis": (DIFFERENT, None, "the save holds one number"),
    "whole numbers as a matrix": (CAST, 0.0, "stored as int8"),
    "floats of 8 bits, widened": (CAST, 0.0, "stored as float8_e4m3fn"),
    "whole numbers, widened": (CAST, 0.0, "stored as int8"),
}


def paired(module: Any, folder: Path) -> StoredPairing:
    request = Request(Location(str(folder)))
    manifest = read_manifest(request.location)
    return StoredPairing(module, manifest, open_stored_files(request, manifest))


def one_tensor(folder: Path, stored: dict[str, torch.Tensor], live: torch.Tensor, is_buffer: bool) -> Any:
    """What pairs a module that holds one tensor `w` with a checkpoint of these."""
    (folder / "config.json").write_text("{}")
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    module = nn.Module()
    if is_buffer:
        module.register_buffer("w", live)
    else:
        module.register_parameter("w", nn.Parameter(live, requires_grad=False))
    return paired(module, folder), next(tensors_of(module))


@pytest.mark.parametrize("case", LOADED)
def test_one_tensor_against_the_one_that_is_stored(case: str, tmp_path: Path) -> None:
    stored, live, is_buffer, *expected = LOADED[case]
    pairing, item = one_tensor(tmp_path, {"w": stored}, live, is_buffer)
    found = checked(item, pairing, is_head=False, is_live=True)
    status, error, reason = expected
    assert (found.status, found.max_error) == (status, error if error is None else pytest.approx(error))
    assert (reason in found.reason) if reason else not found.reason
    assert (found.keys, found.shape, found.dtype) == (("w",), tuple(live.shape), str(live.dtype)[6:])
    assert (found.is_head, found.is_buffer, found.is_live) == (False, is_buffer, True)
    if live.is_meta:
        return
    pair = pairing.pair(item)
    status, error, reason = SAVED.get(case, expected)
    found = against_saved(unchecked("w", item.tensor), item.tensor, pair.place, pair.headers[0])
    assert (found.status, found.max_error) == (status, error if error is None else pytest.approx(error))
    assert reason in found.reason
    assert (found.keys, found.is_head, found.is_buffer) == (("w",), True, is_buffer)


@pytest.mark.parametrize(
    ("stored", "is_buffer", "status", "reason"),
    [({}, False, TensorStatus.RANDOM, "not in the checkpoint"), ({}, True, UNKNOWN, "buffer"),
     ({"w": ROW.to(torch.float8_e4m3fn), "w_scale": ROW}, False, UNKNOWN, "float8_e4m3fn"),
     ({"w": ROW.to(torch.int8), "w_scale": ROW}, False, UNKNOWN, "int8")],
)  # fmt: skip
def test_one_tensor_that_cannot_be_compared(
    stored: dict[str, torch.Tensor], is_buffer: bool, status: TensorStatus, reason: str, tmp_path: Path
) -> None:
    pairing, item = one_tensor(tmp_path, {"other": ROW + 1} | stored, ROW.clone(), is_buffer)
    found = checked(item, pairing, is_head=True, is_live=True)
    assert (found.status, found.is_live, found.is_buffer) == (status, True, is_buffer)
    assert reason in found.reason
    gone = checked(item, pairing, is_head=True, is_live=True, numbers=lambda: tmp_path.joinpath("gone").read_bytes())
    if stored:
        assert (gone.status, "(FileNotFoundError)" in gone.reason, gone.keys) == (UNKNOWN, True, ())
    tied = checked(replace(item, tied_to="x", name="y"), pairing, is_head=True, is_live=True)
    assert tied.status is TensorStatus.TIED and tied.reason.endswith(" x")
    assert [(gap.topic, gap.reason) for gap in open_gaps([found, replace(found, is_live=False), tied])] == (
        [("w", found.reason)] if status is UNKNOWN else []
    )


def test_one_packed_tensor_is_compared_where_the_model_holds_it_packed(tmp_path: Path) -> None:
    packed = ROW.to(torch.float8_e4m3fn)
    pairing, item = one_tensor(tmp_path, {"w": packed, "w_scale": ROW}, packed.clone(), False)
    assert checked(item, pairing, is_head=True, is_live=True).status is EQUAL


def test_one_tensor_whose_file_is_gone_or_beside_a_pickle_is_unknown(tmp_path: Path) -> None:
    pairing, item = one_tensor(tmp_path, {"w": ROW}, ROW.clone(), False)
    pair = pairing.pair(item)
    (tmp_path / "model.safetensors").unlink()
    lost = checked(item, pairing, is_head=True, is_live=True)
    unsaved = against_saved(unchecked("w", item.tensor), item.tensor, pair.place, pair.headers[0])
    assert [(found.status, found.keys, bool(found.reason)) for found in (lost, unsaved)] == [
        (UNKNOWN, ("w",), True)
    ] * 2
    for classifier, status in (("model_head.pkl", UNKNOWN), ("", TensorStatus.RANDOM)):
        pairing.manifest = replace(pairing.manifest, sentence=SentencePipeline((), classifier=classifier))
        found = checked(replace(item, name="head"), pairing, is_head=True, is_live=True)
        assert (found.status, found.reason == IN_A_PICKLE) == (status, bool(classifier))


def test_one_tensor_that_the_loader_makes_of_several(tmp_path: Path) -> None:
    config = MixtralConfig(**TINY, num_key_value_heads=2, num_local_experts=2)
    model = reloaded(MixtralForSequenceClassification(config), tmp_path)
    pairing = paired(model, tmp_path)
    item = next(item for item in tensors_of(model) if item.name.endswith("0.mlp.experts.down_proj"))
    made = item.tensor.detach()
    for tensor, status in (
        (made, TensorStatus.TRANSFORMED), (made.bfloat16(), TensorStatus.TRANSFORMED), (made + 1, DIFFERENT),
        (made[:1], DIFFERENT), (made * 0, EMPTY),
    ):  # fmt: skip
        found = checked(replace(item, tensor=tensor), pairing, is_head=False, is_live=True)
        assert (found.status, len(found.keys)) == (status, 2)
        assert ("another shape" in found.reason) is (tensor.shape != made.shape)


def test_one_tensor_that_follows_from_an_adapter(saved: Path, tmp_path: Path) -> None:
    """PEFT stores neither AdaLoRA's ranks nor its copies of the rows that it trains."""
    for method, name in (("AdaLoRA", "ranknum"), ("tokens", "trainable_tokens_original")):
        saved_adapter(method, saved, tmp_path / name)
        live = with_adapter(saved, tmp_path / name)
        pairing = paired(live, tmp_path / name)
        item = next(item for item in tensors_of(live) if name in item.name)
        for tensor, status in (
            (item.tensor, TensorStatus.COMPUTED if name == "ranknum" else EQUAL), (item.tensor + 1, DIFFERENT),
            (item.tensor.to("meta"), UNKNOWN),
        ):  # fmt: skip
            found = checked(replace(item, tensor=tensor), pairing, is_head=False, is_live=True)
            assert (found.status, "computed" in found.reason) == (status, status is TensorStatus.COMPUTED)


def test_one_weight_against_what_peft_merges(saved: Path, tmp_path: Path) -> None:
    adapter = adapted(tmp_path / "adapter", saved)
    before, live = loaded(saved).state_dict(), with_adapter(saved, adapter)
    beside = StoredPairing(live, read_manifest(Location(str(saved))), [])
    lost = next(item for item in tensors_of(live) if "lora_A" in item.name)
    found = checked(lost, beside, is_head=True, is_live=True)
    assert (found.status, found.is_live, "adapter=" in found.reason) == (UNKNOWN, False, True)
    merged = live.merge_and_unload()
    pairing = paired(merged, adapter)
    items = {item.name: item for item in tensors_of(merged)}
    name = "bert.encoder.layer.0.attention.self.query.weight"
    made = items[name].tensor.detach()
    other = made.clone()
    other[0, 0] += 1
    for tensor, status, reason in (
        (made, TensorStatus.MERGED, ""), (made.bfloat16(), TensorStatus.MERGED, ""), (other, DIFFERENT, ""),
        (before[name], DIFFERENT, "these are the base model's values"), (made * NAN, EMPTY, "NaN"),
        (made / 0, DIFFERENT, "finite values"), (made * 0, EMPTY, "zeros"),
    ):  # fmt: skip
        found = checked(replace(items[name], tensor=tensor), pairing, is_head=False, is_live=True)
        assert (found.status, len(found.keys)) == (status, 3)
        assert (reason in found.reason) if reason else not found.reason


@pytest.mark.parametrize(
    ("lost", "number", "dtype", "expected"),
    [("adapter", NAN, torch.float32, (EMPTY, "NaN")), ("base", NAN, torch.float32, (EMPTY, "NaN")),
     ("adapter", 1e6, torch.float16, (DIFFERENT, "too large for float16"))],
)  # fmt: skip
def test_one_merge_that_is_not_finite_is_none(
    lost: str, number: float, dtype: torch.dtype, expected: tuple[TensorStatus, str], tmp_path: Path
) -> None:
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    BertForSequenceClassification(BertConfig(**TINY)).save_pretrained(base)
    adapted(adapter, base)
    name = "bert.encoder.layer.0.attention.self.query.weight"
    file = {"base": base / "model.safetensors", "adapter": adapter / "adapter_model.safetensors"}[lost]
    key = name if lost == "base" else f"base_model.model.{name.replace('weight', 'lora_B.weight')}"
    edit_tensors(file, lambda state: state | {key: torch.full_like(state[key], number)})
    merged = loaded(base) if lost == "base" else with_adapter(base, adapter).merge_and_unload().to(dtype)
    assert not merged.get_parameter(name).isfinite().all()
    pairing = paired(merged, adapter)
    item = next(item for item in tensors_of(merged) if item.name == name)
    found = checked(item, pairing, is_head=False, is_live=True)
    assert (found.status, len(found.keys), expected[1] in found.reason) == (expected[0], 3, True)


@pytest.mark.parametrize(("change", "computed"), [(1.0, True), (1 + 2**-22, True), (1.01, False), (NAN, None)])
def test_one_buffer_against_the_one_that_the_class_computes(
    change: float, computed: bool | None, tmp_path: Path
) -> None:
    model = FAMILIES["llama"].build("LlamaModel")
    model.save_pretrained(tmp_path)
    pairing = paired(model, tmp_path)
    item = next(item for item in tensors_of(model) if item.name == "rotary_emb.inv_freq")
    found = checked(replace(item, tensor=item.tensor * change), pairing, is_head=False, is_live=True)
    assert found.status is (EMPTY if computed is None else TensorStatus.COMPUTED if computed else DIFFERENT)
    for other, reason in ((item.tensor[:1], "no such buffer"), (item.tensor.to("meta"), "meta device")):
        found = checked(replace(item, tensor=other), pairing, is_head=False, is_live=True)
        assert (found.status, reason in found.reason) == (UNKNOWN, True)


def test_one_buffer_of_whole_numbers_against_the_one_that_the_class_computes(model: Any, saved: Path) -> None:
    pairing = paired(model, saved)
    item = next(item for item in tensors_of(model) if item.name == "bert.embeddings.position_ids")
    for tensor, status in ((item.tensor, TensorStatus.COMPUTED), (item.tensor + 1, DIFFERENT)):
        assert checked(replace(item, tensor=tensor), pairing, is_head=False, is_live=True).status is status


def test_unused_keys_are_those_of_the_classes_that_have_them() -> None:
    model = BertForSequenceClassification(BertConfig(**TINY))
    others = [getattr(transformers, f"BertFor{name}")(model.config) for name in ("PreTraining", "QuestionAnswering")]
    own = model.state_dict().keys()
    keys = [*sorted({key for other in others for key in other.state_dict()} - own), "bert.nothing"]
    groups = describe_unused(model, tuple(keys))
    assert sorted(key for group in groups for key in group.keys) == sorted(keys)
    for group in groups:
        held = [getattr(transformers, name)(model.config).state_dict().keys() for name in group.classes]
        assert bool(held) is bool(group.description) is (group.keys != ("bert.nothing",))
        assert all(key in names for names in held for key in group.keys)
    assert find_dropped(model, groups, ()) == (DroppedGroup(("bert.nothing",)),)
    assert describe_unused(model, ()) == ()


def test_dropped_keys_are_those_of_other_layers_and_of_a_switch(tmp_path: Path) -> None:
    family = FAMILIES["llama"]
    family.build(family.classifier, attention_bias=True, num_hidden_layers=3).save_pretrained(tmp_path)
    headers = read_manifest(Location(str(tmp_path))).tensors
    model = family.build(family.classifier, num_hidden_layers=2)
    unused = {item.key for item in headers} - model.state_dict().keys()
    biases = tuple(sorted(key for key in unused if key.endswith("_proj.bias")))
    groups = describe_unused(model, tuple(sorted(unused)))
    expected = DroppedGroup(tuple(sorted(unused - set(biases)))), DroppedGroup(biases, "attention_bias")
    assert find_dropped(model, groups, headers) == expected
    assert all(key.startswith("model.layers.2.") for key in expected[0].keys)
    whole = [replace(item, dtype="int32") for item in headers]
    assert find_dropped(model, groups, whole) == ()


@pytest.mark.parametrize(
    ("name", "number", "lost", "doubtful"),
    [("encoder.layer.0.output.dense.weight", None, False, False),
     ("encoder.layer.0.output.dense.weight", NAN, True, False),
     ("encoder.layer.0.output.dense.weight", INFINITE, True, False),
     ("encoder.layer.0.output.dense.weight", -INFINITE, True, False),
     ("encoder.layer.0.output.dense.weight", 0.0, False, True),
     ("embeddings.LayerNorm.bias", 0.0, False, False),
     ("encoder.layer.1.output.LayerNorm.weight", 0.0, False, True)],
)  # fmt: skip
def test_numbers_of_a_base_model_in_memory(name: str, number: float | None, lost: bool, doubtful: bool) -> None:
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**TINY)).eval()
    for item in model.parameters():
        nn.init.normal_(item, 1 if item.dim() == 1 else 0, 0.1)
    if number is not None:
        nn.init.constant_(model.bert.get_parameter(name), number)
    found = live_base_numbers(model, headscope.inspect(model))
    expected = (f"bert.{name}",)
    assert (found.broken, found.zeros) == (expected if lost else (), expected if doubtful else ())
