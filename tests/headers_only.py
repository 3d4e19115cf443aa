"""Checkpoints without values for scans: a configuration, and safetensors files that are all header (sparse on disk).

`families()` gives one small configuration of every classification class of the installed Transformers, `write` makes a
folder of it, `variants` what people's files of one class differ in.
"""

import json
import random
import struct
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8, "BOOL": 1, "F64": 8, "I32": 4, "U8": 1}
NAMES = {
    "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "bool": "BOOL", "float64": "F64",
    "int32": "I32", "uint8": "U8",
}  # fmt: skip


@dataclass(frozen=True)
class Checkpoint:
    """What a folder is made of: `config.json`, and the dtype and shape of every tensor."""

    name: str
    config: dict[str, Any]
    tensors: dict[str, tuple[str, tuple[int, ...]]]


def write(checkpoint: Checkpoint, folder: Path) -> Path:
    """The folder of a checkpoint: whole files, whose values are a hole on the disk."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(checkpoint.config), encoding="utf-8")
    header, end = header_of(checkpoint)
    with (folder / "model.safetensors").open("wb") as stream:
        stream.write(header)
        stream.truncate(len(header) + end)
    return folder


def header_of(checkpoint: Checkpoint) -> tuple[bytes, int]:
    """The first bytes of a safetensors file, and how many bytes of numbers follow."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for key, (dtype, shape) in checkpoint.tensors.items():
        size = _BYTES[dtype] * prod(shape)
        entries[key] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, at


@cache
def class_names() -> tuple[tuple[str, str], ...]:
    """Every classification class with its model type, by the catalog of the installed Transformers."""
    from headscope.core.model.classes.catalog import all_classes_of_task
    from headscope.facts import Task

    found = {name: model_type for task in Task for model_type, name in all_classes_of_task(task)}
    return tuple(sorted((model_type, name) for name, model_type in found.items()))


def checkpoint_of(model_type: str, name: str) -> Checkpoint | None:
    """A checkpoint of a class at its default configuration with few layers; None where it can't be built."""
    import torch
    import transformers

    from headscope.core.model.classes.defaults import default_configs
    from headscope.core.model.quiet import quiet

    for config, _ in default_configs(model_type):
        try:
            with quiet(), torch.device("meta"):
                model = getattr(transformers, name)(config)
        except Exception:
            continue
        return _checkpoint(name, config, model)
    return None


def _checkpoint(name: str, config: Any, model: Any) -> Checkpoint:
    tied: set[int] = set()
    tensors = {}
    for key, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) in tied:
            continue
        tied.add(id(tensor))
        tensors[key] = (NAMES[str(tensor.dtype).removeprefix("torch.")], tuple(tensor.shape))
    settings = json.loads(config.to_json_string(use_diff=True)) | {"architectures": [name]}
    return Checkpoint(name, _of_few_layers(settings, type(config)().to_dict()), tensors)


def _of_few_layers(settings: dict[str, Any], default: dict[str, Any]) -> dict[str, Any]:
    """The settings without what speaks of layers that were cut: they would contradict themselves when read."""
    found = {key: value for key, value in settings.items() if key not in ("out_features", "out_indices", "stage_names")}
    before, now = default.get("num_hidden_layers", default.get("num_layers")), found.get("num_hidden_layers")
    if now is None:
        now = found.get("num_layers", before)
    for key, value in found.items():
        if isinstance(value, dict) and isinstance(default.get(key), dict):
            found[key] = _of_few_layers(value, default[key])
        elif isinstance(value, list) and len(value) == before and before != now:
            found[key] = value[:now]
    if "attention_types" in found:  # GPT-Neo: kinds, and how often they are repeated
        found["attention_types"] = [[["global", "local"], 1]]
    return found


def variants(checkpoint: Checkpoint, draw: random.Random) -> Iterator[Checkpoint]:
    """What files of one class differ in: names, labels, versions; dtypes, prefixes, tensors that lack or are extra."""
    yield checkpoint
    for number in range(3):
        yield labeled(checkpoint, draw, f"labels {number}")
    yield _changed(checkpoint, "named", _name_or_path=f"me/model-{draw.random()}", transformers_version="4.30.1")
    yield labeled(_changed(checkpoint, "", transformers_version="5.1.0"), draw, "labels and version")
    yield _contradicting(checkpoint, draw)
    yield replace(
        checkpoint,
        name=f"{checkpoint.name}, half",
        tensors={
            key: ("F16" if dtype == "F32" else dtype, shape) for key, (dtype, shape) in checkpoint.tensors.items()
        },
    )
    yield _without_first_prefix(checkpoint)
    lost = draw.choice(list(checkpoint.tensors))
    yield _with_tensors(
        checkpoint, f"without {lost}", {key: item for key, item in checkpoint.tensors.items() if key != lost}
    )
    yield _with_tensors(checkpoint, "one extra", checkpoint.tensors | {"extra.weight": ("F32", (3, 4))})


def _changed(checkpoint: Checkpoint, what: str, **fields: Any) -> Checkpoint:
    return replace(checkpoint, name=f"{checkpoint.name}, {what}", config=deepcopy(checkpoint.config) | fields)


def _with_tensors(checkpoint: Checkpoint, what: str, tensors: dict[str, tuple[str, tuple[int, ...]]]) -> Checkpoint:
    return replace(checkpoint, name=f"{checkpoint.name}, {what}", tensors=tensors)


def labeled(checkpoint: Checkpoint, draw: random.Random, what: str) -> Checkpoint:
    """Named labels, as many as before: the configuration says two where it says nothing."""
    count = len(checkpoint.config.get("id2label") or "ab")
    names = [f"{draw.choice(('joy', 'LABEL_', 'é', 'a b', '0'))}{number}" for number in range(count)]
    if draw.random() < 0.3:
        names = [f"LABEL_{number}" for number in range(count)]
    config = {"id2label": {str(at): name for at, name in enumerate(names)}}
    if draw.random() < 0.7:
        config["label2id"] = {name: at for at, name in enumerate(names)}
    return _changed(checkpoint, what, **config)


def _contradicting(checkpoint: Checkpoint, draw: random.Random) -> Checkpoint:
    """Labels whose two maps say different things, or that are not numbered from 0."""
    forms: list[dict[str, Any]] = [
        {"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 1, "b": 0}},
        {"id2label": {"0": "a", "1": "a"}, "label2id": {"a": 0}},
        {"id2label": {"1": "a", "2": "b"}},
        {"id2label": {"0": "a", "1": 7}},
        {"id2label": {"0": "a", "1": "b"}, "num_labels": 3},
    ]
    return _changed(checkpoint, "contradicting labels", **draw.choice(forms))


def _without_first_prefix(checkpoint: Checkpoint) -> Checkpoint:
    """As a base model saves it: the keys without the base model's name, and no head."""
    first = max(
        {key.partition(".")[0] for key in checkpoint.tensors},
        key=lambda name: sum(key.startswith(f"{name}.") for key in checkpoint.tensors),
    )
    base = {key.partition(".")[2]: item for key, item in checkpoint.tensors.items() if key.startswith(f"{first}.")}
    return _with_tensors(checkpoint, f"below {first}", base or checkpoint.tensors)
