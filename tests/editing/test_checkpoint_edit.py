"""`edit` on real saves: what Transformers loads and computes before and after is the oracle."""

import errno
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import safetensors.torch
import torch
import transformers

import headscope
from headscope.errors import HeadscopeError, NotFound, Unsupported, UsageError
from headscope.shell.app import main
from headscope.slices.edit import checkpoint_edit
from tests.editing.checkpoints import into_cache, logits, save_base, saved, with_config
from tests.editing.ending import disturb
from tests.edits import State, edit_tensors
from tests.saving import FORMATS
from tests.scorers import save_tokenizer

FAMILIES = (
    "BertForSequenceClassification", "RobertaForSequenceClassification", "DistilBertForSequenceClassification",
    "ElectraForSequenceClassification", "GPT2ForSequenceClassification", "LlamaForSequenceClassification",
    "BertForTokenClassification", "ViTForImageClassification",
)  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_kept_classes_have_the_logits_of_before_whatever_the_family(name: str, tmp_path: Path) -> None:
    source = saved(name, tmp_path / "old")
    found = headscope.edit(source, tmp_path / "new", add={"new": "mean", "like": "copy:good"}, drop="fair",
                           order="new,good,bad,like")  # fmt: skip
    assert found.verdict.value == "proven", found.proof
    before, after = logits(source, name), logits(tmp_path / "new", name)
    promised = torch.stack([before.mean(1), before[:, 2], before[:, 0], before[:, 2]], 1)
    torch.testing.assert_close(after, promised, rtol=1e-4, atol=1e-5)
    config = json.loads((tmp_path / "new" / "config.json").read_text())
    assert list(config["id2label"].values()) == ["new", "good", "bad", "like"]
    assert config["label2id"] == {"new": 0, "good": 1, "bad": 2, "like": 3}
    assert [(item.origin.value, item.source) for item in found.labels] == [
        ("mean", None), ("kept", 2), ("kept", 0), ("copied", 2)
    ]  # fmt: skip


def test_temperature_bias_and_threshold_are_folded_into_the_last_layer(bert: Path, tmp_path: Path) -> None:
    found = headscope.edit(
        bert, tmp_path / "new", bias={"bad": 0.5}, threshold={"good": 0.8}, temperature=2.0,
        problem_type="multi_label_classification",
    )  # fmt: skip
    assert found.verdict.value == "proven", found.proof
    before, after = logits(bert), logits(tmp_path / "new")
    shifts = torch.tensor([0.5, 0.0, -math.log(0.8 / 0.2)])
    torch.testing.assert_close(after, (before + shifts) / 2, rtol=1e-4, atol=1e-5)
    is_chosen = after[:, 2].sigmoid() > 0.5
    assert torch.equal(is_chosen, before[:, 2].sigmoid() > 0.8)
    assert any("0.8" in sentence for sentence in found.exact)


def test_of_two_classes_a_threshold_of_the_softmax_is_exact(bert: Path, tmp_path: Path) -> None:
    headscope.edit(bert, tmp_path / "two", drop="fair")
    found = headscope.edit(tmp_path / "two", tmp_path / "new", threshold={"good": 0.9})
    before, after = logits(tmp_path / "two").softmax(1), logits(tmp_path / "new")
    assert torch.equal(after.argmax(1) == 1, before[:, 1] > 0.9)
    assert not found.approximate


