"""Formula of a head in one line, `logits = out_proj(tanh(dense(h[CLS])))`: built from recorded operations, and
proven.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from headscope.core.facts import HiddenSource
from headscope.core.facts.heads.head import FORMULA_START
from headscope.core.trace.formula.evaluate import equals_head
from headscope.core.trace.formula.expression import (
    Applied,
    Expression,
    TooLong,
    Withheld,
    spell,
    spell_features,
)
from headscope.core.trace.formula.simplification import by_rows, simplified
from headscope.core.trace.formula.tree import build_tree
from headscope.core.trace.record.execution import Execution
from headscope.core.trace.replay.picks import TokenNames
from headscope.core.trace.replay.replay import Replay
from headscope.core.trace.slice.axes import TokenAxes
from headscope.core.trace.slice.head_slice import HeadSlice
from headscope.core.trace.slice.stages import Step
from headscope.errors import Unsupported

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


def write_formulas(  # noqa: PLR0917 - a formula is written from that many facts
    execution: Execution,
    head: HeadSlice,
    steps: tuple[Step, ...],
    axes: TokenAxes,
    tokens: TokenNames,
    sources: tuple[HiddenSource, ...],
    replay: Replay | None,
) -> Iterator[Formula]:
    """Yields the formulas that are equal to the head on random hidden states, the plainest first.

    They differ in what this one run cannot tell: whether a sum that is divided is a mean, and whether a number is the
    size of an axis. One that cannot be evaluated, is not equal, or is too long to read is withheld: a Formula without
    text, with the reason.
    """
    if replay is None:
        yield Formula("", "the head cannot be run again on random numbers, so no formula can be proven")
        return
    try:
        plain = build_tree(execution, head, steps, axes, tokens, sources)
    except Withheld as err:
        yield Formula("", str(err))
        return
    # Simplified first: `mean(h)` is what people write. Then as it was computed, where the simplification does not give
    # the scores of the head; `h.sum(1) / 11` in a text of 11 tokens fits both, and the next run keeps one.
    for logits in (*by_rows(plain, execution, tokens), simplified(plain), plain):
        texts = {_expression_of(logits, numbers_only=only): only for only in (True, False)}
        texts.pop("", None)
        if not texts:
            yield Formula("", "it would be too long to read")
            continue
        reason = equals_head(execution, replay, logits)
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


def prove(execution: Execution, head: HeadSlice) -> Replay | None:
    """Runs the head once on random values to compare formulas with; None if it cannot be run again."""
    from headscope.core.trace.replay.replay import replay_head

    try:
        return replay_head(execution, head)
    except Unsupported:
        return None
