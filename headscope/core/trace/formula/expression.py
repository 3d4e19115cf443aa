"""Formula as a tree over the recorded operations, and the one way in which it is written."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby
from typing import Any

import torch

from headscope.core.facts import HiddenSource, Positions, Where
from headscope.core.trace.replay.replay import MaskKind
from headscope.core.trace.slice.stages import Step


class Sign(StrEnum):
    """Signs of arithmetic, as formulas write them."""

    ADD = " + "
    SUB = " - "
    MUL = " * "
    DIV = " / "
    MATMUL = " @ "


@dataclass(frozen=True, slots=True, eq=False)
class Hidden:
    """Hidden states, which a formula starts from; `number` counts those that the head reads."""

    number: int
    source: HiddenSource


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """A tensor that a head reads beside the hidden states: a parameter, a mask.

    `mask` says what a mask keeps, None for any other tensor.
    """

    text: str
    tensor: torch.Tensor
    mask: MaskKind | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Number:
    """A number written in the source, or a tensor that holds one; `axis` is the axis that has this size in this run.

    `text` is in its place for an argument that is written as it is.
    """

    value: float
    text: str = ""
    axis: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Pick:
    """One position of each row, along the axis `axis`."""

    of: "Expression"
    positions: Positions
    axis: int


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A run of positions along the axis `axis`."""

    of: "Expression"
    positions: Positions
    axis: int


@dataclass(frozen=True, slots=True, eq=False)
class Pooled:
    """Mean, sum or maximum over positions along `axes`; `mask` keeps those of a masked mean that is not a text."""

    function: str
    of: "Expression"
    positions: Positions
    axes: tuple[int, ...]
    mask: "Side | None" = None


