"""`edit` with labeled data: the order of their classes, and fits, which Transformers' own scores are held against."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, log_loss

import headscope
from headscope.errors import HeadscopeError, Unsupported, UsageError
from headscope.shell.app import main
from tests.editing.checkpoints import LABELS, TEXTS, drawn_labels, saved, scores, table, with_config
from tests.edits import edit_tensors
from tests.scorers import save_tokenizer

COLUMNS: dict[str, Any] = {"text_column": "text", "label_column": "label"}
"""The columns of most of the data, as options; then as arguments of the command."""
GIVEN_COLUMNS = ["--text-column", "text", "--label-column", "label"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("bert") / "model"
    folder = saved("BertForSequenceClassification", place, vocab_size=200, num_hidden_layers=1)
    # Scores that say more than the labels below are worth.
    edit_tensors(
        folder / "model.safetensors", lambda state: state | {"classifier.weight": state["classifier.weight"] * 3}
    )
    save_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def multi(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as a classifier of several labels for each text."""
    folder = tmp_path_factory.mktemp("multi") / "model"
    headscope.edit(bert, folder, problem_type="multi_label_classification")
    return folder


def labeled(path: Path, labels: list[str]) -> Path:
    """Data of the first texts with these labels."""
    return table(path, ["text", "label"], [[text, label] for text, label in zip(TEXTS, labels, strict=False)])


