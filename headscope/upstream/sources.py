"""The sources of the installed Transformers by their digests, without importing it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

EVERYWHERE = ("", "integrations", "loss", "models/auto", "utils")
"""The folders of Transformers whose modules every model uses; "" is the package itself."""


def folder_of_package(package: str) -> Path | None:
    """Where an installed package is, which is not imported; None where there is none."""
    spec = find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


@cache
def folder_digest(folder: str) -> str:
    """The digest of the Python files in one folder of the installed Transformers; "" where they can't be read."""
    found = hashlib.sha256()
    try:
        for name, text in _sources_in(folder):
            found.update(name.encode() + b"\0" + text + b"\0")
    except OSError:
        return ""
    return found.hexdigest()[:16]


def folder_mentions(folder: str, words: Iterable[bytes]) -> bool:
    """Whether a Python file in one folder of the installed Transformers holds one of some words."""
    return any(word in text for _, text in _sources_in(folder) for word in words)


def _sources_in(folder: str) -> Iterator[tuple[str, bytes]]:
    root = folder_of_package("transformers")
    for path in sorted(root.joinpath(folder).glob("*.py")) if root is not None else ():
        yield path.name, path.read_bytes()


def are_unchanged(folders: Iterable[str], digests: Mapping[str, str]) -> bool:
    """Whether folders of the installed Transformers, and those that every model uses, have these digests."""
    return all(folder_digest(folder) == digests.get(folder) for folder in (*EVERYWHERE, *folders))


@lru_cache(256)
def sources_stamp(families: tuple[str, ...]) -> tuple[int, int]:
    """What tells whether the sources of models of these types have changed without a new version of Transformers: how
    many files they are, and when the last one changed, in nanoseconds.

    They are the files of the families and those that every model uses; all models' where a type has no such folder.
    A family can use the sources of another one, which are not among them. A process looks one time: what it imported
    stays as it was.
    """
    root = folder_of_package("transformers")
    if root is None:
        return 0, 0
    names = [name.replace("-", "_") for name in families]
    own = [f"models/{name}" for name in names if _FAMILY.fullmatch(name) and (root / "models" / name).is_dir()]
    every = [] if len(own) == len(names) else [f"models/{path.name}" for path in _entries(root / "models")]
    stamps = list(_times(root / folder for folder in (*EVERYWHERE, *(every or own))))
    return len(stamps), max(stamps, default=0)


def _times(folders: Iterable[Path]) -> Iterator[int]:
    """When each Python file changed, or its entry. A file may go meanwhile, or be a link to nowhere."""
    for entry in chain.from_iterable(map(_entries, folders)):
        if entry.name.endswith(".py"):
            with suppress(OSError):
                status = entry.stat()
                yield max(status.st_mtime_ns, status.st_ctime_ns)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(folder))
    except OSError:  # not a folder, or one that can't be read
        return []


_FAMILY = re.compile(r"[a-z0-9_]{1,80}", re.ASCII)


_EXTRA_FILES = "extra_files"
"""The field of a configuration's class (since 5.23) that names weight files beside the usual ones."""


def has_extra_files(model_type: str) -> bool:
    """Whether the source of a model type's configuration names such files; nothing is imported for it."""
    folder, name = folder_of_package("transformers"), model_type.replace("-", "_")
    files = (folder / "models" / name).glob("configuration_*.py") if folder and name.isidentifier() else ()
    return any(_EXTRA_FILES in file.read_text(encoding="utf-8", errors="replace") for file in files)


def extra_files_of(model_type: str, class_name: str | None = None) -> tuple[str, ...]:
    """The files of the class that `model_type` stands for, or of a named class: those of the class, which no
    `config.json` changes. Names that lead elsewhere are left out.
    """
    import transformers

    from headscope.upstream.transformers import config_classes

    own = getattr(getattr(transformers, class_name, None), "config_class", None) if class_name else None
    known = config_classes()  # its `get` doesn't import what it gives
    config_class = own or (known[model_type] if model_type in known else None)  # noqa: SIM401
    names = getattr(config_class, _EXTRA_FILES, ())
    return tuple(name for name in names if name and not any(sign in name for sign in "/\\:\0"))
