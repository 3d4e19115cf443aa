"""Quantized checkpoints: true shapes and honest statuses from headers alone, whatever the packing."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import headscope
from headscope.facts import ParameterStatus
from headscope.shell import main
from tests.edits import State, edit_json, edit_tensors
from tests.families import FAMILIES

Packing = Callable[[str, torch.Tensor], State]

_LABELS = 3


def bnb4(stem: str, weight: torch.Tensor) -> State:
    state = torch.tensor(list(b'{"quant_type": "nf4"}'), dtype=torch.uint8)
    packed = torch.zeros((weight.numel() + 1) // 2, 1, dtype=torch.uint8)
    extra = {"absmax": torch.zeros(4), "quant_map": torch.zeros(16), "quant_state.bitsandbytes__nf4": state}
    return {f"{stem}.weight": packed} | {f"{stem}.weight.{name}": value for name, value in extra.items()}


def bnb8(stem: str, weight: torch.Tensor) -> State:
    scale, kind = torch.zeros(weight.shape[0]), torch.tensor(0, dtype=torch.uint8)
    return {f"{stem}.weight": weight.to(torch.int8), f"{stem}.SCB": scale, f"{stem}.weight_format": kind}


def awq(stem: str, weight: torch.Tensor) -> State:
    outputs, inputs = weight.shape
    return {
        f"{stem}.qweight": torch.zeros(inputs, outputs // 8, dtype=torch.int32),
        f"{stem}.qzeros": torch.zeros(1, outputs // 8, dtype=torch.int32),
        f"{stem}.scales": torch.zeros(1, outputs),
    }


def gptq(stem: str, weight: torch.Tensor) -> State:
    outputs, inputs = weight.shape
    packed = torch.zeros(inputs // 8, outputs, dtype=torch.int32)
    return awq(stem, weight) | {f"{stem}.qweight": packed, f"{stem}.g_idx": torch.zeros(inputs, dtype=torch.int32)}


def fp8(stem: str, weight: torch.Tensor) -> State:
    return {f"{stem}.weight": weight.to(torch.float8_e4m3fn), f"{stem}.weight_scale_inv": torch.ones(1, 1)}


def compressed(stem: str, weight: torch.Tensor) -> State:
    outputs, inputs = weight.shape
    return {
        f"{stem}.weight_packed": torch.zeros(outputs, (inputs + 7) // 8, dtype=torch.int32),
        f"{stem}.weight_shape": torch.tensor([outputs, inputs]),
        f"{stem}.weight_scale": torch.ones(outputs, 1),
    }


def torchao(stem: str, weight: torch.Tensor) -> State:
    scale = torch.ones(weight.shape[0], 1)
    return {f"{stem}._weight_qdata": weight.to(torch.int8), f"{stem}._weight_scale": scale}


PACKINGS: dict[str, tuple[Packing, dict[str, Any]]] = {
    "bnb4": (bnb4, {"quant_method": "bitsandbytes", "load_in_4bit": True, "llm_int8_skip_modules": None}),
    "bnb8": (bnb8, {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": 32}),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "modules_to_not_convert": ["score"]}),
    "fp8": (fp8, {"quant_method": "fp8", "weight_block_size": [128, 128]}),
    "compressed-tensors": (
        compressed,
        {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4}}}},
    ),
    "torchao": (torchao, {"quant_method": "torchao"}),
}
_ALL = pytest.mark.parametrize("name", PACKINGS)


def save(folder: Path, name: str, *, of: str = "classifier", head: bool = False, **changes: Any) -> Path:
    """A Llama whose linear layers are packed; the head too, if asked for."""
    pack, settings = PACKINGS[name]
    family = FAMILIES["llama"]
    model = family.build(getattr(family, of), num_labels=_LABELS, hidden_size=64, intermediate_size=64, head_dim=16)
    model.save_pretrained(folder)
    state: State = {}
    for key, value in load_file(folder / "model.safetensors").items():
        stem = key.removesuffix(".weight")
        is_packed = stem.endswith("proj") or (head and stem == "score")
        state |= pack(stem, value) if is_packed else {key: value}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    edit_json(folder / "config.json", {"quantization_config": settings | changes})
    return folder


@_ALL
@pytest.mark.parametrize("of", ["base", "language_model", "classifier"])
def test_what_was_packed_was_loaded(name: str, of: str, tmp_path: Path) -> None:
    report = headscope.inspect(str(save(tmp_path, name, of=of)), num_labels=_LABELS, task="sequence-classification")
    new = () if of == "classifier" else ("score.weight",)
    assert report.weights.new == new
    assert not report.weights.mismatched
    assert [key for key in report.weights.unused if key != "lm_head.weight"] == []
    assert not report.not_determined
    assert (report.model.quantization.method, report.model.quantization.head_quantized) == (
        PACKINGS[name][1]["quant_method"], False,
    )  # fmt: skip
    packed = [item for item in report.weights.parameters if item.quantized]
    assert len(packed) == 2 * 7
    assert all(len(item.checkpoint_keys) > 1 for item in packed)


@pytest.mark.parametrize("name", [name for name in PACKINGS if name not in ("awq", "gptq")])
def test_a_packed_head_has_its_true_shape(name: str, tmp_path: Path) -> None:
    folder = str(save(tmp_path, name, head=True))
    report = headscope.inspect(folder)
    (head,) = report.head.parameters
    assert (head.shape, head.status) == ((_LABELS, 64), ParameterStatus.LOADED)
    assert head.quantized
    assert report.model.quantization.head_quantized
    assert "packed as" in str(report)
    (mismatch,) = headscope.inspect(folder, num_labels=5).weights.mismatched
    assert (mismatch.checkpoint_shape, mismatch.model_shape) == ((_LABELS, 64), (5, 64))


def test_an_unknown_packing_is_not_determined_and_never_new(tmp_path: Path) -> None:
    folder = save(tmp_path, "gptq", quant_method="of tomorrow")
    edit_tensors(
        folder / "model.safetensors", lambda state: {key.replace("qweight", "zweight"): state[key] for key in state}
    )
    report = headscope.inspect(str(folder))
    assert report.weights.new == ()
    assert [gap.topic for gap in report.not_determined] == ["quantized weights"]
    assert {item.status for item in report.head.parameters} == {ParameterStatus.LOADED}


def test_packed_weights_without_a_dtype_in_the_configuration_are_loaded(tmp_path: Path) -> None:
    folder = save(tmp_path, "gptq")
    edit_json(folder / "config.json", {"dtype": None})
    report = headscope.inspect(str(folder))
    assert (report.weights.new, report.not_determined) == ((), ())


def test_blocks_of_four_bit_floats() -> None:
    from headscope.core.model.loading.quantized import unpack
    from headscope.facts import CheckpointKind, CheckpointManifest, TensorHeader, WeightsFormat

    tensors = (
        TensorHeader("model.layers.0.mlp.experts.gate_up_proj_blocks", "uint8", (4, 128, 2, 16)),
        TensorHeader("model.layers.0.mlp.experts.gate_up_proj_scales", "uint8", (4, 128, 2)),
        TensorHeader("model.layers.0.mlp.experts.gate_up_proj_bias", "bfloat16", (4, 128)),
    )
    manifest = CheckpointManifest("x", CheckpointKind.LOCAL, WeightsFormat.SAFETENSORS, {}, tensors, ())
    unpacked, _ = unpack(manifest, {"quant_method": "mxfp4"}, "bfloat16", {})
    shapes = {header.key: header.shape for header in unpacked.tensors}
    assert shapes == {
        "model.layers.0.mlp.experts.gate_up_proj": (4, 64, 128),
        "model.layers.0.mlp.experts.gate_up_proj_bias": (4, 128),
    }


def _packed_by_transformers(folder: Path, family: str, skips: list[str] | None) -> Path:
    """A classifier with the linear layers packed that Transformers converts with these settings."""
    from transformers.quantizers.base import HfQuantizer
    from transformers.quantizers.quantizers_utils import should_convert_module

    made = FAMILIES[family]
    model = made.build(made.classifier, num_labels=_LABELS)
    kept = HfQuantizer.get_modules_to_not_convert(model, skips)
    model.save_pretrained(folder)
    state: State = dict(load_file(folder / "model.safetensors"))
    for name, module in model.named_modules():
        if type(module) is torch.nn.Linear and should_convert_module(name, kept):
            state |= bnb8(name, state[f"{name}.weight"])
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    settings = {"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_skip_modules": skips}
    edit_json(folder / "config.json", {"quantization_config": settings})
    return folder


@pytest.mark.parametrize(
    ("family", "skips", "words"),
    [
        ("bert", ["classifier"], ("the head's bert.pooler.dense too", "loaded, partly quantized (")),
        ("roberta", ["out_proj"], ("the head's classifier.dense too", "loaded, partly quantized (")),
        ("distilbert", [], ("the head is quantized too", "loaded, quantized (")),
    ],
)
def test_the_skip_list_of_the_finding_leaves_the_whole_head_alone(
    family: str, skips: list[str], words: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = _packed_by_transformers(tmp_path / "packed", family, skips)
    (found,) = headscope.check(str(folder), "inference", select="HS404").findings
    (list_of_layers,) = re.findall(r"llm_int8_skip_modules=(\[.*?\])", found.remedy)
    assert main(["inspect", str(folder)]) == 0
    said = capsys.readouterr().out
    assert words[0] in said and words[1] in said
    assert "headscope explain HS404" in said  # not HS202, which is a warning too: the names of the classes
    cured = _packed_by_transformers(tmp_path / "cured", family, json.loads(list_of_layers))
    assert headscope.check(str(cured), "inference", select="HS404").findings == ()
    report = headscope.inspect(str(cured))
    assert "the head is not" in str(report) and any(item.quantized for item in report.weights.parameters)


def test_a_forgotten_skip_list_is_a_finding(tmp_path: Path) -> None:
    folder = save(tmp_path, "bnb4", of="language_model", llm_int8_skip_modules=["lm_head"])
    options = {"num_labels": _LABELS, "task": "sequence-classification"}
    (found,) = headscope.check(str(folder), "training", select="HS404", **options).findings
    assert 'llm_int8_skip_modules=["lm_head", "score"]' in found.remedy
    covered = save(tmp_path, "bnb4", of="language_model", llm_int8_skip_modules=["lm_head", "score"])
    assert headscope.check(str(covered), "training", select="HS404", **options).findings == ()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("head", [False, True])
def test_as_bitsandbytes_itself_saves_and_loads(bits: int, head: bool, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    family = FAMILIES["llama"]
    family.build(family.classifier, num_labels=_LABELS, hidden_size=64, head_dim=16).save_pretrained(tmp_path / "plain")
    model_class = getattr(transformers, family.classifier)
    settings = transformers.BitsAndBytesConfig(
        load_in_4bit=bits == 4, load_in_8bit=bits == 8, llm_int8_skip_modules=[] if head else None
    )
    model = model_class.from_pretrained(tmp_path / "plain", quantization_config=settings, device_map="cpu")
    model.save_pretrained(tmp_path / "packed")
    _, info = model_class.from_pretrained(tmp_path / "packed", output_loading_info=True, device_map="cpu")
    report = headscope.inspect(str(tmp_path / "packed"))
    assert (set(report.weights.new), set(report.weights.unused)) == (
        set(info["missing_keys"]), set(info["unexpected_keys"]),
    )  # fmt: skip
    assert report.model.quantization.head_quantized is head
    assert [item.shape for item in report.head.parameters] == [(_LABELS, 64)]
