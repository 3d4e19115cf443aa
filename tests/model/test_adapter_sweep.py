"""Drawn adapters of every kind, each loaded by PEFT for real; `python -m tests.adapter_sweep` draws more."""

import pytest

pytest.importorskip("peft")

from tests.adapter_sweep import sweep

_COUNT, _SEED = 60, 1


def test_what_is_said_of_drawn_adapters_is_what_peft_does() -> None:
    found = [(str(item), lines) for item, lines in sweep(_COUNT, _SEED)]
    differ = [(item, lines) for item, lines in found if lines and not lines[0].startswith("not determined")]
    assert differ == []
    assert sum(not lines for _, lines in found) >= _COUNT * 0.9
