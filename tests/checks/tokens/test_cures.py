"""The code that a finding prints, run as it is, cures the checkpoint that has it; so does a command that it names."""

import ast
import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForSequenceClassification

import headscope
from headscope.checks.rules.cures import token_id_code
from headscope.facts import Finding
from headscope.shell import main
from tests.checks.tokens.tokenized import save, tokenizer
from tests.edits import edit_json, edit_tensors
from tests.families import FAMILIES

pytestmark = pytest.mark.usefixtures("runs_here")


def faults(folder: Path, rule: str) -> list[Finding]:
    """The findings of one rule, with the run that some need."""
    result = headscope.check(str(folder), "inference", select=rule, offline=True, run=True)
    return [item for item in result.findings if item.id == rule]


def cure(folder: Path, rule: str) -> None:
    """Runs the code of the finding of a rule, after which there is none."""
    (finding,) = faults(folder, rule)
    exec(finding.code, {})
    assert faults(folder, rule) == []


def run_command(finding: Finding, written: Path, more: str = "") -> str:
    """Runs the command of a finding, which writes to a folder; gives it as it was shown."""
    (command,) = re.findall(r"`headscope ([^`]*)`", finding.remedy)
    words = command.replace("-o DIR", f"-o {written}").replace("...", more)
    assert main(shlex.split(words)) == 0
    return str(command)


FAULTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "HS301 no pad token": ("gpt2", {"pad_token": None}, {"pad_token_id": None}),
    "HS301 not in the configuration": ("gpt2", {}, {"pad_token_id": None}),
    "HS302": ("gpt2", {}, {"pad_token_id": 50_000}),
    "HS303": ("bert", {"side": "left"}, {}),
    "HS308": ("bert", {"model_max_length": 4096}, {}),
    "HS528": ("gpt2", {}, {"n_positions": 64}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_code_of_a_finding_cures_it_and_changes_its_fields_alone(fault: str, tmp_path: Path) -> None:
    family, tokens, config = FAULTS[fault]
    folder, rule = save(tmp_path / "it's a model", family, tokenizer(family, **tokens), **config), fault[:5]
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    cure(folder, rule)
    whole = headscope.check(str(folder), "inference", offline=True, run=True)
    assert "HS521" not in {item.id for item in whole.findings}
    for file in folder.iterdir():
        if file.suffix == ".json" and file.read_bytes() != before[file.name]:
            old, new = json.loads(before[file.name]), json.loads(file.read_bytes())
            changed = {name for name in {*old, *new} if old.get(name) != new.get(name)}
            assert changed <= {"pad_token", "pad_token_id", "padding_side", "model_max_length"}
        else:
            assert file.read_bytes() == before[file.name]


def test_a_file_that_is_not_there_is_written(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", "bert", tokenizer("bert", "left"))
    (finding,) = faults(folder, "HS303")
    (folder / "tokenizer_config.json").unlink()
    exec(finding.code, {})
    assert json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8")) == {"padding_side": "right"}


def test_no_code_for_a_place_that_others_share(tmp_path: Path) -> None:
    commit = tmp_path / "models--me--own" / "snapshots" / ("a" * 40)
    (tmp_path / "models--me--own" / "blobs").mkdir(parents=True)
    (tmp_path / "models--me--own" / "refs").mkdir()
    folder = save(commit, "bert", tokenizer("bert", "left"))
    assert [item.code for item in faults(folder, "HS303")] == [""]
    whole = save(tmp_path / "whole", "bert", tokenizer("bert", "left"))
    save(whole / "part", "bert", tokenizer("bert", "left"))
    part = headscope.check(str(whole), "inference", select="HS303", subfolder="part", offline=True)
    assert [item.code for item in part.findings] == [""]


def test_the_command_of_a_finding_names_the_classes(tmp_path: Path) -> None:
    folder = save(tmp_path / "a model", "bert", tokenizer("bert"))
    (finding,) = faults(folder, "HS202")
    run_command(finding, tmp_path / "named")
    assert faults(tmp_path / "named", "HS202") == []


@pytest.mark.parametrize("number", [2, 5, 9])
def test_the_command_of_another_class_count_keeps_the_trained_rows(number: int, tmp_path: Path) -> None:
    folder, written = save(tmp_path / "a model", "bert", tokenizer("bert"), num_labels=3), tmp_path / "resized"
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        AutoModelForSequenceClassification.from_pretrained(folder, num_labels=number)
    result = headscope.check(str(folder), num_labels=number, offline=True)
    (finding,) = (item for item in result.findings if item.id == "HS201")
    assert finding.severity == "warning" and "in another shape" in result.profile_reason
    run_command(finding, written, "--add E --add F")  # of more than four, the command begins the list
    loaded, notes = AutoModelForSequenceClassification.from_pretrained(written, output_loading_info=True)
    assert not any(notes.values()) and loaded.num_labels == number
    before = AutoModelForSequenceClassification.from_pretrained(folder).classifier.weight
    assert torch.equal(loaded.classifier.weight[:3], before[: min(number, 3)])


def test_no_command_where_edit_can_not_keep_the_rows(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", "bert", tokenizer("bert"), num_labels=3)
    for number in (1, 5):
        if number == 5:  # a configuration that was changed by hand
            edit_json(folder / "config.json", {"id2label": {"0": "a"}, "label2id": {"a": 0}})
        (found,) = headscope.check(str(folder), "training", num_labels=number, select="HS201", offline=True).findings
        assert "headscope edit" not in found.remedy


@pytest.mark.parametrize("label2id", [{"no": 0, "maybe": 2, "yes": 1}, {"no": "0", "maybe": "1"}])
def test_the_command_names_the_classes_as_id2label_does(label2id: dict[str, Any], tmp_path: Path) -> None:
    folder = save(tmp_path / "model", "bert", tokenizer("bert"), num_labels=2)
    file = folder / "config.json"
    edit_json(file, {"id2label": {"0": "no", "1": "maybe"}, "label2id": label2id})
    (finding,) = faults(folder, "HS203")
    if finding.code:  # ids that are texts
        cure(folder, "HS203")
        assert json.loads(file.read_text())["label2id"] == {"no": 0, "maybe": 1}
        return
    assert "--labels no,maybe" in run_command(finding, tmp_path / "named")
    assert faults(tmp_path / "named", "HS203") == []


def test_no_token_is_set_for_which_the_embeddings_have_no_row(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", "gpt2", tokenizer("gpt2"), pad_token_id=None)
    (finding,) = faults(folder, "HS301")
    assert "'pad_token_id'] = " in finding.code
    subject: Any = SimpleNamespace(built=SimpleNamespace(embedding_rows=50, vocab_size=99), folder=str(folder))
    assert token_id_code(subject, "pad_token_id", 50) == ""
    assert token_id_code(subject, "pad_token_id", 49)


def test_a_linked_file_is_replaced_and_its_target_stays(tmp_path: Path) -> None:
    kept = save(tmp_path / "kept", "bert", tokenizer("bert", "left"))
    folder = tmp_path / "linked"
    folder.mkdir()
    for file in kept.iterdir():
        (folder / file.name).symlink_to(file)
    before = (kept / "tokenizer_config.json").read_bytes()
    cure(folder, "HS303")
    assert (kept / "tokenizer_config.json").read_bytes() == before


def test_a_tensor_is_renamed_in_a_checkpoint_of_that_class_alone(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", "bert", tokenizer("bert"))
    old_head = {"old_head.weight": torch.zeros(5, 32), "old_head.bias": torch.zeros(5)}
    edit_tensors(folder / "model.safetensors", lambda state: state | old_head)
    found = headscope.check(str(folder), "inference", select="HS106", num_labels=5, offline=True).findings
    assert [item.code for item in found] in ([], [""])


def test_names_that_only_label2id_has_are_in_the_command(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", "bert", tokenizer("bert"), num_labels=2)
    for yes, labels in (("yes", "no,yes"), ("yes, sure", "A,B")):
        names = {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "label2id": {yes: 1, "no": 0}}
        edit_json(folder / "config.json", names)
        (finding,) = faults(folder, "HS203")
        assert f"--labels {labels}`" in finding.remedy


def test_a_dry_run_needs_no_place(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", "bert", tokenizer("bert"))
    before = sorted(tmp_path.rglob("*"))
    report = headscope.edit(folder, labels="a,b,c", dry_run=True)
    assert [label.name for label in report.labels] == ["a", "b", "c"]
    assert sorted(tmp_path.rglob("*")) == before


def test_weights_of_a_live_head_train_again() -> None:
    model = FAMILIES["bert"].build("BertForSequenceClassification")
    optimizer = torch.optim.SGD(model.bert.parameters())
    model.classifier.requires_grad_(requires_grad=False)
    for rule in ("HS601", "HS602"):  # a frozen weight needs no optimizer
        (finding,) = headscope.check(model, "training", optimizer=optimizer, select="HS6").findings
        assert finding.id == rule
        exec(finding.code, {"model": model, "optimizer": optimizer})
    assert headscope.check(model, "training", optimizer=optimizer, select="HS6").findings == ()


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "gpt2"])
def test_after_the_explained_remedy_the_whole_head_trains_and_nothing_else(family: str) -> None:
    (code,) = re.findall(r"```py\n(.*?)```", headscope.explain("HS601")[0].text, re.DOTALL)
    freeze = code[code.index("model.base_model") :]
    model = FAMILIES[family].build(FAMILIES[family].classifier, num_labels=3)
    model.base_model.requires_grad_(requires_grad=False)
    of_head = {item.name for item in headscope.inspect(model).head.parameters if item.live}
    trained = sum(item.numel() for item in model.parameters() if item.requires_grad)
    total = sum(model.get_parameter(name).numel() for name in of_head)
    for finding in headscope.check(model, "training", select="HS601").findings:
        assert f"{trained:,} of {total:,} parameters" in finding.message
    assert bool(headscope.check(model, "training", select="HS601").findings) == (family == "bert")
    exec(freeze, {"model": model, "headscope": headscope})
    assert headscope.check(model, "training", select="HS601").findings == ()
    assert {name for name, item in model.named_parameters() if item.requires_grad} == of_head


def test_an_adapter_that_is_trained_again_as_told_carries_the_head(tmp_path: Path) -> None:
    FAMILIES["bert"].build("BertModel").save_pretrained(tmp_path / "base")
    settings: dict[str, Any] = {"target_modules": ["query"]}
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "base")
    get_peft_model(model, LoraConfig(**settings)).save_pretrained(tmp_path / "adapter")
    (finding,) = headscope.check(tmp_path / "adapter", "inference", select="HS107", offline=True).findings
    told = re.findall(r"(\w+)=(\[.*?\]|\".*?\")", finding.remedy)
    assert [name for name, _ in told] == ["task_type", "modules_to_save"]
    again = LoraConfig(**settings, **{name: ast.literal_eval(value) for name, value in told})
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "base")
    get_peft_model(plain, again).save_pretrained(tmp_path / "again")
    assert headscope.check(tmp_path / "again", "inference", select="HS107", offline=True).findings == ()