@pytest.fixture(scope="module")
def single_data(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return labeled(tmp_path_factory.mktemp("data") / "single.csv", drawn_labels(bert, 3, 0))


@pytest.fixture(scope="module")
def multi_data(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text has a class where its logit is above a limit of its own: 1, -1 and 2, but for some noise."""
    found = scores(bert)
    limits = np.quantile(found, (0.7, 0.2, 0.9), axis=0)[(0, 1, 2), (0, 1, 2)]
    noise = np.random.default_rng(0).normal(0, 0.1, found.shape)
    rows = [[text, *map(int, row)] for text, row in zip(TEXTS, found + noise > limits, strict=True)]
    return table(tmp_path_factory.mktemp("data") / "multi.csv", ["text", *LABELS], rows)


def test_the_order_is_that_of_the_data(bert: Path, tmp_path: Path) -> None:
    data = table(tmp_path / "data.csv", ["label"], [["good"], ["fair"], ["bad"], ["fair"]])
    found = headscope.edit(bert, tmp_path / "sorted", order_from=data, label_column="label", rename={"fair": "zzz"},
                           dry_run=True, drop=["zzz"], add=["fair"])  # fmt: skip
    assert [item.name for item in found.labels] == ["bad", "fair", "good"]  # sorted, as encoders of labels number them
    columns = table(tmp_path / "columns.csv", ["good", "bad", "fair"], [[0, 1, 0], [1, 0, 0]])
    edit = ["edit", str(bert), "-o", str(tmp_path / "new"), "--order-from", str(columns)]
    assert main([*edit, *(part for name in ("good", "bad", "fair") for part in ("--label-column", name))]) == 0
    after, before = scores(tmp_path / "new"), scores(bert)
    np.testing.assert_allclose(after, before[:, [2, 0, 1]], atol=1e-6)


def test_the_order_of_a_class_label_wins(bert: Path, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    features = {"label": {"names": ["good", "bad", "fair"], "_type": "ClassLabel"}}
    schema = pyarrow.schema([("label", pyarrow.int64())], {"huggingface": json.dumps({"info": {"features": features}})})
    parquet.write_table(pyarrow.table({"label": [0, 2]}, schema), tmp_path / "data.parquet")
    found = headscope.edit(bert, tmp_path / "new", order_from=tmp_path / "data.parquet", label_column="label")
    assert [item.name for item in found.labels] == ["good", "bad", "fair"] and found.verdict.value == "proven"
    result = headscope.check(
        tmp_path / "new", "training", data=tmp_path / "data.parquet", label_column="label", select="HS006"
    )
    assert not result.findings  # the rule on orders agrees


@pytest.mark.parametrize(
    ("cells", "names"),
    [(["bad", "fair"], ("lacks good",)), (["bad", "fair", "good", "other"], ("other",)),
     (["bad", "fair", "Good"], ("good", "Good")), (["0", "1", "2"], ("without names",))],
)  # fmt: skip
def test_data_with_other_classes_give_no_order(
    bert: Path, tmp_path: Path, cells: list[str], names: tuple[str, ...]
) -> None:
    data = table(tmp_path / "data.csv", ["label"], [[cell] for cell in cells])
    with pytest.raises(UsageError) as caught:
        headscope.edit(bert, tmp_path / "new", order_from=data, label_column="label")
    assert all(name in caught.value.message for name in names) and not (tmp_path / "new").exists()
    with pytest.raises(UsageError):
        headscope.edit(bert, tmp_path / "new", order_from=data, label_column="label", order="bad,fair,good")


def test_a_fitted_temperature_is_in_the_weights(bert: Path, single_data: Path, tmp_path: Path) -> None:
    found = headscope.edit(bert, tmp_path / "new", fit="temperature", data=single_data, **COLUMNS)
    assert found.verdict.value == "proven" and found.fit is not None, found.proof
    assert found.fit.gain.value == "better" and found.fit.fitting_texts == found.fit.held_out_texts == 120
    temperature = found.fit.temperature
    assert temperature is not None and 1.3 < temperature < 6 and found.temperature == temperature
    before, after = scores(bert), scores(tmp_path / "new")
    np.testing.assert_allclose(after, before / temperature, atol=1e-5)
    labels = [line.rpartition(",")[2] for line in single_data.read_text().splitlines()[1:]]
    losses = [log_loss(labels, torch.from_numpy(side).softmax(1)) for side in (before, after)]
    assert losses[1] < losses[0]
    first = found.fit.figures[0]
    assert first.metric.value == "nll" and first.change.value == pytest.approx(first.after.value - first.before.value)
    record = json.loads((tmp_path / "new" / "headscope-edit.json").read_text())
    assert record["fit"]["temperature"] == temperature and record["fit"]["gain"] == "better"


def test_fitted_thresholds_are_at_one_half_in_the_result(multi: Path, multi_data: Path, tmp_path: Path) -> None:
    found = headscope.edit(
        multi, tmp_path / "new", fit="thresholds", data=multi_data, text_column="text", label_column=LABELS
    )
    assert found.verdict.value == "proven" and found.fit is not None, found.proof
    limits = {item.label: item.probability for item in found.fit.thresholds}
    assert tuple(limits) == LABELS and found.fit.gain.value == "better"
    truth = np.loadtxt(multi_data, delimiter=",", skiprows=1, usecols=(1, 2, 3))
    before, after = scores(multi), scores(tmp_path / "new")
    chances = torch.from_numpy(before).sigmoid().numpy()
    assert np.array_equal(after > 0, chances > np.array(list(limits.values())))
    assert f1_score(truth, after > 0, average="macro") > f1_score(truth, before > 0, average="macro")


def test_a_fit_comes_after_the_other_changes_and_its_screen_says_what_it_brought(
    bert: Path, single_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = [line.rpartition(",")[2] for line in single_data.read_text().splitlines()[1:]]
    renamed = labeled(tmp_path / "d.csv", [label.replace("bad", "poor") for label in labels])
    options = ["--fit", "temperature", "--data", str(renamed), *GIVEN_COLUMNS]
    edit = ["edit", str(bert), "-o", str(tmp_path / "new"), "--rename", "bad=poor", "--order", "good,fair,poor"]
    assert main([*edit, *options, "--dry-run", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    plain = headscope.edit(bert, tmp_path / "x", fit="temperature", data=single_data, dry_run=True, **COLUMNS)
    assert plain.fit is not None
    assert document["fit"]["temperature"] == pytest.approx(plain.fit.temperature, rel=0.3)  # another split
    assert document["labels"][2]["name"] == "poor"


def test_where_the_held_out_texts_gain_nothing_the_verdict_says_so(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = labeled(tmp_path / "d.csv", drawn_labels(bert, 1, 1)[:100])
    options = ["--fit", "temperature", "--data", str(data), *GIVEN_COLUMNS]
    assert main(["edit", str(bert), "-o", str(tmp_path / "new"), *options]) == 0
    assert "no better on held-out texts" in " ".join(capsys.readouterr().out.split())
    assert (tmp_path / "new" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("labels", "options", "kind", "message"),
    [
        (["bad"] * 240, {}, UsageError, "all alike"),
        (["bad", "fair", "good"] * 10, {}, UsageError, "too few"),
        (["bad", "fair", "other"] * 80, {}, UsageError, "other"),
        (["bad", "fair", "0.5"] * 80, {}, UsageError, "0.5"),
        (["[0, 1]", "[2]", "[1]"] * 80, {}, UsageError, "one class"),
        (["bad", "fair", "good"] * 80, {"fit": "thresholds"}, Unsupported, "softmax is over 3"),
        (["bad", "fair", "good"] * 80, {"temperature": 2.0}, UsageError, "given too"),
        (["bad", "fair", "good"] * 80, {"add": {"new": "random"}}, UsageError, "random row"),
        (["bad", "fair", "good"] * 80, {"fit": "scale"}, UsageError, "scale"),
        (["bad", "fair", "good"] * 80, {"data": None}, UsageError, "needs"),
        (["bad", "fair", "good"] * 80, {"limit": 0}, UsageError, "limit"),
        (["bad", "fair", "good"] * 80, {"limit": 30}, UsageError, "too few"),
        (["bad", "fair", "good"] * 80, {"text_column": None}, UsageError, "text"),
        (["0.5", "1.5", "2.5"] * 80, {}, UsageError, "fractions"),
    ],
)
def test_texts_that_fit_nothing_are_refused(  # noqa: PLR0917  pytest passes them by name
    bert: Path, tmp_path: Path, labels: list[str], options: dict[str, Any], kind: type[HeadscopeError], message: str
) -> None:
    given = {"fit": "temperature", "data": labeled(tmp_path / "d.csv", labels), **COLUMNS, **options}
    with pytest.raises(kind, match=message):
        headscope.edit(bert, tmp_path / "new", **given)
    assert not (tmp_path / "new").exists()


def test_given_names_are_those_that_labeled_data_refer_to(bert: Path, single_data: Path, tmp_path: Path) -> None:
    source = with_config(bert, tmp_path / "old", {"id2label": {"1": "x", "2": "y", "3": "z"}})
    options: dict[str, Any] = {"data": single_data, **COLUMNS}
    assert headscope.edit(source, tmp_path / "new", fit="temperature", **options).verdict.value == "refused"
    plain, found = (
        headscope.edit(folder, tmp_path / "new", labels="bad,fair,good", fit="temperature", dry_run=True, **options)
        for folder in (bert, source)
    )
    assert plain.fit == found.fit and found.fit is not None
    ordered = headscope.edit(
        source, tmp_path / "new", labels="good,fair,bad", order_from=single_data, label_column="label"
    )
    assert [(item.name, item.source) for item in ordered.labels] == [("bad", 2), ("fair", 1), ("good", 0)]
    assert ordered.verdict.value == "proven", ordered.proof
