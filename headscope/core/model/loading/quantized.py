"""Quantized checkpoints: which logical weight a group of packed tensors stands for, by their headers alone.

A quantized layer is stored as several tensors under one module path: packed values, scales, zero points. Each packing
is turned back into the weight that the layer computes with, in its true shape, so that the loader's diff is that of
the model and a packed shape is never taken for a class count. No kernel and no quantization package is needed.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headscope.core.facts import (
    CheckpointManifest,
    Gap,
    ParameterOrigin,
    ParameterStatus,
    Quantization,
    TensorHeader,
    WeightDiff,
)
from headscope.core.facts.counting import counted, verb
from headscope.core.facts.stored.checkpoint import Shapes

_SKIP_LISTS = ("llm_int8_skip_modules", "modules_to_not_convert", "ignore", "ignored_layers")
_WORD = 32

Group = dict[str, TensorHeader]


@dataclass(frozen=True, slots=True)
class Packed:
    """Logical weight: its header in the true shape, the keys that hold it, and the number format as a word."""

    header: TensorHeader
    keys: tuple[str, ...]
    word: str


@dataclass(frozen=True, slots=True)
class _Settings:
    """Quantization settings of the configuration, and the shapes of the model's parameters."""

    method: str
    bits: int
    dtype: str
    shapes: Shapes

    def shape_in_model(self, key: str) -> tuple[int, ...] | None:
        """Gives the shape of the parameter that a key names; None where none or several fit.

        A checkpoint of the base model leaves out the prefix of the model's names, or has one more.
        """
        if key in self.shapes:
            return self.shapes[key]
        longer = [shape for name, shape in self.shapes.items() if name.endswith(f".{key}")]
        found = longer or [shape for name, shape in self.shapes.items() if key.endswith(f".{name}")]
        return found[0] if len(found) == 1 else None


def quantization_config(config: Any) -> dict[str, Any]:
    """Gives the quantization settings of a configuration; empty where it has none."""
    found: Any = getattr(config, "quantization_config", None)
    found = found.to_dict() if hasattr(found, "to_dict") else found
    return found if isinstance(found, dict) else {}


def unpack(
    manifest: CheckpointManifest, config: Mapping[str, Any], dtype: str, shapes: Shapes
) -> tuple[CheckpointManifest, dict[str, Packed]]:
    """Rewrites the manifest as if it had been stored unquantized; tensors of no known packing stay unchanged.

    Also gives what stands for each of its logical weights, by key. `config` is the quantization's; `dtype` the one that
    the layers compute in; `shapes` those of the model.
    """
    settings = _Settings(method_of(config), bits_of(config), dtype, shapes)
    groups: dict[str, Group] = {}
    for header in manifest.tensors:
        stem, suffix = _split_key(header.key)
        groups.setdefault(stem, {})[suffix] = header
    packed: dict[str, Packed] = {}
    for stem, group in groups.items():
        for find in _PACKINGS:
            packed |= {item.header.key: item for item in find(stem, group, settings)}
    gone = {key for item in packed.values() for key in item.keys}
    kept = [header for header in manifest.tensors if header.key not in gone]
    tensors = (*kept, *(item.header for item in packed.values()))
    return replace(manifest, tensors=tensors), packed


def method_of(config: Mapping[str, Any]) -> str:
    """Gives the method's name as configurations write it."""
    method = config.get("quant_method")
    if isinstance(method, str):
        return method
    return "bitsandbytes" if config.get("load_in_4bit") or config.get("load_in_8bit") else "unknown"


def bits_of(config: Mapping[str, Any]) -> int:
    """Gives the bits of a weight; 0 where the settings do not say."""
    if config.get("load_in_4bit") or config.get("_load_in_4bit"):
        return 4
    if config.get("load_in_8bit") or config.get("_load_in_8bit"):
        return 8
    groups = config.get("config_groups")  # of compressed-tensors
    groups = groups.values() if isinstance(groups, dict) else ()
    weights = [item.get("weights") for item in groups if isinstance(item, dict)]
    of_groups = (item.get("num_bits") for item in weights if isinstance(item, dict))
    for value in (config.get("bits"), config.get("w_bit"), *of_groups):
        # `bits: true` is an int in Python; a foreign configuration may hold anything.
        if type(value) is int and 0 < value <= _WORD:
            return value
    return {"fp8": 8, "mxfp4": 4}.get(method_of(config), 0)


_TENSOR_PARTS = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")


