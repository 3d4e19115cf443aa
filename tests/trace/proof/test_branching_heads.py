"""Heads with random branches on sizes, positions and values: nothing false is said, and plain ones keep theirs."""

from __future__ import annotations

import pytest

import headscope
from tests.trace.heads import EXAMPLES
from tests.trace.proof.branching import CONDITIONS, POSITIONS, draw, falsehood

SEEDS = range(280)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_false_is_said_of_a_head_with_a_branch(seed: int) -> None:
    drawn = draw(seed)
    report = headscope.inspect(drawn.module.eval(), example_inputs=EXAMPLES)
    assert falsehood(drawn, report, seed) == ""
    if drawn.kind == "none":
        assert report.head.formula == f"logits = {drawn.formula}"
        assert report.not_determined == ()


def test_the_seeds_draw_enough_of_every_kind() -> None:
    kinds = [draw(seed).kind for seed in SEEDS]
    assert sum(kind != "none" for kind in kinds) >= 200
    assert {*CONDITIONS, *POSITIONS} <= set(kinds)
