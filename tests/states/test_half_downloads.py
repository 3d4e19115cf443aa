"""Unfinished downloads and pointers without their files are told from whole weights, with the command that goes on."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import headscope
from headscope.core.checkpoints.local import Folder
from headscope.core.checkpoints.states.files import find_half_download
from headscope.core.checkpoints.states.place import StatePlace, names_below
from headscope.errors import Malformed, NotFound
from headscope.shell import main
from tests.saving import save_sharded_safetensors
from tests.states.refusal import Model, refused

_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 440473133\n".format("0" * 64)


def test_pointers_name_the_files_that_they_stand_for(model: Model, tmp_path: Path, capsys: Any) -> None:
    model.config.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_text(_POINTER)
    state = refused(tmp_path, Malformed)
    assert (state.rule, state.repair.code) == ("HS811", "git lfs install && git lfs pull")
    assert any("440,473,133 bytes" in item for item in state.evidence)
    assert main(["check", str(tmp_path), "--json"]) == 3
    shown = capsys.readouterr()
    assert json.loads(shown.out)["state"]["rule"] == "HS811"
    assert "    git lfs install && git lfs pull\n" in shown.err and "`headscope explain HS811`" in shown.err


def test_half_downloads_are_told_by_marks_missing_shards_and_short_files(model: Model, tmp_path: Path) -> None:
    save_sharded_safetensors(model, tmp_path)
    (*_, shard) = sorted(tmp_path.glob("model-*.safetensors"))
    content = shard.read_bytes()
    shard.unlink()
    report = headscope.inspect(str(tmp_path), offline=True)
    (state,) = report.checkpoint.states
    assert state.rule == "HS812" and [item.endswith(f": {shard.name}") for item in state.evidence] == [True]
    assert any(gap.topic == shard.name for gap in report.not_determined)
    shard.write_bytes(content[:-9])
    (tmp_path / ".cache" / "huggingface" / "download").mkdir(parents=True)
    (tmp_path / ".cache" / "huggingface" / "download" / "x.0af.incomplete").write_bytes(b"")
    state = refused(tmp_path, Malformed)
    assert state.tool == "the Hub's client"
    assert state.evidence[0].startswith("x.0af.incomplete ")
    sizes = rf"{len(content):,} bytes .* {len(content) - 9:,} "
    assert re.match(rf"{re.escape(shard.name)} .*: {sizes}", state.evidence[1])
    shard.write_bytes(content)
    assert headscope.inspect(str(tmp_path), offline=True).checkpoint.states == ()


def _tool_of(mark: str, folder: Path) -> str | None:
    """The tool that is found to have stopped, where a download left this mark; None where none is."""
    (folder / mark).parent.mkdir(parents=True, exist_ok=True)
    (folder / mark).write_bytes(b"")
    found = find_half_download(StatePlace(str(folder), names_below(folder), Folder(folder).open))
    return None if found is None else found.state.tool


@pytest.mark.parametrize(
    "mark",
    [
        "runs/events.part", "data/corpus/train.parquet.part", "docs/a/b/model.safetensors.part", "notes.txt.part",
        "model.safetensors.part", ".cache/huggingface/download/x.0af.incomplete", "sub/model.safetensors.aria2",
    ],
)  # fmt: skip
@pytest.mark.parametrize("configured", [True, False])
def test_a_mark_beside_whole_weights_is_no_half_download(
    mark: str, configured: bool, model: Model, tmp_path: Path
) -> None:
    """A complete checkpoint that nothing is missing of: with a gap of another cause, and without its config.json."""
    model.save_pretrained(tmp_path)
    assert _tool_of(mark, tmp_path) is None
    if not configured:
        (tmp_path / "config.json").unlink()
        assert refused(tmp_path, NotFound).rule == "HS809"


@pytest.mark.parametrize(
    ("mark", "tool"),
    [
        ("model.safetensors.part", "a browser or wget"),
        ("model-00002-of-00002.safetensors.crdownload", "a browser"),
        (".cache/huggingface/download/x.0af.incomplete", "the Hub's client"),
        ("model.safetensors.aria2", "aria2"),
        ("training_args.bin.part", None),
        ("runs/model.safetensors.part", None),
        ("sub/.cache/huggingface/download/x.0af.incomplete", None),
    ],
)
def test_a_mark_counts_where_the_weights_are_missing(mark: str, tool: str | None, model: Model, tmp_path: Path) -> None:
    model.config.save_pretrained(tmp_path)
    (tmp_path / "training_args.bin").write_bytes(b"")
    if mark == "model.safetensors.aria2":
        (tmp_path / "model.safetensors").write_bytes(b"\0" * 4096)
    assert _tool_of(mark, tmp_path) == tool


def test_what_the_hubs_cache_has_not_finished_counts_for_its_snapshot(model: Model, tmp_path: Path) -> None:
    snapshot = tmp_path / "models--owner--name" / "snapshots" / ("0a" * 20)
    model.config.save_pretrained(snapshot)
    blobs = tmp_path / "models--owner--name" / "blobs"
    blobs.mkdir()
    assert headscope.inspect(str(snapshot), offline=True).checkpoint.states == ()
    (blobs / ("ab" * 32 + ".incomplete")).write_bytes(b"")
    (state,) = headscope.inspect(str(snapshot), offline=True).checkpoint.states
    assert (state.rule, state.tool) == ("HS812", "the Hub's client")
    assert state.repair.code == f"hf download owner/name --revision {'0a' * 20}"
    model.save_pretrained(snapshot)
    assert headscope.inspect(str(snapshot), offline=True).checkpoint.states == ()


@pytest.mark.parametrize(
    ("folder", "code"),
    [
        ("models--owner--name/snapshots/" + "0a" * 20, "hf download owner/name --revision " + "0a" * 20),
        ("models----force--name/snapshots/x", "hf download OWNER/NAME --local-dir ."),
        ("models--owner--name;id/snapshots/x", "hf download OWNER/NAME --local-dir ."),
        ("model", "hf download OWNER/NAME --local-dir ."),
    ],
)
def test_a_half_download_is_completed_where_it_lies(folder: str, code: str, model: Model, tmp_path: Path) -> None:
    save_sharded_safetensors(model, tmp_path / folder)
    next((tmp_path / folder).glob("model-*.safetensors")).unlink()
    (state,) = headscope.inspect(str(tmp_path / folder), offline=True).checkpoint.states
    assert state.repair.code == code


def test_a_torch_file_that_was_cut_is_a_half_download(model: Model, tmp_path: Path) -> None:
    model.config.save_pretrained(tmp_path)
    whole = io.BytesIO()
    torch.save(model.state_dict(), whole)
    (tmp_path / "pytorch_model.bin").write_bytes(whole.getvalue()[:-100_0])
    assert "archive" in refused(tmp_path, Malformed).evidence[0]


@pytest.mark.parametrize("cut", [0.5, 0.01])
def test_what_a_list_of_checkpoints_says_of_a_cut_file_is_whole(
    cut: float, model: Model, tmp_path: Path, capsys: Any
) -> None:
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * cut)])
    (row,) = headscope.scan([str(tmp_path)], workers=0)
    main(["check", str(tmp_path), str(tmp_path), "--json"])
    result = json.loads(capsys.readouterr().out)["results"][0]
    for line in (row.reason, result["not_determined"][0]["reason"]):
        assert "ends early" in line and line.endswith("`hf download OWNER/NAME --local-dir .`")
        assert ".;" not in line
