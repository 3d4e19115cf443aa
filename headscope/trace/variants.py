"""Variants of a head on real texts: a position, an activation or a layer exchanged in its proven expression."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from headscope.errors import Unsupported
from headscope.facts.results.served import AS_IT_IS
from headscope.trace.batch.inputs import Row, Sizes
from headscope.trace.batch.probe_batch import ProbeBatch
from headscope.trace.formula.evaluate import evaluate_node, fitted
from headscope.trace.formula.expression import (
    Applied,
    Arithmetic,
    Hidden,
    Joined,
    Node,
    Number,
    Pick,
    Pooled,
    Side,
    below_layout,
)
from headscope.trace.proof.agreement import look_at
from headscope.trace.record.base import base_module
from headscope.trace.record.execution import Execution, run_forward
from headscope.trace.replay.picks import TokenNames
from headscope.trace.replay.replay import Replay, known_hidden, replay_head
from headscope.trace.slice.head_slice import locate_head

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu (tanh)": lambda value: functional.gelu(value, approximate="tanh"),
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
}
_CLOSE = 1e-4
"""Single precision, in relation to the largest score."""


@dataclass(frozen=True, slots=True)
class _Change:
    """A node of the expression, and the value that it has instead."""

    words: str
    node: Node
    value: Callable[[_Values], torch.Tensor]


class _Values:
    """The values of an expression on the recorded hidden states, with changes in it."""

    def __init__(self, execution: Execution, replay: Replay, changes: tuple[_Change, ...] = ()) -> None:
        self._execution, self._replay = execution, replay
        self._memo: dict[int, torch.Tensor] = {}
        for change in changes:  # from the hidden states up, so that a later one sees the earlier
            self._memo[id(change.node)] = change.value(self)

    def of(self, node: Node) -> torch.Tensor:
        """The value of a node."""
        return evaluate_node(node, self._execution, self._replay, self._memo)


def head_variants(model: Any, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The logits of the variants of a model's head for texts, [texts, classes], by what was changed.

    `inputs` are padded on the right, with an attention mask. Raises Unsupported where the head has no proven expression
    whose values on these texts are the model's own scores.
    """
    mask = inputs["attention_mask"]
    rows = tuple(Row(0, int(count) - 1, int(count) - 1) for count in mask.sum(1))
    probe = ProbeBatch(dict(inputs), {}, Sizes(*mask.shape), rows)
    execution = run_forward(model, probe, hint="check that the inputs are those that the model takes", lend=False)
    head = locate_head(execution, base_module(model))
    look = look_at(execution, head, TokenNames())
    known = known_hidden(execution, head)
    if len(look.formula.nodes) != 1 or len(known) < len(head.hidden):
        raise Unsupported(f"the head has no expression to change: {look.formula.reason or 'it has several'}", "")
    root, own = look.formula.nodes[0], execution.logits[0].detach().float()
    replay = replay_head(execution, head, known)

    def logits(*changes: _Change) -> torch.Tensor | None:
        """None where the change doesn't fit: a layer that was left out gives another number of features."""
        try:
            with torch.no_grad():
                return fitted(_Values(execution, replay, changes).of(root), own.shape).float()
        except (ValueError, RuntimeError, Unsupported):
            return None

    tolerance = _CLOSE * max(float(own.abs().max()), 1.0)
    unchanged = logits()
    if unchanged is None or not torch.allclose(unchanged, own, rtol=0, atol=tolerance):
        raise Unsupported("the expression of the head does not give the model's scores for these texts", "")
    found = {AS_IT_IS: unchanged}
    positions, layers = list(_positions(root, mask)), list(_layers(root))
    for changes in (*((item,) for item in (*positions, *layers)), *((one, two) for one in positions for two in layers)):
        changed = logits(*changes)
        if changed is None:
            continue
        if not any(torch.allclose(changed, other, rtol=0, atol=tolerance) for other in found.values()):
            found[", ".join(change.words for change in changes)] = changed
    return found


def _operands(node: Node) -> tuple[Node, ...]:
    match node:
        case Hidden() | Side() | Number():
            return ()
        case Arithmetic():
            return node.left, node.right
        case Joined():
            return node.parts
        case Applied():
            return tuple(inner for _, inner in node.inputs)
    return (node.of,)


def _nodes(root: Node) -> list[Node]:
    """All nodes of a tree, those nearest to the hidden states first."""
    found: dict[int, Node] = {}

    def visit(node: Node) -> None:
        if id(node) not in found:
            for operand in _operands(node):
                visit(operand)
            found[id(node)] = node

    visit(root)
    return list(found.values())


def _positions(root: Node, mask: torch.Tensor) -> Iterator[_Change]:
    """Each other way to make one vector of the tokens, where the expression does so in one place."""
    places = [node for node in _nodes(root) if isinstance(node, Pick | Pooled)]
    if len(places) != 1:
        return
    node = places[0]
    axis = node.axis if isinstance(node, Pick) else node.axes[0]
    if axis != 1:
        return
    last, rows = mask.sum(1) - 1, torch.arange(len(mask))
    ways: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "first token": lambda value: value[:, 0],
        "last token that is not padding": lambda value: value[rows, last],
        "last token": lambda value: value[:, -1],
        "mean over all tokens": lambda value: value.mean(1),
        "mean over the tokens that are not padding": lambda value: torch.stack(
            [item[: end + 1].mean(0) for item, end in zip(value, last.tolist(), strict=True)]
        ),
    }
    for words, way in ways.items():

        def value(values: _Values, way: Callable[[torch.Tensor], torch.Tensor] = way) -> torch.Tensor:
            return way(values.of(node.of))

        yield _Change(words, node, value)


def _layers(root: Node) -> Iterator[_Change]:
    """A layer, or several in a row, left out; an activation replaced by another."""
    chain = [node for node in _nodes(root) if isinstance(node, Applied) and node.text and len(node.operands) == 1]
    for at, node in enumerate(chain):
        if node.text in _ACTIVATIONS:
            yield from _other_activations(node)
        names, inner = [node.text], node.operands[0]
        yield _left_out(names, inner, node)
        while isinstance(below := below_layout(inner), Applied) and below in chain[:at]:
            names, inner = [below.text, *names], below.operands[0]
            yield _left_out(names, inner, node)


def _other_activations(node: Applied) -> Iterator[_Change]:
    for words, activation in _ACTIVATIONS.items():

        def value(values: _Values, activation: Callable[[torch.Tensor], torch.Tensor] = activation) -> torch.Tensor:
            return activation(values.of(node.operands[0]))

        yield _Change(f"{words} for {node.text}", node, value)


def _left_out(names: list[str], inner: Node, node: Applied) -> _Change:
    return _Change(f"without {' and '.join(names)}", node, lambda values: values.of(inner))
