"""Facts that were traced when this version of headscope was made, and are in the package.

They are true of one version of PyTorch and of Transformers with the very sources that they were traced from. Anything
else is traced.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from headscope.facts.results.environment import package_version
from headscope.upstream.imports import public_version
from headscope.upstream.sources import are_unchanged

PLACE = Path(__file__).parents[2] / "bundled" / "facts.zip"
SOURCES, CLASSES = "sources.json", "classes.json"


def shipped(member: str) -> Any:
    """The JSON of one part of the shipped facts; None where there is none for the installed versions."""
    found = _read_member(SOURCES)
    here = public_version(package_version("torch")), package_version("transformers")
    if found is None or (found["torch"], found["transformers"]) != here:
        return None
    return _read_member(member)


def shipped_class(name: str) -> Any:
    """What is shipped of a class of Transformers in its default configuration; None where it has to be traced."""
    family = (shipped(CLASSES) or {}).get(name)
    entry = None if family is None else shipped(classes_of(family)).get(name)
    return entry if entry is not None and is_current(entry["folders"]) else None


def classes_of(model_type: str) -> str:
    """The part of the shipped facts that holds the classes of a family in their default configuration."""
    return f"classes/{model_type}.json"


def shipped_entries() -> int:
    """How many entries of structures and classes are shipped; 0 where they can't be read."""
    try:
        with ZipFile(PLACE) as whole:
            return sum("/" in name for name in whole.namelist())
    except Exception:  # as in `_read_member`
        return 0


def is_current(folders: Iterable[str]) -> bool:
    """Whether the sources in these folders of Transformers are still those that the shipped facts were traced from."""
    found = _read_member(SOURCES)
    return found is not None and are_unchanged(folders, found["folders"])


@cache
def _read_member(member: str) -> Any:
    try:
        with ZipFile(PLACE) as whole:
            return json.loads(whole.read(member))
    except Exception:  # a file that is missing or damaged: what zipfile, lzma and json raise for it
        return None