@pytest.mark.parametrize(
    "options",
    [
        {"drop": "fair", "threshold": {"good": 0.8}},  # its probability was one of three
        {"threshold": {"good": 0.8}},
        {"threshold": {"good": 0.8, "bad": 0.6}, "drop": "fair"},
    ],
)
def test_a_threshold_that_decides_only_roughly_is_not_called_exact(
    bert: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    found = headscope.edit(bert, tmp_path / "new", **options)
    assert not any("0.8" in sentence for sentence in found.exact)
    assert any("threshold" in sentence for sentence in found.approximate)


def test_a_bias_beside_a_threshold_makes_it_inexact(bert: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"problem_type": "multi_label_classification", "threshold": {"good": 0.8, "bad": 0.3}}
    found = headscope.edit(bert, tmp_path / "new", bias={"good": 1.0}, **options)
    assert [sentence for sentence in found.exact if "0.5" in sentence] == [
        sentence for sentence in found.exact if sentence.startswith("bad ")
    ]


def test_merged_classes_have_the_mean_of_the_logits(bert: Path, tmp_path: Path) -> None:
    found = headscope.edit(bert, tmp_path / "new", merge={"poor": ["bad", "fair"]})
    before, after = logits(bert), logits(tmp_path / "new")
    promised = torch.stack([before[:, :2].mean(1) + math.log(2), before[:, 2]], 1)
    torch.testing.assert_close(after, promised, rtol=1e-4, atol=1e-5)
    assert found.labels[0].merged == (0, 1) and found.approximate


def test_a_random_row_is_that_of_the_class_and_of_the_seed(bert: Path, tmp_path: Path) -> None:
    for name, seed in {"a": 1, "b": 1, "c": 2}.items():
        found = headscope.edit(bert, tmp_path / name, add={"new": "random"}, seed=seed)
        assert found.proof.not_proven == ("new",) and found.verdict.value == "proven"
    rows = [
        safetensors.torch.load_file(tmp_path / name / "model.safetensors")["classifier.weight"][3] for name in "abc"
    ]
    assert torch.equal(rows[0], rows[1]) and not torch.equal(rows[0], rows[2])
    assert 0.005 < float(rows[0].std()) < 0.04  # initializer_range is 0.02


def test_an_edit_and_its_inverse_give_the_bytes_of_before(bert: Path, tmp_path: Path) -> None:
    headscope.edit(bert, tmp_path / "one", rename={"fair": "so-so"}, add="new", order="new,good,bad,so-so")
    headscope.edit(tmp_path / "one", tmp_path / "two", rename={"so-so": "fair"}, drop="new", order="bad,fair,good")
    one, two = (safetensors.torch.load_file(folder / "model.safetensors") for folder in (bert, tmp_path / "two"))
    assert one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)
    configs = [json.loads((folder / "config.json").read_text()) for folder in (bert, tmp_path / "two")]
    assert configs[0] == configs[1]


@pytest.mark.parametrize("kind", ["sharded-safetensors", "torch-zip"])
def test_shards_and_pytorch_files_become_safetensors_files(kind: str, bert: Path, tmp_path: Path) -> None:
    source, before = tmp_path / "old", logits(bert)
    FORMATS[kind](transformers.BertForSequenceClassification.from_pretrained(bert), source)
    states = checkpoint_edit.file_states(source)
    found = headscope.edit(source, tmp_path / "new", add="new", link=True)
    assert found.verdict.value == "proven", found.proof
    assert checkpoint_edit.file_states(source) == states
    torch.testing.assert_close(logits(tmp_path / "new")[:, :3], before, rtol=1e-4, atol=1e-5)
    written = sorted(path.name for path in (tmp_path / "new").glob("*.safetensors"))
    assert not list((tmp_path / "new").glob("*.bin*")) and written
    linked = [
        name for name in written if (source / name).exists() and (source / name).samefile(tmp_path / "new" / name)
    ]
    assert len(linked) == (len(written) - 1 if len(written) > 1 else 0) or len(written) == 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_kept_and_its_rounding_said(dtype: str, bert: Path, tmp_path: Path) -> None:
    model = transformers.BertForSequenceClassification.from_pretrained(bert, dtype=getattr(torch, dtype))
    model.save_pretrained(tmp_path / "old")
    found = headscope.edit(tmp_path / "old", tmp_path / "new", add={"new": "mean"}, temperature=1.7)
    assert found.verdict.value == "proven", found.proof
    assert {item.dtype for item in found.tensors} == {dtype}
    assert found.proof.tolerance is not None and found.proof.tolerance > torch.finfo(getattr(torch, dtype)).eps


def test_the_texts_run_through_both_whole_models(bert: Path, tmp_path: Path) -> None:
    source = saved("BertForSequenceClassification", tmp_path / "old", vocab_size=200)
    save_tokenizer(source)
    found = headscope.edit(source, tmp_path / "new", drop="bad", texts=["w1 w2 w3", "w7 w9"])
    assert (found.verdict.value, found.proof.texts) == ("proven", 2), found.proof


