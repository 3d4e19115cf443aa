"""Positions on the token axis and the hidden states that are read there, as typed values."""

from dataclasses import dataclass
from enum import StrEnum


class Where(StrEnum):
    """The rule that names the positions of a row.

    `index`: one fixed index, negative from the end. `range`: all from `index` up to `stop`. `by_row`: one position per
    row, chosen by a rule that was not recognized. `each`: every position on its own, nothing is pooled.
    """

    INDEX = "index"
    RANGE = "range"
    FIRST_NON_PAD = "first_non_pad"
    LAST_NON_PAD = "last_non_pad"
    AFTER_LAST_NON_PAD = "after_last_non_pad"
    EOS = "eos"
    ALL = "all"
    NON_PAD = "non_pad"
    EACH = "each"
    BY_ROW = "by_row"


@dataclass(frozen=True, slots=True, order=True)
class Positions:
    """Which positions of each row are read."""

    where: Where
    """The rule that names the positions."""
    index: int | None = None
    """The index, negative from the end; the start of a range. Null for the other rules."""
    stop: int | None = None
    """The end of a range; null up to the end."""
    token: str = ""
    """What the tokenizer calls the token at that position; empty where it has no name."""
    parameter: str = ""
    """The full name of the learned vector that the model puts at that position before its layers, such as
    `vit.embeddings.cls_token`; empty if none was found."""

    @property
    def text(self) -> str:
        """A short name: `[CLS]`, `cls_token`, `0`, `1:`, `last non-pad`, `all`."""
        if self.token or self.parameter:
            return self.token or self.parameter.rpartition(".")[2]
        if self.where is Where.INDEX:
            return str(self.index)
        if self.where is Where.RANGE:
            return f"{self.index or ''}:{'' if self.stop is None else self.stop}"
        return _TEXTS[self.where]

    @property
    def is_first(self) -> bool:
        """True if this is index 0, whatever is there."""
        return self.where is Where.INDEX and self.index == 0

    @property
    def is_one(self) -> bool:
        """True if one position of each row is read."""
        return self.where in _SINGLE

    @property
    def depends_on_padding(self) -> bool:
        """True if the position follows the padding of its row."""
        return self.where in _BY_PADDING


_TEXTS = {
    Where.FIRST_NON_PAD: "first non-pad",
    Where.LAST_NON_PAD: "last non-pad",
    Where.AFTER_LAST_NON_PAD: "after last non-pad",
    Where.EOS: "eos",
    Where.ALL: "all",
    Where.NON_PAD: "all non-pad",
    Where.EACH: "each",
    Where.BY_ROW: "by row",
}
_SINGLE = {
    Where.INDEX, Where.FIRST_NON_PAD, Where.LAST_NON_PAD, Where.AFTER_LAST_NON_PAD, Where.EOS, Where.BY_ROW,
}  # fmt: skip
_BY_PADDING = {Where.FIRST_NON_PAD, Where.LAST_NON_PAD, Where.AFTER_LAST_NON_PAD, Where.NON_PAD, Where.EOS}


@dataclass(frozen=True, slots=True, order=True)
class HiddenSource:
    """Which hidden states a head reads, and how a formula writes them."""

    text: str = "h"
    """How the formula writes these hidden states."""
    layer: int | None = -1
    """The layer, counted from the end (-1 is the last); null where it is not a layer of one base model."""
    module: str = ""
    """The module that made them."""
