"""What `probe` says of labels, the starting loss and training: regression, several labels, bad data, end to end."""

import math
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from labeled.trained import save, texts, untrained, write_csv
from probing import made
from probing.made import NAMES
from transformers import AutoTokenizer

from headscope.errors import HeadscopeError
from headscope.shared.labeled.facts import DataFacts, LabelKind
from headscope.shared.labeled.sample import Sampled
from headscope.shell.app import main
from headscope.slices.probe.data.label_facts import describe_labels
from headscope.slices.probe.data.rows import Kind, LabeledRows
from headscope.slices.probe.facts.result import Advised, BaselineKind, Metric, OpinionKind, Problem, Start
from headscope.slices.probe.scoring.scores import make_trial, predict_from_vectors

ROWS = made.ROWS[:60]
probed = partial(made.probed, folds=2)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model with a pooler and without a classifier, whose config names no classes."""
    folder = save(untrained(NAMES), tmp_path_factory.mktemp("fresh") / "model", NAMES)
    untrained(NAMES).bert.save_pretrained(folder)
    return folder


def logits(folder: Path, rows: list[tuple[str, Any]]) -> torch.Tensor:
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        return torch.stack([model(**tokenizer(text, return_tensors="pt")).logits[0] for text, _ in rows])


def test_a_trained_head_starts_with_its_own_loss_and_needs_no_probing(known: Path, tmp_path: Path) -> None:
    result = probed(known, write_csv(tmp_path / "rows.csv", ROWS))
    places = torch.tensor([NAMES.index(label) for _, label in ROWS])
    expected = torch.nn.functional.cross_entropy(logits(known, ROWS), places)
    assert result.start.loss == pytest.approx(float(expected), abs=1e-4)
    assert result.start.uninformed == pytest.approx(math.log(3))
    assert (result.start.standing, result.start.new_head) == (Start.BELOW, False)
    assert result.probe_first.advised is Advised.NO
    assert "fits" in result.probe_first.reason


def test_a_new_head_starts_as_one_that_knows_nothing(fresh: Path, tmp_path: Path) -> None:
    result = probed(fresh, write_csv(tmp_path / "rows.csv", ROWS))
    assert result.start.new_head
    assert result.start.uninformed == pytest.approx(math.log(3))  # the config of a base model says 2
    assert result.start.loss == pytest.approx(math.log(3), abs=0.1)
    assert result.start.standing is Start.FRESH
    assert "newly" in result.probe_first.reason


def test_labels_against_the_head_start_above(known: Path, tmp_path: Path) -> None:
    moved = dict(zip(NAMES, (*NAMES[1:], NAMES[0]), strict=True))
    result = probed(known, write_csv(tmp_path / "rows.csv", [(text, moved[label]) for text, label in ROWS]))
    assert result.start.standing is Start.ABOVE


def test_contradictions_repeats_and_suspects_are_rows_of_the_file(known: Path, tmp_path: Path) -> None:
    other = "positive" if ROWS[5][1] != "positive" else "neutral"
    given = [("", "neutral"), *ROWS, ROWS[3], (ROWS[5][0], other)]
    result = probed(known, write_csv(tmp_path / "rows.csv", given))
    labels = result.labels
    assert labels.repeated == 2
    assert labels.contradicting == 1
    assert labels.contradictions[0].rows == (7, 63)  # row 1 has no text
    assert set(labels.contradictions[0].labels) == {given[6][1], given[-1][1]}
    counts = [sum(label == name for text, label in given if text) for name in NAMES]
    assert labels.ratio == pytest.approx(max(counts) / min(counts))
    assert [item.loss for item in labels.suspects] == sorted((item.loss for item in labels.suspects), reverse=True)
    for item in labels.suspects:
        text, label = given[item.row - 1]
        assert (item.given, item.predicted != label) == (label, True)
        assert text.startswith(item.text.removesuffix("..."))


def test_a_wrong_label_is_the_first_suspect() -> None:
    """On a vector that tells the classes apart, with one label turned round."""
    draw = np.random.default_rng(0)
    labels = np.arange(80) % 2
    vectors = (labels[:, None] * 4 + draw.normal(size=(80, 3))).astype(np.float32)
    labels[33] = 1 - labels[33]
    trial = make_trial(labels, np.arange(80), 4, 0)
    found = predict_from_vectors(vectors, trial)
    facts = DataFacts("rows.csv", "csv", None, 80, ("label",), ("text",), LabelKind.TEXTS, ())
    numbers = tuple(range(101, 181))
    rows = LabeledRows(
        facts, Problem.SINGLE_LABEL, (("a text",),) * 80, labels, np.arange(80), numbers, ("no", "yes"), ()
    )
    suspect = describe_labels(rows, found.values, found.losses).suspects[0]
    given, told = ("yes", "no") if labels[33] else ("no", "yes")
    assert (suspect.row, suspect.given, suspect.predicted) == (134, given, told)
    assert suspect.loss > 1


def numbered(count: int = 60) -> list[tuple[str, Any]]:
    return [(text, round(len(text) / 7 + at % 3, 2)) for at, (text, _) in enumerate(texts(3, count))]


def test_numbers_with_fractions_are_a_regression(fresh: Path, tmp_path: Path) -> None:
    data = write_csv(tmp_path / "rows.csv", [*numbered(), ("word1 word2", "")])
    result = probed(fresh, data)
    assert result.problem is Problem.REGRESSION
    assert result.candidates[0].metric is Metric.R2
    assert [item.name for item in result.baselines][:2] == [BaselineKind.MEAN, BaselineKind.TFIDF]
    assert result.classes == ()
    assert any(note.startswith("1 row without a label") for note in result.notes)
    values = np.array([number for _, number in numbered()])
    assert (result.labels.numbers.mean, result.labels.numbers.deviation) == pytest.approx((values.mean(), values.std()))
    assert result.start.uninformed == pytest.approx(values.var())
    assert {item.name for item in result.opinions} == set(OpinionKind)
    assert probed(fresh, data) == result


def test_whole_numbers_are_classes_unless_regression_is_asked_for(fresh: Path, tmp_path: Path) -> None:
    data = write_csv(tmp_path / "rows.csv", [(text, at % 4 * 100) for at, (text, _) in enumerate(ROWS)])
    assert probed(fresh, data).problem is Problem.SINGLE_LABEL
    assert probed(fresh, data, problem_type="regression").problem is Problem.REGRESSION


def test_a_checkpoint_for_regression_makes_whole_numbers_a_regression(tmp_path: Path) -> None:
    model = untrained(NAMES[:1])
    model.config.problem_type = "regression"
    folder = save(model, tmp_path / "model", NAMES[:1])
    rows = [(text, len(text) % 7) for text, _ in ROWS]
    result = probed(folder, write_csv(tmp_path / "rows.csv", rows))
    assert result.problem is Problem.REGRESSION
    expected = float(((logits(folder, rows)[:, 0] - torch.tensor([number for _, number in rows])) ** 2).mean())
    assert result.start.loss == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("form", ["lists", "columns"])
def test_several_labels_are_lists_or_columns(form: str, fresh: Path, tmp_path: Path) -> None:
    tags = [[label, *(["even"] if at % 2 else [])] for at, (_, label) in enumerate(ROWS)]
    names = sorted({tag for row in tags for tag in row})
    data = tmp_path / "rows.csv"
    if form == "lists":
        write_csv(data, [(text, f'"{row}"') for (text, _), row in zip(ROWS, tags, strict=True)])
    else:
        rows = [[text, *(str(int(name in row)) for name in names)] for (text, _), row in zip(ROWS, tags, strict=True)]
        data.write_text("\n".join(map(",".join, [["text", *names], *rows])))
    result = probed(fresh, data, label_column="label" if form == "lists" else names)
    assert result.problem is Problem.MULTI_LABEL
    assert {item.label: item.texts for item in result.classes} == {
        name: sum(name in row for row in tags) for name in names
    }
    assert result.baselines[0].name is BaselineKind.EVERY_LABEL
    assert result.start.uninformed == pytest.approx(math.log(2))


def test_the_second_score_of_classes_is_macro_f1(known: Path, tmp_path: Path) -> None:
    result = probed(known, write_csv(tmp_path / "rows.csv", ROWS))
    assert {score.metric for item in result.candidates for score in item.others} == {Metric.MACRO_F1}
    assert result.candidate("head").logme == result.candidate("pooler").logme
    assert all(item.knn is not None and 0 <= item.knn <= 1 for item in result.candidates)


def test_a_large_file_is_sampled_with_the_seed(known: Path, tmp_path: Path) -> None:
    many = write_csv(tmp_path / "many.csv", [(f"word{at % 97} word{at % 89}", at / 7) for at in range(20_000)])
    first, again, other = (probed(known, many, limit=40, seed=seed, folds=2) for seed in (0, 0, 1))
    assert first == again
    assert first.labels != other.labels
    assert any(note.startswith("40 of 20,000 ") for note in first.notes)


def test_texts_of_equal_tokens_share_a_fold(known: Path, tmp_path: Path) -> None:
    draw = random.Random(0)
    labels = {text: draw.choice(["heads", "tails"]) for text, _ in ROWS}
    texts = [form for text in labels for form in (text, f"  {text}", f"{text} ", text.upper())]
    result = probed(known, write_csv(tmp_path / "rows.csv", [(text, labels[text.strip().lower()]) for text in texts]))
    tokenizer = AutoTokenizer.from_pretrained(known)
    different = {tuple(tokenizer(text.strip())["input_ids"]) for text in texts}
    assert result.distinct == len(different) < len(texts)
    assert result.labels.repeated == len(texts) - len(different)


def test_the_texts_of_a_pair_are_the_same_in_either_order() -> None:
    kind = Kind(content=str.casefold)
    swapped = Sampled(("B", "a"), "x")
    assert kind.same(Sampled(("A", "b"), "x")) == kind.same(swapped) != kind.same(Sampled(("a", "a"), "x"))


REGRESSION = {"problem_type": "regression"}
FRACTIONS = [at / 7 for at in range(60)]
CLASSES = [label for _, label in ROWS]
BAD: dict[str, tuple[Sequence[Any], dict[str, Any], str]] = {
    "constant": ([2.5] * 60, {}, "every text has the same number in 'label'"),
    "no number": ([*FRACTIONS[1:], "unknown"], REGRESSION, "has 'unknown' in row 60"),
    "fractions": (FRACTIONS, {"problem_type": "single-label"}, "fractions"),
    "names": (CLASSES, REGRESSION, "has 'negative' in row"),
    "not lists": (CLASSES, {"problem_type": "multi-label"}, "texts, which don't fit --problem-type multi-label"),
    "no such problem type": (CLASSES, {"problem_type": "ranking"}, "no such problem type: 'ranking'"),
    "one row each": ([f"class{at}" for at in range(30)], {}, "no class has 2 different"),
    "rare labels": ([f"['class{at}']" for at in range(60)], {}, "no label in 'label'"),
    "two texts": ([0.5, 1.5], {}, "2 different rows are too few for 2 folds"),
    "two texts of each": ("xxyy", {}, "too few for 2 folds"),
    "huge": ([f"{at + 1}e300" for at in range(60)], REGRESSION, "are too large"),
    "tiny": ([f"{at + 1}e-200" for at in range(60)], REGRESSION, "are too small"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_labels_are_refused_in_one_sentence(name: str, known: Path, tmp_path: Path) -> None:
    labels, options, sentence = BAD[name]
    rows = [(text, label) for (text, _), label in zip(ROWS, labels, strict=False)]
    with pytest.raises(HeadscopeError) as raised:
        probed(known, write_csv(tmp_path / "rows.csv", rows), **options)
    assert sentence in raised.value.message
    assert "\n" not in raised.value.message
    assert raised.value.hint


def test_a_text_that_is_repeated_is_one_text_of_a_fold(known: Path, tmp_path: Path) -> None:
    rows = [(ROWS[0][0], 0.5), (ROWS[1][0], 1.5), (ROWS[1][0], 2.5)]
    with pytest.raises(HeadscopeError, match="has 2 different texts with a label") as raised:
        probed(known, write_csv(tmp_path / "rows.csv", rows), folds=3)
    assert raised.value.hint


def test_the_command_takes_the_task_and_fits_eighty_columns(
    known: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    words = made.command(known, write_csv(tmp_path / "rows.csv", [(text, len(text)) for text, _ in ROWS]))
    assert main([*words, "--problem-type", "regression", "--details"]) == 0
    screen = capsys.readouterr().out
    assert "ridge regression" in screen
    table = screen[screen.index("95% interval") :].split("\n\n")[0].splitlines()
    assert len(table) == len([line for line in table if " to " in line]) + 1  # no line is wrapped
    assert main([*words, "--problem-type", "ranking"]) == 2
