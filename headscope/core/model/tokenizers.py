"""Special tokens and padding side of a family's tokenizer: read off its class, built without a vocabulary."""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headscope.core.upstream.python import parse
from headscope.core.upstream.sources import folder_of_package
from headscope.core.upstream.transformers import folder_of_type, tokenizer_of_type


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """First token of an encoded text, and the end token; None where there is no such token."""

    first: str | None = None
    eos: str | None = None


@lru_cache(maxsize=256)
def special_tokens_of(model_type: str) -> SpecialTokens:
    """Reads what the tokenizer class that Transformers maps `model_type` to adds by default.

    The class encodes a text with an empty vocabulary. One that needs a file runs its `build_inputs_with_special_tokens`
    on the names of the tokens instead. For a class that can do neither, `first` is None.
    """
    cls = _import_tokenizer_class(_tokenizer_class_name(model_type))
    if cls is None:
        return SpecialTokens()
    defaults = _string_defaults(cls)
    try:
        return _read_by_encoding(cls, defaults)
    except Exception:  # it needs a file, or words with boxes: each class in its own way
        return SpecialTokens(_read_by_building(cls, defaults), defaults.get("eos_token"))


def _read_by_encoding(cls: Any, defaults: dict[str, str]) -> SpecialTokens:
    """Encodes a text with the smallest vocabulary, and reads what the class puts before it."""
    try:
        tokenizer = cls()
        ids = tokenizer("a").input_ids
    except Exception:  # some need the unknown token in the vocabulary, some words with boxes
        tokenizer = cls(vocab={name: number for number, name in enumerate(dict.fromkeys([*defaults.values(), "a"]))})
        ids = _encode_one_word(tokenizer)
    special = tokenizer.all_special_tokens
    first = tokenizer.convert_ids_to_tokens(ids[:1])
    # A vocabulary of special tokens only encodes the text itself as the unknown token, which is not added.
    is_added = bool(first) and first[0].isprintable() and first[0] in special and first[0] != tokenizer.unk_token
    return SpecialTokens(first[0] if is_added else None, tokenizer.eos_token)


def _encode_one_word(tokenizer: Any) -> list[int]:
    try:
        return list(tokenizer("a").input_ids)
    except Exception:  # layout models take words with their boxes
        return list(tokenizer(["a"], boxes=[[0, 0, 0, 0]]).input_ids)


def _read_by_building(cls: Any, defaults: dict[str, str]) -> str | None:
    """Runs `build_inputs_with_special_tokens` on an object with names instead of IDs, and reads what comes first."""
    names = {f"{name}_id": token for name, token in defaults.items() if name.endswith("_token")}
    try:
        built = cls.build_inputs_with_special_tokens(SimpleNamespace(**names), ["a"])
    except Exception:  # it needs more of an instance than its tokens
        return None
    return built[0] if built and built[0] != "a" else None


def _import_tokenizer_class(name: str) -> Any:
    """Imports a tokenizer class by its name; None if Transformers can't import it here, or if it fits any family."""
    import transformers

    cls = getattr(transformers, name, None) if name else None
    # Transformers exports placeholders from utils/dummy_*_objects.py for classes whose packages are missing.
    is_dummy = cls is None or "dummy" in getattr(cls, "__module__", "")
    return None if is_dummy or name in GENERIC else cls


GENERIC = {"TokenizersBackend", "PreTrainedTokenizerFast"}
"""Classes that are whatever the checkpoint's file says."""


def default_tokens(class_name: str, model_type: str) -> dict[str, str]:
    """Gives the special tokens, such as `pad_token`, that a tokenizer class, or that of a family, has by default."""
    cls = _import_tokenizer_class(class_name or _tokenizer_class_name(model_type))
    defaults = {} if cls is None else _string_defaults(cls)
    return {name: token for name, token in defaults.items() if name.endswith("_token")}


def _string_defaults(cls: Any) -> dict[str, str]:
    """Gives the arguments of a class whose default is text: `cls_token`, `eos_token`, ..."""
    parameters = inspect.signature(cls.__init__).parameters.values()
    return {item.name: item.default for item in parameters if isinstance(item.default, str)}


@cache
def padding_side_of(model_type: str) -> str:
    """Reads the default padding side of the family's tokenizer in its source: `left` or `right`."""
    name = _tokenizer_class_name(model_type)
    for path in _candidate_files(name.removesuffix("Fast")):
        for node in ast.walk(parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Assign(targets=[ast.Name("padding_side")], value=ast.Constant(str() as side)):
                    return side
                case ast.keyword(arg="padding_side", value=ast.Constant(str() as side)):
                    return side
    return "right"


def _tokenizer_class_name(model_type: str) -> str:
    return next(iter(tokenizer_of_type().get(model_type, ())), "")


def _candidate_files(class_name: str) -> Iterator[Path]:
    """Yields the source files whose name suggests that they define `class_name`, the likeliest first."""
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
