"""Vectors of an earlier run: used if everything is the same, computed again with the reason otherwise."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from labeled.trained import save, texts, untrained, write_csv
from probing.made import add, probed

from headscope.errors import HeadscopeError, UsageError
from headscope.slices.probe.facts.result import ProbeResult
from headscope.slices.probe.hidden import features
from tests.edits import edit_json

NAMES = ("negative", "positive")
ROWS = [(text, NAMES[place % 2]) for place, (text, _) in enumerate(texts(3, 30))]


class Place:
    """A checkpoint, labeled rows and a folder of vectors that may be changed."""

    def __init__(self, folder: Path) -> None:
        self.model, self.rows, self.kept = folder / "model", folder / "rows.csv", folder / "kept"

    def run(self, **options: Any) -> ProbeResult:
        return probed(self.model, self.rows, **({"folds": 2, "limit": 20, "features": self.kept} | options))


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, ProbeResult]:
    place = Place(tmp_path_factory.mktemp("first"))
    save(untrained(NAMES), place.model, NAMES)
    write_csv(place.rows, ROWS)
    return place, place.run()


@pytest.fixture
def place(first: tuple[Place, ProbeResult], tmp_path: Path) -> Place:
    """A copy of the first run's files."""
    copied = Place(tmp_path)
    shutil.copytree(first[0].model, copied.model)
    shutil.copytree(first[0].kept, copied.kept)
    shutil.copy(first[0].rows, copied.rows)
    return copied


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of texts of each pass of the model."""
    found: list[int] = []
    whole = features.extract_features

    def counted(reader: Any, given: Any, *rest: Any, **options: Any) -> Any:
        found.append(len(given))
        return whole(reader, given, *rest, **options)

    monkeypatch.setattr("headscope.slices.probe.vectors.extract_features", counted)
    return found


def test_the_same_run_again_uses_the_vectors(first: tuple[Place, ProbeResult], place: Place, passes: list[int]) -> None:
    again = place.run()
    assert passes == []
    assert np.load(place.kept / "masked_mean-1.npy").shape == (20, 32)
    assert (again.numbers.reused, first[1].numbers.reused) == (True, False)
    assert again.candidates == first[1].candidates
    assert again.numbers.vectors == first[1].numbers.vectors
    assert again.numbers.layers == first[1].numbers.layers
    assert again.baselines == first[1].baselines
    assert place.run(folds=3).numbers.reused  # type: ignore[union-attr]  # folds change the scores, not the vectors


def other_text(place: Place) -> None:
    write_csv(place.rows, [(f"{text} more", label) for text, label in ROWS])


def another_number(place: Place) -> None:
    stored = np.load(place.kept / "masked_mean-1.npy", mmap_mode="r+")
    stored[0, 0] += 1
    stored.flush()


FEATURES = "features.json"
CHANGES: dict[str, tuple[dict[str, Any] | Callable[[Place], object], str]] = {
    "weights": (lambda place: add(place.model, "bert.pooler.dense.bias", 1), "checkpoint changed"),
    "data": (other_text, "texts changed"),
    "limit": ({"limit": 16}, "texts changed"),
    "seed": ({"seed": 1}, "texts, seed changed"),
    "truncation": (
        lambda place: edit_json(place.model / "tokenizer_config.json", {"model_max_length": 3}), "checkpoint changed",
    ),
    "dtype": ({"dtype": "bfloat16"}, "dtype changed"),
    "batch size": ({"batch_size": 5}, "batch size changed"),
    "killed": (lambda place: (place.kept / FEATURES).unlink(), "the run that wrote them did not finish"),
    "number": (another_number, "masked_mean-1.npy is not the file that was written"),
    "damaged": (lambda place: (place.kept / FEATURES).write_text('{"origin": ['), "features.json is damaged"),
    "foreign": (
        lambda place: edit_json(place.kept / FEATURES, {"parts": [["../../model", 1]]}), "features.json is damaged",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_whatever_changed_the_vectors_are_computed_again(name: str, place: Place, passes: list[int]) -> None:
    change, reason = CHANGES[name]
    if callable(change):
        change(place)
    found = place.run(**({} if callable(change) else change))
    assert len(passes) == 1
    assert any(f" {place.kept} " in note and note.endswith(f": {reason}") for note in found.notes)
    assert not found.numbers.reused


def test_a_pass_that_fails_leaves_nothing_to_use(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*given: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("headscope.slices.probe.hidden.features._run_all", stop)
    with pytest.raises(KeyboardInterrupt):
        place.run(batch_size=7)
    assert not (place.kept / "features.json").exists()


def test_a_folder_that_another_run_uses_is_refused(place: Place) -> None:
    fcntl = pytest.importorskip("fcntl", reason="flock is POSIX")
    descriptor = os.open(place.kept, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        with pytest.raises(UsageError, match="another run"):
            place.run()
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("name", ["mine.npy", "notes.txt"])
def test_files_that_headscope_did_not_write_are_left_alone(name: str, place: Place) -> None:
    (place.kept / name).write_bytes(b"mine")
    for options in ({}, {"seed": 1}):
        with pytest.raises(HeadscopeError, match=f": {re.escape(name)}"):
            place.run(**options)
    assert (place.kept / name).read_bytes() == b"mine"
    assert (place.kept / "head.npy").is_file()
