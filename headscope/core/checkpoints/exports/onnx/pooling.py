"""Pooling in an ONNX graph: the nodes that make the token axis disappear."""

from __future__ import annotations

from collections.abc import Callable

from headscope.core.checkpoints.exports.onnx.graph import OnnxNode
from headscope.core.checkpoints.exports.onnx.walk import Walk, last_match
from headscope.core.facts import PoolingKind

TOKENS = 3
"""How many axes the hidden states have: texts, positions, features."""
SILENT = frozenset({"Identity", "Dropout", "Cast", "QuantizeLinear", "DequantizeLinear"})
OnnxPooling = tuple[PoolingKind | None, str] | None
"""The kind, None where it is not known, and the rule; or None for a node that keeps the token axis."""


class Pools:
    """Reader of the nodes that make the token axis disappear."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk

    def read(self, node: OnnxNode, data: str, divided_by: str) -> OnnxPooling:
        """Tells how a node pools `data`; `divided_by` is what a later node divides the result by, "" for nothing."""
        reader = _READERS.get(node.operation)
        shape = self._walk.shape(data)
        if reader is None or (shape is not None and len(shape) < TOKENS and not self._is_flattened(data)):
            return None
        return reader(self, node, data, divided_by)

    def gather(self, node: OnnxNode, data: str, divided_by: str) -> OnnxPooling:
        """Reads one position: `Gather` along the second axis."""
        if len(node.inputs) < 2 or node.inputs[0] != data:  # data and indices
            return None
        axis = node.attributes.get("axis", 0)
        at = self._walk.ints(node.inputs[1])
        if axis == 0 and self._is_flattened(data):
            return self._pooling_at_computed_index(node.inputs[1])
        if axis not in (1, -2):
            return None
        if at is None:
            return self._pooling_at_computed_index(node.inputs[1])
        return _at_index(at[0]) if len(at) == 1 else None

    def _is_flattened(self, data: str) -> bool:
        """True if a value is the rows of all texts, one below the other."""
        maker, shape = self._walk.maker(data), self._walk.shape(data)
        if maker is None or maker.operation not in {"Reshape", "Flatten"} or not maker.inputs:
            return False
        before = self._walk.shape(maker.inputs[0])
        return before is not None and len(before) == TOKENS and shape is not None and before[-1] == shape[-1]

    def cut(self, node: OnnxNode, data: str, divided_by: str) -> OnnxPooling:
        """Reads one position: a slice of length one along the second axis."""
        given = [self._walk.ints(name) for name in node.inputs[1:]]
        if len(given) < 3 or any(item is None or len(item) != 1 for item in given[:3]):  # to the axes
            return None
        start, stop, axis = (item[0] for item in given[:3] if item is not None)
        # PyTorch exports an open end of a slice as a number that no axis reaches.
        is_one = stop == start + 1 or (start == -1 and stop > 2**31)
        return _at_index(start) if axis in (1, -2) and is_one else None

    def gather_many(self, node: OnnxNode, data: str, divided_by: str) -> OnnxPooling:
        """Reads one position of each row: `GatherND` or `GatherElements` at computed indices."""
        if len(node.inputs) < 2 or node.inputs[0] != data:  # data and indices
            return None
        return self._pooling_at_computed_index(node.inputs[1])

    def _pooling_at_computed_index(self, indices: str) -> tuple[PoolingKind | None, str]:
        """Tells which position indices mean that the graph computes."""
        reads = self._walk.reads(indices)
        found = last_match(self._walk, indices)
        if found is not None:
            return PoolingKind.LAST_NON_PAD_TOKEN, f"the last position whose {found[0]} is not {found[1]}"
        if reads:
            return PoolingKind.OTHER, f"one position of each row, at an index computed from {', '.join(reads)}"
        return PoolingKind.TOKEN_AT, "one position of each row, fixed when the model was exported"

    def reduce(self, node: OnnxNode, data: str, divided_by: str) -> OnnxPooling:
        """Reads a mean, maximum or sum over the positions."""
        axes = node.attributes.get("axes")
        if axes is None and len(node.inputs) > 1:
            axes = self._walk.ints(node.inputs[1])
        shape = self._walk.shape(data)
        if not isinstance(axes, tuple) or shape is None:
            return None
        # Negative axes count from the end.
        over = tuple(sorted(axis % len(shape) for axis in axes if -len(shape) <= axis < len(shape)))
        if node.operation == "ReduceMean" and over in ((2, 3), (1, 2)) and len(shape) > TOKENS:
            return PoolingKind.SPATIAL_MEAN, f"the mean over the axes {over[0]} and {over[1]}"
        if over != (1,):
            return None
        if node.operation == "ReduceSum":
            return self._pooling_by_sum(data, divided_by)
        return {
            "ReduceMean": (PoolingKind.MEAN, "the mean over all positions, padding among them"),
            "ReduceMax": (PoolingKind.MAX, "the maximum over all positions, padding among them"),
        }[node.operation]

    def _pooling_by_sum(self, data: str, divided_by: str) -> tuple[PoolingKind | None, str]:
        """Reads a sum: a masked mean if the summed values and the divisor both come from the same input."""
        node = self._walk.maker(data)
        while node is not None and node.operation in SILENT:
            node = self._walk.maker(node.inputs[0])
        masks = () if node is None else tuple(name for name in node.inputs if not self._walk.is_feature(name))
        reads = {name for mask in masks for name in self._walk.reads(mask)}
        divisor = set(self._walk.reads(divided_by)) if divided_by else set()
        if node is not None and node.operation == "Mul" and reads and divisor == reads:
            return PoolingKind.MASKED_MEAN, f"the sum over the positions that {', '.join(sorted(reads))} keeps, divided"
        return None, "a sum over the positions whose divisor was not found"

    def spatial(self, node: OnnxNode, data: str, divided_by: str) -> OnnxPooling:
        """Reads the mean of all pixels, whatever the shape."""
        return PoolingKind.SPATIAL_MEAN, "the mean over the image"


_READERS: dict[str, Callable[[Pools, OnnxNode, str, str], OnnxPooling]] = {
    "Gather": Pools.gather,
    "Slice": Pools.cut,
    "GatherND": Pools.gather_many,
    "GatherElements": Pools.gather_many,
    "ReduceMean": Pools.reduce,
    "ReduceMax": Pools.reduce,
    "ReduceSum": Pools.reduce,
    "GlobalAveragePool": Pools.spatial,
}


def _at_index(at: int) -> tuple[PoolingKind, str]:
    """Tells which position a fixed index is."""
    if at == 0:
        return PoolingKind.FIRST_TOKEN, "position 0"
    return (PoolingKind.LAST_TOKEN, "position -1") if at == -1 else (PoolingKind.TOKEN_AT, f"position {at}")
