"""Facts on engines: TOML files, one for each, with rows of which the first that fits a checkpoint is used.

Every row cites the file and line it was read in. It holds for the range of versions of its file, and for an installed
version in which the function or class at that line is the same: `code` has its name and its digest.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from headscope.core.facts.environment import package_version
from headscope.core.upstream.sources import SourceFile, folder_of_package
from headscope.errors import UsageError, did_you_mean

_FOLDER = Path(__file__).parent / "facts"
_FILES, _COUNT, _SCORE_MODULE, CHAIN = "@files", "@num_labels", "@cross_encoder_activation", "@chain"
_MODULES, _LIBRARY, _POOLING, _TOKENIZER = "@modules", "@library", "@pooling", "@tokenizer"
_UNREADABLE = object()
"""The value of a field inside of something that is not an object."""
OTHER = "other"
"""The activation of a row for functions that have no name here."""


@dataclass(frozen=True, slots=True)
class Served:
    """Facts on a checkpoint that the conditions of rows look at.

    `files` are those beside the weights, None where they could not be read. `score_module` is the class of PyTorch that
    a CrossEncoder's own settings put on its scores, "" for none. `is_chain`: the head is a chain of
    sentence-transformers' modules. `modules` are the class names of those that are listed, joined by commas, `library`
    is the class that saved them, `pooling` the modes of the pooling module; "" if not known. `tokenizer` is the class
    of the tokenizer, "" if its settings name none, None where they could not be read.
    """

    architecture: str
    config: Mapping[str, Any]
    num_labels: int | None
    files: frozenset[str] | None
    score_module: str = ""
    is_chain: bool = False
    modules: str = ""
    library: str = ""
    pooling: str = ""
    tokenizer: str | None = ""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Facts that were read of one engine; the rows are as in its file."""

    engine: str
    title: str
    package: str
    versions: str
    read_at: str
    dtype: str
    float32: str
    float32_not: tuple[str, ...]
    logits: str
    not_looked_at: tuple[str, ...]
    heads: Sequence[Mapping[str, Any]]
    scores: Sequence[Mapping[str, Any]]
    notes: Sequence[Mapping[str, Any]]
    unread: tuple[str, ...]
    """Fields of config.json that change the scores, and were read for the rows alone that name them."""

    def float32_becomes(self, architecture: str) -> str:
        """Gives the dtype that a float32 checkpoint of a class is computed in by default; "" for float32 or unknown."""
        return "" if any(fnmatchcase(architecture, pattern) for pattern in self.float32_not) else self.float32

    def source_of(self, row: Mapping[str, Any], version: str) -> str:
        """Writes where a row was read, and in which other version the code there is the same."""
        later = "" if self.covers(version) else f"; the same code in {version}"
        return f"{self.title} {self.read_at}, {row['file']}:{row['line']}{later}"

    def covers(self, version: str) -> bool:
        """True if the facts were read of a version. Raises UsageError for one that is invalid."""
        if version == self.read_at:
            return True
        try:
            return Version(version) in SpecifierSet(self.versions)
        except InvalidVersion as err:
            raise UsageError(f"{version!r} is not a version", f"write --engine {self.engine}@{self.read_at}") from err

    def holds(self, row: Mapping[str, Any], version: str) -> bool:
        """True if a row holds for a version: it was read of it, or what it cites is the same in the installed engine.

        It looks at the cited function or class alone, not at what that calls or at who calls it. For a version that
        isn't installed, the range of versions decides.
        """
        is_covered = self.covers(version)
        if version == self.read_at or "code" not in row or self.installed_version() != version:
            return is_covered
        folder = folder_of_package(row["file"].partition("/")[0])
        return folder is not None and cited_code(folder.parent, row["file"], row["code"].split()[0]) == row["code"]

    def installed_version(self) -> str:
        """Gives the version that is installed beside headscope; "" for none, and for what isn't a Python package."""
        is_python = self.package and ":" not in self.package
        return (package_version(self.package) or "") if is_python else ""


