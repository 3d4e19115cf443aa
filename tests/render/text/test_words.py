"""Facts in words."""

from dataclasses import replace

import pytest
from reports import roberta

from headscope.core.facts.counting import list_of
from headscope.core.facts.stored.checkpoint import told_gaps
from headscope.core.words.words import POOLING, axes_of, bytes_of, loss_of, share_of, size_of
from headscope.facts import Gap, ModelFacts, PoolingKind, Task

BYTES = (
    (0, "0 bytes"),
    (1, "1 byte"),
    (999, "999 bytes"),
    (1000, "1 kB"),
    (26_431, "26.4 kB"),
    (999_600, "1 MB"),
    (498_818_054, "499 MB"),
    (141_107_412_992, "141 GB"),
)


@pytest.mark.parametrize(("number", "words"), BYTES)
def test_bytes_are_told_in_three_digits(number: int, words: str) -> None:
    assert bytes_of(number) == words


def test_a_reason_is_told_once_with_what_it_concerns() -> None:
    gaps = [*(Gap(f"HS{number}", "no head path") for number in range(101, 114)), Gap("labels", "no file")]
    assert list(told_gaps(gaps)) == ["HS101, HS102, HS103, HS104 and 9 more: no head path", "labels: no file"]


def about(**changes: object) -> ModelFacts:
    return replace(roberta().model, **changes)  # type: ignore[arg-type]


LOSSES = (
    (about(), "CrossEntropyLoss over softmax: one of 3 classes"),
    (
        about(loss="BCEWithLogitsLoss", activation="sigmoid", num_labels=1000),
        "BCEWithLogitsLoss over sigmoid: multi-label, 1,000 sigmoids (one-vs-rest)",
    ),
    (about(loss="MSELoss", activation="none", num_labels=1), "MSELoss, no activation: 1 number (regression)"),
    (about(task=Task.TOKEN_CLASSIFICATION), "CrossEntropyLoss over softmax: one of 3 classes for each token"),
    (about(loss="not determined", activation=""), "not determined"),
    (about(loss="CTCLoss", activation="softmax"), "CTCLoss, activation: softmax"),
)


@pytest.mark.parametrize(("model", "words"), LOSSES)
def test_a_loss_is_told_in_one_phrase(model: ModelFacts, words: str) -> None:
    assert loss_of(model) == words


def test_every_pooling_kind_has_words() -> None:
    assert set(POOLING) == set(PoolingKind)


def test_shapes_shares_and_lists() -> None:
    assert size_of((3, 768)) == "3x768"
    assert size_of(()) == "scalar"
    assert axes_of(("batch", "sequence", 768)) == "[batch, sequence, 768]"
    assert share_of(592_899, 124_647_939) == "0.48%"
    assert share_of(1, 0) == "0%"
    assert list_of("abc", 2) == "a, b and 1 more"
