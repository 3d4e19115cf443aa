"""PEFT adapters whose configuration or weights lie."""

import json
from pathlib import Path
from typing import Any

from hostile.corpus.case import Build, Case, checkpoint, zeros

_HEAD = "base_model.model.classifier"
_SHAPES = {f"{_HEAD}.weight": [2, 8], f"{_HEAD}.bias": [2]}


def _adapter(folder: Path, config: Any, weights: bytes | None, name: str = "adapter_model.safetensors") -> list[str]:
    base = checkpoint(folder, {"model.safetensors": zeros({"distilbert.transformer.layer.0.ffn.lin1.bias": [16]})})
    made = folder / "adapter"
    made.mkdir()
    if isinstance(config, dict) and "base_model_name_or_path" not in config:
        config = {"base_model_name_or_path": str(base)} | config
    (made / "adapter_config.json").write_bytes(config if isinstance(config, bytes) else json.dumps(config).encode())
    if weights is not None:
        (made / name).write_bytes(weights)
    return ["inspect", str(made), "--offline"]


def _sentence(config: Any, weights: bytes | None = zeros(_SHAPES), name: str = "adapter_model.safetensors") -> Build:
    return lambda folder: _adapter(folder, config, weights, name)


def _itself(folder: Path) -> list[str]:
    return _adapter(folder, {"base_model_name_or_path": str(folder / "adapter")}, zeros(_SHAPES))


def _lora(**changes: Any) -> dict[str, Any]:
    return {"peft_type": "LORA", "task_type": "SEQ_CLS", "r": 8, "target_modules": ["q_lin"]} | changes


_EITHER = (0, 3)
CASES: tuple[Case, ...] = (
    *(
        Case(f"adapter: base is {value!r}", _sentence({"base_model_name_or_path": value}), words=(word,))
        for value, word in (
            (None, "doesn't name its base model"),
            (7, "doesn't name its base model"),
            ("", "doesn't name its base model"),
            ([], "doesn't name its base model"),
            ("../../etc/passwd", "cannot be read"),
            ("/proc/self/mem", "cannot be read"),
            ("\x1b[2J\u202e", "cannot be read"),
            ("a/b/c/d", "cannot be read"),
            ("x" * 10_000, "cannot be read"),
            ("http://127.0.0.1:9/x", "cannot be read"),
            ("file:///etc", "cannot be read"),
        )
    ),
    Case("adapter: base is the adapter", _itself, words=("is itself an adapter",)),
    *(
        Case(f"adapter: {name} is {str(value)[:20]!r}", _sentence(_lora(**{name: value})), codes=_EITHER)
        for name, value in (
            ("peft_type", 7),
            ("peft_type", "\x1b[31m"),
            ("peft_type", ["LORA"]),
            ("task_type", {}),
            ("task_type", "\x9b2J"),
            ("r", "8"),
            ("r", -1),
            ("r", 10**30),
            ("r", None),
            ("target_modules", 7),
            ("target_modules", "(a+)+$"),
            ("target_modules", {"a": 1}),
            ("modules_to_save", "classifier"),
            ("modules_to_save", 7),
            ("modules_to_save", [[["x"]]]),
            ("modules_to_save", ["\x1b[2J"]),
            ("modules_to_save", ["x" * 100_000]),
            ("modules_to_save", ["a"] * 100_000),
            ("revision", 7),
            ("revision", "../.."),
            ("auto_mapping", {"x": 1}),
        )
    ),
    Case("adapter: configuration is a list", _sentence(b"[1]"), words=("adapter_config.json",)),
    Case("adapter: configuration is cut", _sentence(b'{"peft_type": '), words=("adapter_config.json",)),
    Case("adapter: no weights", _sentence(_lora(), None), words=("adapter weights",)),
    Case("adapter: weights of another shape", _sentence(_lora(), zeros({f"{_HEAD}.weight": [3, 8]})), codes=_EITHER),
    Case("adapter: weights of nobody", _sentence(_lora(), zeros({"\x1b[2Jelsewhere": [1]})), codes=_EITHER),
    Case("adapter: low rank of no matrix", _sentence(_lora(), zeros({f"{_HEAD}.lora_A.weight": []})), codes=_EITHER),
    Case("adapter: weights cut", _sentence(_lora(), zeros(_SHAPES)[:40]), words=("adapter_model.safetensors",)),
    Case("adapter: weights are a page", _sentence(_lora(), b"<!doctype html>"), words=("an HTML page",)),
    Case(
        "adapter: pickled call",
        _sentence(_lora(), b"\x80\x02cposix\nsystem\nX\x0c\x00\x00\x00touch canary\x85R.", "adapter_model.bin"),
        words=("adapter_model.bin",),
    ),
)