def _split_key(key: str) -> tuple[str, str]:
    """Splits a key into module path and rest: `layer.q_proj` and `weight.quant_state.bitsandbytes__nf4`."""
    stem, found, state = key.partition(".weight.quant_state.")
    if found:
        return stem, f"weight.quant_state.{state}"
    stem, _, last = key.rpartition(".")
    if last in _TENSOR_PARTS and stem.endswith(".weight"):
        return stem.removesuffix(".weight"), f"weight.{last}"
    for ending in ("_blocks", "_scales"):
        if last.endswith(ending):
            return f"{stem}.{last.removesuffix(ending)}", ending
    return stem, last


def _unpack_bitsandbytes_4bit(stem: str, group: Group, settings: _Settings) -> Iterator[Packed]:
    """Unpacks two numbers per byte, stored flat; the true shape is the model's, if the element count allows it."""
    state = next((suffix for suffix in group if suffix.startswith("weight.quant_state.")), None)
    weight = group.get("weight")
    if state is None or weight is None:
        return
    bytes_of_storage = _BYTES.get(weight.dtype, 1)
    shape = _true_shape(f"{stem}.weight", 2 * bytes_of_storage * math.prod(weight.shape), settings)
    parts = [header.key for suffix, header in group.items() if suffix.startswith("weight")]
    if shape is not None:
        yield _packed_weight(f"{stem}.weight", shape, parts, state.rpartition("__")[2] or "4 bit", settings)


def _unpack_bitsandbytes_8bit(stem: str, group: Group, settings: _Settings) -> Iterator[Packed]:
    weight, scale = group.get("weight"), group.get("SCB")
    if weight is not None and scale is not None and weight.dtype == "int8":
        parts = [group[name].key for name in ("weight", "SCB", "weight_format") if name in group]
        yield _packed_weight(f"{stem}.weight", weight.shape, parts, "int8", settings)


