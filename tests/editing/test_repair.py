"""`repair`: what it refuses, what it leaves behind, and that the proof fails on faults; the table of states runs it."""

import json
import pickle
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import peft
import pytest
import torch
import transformers

import headscope
from headscope.errors import HeadscopeError, NotFound, UnfinishedOutput, Unsupported, UsageError
from headscope.shell.app import main
from headscope.slices.repair import repaired_copy as repairing
from tests.editing.ending import disturb, ended_while_writing
from tests.editing.seeded import configured, loads, model_of, save_peft_state, state_of
from tests.edits import State, edit_tensors


@pytest.fixture
def wrapped(tmp_path: Path) -> Path:
    """A checkpoint with the keys of DataParallel, and files that nobody knows."""
    folder = configured(tmp_path / "wrapped")
    torch.save(state_of(3, "module."), folder / "pytorch_model.bin")
    (folder / "notes.txt").write_text("mine")
    (folder / "deep").mkdir()
    (folder / "deep" / "log.json").write_text("{}")
    return folder


def test_a_copy_without_the_state_is_written_and_recorded(wrapped: Path, tmp_path: Path, capsys: Any) -> None:
    new = tmp_path / "new"
    assert main(["repair", str(wrapped), "-o", str(new), "--dry-run"]) == 0
    assert "HS802" in capsys.readouterr().out and not new.exists()
    assert main(["repair", str(wrapped), "-o", str(new), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "proven" and found["left_out"] == ["pytorch_model.bin"]
    proof = found["proof"]
    assert (proof["loads"], proof["tensors_equal"]) == (True, True)
    assert proof["compared"] == proof["read_by_libraries"] == len(state_of(3))
    loads(new, state_of(3))
    names = {str(path.relative_to(new)) for path in new.rglob("*") if path.is_file()}
    assert names == {"config.json", "model.safetensors", "notes.txt", "deep/log.json", "headscope-repair.json"}
    assert json.loads((new / "headscope-repair.json").read_text())["verdict"] == "proven"
    assert headscope.repair(new, tmp_path / "again").verdict.value == "clean" and not (tmp_path / "again").exists()
    assert main(["repair", str(new), "-o", str(tmp_path / "again"), "-q"]) == 0
    assert "Nothing to repair" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "still_loads"),
    [
        (lambda state: state["classifier.bias"].add_(1), True),
        (lambda state: state.pop("bert.pooler.dense.bias"), False),
    ],
)
def test_the_proof_fails_on_every_fault(
    change: Callable[[State], object], still_loads: bool, wrapped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damage(folder: Path, *_: Any) -> None:
        edit_tensors(folder / "model.safetensors", change)

    disturb(monkeypatch, repairing, "write_weights", damage)
    found = headscope.repair(wrapped, tmp_path / "new")
    assert (found.proof.tensors_equal, found.proof.loads) == (False, still_loads)
    assert found.verdict.value == "refused" and [path.name for path in tmp_path.iterdir()] == ["wrapped"]
    assert main(["repair", str(wrapped), "-o", str(tmp_path / "new")]) == 1


def test_a_source_that_changes_meanwhile_or_a_full_disk_leaves_nothing(
    wrapped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disturb(monkeypatch, repairing, "write_weights", lambda *_: (wrapped / "notes.txt").write_text("changed"))
    with pytest.raises(NotFound, match="changed while"):
        headscope.repair(wrapped, tmp_path / "new")
    monkeypatch.setattr(repairing, "copy_files", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(HeadscopeError, match="No space left"):
        headscope.repair(wrapped, tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["wrapped"]


@pytest.mark.usefixtures("proofs_apart")
def test_a_killed_repair_leaves_source_and_no_result(wrapped: Path, tmp_path: Path) -> None:
    states, room = repairing.file_states(wrapped), tmp_path / "room"
    room.mkdir()
    assert ended_while_writing(room, signal.SIGKILL, tmp_path / "pid", "repair", str(wrapped)) == -signal.SIGKILL
    assert repairing.file_states(wrapped) == states and not (room / "new").exists()
    with pytest.warns(UnfinishedOutput, match="rm -r"):
        assert headscope.repair(wrapped, room / "new").verdict.value == "proven"


class _Runs:
    """An object whose unpickling writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return _touch, (str(self.path),)


def _touch(path: str) -> None:
    Path(path).write_text("run")


@pytest.mark.parametrize("legacy", [False, True])
def test_a_pickle_of_foreign_objects_is_not_run(legacy: bool, tmp_path: Path) -> None:
    folder, weights = configured(tmp_path / "run"), state_of(3)
    name = "bert.encoder.layer.0.output.dense.weight"
    weights[name] = weights[name].t().contiguous().t()  # stored with other strides
    held = {"hyper": _Runs(tmp_path / "ran"), "state": {"model": weights}}
    torch.save(held, folder / "last.ckpt", _use_new_zipfile_serialization=not legacy)
    found = headscope.repair(folder, tmp_path / "new")
    assert found.verdict.value == "proven" and not (tmp_path / "ran").exists()
    assert (found.proof.compared, found.proof.read_by_libraries) == (41, 0)
    loads(tmp_path / "new", state_of(3))
    pickle.loads(pickle.dumps(_Runs(tmp_path / "ran")))
    assert (tmp_path / "ran").exists()  # what would have happened


def _megatron(folder: Path) -> None:
    (folder / "iter_0000500" / "mp_rank_00").mkdir(parents=True)
    torch.save({"model": {}}, folder / "iter_0000500" / "mp_rank_00" / "model_optim_rng.pt")


def _without_config(folder: Path) -> None:
    model_of(3).save_pretrained(folder)
    (folder / "config.json").unlink()


def _pointers(folder: Path) -> None:
    configured(folder)
    text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 99999\n"
    (folder / "model.safetensors").write_text(text)


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (_megatron, "Megatron Bridge"),
        (_without_config, "--config FOLDER_OR_ID"),
        (save_peft_state, "--set lora_alpha=N"),
        (_pointers, "git lfs pull"),
    ],
)
def test_what_a_person_has_to_give_is_said(make: Callable[[Path], object], hint: str, tmp_path: Path) -> None:
    make(tmp_path / "old")
    with pytest.raises(HeadscopeError) as caught:
        headscope.repair(tmp_path / "old", tmp_path / "new")
    assert isinstance(caught.value, Unsupported) and hint in caught.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_bad_input_is_a_sentence(wrapped: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="take it"):
        headscope.repair(wrapped, tmp_path / "new", settings={"lora_alpha": 3})
    with pytest.raises(UsageError, match="exists already"):
        headscope.repair(wrapped, wrapped)
    with pytest.raises(UsageError, match="not on this machine"):
        headscope.repair(wrapped / "other.bin", tmp_path / "new")
    with pytest.raises(UsageError, match="not the name of a setting"):
        headscope.repair(wrapped, tmp_path / "new", settings={"a b": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["wrapped"]


def test_a_configuration_that_is_given_has_to_load_everything(tmp_path: Path) -> None:
    """Funnel: no shape tells its blocks, so that headscope offers no configuration."""
    config = transformers.FunnelConfig(
        vocab_size=99, d_model=64, n_head=4, d_head=16, d_inner=96, block_sizes=[1, 1, 1], num_labels=3
    )
    model = transformers.FunnelForSequenceClassification(config)
    model.save_pretrained(tmp_path / "old")
    (tmp_path / "old" / "config.json").rename(tmp_path / "config.json")
    with pytest.raises(Unsupported) as caught:
        headscope.repair(tmp_path / "old", tmp_path / "new")
    assert "--config" in caught.value.hint and "--set" not in caught.value.hint
    found = headscope.repair(tmp_path / "old", tmp_path / "new", config=tmp_path / "config.json", labels="a,b,c")
    assert found.verdict.value == "proven" and found.model_class == "FunnelForSequenceClassification"
    again = transformers.FunnelForSequenceClassification.from_pretrained(tmp_path / "new")
    assert all(torch.equal(again.state_dict()[name], value) for name, value in model.state_dict().items())
    assert again.config.id2label == {0: "a", 1: "b", 2: "c"}
    text = (tmp_path / "config.json").read_text().replace('"d_inner": 96', '"d_inner": 95')
    (tmp_path / "config.json").write_text(text)
    other = headscope.repair(tmp_path / "old", tmp_path / "other", config=tmp_path / "config.json")
    assert other.verdict.value == "refused" and not (tmp_path / "other").exists()


def test_a_single_file_is_repaired_with_the_settings_beside_it_and_names_what_it_leaves(
    wrapped: Path, tmp_path: Path
) -> None:
    (file,) = wrapped.glob("*.bin")
    (wrapped / "other.bin").write_bytes(b"another file")
    (wrapped / "plot.png").write_bytes(b"a picture")
    found = headscope.repair(file, tmp_path / "new")
    assert (found.verdict.value, found.source) == ("proven", str(file))
    loads(tmp_path / "new", state_of(3))
    assert not (tmp_path / "new" / "other.bin").exists()
    assert json.loads((tmp_path / "new" / "headscope-repair.json").read_text())["source"] == str(file)
    assert "plot.png" in headscope.repair(file, tmp_path / "again", dry_run=True).left_out
    with pytest.raises(UsageError, match="is not a file of weights"):
        headscope.repair(wrapped / "config.json", tmp_path / "other")
    (wrapped / "model.bin.index.json").write_text(json.dumps({"weight_map": {"a": file.name}}))
    with pytest.raises(UsageError, match="one shard"):
        headscope.repair(file, tmp_path / "other")


def test_an_adapter_without_the_head_is_not_called_clean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model_of(3).base_model.save_pretrained(tmp_path / "base")
    model = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "base")
    peft.get_peft_model(model, peft.LoraConfig(target_modules=["query"])).save_pretrained(tmp_path / "adapter")
    assert main(["repair", str(tmp_path / "adapter"), "-o", str(tmp_path / "new")]) == 3
    assert "classifier.weight" in capsys.readouterr().err and not (tmp_path / "new").exists()
