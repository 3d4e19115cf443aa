"""What `tokenizer.json` puts around a text: read off its post-processor, without the tokenizer."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LARGEST = 64 << 20


@dataclass(frozen=True, slots=True)
class FirstToken:
    """What the checkpoint's own tokenizer puts at index 0; None for no special token."""

    token: str | None


def read_first_token(folder: Path) -> FirstToken | None:
    """The first token of the tokenizer in a folder; None where there is none, or where its file does not say."""
    path = folder / "tokenizer.json"
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST:
            return None
        return FirstToken(first_token_of_file(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError):
        return None


def first_token_of_file(text: str) -> str | None:
    """The special token that the `post_processor` of a `tokenizer.json` puts at index 0; None where there is none.

    Raises ValueError where the file does not say.
    """
    at = text.find('"post_processor"')
    if at < 0:
        raise ValueError("no post_processor")
    value, _ = json.JSONDecoder().raw_decode(text[text.index(":", at) + 1 :].lstrip())
    return tokens_around(value)[0]


def tokens_around(post_processor: Any) -> tuple[str | None, ...]:
    """The special tokens that a post-processor puts around a text, with None in the place of the text.

    Raises ValueError for one that is not known.
    """
    match post_processor:
        case None | {"type": "ByteLevel"}:
            return (None,)
        case {"type": "TemplateProcessing", "single": [*parts]} if parts:
            return tuple(map(_token_of, parts))
        case {"type": "BertProcessing" | "RobertaProcessing", "cls": [str(first), _], "sep": [str(last), _]}:
            return first, None, last
        case {"type": "Sequence", "processors": [*processors]}:
            found: tuple[str | None, ...] = (None,)
            for around in map(tokens_around, processors):
                found = tuple(inner for token in around for inner in (found if token is None else (token,)))
            return found
    raise ValueError("a post_processor that is not known")


def _token_of(part: Any) -> str | None:
    match part:
        case {"Sequence": _}:
            return None
        case {"SpecialToken": {"id": str(name)}}:
            return name
    raise ValueError("a post_processor with a part that is not known")
