"""`repair` where several models may be meant: every one is named, none is chosen, and `--take` carries one out."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import headscope
from headscope.errors import HeadscopeError, UsageError
from headscope.shell.app import main
from tests.editing.seeded import configured, documents, loads, model_of, save, save_ranks, state_of
from tests.edits import State

Held = dict[str, State]
"""The state dicts of models, by the name with which `--take` chooses each."""


def _of_prefixes(
    *prefixes: str,
    file: str = "pytorch_model.bin",
    inside: Callable[[State], Any] = lambda state: state,
    **stray: tuple[int, ...],
) -> Callable[[Path], Held]:
    def make(folder: Path) -> Held:
        state = {name.replace("__", "."): torch.ones(shape) for name, shape in stray.items()}
        for seed, prefix in enumerate(prefixes, 1):
            state |= state_of(seed, prefix)
        save(inside(state), folder / file)
        return {prefix.replace("_orig_mod.", ""): state_of(seed) for seed, prefix in enumerate(prefixes, 1)}

    return make


def _nested(file: str, inside: Callable[[State, State], Any], *takes: str, prefix: str = "") -> Callable[[Path], Held]:
    def make(folder: Path) -> Held:
        save(inside(state_of(1, prefix), state_of(2, prefix)), folder / file)
        return {take: state_of(seed) for seed, take in enumerate(takes, 1)}

    return make


def _files(*names: str, inside: Callable[[State], Any] = lambda state: state) -> Callable[[Path], Held]:
    def make(folder: Path) -> Held:
        for seed, name in enumerate(names, 1):
            save(inside(state_of(seed)), folder / name)
        return {name: state_of(seed) for seed, name in enumerate(names, 1)}

    return make


def _trainer(folder: Path) -> Held:
    (folder / "config.json").unlink()
    model_of(1).save_pretrained(folder / "checkpoint-4")
    model_of(2).save_pretrained(folder / "checkpoint-8")
    return {"checkpoint-4": state_of(1), "checkpoint-8": state_of(2)}


def _shard_sets(folder: Path) -> Held:
    for seed, (stem, end) in enumerate([("model", ".safetensors"), ("pytorch_model", ".bin")], 1):
        items = list(state_of(seed).items())
        save(dict(items[:20]), folder / f"{stem}-00001-of-00002{end}")
        save(dict(items[20:]), folder / f"{stem}-00002-of-00002{end}")
    return {"model-00001-of-00002.safetensors": state_of(1), "pytorch_model-00001-of-00002.bin": state_of(2)}


def _distributed(folder: Path) -> Held:
    dcp.save({"model": state_of(1), "ema": state_of(2)}, checkpoint_id=folder / "step")
    return {"model": state_of(1), "ema": state_of(2)}


def _whole_pickle(folder: Path) -> Held:
    torch.save(model_of(1), folder / "whole.pt")
    torch.save(state_of(2), folder / "weights.pt")
    return {"whole.pt": state_of(1), "weights.pt": state_of(2)}


def _shared_head(folder: Path) -> Held:
    """Two base models below one classifier."""
    one, two = state_of(1), state_of(2)
    base = {f"{name}{key}": value for name, state in (("a.", one), ("b.", two)) for key, value in state.items()
            if key.startswith("bert.")}  # fmt: skip
    save(base | {key: one[key] for key in one if key.startswith("classifier.")}, folder / "model.safetensors")
    return {"a.": one, "b.": two | {key: one[key] for key in one if key.startswith("classifier.")}}


def _file_and_step(folder: Path) -> Held:
    torch.save({"model": state_of(1), "epoch": 1}, folder / "last.pt")
    model_of(2).save_pretrained(folder / "checkpoint-2")
    return {"last.pt:model": state_of(1), "checkpoint-2": state_of(2)}


def _deepspeed_and_best(folder: Path) -> Held:
    save_ranks(folder, state_of(1))
    save(state_of(2), folder / "best.pt")
    return {"global_step2": state_of(1), "best.pt": state_of(2)}


def _step_of_deepspeed_and_best(folder: Path) -> Held:
    held = _deepspeed_and_best(folder)
    for path in (folder / "global_step2").iterdir():
        path.rename(folder / path.name)
    return {".": held["global_step2"], "best.pt": held["best.pt"]}


def _deepspeed_and_distributed(folder: Path) -> Held:
    save_ranks(folder, state_of(1))
    dcp.save(state_of(2), checkpoint_id=folder / "dcp")
    return {"global_step2": state_of(1), "dcp": state_of(2)}


_SAFE = "model.safetensors"
SEVERAL_KINDS: dict[str, Callable[[Path], Held]] = {
    "a file and a step": _file_and_step,
    "DeepSpeed and a file": _deepspeed_and_best,
    "a step of DeepSpeed and a file": _step_of_deepspeed_and_best,
    "DeepSpeed and distributed": _deepspeed_and_distributed,
}
"""Those whose candidates are listed in this order."""
AMBIGUOUS: dict[str, Callable[[Path], Held]] = {
    "model and ema": _of_prefixes("model.", "ema."),
    "model and ema, safetensors": _of_prefixes("model.", "ema.", file=_SAFE),
    "student and teacher": _of_prefixes("student.", "teacher."),
    "student and teacher in DDP": _of_prefixes("module.student.", "module.teacher."),
    "online and target nets, safetensors": _of_prefixes("online_net.", "target_net.", file=_SAFE),
    "generator and discriminator": _of_prefixes("generator.", "discriminator."),
    "names nobody has heard of": _of_prefixes("qux.", "zorp.inner."),
    "names nobody has heard of, safetensors": _of_prefixes("a1.b2.c3.", "zz.", file=_SAFE),
    "five averages": _of_prefixes("ema_9.", "ema_99.", "ema_999.", "net.", "swa.", file=_SAFE),
    "one of the two compiled": _of_prefixes("student._orig_mod.", "teacher."),
    "two and tensors of neither": _of_prefixes("student.", "teacher.", queue=(4, 8), proj__weight=(2, 2)),
    "two bases below one head": _shared_head,
    "model and model_ema in a file": _nested(
        "best.pth", lambda one, two: {"model": one, "model_ema": two, "step": 9}, "model", "model_ema"
    ),
    "state_dict and ema_state_dict": _nested(
        "pytorch_model.bin",
        lambda one, two: {"state_dict": one, "ema_state_dict": two, "epoch": 1},
        "state_dict",
        "ema_state_dict",
    ),
    "deeper, in DataParallel": _nested(
        "last.ckpt", lambda one, two: {"run": {"net": one, "avg": two}}, "run.net", "run.avg", prefix="module."
    ),
    "in a list": _nested("pair.pt", lambda one, two: {"models": [one, two]}, "models.0", "models.1"),
    "one on top of the other": _nested("top.pt", lambda one, two: {**one, "copy": two}, "top.pt", "copy"),
    "both prefixes in one state dict of a file": _of_prefixes(
        "student.", "teacher.", file="last.ckpt", inside=lambda state: {"state_dict": state, "epoch": 3}
    ),
    "best and last": _files("best.pt", "last.pt"),
    "best and last, safetensors": _files("best.safetensors", "last.safetensors"),
    "epochs, swa and model": _files("epoch_3.pt", "epoch_4.pt", "swa.pt", "model.pt"),
    "training files": _files("best.ckpt", "pytorch_model.bin", inside=lambda state: {"model": state, "epoch": 1}),
    "two kinds of files": _files("best.safetensors", "last.pth"),
    "a whole model and weights": _whole_pickle,
    "two sets of shards": _shard_sets,
    "checkpoints of a Trainer": _trainer,
    "distributed": _distributed,
    **SEVERAL_KINDS,
}


def states_in(document: Any) -> list[Any]:
    found = document.get("checkpoint", {}).get("states") or [document.get("state")]
    return [state for state in found if state]


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_every_model_is_named_and_none_is_chosen(name: str, folder: Path, tmp_path: Path, capsys: Any) -> None:
    held, new = AMBIGUOUS[name](folder), tmp_path / "new"
    for command in ("inspect", "check"):
        code, document = documents(capsys, command, str(folder))
        found = states_in(document["results"][0] if command == "check" and "results" in document else document)
        (state,) = [item for item in found if len(item["candidates"]) > 1]
        assert code or command == "inspect"
        assert state["repair"] is None and {item["take"] for item in state["candidates"]} == held.keys()
        text = json.dumps(document)
        assert "headscope repair MODEL -o DIR --take " in text and "headscope repair MODEL -o DIR`" not in text
    for dry in ((), ("--dry-run",)):
        code, report = documents(capsys, "repair", str(folder), "-o", str(new), *dry)
        assert (code, report["verdict"]) == (3, "not_determined") and not new.exists()
    (state,) = [item for item in report["states"] if len(item["candidates"]) > 1]
    assert name not in SEVERAL_KINDS or [item["take"] for item in state["candidates"]] == [*held]
    for item in state["candidates"]:
        assert item["tensors"] in (None, len(held[item["take"]])), item
        assert item["fills"] is None or item["fills"] == item["of_class"] == 41
    assert main(["repair", str(folder), "-o", str(new)]) == 3
    screen = " ".join(capsys.readouterr().out.split())
    assert all(take in screen for take in held) and "--take" in screen and "roven" not in screen
    with pytest.raises(UsageError) as nonsense:
        headscope.repair(folder, new, take="nonsense")
    assert next(iter(held)) in nonsense.value.hint and [path.name for path in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_the_one_that_is_taken_is_carried_out_and_the_rest_is_said(name: str, folder: Path, tmp_path: Path) -> None:
    for number, (take, state) in enumerate(AMBIGUOUS[name](folder).items()):
        found = headscope.repair(folder, tmp_path / f"new{number}", take=take)
        assert (found.verdict.value, found.taken) == ("proven", (take,)), (found.proof, found.not_taken)
        loads(tmp_path / f"new{number}", state)
        record = json.loads((tmp_path / f"new{number}" / "headscope-repair.json").read_text())
        assert record["taken"] == [take] and record["not_taken"] == list(found.not_taken)
    if name == "two and tensors of neither":
        assert set(found.not_taken) == {"student. (41 tensors)", "queue (1 tensor)", "proj. (1 tensor)"}
    if name == "model and model_ema in a file":
        assert found.not_taken == ("model (41 tensors)",)


def _beside(
    prefix: str, stray: dict[str, tuple[int, ...]], file: str = "pytorch_model.bin", **around: Any
) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        state = state_of(1, prefix) | {name: torch.ones(shape) for name, shape in stray.items()}
        save({"state_dict": state, **around} if around else state, folder / file)

    return make


_CRF = {"crf.transitions": (3, 3), "lstm.weight_ih_l0": (8, 32)}
LOSING: dict[str, tuple[Callable[[Path], None], set[str]]] = {
    "a second encoder": (_beside("model.", {"model.bert.seg_encoder.weight": (4, 32)}), {"bert.seg_encoder.weight"}),
    "a second encoder, safetensors": (
        _beside("net.", {"net.bert.seg_encoder.weight": (4, 32)}, "model.safetensors"),
        {"bert.seg_encoder.weight"},
    ),
    "another head": (_beside("model.", {"model.extra_head.weight": (2, 32)}), {"extra_head.weight"}),
    "a CRF beside the model": (_beside("module.", _CRF), {*_CRF}),
    "a layer beyond the last": (
        _beside("module.", {"module.bert.encoder.layer.9.output.dense.weight": (32, 37)}),
        {"bert.encoder.layer.9.output.dense.weight"},
    ),
    "a CRF in a training file": (_beside("", _CRF, "last.ckpt", epoch=1), {*_CRF}),
    "a CRF in a dict of its own": (_beside("", {}, "last.ckpt", epoch=1, crf={"transitions": torch.ones(3, 3)}), set()),
}


@pytest.mark.parametrize("name", LOSING)
def test_trained_tensors_without_a_place_make_a_repair_incomplete(
    name: str, folder: Path, tmp_path: Path, capsys: Any
) -> None:
    make, lost = LOSING[name]
    make(folder)
    code, report = documents(capsys, "repair", str(folder), "-o", str(tmp_path / "new"))
    assert (code, report["verdict"], set(report["proof"]["lost"])) == (1, "incomplete", lost)
    record = json.loads((tmp_path / "new" / "headscope-repair.json").read_text())
    assert (record["verdict"], set(record["proof"]["lost"])) == ("incomplete", lost)
    assert report["not_taken"] == ([] if lost else ["crf (1 tensor, [3, 3])"])
    assert main(["repair", str(folder), "-o", str(tmp_path / "other"), "-q"]) == 1
    said = capsys.readouterr().out
    assert all(key in said for key in lost or ["crf (1 tensor, [3, 3])"]) and "Proven" not in said
    assert main(["inspect", str(folder)]) in (0, 3)
    screen = " ".join(capsys.readouterr().out.split())
    assert "41 tensors of 41" not in screen or not lost
    assert all(key in screen for key in lost)


@pytest.mark.parametrize(
    "stray",
    [
        {"cls.predictions.bias": torch.ones(99), "bert.embeddings.position_ids": torch.arange(4)[None]},
        {"cls.predictions.transform.dense.bias": torch.ones(32)},
        {"steps": torch.tensor(4), "seen": torch.tensor([True])},
    ],
)
def test_what_another_class_takes_or_is_counted_again_is_no_loss(stray: State, folder: Path, tmp_path: Path) -> None:
    torch.save(state_of(1, "module.") | {f"module.{key}": value for key, value in stray.items()}, folder / _BIN)
    found = headscope.repair(folder, tmp_path / "new")
    assert (found.verdict.value, found.proof.lost) == ("proven", ()), found.proof


_BIN = "pytorch_model.bin"


def _sharded(folder: Path, end: str, state: State, first: int = 1, prefix: str = "") -> None:
    stem, items = "model" if end == ".safetensors" else "pytorch_model", list(state.items())
    for at, part in enumerate((items[:15], items[15:30], items[30:]), first):
        save({f"{prefix}{key}": value for key, value in part}, folder / f"{stem}-{at:05d}-of-00003{end}")


@pytest.mark.parametrize("end", [".safetensors", ".bin"])
@pytest.mark.parametrize(("first", "prefix"), [(1, ""), (0, ""), (1, "module.")])
def test_shards_without_an_index_are_joined(end: str, first: int, prefix: str, folder: Path, tmp_path: Path) -> None:
    _sharded(folder, end, state_of(1), first, prefix)
    found = headscope.repair(folder, tmp_path / "new")
    assert found.verdict.value == "proven" and found.proof.compared == found.proof.read_by_libraries == 41
    assert not list((tmp_path / "new").glob("*-of-*"))
    loads(tmp_path / "new", state_of(1))


@pytest.mark.parametrize("end", [".safetensors", ".bin"])
@pytest.mark.parametrize("lacking", [1, 2, 3])
def test_a_shard_that_is_missing_is_named(end: str, lacking: int, folder: Path, tmp_path: Path, capsys: Any) -> None:
    _sharded(folder, end, state_of(1))
    (gone,) = folder.glob(f"*-{lacking:05d}-of-*")
    gone.unlink()
    code, report = documents(capsys, "repair", str(folder), "-o", str(tmp_path / "new"))
    assert (code, report["verdict"]) == (1, "refused") and gone.name in report["proof"]["reason"]
    assert not (tmp_path / "new").exists() and gone.name in headscope.inspect(folder).checkpoint.states[0].seen()


@pytest.mark.parametrize("end", [".safetensors", ".bin"])
@pytest.mark.parametrize("same", [True, False])
def test_a_key_in_two_shards_is_read_once_or_refused(
    end: str, same: bool, folder: Path, tmp_path: Path, capsys: Any
) -> None:
    state = state_of(1)
    _sharded(folder, end, state)
    last = next(folder.glob("*-00003-of-*"))
    twice = "bert.embeddings.LayerNorm.bias"
    save(dict(list(state.items())[30:]) | {twice: state[twice].clone() + (0 if same else 1)}, last)
    code, report = documents(capsys, "repair", str(folder), "-o", str(tmp_path / "new"))
    assert (code, report["verdict"]) == ((0, "proven") if same else (1, "refused")), report
    assert (tmp_path / "new").exists() is same and (same or twice in report["proof"]["reason"])


def test_the_class_tells_which_of_several_is_the_model(folder: Path, tmp_path: Path) -> None:
    """What fills much less of the class than another one is not meant, and can be taken nevertheless."""
    held = {"model": state_of(1), "projection": {"weight": torch.ones(4, 4)}, "steps": {"loss": torch.tensor(0.1)}}
    torch.save(held, folder / "last.pt")
    (state,) = headscope.inspect(folder).checkpoint.states
    assert not state.is_ambiguous and [item.take for item in state.candidates] == ["model", "projection"]
    found = headscope.repair(folder, tmp_path / "guessed")
    assert found.verdict.value == "incomplete" and found.not_taken == (
        "projection (1 tensor, [4, 4])",
        "steps (1 tensor, [])",
    )
    assert headscope.repair(folder, tmp_path / "taken", take="model").verdict.value == "proven"
    other = headscope.repair(folder, tmp_path / "other", take="projection")
    assert other.verdict.value == "refused" and other.proof.loads is False


def test_names_choose_one_after_the_other(tmp_path: Path) -> None:
    for seed, step in enumerate(("checkpoint-4", "checkpoint-8"), 1):
        folder = configured(tmp_path / "old" / step)
        save(state_of(seed, "student.") | state_of(seed + 4, "teacher."), folder / _BIN)
    first = headscope.repair(tmp_path / "old", tmp_path / "new", take="checkpoint-8")
    assert first.verdict.value == "not_determined" and not (tmp_path / "new").exists()
    found = headscope.repair(tmp_path / "old", tmp_path / "new", take=["checkpoint-8", "teacher."])
    assert (found.verdict.value, found.taken) == ("proven", ("checkpoint-8", "teacher."))
    loads(tmp_path / "new", state_of(6))
    with pytest.raises(UsageError, match="none of the models"):
        headscope.repair(tmp_path / "old", tmp_path / "other", take=["checkpoint-8", "nonsense"])
    with pytest.raises(UsageError, match="are two models"):
        headscope.repair(tmp_path / "old", tmp_path / "other", take=["checkpoint-8", "student.", "teacher."])
    with pytest.raises(UsageError, match="take it"):
        headscope.repair(tmp_path / "new", tmp_path / "other", take="teacher.")


def test_models_without_a_configuration_are_named_too(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "old").mkdir()
    _files("best.pt", "last.pt")(tmp_path / "old")
    config = str(configured(tmp_path / "config") / "config.json")
    code, report = documents(capsys, "repair", str(tmp_path / "old"), "-o", str(tmp_path / "new"), "--config", config)
    assert (code, report["verdict"]) == (3, "not_determined")
    given = {"config": config, "take": "last.pt"}
    assert headscope.repair(tmp_path / "old", tmp_path / "new", **given).verdict.value == "proven"
    loads(tmp_path / "new", state_of(2))


def test_a_list_of_checkpoints_names_the_models(tmp_path: Path) -> None:
    for name in ("student and teacher", "best and last"):
        AMBIGUOUS[name](configured(tmp_path / name.replace(" ", "-")))
    rows = headscope.scan([str(path) for path in tmp_path.iterdir()], workers=0)
    told = {Path(row.reference).name: row.reason for row in rows}
    assert "student." in told["student-and-teacher"] and "teacher." in told["student-and-teacher"]
    assert "best.pt" in told["best-and-last"] and "last.pt" in told["best-and-last"]


def test_nothing_is_written_from_a_checkpoint_that_may_be_two(folder: Path, tmp_path: Path) -> None:
    save(state_of(1, "student.") | state_of(5, "teacher."), folder / _BIN)
    with pytest.raises(HeadscopeError, match=r"load.* as they are") as caught:
        headscope.code(folder)
    assert "headscope repair" in caught.value.hint
    with pytest.raises(HeadscopeError) as caught:
        headscope.edit(folder, tmp_path / "new", temperature=2.0)
    assert "headscope repair" in caught.value.hint and not (tmp_path / "new").exists()
