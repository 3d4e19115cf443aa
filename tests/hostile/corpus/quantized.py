"""Quantization settings and packed tensors that do not add up."""

from typing import Any

from hostile.corpus.case import CONFIG, Build, Case, inspected, zeros

_LAYER = "distilbert.transformer.layer.0.ffn.lin1"


def _sentence(settings: Any, shapes: dict[str, list[int]]) -> Build:
    return inspected({"model.safetensors": zeros(shapes)}, CONFIG | {"quantization_config": settings})


_GPTQ = {f"{_LAYER}.qweight": [1, 16], f"{_LAYER}.qzeros": [1, 2], f"{_LAYER}.scales": [1, 16]}
_EITHER = (0, 3)
_SETTINGS: tuple[tuple[str, Any], ...] = (
    ("a number", 7),
    ("a list", [1]),
    ("a text", "gptq"),
    ("nothing in it", {}),
    ("a method of no name", {"quant_method": 7}),
    ("an unknown method", {"quant_method": "homemade"}),
    ("a method that acts", {"quant_method": "\x1b[2J"}),
    ("bits in words", {"quant_method": "gptq", "bits": "four"}),
    ("no bits", {"quant_method": "gptq", "bits": 0}),
    ("negative bits", {"quant_method": "gptq", "bits": -4}),
    ("bits without end", {"quant_method": "gptq", "bits": 10**30}),
    ("three bits", {"quant_method": "gptq", "bits": 3}),
    ("seven bits", {"quant_method": "awq", "bits": 7}),
    ("true for bits", {"quant_method": "gptq", "bits": True}),
    ("group of nothing", {"quant_method": "gptq", "bits": 4, "group_size": 0}),
    (
        "a skip list that is a number",
        {"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_skip_modules": 7},
    ),
    ("a skip list of lists", {"quant_method": "bitsandbytes", "load_in_4bit": True, "llm_int8_skip_modules": [["x"]]}),
    (
        "a skip list that acts",
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "llm_int8_skip_modules": ["\x1b[2J"]},
    ),
    ("blocks of nothing", {"quant_method": "fp8", "weight_block_size": [0, 0]}),
    ("blocks in words", {"quant_method": "fp8", "weight_block_size": "128"}),
    ("groups that are a number", {"quant_method": "compressed-tensors", "config_groups": 7}),
    ("groups of numbers", {"quant_method": "compressed-tensors", "config_groups": {"a": 7, "b": {"weights": 7}}}),
)
_SHAPES: tuple[tuple[str, dict[str, list[int]]], ...] = (
    ("a scalar", {f"{_LAYER}.qweight": [], f"{_LAYER}.qzeros": [], f"{_LAYER}.scales": []}),
    ("five axes", {f"{_LAYER}.qweight": [1, 1, 1, 1, 1], f"{_LAYER}.scales": [1]}),
    ("nothing", {f"{_LAYER}.qweight": [0, 0], f"{_LAYER}.qzeros": [0, 0], f"{_LAYER}.scales": [0, 0]}),
    ("scales alone", {f"{_LAYER}.scales": [1, 16]}),
    ("blocks without scales", {f"{_LAYER}_blocks": [2, 2, 2, 16]}),
    ("a state of nothing", {f"{_LAYER}.weight": [64, 1], f"{_LAYER}.weight.quant_state.bitsandbytes__nf4": [0]}),
    ("a state that acts", {f"{_LAYER}.weight": [64, 1], f"{_LAYER}.weight.quant_state.bitsandbytes__\x1b[2J": [3]}),
    ("SCB of another length", {f"{_LAYER}.weight": [16, 8], f"{_LAYER}.SCB": [3]}),
    ("a classifier in pieces", {"classifier.qweight": [1, 2], "classifier.scales": [1, 2]}),
)
CASES: tuple[Case, ...] = (
    *(Case(f"quantized: {name}", _sentence(settings, _GPTQ), codes=_EITHER) for name, settings in _SETTINGS),
    *(
        Case(f"quantized {method}: {name}", _sentence(settings, shapes), _EITHER)
        for name, shapes in _SHAPES
        for method in ("gptq", "bitsandbytes")
        for settings in [{"quant_method": method, "bits": 4, "load_in_4bit": True}]
    ),
)
