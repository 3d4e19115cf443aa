"""Adds to the shipped facts which of them hold for another Transformers, although functions are others there.

`PYTHONPATH=. .matrix/5.23.0/bin/python -m scripts.shipped.vouch_versions [COUNTS]`, with the interpreter of a row of
the matrix. Where functions that were run for some facts are others there, checkpoints of drawn sizes are examined by a
trace, COUNTS (4) numbers of classes of each structure. Where every field is that of the facts, the digest of what has
changed, all together, is kept for this version. One difference, or one trace that can't be made, keeps it out.
"""

import json
import multiprocessing
import random
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch
from zipfile import ZipFile

from headscope.core.facts.environment import package_version
from headscope.core.source.memory import shipped_structures
from headscope.core.source.storage import shipped
from headscope.core.source.storage.shipped import (
    CLASSES,
    PLACE,
    SOURCES,
    VOUCHED,
    changed_functions,
    changes_digest,
    classes_of,
)
from scripts.shipped.write_shipped import write


def main(arguments: list[str]) -> None:
    """Writes the file again, with what holds for the installed version, and counts what that is."""
    version = package_version("transformers")
    with ZipFile(PLACE) as whole:
        parts = {name: json.loads(whole.read(name)) for name in whole.namelist()}
    if version == parts[SOURCES]["transformers"]:
        sys.exit("the facts are of this version: run it with the interpreter of another one")
    known = {"structures": 0, "classes": 0}
    changes: dict[str, list[tuple[str, bool]]] = {}  # what is named there, and whether it is equal
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        compare = partial(_compared, most=int(arguments[0]) if arguments else 4)
        for (kind, key), (digest, told) in zip(entries(), pool.map(compare, entries()), strict=True):
            if digest:
                print(f"{key}: {told[0] if told else 'equal'}"[:150], flush=True)
                changes.setdefault(digest, []).append((kind, not told))
            else:
                known[kind] += 1
    kept = sorted(digest for digest, found in changes.items() if all(is_equal for _, is_equal in found))
    for kind, _ in (item for digest in kept for item in changes[digest]):
        known[kind] += 1
    parts[VOUCHED] = parts.get(VOUCHED, {}) | {version: kept}
    every = [kind for kind, _ in entries()]
    print(version, *(f"{count} of {every.count(kind)} {kind} are known" for kind, count in known.items()), sep=", ")
    write(parts)


@cache
def entries() -> dict[tuple[str, str], Any]:
    """The facts by their kind, and the name of their class with a number, or alone."""
    from tests.api.lookup.test_shipped import structures

    found = {
        ("structures", f"{entry['config']['architectures'][1]} {number}"): entry
        for number, entry in enumerate(structures())
    }
    families = shipped.shipped(CLASSES).items()
    return found | {("classes", name): shipped.shipped(classes_of(family))[name] for name, family in families}


def _compared(which: tuple[str, str], most: int) -> tuple[str, list[str]]:
    """The digest of what has changed for an entry, "" for nothing, and where a trace differs from it."""
    entry = entries()[which]
    changed = changed_functions(entry["code"])
    digest = changes_digest(entry["code"], changed) if changed else ""
    return digest, list(_differences(which, entry, most)) if changed else []


def _differences(which: tuple[str, str], entry: Any, most: int) -> Iterator[str]:
    """Compares as if the functions hadn't changed; a trace that raises is a difference too."""
    from tests.api.lookup import test_shipped as facts

    real = shipped.are_same_sources

    def pretends(asked: Any) -> bool:
        return bool(asked == entry["code"] or real(asked))

    with (
        patch.object(shipped, "are_same_sources", pretends),
        patch.object(shipped_structures, "are_same_sources", pretends),
        tempfile.TemporaryDirectory() as folder,
    ):
        try:
            if which[0] == "classes":
                yield from facts.differences_of_class(which[1])
            else:
                yield from facts.differences(entry, Path(folder), random.Random(f"{most} {entry['config']}"), most)
        except Exception as err:  # whatever a class raises that this version can't build
            yield f"{type(err).__name__}: {err}"


if __name__ == "__main__":
    main(sys.argv[1:])
