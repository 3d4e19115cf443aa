"""Variants of a head on real texts: a position, an activation or a layer exchanged in its proven expression."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional

from headscope.core.facts import Positions, Where
from headscope.core.facts.heads.head import AS_IT_IS
from headscope.core.trace.batch.inputs import ProbeRow, Sizes
from headscope.core.trace.batch.probe_batch import ProbeBatch
from headscope.core.trace.formula.evaluate import Evaluation, fitted
from headscope.core.trace.formula.expression import (
    Applied,
    Arithmetic,
    Expression,
    Hidden,
    Joined,
    Number,
    Pick,
    Pooled,
    Side,
    below_layout,
    is_sum,
    spell,
)
from headscope.core.trace.proof.agreement import look_at
from headscope.core.trace.record.base import base_module
from headscope.core.trace.record.execution import run_forward
from headscope.core.trace.replay.picks import TokenNames
from headscope.core.trace.replay.replay import known_hidden, replay_head
from headscope.core.trace.slice.head_slice import locate_head
from headscope.errors import Unsupported

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda value: functional.gelu(value, approximate="tanh"),
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
}
_CLOSE = 1e-4
"""Single precision, in relation to the largest score."""


@dataclass(frozen=True, slots=True)
class HeadVariant:
    """Logits of a changed head, a row for each text or for each of its tokens, and its expression.

    `is_sum`: the expression is a sum or a difference.
    """

    logits: torch.Tensor
    formula: str
    is_sum: bool = False


@dataclass(frozen=True, slots=True)
class _Change:
    """A node of the expression, the one that is written instead, and its value: that of `source`, changed by `way`."""

    words: str
    node: Expression
    instead: Expression
    source: Expression
    way: Callable[[torch.Tensor], torch.Tensor] = lambda value: value


def head_variants(
    model: Any, *batches: Mapping[str, torch.Tensor], first: str = "", alone: Container[int] = ()
) -> dict[str, HeadVariant]:
    """Computes the variants of a model's head on batches of texts, by what was changed; of several alike, one.

    A batch has an attention mask. In the batches at the places `alone`, padding is only there to compute several texts
    together: a variant reads none of it. `first` is what the tokenizer calls the first token. Raises Unsupported where
    the head has no proven expression whose values on these texts are the model's own scores.
    """
    found = [_variants_of_batch(model, inputs, first, at in alone) for at, inputs in enumerate(batches)]
    tolerance = _CLOSE * max(*(float(batch[AS_IT_IS].logits.abs().max()) for batch in found), 1.0)
    distinct: dict[str, HeadVariant] = {}
    for name, variant in found[0].items():
        if not all(name in batch for batch in found):
            continue
        logits = torch.cat([batch[name].logits for batch in found])
        if not any(_is_close(logits, other.logits, tolerance) for other in distinct.values()):
            distinct[name] = replace(variant, logits=logits)
    return distinct


def _is_close(one: torch.Tensor, other: torch.Tensor, tolerance: float) -> bool:
    # Row by row, so that it stops at the first text that differs.
    return all(torch.allclose(row, beside, rtol=0, atol=tolerance) for row, beside in zip(one, other, strict=True))


def _variants_of_batch(
    model: Any, inputs: Mapping[str, torch.Tensor], first: str, is_alone: bool
) -> dict[str, HeadVariant]:
    """Computes the variants on one batch; with one more column of padding if its sizes can't be told apart.

    A batch with as many texts as tokens, or as many tokens as features, has no proven expression.
    """
    try:
        return dict(_variants_on(model, inputs, first, is_alone))
    except Unsupported:
        pad = {"input_ids": getattr(model.config, "pad_token_id", None) or 0}
        longer = {name: functional.pad(value, (0, 1), value=pad.get(name, 0)) for name, value in inputs.items()}
        return dict(_variants_on(model, longer, first, is_alone))


def _variants_on(
    model: Any, inputs: Mapping[str, torch.Tensor], first: str, is_alone: bool
) -> Iterator[tuple[str, HeadVariant]]:
    """Yields the head as it is, then every change whose layers fit together."""
    mask = inputs["attention_mask"]
    rows = tuple(ProbeRow(begin, last, last) for begin, last in zip(*_ends_of_rows(mask), strict=True))
    probe = ProbeBatch(dict(inputs), {}, Sizes(*mask.shape), rows)
    execution = run_forward(model, probe, hint="check that the inputs are those that the model takes", lend=False)
    head = locate_head(execution, base_module(model))
    look = look_at(head, TokenNames(first or None))
    known = known_hidden(head)
    if len(look.formula.nodes) != 1 or len(known) < len(head.hidden):
        raise Unsupported(f"the head has no expression to change: {look.formula.reason or 'it has several'}", "")
    root, own = look.formula.nodes[0], execution.logits[0].detach().float()
    replay = replay_head(head, known)

    def variant(*changes: _Change) -> HeadVariant | None:
        """None where the change doesn't fit: a layer that was left out gives another number of features."""
        evaluation = Evaluation(replay)
        try:
            with torch.no_grad():
                for change in changes:  # from the hidden states up, so that a later one sees the earlier
                    evaluation.values[id(change.node)] = change.way(evaluation.value(change.source))
                logits = fitted(evaluation.value(root), own.shape).float()
        except (ValueError, RuntimeError, Unsupported):
            return None
        instead = {id(change.node): change.instead for change in changes}
        return HeadVariant(logits, spell(root, changes=instead), is_sum(instead.get(id(root), root)))

    def rows_of(item: HeadVariant) -> HeadVariant:
        is_of_tokens = item.logits.dim() == 3 and item.logits.shape[:2] == mask.shape
        return replace(item, logits=item.logits[mask.bool()]) if is_of_tokens else item

    unchanged = variant()
    if unchanged is None or not torch.allclose(
        unchanged.logits, own, rtol=0, atol=_CLOSE * max(float(own.abs().max()), 1.0)
    ):
        raise Unsupported("the expression of the head does not give the model's scores for these texts", "")
    yield AS_IT_IS, rows_of(unchanged)
    positions, layers = list(_position_changes(root, mask, first, is_alone)), list(_layer_changes(root))
    for changes in (*((item,) for item in (*positions, *layers)), *((one, two) for one in positions for two in layers)):
        changed = variant(*changes)
        if changed is not None:
            yield ", ".join(change.words for change in changes), rows_of(changed)


