"""Checkpoints as the tools leave them: each state, its evidence, the repair that is printed, and the check after it."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed.checkpoint as dcp
import transformers
from safetensors.torch import load_file
from states.table import ENTRIES
from states.table.entry import Entry
from states.table.observe import assert_as_said
from states.table.small import classifier

import headscope
from headscope.errors import HeadscopeError
from headscope.facts import CheckpointState, Severity, StateKind
from headscope.shell import main
from tests.edits import prove_in_this_process
from tests.families import FAMILIES
from tests.states.refusal import Model, refused


def run(state: CheckpointState, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The repair, in the folder of the checkpoint, as its reader is told to run it."""
    assert state.repair is not None
    monkeypatch.chdir(folder)
    if state.repair.language == "python":
        exec(state.repair.code, {})
    else:
        subprocess.run(["bash", "-ec", state.repair.code], check=True, capture_output=True)


def repaired_checkpoint_passes(folder: Path) -> None:
    """The real load finds every weight, and `check` passes."""
    _, info = transformers.BertForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["mismatched_keys"]
    result = headscope.check(str(folder), "inference", offline=True)
    assert [item.id for item in result.findings if item.severity is Severity.ERROR] == []
    assert result.verdict == "passed"


@pytest.mark.parametrize("inside", ["", "pytorch_model_fsdp_0"])
@pytest.mark.parametrize("nested", [("model",), ("app", "model"), ()])
def test_a_distributed_checkpoint_is_read_from_its_metadata_and_merged(
    inside: str, nested: tuple[str, ...], model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: dict[str, Any] = model.state_dict()
    for name in reversed(nested):
        stored = {name: stored}
    dcp.save(stored, checkpoint_id=tmp_path / inside)
    optimizer = {"optimizer": {"state": {0: {"exp_avg": torch.ones(9, 9)}}, "param_groups": []}}
    dcp.save(optimizer, checkpoint_id=tmp_path / "optimizer_0")
    model.config.save_pretrained(tmp_path)
    with pytest.raises(OSError, match=r"no file named model\.safetensors"):
        transformers.BertForSequenceClassification.from_pretrained(tmp_path)
    result = headscope.check(str(tmp_path), "inference", offline=True)
    assert result.verdict == "failed"
    (state,) = result.report.checkpoint.states
    assert (state.kind, state.rule) == (StateKind.DISTRIBUTED, "HS805")
    assert result.report.repaired.weights.new == ()
    assert result.report.weights.loaded == 0
    assert "41 tensors " in state.evidence[1]
    run(state, tmp_path, monkeypatch)
    stored_now = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(stored_now[name], value) for name, value in model.state_dict().items())
    repaired_checkpoint_passes(tmp_path)


def lightning_file(model: Model) -> dict[str, Any]:
    """What Lightning 2.6 saved for a module that holds the model as `self.model`, and a loss with weights."""
    state = {f"model.{key}": value for key, value in model.state_dict().items()} | {"loss_fn.weight": torch.ones(3)}
    return {
        "epoch": 0, "global_step": 2, "pytorch-lightning_version": "2.6.6", "state_dict": state, "loops": {},
        "callbacks": {}, "optimizer_states": [{"state": {0: {"exp_avg": torch.ones(3)}}, "param_groups": []}],
        "lr_schedulers": [], "hparams_name": "kwargs", "hyper_parameters": {"lr": 0.001},
    }  # fmt: skip


def training_loop_file(model: Model) -> dict[str, Any]:
    return {
        "epoch": 3,
        "optimizer": {"state": {0: model.state_dict()}, "param_groups": []},
        "model_state_dict": model.state_dict(),
    }


_FILES: dict[str, tuple[Callable[[Model], dict[str, Any]], list[str]]] = {
    "lightning": (lightning_file, ["HS807", "HS802"]),
    "training loop": (training_loop_file, ["HS807"]),
}


