"""What the files of a checkpoint's tokenizer say, and what follows where they differ from its configuration."""

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class TokenId:
    """A token of a tokenizer with its id; None where no file that was read gives it.

    `role` is `pad`, `eos`, ... or "" for the highest ordinary and the highest added token. `file` gives the id; ""
    where Transformers appends the token to the vocabulary. `occurs` says that encoded texts hold it, named or not.
    """

    role: str
    token: str
    id: int | None
    file: str
    occurs: bool


class AffectedTexts(StrEnum):
    """Which texts something changes: `some` are those that hold the token that the configuration's id is."""

    ALL = "all"
    SOME = "some"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class IdEffect:
    """What an id of the configuration that isn't the tokenizer's does, seen on a small random model of the class.

    `changes` is None where that could not be measured, for the reason in `seen`.
    """

    role: str
    configured: int
    source: str
    changes: AffectedTexts | None
    seen: str = ""


@dataclass(frozen=True, slots=True)
class FileContradiction:
    """Two files of a tokenizer that say different things of `what`; Transformers takes `used`."""

    what: str
    used: str
    other: str


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """What the checkpoint's tokenizer files say; `padding_side` is the family's default where they say nothing.

    `tokens` are its special tokens and the highest ids, `ids_unread` says why ids are missing there. `effects` are
    those of ids that the configuration sets otherwise. `max_length` is where the tokenizer cuts texts, None for
    nowhere; `too_long` is the error that texts of that length raise, "" for none, None where it was not tried.
    `appends_eos` says whether texts end with the end token, None where the tokenizer's class decides.
    """

    padding_side: str
    pad_token: str | None
    eos_token: str | None
    tokens: tuple[TokenId, ...] = ()
    ids_unread: str = ""
    effects: tuple[IdEffect, ...] = ()
    max_length: int | None = None
    too_long: str | None = ""
    contradictions: tuple[FileContradiction, ...] = ()
    appends_eos: bool | None = None
