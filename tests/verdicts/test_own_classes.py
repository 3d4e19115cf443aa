"""A sample of the classes that Transformers doesn't have; all of them by `python -m tests.verdicts.own_classes`."""

from pathlib import Path

import pytest

from tests.verdicts.own_classes import CLASSES, judge_own

SAMPLE = (
    "BertLSTMForSequenceClassification",
    "BertMultiSampleDropoutForSequenceClassification",
    "BertCRFForTokenClassification",
    "GPT2NormalizedForSequenceClassification",
    "ViTLSTMForImageClassification",
)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_class_of_ones_own_is_never_green_without_its_code_and_always_with_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADSCOPE_NO_RUN", "1")
    found = judge_own(name, tmp_path)
    assert list(found.wrong()) == []
    assert {verdict for verdict, _ in found.without.values()} <= {"failed", "not_determined"}


def test_the_table_is_large() -> None:
    assert len(CLASSES) >= 60
    assert set(SAMPLE) <= CLASSES.keys()
