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
    """Which positions of each row are read.

    `index` and `stop` are set for fixed indices and ranges (`stop` is None for a range up to the end). `token` is what
    the tokenizer calls the token at that position, or "".
    """

    where: Where
    index: int | None = None
    stop: int | None = None
    token: str = ""

    @property
    def text(self) -> str:
        """A short name: `[CLS]`, `0`, `1:`, `last non-pad`, `all`."""
        if self.token:
            return self.token
        if self.where is Where.INDEX:
            return str(self.index)
        if self.where is Where.RANGE:
            return f"{self.index or ''}:{'' if self.stop is None else self.stop}"
        return _TEXTS[self.where]

    @property
    def is_first(self) -> bool:
        """Whether this is index 0, whatever is there."""
        return self.where is Where.INDEX and self.index == 0

    @property
    def is_one(self) -> bool:
        """Whether one position of each row is read."""
        return self.where in _SINGLE

    @property
    def depends_on_padding(self) -> bool:
        """Whether the position follows the padding of its row."""
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
    """Which hidden states a head reads, and how a formula writes them.

    `text` is `h` for the last layer of the base model, `h[-4]` for another layer, `h1` and `h2` for the outputs of two
    encoders. `layer` counts from the end (-1 is the last) and is None where the hidden states are not a layer that the
    base model returns. `module` is the module that made them.
    """

    text: str = "h"
    layer: int | None = -1
    module: str = ""
