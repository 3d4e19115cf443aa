"""The Hub's limits, obeyed by several processes that share a budget: against a Hub that counts and refuses."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hub import Hub, Quota, client_settings, serve
from huggingface_hub import constants
from safetensors.torch import save

from headscope.core.checkpoints.hub.requests import Deadline
from headscope.errors import NetworkError, UsageError
from headscope.slices.fleet.hub.budget import SharedBudget, limit_of
from tests import warm

WORKER = """
import json, sys, time
from pathlib import Path
from headscope.core.checkpoints.reading import read_manifest
from headscope.slices.fleet.hub.budget import SharedBudget
from headscope.errors import HeadscopeError
from headscope.core.facts.stored.location import HubOptions, Location

file, *references = sys.argv[1:]
budget = SharedBudget(Path(file)) if file else None
found = []
for reference in references:
    begun = time.monotonic()
    try:
        manifest = read_manifest(Location(reference, hub=HubOptions(budget=budget, timeout=5)))
        found.append([reference, len(manifest.tensors), time.monotonic() - begun])
    except HeadscopeError as err:
        found.append([reference, err.message, time.monotonic() - begun])
print(json.dumps(found))
"""
WORKERS, EACH = 4, 6
FILE = f"{constants.ENDPOINT}/someone/model/resolve/main/config.json"
LISTING = f"{constants.ENDPOINT}/api/models/someone/model"


@pytest.fixture
def hub() -> Iterator[Hub]:
    files = {"config.json": b'{"model_type": "bert"}', "model.safetensors": save({"x": torch.zeros(2)})}
    with serve(Hub({f"someone/model-{number}": files for number in range(WORKERS * EACH)})) as running:
        yield running


def work(hub: Hub, home: Path, budget: str) -> list[list[Any]]:
    """What several workers, each a process, read of one Hub at the same time: reference, tensors or error, seconds."""
    names = list(hub.repos)

    def run(number: int) -> list[list[Any]]:
        ran = subprocess.run(
            [*warm.python(), "-c", WORKER, budget, *names[number::WORKERS]],
            env=client_settings(hub.endpoint, home), capture_output=True, text=True, check=False, timeout=200,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        found: list[list[Any]] = json.loads(ran.stdout)
        return found

    with ThreadPoolExecutor(WORKERS) as pool:
        return [item for found in pool.map(run, range(WORKERS)) for item in found]


def test_workers_never_ask_more_than_a_window_allows(hub: Hub, tmp_path: Path) -> None:
    """72 requests where 30 are allowed in 4 seconds; the windows begin when the server likes."""
    hub.quota = quota = Quota(30, seconds=4)
    found = work(hub, tmp_path, str(tmp_path / "budget"))
    assert [item for item in found if item[1] != 1] == []
    assert len(found) == WORKERS * EACH
    assert quota.refused == 0
    assert max(quota.taken) <= 30
    assert sum(quota.taken) == 3 * WORKERS * EACH


def test_without_a_shared_budget_the_same_workers_are_refused(hub: Hub, tmp_path: Path) -> None:
    """What the budget is for: each worker alone learns of the limit by running into it."""
    hub.quota = quota = Quota(30, seconds=4)
    work(hub, tmp_path, "")
    assert quota.refused > 0


def test_after_a_refusal_all_wait_and_one_goes_ahead(hub: Hub, tmp_path: Path) -> None:
    """The Hub refuses for 3 seconds whatever it is asked, with Retry-After and without naming a limit."""
    refused: list[float] = []
    served: list[float] = []

    def answer(where: str, method: str, path: str) -> tuple[int, dict[str, str], bytes] | None:
        if where != "hub" or "/resolve/" not in path:
            return None
        now = time.monotonic()
        if len(served) < 8 or (refused and now - refused[0] > 3):
            served.append(now)
            return None
        refused.append(now)
        return 429, {"Retry-After": "3"}, b""

    hub.answer = answer
    found = work(hub, tmp_path, str(tmp_path / "budget"))
    assert [item for item in found if item[1] != 1] == []
    # Those that were on their way when the first was refused: at most two requests of each worker at once.
    assert 0 < len(refused) <= 2 * WORKERS, len(refused)
    assert refused[-1] - refused[0] < 1
    after = sorted(moment for moment in served if moment > refused[0])
    assert after[0] - refused[0] > 3


class Clock:
    """A deadline that keeps the pauses."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if seconds > 1:
            raise NetworkError("too long", "")


Asked = tuple[SharedBudget, Clock]


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    """A budget of which a request was taken that isn't answered yet."""
    budget, clock = SharedBudget(tmp_path / "budget"), Clock()
    budget.take(FILE, clock)
    return budget, clock


