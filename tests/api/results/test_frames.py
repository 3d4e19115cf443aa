"""Results as tables of pandas: one row for each parameter and each finding, typed even where there are none."""

import subprocess
from pathlib import Path

import pandas as pd
import pytest
import torch

import headscope
from headscope.errors import UsageError
from tests import warm
from tests.families import FAMILIES

COLUMNS = ["name", "status", "shape", "dtype", "count", "checkpoint_keys", "is_buffer", "in_head", "live"]


def inspected(model: object = "bert-base-uncased") -> headscope.Examination:
    return headscope.inspect(model, num_labels=3, offline=True)


def test_parameters_are_those_of_the_model_in_its_order() -> None:
    folder_model = FAMILIES["bert"].build("BertForSequenceClassification")
    table = headscope.inspect(folder_model).to_pandas()
    assert list(table.columns) == COLUMNS
    named = dict(folder_model.named_parameters())
    parameters = table[~table["is_buffer"]]
    assert list(parameters["name"]) == list(named)
    assert list(parameters["count"]) == [item.numel() for item in named.values()]
    assert list(parameters["shape"]) == [tuple(item.shape) for item in named.values()]


def test_new_parameters_and_those_of_the_head_can_be_picked() -> None:
    report = inspected()
    table = report.to_pandas()
    assert tuple(sorted(table[table["status"] == "new"]["name"])) == report.weights.new
    assert set(table[table["in_head"]]["name"]) == {item.name for item in report.head.tensors}
    by_name = table.set_index("name")
    assert [by_name.loc[item.name, "live"] for item in report.head.tensors] == [
        item.live for item in report.head.tensors
    ]
    assert table["count"].sum() == report.model.parameters.total


def test_parameters_that_the_scores_do_not_need_are_not_live() -> None:
    model = FAMILIES["bert"].build("BertForSequenceClassification")
    model.beside = torch.nn.Linear(2, 2)
    live = headscope.inspect(model).to_pandas().set_index("name")["live"]
    assert not live["beside.weight"]
    assert live["classifier.weight"]


def test_without_a_traced_head_nothing_is_said_of_it() -> None:
    table = headscope.diff_weights("bert-base-uncased", num_labels=3, offline=True).to_pandas()
    assert len(table) > 100
    assert table["in_head"].isna().all()
    assert table["live"].isna().all()


@pytest.mark.usefixtures("own_cache")
def test_a_report_from_the_cache_has_the_same_table() -> None:
    pd.testing.assert_frame_equal(inspected().to_pandas(), inspected().to_pandas())


def test_findings_are_a_table_with_a_type_for_each_column() -> None:
    result = headscope.check("gpt2", "training", offline=True)
    table = result.to_pandas()
    assert list(table["id"]) == [item.id for item in result.findings]
    assert "HS301" in set(table[table["severity"] == "error"]["id"])
    none = headscope.check("gpt2", "training", select="HS101", offline=True).to_pandas()
    assert len(none) == 0
    assert list(none.columns) == list(table.columns)
    assert (none.dtypes == table.dtypes).all()
    pd.testing.assert_frame_equal(inspected("gpt2").to_pandas("findings")[["id"]], table[["id"]])


def test_another_table_is_refused() -> None:
    with pytest.raises(UsageError, match="weights"):
        inspected().to_pandas("weights")  # type: ignore[arg-type]


def test_without_pandas_the_error_says_how_to_install_it(tmp_path: Path) -> None:
    (tmp_path / "pandas.py").write_text("raise ImportError('not here')", encoding="utf-8")
    code = """
import headscope
try:
    headscope.diff_weights("bert-base-uncased", offline=True).to_pandas()
except headscope.errors.Unsupported as err:
    print(err.message, err.hint)
"""
    ran = subprocess.run(
        [*warm.python(anew=True), "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}){code}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.stdout.endswith(' pip install "headscope[pandas]"\n'), ran.stderr
