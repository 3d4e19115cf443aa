"""The sources of the installed Transformers by their digests, without importing it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

EVERYWHERE = ("", "integrations", "loss", "models/auto", "utils")
"""The folders of Transformers whose modules every model uses; "" is the package itself."""


def folder_of_transformers() -> Path | None:
    """Where the installed Transformers lies; None where there is none."""
    spec = find_spec("transformers")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


@cache
def folder_digest(folder: str) -> str:
    """The digest of the Python files in one folder of the installed Transformers; "" where they can't be read."""
    root = folder_of_transformers()
    found = hashlib.sha256()
    try:
        for path in sorted((root or Path()).joinpath(folder).glob("*.py")) if root is not None else ():
            found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    except OSError:
        return ""
    return found.hexdigest()[:16] if root is not None else ""


def are_unchanged(folders: Iterable[str], digests: Mapping[str, str]) -> bool:
    """Whether folders of the installed Transformers, and those that every model uses, have these digests."""
    return all(folder_digest(folder) == digests.get(folder) for folder in (*EVERYWHERE, *folders))
