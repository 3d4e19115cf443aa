"""`python -m tests.verdicts`: the whole table, what each surface says of each case, and where one is wrong."""

import argparse
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import transformers

from tests.verdicts.cases import Case, all_broken, all_healthy, sampled
from tests.verdicts.from_hub import judged_on_hub
from tests.verdicts.runs import run_here
from tests.verdicts.surfaces import Judged, judged


def main() -> int:
    """Prints each disagreement and a summary; fails if there is any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="one of every so many cases")
    parser.add_argument("--only", default="", help="a part of the names")
    parser.add_argument("--kind", choices=("broken", "healthy", "all"), default="all")
    parser.add_argument("--hub", action="store_true", help="as repositories of a Hub on loopback, not as folders")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    run_here()
    cases: tuple[Case, ...] = ()
    cases += all_broken() if given.kind != "healthy" else ()
    cases += all_healthy() if given.kind != "broken" else ()
    chosen = [case for case in sampled(cases, given.every) if given.only in case.name]
    counts, start = Counter[str](), time.perf_counter()
    for found in judged_on_hub(chosen) if given.hub else _judged_here(chosen):
        counts.update(_counted(found))
        for line in found.wrong():
            print(f"{found.case}: {line}", flush=True)
    print(f"{len(chosen)} cases in {time.perf_counter() - start:.0f} s; {dict(sorted(counts.items()))}")
    return int(any("wrong" in name for name in counts))


def _judged_here(cases: list[Case]) -> Iterator[Judged]:
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            yield judged(case, Path(folder))


def _counted(found: Judged) -> list[str]:
    kind = "broken" if found.truth else "healthy"
    return [kind, *(f"{kind}: wrong {surface}" for surface in found.surfaces if found.is_wrong(surface))]


if __name__ == "__main__":
    sys.exit(main())
