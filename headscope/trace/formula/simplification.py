"""An expression in the words of people: a sum over positions that is divided by their number is a mean."""

from dataclasses import replace

from headscope.facts import Positions, Where
from headscope.trace.formula.expression import (
    Applied,
    Arithmetic,
    Cut,
    Hidden,
    Joined,
    Node,
    Number,
    Pick,
    Pooled,
    Rows,
    Side,
    below_layout,
)


def simplified(node: Node, memo: dict[int, Node]) -> Node:
    """The tree with sums over positions divided by their number written as means; to be proven like any other.

    `memo` holds what is done already: parts of the tree are shared, and would be walked again at every use.
    """
    if id(node) not in memo:
        memo[id(node)] = _simplify(node, memo)
    return memo[id(node)]


def _simplify(node: Node, memo: dict[int, Node]) -> Node:
    match node:
        case Hidden() | Side() | Number() | Rows():
            return node
        case Pick() | Cut() | Pooled():
            return replace(node, of=simplified(node.of, memo))
        case Arithmetic():
            mean = _mean_of_sum(node)
            if mean is not None:
                return replace(mean, of=simplified(mean.of, memo))
            return replace(node, left=simplified(node.left, memo), right=simplified(node.right, memo))
        case Joined():
            return replace(node, parts=tuple(simplified(part, memo) for part in node.parts))
        case Applied():
            operands = tuple(simplified(item, memo) for item in node.operands)
            return replace(
                node, operands=operands, inputs=tuple((tensor, simplified(item, memo)) for tensor, item in node.inputs)
            )


def _mean_of_sum(node: Arithmetic) -> Pooled | None:
    """The mean that a sum over positions makes when it is divided, if this may be one."""
    pooled = below_layout(node.left)
    if node.sign != " / " or not isinstance(pooled, Pooled) or pooled.function != "sum":
        return None
    inner, mask = _unmasked(pooled.of)
    if mask is None and not isinstance(below_layout(node.right), Number):  # what the inputs make is not a fixed number
        return None
    positions = Positions(Where.NON_PAD) if mask is not None else pooled.positions
    return Pooled("mean", inner, positions, pooled.axes, mask)


def _unmasked(node: Node) -> tuple[Node, Side | None]:
    """What a mask was multiplied with or put into, and the mask; the same tree where there is none."""
    inner = below_layout(node)
    if isinstance(inner, Arithmetic) and inner.sign == " * ":
        for kept, other in ((inner.left, inner.right), (inner.right, inner.left)):
            mask = below_layout(other)
            if isinstance(mask, Side) and mask.text == "mask":
                return kept, mask
    if isinstance(inner, Applied) and inner.text in {"masked_fill", "index_put"}:
        masks = [bottom for item in inner.operands[1:] if isinstance(bottom := below_layout(item), Side)]
        if masks and masks[0].text == "~mask":
            return inner.operands[0], masks[0]
    return node, None
