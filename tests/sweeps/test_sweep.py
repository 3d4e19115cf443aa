"""Small parts of two sweeps; `python -m tests.sweeps.sweep` and `python -m tests.sweeps.adapter_sweep` draw more."""

from functools import cache

import pytest

from tests.sweeps.sweep import Result, summary, targets, try_one

_TRIED, _STEP, _LEAST_LEGAL, _MOST_UNTRACED = 48, 9, 25, 2
_PARTS, _ADAPTERS = 6, 10


@cache
def result_of(at: int) -> Result:
    return try_one(*targets()[at * _STEP], f"in the tests {at}")


@pytest.mark.parametrize("at", range(_TRIED))
def test_a_random_configuration_is_traced_and_proven_and_agrees_with_the_loader(at: int) -> None:
    assert not result_of(at).failures, summary([result_of(at)])


@pytest.mark.whole
def test_most_are_legal_and_hardly_any_is_left_untraced_or_without_a_formula() -> None:
    assert (_TRIED - 1) * _STEP < len(targets()) <= _TRIED * _STEP
    results = [result_of(at) for at in range(_TRIED)]
    legal = [result for result in results if result.legal]
    assert len(legal) >= _LEAST_LEGAL, summary(results)
    assert sum(bool(result.untraced) for result in results) <= _MOST_UNTRACED, summary(results)
    assert sum(bool(result.formula) for result in legal) >= 0.9 * len(legal), summary(results)


@cache
def drawn_adapters(seed: int) -> list[tuple[str, list[str]]]:
    pytest.importorskip("peft")
    from tests.sweeps.adapter_sweep import sweep

    return [(str(item), lines) for item, lines in sweep(_ADAPTERS, seed)]


@pytest.mark.parametrize("seed", range(1, _PARTS + 1))
def test_what_is_said_of_drawn_adapters_is_what_peft_does(seed: int) -> None:
    found = drawn_adapters(seed)
    assert [(item, lines) for item, lines in found if lines and not lines[0].startswith("not determined")] == []


@pytest.mark.whole
def test_hardly_anything_of_drawn_adapters_is_not_determined() -> None:
    known = sum(not lines for seed in range(1, _PARTS + 1) for _, lines in drawn_adapters(seed))
    assert known >= 0.9 * _PARTS * _ADAPTERS
