"""The ids of a checkpoint's tokens, read from its tokenizer's files without the tokenizer."""

from typing import Any

from headscope.checkpoints.config_file import parse_object
from headscope.checkpoints.weights import Storage
from headscope.errors import Malformed, NotFound

_TOKENIZER = "tokenizer.json"
_VOCABULARIES = ("vocab.json", "vocab.txt")
_LARGEST = 64 << 20


def read_vocabulary(storage: Storage) -> dict[str, int]:
    """Every token with its id, as `convert_tokens_to_ids` knows them.

    Raises NotFound where no file lists them, Malformed where one does not hold what it should.
    """
    names = set(storage.names())
    if _TOKENIZER in names:
        return _of_tokenizer(parse_object(_whole(storage, _TOKENIZER), _TOKENIZER, _LARGEST))
    for name in _VOCABULARIES:
        if name in names:
            return _of_list(_whole(storage, name), name)
    wanted = ", ".join((_TOKENIZER, *_VOCABULARIES))
    raise NotFound(
        f"no file lists the tokens ({wanted})", "give the ids of the tokens, such as --tokens id:2152,id:9693"
    )


def _whole(storage: Storage, name: str) -> bytes:
    source = storage.open(name)
    if source.size > _LARGEST:
        raise Malformed(f"{name} has {source.size:,} bytes, over the limit of {_LARGEST:,}", "check what the file is")
    return source.read_at(0, source.size)


def _of_tokenizer(values: dict[str, Any]) -> dict[str, int]:
    model = values.get("model")
    listed = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(listed, dict):
        found = {token: number for token, number in listed.items() if type(number) is int}
    elif isinstance(listed, list):
        found = {item[0]: at for at, item in enumerate(listed) if isinstance(item, list) and item}
        found = {token: number for token, number in found.items() if isinstance(token, str)}
    else:
        raise Malformed(f"{_TOKENIZER} holds no vocabulary", "save the tokenizer again")
    added = values.get("added_tokens")
    for item in added if isinstance(added, list) else ():
        if isinstance(item, dict) and isinstance(item.get("content"), str) and type(item.get("id")) is int:
            found[item["content"]] = item["id"]
    return found


def _of_list(text: bytes, name: str) -> dict[str, int]:
    if name.endswith(".json"):
        return {token: at for token, at in parse_object(text, name, _LARGEST).items() if type(at) is int}
    try:
        return {token: at for at, token in enumerate(text.decode("utf-8").splitlines())}
    except UnicodeDecodeError as err:
        raise Malformed(f"{name} is not UTF-8 text", "save the tokenizer again") from err
