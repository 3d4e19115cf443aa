"""The facts on engines: TOML files, one for each, with rows of which the first that fits a checkpoint is used.

Every row cites the file and line it was read in. It holds for the range of versions of its file, and for nothing else.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from headscope.errors import UsageError, did_you_mean

_FOLDER = Path(__file__).parent / "facts"
_FILES, _COUNT, _SCORE_MODULE = "@files", "@num_labels", "@cross_encoder_activation"


@dataclass(frozen=True, slots=True)
class Served:
    """What rows look at: the stored configuration, the class it names, the class count, files beside the weights, and
    the class of PyTorch that a CrossEncoder's own settings put on its scores, "" for none."""

    architecture: str
    config: Mapping[str, Any]
    num_labels: int | None
    files: frozenset[str]
    score_module: str = ""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What was read of one engine; the rows are as in its file."""

    engine: str
    title: str
    package: str
    versions: str
    read_at: str
    dtype: str
    float32_becomes: str
    logits: str
    not_looked_at: tuple[str, ...]
    heads: Sequence[Mapping[str, Any]]
    scores: Sequence[Mapping[str, Any]]
    notes: Sequence[Mapping[str, Any]]

    def source_of(self, row: Mapping[str, Any]) -> str:
        """Where a row was read."""
        return f"{self.title} {self.read_at}, {row['file']}:{row['line']}"


def engine_names() -> tuple[str, ...]:
    """The engines that there are facts on, in order."""
    return tuple(sorted(path.stem.replace("_", "-") for path in _FOLDER.glob("*.toml")))


@cache
def facts_on(engine: str) -> EngineFacts:
    """What was read of an engine. Raises UsageError for one that there are no facts on."""
    names = engine_names()
    if engine not in names:
        raise UsageError(f"no such engine: {engine!r}", did_you_mean(engine, names, f"engines: {', '.join(names)}"))
    found = tomllib.loads((_FOLDER / f"{engine.replace('-', '_')}.toml").read_text(encoding="utf-8"))
    fields = ("engine", "title", "package", "versions", "read_at", "logits", "heads", "scores")
    return EngineFacts(
        **{name: found[name] for name in fields},
        dtype=found["dtype"]["rule"],
        float32_becomes=found["dtype"].get("float32", ""),
        not_looked_at=tuple(found["not_looked_at"]),
        notes=found.get("notes", ()),
    )


def first_that_fits(rows: Sequence[Mapping[str, Any]], served: Served) -> tuple[Mapping[str, Any] | None, str]:
    """The row that a checkpoint falls under; None with the reason where there is none."""
    for row in rows:
        if not any(fnmatchcase(served.architecture, pattern) for pattern in row.get("architectures", ("*",))):
            continue
        if all(_holds(name, condition, served) for name, condition in row.get("when", {}).items()):
            return row, ""
    return None, f"the facts don't cover {served.architecture or 'a checkpoint whose config.json names no class'}"


def _holds(name: str, condition: Mapping[str, Any], served: Served) -> bool:
    """Whether a condition of a row holds."""
    if name == _FILES:
        return served.files.issuperset(condition["has"])
    own = {_COUNT: served.num_labels, _SCORE_MODULE: served.score_module or None}
    found = own[name] if name in own else _field(served.config, name)
    if condition.get("absent"):
        return found is None
    return all(_meets(found, key, wanted) for key, wanted in condition.items())


def _meets(found: Any, key: str, wanted: Any) -> bool:
    """Whether a value meets one part of a condition; one that isn't there meets none."""
    match key:
        case "is":
            return any(_same(found, item) for item in wanted)
        case "not":
            return found is not None and not any(_same(found, item) for item in wanted)
        case "min":
            return _is_number(found) and bool(found >= wanted)
        case "max":
            return _is_number(found) and bool(found <= wanted)
    raise ValueError(f"no such condition: {key}")


def _field(config: Mapping[str, Any], path: str) -> Any:
    """A field of the configuration; a dot leads into a field that is an object."""
    found: Any = config
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _same(one: Any, other: Any) -> bool:
    """Whether two values of JSON are the same: 1 and true are not."""
    return type(one) is type(other) and bool(one == other)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
