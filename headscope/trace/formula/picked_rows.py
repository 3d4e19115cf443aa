"""A linear map of which some columns are picked, as a map of these rows alone: two tokens of a language-model head."""

from collections.abc import Iterator
from dataclasses import replace

from headscope.trace.formula.expression import Applied, Arithmetic, Node, Pick, Rows, below_layout
from headscope.trace.record.execution import Execution
from headscope.trace.record.indexing import rows_on_last_axis
from headscope.trace.replay.picks import TokenNames


def by_rows(logits: tuple[Node, ...], execution: Execution, tokens: TokenNames) -> Iterator[tuple[Node, ...]]:
    """The trees with a linear map of which some columns are picked written as a map of these rows alone, if any is."""
    memo: dict[int, Node] = {}
    found = tuple(_with_rows(node, execution, tokens, memo) for node in logits)
    if any(one is not other for one, other in zip(found, logits, strict=True)):
        yield found


def _with_rows(node: Node, execution: Execution, tokens: TokenNames, memo: dict[int, Node]) -> Node:
    if id(node) in memo:
        return memo[id(node)]
    found: Node = node
    if isinstance(node, Arithmetic):
        left, right = (_with_rows(item, execution, tokens, memo) for item in (node.left, node.right))
        if left is not node.left or right is not node.right:
            found = replace(node, left=left, right=right)
    elif isinstance(node, Applied):
        found = _rows_of(node, execution, tokens) or _applied_to_rows(node, execution, tokens, memo)
    memo[id(node)] = found
    return found


def _applied_to_rows(node: Applied, execution: Execution, tokens: TokenNames, memo: dict[int, Node]) -> Applied:
    operands = tuple(_with_rows(item, execution, tokens, memo) for item in node.operands)
    if all(one is other for one, other in zip(operands, node.operands, strict=True)):
        return node
    inputs = tuple((tensor, _with_rows(item, execution, tokens, memo)) for tensor, item in node.inputs)
    return replace(node, operands=operands, inputs=inputs)


def _rows_of(node: Applied, execution: Execution, tokens: TokenNames) -> Rows | None:
    """Columns that are picked out of what a linear map makes at one position; None for anything else."""
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
