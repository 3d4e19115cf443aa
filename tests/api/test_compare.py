"""Heads side by side: what differs is found, and what was not read is never called the same."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import torch
from hypothesis import given, strategies as st
from safetensors.torch import load_file
from transformers import BertTokenizer

import headscope
from headscope.errors import UsageError
from headscope.facts import HiddenSource, Stage
from headscope.slices.compare.facts import role_of
from headscope.slices.compare.run import _find_differences, align_stages
from tests.edits import State, edit_tensors
from tests.families import FAMILIES
from tests.saving import save_torch_zip

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/schema/headscope-1.0.schema.json").read_text())
Show = Callable[..., str]


@pytest.fixture
def other(classifier: Path) -> Path:
    """A copy."""
    return Path(shutil.copytree(classifier, classifier.with_name("b")))


def test_a_copy_is_alike_to_the_bit(classifier: Path, other: Path) -> None:
    found = headscope.compare(classifier, other, values=True)
    assert found.differences == ()
    assert {item.parameter for item in found.values if item.identical} == {
        "bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight", "classifier.bias",
    }  # fmt: skip


def test_equal_poolings_are_alike_whatever_the_sentences_on_their_tokenizers_say(
    classifier: Path, other: Path, show: Show
) -> None:
    """One folder has a tokenizer of its own, so its sentence names that one and not the family's."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good"]
    BertTokenizer(vocab={word: at for at, word in enumerate(words)}).save_pretrained(other)
    found = headscope.compare(classifier, other, offline=True)
    rules = {report.head.pooling.rule for report in found.reports if report.head}
    assert len(rules) == 2
    assert found.differences == ()
    assert "The heads have the same structure" in show("compare", classifier, other, "--offline", "--exit-code")


def test_another_position_of_the_same_kind_is_another_pooling(classifier: Path) -> None:
    report = headscope.inspect(classifier, offline=True)
    (part,) = report.head.pooling.parts
    moved = replace(part, positions=replace(part.positions, index=1))
    deeper = replace(part, sources=(HiddenSource("h[-2]", -2),))
    for other in (moved, deeper):
        pooling = replace(report.head.pooling, parts=(other,))
        changed = replace(report, head=replace(report.head, pooling=pooling))
        assert "pooling" in {item.what for item in _find_differences((report, changed))}


def test_one_changed_number_is_found(classifier: Path, other: Path) -> None:
    def change(state: State) -> None:
        state["classifier.weight"][2, 31] += 1e-7

    edit_tensors(other / "model.safetensors", change)
    found = headscope.compare(classifier, other, values=True)
    [changed] = [item for item in found.values if item.identical is False]
    assert changed.parameter == "classifier.weight"
    assert changed.largest_difference == pytest.approx(1e-7, rel=0.2)
    stored = load_file(classifier / "model.safetensors")["classifier.weight"]
    assert changed.largest_value == pytest.approx(float(stored.abs().max()), rel=1e-3)
    assert all(item.largest_difference is None for item in found.values if item.identical)
    assert "classifier.weight: " in str(found)


def test_another_number_format_is_another_value(classifier: Path, other: Path) -> None:
    edit_tensors(
        other / "model.safetensors",
        lambda state: state | {"classifier.bias": state["classifier.bias"].to(torch.bfloat16)},
    )
    found = headscope.compare(classifier, other, values=True)
    assert [item.parameter for item in found.values if item.identical is False] == ["classifier.bias"]


def test_what_was_not_read_is_not_called_the_same(classifier: Path, tmp_path: Path, show: Show) -> None:
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    save_torch_zip(FAMILIES["bert"].build("BertForSequenceClassification", num_labels=3), pickled)
    found = headscope.compare(classifier, pickled, values=True)
    assert {item.identical for item in found.values} == {None}
    assert "pickle" in found.values[0].reason
    show("compare", classifier, pickled, "--values", "-q", code=3)


def test_heads_without_a_common_parameter_have_no_values_to_compare(
    classifier: Path, tmp_path: Path, show: Show
) -> None:
    FAMILIES["gpt2"].build("GPT2ForSequenceClassification", num_labels=3).save_pretrained(tmp_path)
    told = " ".join(show("compare", classifier, tmp_path, "--values", "-q", "--exit-code", code=1).split())
    assert "values were not compared: the heads have no parameter of the same name" in told


