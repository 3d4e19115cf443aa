"""The page "Look at a checkpoint" says what the command says: the same structure, and every field of its report."""

import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import headscope
from headscope.core.facts.stored.location import Location
from headscope.core.source.memory.shipped_structures import shipped_examination
from headscope.core.source.reading.reading import read_checkpoint
from headscope.core.source.request import Request
from tests import warm
from tests.api.lookup.test_shipped import checkpoint_of
from tests.docs.look_cases import IS_WHOLE, SITE, Case, cases, looked_at
from tests.docs.look_page import NodeScript, differences, said_of
from tests.headers_only import Checkpoint, write

BERT = "BertForSequenceClassification"
ROOT = Path(__file__).resolve().parent.parent.parent
HONEST = {
    "repeated label": "several classes",
    "placeholders": "in another order",
    "structure": "This page ",
    "remote code": "its own code",
}
"""Why the page may know less than the command, and a word of its sentence."""


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the site's build makes for the page."""
    folder = tmp_path_factory.mktemp("look")
    command = [*warm.python(environment=SITE), "-m", "scripts.site.site_look", str(folder)]
    ran = subprocess.run(command, env=SITE, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return folder


@pytest.fixture
def page(store: Path) -> Iterator[NodeScript]:
    """The page's own modules, which answer for each folder."""
    found = NodeScript("look_rules.mjs", str(ROOT / "docs" / "js" / "look"), str(store))
    yield found
    found.close()


def is_honest(case: Case, told: dict[str, Any]) -> bool:
    """Whether the page says what it doesn't know of a checkpoint; of a shipped structure, only special tokens."""
    words = "these special tokens" if case.what == "exact" else HONEST.get(told["unknown"], "?")
    return words in told["sentence"]


def knows(case: Case, folder: Path) -> bool:
    """Whether the command finds the structure of a checkpoint among the shipped ones."""
    request = Request(Location(str(folder)), num_labels=case.num_labels)
    return shipped_examination(request, read_checkpoint(request, None), None) is not None


PARTS = 8
counts: Counter[str] = Counter()
"""What the page and the command know of the checkpoints that the parts tried."""
CASES = cache(lambda: list(cases(random.Random(0))))


@pytest.mark.parametrize("part", range(PARTS))
def test_the_page_says_what_the_command_says_of_many_checkpoints(
    part: int, page: NodeScript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or that it doesn't know: then either the command doesn't either, or the reason is one of few."""
    monkeypatch.delenv("HEADSCOPE_NO_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    wrong: list[str] = []
    for case in CASES()[part::PARTS]:
        folder = write(case.checkpoint, tmp_path / "model")
        told = page.answer(folder=str(folder), wanted=case.num_labels)
        what = f"{case.what} {case.checkpoint.config.get('architectures')} {case.num_labels}"
        is_known = knows(case, folder)
        counts[f"{case.what}: {told.get('unknown', 'known')}{', known to the command' if is_known else ''}"] += 1
        if "unknown" not in told and not is_known:
            wrong.append(f"{what}: the page knows it and the command doesn't")
        elif "unknown" not in told:
            asked = {"num_labels": case.num_labels} if case.num_labels else {}
            typed = f"FOLDER --num-labels {case.num_labels}" if asked else "FOLDER"
            report = headscope.inspect(folder, cache=True, **asked)
            wrong += [f"{what}: {name}" for name in differences(told, said_of(report, "FOLDER", typed))]
        elif is_known and not is_honest(case, told):
            wrong.append(f"{what}: the command knows it and the page says {told}")
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.whole
def test_the_many_checkpoints_are_known_and_unknown() -> None:
    print(counts)
    least = 2_000 if IS_WHOLE else 200
    assert sum(counts.values()) >= least
    assert sum(number for name, number in counts.items() if "known to the command" not in name) >= least / 4


def changed(checkpoint: Checkpoint, *, without: str = "", shape: tuple[int, ...] = (), **config: Any) -> Checkpoint:
    """A checkpoint with other fields, without a tensor, or with a classifier of another shape."""
    tensors = {key: value for key, value in checkpoint.tensors.items() if key != without}
    if shape:
        tensors["classifier.weight"] = (tensors["classifier.weight"][0], shape)
    return Checkpoint("", {**checkpoint.config, **config}, tensors)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"hidden_act": "tanh"}, 'hidden_act = "tanh"'),
        ({"is_decoder": True}, "is_decoder = true"),
        ({"quantization_config": {}}, '"quantization_config" in config.json'),
        ({"architectures": ["BertForMine"]}, "the class that config.json names"),
        ({"without": "classifier.bias"}, 'without a tensor "classifier.bias"'),
        ({"shape": (3, 5)}, '"classifier.weight" as 3x'),
    ],
)
def test_the_page_names_what_it_does_not_know(
    page: NodeScript, tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    entry = next(entry for entry in looked_at() if entry["config"]["architectures"][1] == [BERT])
    plain = checkpoint_of(entry | {"dtypes": ["float32"]}, 3, random.Random(2))
    told = page.answer(folder=str(write(changed(plain, **change), tmp_path / "model")), wanted=None)
    assert told["unknown"] == "structure"
    assert sentence in told["sentence"]
