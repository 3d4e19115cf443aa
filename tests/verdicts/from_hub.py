"""The table on a Hub: every case is a repository of a Hub on loopback, asked by one process that knows no other."""

import json
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests import warm
from tests.hub import Hub, client_settings, serve
from tests.verdicts.cases import Case
from tests.verdicts.surfaces import Judged
from tests.verdicts.truth import truth_of

_CHILD = """
import json, sys, warnings
warnings.filterwarnings("ignore")
from tests.verdicts.surfaces import asked
for line in sys.stdin:
    print(json.dumps(asked(line.strip())), flush=True)
"""


def judged_on_hub(cases: Iterable[Case]) -> list[Judged]:
    """The truth of each case, and what `check` and `scan` say of it as a repository. Adapters are left out."""
    told = [case for case in cases if case.adapter is None]
    hub = Hub({})
    truths = {case.name: _published(case, hub, f"table/case-{at}") for at, case in enumerate(told)}
    with serve(hub), tempfile.TemporaryDirectory() as home:
        settings = client_settings(hub.endpoint, Path(home), HF_HUB_OFFLINE="0")
        names = "".join(f"table/case-{at}\n" for at in range(len(told)))
        ran = subprocess.run(
            [*warm.python(), "-c", _CHILD], cwd=Path(__file__).parents[2], env=settings, input=names,
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    answers = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    return [
        Judged(case.name, truths[case.name], {f"hub {name}": (said[0], said[1]) for name, said in answer.items()})
        for case, answer in zip(told, answers, strict=True)
    ]


def _published(case: Case, hub: Hub, repo: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        place = case.write(Path(folder))
        hub.repos[repo] = {file.name: file.read_bytes() for file in place.iterdir()}
        return truth_of(case, place).why