@cache
def cited_code(packages: Path, file: str, place: int | str) -> str:
    """Gives the name and the digest of the function, class or entry at a line of a Python file, or of that name.

    `packages` is the folder that the package is in. "" where there is none, or the file can't be read.
    """
    try:
        found = SourceFile((packages / file).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return ""
    # What a class builds tells little without what it does with it: all of the class counts.
    name = found.name_around(place).removesuffix(".__init__") if isinstance(place, int) else place
    digest = found.digest(name) if name.startswith("[") else found.digest_whole(name)
    return f"{name} {digest}" if digest else ""


def engine_names() -> tuple[str, ...]:
    """Lists the engines that there are facts on, in order."""
    return tuple(sorted(path.stem.replace("_", "-") for path in _FOLDER.glob("*.toml")))


@cache
def facts_on(engine: str) -> EngineFacts:
    """Reads the facts on an engine. Raises UsageError for one that there are no facts on."""
    names = engine_names()
    if engine not in names:
        near = did_you_mean(engine, names, f"engines: {', '.join(names)}")
        raise UsageError(f"no such engine: {engine!r}", near)
    found = tomllib.loads((_FOLDER / f"{engine.replace('-', '_')}.toml").read_text(encoding="utf-8"))
    fields = ("engine", "title", "package", "versions", "read_at", "logits", "heads", "scores")
    return EngineFacts(
        **{name: found[name] for name in fields},
        dtype=found["dtype"]["rule"],
        float32=found["dtype"].get("float32", ""),
        float32_not=tuple(found["dtype"].get("float32_not", ())),
        not_looked_at=tuple(found["not_looked_at"]),
        notes=found.get("notes", ()),
        unread=tuple(found.get("unread", ())),
    )


_OTHER_NAMES = {
    "tei": "text-embeddings-inference", "llamacpp": "llama-cpp", "llama.cpp": "llama-cpp", "llama": "llama-cpp",
    "st": "sentence-transformers", "crossencoder": "sentence-transformers", "sbert": "sentence-transformers",
    "onnx": "onnx-runtime", "onnxruntime": "onnx-runtime", "ort": "onnx-runtime", "pipeline": "transformers-pipeline",
    "transformers": "transformers-pipeline", "transformersjs": "transformers-js", "transformers.js": "transformers-js",
    "mlx": "mlx-embeddings", "ct2": "ctranslate2", "infinity-emb": "infinity",
}  # fmt: skip
"""What people call the engines."""


def named_engine(text: str) -> tuple[str, str]:
    """Splits what a user named, `NAME` or `NAME@VERSION`, into engine and version; "" without a version."""
    name, _, version = text.partition("@")
    plain = name.strip().lower().replace("_", "-")
    return _OTHER_NAMES.get(plain, plain), version


def read_engine(text: str) -> str:
    """Gives a named engine in the spelling of `engine_names`. Raises UsageError for one that there are no facts on."""
    name, version = named_engine(text)
    facts_on(name)
    return "@".join(filter(None, (name, version)))


def first_that_fits(rows: Sequence[Mapping[str, Any]], served: Served) -> tuple[Mapping[str, Any] | None, str]:
    """Finds the row that a checkpoint falls under; None with the reason where there is none.

    A condition on something unknown, or on a value of an unexpected type, ends the search: no later row is for the
    checkpoints that an earlier one may take.
    """
    for row in rows:
        if not any(fnmatchcase(served.architecture, pattern) for pattern in row.get("architectures", ("*",))):
            continue
        answers = {name: _condition_holds(name, condition, served) for name, condition in row.get("when", {}).items()}
        if all(answers.values()):
            return row, ""
        if False not in answers.values():
            what = next(name for name, answer in answers.items() if answer is None)
            return None, _NOT_KNOWN.get(what, f"{what} in config.json has a value that the facts don't cover")
    return None, f"the facts don't cover {served.architecture or 'a checkpoint whose config.json names no class'}"


_NOT_KNOWN = {
    _FILES: "the files of sentence-transformers beside the weights could not be read",
    _COUNT: "the number of labels is not known",
    _TOKENIZER: "the class of the tokenizer is not known",
}


def _condition_holds(name: str, condition: Mapping[str, Any], served: Served) -> bool | None:
    """True if a condition of a row holds; None where that is not known."""
    if name == _FILES:
        return None if served.files is None else served.files.issuperset(condition["has"])
    if (name == _COUNT and served.num_labels is None) or (name == _TOKENIZER and served.tokenizer is None):
        return None
    own: dict[str, Any] = {
        _COUNT: served.num_labels, _SCORE_MODULE: served.score_module or None, CHAIN: served.is_chain or None,
        _MODULES: served.modules, _LIBRARY: served.library, _POOLING: served.pooling, _TOKENIZER: served.tokenizer,
    }  # fmt: skip
    found = own[name] if name in own else _field_at(served.config, name)
    if found is _UNREADABLE:
        return None
    if condition.get("absent"):
        return found is None
    answers = [_meets_condition(found, key, wanted) for key, wanted in condition.items()]
    return False if False in answers else None if None in answers else True


def _meets_condition(found: Any, key: str, wanted: Any) -> bool | None:
    """True if a value meets one part of a condition; a missing one meets none. None for an unexpected type."""
    if found is None:
        return False
    expected = (int, float) if key in ("min", "max") else tuple({type(item) for item in wanted})
    if type(found) not in expected:
        return None
    match key:
        case "is":
            return found in wanted
        case "not":
            return found not in wanted
        case "min":
            return bool(found >= wanted)
        case "max":
            return bool(found <= wanted)
    raise ValueError(f"no such condition: {key}")


def _field_at(config: Mapping[str, Any], path: str) -> Any:
    """Gives a field of the configuration; a dot leads into a field that is an object."""
    found: Any = config
    for name in path.split("."):
        if found is not None and not isinstance(found, Mapping):
            return _UNREADABLE
        found = None if found is None else found.get(name)
    return found
