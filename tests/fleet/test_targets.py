"""Which checkpoints a list or a folder names: nothing is left out without a word, and nothing is waited for."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import headscope
from headscope.core.checkpoints.snapshot import _bundled_folder
from headscope.errors import UsageError
from headscope.slices.fleet.target import Target, found_below, read_list, without_repeats

COMMIT, OTHER = "a" * 40, "b" * 40


def checkpoint(folder: Path, *weights: str) -> Path:
    folder.mkdir(parents=True)
    for name in ("config.json", *weights):
        (folder / name).write_text("{}")
    return folder


def names(targets: Iterator[Target]) -> list[str]:
    return [target.reference for target in targets]


@pytest.mark.parametrize(
    "weights",
    [
        "model.safetensors",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "pytorch_model.bin",
        "pytorch_model.bin.index.json",
        "tf_model.h5",
        "flax_model.msgpack",
    ],
)
def test_a_folder_with_a_configuration_and_weights_is_a_checkpoint(tmp_path: Path, weights: str) -> None:
    there = checkpoint(tmp_path / "below" / "there", weights)
    checkpoint(tmp_path / "without")
    assert names(found_below(str(tmp_path))) == [str(there)]


def test_a_folder_that_cannot_be_listed_is_a_row_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may list every folder, so the system's refusal is made here."""
    good, closed = checkpoint(tmp_path / "a", "model.safetensors"), tmp_path / "closed"
    checkpoint(closed / "inside", "model.safetensors")
    before = os.scandir

    def scandir(path: Any = ".") -> Any:
        if str(path) == str(closed):
            raise PermissionError(13, "Permission denied", str(path))
        return before(path)

    monkeypatch.setattr(os, "scandir", scandir)
    found = names(found_below(str(tmp_path)))
    assert found == [str(good), str(closed)]
    with pytest.raises(UsageError, match=rf"{closed}.*: Permission denied$"):
        list(found_below(str(closed)))


def test_pipes_devices_and_links_in_a_circle_hold_nobody(tmp_path: Path) -> None:
    checkpoint(tmp_path / "a", "model.safetensors")
    os.mkfifo(tmp_path / "a" / "notes.json")
    (tmp_path / "a" / "zeros.json").symlink_to("/dev/zero")
    (tmp_path / "a" / "again").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "snapshot.json")
    found: list[str] = []
    looking = Thread(target=lambda: found.extend(names(found_below(str(tmp_path)))), daemon=True)
    looking.start()
    looking.join(20)
    assert not looking.is_alive()
    assert found == [str(tmp_path / "a")]


def test_snapshots_are_found_beside_checkpoints(tmp_path: Path) -> None:
    there = checkpoint(tmp_path / "a", "model.safetensors")
    snapshot = shutil.copy(_bundled_folder() / "gpt2.json", tmp_path / "a" / "saved.json")
    assert names(found_below(str(tmp_path))) == [str(there), str(snapshot)]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ([("x", None), ("x", None)], [("x", None)]),
        ([("x", None), ("x", COMMIT)], [("x", None)]),
        ([("x", COMMIT), ("x", None)], [("x", COMMIT)]),
        ([("x", COMMIT), ("x", COMMIT)], [("x", COMMIT)]),
        ([("x", COMMIT), ("x", OTHER)], [("x", COMMIT), ("x", OTHER)]),
        ([("x", None), ("X", None), ("y", None)], [("x", None), ("X", None), ("y", None)]),
    ],
)
def test_a_name_that_comes_twice_is_examined_once(
    given: list[tuple[str, str | None]], kept: list[tuple[str, str | None]]
) -> None:
    """A listing of the Hub tells commits, a list of names doesn't, and both can name one model."""
    targets = [Target(*one) for one in given]
    assert [(one.reference, one.commit) for one in without_repeats(targets)] == kept


def test_a_list_from_any_editor_is_read(tmp_path: Path) -> None:
    file = tmp_path / "list.txt"
    file.write_bytes(b"\xef\xbb\xbf# mine\r\n\r\ngpt2\r\n  team/model@v1  \r\n#team/other\r\n\xc3\xa9t\xc3\xa9")
    assert names(read_list(str(file))) == ["gpt2", "team/model@v1", "\u00e9t\u00e9"]


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="a file that opens and can't be read is one of Linux")
def test_a_list_that_breaks_off_is_named() -> None:
    with pytest.raises(UsageError, match=r"^/proc/self/mem .*: Input/output error$"):
        list(read_list("/proc/self/mem"))


@pytest.mark.parametrize("given", ["gpt2", Path("gpt2"), None, 5])
def test_one_checkpoint_is_not_taken_for_several(given: Any) -> None:
    """The letters of a name would be models too."""
    with pytest.raises(UsageError, match=r"^checkpoints "):
        headscope.scan(given)
    with pytest.raises(UsageError, match=r"`reference`"):
        headscope.scan_batch({"reference": "gpt2"})