@pytest.mark.parametrize("name", ["pytorch_model.bin", "epoch=0-step=2.ckpt"])
@pytest.mark.parametrize("kind", _FILES)
def test_weights_inside_a_training_file_are_named_and_saved_alone(
    kind: str, name: str, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, rules = _FILES[kind]
    torch.save(build(model), tmp_path / name)
    model.config.save_pretrained(tmp_path)
    with pytest.raises((OSError, AttributeError, RuntimeError)):
        transformers.BertForSequenceClassification.from_pretrained(tmp_path)
    result = headscope.check(str(tmp_path), "inference", offline=True)
    assert result.verdict == "failed"
    states = result.report.checkpoint.states
    assert [state.rule for state in states] == rules
    assert states[0].tool == ("Lightning 2.6.6" if kind == "lightning" else "")
    assert result.report.repaired.weights.new == ()
    for state in states:
        run(state, tmp_path, monkeypatch)
    repaired_checkpoint_passes(tmp_path)


def row(name: str) -> Entry:
    """A row of the table."""
    (found,) = (entry for entry in ENTRIES if entry.name == name)
    return found


def test_a_file_of_lightning_itself_is_recognized(tmp_path: Path) -> None:
    """The table has other rows, and this one runs wherever Lightning is installed."""
    pytest.importorskip("lightning")
    assert_as_said(row("bert in a LightningModule, with save_hyperparameters()"), tmp_path)


class Settings:
    """Hyperparameters of one's own."""


def test_a_training_file_with_objects_of_others_is_read_without_making_them(model: Model, tmp_path: Path) -> None:
    torch.save(lightning_file(model) | {"hyper_parameters": Settings(), "path": tmp_path}, tmp_path / "last.ckpt")
    (tmp_path / "config.json").write_text(json.dumps(model.config.to_dict(), default=str))
    (state, _) = headscope.inspect(str(tmp_path), offline=True).checkpoint.states
    assert f"{Settings.__module__}.Settings" in state.evidence[1]
    assert "weights_only=False" in state.repair.code
    assert state.repair.sentence.startswith("If you trust ")


@pytest.mark.parametrize(
    "stored",
    [
        {"state": {"a.weight": {"exp_avg": torch.ones(2), "exp_avg_sq": torch.ones(2)}}, "param_groups": []},
        {"optimizer": {"state": {"a.weight": {"sum": torch.ones(2)}}, "param_groups": []}},
        {"anything": [{"state": {0: {"sum": torch.ones(2)}}, "param_groups": []}], "rng": torch.get_rng_state()},
    ],
)
def test_what_an_optimizer_keeps_is_not_taken_for_weights(stored: Any, model: Model, tmp_path: Path) -> None:
    """The first is what FSDP's `full_optim_state_dict` gives, which Accelerate saves as `optimizer.bin`."""
    model.config.save_pretrained(tmp_path)
    torch.save(stored, tmp_path / "optimizer.bin")
    report = headscope.inspect(str(tmp_path), offline=True)
    assert report.checkpoint.states == () and report.repaired is None
    torch.save(stored | {"optimal": {"weight": torch.ones(2)}}, tmp_path / "last.ckpt")
    (state, *_) = headscope.inspect(str(tmp_path), offline=True).checkpoint.states
    assert "are under ['optimal']" in state.evidence[0]


def test_a_distributed_optimizer_is_not_taken_for_the_model(model: Model, tmp_path: Path) -> None:
    model.config.save_pretrained(tmp_path)
    optimizer = {"optimizer": {"state": {"a.weight": {"exp_avg": torch.ones(2)}}, "param_groups": []}}
    dcp.save(optimizer, checkpoint_id=tmp_path / "optimizer_0")
    report = headscope.inspect(str(tmp_path), offline=True)
    (state,) = report.checkpoint.states
    assert " 0 tensors " in state.evidence[1]
    assert state.repair is None and report.repaired is None


def test_the_model_in_a_distributed_checkpoint_may_be_called_a_state_dict(model: Model, tmp_path: Path) -> None:
    model.config.save_pretrained(tmp_path)
    dcp.save({"state_dict": model.state_dict(), "other": {"x": torch.ones(2)}}, checkpoint_id=tmp_path)
    report = headscope.inspect(str(tmp_path), offline=True)
    assert re.search(r"41 tensors .*\['state_dict'\]", report.checkpoint.states[0].evidence[1])
    assert report.repaired.weights.new == ()


def deepspeed_step(folder: Path, model: Model, *, stage: int, tag: str = "global_step2") -> None:
    """The files that DeepSpeed 0.19 writes for one process, as its engine.py and zero_to_fp32.py name them."""
    step = folder / tag
    step.mkdir(parents=True)
    (folder / "latest").write_text(tag)
    named = dict(model.named_parameters())
    held = model.state_dict() if stage < 3 else {name: torch.empty(0) for name in model.state_dict()}
    states = {
        "module": held, "buffer_names": [], "ds_version": "0.19.8", "global_steps": 2, "shared_params": {},
        "param_shapes": [{name: value.shape for name, value in named.items()}] if stage else None,
        "frozen_param_shapes": None, "frozen_param_fragments": None,
    }  # fmt: skip
    name = "zero_pp_rank_0_mp_rank_00" if stage == 3 else "mp_rank_00"
    torch.save(states, step / f"{name}_model_states.pt")
    flat = torch.cat([value.detach().flatten() for value in named.values()])
    if stage:
        groups = "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"
        optimizer = {"zero_stage": stage, "partition_count": 1, groups: [flat]}
        torch.save({"optimizer_state_dict": optimizer, "ds_version": "0.19.8"},
                   step / "zero_pp_rank_0_mp_rank_00_optim_states.pt")  # fmt: skip


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_checkpoint_of_deepspeed_is_read_from_what_its_first_process_wrote(
    stage: int, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deepspeed_step(tmp_path, model, stage=stage)
    model.config.save_pretrained(tmp_path)
    report = headscope.inspect(str(tmp_path), offline=True)
    (state,) = report.checkpoint.states
    assert (state.kind, state.rule) == (StateKind.DEEPSPEED, "HS804")
    assert "`latest` names global_step2" in state.evidence
    assert {0: "no ZeRO", 2: "ZeRO-1 or 2", 3: "ZeRO-3"}[stage] in state.evidence[-1]
    assert report.repaired.weights.new == ()
    carried_out(tmp_path, model)
    if stage:
        pytest.importorskip("deepspeed")
    run(state, tmp_path, monkeypatch)
    repaired_checkpoint_passes(tmp_path)


def carried_out(folder: Path, model: Model) -> None:
    """`headscope repair`, which needs no DeepSpeed: the real load finds every value."""
    target = folder.with_name(f"{folder.name}.repaired")
    with patch("headscope.copies.proving.prove_in_process", prove_in_this_process):
        assert headscope.repair(folder, target).verdict.value == "proven"
    loaded, info = type(model).from_pretrained(target, output_loading_info=True)
    assert not info["missing_keys"] and not info["mismatched_keys"] and not info["unexpected_keys"]
    assert all(torch.equal(loaded.state_dict()[name], value) for name, value in model.state_dict().items())
    assert not [path for path in target.rglob("*") if path.suffix == ".pt" or path.name == "latest"]


@pytest.mark.parametrize(("tag", "inside"), [("pytorch_model", ""), ("checkpoint", "last.ckpt"), ("mine", "")])
def test_a_step_of_deepspeed_has_any_name(tag: str, inside: str, model: Model, tmp_path: Path) -> None:
    """accelerate's `pytorch_model`, Lightning's `last.ckpt/checkpoint`, and one of one's own."""
    model.config.save_pretrained(tmp_path)
    deepspeed_step(tmp_path / inside, model, stage=2, tag="older")
    deepspeed_step(tmp_path / inside, model, stage=2, tag=tag)
    (state,) = headscope.inspect(str(tmp_path), offline=True).checkpoint.states
    assert state.rule == "HS804" and f"`latest` names {tag}" in state.evidence
    assert f"tag={tag!r}" in state.repair.code
    shutil.rmtree(tmp_path / inside / "older")
    carried_out(tmp_path, model)


def test_tied_weights_of_deepspeed_are_put_together(tmp_path: Path) -> None:
    """BART shares its embeddings, which DeepSpeed's option `safe_serialization` fails on."""
    family = FAMILIES["bart"]
    model = family.build(family.classifier)
    model.config.save_pretrained(tmp_path)
    deepspeed_step(tmp_path, model, stage=2)
    step = tmp_path / "global_step2" / "mp_rank_00_model_states.pt"
    held = torch.load(step)
    held["shared_params"] = {
        f"model.{part}.embed_tokens.weight": "model.shared.weight" for part in ("encoder", "decoder")
    }
    held["buffer_names"] = [name for name, _ in model.named_buffers()]
    torch.save(held, step)
    state = headscope.inspect(str(tmp_path), offline=True).checkpoint.states[0]
    assert "safe_serialization" not in state.repair.code
    carried_out(tmp_path, model)


def test_metadata_that_python_3_13_wrote_is_read(model: Model, tmp_path: Path) -> None:
    """There the classes of paths are those of `pathlib._local`, and `.metadata` holds the path of the save."""
    model.config.save_pretrained(tmp_path)
    dcp.save(model.state_dict(), checkpoint_id=tmp_path)
    content = (tmp_path / ".metadata").read_bytes()
    short, new = (bytes([0x8C, len(name)]) + name for name in (b"pathlib", b"pathlib._local"))
    assert content.count(short) + content.count(new) == 1  # Python 3.13 itself has written the new one
    (tmp_path / ".metadata").write_bytes(content.replace(short, new))
    assert headscope.inspect(str(tmp_path), offline=True).repaired.weights.loaded == 41
    with patch("headscope.copies.proving.prove_in_process", prove_in_this_process):
        assert headscope.repair(tmp_path, tmp_path.with_name("new")).verdict.value == "proven"


def test_the_script_that_deepspeed_left_is_the_repair(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deepspeed_step(tmp_path, model, stage=2)
    (tmp_path / "zero_to_fp32.py").write_text("")
    state = refused(tmp_path)
    assert state.repair.code == "python zero_to_fp32.py . . --tag global_step2"
    assert state.repair.sentence.startswith("If you trust ")
    monkeypatch.chdir(tmp_path)
    for reference in (tmp_path / "global_step2", Path("global_step2")):
        repair = refused(reference).repair
        assert "('..', '.', tag='global_step2')" in repair.code
        assert repair.sentence.startswith("If you trust ")


def test_the_ranks_of_megatron_are_counted(tmp_path: Path) -> None:
    row("2 ways by tensor and 2 by layer, Megatron-LM").make(tmp_path)
    state = refused(tmp_path)
    assert (state.kind, state.tool) == (StateKind.MEGATRON, "Megatron-LM")
    assert any("2 ways by tensor and 2 ways by layer" in item for item in state.evidence)
    assert any("latest_checkpointed_iteration.txt" in item and "1000" in item for item in state.evidence)
    assert ".export_ckpt('iter_0001000', 'exported')" in state.repair.code
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("9" * 100_000)
    assert not any("says" in item for item in refused(tmp_path).evidence)


@pytest.mark.parametrize("best", ["checkpoint-4", "checkpoint-8", "checkpoint-6", None])
def test_the_output_of_a_trainer_names_its_newest_and_its_best_checkpoint(
    best: str | None, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Trainer itself made the layout; `best_model_checkpoint` is a path from where it ran, as it writes it."""
    for step in (4, 8, 12):
        model.save_pretrained(tmp_path / f"checkpoint-{step}")
        (tmp_path / f"checkpoint-{step}" / "optimizer.pt").write_bytes(b"")
    state = transformers.TrainerState(
        best_model_checkpoint=best and f"/elsewhere/out/{best}", best_metric=best and 0.75
    )
    state.save_to_json(str(tmp_path / "checkpoint-12" / "trainer_state.json"))
    found = refused(tmp_path)
    assert found.kind is StateKind.TRAINER_OUTPUT
    assert found.evidence[0].endswith(" checkpoint-4, checkpoint-8, checkpoint-12")
    assert found.evidence[1].endswith(" checkpoint-12")
    assert any("checkpoint-6, " in item for item in found.evidence) is (best == "checkpoint-6")
    if best in ("checkpoint-4", "checkpoint-8"):
        assert best in found.repair.code and found.candidates[0].take == best
    else:
        assert found.is_ambiguous and [item.take for item in found.candidates] == [
            f"checkpoint-{at}" for at in (4, 8, 12)
        ]
        found = found.taking(["checkpoint-8/"])
        assert "checkpoint-8" in found.repair.code
    run(found, tmp_path, monkeypatch)
    repaired_checkpoint_passes(tmp_path / "model")


def test_the_only_whole_checkpoint_of_a_trainer_is_taken(model: Model, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "checkpoint-4")
    model.config.save_pretrained(tmp_path / "checkpoint-8")
    (tmp_path / "checkpoint-8" / "optimizer.pt").write_bytes(b"")
    found = refused(tmp_path)
    assert "only checkpoint-4 is complete" in found.evidence and "checkpoint-4" in found.repair.code


@pytest.mark.parametrize(
    ("monitor", "steps", "other", "chosen"),
    [
        ("loss", (8, 12), "", "epoch=1.ckpt"),
        (None, (12, 12), "", "epoch=1.ckpt"),
        (None, (8, 12), "", ""),
        ("loss", (8, 12), "swa.pt", ""),
        ("gone", (8, 12), "", ""),
    ],
)
def test_the_record_in_the_latest_file_of_lightning_names_the_best(
    monitor: str | None, steps: tuple[int, int], other: str, chosen: str, tmp_path: Path
) -> None:
    model = classifier("bert")
    model.config.save_pretrained(tmp_path)
    best = "epoch=0.ckpt" if monitor == "gone" else "epoch=1.ckpt"
    for name, step in zip(("epoch=1.ckpt", "last.ckpt"), steps, strict=True):
        record = {"ModelCheckpoint{}": {"monitor": monitor, "best_model_path": f"/r/{best}"}}
        torch.save(lightning_file(model) | {"global_step": step, "callbacks": record}, tmp_path / name)
    if other:
        torch.save(model.state_dict(), tmp_path / other)
    (state, *_) = headscope.inspect(str(tmp_path), offline=True).checkpoint.states
    assert state.is_ambiguous is not bool(chosen)
    if chosen:
        assert state.candidates[0].take == chosen and f"names {chosen}" in state.evidence[-1]


@pytest.mark.parametrize(
    ("name", "kind", "option"),
    [
        ("tf_model.h5", "TensorFlow", "from_tf=True"),
        ("flax_model.msgpack", "Flax", "from_flax=True"),
        ("model.mlmodel", "Core ML", None),
    ],
)
@pytest.mark.parametrize("configured", [True, False])
def test_other_formats_are_named_and_converted_where_something_can(  # noqa: PLR0917 - a test of a table
    name: str, kind: str, option: str | None, configured: bool, model: Model, tmp_path: Path
) -> None:
    if configured:
        model.config.save_pretrained(tmp_path)
    (tmp_path / name).write_bytes(b"0")
    try:
        (state,) = headscope.diff_weights(str(tmp_path), offline=True).checkpoint.states
    except HeadscopeError as err:
        state = err.state
    assert (state.kind, state.tool) == (StateKind.OTHER_FORMAT, kind)
    assert f"{name} ({kind})" in state.sentence
    assert (option in state.repair.code) if option else state.repair is None


def test_a_clean_checkpoint_is_read_without_a_look_at_its_folder(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headscope.core.checkpoints.states import place
    from headscope.core.checkpoints.unusual import PlaceSurroundings

    model.save_pretrained(tmp_path)
    monkeypatch.setattr(place, "names_below", lambda path: pytest.fail("a clean checkpoint was searched"))
    monkeypatch.setattr(PlaceSurroundings, "state", lambda around: pytest.fail("a clean checkpoint was searched"))
    assert headscope.diff_weights(str(tmp_path), offline=True).checkpoint.states == ()


def test_the_cache_tells_states_apart(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HEADSCOPE_NO_CACHE", raising=False)
    folder = tmp_path / "model"
    model.config.save_pretrained(folder)
    dcp.save(model.state_dict(), checkpoint_id=folder)
    for _ in range(2):
        report = headscope.inspect(str(folder), offline=True, cache=True)
        assert [state.rule for state in report.checkpoint.states] == ["HS805"]
        assert report.repaired.weights.loaded == 41
    (folder / "__0_0.distcp").unlink()
    report = headscope.inspect(str(folder), offline=True, cache=True)
    assert report.checkpoint.states == () and report.repaired is None


def test_the_json_of_a_cut_file_ends_its_hint_in_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")
    (tmp_path / "model.safetensors").write_bytes((1000).to_bytes(8, "little") + b'{"a":')
    assert main(["inspect", str(tmp_path), "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["error"]["hint"].endswith(f"`{document['state']['repair']['code']}`")
