"""Formula of a head in one line, `logits = out_proj(tanh(dense(h[CLS])))`: built from recorded operations, simplified,
and proven.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from headscope.core.facts import Positions, Where
from headscope.core.facts.heads.head import FORMULA_START
from headscope.core.trace.formula.evaluate import equals_head
from headscope.core.trace.formula.expression import (
    Applied,
    Arithmetic,
    Expression,
    Number,
    Pick,
    Pooled,
    Rows,
    Side,
    Sign,
    TooLong,
    Withheld,
    below_layout,
    spell,
    spell_features,
    with_operands,
)
from headscope.core.trace.formula.tree import build_tree
from headscope.core.trace.record.indexing import rows_on_last_axis
from headscope.core.trace.replay.picks import HeadSteps
from headscope.core.trace.replay.replay import MaskKind, Replay

# Beyond this a line is too long to read, and the stages are beside it anyway.
_LONGEST = 160


@dataclass(frozen=True, slots=True)
class Formula:
    """Expression that makes the logits, or "" with the reason why there is none.

    `nodes` are the trees of the expression; with `numbers_only`, no number in them has the name of an axis.
    """

    expression: str
    reason: str = ""
    nodes: tuple[Expression, ...] = field(default=(), compare=False, repr=False)
    numbers_only: bool = field(default=False, compare=False)

    @property
    def text(self) -> str:
        """Line as it is shown; "" if there is none."""
        return f"{FORMULA_START}{self.expression}" if self.expression else ""

    @property
    def features(self) -> str:
        """Input of the one linear layer that makes all the scores; "" if there is no such layer."""
        found = {spell_features(_below_score_layout(node)) for node in self.nodes} if self.expression else set[str]()
        return found.pop() if len(found) == 1 else ""


def write_formulas(known: HeadSteps, replay: Replay | None) -> Iterator[Formula]:
    """Yields the formulas that are equal to the head on random hidden states, the plainest first.

    They differ in what this one run cannot tell: whether a sum that is divided is a mean, and whether a number is the
    size of an axis. One that cannot be evaluated, is not equal, or is too long to read is withheld: a Formula without
    text, with the reason.
    """
    if replay is None:
        yield Formula("", "the head cannot be run again on random numbers, so no formula can be proven")
        return
    try:
        plain = build_tree(known)
    except Withheld as err:
        yield Formula("", str(err))
        return
    # Simplified first: `mean(h)` is what people write. Then as it was computed, where the simplification does not give
    # the scores of the head; `h.sum(1) / 11` in a text of 11 tokens fits both, and the next run keeps one.
    for logits in (*_trees_by_rows(plain, known), _simplify_trees(plain), plain):
        texts = {_expression_of(logits, numbers_only=only): only for only in (True, False)}
        texts.pop("", None)
        if not texts:
            yield Formula("", "it would be too long to read")
            continue
        reason = equals_head(replay, logits)
        found = (Formula(text, "", logits, only) for text, only in reversed(texts.items()))
        yield from (Formula("", reason),) if reason else found


def _expression_of(logits: tuple[Expression, ...], *, numbers_only: bool = False) -> str:
    """Writes the formula as text; "" if it is too long. With `numbers_only` no number is called an axis's size."""
    try:
        texts = dict.fromkeys(spell(_below_score_layout(node), _LONGEST, numbers_only=numbers_only) for node in logits)
    except TooLong:
        return ""
    expression = " ; ".join(texts)
    return expression if len(FORMULA_START) + len(expression) <= _LONGEST else ""


def _below_score_layout(node: Expression) -> Expression:
    """Returns the tree below what only hands out the scores, such as the columns of a split into start and end."""
    while isinstance(node, Applied) and not node.text and (not node.rest or node.is_score):
        node = node.operands[0]
    return node


def _simplify_trees(logits: tuple[Expression, ...]) -> tuple[Expression, ...]:
    """Writes sums over positions divided by their number as means; the result must be proven like any other tree."""
    memo: dict[int, Expression] = {}
    return tuple(_simplify_once(node, memo) for node in logits)


def _simplify_once(node: Expression, memo: dict[int, Expression]) -> Expression:
    # Parts of the tree are shared, and would otherwise be walked at every use.
    if id(node) not in memo:
        mean = _mean_of_sum(node) if isinstance(node, Arithmetic) else None
        memo[id(node)] = with_operands(mean or node, lambda operand: _simplify_once(operand, memo))
    return memo[id(node)]


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


def _trees_by_rows(logits: tuple[Expression, ...], known: HeadSteps) -> Iterator[tuple[Expression, ...]]:
    """Yields the trees with each linear map of which some columns are picked written as a map of these rows, if any
    is.
    """
    memo: dict[int, Expression] = {}
    found = tuple(_with_rows(node, known, memo) for node in logits)
    if any(one is not other for one, other in zip(found, logits, strict=True)):
        yield found


def _with_rows(node: Expression, known: HeadSteps, memo: dict[int, Expression]) -> Expression:
    def changed(operand: Expression) -> Expression:
        return _with_rows(operand, known, memo)

    if id(node) not in memo:
        memo[id(node)] = node
        operands: tuple[Expression, ...] = ()
        if isinstance(node, Applied):
            memo[id(node)], operands = _rows_of(node, known) or node, node.operands
        elif isinstance(node, Arithmetic):
            operands = node.left, node.right
        if memo[id(node)] is node and any(changed(item) is not item for item in operands):
            memo[id(node)] = with_operands(node, changed)
    return memo[id(node)]


def _rows_of(node: Applied, known: HeadSteps) -> Rows | None:
    """Makes the node of columns picked out of what a linear map makes at one position; None for anything else."""
    rows = rows_on_last_axis(node.step.last) if node.rest and not node.text else None
    inner = below_layout(node.operands[0]) if rows is not None and len(node.operands) == 1 else None
    called = inner.of if isinstance(inner, Pick) else inner
    if rows is None or not isinstance(called, Applied) or called.step.name != "linear" or len(called.operands) != 1:
        return None
    weight, *bias = called.step.last.args[1:]
    parameters = known.execution.names.parameters
    if not called.text or any(item is not None and id(item) not in parameters for item in (weight, *bias)):
        return None
    texts = dict(known.tokens.rows)
    labels = tuple(texts[row] if texts.get(row, "").isidentifier() else str(row) for row in rows)
    below = replace(inner, of=called.operands[0]) if isinstance(inner, Pick) else called.operands[0]
    is_one = node.output.dim() < node.step.last.args[0].dim()
    return Rows(called.text, below, weight, bias[0] if bias else None, rows, labels, is_one)