def _unpack_gptq_or_awq(stem: str, group: Group, settings: _Settings) -> Iterator[Packed]:
    """Unpacks numbers from words of 32 bits: along the inputs in GPTQ, along the outputs in AWQ."""
    weight = group.get("qweight")
    if weight is None or len(weight.shape) != 2 or not settings.bits:
        return
    rows, columns = weight.shape
    in_a_word = _WORD // settings.bits
    # Both store the transpose of PyTorch's [outputs, inputs].
    shape = (columns * in_a_word, rows) if settings.method == "awq" else (columns, rows * _WORD // settings.bits)
    parts = [group[name].key for name in ("qweight", "qzeros", "scales", "g_idx") if name in group]
    word = f"{settings.method} {settings.bits} bit"
    yield _packed_weight(f"{stem}.weight", shape, parts, word, settings)


def _unpack_scaled(stem: str, group: Group, settings: _Settings) -> Iterator[Packed]:
    """Takes one number per element, with scales beside it: FP8, and the unpacked formats of compressed-tensors."""
    weight = group.get("weight")
    scales = [name for name in ("weight_scale_inv", "weight_scale") if name in group]
    if weight is not None and scales and weight.dtype.startswith(("float8", "int8")):
        extra = ("input_scale", "activation_scale", "weight_zero_point", "input_zero_point", "weight_g_idx")
        parts = [group[name].key for name in ("weight", *scales, *extra) if name in group]
        yield _packed_weight(f"{stem}.weight", weight.shape, parts, weight.dtype, settings)


def _unpack_compressed(stem: str, group: Group, settings: _Settings) -> Iterator[Packed]:
    """Unpacks the integers of compressed-tensors: along the inputs, in words of 32 bits."""
    weight = group.get("weight_packed")
    if weight is None or "weight_shape" not in group or not settings.bits:
        return
    *rows, columns = weight.shape
    names = ("weight_packed", "weight_shape", "weight_scale", "weight_zero_point", "weight_g_idx")
    parts = [group[name].key for name in names if name in group]
    width = columns * _WORD // settings.bits
    known = settings.shape_in_model(f"{stem}.weight")
    if known is not None and known[:-1] == tuple(rows) and 0 <= width - known[-1] < _WORD // settings.bits:
        width = known[-1]  # the last word may be filled up
    yield _packed_weight(f"{stem}.weight", (*rows, width), parts, f"int{settings.bits}", settings)


def _unpack_mxfp4(stem: str, group: Group, settings: _Settings) -> Iterator[Packed]:
    """Unpacks blocks of 32 four-bit floats with one scale each: [experts, outputs, groups, 16 bytes]."""
    blocks, scales = group.get("_blocks"), group.get("_scales")
    if blocks is None or scales is None or len(blocks.shape) < 3:
        return
    *leading, rows, groups, width = blocks.shape
    shape = (*leading, groups * width * 2, rows)
    yield _packed_weight(stem, shape, [blocks.key, scales.key], "mxfp4", settings)


def _unpack_torchao(stem: str, group: Group, settings: _Settings) -> Iterator[Packed]:
    data = group.get("_weight_qdata")
    if data is None:
        return
    name = f"{stem}.weight"
    shape: tuple[int, ...] | None = data.shape
    is_whole = data.dtype == "int8" or data.dtype.startswith("float8")
    if not is_whole and settings.shape_in_model(name) != data.shape:
        shape = _true_shape(name, 2 * _BYTES.get(data.dtype, 1) * math.prod(data.shape), settings)
    parts = [header.key for suffix, header in group.items() if suffix.startswith("_weight_")]
    if shape is not None:
        yield _packed_weight(name, shape, parts, f"torchao {data.dtype}", settings)


_BYTES = {"uint8": 1, "int8": 1, "int32": 4, "bfloat16": 2, "float16": 2, "float32": 4}
_PACKINGS: tuple[Callable[[str, Group, _Settings], Iterator[Packed]], ...] = (
    _unpack_bitsandbytes_4bit, _unpack_bitsandbytes_8bit, _unpack_gptq_or_awq, _unpack_scaled, _unpack_compressed,
    _unpack_mxfp4, _unpack_torchao,
)  # fmt: skip


def _packed_weight(name: str, shape: tuple[int, ...], keys: list[str], word: str, settings: _Settings) -> Packed:
    return Packed(TensorHeader(name, settings.dtype, shape), tuple(sorted(keys)), word)


def _true_shape(name: str, elements: int, settings: _Settings) -> tuple[int, ...] | None:
    """Gives the shape of a weight stored flat: the model's, with the first axis by the count of elements.

    None where the count fits no whole number of rows: then headers don't show the shape.
    """
    known = settings.shape_in_model(name)
    if known is None:
        return None
    # An odd count of 4-bit numbers fills its last byte with one more.
    if 0 <= elements - math.prod(known) < 2:
        return known
    width = math.prod(known[1:])
    return (elements // width, *known[1:]) if len(known) > 1 and width and elements % width == 0 else None


def with_packed_names(diff: WeightDiff, packed: Mapping[str, Packed]) -> WeightDiff:
    """Puts the diff under the keys that the files have; unknown packings leave gaps, never new weights."""
    parameters = tuple(_with_stored_keys(item, packed) for item in diff.parameters)
    # Parameters are missing in modules for which the checkpoint has tensors that nothing took: packed ones.
    stems = {key.rpartition(".")[0] for key in diff.unused} | {_split_key(key)[0] for key in diff.unused}
    ends = [f".{stem}" for stem in stems if stem]
    modules = {name: f".{name.rpartition('.')[0]}" for name in diff.new}
    unresolved = {
        name for name, path in modules.items() if any(path.endswith(end) or end.endswith(path) for end in ends)
    }
    parameters = tuple(
        replace(item, status=ParameterStatus.UNKNOWN) if item.name in unresolved else item for item in parameters
    )
    sentence = f"{counted(len(unresolved), 'tensor')} {verb(len(unresolved))}"
    gap = Gap("quantized weights", f"{sentence} packed in an unknown way")
    return replace(
        diff,
        new=tuple(name for name in diff.new if name not in unresolved),
        renamed=tuple(item for item in diff.renamed if packed.keys().isdisjoint(item.checkpoint_keys)),
        parameters=parameters,
        gaps=(*diff.gaps, gap) if unresolved else diff.gaps,
    )


def _with_stored_keys(item: ParameterOrigin, packed: Mapping[str, Packed]) -> ParameterOrigin:
    found = [packed[key] for key in item.checkpoint_keys if key in packed]
    if not found:
        return item
    plain = [key for key in item.checkpoint_keys if key not in packed]
    keys = tuple(sorted({*plain, *(key for one in found for key in one.keys)}))
    return replace(item, checkpoint_keys=keys, dtype=found[0].word, quantized=found[0].word)


def quantization_facts(config: Mapping[str, Any], head: list[ParameterOrigin]) -> Quantization:
    """Collects what a report says of the quantization; `head` are the live parameters of the head."""
    unknown = any(item.status is ParameterStatus.UNKNOWN for item in head)
    stored = any(item.quantized is not None for item in head)
    lists = [config[name] for name in _SKIP_LISTS if isinstance(config.get(name), list)]
    skipped = {name for found in lists for name in found if isinstance(name, str)}
    matrices = [item.name for item in head if len(item.shape) > 1]
    path = matrices[-1].rpartition(".")[0] if matrices else ""
    # The last matrix of the head is in one of the modules, or its path holds the name.
    skips_head = any(f".{name}." in f".{path}." for name in skipped)
    return Quantization(
        method=method_of(config),
        bits=bits_of(config) or None,
        head_quantized=None if unknown or not head else stored,
        skipped=tuple(sorted(skipped)),
        skips_head=skips_head if lists and head else None,
    )