def _operand_nodes(node: Expression) -> tuple[Expression, ...]:
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


def _nodes_of_tree(root: Expression) -> list[Expression]:
    """Lists all nodes of a tree, those nearest to the hidden states first."""
    found: dict[int, Expression] = {}

    def visit(node: Expression) -> None:
        if id(node) not in found:
            for operand in _operand_nodes(node):
                visit(operand)
            found[id(node)] = node

    visit(root)
    return list(found.values())


def _ends_of_rows(mask: torch.Tensor) -> tuple[list[int], list[int]]:
    """Gives the first and the last position of each row that is not padding."""
    return mask.argmax(1).tolist(), (mask.shape[1] - 1 - mask.flip(1).argmax(1)).tolist()


def _position_changes(root: Expression, mask: torch.Tensor, first: str, is_alone: bool) -> Iterator[_Change]:
    """Yields each other way to make one vector of the tokens, if the expression does so in one place."""
    places = [node for node in _nodes_of_tree(root) if isinstance(node, Pick | Pooled)]
    if len(places) != 1:
        return
    node = places[0]
    axis = node.axis if isinstance(node, Pick) else node.axes[0]
    # The changes below index the second axis of [texts, tokens, features].
    if axis != 1:
        return
    (begin, last), rows = _ends_of_rows(mask), torch.arange(len(mask))
    every = mask if is_alone else torch.ones_like(mask)
    starts, ends = _ends_of_rows(every)

    def pick(words: str, positions: Positions, places: Any) -> _Change:
        return _Change(words, node, Pick(node.of, positions, axis), node.of, lambda value: value[rows, places])

    def mean(words: str, positions: Positions, kept: torch.Tensor) -> _Change:
        instead = Pooled("mean", node.of, positions, (axis,))
        return _Change(words, node, instead, node.of, lambda value: _means_of_rows(value, kept))

    yield pick("first token", Positions(Where.INDEX, 0, token=first), starts)
    yield pick("first token that is not padding", Positions(Where.FIRST_NON_PAD), begin)
    yield pick("last token that is not padding", Positions(Where.LAST_NON_PAD), last)
    yield pick("last token", Positions(Where.INDEX, -1), ends)
    yield mean("mean over all tokens", Positions(Where.ALL), every)
    yield mean("mean over the tokens that are not padding", Positions(Where.NON_PAD), mask)


def _means_of_rows(value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.stack([item[kept].mean(0) for item, kept in zip(value, mask.bool(), strict=True)])


def _layer_changes(root: Expression) -> Iterator[_Change]:
    """Yields changes that leave out a layer, or several in a row, or replace an activation by another."""
    chain = [
        node for node in _nodes_of_tree(root) if isinstance(node, Applied) and node.text and len(node.operands) == 1
    ]
    for at, node in enumerate(chain):
        if node.text in _ACTIVATIONS:
            for words, way in _ACTIVATIONS.items():
                yield _Change(f"{words} for {node.text}", node, replace(node, text=words), node.operands[0], way)
        # From each layer down the chain: only neighbors are left out together.
        names, inner = [node.text], node.operands[0]
        yield _without_layers(names, inner, node)
        while isinstance(below := below_layout(inner), Applied) and below in chain[:at]:
            names, inner = [below.text, *names], below.operands[0]
            yield _without_layers(names, inner, node)


def _without_layers(names: list[str], inner: Expression, node: Applied) -> _Change:
    return _Change(f"without {' and '.join(names)}", node, inner, inner)
