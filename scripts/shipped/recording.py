"""What building and running a class reads: fields of its configuration, and functions of Transformers."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import transformers
from transformers import PreTrainedConfig

from headscope.core.upstream.sources import source_file
from headscope.facts import CheckpointManifest

ROOT = Path(transformers.__file__).parent
_WHOLE = frozenset({
    "to_dict", "to_diff_dict", "to_json_string", "_remove_keys_not_serialized", "__repr__", "__eq__", "__hash__",
    "_get_generation_parameters", "deepcopy", "copy", "_reconstruct", "validate_token_ids", "recursive_diff_dict",
    "dict_dtype_to_str",
})  # fmt: skip
"""Functions that go through every field, whatever it is."""
_OF_HEADS = ("modeling_layers.py", "activations.py", "pytorch_utils.py", "modeling_rope_utils.py", "loss/")
"""Where code is that models share; all else is Transformers' machinery, which a release is tested for as a whole."""


@dataclass
class Record:
    """The fields that were read, and the functions that ran, by the files under Transformers."""

    fields: set[str] = field(default_factory=set)
    codes: set[CodeType] = field(default_factory=set)
    in_base: set[CodeType] = field(default_factory=set)

    def words(self) -> set[str]:
        """The words in the functions that made the configuration: what they take out of their arguments."""
        made_by = [code for code in self.codes if code.co_name not in _WHOLE]
        own = [
            code for code in made_by if "configuration_" in code.co_filename and "/generation/" not in code.co_filename
        ]
        found = {item for code in own for item in _constants(code)}
        return {word for word in found if word.isidentifier() and not word[0].isupper()}

    def code(self, *, of_base: bool = False) -> dict[str, list[str]]:
        """The names of functions and their classes by file; with `of_base`, those that ran only in a base model."""
        found: dict[str, set[str]] = {}
        for item in self.in_base - self.codes if of_base else self.codes:
            path = _path_of(item)
            if path is None:
                continue
            name = item.co_qualname.partition(".<locals>")[0]
            owner = name.rpartition(".")[0]
            found.setdefault(path, set()).update({name, owner} - {"", "<module>"})
        known = {path: _names_in(path) for path in found}
        return {path: sorted(names & known[path]) for path, names in sorted(found.items()) if names & known[path]}


class _ReadFields(dict[str, Any]):
    """A parsed config.json that records which of its fields are read by name."""

    def __init__(self, fields: dict[str, Any], record: Record) -> None:
        super().__init__(fields)
        self._record = record

    def __getitem__(self, name: str) -> Any:
        self._record.fields.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self._record.fields.add(str(name))
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._record.fields.add(name)
        return super().get(name, default)


def _constants(code: CodeType) -> Iterator[str]:
    for item in code.co_consts:
        if isinstance(item, str):
            yield item
        elif isinstance(item, tuple | frozenset):
            yield from (word for word in item if isinstance(word, str))
        elif isinstance(item, CodeType):
            yield from _constants(item)


def _path_of(code: CodeType) -> str | None:
    try:
        path = Path(code.co_filename).relative_to(ROOT).as_posix()
    except ValueError:
        return None
    is_model = path.startswith("models/") and Path(path).name.startswith(("modeling_", "configuration_"))
    return path if is_model or path.startswith(_OF_HEADS) else None


def _names_in(path: str) -> set[str]:
    file = source_file(path)
    return set() if file is None else file.names()


@contextmanager
def recorded() -> Iterator[Record]:
    """Inside, everything that is read and run is recorded."""
    record, depth = Record(), [0]
    config_class: Any = PreTrainedConfig
    manifest_class: Any = CheckpointManifest
    plain, parsed = config_class.__getattribute__, manifest_class.config

    def read(config: Any, name: str) -> Any:
        if not name.startswith("__") and sys._getframe(1).f_code.co_name not in _WHOLE:
            record.fields.update((name, type(config).attribute_map.get(name, name)))
        return plain(config, name)

    def on_call(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(str(ROOT)):
            return
        is_base = code.co_name == "forward" and _is_base(frame)
        if event == "call":  # a base model's own forward chooses what the head gets
            (record.in_base if depth[0] > 0 else record.codes).add(code)
        depth[0] += is_base * (1 if event == "call" else -1)

    config_class.__getattribute__ = read
    manifest_class.config = property(
        lambda manifest: _ReadFields(parsed.__get__(manifest), record),
        parsed.__set__,
    )
    sys.setprofile(on_call)
    try:
        yield record
    finally:
        sys.setprofile(None)
        config_class.__getattribute__, manifest_class.config = plain, parsed


def _is_base(frame: FrameType) -> bool:
    """Whether a forward is that of a base model inside a model with a head."""
    own = frame.f_locals.get("self")
    name = type(own).__name__
    return isinstance(own, transformers.PreTrainedModel) and name.endswith(("Model", "Encoder", "Decoder", "Backbone"))
