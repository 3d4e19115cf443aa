"""Simplification of expressions: a mean for a sum divided by its number, picked rows of a linear map."""

from collections.abc import Iterator
from dataclasses import replace

from headscope.core.facts import Positions, Where
from headscope.core.trace.formula.expression import (
    Applied,
    Arithmetic,
    Cut,
    Expression,
    Hidden,
    Joined,
    Number,
    Pick,
    Pooled,
    Rows,
    Side,
    Sign,
    below_layout,
)
from headscope.core.trace.record.execution import Execution
from headscope.core.trace.record.indexing import rows_on_last_axis
from headscope.core.trace.replay.picks import TokenNames
from headscope.core.trace.replay.replay import MaskKind


def simplified(logits: tuple[Expression, ...]) -> tuple[Expression, ...]:
    """Writes sums over positions divided by their number as means; the result must be proven like any other tree."""
    memo: dict[int, Expression] = {}
    return tuple(_simplify_once(node, memo) for node in logits)


def _simplify_once(node: Expression, memo: dict[int, Expression]) -> Expression:
    # Parts of the tree are shared, and would otherwise be walked at every use.
    if id(node) not in memo:
        memo[id(node)] = _simplify_node(node, memo)
    return memo[id(node)]


def _simplify_node(node: Expression, memo: dict[int, Expression]) -> Expression:
    match node:
        case Hidden() | Side() | Number() | Rows():
            return node
        case Pick() | Cut() | Pooled():
            return replace(node, of=_simplify_once(node.of, memo))
        case Arithmetic():
            mean = _mean_of_sum(node)
            if mean is not None:
                return replace(mean, of=_simplify_once(mean.of, memo))
            return replace(node, left=_simplify_once(node.left, memo), right=_simplify_once(node.right, memo))
        case Joined():
            return replace(node, parts=tuple(_simplify_once(part, memo) for part in node.parts))
        case Applied():
            operands = tuple(_simplify_once(item, memo) for item in node.operands)
            return replace(
                node,
                operands=operands,
                inputs=tuple((tensor, _simplify_once(item, memo)) for tensor, item in node.inputs),
            )


def _mean_of_sum(node: Arithmetic) -> Pooled | None:
    """Returns the mean that a sum over positions makes when it is divided, if this may be one."""
    pooled = below_layout(node.left)
    if node.sign is not Sign.DIV or not isinstance(pooled, Pooled) or pooled.function != "sum":
        return None
    inner, mask = _split_mask(pooled.of)
    if mask is None and not isinstance(below_layout(node.right), Number):  # what the inputs make is not a fixed number
        return None
    positions = Positions(Where.NON_PAD) if mask is not None else pooled.positions
    return Pooled("mean", inner, positions, pooled.axes, mask)


def _split_mask(node: Expression) -> tuple[Expression, Side | None]:
    """Splits a masked tree into what the mask was applied to and the mask; returns the same tree without a mask."""
    inner = below_layout(node)
    if isinstance(inner, Arithmetic) and inner.sign is Sign.MUL:
        for kept, other in ((inner.left, inner.right), (inner.right, inner.left)):
            mask = below_layout(other)
            if isinstance(mask, Side) and mask.mask is MaskKind.KEPT:
                return kept, mask
    if isinstance(inner, Applied) and inner.text in {"masked_fill", "index_put"}:
        masks = [bottom for item in inner.operands[1:] if isinstance(bottom := below_layout(item), Side)]
        if masks and masks[0].mask is MaskKind.PADDING:
            return inner.operands[0], masks[0]
    return node, None


def by_rows(
    logits: tuple[Expression, ...], execution: Execution, tokens: TokenNames
) -> Iterator[tuple[Expression, ...]]:
    """Yields the trees with each linear map of which some columns are picked written as a map of these rows, if any
    is.
    """
    memo: dict[int, Expression] = {}
    found = tuple(_with_rows(node, execution, tokens, memo) for node in logits)
    if any(one is not other for one, other in zip(found, logits, strict=True)):
        yield found


def _with_rows(node: Expression, execution: Execution, tokens: TokenNames, memo: dict[int, Expression]) -> Expression:
    if id(node) in memo:
        return memo[id(node)]
    found: Expression = node
    if isinstance(node, Arithmetic):
        left, right = (_with_rows(item, execution, tokens, memo) for item in (node.left, node.right))
        if left is not node.left or right is not node.right:
            found = replace(node, left=left, right=right)
    elif isinstance(node, Applied):
        found = _rows_of(node, execution, tokens) or _applied_to_rows(node, execution, tokens, memo)
    memo[id(node)] = found
    return found


def _applied_to_rows(node: Applied, execution: Execution, tokens: TokenNames, memo: dict[int, Expression]) -> Applied:
    operands = tuple(_with_rows(item, execution, tokens, memo) for item in node.operands)
    if all(one is other for one, other in zip(operands, node.operands, strict=True)):
        return node
    inputs = tuple((tensor, _with_rows(item, execution, tokens, memo)) for tensor, item in node.inputs)
    return replace(node, operands=operands, inputs=inputs)


def _rows_of(node: Applied, execution: Execution, tokens: TokenNames) -> Rows | None:
    """Makes the node of columns picked out of what a linear map makes at one position; None for anything else."""
    rows = rows_on_last_axis(node.step.last) if node.rest and not node.text else None
    inner = below_layout(node.operands[0]) if rows is not None and len(node.operands) == 1 else None
    called = inner.of if isinstance(inner, Pick) else inner
    if rows is None or not isinstance(called, Applied) or called.step.name != "linear" or len(called.operands) != 1:
        return None
    weight, *bias = called.step.last.args[1:]
    known = execution.names.parameters
    if not called.text or any(item is not None and id(item) not in known for item in (weight, *bias)):
        return None
    texts = dict(tokens.rows)
    labels = tuple(texts[row] if texts.get(row, "").isidentifier() else str(row) for row in rows)
    below = replace(inner, of=called.operands[0]) if isinstance(inner, Pick) else called.operands[0]
    is_one = node.output.dim() < node.step.last.args[0].dim()
    return Rows(called.text, below, weight, bias[0] if bias else None, rows, labels, is_one)
