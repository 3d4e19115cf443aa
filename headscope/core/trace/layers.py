"""Layers of a head in the order in which they run: linear maps, norms and functions of one vector, with their names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn

import torch
from torch import nn
from transformers import PreTrainedModel

from headscope.core.facts import HiddenSource, Positions, Task
from headscope.core.trace.formula.expression import (
    Applied,
    Arithmetic,
    Expression,
    Hidden,
    Joined,
    Number,
    Pick,
    Pooled,
    Rows,
    Sign,
)
from headscope.core.trace.head import look_once
from headscope.core.trace.proof.agreement import Look
from headscope.core.trace.record.indexing import rows_on_last_axis
from headscope.core.trace.replay.replay import Replay
from headscope.core.trace.slice.reads import config_fields_read
from headscope.errors import Unsupported


class LayerKind(StrEnum):
    """What a layer does to a vector."""

    LINEAR = "linear"
    NORM = "norm"
    FUNCTION = "function"
    SCALE = "scale"
    ROWS = "rows"
    POOLING = "pooling"


Compute = Callable[..., torch.Tensor]
"""Function of vectors [texts, features]; a norm also takes a weight and a bias, 1 and 0 by default."""


@dataclass(frozen=True, slots=True, eq=False)
class HeadLayer:
    """One layer: its name in the formula, the names of its parameters, or the numbers of a scale.

    `rows` are those of the scores that are kept. `compute` runs a norm or a function on vectors of `width` features.
    """

    kind: LayerKind
    text: str
    weight: str = ""
    bias: str = ""
    factor: float = 1.0
    offset: float = 0.0
    rows: tuple[int, ...] = ()
    width: int = 0
    compute: Compute | None = None


@dataclass(frozen=True, slots=True, eq=False)
class LayeredHead:
    """A head as a row of layers, from the hidden states to the scores.

    `pooled` says how several positions become one vector, "" for one position of each text; `positions` is None where
    every token is scored. A pooling over several positions is also one of the layers, as its place matters.
    """

    layers: tuple[HeadLayer, ...]
    pooled: str
    positions: Positions | None
    hidden: HiddenSource
    formula: str
    config_fields: tuple[str, ...] = ()
    """Fields of the configuration that the head's source reads."""


def read_layers(model: PreTrainedModel, task: Task) -> LayeredHead:
    """Runs a model once, on the meta device too, and reads the layers of its head.

    Raises Unsupported for a head without a proven formula, and for one that is not a row of layers.
    """
    look = look_once(model, task)
    formula = look.formula
    if len(formula.nodes) != 1:
        _refuse_head(formula.reason or "it has several scores")
    assert look.runs is not None  # the formula was proven with one
    reader = _LayerReader(look, look.runs.usual)
    layers = tuple(reversed(list(reader.layers_below(formula.nodes[0]))))
    fields = config_fields_read(look.head)
    return LayeredHead(layers, reader.pooled, reader.positions, reader.hidden, formula.text, fields)


def _refuse_head(why: str) -> NoReturn:
    raise Unsupported(f"the head is not a row of layers that headscope can take apart: {why}", "")