def limits(left: int, seconds: int) -> dict[str, str]:
    return {
        "RateLimit": f'"resolvers";r={left};t={seconds}',
        "RateLimit-Policy": '"fixed window";"resolvers";q=9;w=300',
    }


def test_what_is_left_is_counted_down_and_then_waited_for(asked: Asked, tmp_path: Path) -> None:
    budget, clock = asked
    budget.learn(FILE, 200, limits(2, 100))
    again = SharedBudget(tmp_path / "budget")
    again.take(FILE, clock)
    again.take(FILE, clock)
    assert clock.pauses == []
    with pytest.raises(NetworkError):
        again.take(FILE, clock)
    assert 100 < clock.pauses[-1] < 103
    again.take(LISTING, clock)


def test_answers_that_overtake_each_other_give_nothing_back(asked: Asked) -> None:
    budget, clock = asked
    budget.learn(FILE, 200, limits(3, 100))
    budget.take(FILE, clock)
    budget.take(FILE, clock)
    budget.learn(FILE, 200, limits(1, 100))
    budget.learn(FILE, 200, limits(2, 100))
    with pytest.raises(NetworkError):  # one more is allowed at most
        for _ in range(2):
            budget.take(FILE, clock)


def test_others_that_use_the_same_token_are_believed(asked: Asked) -> None:
    budget, clock = asked
    budget.learn(FILE, 200, limits(1000, 100))
    budget.take(FILE, clock)
    budget.learn(FILE, 200, limits(0, 99))
    with pytest.raises(NetworkError):
        budget.take(FILE, clock)


def test_a_hub_without_limits_is_not_waited_for(asked: Asked) -> None:
    budget, clock = asked
    for _ in range(3):
        budget.learn(FILE, 200, {})
        budget.take(FILE, clock)
    for _ in range(20):
        budget.take(FILE, clock)
    assert clock.pauses == []


def test_an_answer_that_never_comes_holds_nobody_for_long(asked: Asked) -> None:
    begun = time.monotonic()
    asked[0].take(FILE, Clock())
    assert 2 < time.monotonic() - begun < 6


@pytest.mark.parametrize(
    "headers", [{"Retry-After": "9" * 400}, {"Retry-After": "\u0663"}, {"RateLimit": '"x";r=9;t='}]
)
def test_a_limit_that_makes_no_sense_is_bounded(headers: dict[str, str], asked: Asked) -> None:
    budget, clock = asked
    budget.learn(FILE, 429, headers)
    with pytest.raises(NetworkError):
        budget.take(FILE, clock)
    assert clock.pauses[-1] < 610


def test_a_limit_of_thousands_of_digits_says_nothing(asked: Asked) -> None:
    budget, clock = asked
    budget.learn(FILE, 200, {"RateLimit": f'"resolvers";r={"9" * 5_000};t=1'})
    budget.take(FILE, clock)
    assert clock.pauses == []


@pytest.mark.parametrize(("status", "said"), [(200, limits(0, 300)), (429, {"Retry-After": "300"})])
def test_a_clock_that_is_set_back_makes_nobody_wait(
    status: int, said: dict[str, str], asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    (budget, clock), now = asked, time.time()
    budget.learn(FILE, status, said)
    monkeypatch.setattr(time, "time", lambda: now - 86_400)
    budget.take(FILE, clock)
    assert clock.pauses == []


def test_a_file_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="open database"):
        SharedBudget(tmp_path / "nowhere" / "budget").take(FILE, Clock())
    (tmp_path / "text").write_text("this is not a budget" * 100)
    with pytest.raises(UsageError, match="not a database"):
        SharedBudget(tmp_path / "text").take(FILE, Clock())


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        (FILE, "resolvers"),
        (LISTING, "api"),
        (f"{constants.ENDPOINT}/api/resolve-cache/models/someone/model/0/config.json", None),
        ("https://store.test/resolve/blob", None),
        (FILE.replace("https:", "http:"), None),
    ],
)
def test_requests_fall_under_the_counts_of_the_hub(url: str, kind: str | None) -> None:
    assert limit_of(url) == kind


def test_time_that_is_waited_for_others_is_not_that_of_the_server() -> None:
    patient, other = Deadline(10, patient=True), Deadline(10)
    patient.pause(300)
    assert patient.left() > 300
    with pytest.raises(NetworkError, match=" 300 s"):
        other.pause(300)


HOLDER = """
import sys, time
from pathlib import Path
from headscope.slices.fleet.hub.budget import SharedBudget
budget = SharedBudget(Path(sys.argv[1]))
with budget._locked_windows():
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_worker_that_is_killed_holds_the_budget_no_longer(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path / "budget")], stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    holder.kill()
    holder.wait()
    begun = time.monotonic()
    SharedBudget(tmp_path / "budget").take(FILE, Clock())
    assert time.monotonic() - begun < 5
