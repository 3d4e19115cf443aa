"""`python -m tests.verdicts`: the whole table, what each surface says of each case, and where one is wrong.

With `--hub`, the cases are repositories of a Hub on loopback, not folders.
"""

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.verdicts.cases import Case, all_broken, all_healthy
from tests.verdicts.from_hub import judged_on_hub
from tests.verdicts.runs import chosen
from tests.verdicts.surfaces import Judged, judged


def main() -> int:
    """Prints each disagreement and a summary; fails if there is any."""
    given, cases = chosen(__doc__, all_broken(), all_healthy(), "--hub")
    counts, start = Counter[str](), time.perf_counter()
    for found in judged_on_hub(cases) if given.hub else _judged_here(cases):
        counts.update(_counted(found))
        for line in found.wrong():
            print(f"{found.case}: {line}", flush=True)
    print(f"{len(cases)} cases in {time.perf_counter() - start:.0f} s; {dict(sorted(counts.items()))}")
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
