"""Small parts of two sweeps; `python -m tests.sweeps.sweep` and `python -m tests.sweeps.adapter_sweep` draw more."""

import pytest

from tests.sweeps.sweep import Result, summary, targets, try_one

_STEP, _LEAST_LEGAL, _MOST_UNTRACED = 9, 25, 2


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return [try_one(*target, f"in the tests {at}") for at, target in enumerate(targets()[::_STEP])]


def test_random_configurations_are_traced_and_proven_and_agree_with_the_loader(results: list[Result]) -> None:
    assert not [result for result in results if result.failures], summary(results)


def test_enough_of_the_configurations_are_legal_to_say_so(results: list[Result]) -> None:
    assert sum(result.legal for result in results) >= _LEAST_LEGAL, summary(results)


def test_hardly_any_legal_configuration_is_left_untraced(results: list[Result]) -> None:
    assert sum(bool(result.untraced) for result in results) <= _MOST_UNTRACED, summary(results)


def test_formulas_are_proven_not_withheld_for_nearly_all(results: list[Result]) -> None:
    legal = [result for result in results if result.legal]
    assert sum(bool(result.formula) for result in legal) >= 0.9 * len(legal), summary(results)


def test_what_is_said_of_drawn_adapters_is_what_peft_does() -> None:
    pytest.importorskip("peft")
    from tests.sweeps.adapter_sweep import sweep

    count = 60
    found = [(str(item), lines) for item, lines in sweep(count, seed=1)]
    assert [(item, lines) for item, lines in found if lines and not lines[0].startswith("not determined")] == []
    assert sum(not lines for _, lines in found) >= count * 0.9
