"""Compares the shipped facts with traces of another Transformers, and adds which of them hold although it has changed.

`PYTHONPATH=. .matrix/5.23.0/bin/python -m scripts.shipped.vouch_versions [COUNTS] [--all]`, with the interpreter of a
row of the matrix. Where functions that were run for some facts are others there, checkpoints of drawn sizes are
examined by a trace, COUNTS (4) numbers of classes of each structure. If every field is that of the facts, the digest of
what has changed, all together, is kept for this version. One difference, or one trace that can't be made, keeps it out.
With `--all` the other facts are compared too; exits with 1 where a trace gives something else.
"""

import json
import multiprocessing
import os
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
from tests.api.lookup import test_shipped as facts
from tests.api.lookup.test_shipped import TRACED


def main(arguments: list[str]) -> int:
    """Writes the file again, with what holds for the installed version, and counts what that is."""
    version = package_version("transformers")
    with ZipFile(PLACE) as whole:
        parts = {name: json.loads(whole.read(name)) for name in whole.namelist()}
    if version == parts[SOURCES]["transformers"]:
        sys.exit("the facts are of this version: run it with the interpreter of another one")
    os.environ["OMP_NUM_THREADS"] = "1"  # each worker is a core's: more threads hold each other up
    known, wrong = {"structures": 0, "classes": 0}, 0
    kept, refused = set[str](), set[str]()
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        count = next(map(int, filter(str.isdigit, arguments)), 4)
        compare = partial(_compared, most=count, has_all="--all" in arguments)
        for (kind, key), (digest, told) in zip(entries(), pool.map(compare, entries()), strict=True):
            state = "changed" if digest else "compared" if "--all" in arguments else "the same"
            print(f"{key}, {state}: {told[0] if told else 'equal'}"[:150], flush=True)
            known[kind] += not told
            wrong += not digest and any(TRACED not in line for line in told)
            (refused if told else kept).add(digest)
    parts[VOUCHED] = parts.get(VOUCHED, {}) | {version: sorted(kept - refused - {""})}
    every = [kind for kind, _ in entries()]
    counts = (f"{count} of {every.count(kind)} {kind} known" for kind, count in known.items())
    print(version, *counts, f"{wrong} wrong", sep=", ")
    write(parts)
    return int(bool(wrong))


@cache
def entries() -> dict[tuple[str, str], Any]:
    """The facts by their kind, and the name of their class with a number, or alone."""
    found = {
        ("structures", f"{entry['config']['architectures'][1]} {number}"): entry
        for number, entry in enumerate(facts.structures())
    }
    families = shipped.shipped(CLASSES).items()
    return found | {("classes", name): shipped.shipped(classes_of(family))[name] for name, family in families}


def _compared(which: tuple[str, str], most: int, *, has_all: bool) -> tuple[str, list[str]]:
    """The digest of what has changed for an entry, "" for nothing, and where a trace differs from it.

    Where some checkpoints were traced although the facts hold, the others count.
    """
    entry = entries()[which]
    changed = changed_functions(entry["code"])
    digest = changes_digest(entry["code"], changed) if changed else ""
    if not (changed or has_all):
        return "", []
    told = list(_differences(which, entry, most))
    tried = 2 * min(most, sum(1 for _ in facts.counts_of(entry, random.Random()))) if which[0] == "structures" else 1
    return digest, told if len(told) >= tried else [line for line in told if TRACED not in line]


def _differences(which: tuple[str, str], entry: Any, most: int) -> Iterator[str]:
    """Compares as if the functions hadn't changed; a trace that raises is a difference too."""
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
    sys.exit(main(sys.argv[1:]))
