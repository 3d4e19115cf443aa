"""The tokenizer's files, read without the tokenizer: what it puts around a text, and the ids of its tokens."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headscope.core.checkpoints.contents.weights import FileStorage
from headscope.core.checkpoints.formats.config_file import TOKENIZER, largest_text, parse_object
from headscope.core.facts.stored.tokenizer import TokenId
from headscope.errors import Malformed, NotFound


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The token that the checkpoint's own tokenizer puts at index 0; None for no special token."""

    token: str | None


def read_first_token(folder: Path) -> FirstToken | None:
    """Reads the first token of the tokenizer in a folder; None if there is none, or if its file does not say."""
    path = folder / TOKENIZER
    try:
        if not path.is_file() or path.stat().st_size > largest_text(TOKENIZER):
            return None
        return FirstToken(first_token_of_file(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError):
        return None


def first_token_of_file(text: str) -> str | None:
    """Reads the special token that the `post_processor` of a `tokenizer.json` puts at index 0; None for none.

    Raises ValueError if the file does not say.
    """
    # Only this value is decoded: the vocabulary before or behind it can have tens of megabytes.
    at = text.find('"post_processor"')
    if at < 0:
        raise ValueError("no post_processor")
    value, _ = json.JSONDecoder().raw_decode(text[text.index(":", at) + 1 :].lstrip())
    return tokens_around(value)[0]


def tokens_around(post_processor: Any) -> tuple[str | None, ...]:
    """Lists the special tokens that a post-processor puts around a text, with None in the place of the text.

    Raises ValueError for an unknown one.
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


_ADDED = "added_tokens.json"
_SETTINGS = "tokenizer_config.json"
_VOCABULARIES = (TOKENIZER, "vocab.json", "vocab.txt")
_MOST_DIGITS = 9


@dataclass(frozen=True, slots=True)
class TokenIds:
    """The IDs in the files of a tokenizer.

    `vocabulary` gives the ID of each token in `file`, `added` are the tokens beside it. It is empty if no file lists it
    as text, and then `unread` says why. `padding`, `truncation` and `post_processor` are those of `tokenizer.json`.
    """

    file: str
    vocabulary: Mapping[str, int]
    added: tuple[TokenId, ...]
    unread: str = ""
    padding: Any = None
    truncation: Any = None
    post_processor: Any = None

    @property
    def around(self) -> tuple[str | None, ...] | None:
        """See `tokens_around`; None where `tokenizer.json` leaves that to the tokenizer's class, or isn't there."""
        try:
            return None if self.post_processor is None else tokens_around(self.post_processor)
        except ValueError:
            return None


def read_vocabulary(storage: FileStorage) -> dict[str, int]:
    """Reads every token with its ID, as `convert_tokens_to_ids` knows them.

    Raises NotFound if no file lists them, Malformed if one does not hold what it should.
    """
    ids = read_token_ids(storage, {})
    if ids.unread:
        raise _lists_no_tokens()
    return {**ids.vocabulary, **{item.token: item.id for item in ids.added if item.id is not None}}


def read_token_ids(storage: FileStorage, settings: Mapping[str, Any]) -> TokenIds:
    """Reads the IDs of all tokens; `settings` is the content of `tokenizer_config.json`, used if nothing else has them.

    Raises NotFound if no file gives IDs, Malformed if one does not hold what it should.
    """
    file = next((name for name in _VOCABULARIES if storage.has(name)), None)
    if file == TOKENIZER:
        return _read_tokenizer_json(parse_object(storage.read_text(file), file, largest_text(file)))
    added = _added_tokens_beside(storage, settings)
    if file is not None:
        text = storage.read_text(file)
        if file.endswith(".json"):
            return TokenIds(file, _checked_vocabulary(parse_object(text, file), file), added)
        lines = text.removesuffix(b"\n").split(b"\n")
        tokens = (line.removesuffix(b"\r").decode("utf-8", "replace") for line in lines)
        return TokenIds(file, {token: at for at, token in enumerate(tokens)}, added)
    coded = next((name for name in storage.names() if name.endswith((".model", ".spm", ".tiktoken"))), None)
    if coded is None and not added:
        raise _lists_no_tokens()
    return TokenIds(_SETTINGS, {}, added, f"its vocabulary is in {coded or 'no file'}, which headscope doesn't read")


def _lists_no_tokens() -> NotFound:
    return NotFound(
        f"no file lists the tokens ({', '.join(_VOCABULARIES)})",
        "give the ids of the tokens, such as --tokens id:2152,id:9693",
    )


def _read_tokenizer_json(content: Mapping[str, Any]) -> TokenIds:
    model = content.get("model")
    # Every field may have a wrong type: the file comes from anywhere.
    listed = [item for item in _list_or_empty(content.get("added_tokens")) if isinstance(item, dict)]
    return TokenIds(
        TOKENIZER,
        _checked_vocabulary(model.get("vocab") if isinstance(model, dict) else None, TOKENIZER),
        _read_added_tokens(((item.get("id"), item) for item in listed), TOKENIZER),
        padding=content.get("padding"),
        truncation=content.get("truncation"),
        post_processor=content.get("post_processor"),
    )


def _checked_vocabulary(listed: Any, name: str) -> dict[str, int]:
    """Reads tokens with their IDs, or pieces with scores in the order of IDs. Raises Malformed for other values."""
    pieces = [piece[0] if isinstance(piece, list) and piece else None for piece in _list_or_empty(listed)]
    ids = listed if isinstance(listed, dict) else {str(piece): at for at, piece in enumerate(pieces)}
    is_valid = isinstance(listed, dict | list) and all(isinstance(piece, str) for piece in pieces)
    is_valid = is_valid and all(type(number) is int and 0 <= number < 10**_MOST_DIGITS for number in ids.values())
    if not is_valid or not _is_text("".join(ids)):
        raise Malformed(f"{name} holds no valid vocabulary", "save the tokenizer again")
    return ids


def _list_or_empty(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_text(token: str) -> bool:
    """True if UTF-8 can write the token: JSON can escape half a character."""
    try:
        token.encode()
    except UnicodeEncodeError:
        return False
    return True


def _added_tokens_beside(storage: FileStorage, settings: Mapping[str, Any]) -> tuple[TokenId, ...]:
    """Reads the added tokens of a tokenizer without `tokenizer.json`."""
    decoder = settings.get("added_tokens_decoder")
    listed = _read_added_tokens(decoder.items(), _SETTINGS) if isinstance(decoder, dict) else ()
    if not storage.has(_ADDED):
        return listed
    values = parse_object(storage.read_text(_ADDED), _ADDED)
    return listed + _read_added_tokens(((at, token) for token, at in values.items()), _ADDED)


def _read_added_tokens(items: Iterable[tuple[Any, Any]], file: str) -> tuple[TokenId, ...]:
    """Reads added tokens from pairs of an ID and a token's text, or an object with its content."""
    found = []
    for number, item in items:
        values = item if isinstance(item, dict) else {"content": item}
        token, digits = values.get("content"), str(number)
        if isinstance(token, str) and digits.isdecimal() and len(digits) <= _MOST_DIGITS and _is_text(token):
            found.append(TokenId("", token, int(digits), file, values.get("special") is not True))
    return tuple(found)
