"""Facts that were traced when this version of headscope was made, and are in the package.

They are true where the functions of Transformers that were run for them are the same, in whichever version. Anything
else is traced.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from headscope.core.facts.environment import package_version
from headscope.core.upstream.sources import Unvouched, code_digest, file_digest, source_file

PLACE = Path(__file__).parent / "bundled" / "facts.zip"
SOURCES, CLASSES, ATLAS = "sources.json", "classes.json", "atlas.json"
VOUCHED = "vouched.json"
"""For versions of Transformers, digests of what had changed for facts that every trace gave there nevertheless."""


@cache
def shipped(member: str) -> Any:
    """Reads the JSON of one part of the shipped facts; None if there is none, or the file is missing or damaged."""
    try:
        with ZipFile(PLACE) as whole:
            return json.loads(whole.read(member))
    except Exception:  # what zipfile, lzma and json raise
        return None


def shipped_atlas() -> Any:
    """Reads the atlas; None if another version of Transformers is installed, which may have other classes."""
    found = shipped(SOURCES)
    is_other = found is None or package_version("transformers") not in ("", found["transformers"])
    return None if is_other else shipped(ATLAS)


def shipped_class(name: str) -> Any:
    """Reads the facts of a Transformers class in its default configuration; None if the class has to be traced."""
    family = (shipped(CLASSES) or {}).get(name)
    entry = None if family is None else shipped(classes_of(family)).get(name)
    return entry if entry is not None and are_same_sources(entry["code"]) else None


def classes_of(model_type: str) -> str:
    """Names the part of the shipped facts with the classes of a family in their default configuration."""
    return f"classes/{model_type}.json"


def shipped_entries() -> int:
    """Counts the shipped entries of structures and classes; 0 if they can't be read."""
    try:
        with ZipFile(PLACE) as whole:
            return sum("/" in name for name in whole.namelist())
    except Exception:  # as in `shipped`
        return 0


def are_same_sources(code: Sequence[Any]) -> bool:
    """True if the functions that were run for some facts are the same in the installed Transformers.

    `code` names a file, the functions in it, and their digest. Where Transformers is not installed, the facts are those
    of the version that they were made with.
    """
    here, made = package_version("transformers"), (shipped(SOURCES) or {}).get("transformers", "")
    if not here:
        return True
    if here.partition(".")[0] != made.partition(".")[0]:  # what every model uses may be another
        return False
    changed = changed_functions(code)
    # Of this version alone: what a changed function calls instead has no digest here.
    return not changed or changes_digest(code, changed) in (shipped(VOUCHED) or {}).get(here, ())


def changed_functions(code: Sequence[Any]) -> dict[str, str]:
    """Gives the digests of those functions that are others in the installed Transformers; "" where one is missing.

    The keys are file and shipped digest.
    """
    # The digest of a whole file is cheaper than that of its functions, and mostly they haven't changed.
    return {
        f"{path} {digest}": found
        for path, names, digest in code
        if not is_same_file(path) and (found := code_digest(path, tuple(names))) != digest
    }


def changes_digest(code: Sequence[Any], changed: dict[str, str]) -> str:
    """Computes the digest of the functions of some facts and of all that has changed in them.

    It holds for these facts alone: nobody has traced a part of the changes, or other facts with them.
    """
    return hashlib.sha256(json.dumps([code, sorted(changed.items())]).encode()).hexdigest()[:12]


def is_same_file(path: str) -> bool:
    """True if a file of the installed Transformers is, byte for byte, the one that facts were learned from."""
    known: dict[str, str] = (shipped(SOURCES) or {}).get("files", {})
    return file_digest(path) == known.get(path)


def line_of(path: str, function: str, node: int, line: int) -> int:
    """Finds the line of a function's node in the installed Transformers; `line` is where it was. Raises Unvouched."""
    if not package_version("transformers") or is_same_file(path):
        return line
    file = source_file(path)
    if file is None:
        raise Unvouched(path)
    return file.line_of(function, node)