def test_families_differ_in_what_they_differ(show: Show) -> None:
    names = ["bert-base-uncased", "roberta-base"]
    document = json.loads(show("compare", *names, "--num-labels", 3, "--offline", "--json", "--exit-code", code=1))
    jsonschema.validate(document, SCHEMA)
    kinds = {item["what"] for item in document["differences"]}
    assert {"class", "formula", "operations"} <= kinds
    assert any(kind.endswith(" classifier.weight") for kind in kinds)
    assert not {"classes", "labels", "loss"} & kinds
    assert [report["checkpoint"]["reference"] for report in document["reports"]] == names


@pytest.mark.parametrize("width", ["60", "80", "120", "200"])
def test_a_table_has_no_spaces_at_its_ends_no_two_empty_lines_and_whole_names(
    width: str, monkeypatch: pytest.MonkeyPatch, show: Show, classifier: Path
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    for models in ((classifier, classifier), ("bert-base-uncased", "roberta-base")):
        shown = show("compare", *models, "--offline")
        assert "\n\n\n" not in shown
        assert "…" not in shown
        assert [line for line in shown.splitlines() if line != line.rstrip()] == []
    assert "592,130 new" in shown
    shown = show("compare", *models, "--offline", "--details")
    assert [line for line in shown.splitlines() if line != line.rstrip()] == []
    assert "classifier.out_proj.weight 2x768 new" in shown
    assert "bert.pooler.dense.weight 768x768 loaded" in shown


def test_three_models_are_compared_in_24_lines_that_hold_what_a_wide_screen_does(
    monkeypatch: pytest.MonkeyPatch, show: Show
) -> None:
    shown = {}
    for width in ("80", "200"):
        monkeypatch.setenv("COLUMNS", width)
        shown[width] = show("compare", "roberta-base", "bert-base-uncased", "gpt2", "--offline")
    assert len(shown["80"].splitlines()) <= 24
    assert {word for word in shown["200"].split() if word not in shown["80"]} <= {"the", "same"}


def test_one_model_is_not_enough(show: Show) -> None:
    with pytest.raises(UsageError, match="got 1"):
        headscope.compare("roberta-base")
    show("compare", "roberta-base", "--offline", code=2)


def stage(operation: str) -> Stage:
    return Stage(0, operation, "", "", True, (), (), (), "", 0)


@given(st.lists(st.lists(st.sampled_from(["linear", "tanh", "relu", "select"]), max_size=6), min_size=2, max_size=4))
def test_rows_keep_the_order_of_every_head(sequences: list[list[str]]) -> None:
    rows = align_stages([[stage(operation) for operation in sequence] for sequence in sequences])
    for column, sequence in enumerate(sequences):
        assert [row[column].operation for row in rows if row[column] is not None] == sequence
    assert all(len({role_of(item.operation) for item in row if item is not None}) == 1 for row in rows)


def test_alike_heads_take_one_row_a_stage() -> None:
    stages = [stage(operation) for operation in ("select", "linear", "tanh", "linear")]
    assert len(align_stages([stages, stages])) == len(stages)
    rows = align_stages([stages, [stages[0], stages[3]]])
    assert [row[1] is not None for row in rows] == [True, False, False, True]


def test_activations_of_different_heads_stand_side_by_side() -> None:
    rows = align_stages([[stage("linear"), stage("tanh")], [stage("linear"), stage("dropout"), stage("relu")]])
    assert [[item.operation if item else "-" for item in row] for row in rows] == [
        ["linear", "linear"], ["-", "dropout"], ["tanh", "relu"],
    ]  # fmt: skip


def test_models_have_columns_where_there_is_room(monkeypatch: pytest.MonkeyPatch, show: Show) -> None:
    names = ["bert-base-uncased", "distilbert-base-uncased", "roberta-base"]
    for width, columns in (("120", True), ("119", False)):
        monkeypatch.setenv("COLUMNS", width)
        lines = show("compare", *names, "--num-labels", 3, "--offline").splitlines()
        assert any(all(name in line for name in names) for line in lines) is columns
        assert any("tanh" in line and "relu" in line for line in lines) is columns


def test_what_is_the_same_stands_once(monkeypatch: pytest.MonkeyPatch, show: Show) -> None:
    for width in ("80", "160"):
        monkeypatch.setenv("COLUMNS", width)
        shown = show("compare", "bert-base-uncased", "bert-base-uncased", "--offline", "--details")
        assert shown.count("bert.pooler.dense.weight") == 1
