"""Snapshots: written, read back, bundled, refused."""

import json
import os
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from headscope.core.checkpoints.formats.dtypes import SAFETENSORS
from headscope.core.checkpoints.reading import read_manifest
from headscope.core.checkpoints.snapshot import bundled_snapshots, nearest_known, snapshot_text, write_snapshot
from headscope.core.facts.stored.location import HubOptions, Location
from headscope.errors import Malformed, Unsupported, UsageError
from headscope.facts import CheckpointKind, CheckpointManifest


@pytest.fixture
def manifest(tmp_path: Path) -> CheckpointManifest:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "bert", "x": [1, null]}')
    save_file({"a": torch.zeros(2, 3), "b": torch.zeros(1, dtype=torch.int64)}, folder / "model.safetensors")
    return read_manifest(Location(str(folder)))


def test_a_snapshot_holds_what_the_checkpoint_holds(manifest: CheckpointManifest, tmp_path: Path) -> None:
    write_snapshot(manifest, tmp_path / "s.json")
    again = read_manifest(Location(str(tmp_path / "s.json")))
    assert again.kind is CheckpointKind.SNAPSHOT
    assert (again.tensors, again.files, again.config) == (manifest.tensors, manifest.files, manifest.config)


def test_a_file_that_cannot_be_written_leaves_nothing(manifest: CheckpointManifest, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        write_snapshot(manifest, tmp_path / "missing" / "s.json")
    with pytest.raises(UsageError, match="folder"):
        write_snapshot(manifest, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no pipes in folders")
def test_a_pipe_or_a_link_is_written_to_and_not_replaced(manifest: CheckpointManifest, tmp_path: Path) -> None:
    pipe, link, target = tmp_path / "pipe", tmp_path / "link", tmp_path / "target"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_snapshot(manifest, pipe)
    assert os.read(reader, 1 << 16).decode() == snapshot_text(manifest)
    os.close(reader)
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    link.symlink_to(target)
    write_snapshot(manifest, link)
    assert link.is_symlink() and target.read_text() == snapshot_text(manifest)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
def test_a_full_disk_is_named_as_such(manifest: CheckpointManifest) -> None:
    with pytest.raises(Unsupported, match="No space left"):
        write_snapshot(manifest, "/dev/full")


FAULTS = {
    "another JSON": ("format", "else"),
    "another version": ("version", 2),
    "no tensors": ("tensors", None),
    "config not an object": ("config", []),
    "negative size": ("tensors", [{"key": "a", "dtype": "float32", "shape": [-1], "file": ""}]),
    "tensor twice": ("tensors", [{"key": "a", "dtype": "float32", "shape": [1], "file": ""}] * 2),
    "size no number": ("files", [{"name": "model.safetensors", "size": "7"}]),
    "size too large": ("tensors", [{"key": "a", "dtype": "float32", "shape": [2**63], "file": ""}]),
    "unknown dtype": ("tensors", [{"key": "a", "dtype": "evil", "shape": [1], "file": ""}]),
    "unknown file": ("tensors", [{"key": "a", "dtype": "float32", "shape": [1], "file": "other"}]),
    "shared text": ("shared", ["ab"]),
    "shared with nothing": ("shared", [["a"]]),
    "shared stranger": ("shared", [["a", "z"]]),
    "revision a list": ("revision", [1]),
    "commit a number": ("commit", 5),
    "gap of numbers": ("gaps", [{"what": 1, "reason": 2}]),
    "reference a list": ("reference", []),
    "provenance an object": ("provenance", {}),
    "version a truth value": ("version", True),
    "unknown format": ("weights_format", "stone"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_broken_snapshot_is_refused(name: str, manifest: CheckpointManifest, tmp_path: Path) -> None:
    values = json.loads(snapshot_text(manifest))
    field, value = FAULTS[name]
    (tmp_path / "s.json").write_text(json.dumps(values | {field: value}))
    with pytest.raises(Malformed) as caught:
        read_manifest(Location(str(tmp_path / "s.json")))
    assert caught.value.hint


def test_six_checkpoints_come_bundled_and_say_that_they_are_reconstructions() -> None:
    assert len(bundled_snapshots()) == 6
    for name in bundled_snapshots():
        manifest = read_manifest(Location(name, hub=HubOptions(offline=True)))
        assert manifest.tensors
        assert "reconstructed" in manifest.notices[0]


def test_a_snapshot_of_a_bundled_one_still_says_that_it_is_a_reconstruction(tmp_path: Path) -> None:
    write_snapshot(read_manifest(Location("gpt2", hub=HubOptions(offline=True))), tmp_path / "1.json")
    write_snapshot(read_manifest(Location(str(tmp_path / "1.json"))), tmp_path / "2.json")
    for name in ("1.json", "2.json"):
        assert "reconstructed" in read_manifest(Location(str(tmp_path / name))).notices[0]


def test_an_id_under_its_organization_is_known_too() -> None:
    assert read_manifest(Location("google-bert/bert-base-uncased", hub=HubOptions(offline=True))).tensors


def test_the_bundled_facts_are_those_of_their_source() -> None:
    source = Path(__file__).resolve().parents[3] / "shared" / "snapshots"
    if not source.is_dir():
        pytest.skip("the source of the bundled snapshots is not beside this checkout")
    for name in bundled_snapshots():
        facts = json.loads((source / f"{name}.json").read_text())
        manifest = read_manifest(Location(name, hub=HubOptions(offline=True)))
        assert manifest.config == facts["config"]
        assert [(item.key, item.dtype, list(item.shape)) for item in manifest.tensors] == [
            (item["key"], SAFETENSORS[item["dtype"]][0], item["shape"]) for item in facts["tensors"]
        ]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("bert-base", "bert-base-uncased"),
        ("BERT-base-uncased", "bert-base-uncased"),
        ("someone/roberta", "roberta-base"),
        ("gpt-2", "gpt2"),
        ("deberta-v3", "microsoft/deberta-v3-small"),
        ("zzzzzz", ""),
    ],
)
def test_a_name_that_is_not_found_gets_the_nearest_of_the_bundled_and_cached_ones(
    typed: str, meant: str, tmp_path: Path
) -> None:
    (tmp_path / "models--microsoft--deberta-v3-small").mkdir()
    (tmp_path / "datasets--deberta-v3--x").mkdir()
    assert nearest_known(typed, str(tmp_path)) == meant
