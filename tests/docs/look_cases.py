"""Checkpoints for the page "Look at a checkpoint": those of the shipped structures, and such that are nearly them."""

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from zipfile import ZipFile

from headscope.core.source.storage.shipped import PLACE
from scripts.site.site_look import structures_of_families
from tests.api.lookup.test_shipped import checkpoint_of, counts_of
from tests.headers_only import Checkpoint

IS_WHOLE = bool(os.environ.get("HEADSCOPE_EVERY_STRUCTURE"))
SITE = os.environ if IS_WHOLE else os.environ | {"HEADSCOPE_LOOK_SAMPLE": "1"}
"""The environment of a build of the site."""
LARGE = 450
"""From how many tensors on a structure has fewer cases."""


@dataclass(frozen=True)
class Case:
    """A checkpoint, how many classes are asked for, and what was done to it."""

    checkpoint: Checkpoint
    num_labels: int | None
    what: str


@cache
def looked_at() -> tuple[dict[str, Any], ...]:
    """The structures in what the site's build makes for tests: a sample, or, if asked for, all."""
    with ZipFile(PLACE) as whole:
        families = structures_of_families(whole, is_sample=not IS_WHOLE)
    return tuple(entry for entries in families.values() for entry in entries)


def cases(draw: random.Random) -> Iterator[Case]:
    """For each of these structures: each kind of class count, then one thing changed that matters, or that doesn't."""
    for entry in looked_at():
        asked = [
            (count, options.get("num_labels"))
            for count, options in counts_of(entry, draw)
            if "labels" not in options and count < 10_000
        ]
        for count, number in dict.fromkeys(asked):
            yield Case(checkpoint_of(entry, count, draw, is_stated=number is None), number, "exact")
        count, number = asked[0]
        few = draw.sample(CHANGES, 1 if len(entry["forms"][0]["tensors"]) > LARGE else 3)
        for change in few:
            checkpoint = checkpoint_of(entry, count, draw, is_stated=number is None)
            changed = change(checkpoint, draw)
            yield Case(changed, number, change.__name__.strip("_"))


def _set(checkpoint: Checkpoint, **fields: Any) -> Checkpoint:
    return replace(checkpoint, config={**checkpoint.config, **fields})


def _old_field(checkpoint: Checkpoint, draw: random.Random) -> Checkpoint:
    name = draw.choice(["pooler_type", "gradient_checkpointing", "finetuning_task", "output_past", "directionality"])
    return _set(checkpoint, **{name: draw.choice([None, "x", 1])})


def _unheard_field(checkpoint: Checkpoint, _: random.Random) -> Checkpoint:
    return _set(checkpoint, zz_never_heard_of=1)


def _read_field(checkpoint: Checkpoint, draw: random.Random) -> Checkpoint:
    return _set(checkpoint, **{draw.choice(["num_labels", "auto_map", "quantization_config", "rope_parameters"]): {}})


def _old_dtype(checkpoint: Checkpoint, _: random.Random) -> Checkpoint:
    config = {name: value for name, value in checkpoint.config.items() if name != "dtype"}
    return replace(checkpoint, config={**config, "torch_dtype": checkpoint.config.get("dtype", "float32")})


def _other_number(checkpoint: Checkpoint, draw: random.Random) -> Checkpoint:
    """Another value of a whole number: one more, the same as a float, or true."""
    names = [name for name, value in checkpoint.config.items() if type(value) is int]
    if not names:
        return checkpoint
    name = draw.choice(names)
    value = checkpoint.config[name]
    return _set(checkpoint, **{name: draw.choice([value + 1, float(value), bool(value)])})


def _without_field(checkpoint: Checkpoint, draw: random.Random) -> Checkpoint:
    gone = draw.choice(sorted(checkpoint.config))
    return replace(checkpoint, config={name: value for name, value in checkpoint.config.items() if name != gone})


def _labels(checkpoint: Checkpoint, draw: random.Random) -> Checkpoint:
    """Labels in all the ways that people write, well or badly."""
    hostile = [
        "<b>", "a|b", "@all", "\u202eevil", "\x1b[2J", "Ä", "LABEL_x", "日本", "🙂", "\ud800", " ", "`code`", "*", "",
    ]  # fmt: skip
    count = draw.choice([1, 2, 3, 15])
    names = draw.choice(
        [
            [f"{draw.choice(hostile)}{at}" for at in range(count)],
            [f"LABEL_{at}" for at in reversed(range(count))],
            ["same"] * count,
            [f"a long name of a class, number {at}" for at in range(count)],
        ]
    )
    ids = {str(at): name for at, name in enumerate(names)}
    back = draw.choice([{name: at for at, name in enumerate(names)}, {name: str(at) for at, name in enumerate(names)}])
    if draw.random() < 0.2:
        return _set(checkpoint, id2label=ids)
    return _set(
        checkpoint, id2label=draw.choice([ids, ids, None]), label2id=draw.choice([back, back, None, {}, {"other": 0}])
    )


def _tensor(
    name: str, change: Callable[[str, str, tuple[int, ...]], Any]
) -> Callable[[Checkpoint, random.Random], Checkpoint]:
    def changed(checkpoint: Checkpoint, draw: random.Random) -> Checkpoint:
        at = draw.randrange(len(checkpoint.tensors))
        items = [
            change(key, dtype, shape) if number == at else (key, (dtype, shape))
            for number, (key, (dtype, shape)) in enumerate(checkpoint.tensors.items())
        ]
        return replace(checkpoint, tensors=dict(item for item in items if item is not None))

    changed.__name__ = name
    return changed


def _prefixed(checkpoint: Checkpoint, draw: random.Random) -> Checkpoint:
    prefix = draw.choice(["module.", "model.", "x."])
    return replace(checkpoint, tensors={f"{prefix}{key}": value for key, value in checkpoint.tensors.items()})


def _in_half(checkpoint: Checkpoint, _: random.Random) -> Checkpoint:
    tensors = {key: ("F16" if dtype == "F32" else dtype, shape) for key, (dtype, shape) in checkpoint.tensors.items()}
    return replace(checkpoint, tensors=tensors)


def _in_other_order(checkpoint: Checkpoint, _: random.Random) -> Checkpoint:
    first, second, *rest = checkpoint.tensors.items()
    return replace(checkpoint, tensors=dict([second, first, *rest]))


def _other_class(checkpoint: Checkpoint, _: random.Random) -> Checkpoint:
    return _set(checkpoint, architectures=["BertForSequenceClassification"])


def _longer(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:-1], shape[-1] + 1) if shape else (2,)


CHANGES = (
    _old_field, _unheard_field, _read_field, _old_dtype, _other_number, _without_field, _labels, _labels, _prefixed,
    _in_half, _in_other_order, _other_class,
    _tensor("other_key", lambda key, dtype, shape: (f"{key}_", (dtype, shape))),
    _tensor("other_shape", lambda key, dtype, shape: (key, (dtype, _longer(shape)))),
    _tensor("other_dtype", lambda key, dtype, shape: (key, ("F64", shape))),
    _tensor("without_tensor", lambda key, dtype, shape: None),
)  # fmt: skip
