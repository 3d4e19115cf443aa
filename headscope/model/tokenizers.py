"""What a family's tokenizer puts around a text: read off the tokenizer itself, built without a vocabulary."""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headscope.upstream.python import parse
from headscope.upstream.sources import folder_of_package
from headscope.upstream.transformers import folder_of_type, tokenizer_of_type


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """What is at index 0 of an encoded text, and the end token; None where there is no such token."""

    first: str | None = None
    eos: str | None = None


@lru_cache(maxsize=256)
def special_tokens_of(model_type: str) -> SpecialTokens:
    """What the tokenizer class that Transformers maps `model_type` to does by default.

    The class encodes a text with an empty vocabulary. One that needs a file runs its `build_inputs_with_special_tokens`
    on the names of the tokens instead. A class that can do neither is not known: both fields are None.
    """
    cls = _load(_tokenizer_class(model_type))
    if cls is None:
        return SpecialTokens()
    defaults = _string_defaults(cls)
    try:
        return _by_encoding(cls, defaults)
    except Exception:  # it needs a file, or words with boxes: each class in its own way
        return SpecialTokens(_by_building(cls, defaults), defaults.get("eos_token"))


def _by_encoding(cls: Any, defaults: dict[str, str]) -> SpecialTokens:
    """What an instance with the smallest vocabulary puts before a text."""
    try:
        tokenizer = cls()
        ids = tokenizer("a").input_ids
    except Exception:  # some need the unknown token in the vocabulary, some words with boxes
        tokenizer = cls(vocab={name: number for number, name in enumerate(dict.fromkeys([*defaults.values(), "a"]))})
        ids = _encoded_words(tokenizer)
    special = tokenizer.all_special_tokens
    first = tokenizer.convert_ids_to_tokens(ids[:1])
    is_added = bool(first) and first[0].isprintable() and first[0] in special and first[0] != tokenizer.unk_token
    return SpecialTokens(first[0] if is_added else None, tokenizer.eos_token)


def _encoded_words(tokenizer: Any) -> list[int]:
    try:
        return list(tokenizer("a").input_ids)
    except Exception:  # layout models take words with their boxes
        return list(tokenizer(["a"], boxes=[[0, 0, 0, 0]]).input_ids)


def _by_building(cls: Any, defaults: dict[str, str]) -> str | None:
    """What `build_inputs_with_special_tokens` puts first, run on an object that holds names instead of ids."""
    names = {f"{name}_id": token for name, token in defaults.items() if name.endswith("_token")}
    try:
        built = cls.build_inputs_with_special_tokens(SimpleNamespace(**names), ["a"])
    except Exception:  # it needs more of an instance than its tokens
        return None
    return built[0] if built and built[0] != "a" else None


def _load(name: str) -> Any:
    """A tokenizer class by its name; None where Transformers cannot import it here."""
    import transformers

    cls = getattr(transformers, name, None) if name else None
    is_dummy = cls is None or "dummy" in getattr(cls, "__module__", "")
    return None if is_dummy or name in GENERIC else cls


GENERIC = {"TokenizersBackend", "PreTrainedTokenizerFast"}
"""Classes that are whatever the checkpoint's file says."""


def default_tokens(class_name: str, model_type: str) -> dict[str, str]:
    """The special tokens, such as `pad_token`, that a tokenizer class has by default, or that of a family."""
    cls = _load(class_name or _tokenizer_class(model_type))
    defaults = {} if cls is None else _string_defaults(cls)
    return {name: token for name, token in defaults.items() if name.endswith("_token")}


def _string_defaults(cls: Any) -> dict[str, str]:
    """The arguments of a class that are text by default: `cls_token`, `eos_token`, ..."""
    parameters = inspect.signature(cls.__init__).parameters.values()
    return {item.name: item.default for item in parameters if isinstance(item.default, str)}


@cache
def padding_side_of(model_type: str) -> str:
    """The default padding side of the family's tokenizer: `left` or `right`."""
    name = _tokenizer_class(model_type)
    for path in _candidate_files(name.removesuffix("Fast")):
        for node in ast.walk(parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Assign(targets=[ast.Name("padding_side")], value=ast.Constant(str() as side)):
                    return side
                case ast.keyword(arg="padding_side", value=ast.Constant(str() as side)):
                    return side
    return "right"


def _tokenizer_class(model_type: str) -> str:
    return next(iter(tokenizer_of_type().get(model_type, ())), "")


def _candidate_files(class_name: str) -> Iterator[Path]:
    """Source files whose name says that they may define `class_name`, the likeliest first."""
    package = folder_of_package("transformers")
    if package is None or not class_name:
        return
    models = package / "models"
    wanted = class_name.removesuffix("Tokenizer").lower()
    folders = [
        folder_of_type(kind)
        for kind, names in tokenizer_of_type().items()
        if any(name.removesuffix("Fast") == class_name for name in names)
    ]
    for folder in sorted(dict.fromkeys(folders), key=lambda folder: folder.replace("_", "") != wanted):
        path = models / folder / f"tokenization_{folder}.py"
        if path.is_file() and f"class {class_name}" in path.read_text(encoding="utf-8"):
            yield path