@pytest.mark.parametrize("link", [False, True])
def test_a_padding_token_is_named_in_the_tokenizer_too(link: bool, tmp_path: Path) -> None:
    """A batch needs both; Transformers' own tokenizer and model are asked, and what the source has stays."""
    new = tmp_path / "new"
    source = saved("GPT2ForSequenceClassification", tmp_path / "old", vocab_size=200, pad_token_id=None)
    tokenizer = save_tokenizer(source)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(source)
    states = checkpoint_edit.file_states(source)
    end = tokenizer.convert_tokens_to_ids("[SEP]")
    found = headscope.edit(source, new, pad_token_id=end, link=link)
    assert found.verdict.value == "proven" and any("'[SEP]'" in sentence for sentence in found.approximate)
    assert checkpoint_edit.file_states(source) == states
    assert transformers.AutoTokenizer.from_pretrained(source).pad_token is None
    padding = transformers.AutoTokenizer.from_pretrained(new)
    model = transformers.GPT2ForSequenceClassification.from_pretrained(new).eval()
    texts = ["w1 w2 w3", "w7"]
    with torch.no_grad():
        batch = model(**padding(texts, padding=True, return_tensors="pt")).logits
        single = torch.cat([model(**padding(text, return_tensors="pt")).logits for text in texts])
    assert torch.allclose(batch, single, atol=1e-5)
    again = headscope.edit(new, tmp_path / "again", pad_token_id=7)
    assert any("still pads with '[SEP]'" in sentence for sentence in again.approximate)
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "again").pad_token == "[SEP]"


def test_a_padding_token_that_no_tokenizer_has_is_said(bert: Path, tmp_path: Path) -> None:
    found = headscope.edit(bert, tmp_path / "new", pad_token_id=7)
    assert any("No tokenizer beside the weights has token 7" in sentence for sentence in found.approximate)