class _LayerReader:
    """Walk along a formula, from the scores to the hidden states."""

    def __init__(self, look: Look, replay: Replay) -> None:
        self._replay, self._names = replay, look.execution.names.parameters
        self.pooled, self.hidden = "", HiddenSource()
        self.positions: Positions | None = None

    def layers_below(self, node: Expression) -> Iterator[HeadLayer]:
        """Yields the layers from a node down to the hidden states, the last layer first."""
        while not isinstance(node, Hidden):
            match node:
                case Pick() | Pooled():
                    if self.positions is not None:
                        _refuse_head("it pools twice")
                    self.positions = node.positions
                    if isinstance(node, Pooled):
                        self.pooled = node.function
                        yield HeadLayer(LayerKind.POOLING, f"{node.function} over tokens")
                    node = node.of
                case Rows():
                    weight, bias = (self._names.get(id(item), "") for item in (node.weight, node.bias))
                    yield HeadLayer(LayerKind.LINEAR, node.text, weight, bias, rows=node.rows)
                    node = node.of
                case Applied():
                    yield from self._read_applied(node)
                    node = node.inputs[0][1]
                case Arithmetic():
                    layer, node = _read_arithmetic(node)
                    yield layer
                case Joined():
                    _refuse_head("it joins several vectors")
                case _:
                    _refuse_head("it begins with something else than hidden states")
        self.hidden = node.source

    def _read_applied(self, node: Applied) -> Iterator[HeadLayer]:
        """Yields what a module or a function does to the one vector that enters; nothing for another layout."""
        if len(node.inputs) != 1:
            _refuse_head(f"{node.text or 'a layer'} takes several vectors")
        rows = rows_on_last_axis(node.step.last) if node.rest and not node.text else None
        if rows is not None:
            yield HeadLayer(LayerKind.ROWS, node.rest, rows=tuple(rows))
        elif node.text:
            yield self._read_function(node)
        elif node.rest:
            _refuse_head(f"it cuts a vector apart ({node.rest})")

    def _read_function(self, node: Applied) -> HeadLayer:
        own = {
            id(tensor): tensor
            for operation in node.step.operations
            for tensor in operation.inputs
            if id(tensor) in self._names
        }
        found = {("bias" if self._names[key].endswith("bias") else "weight"): key for key in own}
        if len(found) < len(own):
            _refuse_head(f"{node.text} has several weights")
        weight, bias = (self._names.get(found.get(kind, 0), "") for kind in ("weight", "bias"))
        if node.step.name == "linear":
            return HeadLayer(LayerKind.LINEAR, node.text, weight, bias)
        width = int(node.inputs[0][0].shape[-1])
        compute = self._make_computation(node, found, own)
        if not own:
            if any(not isinstance(item, Number) for item in node.operands[1:]):
                _refuse_head(f"{node.text} reads something else beside the vector")
            return HeadLayer(LayerKind.FUNCTION, node.text, width=width, compute=compute)
        if not _is_norm(compute, width, has_weight=bool(weight), has_bias=bool(bias)):
            _refuse_head(f"{node.text} is neither a linear map nor a norm")
        return HeadLayer(LayerKind.NORM, node.step.name, weight, bias, width=width, compute=compute)

    def _make_computation(self, node: Applied, found: dict[str, int], own: dict[int, torch.Tensor]) -> Compute:
        entering = node.inputs[0][0]
        shape, width = entering.shape, entering.shape[-1]

        def compute(
            vectors: torch.Tensor, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None
        ) -> torch.Tensor:
            count = entering.numel() // width
            given = {id(entering): vectors.repeat(count // len(vectors) + 1, 1)[:count].reshape(shape)}
            values = {"weight": weight, "bias": bias}
            for kind, key in found.items():
                plain = torch.full(own[key].shape, float(kind == "weight"), device="cpu")
                given[key] = plain if (value := values[kind]) is None else value
            again = self._replay.run_again(node.step.operations, given, node.output)
            return again.reshape(count, -1)[: len(vectors)]

        return compute


def _read_arithmetic(node: Arithmetic) -> tuple[HeadLayer, Expression]:
    """Reads a sum or a product with a number; gives its layer, and what is below."""
    left, right = (
        item.value if isinstance(item, Number) and not item.axis else None for item in (node.left, node.right)
    )
    if (left is None) == (right is None):
        _refuse_head(f"it has a{node.sign.value}of two values that depend on the text")
    number: Any = right if left is None else left
    text = f"{node.sign.value.strip()} {number:g}"
    match node.sign:
        case Sign.ADD:
            factor, offset = 1.0, number
        case Sign.SUB:
            factor, offset = (1.0, -number) if left is None else (-1.0, number)
        case Sign.MUL:
            factor, offset = number, 0.0
        case Sign.DIV if left is None and number:
            factor, offset = 1 / number, 0.0
        case _:
            _refuse_head(f"it computes {text}")
    return HeadLayer(LayerKind.SCALE, text, factor=factor, offset=offset), node.left if left is None else node.right


_SCALES = (30.0, 3.0, 1.0, 0.05, 0.003)
"""Sizes of the vectors on which functions are compared: the small ones tell the `eps` of norms apart, the large ones a
function with a limit, such as ReLU6."""
_CLOSE = 1e-5


def _probe_vectors(width: int) -> torch.Tensor:
    """Draws a vector of each size, [sizes, width]."""
    drawn = torch.randn(len(_SCALES), width, generator=torch.Generator().manual_seed(7))
    return drawn * torch.tensor(_SCALES).unsqueeze(1)


def _is_norm(compute: Compute, width: int, *, has_weight: bool, has_bias: bool) -> bool:
    """True if a function multiplies by its weight and adds its bias after everything else."""
    vectors, generator = _probe_vectors(width), torch.Generator().manual_seed(8)
    weight = torch.rand(width, generator=generator) + 0.5 if has_weight else torch.ones(width)
    bias = torch.randn(width, generator=generator) if has_bias else torch.zeros(width)
    try:
        plain, full = compute(vectors), compute(vectors, weight, bias)
    except (Unsupported, RuntimeError):  # parameters of other shapes
        return False
    return plain.shape[1] == width and torch.allclose(full, plain * weight + bias, rtol=_CLOSE, atol=_CLOSE)


def is_same_function(one: HeadLayer, other: HeadLayer) -> bool:
    """True if two functions or norms, without their weights, give the same on vectors of different sizes."""
    if one.compute is None or other.compute is None or one.width != other.width:
        return one.kind is other.kind is LayerKind.POOLING and one.text == other.text
    vectors = _probe_vectors(one.width)
    first, second = one.compute(vectors), other.compute(vectors)
    count = min(len(first), len(second))
    return first.shape[1:] == second.shape[1:] and torch.allclose(
        first[:count], second[:count], rtol=_CLOSE, atol=_CLOSE
    )


def module_as_layer(module: nn.Module, width: int) -> HeadLayer:
    """Makes the layer of an activation of PyTorch."""
    return HeadLayer(LayerKind.FUNCTION, type(module).__name__, width=width, compute=module)
