"""The ids of a checkpoint's tokens, read from its tokenizer's files without the tokenizer."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headscope.checkpoints.config_file import check_cost, parse_object
from headscope.checkpoints.formats.bytes import ByteSource
from headscope.checkpoints.weights import Storage
from headscope.errors import Malformed, NotFound
from headscope.facts.check import TokenId

_TOKENIZER = "tokenizer.json"
_ADDED = "added_tokens.json"
_SETTINGS = "tokenizer_config.json"
_VOCABULARIES = ("vocab.json", "vocab.txt")
_LARGEST = 64 << 20
_MOST_TOKENS, _MOST_DIGITS = 2_000_000, 9
_TEXT = rb'"([^"\\]*(?:\\.[^"\\]*)*)"'
_PAIR = re.compile(rb"\s*" + _TEXT + rb"\s*:\s*(\d{1,9})\s*([,}])")
_PIECE = re.compile(rb"\s*\[\s*" + _TEXT + rb"\s*,()\s*[-+.\deE]+\s*\]\s*([,\]])")
_ESCAPED = re.compile(rb'["\\]')
_MODEL = re.compile(rb'"model"\s*:\s*\{')
_VOCAB = re.compile(rb'"vocab"\s*:\s*([{\[])\s*')


@dataclass(frozen=True, slots=True)
class TokenIds:
    """What the files of a tokenizer say of ids, as far as they were read.

    `found` are the ids of the wanted tokens, `count` and `highest` describe the vocabulary proper in `file`; they are
    None where it was not read, and then `unread` says why. `added` are the tokens beside it. `padding`, `truncation`
    and `template` (as it is written) are those of `tokenizer.json`.
    """

    file: str
    found: Mapping[str, int]
    added: tuple[TokenId, ...]
    count: int | None = None
    highest: TokenId | None = None
    unread: str = ""
    padding: Any = None
    truncation: Any = None
    template: str = ""


def read_vocabulary(storage: Storage) -> dict[str, int]:
    """Every token with its id, as `convert_tokens_to_ids` knows them.

    Raises NotFound where no file lists them, Malformed where one does not hold what it should.
    """
    name = _file_of_ids(storage)
    if name is None:
        wanted = ", ".join((_TOKENIZER, *_VOCABULARIES))
        raise NotFound(
            f"no file lists the tokens ({wanted})", "give the ids of the tokens, such as --tokens id:2152,id:9693"
        )
    data = _whole(storage.open(name), _LARGEST)
    added = _added_in(data) if name == _TOKENIZER else ()
    return {_text_of(token): number for token, number in _entries(data, name)} | {
        item.token: item.id for item in added if item.id is not None
    }


def read_token_ids(storage: Storage, settings: Mapping[str, Any], wanted: Iterable[str], *, cheaply: bool) -> TokenIds:
    """The ids of the wanted tokens, and how far the vocabulary goes.

    Where reading costs requests (`cheaply` is False) and `tokenizer.json` is large, only the settings are read. Raises
    NotFound where no file gives ids, Malformed where one does not hold what it should.
    """
    name = _file_of_ids(storage)
    decoder = settings.get("added_tokens_decoder")
    listed = _added(decoder.items(), _SETTINGS) if isinstance(decoder, dict) else ()
    if name != _TOKENIZER and _ADDED in (storage.names_at_hand() or ()):
        values = parse_object(storage.read_text(_ADDED), _ADDED)
        listed += _added(((at, token) for token, at in values.items()), _ADDED)
    if name is None and not listed:
        raise NotFound("no file gives the ids of its tokens as text", "")
    if name is None:
        return TokenIds(_SETTINGS, {}, listed, unread="no file lists its vocabulary as text")
    try:
        data = _whole(storage.open(name), _LARGEST) if cheaply else storage.read_text(name)
    except Malformed as err:
        if not listed:
            raise
        return TokenIds(name, {}, listed, unread=err.message)
    count, last, highest, found = 0, b"", -1, {}
    sought = {token.encode("utf-8", "replace"): token for token in wanted}
    sought |= {json.dumps(token)[1:-1].encode(): token for token in sought.values()}
    for token, number in _entries(data, name):
        count += 1
        if number > highest:
            last, highest = token, number
        if token in sought:
            found[sought[token]] = number
    end = TokenId("", _text_of(last)[:80], highest, name, True) if count else None
    if name != _TOKENIZER:
        return TokenIds(name, found, listed, count, end)
    return TokenIds(name, found, _added_in(data), count, end, "", *_settings_in(data))


def _file_of_ids(storage: Storage) -> str | None:
    """The file that gives ids; in a repository whose files are not listed, only the usual one is looked for."""
    at_hand = storage.names_at_hand()
    names = (_TOKENIZER,) if at_hand is None else (_TOKENIZER, *_VOCABULARIES)
    return next((name for name in names if storage.has(name)), None)


def _added(items: Iterable[tuple[Any, Any]], file: str) -> tuple[TokenId, ...]:
    """The added tokens among pairs of an id and what describes a token: its text, or an object with its content."""
    found = []
    for number, item in items:
        values = item if isinstance(item, dict) else {"content": item}
        token, digits = values.get("content"), str(number)
        if isinstance(token, str) and digits.isdecimal() and len(digits) <= _MOST_DIGITS:
            found.append(TokenId("", token, int(digits), file, values.get("special") is not True))
    return tuple(found)


def _whole(source: ByteSource, limit: int) -> bytes:
    if source.size > limit:
        raise Malformed(
            f"{source.name} has {source.size:,} bytes, over the limit of {limit:,}", "check what the file is"
        )
    return source.read_at(0, source.size)


def _entries(data: bytes, name: str) -> Iterator[tuple[bytes, int]]:
    """Each token of the vocabulary, as JSON writes it, with its id; without parsing the merges beside it."""
    if name == "vocab.txt":
        lines = data.removesuffix(b"\n").split(b"\n", _MOST_TOKENS)
        yield from ((_ESCAPED.sub(rb"\\\g<0>", line.removesuffix(b"\r")), at) for at, line in enumerate(lines))
        return
    at, pattern = _start_of(data, name)
    if data[at : at + 1] in (b"}", b"]"):
        return
    for count in range(_MOST_TOKENS):
        match = pattern.match(data, at)
        if match is None:
            raise Malformed(f"{name} holds no valid vocabulary at byte {at:,}", "save the tokenizer again")
        yield match[1], int(match[2]) if match[2] else count
        if match[3] != b",":
            return
        at = match.end()
    raise Malformed(f"{name} lists more than {_MOST_TOKENS:,} tokens", "check what the file is")


def _start_of(data: bytes, name: str) -> tuple[int, re.Pattern[bytes]]:
    """Where the first entry begins, and how entries are written."""
    if name != _TOKENIZER:
        return data.find(b"{") + 1, _PAIR
    model = _MODEL.search(data)
    found = _VOCAB.search(data, model.end()) if model else None
    if found is None:
        raise Malformed(f"{_TOKENIZER} holds no vocabulary", "save the tokenizer again")
    return found.end(), _PAIR if found[1] == b"{" else _PIECE


def _text_of(token: bytes) -> str:
    """A token as text. Raises Malformed for an escape that JSON does not have."""
    try:
        text = json.loads(b'"' + token.decode("utf-8", "replace").encode() + b'"', strict=False)
    except ValueError as err:
        raise Malformed(
            f"the vocabulary holds {token[:40]!r}, which is not a text", "save the tokenizer again"
        ) from err
    return str(text).encode("utf-8", "replace").decode()


def _added_in(data: bytes) -> tuple[TokenId, ...]:
    """The added tokens of a `tokenizer.json`. Raises Malformed where their list is broken or cut."""
    value = _value_of(data, "added_tokens")
    items = [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
    return _added(((item.get("id"), item) for item in items), _TOKENIZER)


def _settings_in(data: bytes) -> tuple[Any, Any, str]:
    """The padding and the truncation that `tokenizer.json` sets, and its post-processor as text."""
    found: list[Any] = []
    for key in ("padding", "truncation", "post_processor"):
        try:
            found.append(_value_of(data, key))
        except Malformed:  # cut: it says nothing of this
            found.append(None)
    return found[0], found[1], json.dumps(found[2], ensure_ascii=False)


def _value_of(data: bytes, key: str) -> Any:
    """The value under the first `key`; None where there is none. Raises Malformed."""
    found = re.search(rb'"' + key.encode() + rb'"\s*:\s*', data)
    if found is None:
        return None
    model = _MODEL.search(data, found.end())
    text = data[found.end() : model.start() if model else None]
    check_cost(text, _TOKENIZER)
    try:
        return json.JSONDecoder().raw_decode(text.decode("utf-8", "ignore"))[0]
    except (ValueError, RecursionError) as err:
        raise Malformed(f"{_TOKENIZER} holds a broken list of {key}", "save the tokenizer again") from err
