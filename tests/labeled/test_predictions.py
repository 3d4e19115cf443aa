"""Trained classifiers whose class names or rows are permuted on purpose, and models that learned nothing."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from labeled.trained import save, texts, trained, untrained, write_csv
from transformers import BertForSequenceClassification

import headscope
from headscope.errors import HeadscopeError
from headscope.facts import Verdict
from headscope.shared.labeled.facts import Order, Predictions

NAMES = ("negative", "neutral", "positive")
MULTI = "multi_label_classification"


@pytest.fixture(scope="module")
def good() -> BertForSequenceClassification:
    return trained(NAMES)


@pytest.fixture
def named(tmp_path: Path) -> Path:
    """Rows with names."""
    return write_csv(tmp_path / "named.csv", [(text, NAMES[place]) for text, place in texts(3, 300)])


@pytest.fixture
def numbered(tmp_path: Path) -> Path:
    """Rows with ids."""
    return write_csv(tmp_path / "numbered.csv", texts(3, 300))


def predicted(folder: Path, data: Path, rows: int = 64, **options: Any) -> Any:
    options = {"label_column": "label", "text_column": "text"} | options
    return headscope.check(folder, "inference", select="HS01,HS009", data=data, predict=rows, **options)


def facts(result: Any) -> Predictions:
    found = result.data.predictions
    assert isinstance(found, Predictions)
    return found


def in_order(model: BertForSequenceClassification, order: Sequence[int]) -> BertForSequenceClassification:
    """The model with the rows of its classifier in another order: row `order[i]` scores class i."""
    moved = type(model)(model.config)
    moved.load_state_dict(model.state_dict())
    with torch.no_grad():
        moved.classifier.weight.copy_(model.classifier.weight[list(order)])
        moved.classifier.bias.copy_(model.classifier.bias[list(order)])
    return moved


def test_a_good_model_fits_the_order_of_the_data(
    good: BertForSequenceClassification, named: Path, numbered: Path, tmp_path: Path
) -> None:
    folder = save(good, tmp_path / "model", NAMES)
    for data in (named, numbered):
        result = predicted(folder, data)
        assert facts(result).order is Order.SAME
        assert (result.verdict, result.findings) == (Verdict.PASSED, ())
        given = facts(result).given
        assert given is not None and given.low > 0.7 and given == facts(result).best


def test_scores_that_are_not_finite_leave_the_order_open(
    good: BertForSequenceClassification, named: Path, tmp_path: Path
) -> None:
    broken = in_order(good, (0, 1, 2))
    with torch.no_grad():
        broken.classifier.bias[0] = float("nan")
    result = predicted(save(broken, tmp_path / "model", NAMES), named)
    assert facts(result).order is Order.NOT_DETERMINED
    assert (result.verdict, result.not_applicable) == (Verdict.NOT_DETERMINED, ())
    [gap] = result.not_determined
    assert "NaN" in gap.reason


@pytest.mark.parametrize("order", [(1, 0, 2), (2, 1, 0), (1, 2, 0), (2, 0, 1)])
def test_names_in_another_order_are_told_class_by_class(
    good: BertForSequenceClassification, named: Path, tmp_path: Path, order: tuple[int, ...]
) -> None:
    """Class i of the training data is called `wrong[i]` in the checkpoint: that is how the model then names it."""
    wrong = [NAMES[place] for place in order]
    result = predicted(save(good, tmp_path / "model", wrong), named)
    assert facts(result).order is Order.PERMUTED
    assert {pair.label: pair.fits for pair in facts(result).pairs} == dict(zip(NAMES, wrong, strict=True))
    assert [item.id for item in result.findings] == ["HS009"]
    assert result.verdict is Verdict.FAILED


@pytest.mark.parametrize("order", [(1, 0, 2), (1, 2, 0)])
def test_rows_of_the_classifier_in_another_order_are_told(
    good: BertForSequenceClassification, numbered: Path, tmp_path: Path, order: tuple[int, ...]
) -> None:
    result = predicted(save(in_order(good, order), tmp_path / "model", NAMES), numbered)
    assert facts(result).order is Order.PERMUTED
    fits = {pair.label: pair.fits for pair in facts(result).pairs}
    assert fits == {str(row): NAMES[place] for place, row in enumerate(order)}


def test_classes_without_names_are_found(good: BertForSequenceClassification, named: Path, tmp_path: Path) -> None:
    folder = save(good, tmp_path / "model", ["LABEL_0", "LABEL_1", "LABEL_2"])
    result = predicted(folder, named)
    assert facts(result).order is Order.FOUND
    fits = [(pair.label, pair.fits) for pair in facts(result).pairs]
    assert fits == [("negative", "LABEL_0"), ("neutral", "LABEL_1"), ("positive", "LABEL_2")]
    assert [item.id for item in result.findings] == ["HS011"]


@pytest.mark.parametrize("seed", range(24))
def test_a_model_that_learned_nothing_is_never_called_permuted(seed: int, tmp_path: Path) -> None:
    labels = NAMES[: 2 + seed % 2]
    rows = [(text, labels[place]) for text, place in texts(len(labels), 300, seed)]
    data = write_csv(tmp_path / "rows.csv", rows)
    result = predicted(save(untrained(labels, seed), tmp_path / "model"), data)
    assert facts(result).order in (Order.NEITHER, Order.NOT_DETERMINED)
    assert "HS009" not in {item.id for item in result.findings}


@pytest.mark.parametrize("seed", range(6))
def test_a_trained_model_on_labels_of_chance_fits_no_order(
    good: BertForSequenceClassification, tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    data = write_csv(tmp_path / "rows.csv", [(text, draw.choice(NAMES)) for text, _ in texts(3, 300, seed)])
    result = predicted(save(good, tmp_path / "model", NAMES), data)
    assert facts(result).order in (Order.NEITHER, Order.NOT_DETERMINED)


def test_a_model_that_always_says_the_rarer_class_is_not_permuted(
    good: BertForSequenceClassification, tmp_path: Path
) -> None:
    with torch.no_grad():
        stuck = in_order(good, (0, 1, 2))
        stuck.classifier.bias[2] += 100
    rows = [(text, NAMES[place]) for text, place in texts(3, 300)]
    result = predicted(save(stuck, tmp_path / "model", NAMES), write_csv(tmp_path / "rows.csv", rows))
    assert facts(result).order is Order.NEITHER


def test_few_rows_do_not_tell(good: BertForSequenceClassification, named: Path, tmp_path: Path) -> None:
    folder = save(good, tmp_path / "model", ["positive", "negative", "neutral"])
    for rows in (2, 6):
        result = predicted(folder, named, rows)
        assert facts(result).order is Order.NOT_DETERMINED
        assert result.verdict is Verdict.NOT_DETERMINED
        assert "more rows" in result.not_determined[0].reason


def test_a_new_head_predicts_nothing(tmp_path: Path, named: Path) -> None:
    model = untrained(NAMES)
    folder = save(model, tmp_path / "model")
    model.bert.save_pretrained(folder)
    result = headscope.check(
        folder, "training", select="HS009", num_labels=3, labels=NAMES, data=named, label_column="label",
        text_column="text", predict=16, task="sequence-classification",
    )  # fmt: skip
    assert result.data is not None and result.data.predictions is None
    assert "initialized" in result.not_applicable[0].reason


def with_flags(folder: Path) -> Path:
    """Each row with one class, as columns of 0 and 1."""
    rows = [(text, *(int(place == other) for other in range(3))) for text, place in texts(3, 300)]
    return write_csv(folder / "flags.csv", rows, ",".join(("text", *NAMES)))


def test_several_labels_are_matched_class_by_class(tmp_path: Path) -> None:
    model, data = trained(NAMES, problem_type=MULTI), with_flags(tmp_path)
    fine = predicted(save(model, tmp_path / "fine"), data, label_column=list(NAMES))
    assert facts(fine).order is Order.SAME
    wrong = ["positive", "neutral", "negative"]
    result = predicted(save(model, tmp_path / "wrong", wrong), data, label_column=list(NAMES))
    assert facts(result).order is Order.PERMUTED
    assert {pair.label: pair.fits for pair in facts(result).pairs} == dict(zip(NAMES, wrong, strict=True))


def test_numbers_get_a_correlation_and_no_order(tmp_path: Path) -> None:
    model = trained(["score"], problem_type="regression")
    data = write_csv(tmp_path / "rows.csv", [(text, 2.5 * place) for text, place in texts(2, 200)])
    result = predicted(save(model, tmp_path / "model"), data)
    found = facts(result)
    assert found.order is Order.NONE
    assert found.correlation is not None and found.correlation > 0.7
    assert result.findings == ()
    assert "correlation" in str(result)


def test_pairs_of_texts_are_read_from_two_columns(good: BertForSequenceClassification, tmp_path: Path) -> None:
    rows = [(*text.split(" ", 1), NAMES[place]) for text, place in texts(3, 200)]
    data = write_csv(tmp_path / "pairs.csv", rows, "one,two,label")
    result = predicted(save(good, tmp_path / "model", NAMES), data, text_column=["one", "two"])
    assert facts(result).order is Order.SAME
    assert result.data.text_columns == ("one", "two")


def test_long_texts_are_cut_to_the_tokenizers_limit(good: BertForSequenceClassification, tmp_path: Path) -> None:
    rows = [(f"{text} {'word1 ' * 500}", NAMES[place]) for text, place in texts(3, 60)]
    result = predicted(save(good, tmp_path / "model", NAMES), write_csv(tmp_path / "rows.csv", rows), rows=48)
    assert facts(result).order is Order.SAME


@pytest.mark.parametrize(
    ("options", "words"),
    [({"text_column": "txet"}, "no column 'txet'"), ({"device": "nothing"}, "no such device")],
)
def test_what_cannot_be_predicted_is_said(
    good: BertForSequenceClassification, named: Path, tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(HeadscopeError, match=words):
        predicted(save(good, tmp_path / "model", NAMES), named, **options)


def test_a_snapshot_has_no_weights_to_predict_with(tmp_path: Path) -> None:
    data = write_csv(tmp_path / "rows.csv", [("good", "POSITIVE"), ("bad", "NEGATIVE")])
    with pytest.raises(HeadscopeError, match="snapshot"):
        predicted(Path("distilbert-base-uncased-finetuned-sst-2-english"), data, offline=True)