@pytest.mark.usefixtures("proofs_apart")
def test_the_command_writes_a_folder_that_other_commands_understand(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    states = checkpoint_edit.file_states(bert)
    new = str(tmp_path / "new")
    assert main(["edit", str(bert), "-o", new, "--add", "new=copy:good", "--rename", "bad=awful", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "proven" and document["proof"]["scores_equal"] is True
    assert [(item["name"], item["from"]) for item in document["labels"]] == [
        ("awful", 0), ("fair", 1), ("good", 2), ("new", 2)
    ]  # fmt: skip
    assert json.loads((tmp_path / "new" / "headscope-edit.json").read_text())["labels"] == document["labels"]
    card = (tmp_path / "new" / "README.md").read_text()
    assert "awful" in card or "4 classes" in card
    assert (tmp_path / "new" / "vocab.txt").read_text() == "[PAD]\n"
    assert checkpoint_edit.file_states(bert) == states
    assert main(["inspect", new, "-q"]) == 0
    assert headscope.inspect(new).model.labels == ("awful", "fair", "good", "new")


def test_a_dry_run_writes_nothing(bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["edit", str(bert), "-o", str(tmp_path / "new"), "--drop", "bad", "--dry-run"]) == 0
    assert capsys.readouterr().out and not list(tmp_path.iterdir())


def test_in_place_keeps_the_checkpoint_as_a_backup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = saved("BertForSequenceClassification", tmp_path / "model")
    before = logits(source)
    monkeypatch.setenv("COLUMNS", "2000")  # no path is broken into lines
    assert main(["edit", str(source), "--in-place", "--drop", "bad"]) == 0
    kept = f"{source}.before-edit"
    words = f"backup {kept} is the checkpoint as it was; to go back: rm -r {source} && mv {kept} {source}"
    assert words in " ".join(capsys.readouterr().out.split())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "model.before-edit"]
    torch.testing.assert_close(logits(tmp_path / "model.before-edit"), before)
    torch.testing.assert_close(logits(source), before[:, 1:], rtol=1e-4, atol=1e-5)
    monkeypatch.setattr(checkpoint_edit, "examine", None)  # nothing is read before that is said
    with pytest.raises(UsageError, match="before-edit exists already"):
        headscope.edit(source, in_place=True, rename={"fair": "x"})


@pytest.mark.parametrize(
    "options",
    [
        {"drop": "nosuch"},
        {"drop": "bad,fair,good"},
        {"keep": "bad"},  # the softmax of one score
        {"add": "good"},
        {"add": {"x": "ones"}},
        {"add": {"x": "copy:nosuch"}},
        {"rename": {"bad": "good"}},
        {"rename": {"bad": ""}},
        {"order": "bad,good"},
        {"order": "bad,good,fair,bad"},
        {"merge": {"x": ["bad"]}},
        {"merge": {"good": ["bad", "fair"]}},
        {"threshold": {"bad": 1.0}},
        {"threshold": {"bad": float("nan")}},
        {"bias": {"bad": float("inf")}},
        {"temperature": 0.0},
        {"temperature": float("nan")},
        {"pad_token_id": -1},
        {"problem_type": "ranking"},
        {"labels_file": "/no/such/file.json"},
        {"labels": "a,b,c,d"},
        {"labels": "a,b,a"},
        {"labels": "a,,b"},
        {"labels": ("a", " ", "b")},
        {},
    ],
)
def test_a_change_that_cannot_be_made_writes_nothing(bert: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        headscope.edit(bert, tmp_path / "new", **options)
    assert caught.value.message and not list(tmp_path.iterdir())


def test_an_output_that_exists_or_is_inside_is_refused(bert: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "mine.txt").write_text("mine")
    for output in (tmp_path / "new", bert / "inside", tmp_path / "no" / "parent", bert):
        with pytest.raises(UsageError):
            headscope.edit(bert, output, drop="bad")
    assert (tmp_path / "new" / "mine.txt").read_text() == "mine" and not (bert / "inside").exists()


def test_the_folder_that_the_command_runs_in_is_no_target_and_is_edited_in_place(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(UsageError, match="exists already"):
        headscope.edit(bert, ".", drop="bad")
    shutil.copytree(bert, tmp_path / "mine")
    monkeypatch.chdir(tmp_path / "mine")
    assert headscope.edit(".", in_place=True, drop="bad").verdict.value == "proven"
    assert {path.name for path in tmp_path.iterdir()} == {"empty", "mine", "mine.before-edit"}
    assert logits(tmp_path / "mine").shape[-1] == 2 and logits(tmp_path / "mine.before-edit").shape[-1] == 3


def test_what_no_file_can_name_is_refused_before_work(bert: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not valid UTF-8"):
        headscope.edit(bert, tmp_path / os.fsdecode(b"real\xff"), drop="bad")
    with pytest.raises(UsageError, match="not valid Unicode"):
        headscope.edit(bert, tmp_path / "new", rename={"bad": os.fsdecode(b"b\xff")})
    source = shutil.copytree(bert, tmp_path / "old")
    config = source / "config.json"
    config.write_text(config.read_text().replace("fair", "\\ud800"))
    with pytest.raises(UsageError, match="not valid Unicode"):
        headscope.edit(source, tmp_path / "new", drop="bad")
    moved = source.rename(tmp_path / os.fsdecode(b"old\xff"))
    config = moved / "config.json"
    config.write_text(config.read_text().replace("\\ud800", "fair"))
    with pytest.raises(UsageError, match="not valid UTF-8"):
        headscope.edit(moved, in_place=True, drop="bad")
    assert [path.name for path in tmp_path.iterdir()] == [moved.name]


def test_a_head_that_the_checkpoint_does_not_give_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="classifier"):
        headscope.edit(save_base(tmp_path / "base"), tmp_path / "new", add="x")


def test_a_checkpoint_that_only_a_repair_makes_loadable_is_sent_there(bert: Path, tmp_path: Path) -> None:
    """Its head isn't random: nothing has to be trained."""
    wrapped = shutil.copytree(bert, tmp_path / "wrapped")
    edit_tensors(wrapped / "model.safetensors", lambda state: {f"module.{key}": value for key, value in state.items()})
    with pytest.raises(Unsupported) as caught:
        headscope.edit(wrapped, tmp_path / "new", drop="bad")
    assert "headscope repair" in caught.value.hint


def test_a_source_that_changes_meanwhile_leaves_nothing(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = shutil.copytree(bert, tmp_path / "old")
    disturb(monkeypatch, checkpoint_edit, "write_weights", lambda *_: (source / "config.json").write_text("{}"))
    with pytest.raises(NotFound, match="changed while"):
        headscope.edit(source, tmp_path / "new", drop="bad")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda state: state["classifier.weight"].view(-1)[-1].add_(1), "kept_rows_equal"),
        (lambda state: state["classifier.bias"].view(-1)[-1].add_(1), "scores_equal"),
        (lambda state: state["bert.encoder.layer.0.output.dense.weight"].view(-1)[-1].add_(1), "base_unchanged"),
        (lambda state: state.pop("bert.pooler.dense.bias"), "loads"),
    ],
)
def test_a_result_that_is_not_as_promised_is_refused(
    change: Callable[[State], object], part: str, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part of the proof fails on a fault in the files, made after they were written."""

    def damage(folder: Path, *_: Any) -> None:
        edit_tensors(folder / "model.safetensors", change)

    disturb(monkeypatch, checkpoint_edit, "write_weights", damage)
    found = headscope.edit(bert, tmp_path / "new", drop="bad")
    assert getattr(found.proof, part) is False and found.verdict.value == "refused"
    assert main(["edit", str(bert), "-o", str(tmp_path / "new"), "--drop", "bad"]) == 1
    assert not list(tmp_path.iterdir())


def test_an_end_right_after_the_folder_was_made_removes_it(bert: Path, tmp_path: Path, monkeypatch: Any) -> None:
    make = os.mkdir

    def make_and_end(path: Any, *given: Any, **options: Any) -> None:
        make(path, *given, **options)
        if Path(path).parent == tmp_path:
            raise SystemExit(143)

    monkeypatch.setattr(os, "mkdir", make_and_end)
    with pytest.raises(SystemExit):
        headscope.edit(bert, tmp_path / "new", drop="bad")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("number", "hint"),
    [(errno.ENOSPC, "free some space"), (errno.EACCES, "permission"), (errno.ENOTEMPTY, "new folder")],
)
def test_a_target_that_cannot_be_written_is_a_sentence(
    number: int, hint: str, bert: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(checkpoint_edit, "copy_files", Mock(side_effect=OSError(number, os.strerror(number))))
    with pytest.raises(HeadscopeError, match=os.strerror(number)) as caught:
        headscope.edit(bert, tmp_path / "new", drop="bad")
    assert hint in caught.value.hint
    assert not list(tmp_path.iterdir())


def test_labels_from_a_file(bert: Path, tmp_path: Path) -> None:
    file = tmp_path / "labels.json"
    file.write_text(json.dumps({"add": {f"n{at}": "zero" for at in range(2000)}, "rename": {"bad": "worst"}}))
    found = headscope.edit(bert, tmp_path / "new", labels_file=file)
    assert found.verdict.value == "proven" and len(found.labels) == 2003
    assert logits(tmp_path / "new").shape[1] == 2003


def notice_of(folder: Path) -> str:
    return next((text for text in headscope.inspect(folder).checkpoint.notices if "edited" in text), "")


def test_other_commands_name_the_edit_as_long_as_its_record_fits(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new"
    headscope.edit(bert, new, add="new", drop="bad", rename={"fair": "so-so"}, temperature=2.0)
    expected = f"edited from {str(bert)[:60]}"
    assert notice_of(new).startswith(expected)
    for words in ("1 class added (new)", "1 class left out (bad)", "1 class renamed", "a temperature of 2"):
        assert words in notice_of(new)
    assert not notice_of(bert)
    for command in (["inspect"], ["check", "--for", "inference"], ["compare", str(bert)]):
        main([*command, str(new)])
        assert "edited from" in " ".join(capsys.readouterr().out.split())
    model = transformers.BertForSequenceClassification.from_pretrained(new)
    with torch.no_grad():
        model.classifier.weight[0, 0] += 1
    model.save_pretrained(new)
    assert "no longer fits" in notice_of(new)


@pytest.mark.parametrize(
    "record",
    [b"", b"[]", b"{", b"[" * 100_000, b"\xff\xfe", b"{}", b'{"source": 3, "digests": {}}',
     b'{"source": "x", "digests": {"config.json": 5}}', b'{"source": "x", "digests": []}',
     json.dumps({"source": "x\x1b[31m" * 1000, "digests": {f"{at}": "" for at in range(100)}}).encode()],
)  # fmt: skip
def test_a_hostile_record_says_nothing(bert: Path, tmp_path: Path, record: bytes) -> None:
    folder = shutil.copytree(bert, tmp_path / "model")
    (folder / "headscope-edit.json").write_bytes(record)
    assert "edited from" not in notice_of(folder) or "no longer fits" in notice_of(folder)


def test_a_record_that_fits_and_lies_in_its_types_says_nothing(bert: Path, tmp_path: Path) -> None:
    headscope.edit(bert, tmp_path / "new", drop="bad")
    path = tmp_path / "new" / "headscope-edit.json"
    record = json.loads(path.read_text())
    lies: list[dict[str, Any]] = [
        {"labels": 3}, {"labels": [3]}, {"labels": [{"name": "x"}]}, {"labels_before": None}, {"temperature": "x"},
        {"labels": [{**record["labels"][0], "merged": 5}]}, {"labels": [{**record["labels"][0], "from": [1]}]},
        {"labels": [{**record["labels"][0], "from": "x"}, record["labels"][0]]},
    ]  # fmt: skip
    for lie in lies:
        path.write_text(json.dumps(record | lie))
        assert not notice_of(tmp_path / "new"), lie


def test_the_last_layer_can_have_another_number_format(bert: Path, tmp_path: Path) -> None:
    found = headscope.edit(bert, tmp_path / "half", dtype="bfloat16", add={"new": "mean"})
    screen = " ".join(str(found).split())
    assert "kept rows are equal, rounded to the other number format: yes" in screen
    assert "kept rows are equal byte by byte" not in screen
    assert not [words for words in found.exact if "logit" in words]  # rounded, all of them
    assert found.verdict.value == "proven" and any("rounded" in text for text in found.approximate), found.proof
    one, half = (safetensors.torch.load_file(path / "model.safetensors") for path in (bert, tmp_path / "half"))
    for key in ("classifier.weight", "classifier.bias"):
        assert torch.equal(half[key][:3], one[key].bfloat16())
    headscope.edit(tmp_path / "half", tmp_path / "single", dtype="float32", drop="new")
    single = safetensors.torch.load_file(tmp_path / "single" / "model.safetensors")
    assert torch.equal(single["classifier.weight"], one["classifier.weight"].bfloat16().float())
    assert {key: value.dtype for key, value in single.items()} == {key: value.dtype for key, value in one.items()}
    with pytest.raises(UsageError, match="int8"):
        headscope.edit(bert, tmp_path / "x", dtype="int8")


def test_a_class_that_finds_every_weight_can_be_named(bert: Path, tmp_path: Path) -> None:
    source = with_config(bert, tmp_path / "old", {"architectures": ["BertForTokenClassification"]})
    found = headscope.edit(source, tmp_path / "new", architecture="BertForSequenceClassification")
    assert found.verdict.value == "proven", found.proof
    torch.testing.assert_close(logits(tmp_path / "new"), logits(bert))
    assert transformers.AutoConfig.from_pretrained(tmp_path / "new").architectures == ["BertForSequenceClassification"]
    for name in ("BertForTokenClassification", "BertForQuestionAnswering", "BertForMaskedLM"):
        with pytest.raises(HeadscopeError):
            headscope.edit(bert, tmp_path / "other", architecture=name)
    assert not (tmp_path / "other").exists()


def test_a_hub_id_is_its_folder_in_the_cache(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = into_cache(bert, tmp_path / "hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    states = checkpoint_edit.file_states(snapshot)
    found = headscope.edit("owner/name", tmp_path / "new", drop="bad")
    assert found.verdict.value == "proven" and found.source == "owner/name", found.proof
    assert not any(path.is_symlink() for path in (tmp_path / "new").iterdir())
    torch.testing.assert_close(logits(tmp_path / "new"), logits(bert)[:, 1:], rtol=1e-4, atol=1e-5)
    assert checkpoint_edit.file_states(snapshot) == states
    with pytest.raises(UsageError, match="stay as they are"):
        headscope.edit("owner/name", in_place=True, drop="bad")
    with pytest.raises(HeadscopeError):
        headscope.edit("owner/other", tmp_path / "x", drop="bad")


@pytest.mark.parametrize("count", [5, 7, 11])
def test_a_number_of_classes_that_is_a_size_of_the_probe_is_proven_too(bert: Path, tmp_path: Path, count: int) -> None:
    found = headscope.edit(bert, tmp_path / "new", add=[f"n{at}" for at in range(count - 3)])
    assert found.verdict.value == "proven" and len(found.labels) == count, found.proof
    back = headscope.edit(tmp_path / "new", tmp_path / "old", keep="bad,fair,good")
    assert back.verdict.value == "proven", back.proof
