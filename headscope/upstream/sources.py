"""The sources of the installed Transformers by their digests, without importing it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.util import find_spec
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


def sources_stamp(families: Iterable[str]) -> tuple[int, int]:
    """How many Python files there are in the folders of model types and of every model, and when one last changed.

    The time is that of the entry (ctime) in nanoseconds, which no tool sets. A development install of Transformers
    changes without a new version.
    """
    root = folder_of_package("transformers")
    folders = [*EVERYWHERE, *(f"models/{name.replace('-', '_')}" for name in families)]
    stamps = [
        entry.stat().st_ctime_ns
        for folder in folders
        if root is not None and (root / folder).is_dir()
        for entry in os.scandir(root / folder)
        if entry.name.endswith(".py")
    ]
    return len(stamps), max(stamps, default=0)
