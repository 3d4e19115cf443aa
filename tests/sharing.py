"""Whether what checkpoints of one structure share is the same for each: every class, in many variants.

    python -m tests.sharing [--seed 1] [PART OF A CLASS NAME]

Examines each checkpoint by itself, and once more with everything remembered that was examined before it; both reports
have to be equal, field for field. Prints how many were served from memory, and every difference.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from headers_only import Checkpoint, checkpoint_of, class_names, variants, write

from headscope.api.options import make_request
from headscope.errors import HeadscopeError
from headscope.examination.base.cache import Cache
from headscope.examination.checkpoint.examining import examine
from headscope.examination.checkpoint.findings import with_findings
from headscope.examination.checkpoint.structure import ReportMemory, Structures


def examined(folder: Path, memory: ReportMemory | None) -> Any:
    """The report and what the rules read beside it, or the error, of a folder."""
    request = make_request(str(folder), {})
    try:
        found = examine("inspect", request, None, memory)
    except HeadscopeError as err:
        return type(err).__name__, err.message, err.hint
    return with_findings(found, request), found.built


def differences(alone: Any, shared: Any) -> Iterator[str]:
    """The fields in which two results differ."""
    if alone == shared:
        return
    if not hasattr(alone[0], "weights") or not hasattr(shared[0], "weights"):
        yield f"{alone} != {shared}"
        return
    for one, other in zip(alone, shared, strict=True):
        for field in fields(one):
            if getattr(one, field.name) != getattr(other, field.name):
                yield f"{field.name}: {getattr(one, field.name)} != {getattr(other, field.name)}"


def compare(found: list[Checkpoint], place: Path, memory: ReportMemory) -> Iterator[tuple[str, bool, list[str]]]:
    """Each checkpoint by name: whether its structure was known, and what differs if it is shared."""
    for number, checkpoint in enumerate(found):
        folder = write(checkpoint, place / f"{number}")
        before = len(memory.structures or ())
        shared = examined(folder, memory)
        known = len(memory.structures or ()) == before
        yield checkpoint.name, known, list(differences(examined(folder, None), shared))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("pattern", nargs="?", default="")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", default="0/1")
    given = parser.parse_args()
    at, of = map(int, given.part.split("/"))
    draw = random.Random(given.seed)
    memory = ReportMemory(Cache(None), Structures(100_000))
    tried = known = failed = unbuilt = 0
    start = time.monotonic()
    for model_type, name in class_names()[at::of]:
        if given.pattern not in name:
            continue
        base = checkpoint_of(model_type, name)
        if base is None:
            unbuilt += 1
            continue
        with tempfile.TemporaryDirectory() as place:
            for what, was_known, lines in compare(list(variants(base, draw)), Path(place), memory):
                tried, known, failed = tried + 1, known + was_known, failed + bool(lines)
                for line in lines:
                    print(f"{what}: {line[:600]}", flush=True)
    seconds = time.monotonic() - start
    print(f"{tried} checkpoints, {known} from memory, {failed} differ, {unbuilt} classes not built, {seconds:.0f} s")
    return 1 if failed or not known else 0


if __name__ == "__main__":
    sys.exit(main())
