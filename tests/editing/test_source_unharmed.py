"""What an edit must not do to the source, to the Hub's cache, to permissions and to files that aren't its own."""

import json
import os
import signal
import stat
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import transformers

import headscope
from headscope.copies import writing
from headscope.copies.config_changes import card_with_edit
from headscope.errors import NotFound, UnfinishedOutput, UsageError
from headscope.shell.app import main
from tests.editing.checkpoints import into_cache, saved
from tests.editing.ending import ended_while_writing
from tests.edits import contents, edit_json
from tests.scorers import save_tokenizer


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A classifier in shards, with a tokenizer that Transformers saved."""
    folder = saved("BertForSequenceClassification", tmp_path / "old", max_shard_size="20KB")
    save_tokenizer(folder)
    (folder / "README.md").write_text("# A model\n")
    return folder


@pytest.mark.parametrize("in_cache", [False, True])
def test_a_linked_result_can_be_saved_into_without_writing_through_to_the_source(
    source: Path, tmp_path: Path, in_cache: bool
) -> None:
    source = into_cache(source, tmp_path) if in_cache else source
    before = contents(source)
    found = headscope.edit(source, tmp_path / "new", drop="bad", link=True)
    assert found.verdict.value == "proven"
    linked = {path.name for path in (tmp_path / "new").iterdir() if path.stat().st_nlink > 1}
    assert linked and all(name.endswith(".safetensors") for name in linked)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "new")
    tokenizer.add_tokens(["new"])
    tokenizer.save_pretrained(tmp_path / "new")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "new")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    model.save_pretrained(tmp_path / "new", max_shard_size="20KB")
    for path in (tmp_path / "new").iterdir():
        if path.suffix not in (".safetensors",):
            with path.open("a") as file:
                file.write("\n")
    assert contents(source) == before


def test_the_hubs_cache_is_not_edited_in_place_and_not_written_into(source: Path, tmp_path: Path) -> None:
    snapshot = into_cache(source, tmp_path)
    before = contents(snapshot)
    (tmp_path / "elsewhere").symlink_to(snapshot)
    for path in (snapshot, tmp_path / "elsewhere", f"{snapshot}/"):
        with pytest.raises(UsageError, match="cache"):
            headscope.edit(path, in_place=True, drop="bad")
    for output in (snapshot.parent / "new", snapshot.parents[1] / "blobs" / "new"):
        with pytest.raises(UsageError, match="Hub's cache"):
            headscope.edit(source, output, drop="bad")
    loose = tmp_path / "loose"  # links into blobs, without the folders of a cache around
    loose.mkdir()
    for path in snapshot.iterdir():
        (loose / path.name).symlink_to(path.resolve())
    with pytest.raises(UsageError, match="Hub's cache"):
        headscope.edit(loose, in_place=True, drop="bad")
    assert contents(snapshot) == before


def modes(folder: Path) -> dict[str, int]:
    found = {path.relative_to(folder).as_posix(): stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
    return found | {".": stat.S_IMODE(folder.stat().st_mode)}


@pytest.mark.parametrize("place", ["new", "existing", "in place"])
@pytest.mark.parametrize(("of_folder", "of_file"), [(0o700, 0o600), (0o750, 0o640), (0o755, 0o644)])
def test_the_result_has_no_permission_that_the_source_lacks(
    source: Path, tmp_path: Path, place: str, of_folder: int, of_file: int
) -> None:
    (source / "1_Pooling").mkdir(mode=0o700)
    (source / "1_Pooling" / "config.json").write_text("{}")
    for path in source.rglob("*"):
        path.chmod(of_folder if path.is_dir() else of_file)
    source.chmod(of_folder)
    new = tmp_path / "new"
    if place == "existing":
        new.mkdir(mode=0o755)
    options: dict[str, Any] = {"in_place": True} if place == "in place" else {"output": new}
    headscope.edit(source, drop="bad", **options)
    found = modes(source if place == "in place" else new)
    assert found["."] == found["1_Pooling"] == of_folder, found
    assert {mode for name, mode in found.items() if "." in name[1:]} == {of_file}, found


def test_the_umask_is_never_set(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0o027)
    monkeypatch.setattr(os, "umask", None)
    try:
        headscope.edit(source, tmp_path / "new", drop="bad")
        headscope.snapshot(source, tmp_path / "snapshot.json")
    finally:
        monkeypatch.undo()
        os.umask(before)
    assert modes(tmp_path / "new")["."] == 0o750
    assert stat.S_IMODE((tmp_path / "snapshot.json").stat().st_mode) == 0o640


@pytest.mark.parametrize(
    ("card", "encoding", "end"),
    [
        ("# Modèle\r\n\r\nfin  \r\n\r\n".encode(), "utf-8", "\r\n"),
        ("# Modèle".encode("latin-1"), "latin-1", "\n"),
        (b"\xff\xfe" + "# Modèle\n".encode("utf-16-le"), "utf-16-le", "\n"),
        (b"", "utf-8", "\n"),
    ],
)
def test_a_card_is_appended_to_and_stays_byte_for_byte(card: bytes, encoding: str, end: str) -> None:
    found = card_with_edit(card, ["Größe → 2", "two"])
    assert found.startswith(card)
    added = found[len(card) :].decode(encoding)
    assert "## Edited with headscope" in added and added.count(end) == added.count("\n")
    assert "Größe" in added and ("→" in added) == (encoding != "latin-1")


def test_an_index_keeps_its_other_fields(source: Path, tmp_path: Path) -> None:
    index = source / "model.safetensors.index.json"
    body = json.loads(index.read_text())
    body["mine"] = {"a": 1}
    body["metadata"] |= {"note": "kept", "total_parameters": 1000}
    index.write_text(json.dumps(body))
    headscope.edit(source, tmp_path / "new", drop="bad")
    found = json.loads((tmp_path / "new" / index.name).read_text())
    assert found["mine"] == {"a": 1} and found["metadata"]["note"] == "kept"
    assert found["metadata"]["total_parameters"] == 1000 - 33  # a row of 32 weights, and its bias
    assert found["weight_map"].keys() == body["weight_map"].keys()


HEADS = (
    "openvino/openvino_model.xml", "openvino/openvino_model.bin", "onnx/model.onnx.data", "fp16/model.safetensors",
    "model.torchscript", "model.pte", "head.mlpackage/Data/weights", "saved_model.pb", "model_head.pkl",
    "coreml.mlmodel", "model.fp16.safetensors", "model.safetensors.q4", "flax_model.msgpack", "classifier.npz",
    "consolidated.00.pth", "variables/variables.data-00000-of-00001", "model.engine", "weights",
    "tf_model.h5.index.json", "pytorch_model.bin", "optimizer.pt", "2_Dense/model.safetensors",
)  # fmt: skip
HEADS_UNDER_OTHER_NAMES = (
    "license_plate_head.safetensors", "notice_head.pt", "merges_model.pt", "vocab_classifier.onnx", "vocab_head.npy",
    "sentencepiece_head.model", "eval_results.json", "head_config.json", "head.csv", "head.txt", "head.yml",
)  # fmt: skip
STAYS = dict.fromkeys(HEADS, "x") | {
    **dict.fromkeys(HEADS_UNDER_OTHER_NAMES, json.dumps([0.125 + at for at in range(300)])),
    "rows.json": json.dumps([at + 0.5 for at in range(100)]), "whole.json": json.dumps([7] * 1000),
    "coded.json": json.dumps("A1" * 5000), ".git/HEAD": "h", ".cache/x": "c",
    "modules.json": json.dumps([{"path": ""}, {"path": "2_Dense"}]),  # names a folder that stays behind
}  # fmt: skip
GOES = ("thresholds.json", "notes.txt", "assets/a.png", "emoji_vocab.txt", "training_args.bin")


def test_what_may_hold_the_old_head_stays_behind_and_is_listed_with_everything_else(
    source: Path, tmp_path: Path
) -> None:
    for name, text in (STAYS | dict.fromkeys(GOES, '{"a": 0.5}')).items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    (source / "empty").mkdir()
    (source / "deep" / "empty").mkdir(parents=True)
    (source / "linked").symlink_to(tmp_path)
    (source / "broken").symlink_to(tmp_path / "nothing")
    os.mkfifo(source / "pipe")
    found = headscope.edit(source, tmp_path / "new", drop="bad")
    expected = {f"{name.partition('/')[0]}/" if "/" in name else name for name in STAYS}
    expected |= {"empty/ (empty)", "deep/", "linked/ (a link)", "broken (not a file)", "pipe (not a file)"}
    assert set(found.left_out) == expected
    there = {path.relative_to(tmp_path / "new").as_posix() for path in (tmp_path / "new").rglob("*") if path.is_file()}
    assert {*GOES, "tokenizer.json"} <= there
    assert not there.intersection(STAYS)


def test_an_edit_in_place_that_was_ended_between_its_renames_says_how_to_go_back(source: Path, tmp_path: Path) -> None:
    source.rename(tmp_path / "model.before-edit")
    with pytest.raises(NotFound) as caught:
        headscope.edit(tmp_path / "model", in_place=True, drop="bad")
    assert caught.value.hint == f"bring it back: mv {tmp_path}/model.before-edit {tmp_path}/model"


def test_a_folder_that_a_kill_left_is_named_with_the_command_that_removes_it(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = tmp_path / ".new.headscope-1a2b3c4d"
    left.mkdir()
    assert main(["edit", str(source), "-o", str(tmp_path / "new"), "--drop", "bad", "-q"]) == 0
    assert (
        f"warning: an earlier run was killed and left {left}; remove it with: rm -r {left}" in capsys.readouterr().err
    )
    left.rename(tmp_path / ".other.headscope-1a2b3c4d")
    with pytest.warns(UnfinishedOutput):
        headscope.edit(source, tmp_path / "other", dry_run=True, drop="bad")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_an_edit_that_is_ended_while_it_writes_leaves_the_source_and_no_result(
    source: Path, tmp_path: Path, number: int
) -> None:
    room = tmp_path / "room"
    room.mkdir()
    before = contents(source)
    code = ended_while_writing(room, number, tmp_path / "pid", "edit", str(source), "--drop", "bad")
    assert contents(source) == before and not (room / "new").exists()
    left = list(room.iterdir())
    if number == signal.SIGKILL:
        assert code == -number and len(left) == 1
        with pytest.warns(UnfinishedOutput, match="rm -r"):
            assert headscope.edit(source, room / "new", drop="bad").verdict.value == "proven"
    else:
        assert code == {signal.SIGINT: 130}.get(number, 128 + number) and not left  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("prophetnet.tokenizer", b"a\n"), ("tiktoken.model", b"IQ== 0\nIg== 1\n"), ("tekken.json", b"{}"),
        ("sp.model", b"\n\x0e\n\x05<unk>\x15"), ("unigram.json", json.dumps([at + 0.5 for at in range(500)]).encode()),
        ("1_Pooling/config.json", b"{}"), ("code/own.py", b"x = [0.5] * 100"), ("chat_template.jinja", b"{{ x }}"),
    ],
)  # fmt: skip
def test_what_the_result_needs_is_taken_over_whatever_is_beside_it(
    source: Path, tmp_path: Path, name: str, content: bytes
) -> None:
    (source / name).parent.mkdir(exist_ok=True)
    (source / name).write_bytes(content)
    (source / name).with_name(".DS_Store").write_bytes(b"\0")
    (source / name).with_name("__pycache__").mkdir()
    found = headscope.edit(source, tmp_path / "new", drop="bad")
    assert (tmp_path / "new" / name).read_bytes() == content
    assert sum(item.endswith((".DS_Store", "__pycache__/")) for item in found.left_out) == 2


def test_blanks_around_a_name_belong_to_it(source: Path, tmp_path: Path) -> None:
    edit_json(source / "config.json", {"id2label": {0: " bad", 1: "bad", 2: "ok"}}, without=("label2id",))
    assert [label.source for label in headscope.edit(source, tmp_path / "new", keep=" bad,ok").labels] == [0, 2]
    assert [label.source for label in headscope.edit(source, tmp_path / "other", keep="bad, ok").labels] == [1, 2]


def test_the_permissions_of_a_private_head_and_of_a_private_configuration_stay(tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("adapter", "trained", "made")]
    for place in places:
        place.mkdir(mode=0o755)
        (place / "adapter_model.safetensors").write_bytes(b"x")
    places[1].chmod(0o700)
    (places[1] / "model.safetensors").write_bytes(b"x")
    (places[1] / "model.safetensors").chmod(0o600)
    private = tmp_path / "config.json"
    private.write_text("{}")
    private.chmod(0o600)
    (places[2] / "config.json").write_text("{}")
    (places[2] / "new.safetensors").write_bytes(b"x")
    writing.limit_permissions(places[2], [*places[:2], private], tmp_path / "none")
    assert modes(places[2])["config.json"] == modes(places[2])["adapter_model.safetensors"] == 0o600
    assert modes(places[2])["."] == 0o700


def test_a_leftover_that_can_not_be_opened_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".new.headscope-11112222").mkdir()
    monkeypatch.setattr(writing.os, "open", Mock(side_effect=PermissionError(13, "Permission denied")))
    writing.warn_of_unfinished(tmp_path / "new")
