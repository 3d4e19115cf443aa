"""What `tokenizer.json` puts before a text: read off its post-processor, without the tokenizer."""

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
    return _first_of(value)


def _first_of(value: Any) -> str | None:
    """The first token that a post-processor adds, by its kind."""
    match value:
        case None | {"type": "ByteLevel"}:
            return None
        case {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": str(name)}}, *_]}:
            return name
        case {"type": "TemplateProcessing", "single": [{"Sequence": _}, *_]}:
            return None
        case {"type": "BertProcessing" | "RobertaProcessing", "cls": [str(name), _]}:
            return name
        case {"type": "Sequence", "processors": [*processors]}:
            found = [_first_of(item) for item in processors]
            return next((name for name in found if name is not None), None)
    raise ValueError("a post_processor that is not known")
