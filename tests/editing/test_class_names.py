"""Whose row is whose: what Transformers reads from config.json is the oracle, and a contradiction is refused."""

import json
import time
from pathlib import Path
from typing import Any

import peft
import pytest
import safetensors.torch
import torch
import transformers

import headscope
from headscope.errors import UsageError
from headscope.shell.app import main
from headscope.slices.edit.classes import faults_of_names
from tests.editing.checkpoints import LABELS, save_adapter, save_base, with_config
from tests.edits import contents

BACK = {name: at for at, name in enumerate(LABELS)}
SHIFTED = {"1": "bad", "2": "fair", "3": "good"}


def refused(folder: Path, *options: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The document on an edit that is refused on the screen, in JSON and in a dry run, and writes nothing."""
    new = folder.parent / "new"
    command = ["edit", str(folder), "-o", str(new), *options]
    for more in ((), ("--dry-run",), ("-q",)):
        assert main([*command, *more]) == 1
        assert "Refused, nothing was written" in capsys.readouterr().out
    assert main([*command, "--json", "--dry-run"]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "refused"
    assert main([*command, "--json"]) == 1
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "refused" and "--labels A,B,C" in document["proof"]["reason"]
    assert not document["labels"] and not document["labels_before"] and not new.exists()
    return document


CONTRADICTIONS: tuple[tuple[dict[str, Any], tuple[str, ...], str], ...] = (
    ({"id2label": SHIFTED}, ("label2id",), "without 0"),
    ({"id2label": SHIFTED, "label2id": {"bad": 1, "fair": 2, "good": 3}}, (), "ids 3"),
    ({"id2label": {"0": "bad", "2": "fair", "3": "good"}}, ("label2id",), "without 1"),
    ({"id2label": {"-1": "bad", "0": "fair", "1": "good"}}, ("label2id",), "ids -1"),
    ({"id2label": {"0": "bad", "1": "fair", "x": "good"}}, ("label2id",), "ids x"),
    ({"id2label": {"0": "bad", "1.0": "fair", "2": "good"}}, ("label2id",), "ids 1.0"),
    ({"id2label": {"bad": 0, "fair": 1, "good": 2}}, ("label2id",), "without 0, 1, 2"),
    ({"id2label": {"0": "bad", "00": "fair", "1": "good", "2": "best"}}, ("label2id",), "ids 0, 00"),
    ({"id2label": {"0": "bad", "1": "bad", "2": "good"}}, ("label2id",), "name bad"),
    ({"id2label": {"0": 1, "1": "1", "2": "good"}}, ("label2id",), "name 1"),
    ({"id2label": {"0": "bad", "1": None, "2": "good"}}, ("label2id",), "not a text"),
    ({"id2label": list(LABELS)}, (), "not an object"),
    ({"id2label": {}}, ("label2id",), "not an object"),
    ({"label2id": {"bad": 2, "fair": 1, "good": 0}}, (), "label2id does not map bad, good"),
    ({"label2id": {"bad": 0, "fair": 1, "great": 2}}, (), "great"),
    ({"label2id": {"bad": 1, "fair": 2, "good": 3}}, (), "label2id"),
    ({"label2id": BACK}, ("id2label",), "absent"),
    ({"num_labels": 2}, (), "num_labels in config.json is 2"),
    ({"num_labels": "3"}, (), "num_labels in config.json is 3"),
    ({"_num_labels": 5}, (), "_num_labels in config.json is 5"),
    ({"id2label": {"0": "bad", "1": "good"}}, ("label2id",), "describes 2 classes, but classifier.weight has 3 rows"),
    ({"num_labels": 4}, ("id2label", "label2id"), "describes 4 classes, but classifier.weight has 3 rows"),
    ({}, ("id2label", "label2id"), "describes 2 classes, but classifier.weight has 3 rows"),
    ({"text_config": {"id2label": {"0": "bad", "1": "fair"}}}, ("id2label", "label2id"), "in text_config"),
)


@pytest.mark.parametrize("case", CONTRADICTIONS, ids=[reason for _, _, reason in CONTRADICTIONS])
def test_names_that_contradict_something_are_refused_and_given_ones_are_the_rows_in_order(
    case: tuple[dict[str, Any], tuple[str, ...], str], bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields, without, reason = case
    folder = with_config(bert, tmp_path / "old", fields, without)
    document = refused(folder, "--temperature", "2", capsys=capsys)
    assert reason in document["proof"]["reason"]
    found = headscope.edit(folder, tmp_path / "new", labels="low, mid,high", drop="mid", add={"new": "copy:high"})
    assert found.verdict.value == "proven", found.proof
    assert found.labels_before == ("low", "mid", "high")
    model = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "new")
    assert model.config.id2label == {0: "low", 1: "high", 2: "new"} and model.config.num_labels == 3
    assert model.config.label2id == {"low": 0, "high": 1, "new": 2}
    rows = safetensors.torch.load_file(bert / "model.safetensors")["classifier.weight"]
    assert torch.equal(model.classifier.weight.detach(), rows[[0, 2, 2]])
    for wrong in ("a,b", "a,b,c,d"):
        with pytest.raises(UsageError, match="3 rows"):
            headscope.edit(folder, tmp_path / "other", labels=wrong)


@pytest.mark.parametrize(
    ("fields", "without"),
    [
        ({}, ()),
        ({}, ("label2id",)),
        ({"id2label": {"00": "bad", "01": "fair", " 2 ": "good"}}, ()),
        ({"id2label": {"2": "good", "0": "bad", "1": "fair"}}, ()),
        ({"num_labels": 3, "_num_labels": 3}, ()),
        ({"num_labels": 3}, ("id2label", "label2id")),
        ({"num_labels": 3, "attn_config": {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}}, ("id2label", "label2id")),
        ({"id2label": {"0": "Good", "1": "good", "2": "good "}}, ("label2id",)),
        ({"id2label": {"0": 1, "1": 2.5, "2": True}}, ("label2id",)),
    ],
)
def test_names_are_those_that_transformers_reads(
    fields: dict[str, Any], without: tuple[str, ...], bert: Path, tmp_path: Path
) -> None:
    folder = with_config(bert, tmp_path / "old", fields, without)
    names = transformers.AutoConfig.from_pretrained(folder).id2label
    found = headscope.edit(folder, tmp_path / "new", order=[str(names[at]) for at in (2, 0, 1)])
    assert found.verdict.value == "proven", found.proof
    after = transformers.AutoConfig.from_pretrained(tmp_path / "new").id2label
    assert after == {0: str(names[2]), 1: str(names[0]), 2: str(names[1])}
    old, new = (safetensors.torch.load_file(path / "model.safetensors") for path in (folder, tmp_path / "new"))
    assert torch.equal(new["classifier.weight"], old["classifier.weight"][[2, 0, 1]])


def test_labels_rename_all_classes_before_every_other_change(bert: Path, tmp_path: Path) -> None:
    found = headscope.edit(
        bert, tmp_path / "new", labels=("a", "b", "c"), rename={"a": "A"}, drop="b", order="c,A", threshold={"c": 0.7}
    )
    assert [(item.name, item.name_before, item.source) for item in found.labels] == [("c", "good", 2), ("A", "bad", 0)]
    assert found.labels_before == LABELS and found.verdict.value == "proven"
    with pytest.raises(UsageError, match="no class is named bad"):
        headscope.edit(bert, tmp_path / "other", labels="a,b,c", drop="bad")


def test_the_file_of_changes_has_its_own_option(bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "changes.json"
    file.write_text(json.dumps({"labels": ["x", "y", "z"], "drop": ["y"]}))
    for given in (file, str(file)):
        with pytest.raises(UsageError) as caught:
            headscope.edit(bert, tmp_path / "new", labels=given)  # type: ignore[arg-type]
        assert "--labels-file" in caught.value.hint
    assert main(["edit", str(bert), "-o", str(tmp_path / "new"), "--labels", str(file)]) == 2
    assert "--labels-file" in capsys.readouterr().err
    assert main(["edit", str(bert), "-o", str(tmp_path / "new"), "--labels-file", str(file), "-q"]) == 0
    assert transformers.AutoConfig.from_pretrained(tmp_path / "new").id2label == {0: "x", 1: "z"}
    with pytest.raises(UsageError, match="labels is given"):
        headscope.edit(bert, tmp_path / "other", labels="a,b,c", labels_file=file)


def test_another_setting_of_contradictory_names_is_refused_too(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = with_config(bert, tmp_path / "old", {"id2label": SHIFTED}, ("label2id",))
    refused(folder, "--pad-token-id", "1", capsys=capsys)
    assert headscope.edit(folder, tmp_path / "new", pad_token_id=1, labels="a,b,c").verdict.value == "proven"


def test_a_contradiction_in_place_changes_nothing(bert: Path, tmp_path: Path) -> None:
    folder = with_config(bert, tmp_path / "old", {"num_labels": 7})
    before = contents(folder)
    assert headscope.edit(folder, in_place=True, drop="bad").verdict.value == "refused"
    assert contents(folder) == before
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_a_merged_adapter_has_no_names_of_a_base_that_contradicts_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = with_config(save_base(tmp_path / "first"), tmp_path / "base", {"id2label": SHIFTED}, ("label2id",))
    lora = peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"], r=2)
    adapter = save_adapter(base, tmp_path / "adapter", lora)
    refused(adapter, "--merge-adapter", capsys=capsys)
    found = headscope.edit(adapter, tmp_path / "new", merge_adapter=True, labels="a,b,c")
    assert found.verdict.value == "proven", found.proof
    assert transformers.AutoConfig.from_pretrained(tmp_path / "new").id2label == {0: "a", 1: "b", 2: "c"}
    with pytest.raises(UsageError, match="names 2 classes"):
        headscope.edit(adapter, tmp_path / "other", merge_adapter=True, labels="a,b")


def test_a_head_of_contradictory_names_is_not_written_into_an_adapter(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = save_base(tmp_path / "base")
    save_adapter(base, tmp_path / "adapter", peft.LoraConfig(target_modules=["query"], r=2))
    head = with_config(bert, tmp_path / "head", {"_num_labels": 9})
    refused(tmp_path / "adapter", "--adapter-head", str(head), capsys=capsys)


def test_many_names_contradict_each_other_in_a_moment(bert: Path) -> None:
    names = {str(at + 1): f"class {at}" for at in range(200_000)}
    started = time.process_time()
    assert list(faults_of_names({"id2label": names, "label2id": {}}))
    assert time.process_time() - started < 3