@dataclass(frozen=True, slots=True, eq=False)
class Arithmetic:
    """Two operands and a sign; `recorded` are those of the head, whose shapes the values get."""

    sign: Sign
    left: "Expression"
    right: "Expression"
    recorded: tuple[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Joined:
    """Several tensors side by side along `axis` (`cat`), or on top of each other (`stack`)."""

    function: str
    parts: tuple["Expression", ...]
    axis: int
    recorded: tuple[torch.Tensor, ...]
    along_features: bool


@dataclass(frozen=True, slots=True, eq=False)
class Applied:
    """A module or function on its operands, evaluated by running the recorded operations again.

    `text` is its name, "" for what changes the layout alone and is not written. `inputs` are the nodes of the tensors
    that enter, by the tensor; `output` is the tensor that this node stands for; `rest` is written after the operands.
    `is_score` says that the node only hands out scores, such as the column of the start in those of a span.
    """

    text: str
    operands: tuple["Expression", ...]
    step: Step
    inputs: tuple[tuple[torch.Tensor, "Expression"], ...]
    output: torch.Tensor
    rest: str = ""
    is_score: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """A linear map of which only some rows are used: `lm_head[[no, yes]](h[-1])`.

    `text` is the name of the map, `labels` the names of the rows. `is_one` says that the axis of the rows is gone.
    """

    text: str
    of: "Expression"
    weight: torch.Tensor
    bias: torch.Tensor | None
    rows: tuple[int, ...]
    labels: tuple[str, ...]
    is_one: bool


Expression = Hidden | Side | Number | Pick | Cut | Pooled | Arithmetic | Joined | Applied | Rows


def with_operands(node: Expression, changed: Callable[["Expression"], Any]) -> Expression:
    """Makes a copy of a node on what `changed` returns for each of its operands."""
    match node:
        case Hidden() | Side() | Number():
            return node
        case Pooled(mask=Side() as mask):
            return replace(node, of=changed(node.of), mask=changed(mask))
        case Pick() | Cut() | Pooled() | Rows():
            return replace(node, of=changed(node.of))
        case Arithmetic():
            return replace(node, left=changed(node.left), right=changed(node.right))
        case Joined():
            return replace(node, parts=tuple(map(changed, node.parts)))
        case Applied():
            inputs = tuple((tensor, changed(item)) for tensor, item in node.inputs)
            return replace(node, operands=tuple(map(changed, node.operands)), inputs=inputs)


_LOOSE = {Sign.ADD, Sign.SUB}
_MOST_LAYERS = 3


class Withheld(Exception):
    """Raised for a head without a formula that can be written and proven; says why."""


class TooLong(Exception):
    """Raised for an expression with more characters than a reader can take in."""


def spell(
    node: Expression,
    longest: int = 1_000_000,
    *,
    numbers_only: bool = False,
    changes: Mapping[int, Expression] | None = None,
) -> str:
    """Writes the expression as text: `out_proj(tanh(dense(h[CLS])))`. Raises TooLong beyond `longest` characters.

    With `numbers_only`, numbers stay numbers that otherwise have the name of an axis of their size. `changes` are nodes
    to write instead of others, by the id of those, the nearest to the hidden states first.
    Parts of a tree are shared, so its text may be exponentially longer than the tree: each part is written once.
    """
    speller = _Speller(longest, numbers_only=numbers_only)
    for changed, instead in (changes or {}).items():
        speller.known[changed] = speller.text(instead)
    return speller.text(node)


def spell_features(node: Expression) -> str:
    """Writes what the linear layer at the end of a tree reads; "" if the tree doesn't end in one.

    A position that is picked of the layer's scores is one of its input.
    """
    picks, node = list[Pick | Cut](), below_layout(node)
    while isinstance(node, Pick | Cut):
        picks.append(node)
        node = below_layout(node.of)
    if not isinstance(node, Applied) or node.step.last.name != "linear" or len(node.operands) > 1 or node.rest:
        return ""
    read = node.operands[0]
    for pick in reversed(picks):
        read = replace(pick, of=read)
    return spell(read)


class _Speller:
    """Writer of nodes as text, each node once."""

    def __init__(self, longest: int, *, numbers_only: bool) -> None:
        self._longest = longest
        self._numbers_only = numbers_only
        self.known: dict[int, str] = {}

    def text(self, node: Expression) -> str:
        """Writes a node."""
        if id(node) not in self.known:
            text = self._spell_node(node)
            if len(text) > self._longest:
                raise TooLong
            self.known[id(node)] = text
        return self.known[id(node)]

    def _spell_node(self, node: Expression) -> str:  # noqa: PLR0911 - one line for each kind of node
        match node:
            case Hidden():
                return node.source.text
            case Side():
                return node.text
            case Number():
                return node.text or ("" if self._numbers_only else node.axis) or f"{node.value:g}"
            case Pick() | Cut():
                return f"{self._spell_tight(node.of)}[{_bare_positions(node.positions)}]"
            case Pooled(positions=Positions(where=Where.ALL)):
                return f"{node.function}({self.text(node.of)})"
            case Pooled():
                return f"{node.function}({self._spell_tight(node.of)}[{_bare_positions(node.positions)}])"
            case Arithmetic():
                left, right = (
                    self._spell_operand(node.left, node.sign),
                    self._spell_operand(node.right, node.sign, is_right=True),
                )
                return f"{left}{node.sign}{right}"
            case Joined(function="cat", along_features=True):
                return f"[{'; '.join(self._spell_parts(node.parts))}]"
            case Joined():
                return f"{node.function}({', '.join(self._spell_parts(node.parts))})"
            case Applied():
                inner = ", ".join(map(self.text, node.operands))
                if node.text:
                    return f"{node.text}({inner}{node.rest})"
                return f"{self._spell_tight(node.operands[0])}{node.rest}" if node.rest else inner
            case Rows():
                labels = ", ".join(node.labels)
                return f"{node.text}[{labels if node.is_one else f'[{labels}]'}]({self.text(node.of)})"

    def _spell_tight(self, node: Expression) -> str:
        """Writes a node, in parentheses if it is a sum or product."""
        return f"({self.text(node)})" if isinstance(below_layout(node), Arithmetic) else self.text(node)

    def _spell_operand(self, node: Expression, sign: Sign, *, is_right: bool = False) -> str:
        inner = below_layout(node)
        if not isinstance(inner, Arithmetic) or (sign in _LOOSE and inner.sign not in _LOOSE):
            return self.text(node)
        # `a + b + c` and `a * b * c` are computed from the left, so only a right operand needs parentheses.
        if inner.sign == sign and sign in {Sign.ADD, Sign.MUL} and not is_right:
            return self.text(node)
        return f"({self.text(node)})"

    def _spell_parts(self, parts: tuple[Expression, ...]) -> list[str]:
        """Writes the parts; a long run of layers of the same base model by its first and last."""
        texts: list[str] = []
        numbered = [(at, _hidden_layer(part)) for at, part in enumerate(parts)]
        # In a run of consecutive layers, layer minus place is the same number.
        for _, run in groupby(numbered, key=lambda item: None if item[1] is None else item[1] - item[0]):
            group = [parts[at] for at, _ in run]
            spelled = [self.text(part) for part in group]
            is_long = _hidden_layer(group[0]) is not None and len(group) > _MOST_LAYERS
            texts += [spelled[0], "...", spelled[-1]] if is_long else spelled
        return texts


def _bare_positions(positions: Positions) -> str:
    """Writes the positions without brackets: `CLS`, `1:`, `last non-pad`."""
    if positions.where is Where.NON_PAD:
        return "non-pad"
    return positions.token.removeprefix("[").removesuffix("]") or positions.text


def below_layout(node: Expression) -> Expression:
    """Returns the node below those that change only the layout."""
    while isinstance(node, Applied) and not node.text and not node.rest and len(node.operands) == 1:
        node = node.operands[0]
    return node


def is_sum(node: Expression) -> bool:
    """True if an expression is a sum or a difference, which a factor before it would split."""
    inner = below_layout(node)
    return isinstance(inner, Arithmetic) and inner.sign in _LOOSE


def _hidden_layer(node: Expression) -> int | None:
    inner = below_layout(node)
    return inner.source.layer if isinstance(inner, Hidden) else None
