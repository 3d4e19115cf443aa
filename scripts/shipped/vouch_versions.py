"""Adds to the shipped facts which changes of another Transformers change none of them.

`PYTHONPATH=. .matrix/5.23.0/bin/python -m scripts.shipped.vouch_versions [COUNTS]`, with the interpreter of a row of
the matrix. Where functions that were run for some facts are others there, checkpoints of drawn sizes are examined by a
trace, COUNTS (4) numbers of classes of each structure. Where every field is that of the facts, the changed functions
are kept for this version. One difference, or one trace that can't be made, keeps none of the functions it concerns.
"""

import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch
from zipfile import ZipFile

from headscope.core.facts.environment import package_version
from headscope.core.source.memory import shipped_structures
from headscope.core.source.storage import shipped
from headscope.core.source.storage.shipped import CLASSES, PLACE, SOURCES, VOUCHED, changed_functions, classes_of
from scripts.shipped.write_shipped import write


def main(arguments: list[str]) -> None:
    """Writes the file again, with what holds for the installed version."""
    version = package_version("transformers")
    with ZipFile(PLACE) as whole:
        parts = {name: json.loads(whole.read(name)) for name in whole.namelist()}
    if version == parts[SOURCES]["transformers"]:
        sys.exit("the facts are of this version: run it with the interpreter of another one")
    vouched: dict[str, str] = {}
    refused: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        for name, code, compare in _compared(parts, Path(folder), int(arguments[0]) if arguments else 4):
            changed = changed_functions(code)
            if not changed:
                continue
            told = _differences(code, compare) if all(changed.values()) else ["a function is missing"]
            print(f"{name}: {told[0] if told else 'equal'}"[:150], flush=True)
            vouched |= {} if told else changed
            refused |= {*changed} if told else set()
    kept = {name: digest for name, digest in sorted(vouched.items()) if name not in refused}
    parts[VOUCHED] = parts.get(VOUCHED, {}) | {version: kept}
    print(f"{version}: {len(kept)} of {len({*vouched} | refused)} changes of functions change no fact")
    write(parts)


def _compared(
    parts: dict[str, Any], folder: Path, most: int
) -> Iterator[tuple[str, list[Any], Callable[[], Iterator[str]]]]:
    """Yields each structure and class: its name, its functions, and what yields where it differs from a trace."""
    from tests.api.lookup import test_shipped as facts

    for number, entry in enumerate(facts.structures()):
        name = entry["config"]["architectures"][1]
        yield (
            f"{name} {number}",
            entry["code"],
            lambda entry=entry: facts.differences(  # type: ignore[misc]
                entry, folder, random.Random(f"{most} {entry['config']}"), most
            ),
        )
    for name, family in parts[CLASSES].items():
        code = parts[classes_of(family)][name]["code"]
        yield name, code, lambda name=name: facts.differences_of_class(name)  # type: ignore[misc]


def _differences(code: list[Any], compare: Callable[[], Iterator[str]]) -> list[str]:
    """Compares as if the functions hadn't changed; a trace that raises is a difference too."""
    real = shipped.are_same_sources

    def pretends(asked: Any) -> bool:
        return bool(asked == code or real(asked))

    with (
        patch.object(shipped, "are_same_sources", pretends),
        patch.object(shipped_structures, "are_same_sources", pretends),
    ):
        try:
            return list(compare())
        except Exception as err:  # whatever a class raises that this version can't build
            return [f"{type(err).__name__}: {err}"]


if __name__ == "__main__":
    main(sys.argv[1:])
