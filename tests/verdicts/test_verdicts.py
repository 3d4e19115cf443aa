"""A sample of the table of verdicts; all of it by `python -m tests.verdicts`."""

from functools import cache
from pathlib import Path

import pytest

from tests.verdicts.cases import Case, all_broken, all_healthy, sampled
from tests.verdicts.from_hub import judged_on_hub
from tests.verdicts.surfaces import UNSEEN, Judged, judged
from tests.verdicts.truth import truth_of

TABLE = (*all_broken(), *all_healthy())


@pytest.mark.parametrize("case", sampled(TABLE, 12), ids=lambda case: case.name)
def test_every_surface_says_what_the_libraries_do(case: Case, tmp_path: Path) -> None:
    assert list(judged(case, tmp_path).wrong()) == []


HUB_PARTS = 6


@cache
def judged_part(part: int) -> list[Judged]:
    pickles = sampled([case for case in TABLE if case.name.endswith("torch")], 40)
    assert pickles
    return judged_on_hub((*sampled(TABLE, 40), *pickles)[part::HUB_PARTS])


@pytest.mark.parametrize("part", range(HUB_PARTS))
def test_a_hub_is_judged_as_folders_are(part: int) -> None:
    assert [(item.case, line) for item in judged_part(part) for line in item.wrong()] == []


@pytest.mark.whole
def test_a_hub_has_healthy_and_broken_ones() -> None:
    assert {bool(item.truth) for part in range(HUB_PARTS) for item in judged_part(part)} == {True, False}


def test_the_table_is_large_and_the_sample_holds_both(tmp_path: Path) -> None:
    assert len(all_broken()) >= 150
    assert len(all_healthy()) >= 300
    truths = {bool(truth_of(case, case.write(tmp_path / str(at))).why) for at, case in enumerate(sampled(TABLE, 60))}
    assert truths == {True, False}


def test_what_a_surface_does_not_look_at_is_a_part_of_the_table() -> None:
    starts = {start for some in UNSEEN.values() for start in some}
    assert all(any(case.name.startswith(start) for case in TABLE) for start in starts)
