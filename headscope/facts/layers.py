"""Layers of the checkpoint that the model does not have: numbered modules beyond the last that it builds."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from headscope.facts.weights import WeightDiff

_NUMBERED = re.compile(r"(.*?)\.(\d+)\.(.+)")


@dataclass(frozen=True, slots=True)
class DroppedLayers:
    """A stack of layers, how many the checkpoint holds and the model has, and the keys that are left out."""

    path: str
    stored: int
    built: int
    keys: tuple[str, ...]


def dropped_layers(diff: WeightDiff) -> tuple[DroppedLayers, ...]:
    """The stacks that are shorter in the model than in the checkpoint, told by unused keys of the next numbers.

    A key counts where the model has the same tensor in its layer 0 and the checkpoint's number is beyond its last.
    """
    built = _stacks(item.name for item in diff.parameters)
    prefixes = {name.partition(".")[0] for name in built}
    unused: dict[str, dict[int, list[str]]] = {}
    for key in diff.unused:
        path, number, tensor = _split(key)
        stack = next((name for name in (path, *(f"{first}.{path}" for first in prefixes)) if name in built), "")
        if stack and tensor in built[stack].get(0, ()) and number > max(built[stack]):
            unused.setdefault(stack, {}).setdefault(number, []).append(key)
    return tuple(
        DroppedLayers(
            stack, max(numbers) + 1, max(built[stack]) + 1, tuple(key for keys in numbers.values() for key in keys)
        )
        for stack, numbers in sorted(unused.items())
    )


def _stacks(names: Iterable[str]) -> dict[str, dict[int, set[str]]]:
    """By the path of a stack: the tensors of each of its layers."""
    found: dict[str, dict[int, set[str]]] = {}
    for name in names:
        path, number, tensor = _split(name)
        if path:
            found.setdefault(path, {}).setdefault(number, set()).add(tensor)
    return found


def _split(name: str) -> tuple[str, int, str]:
    """`bert.encoder.layer.3.output.dense.weight` -> the stack, 3, the tensor; the outermost number counts."""
    match = _NUMBERED.fullmatch(name)
    return (match[1], int(match[2]), match[3]) if match else ("", 0, "")
