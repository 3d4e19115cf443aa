"""`repair` where a file, a folder or a rank holds more than the model: nothing trained is dropped without a word."""

import json
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import headscope
from headscope.errors import HeadscopeError
from headscope.shell.app import main
from tests.editing.seeded import configured, documents, loads, model_of, save, save_ranks, state_of


class Renamed(OrderedDict[str, Any]):
    """A dict of one's own."""


class Average:
    """An object that keeps weights."""

    def __init__(self) -> None:
        self.shadow = state_of(2)


def _lists(count: int = 3) -> list[torch.Tensor]:
    return list(state_of(2).values())[:count]


SECOND_MODELS: dict[str, Callable[[], dict[str, Any]]] = {
    "a defaultdict": lambda: {"ema": defaultdict(list, state_of(2))},
    "a dict of one's own": lambda: {"ema": Renamed(state_of(2))},
    "a pickled module": lambda: {"ema": model_of(2)},
    "four dicts deep": lambda: {"a": {"b": {"c": {"d": state_of(2)}}}},
    "with a key momentum_buffer": lambda: {"ema": state_of(2) | {"momentum_buffer": torch.ones(2)}},
    "net_scaler": lambda: {"net_scaler": state_of(2)},
    "scheduled_net": lambda: {"scheduled_net": state_of(2)},
    "opt_best_model": lambda: {"opt_best_model": state_of(2)},
    "optimizer": lambda: {"optimizer": state_of(2)},
    "master_params": lambda: {"master_params": state_of(2)},
    "beside an optimizer": lambda: {"o": {"state": {}, "param_groups": [], "master_params": state_of(2)}},
}
PARTS: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "numpy arrays": (lambda: {"ema": {key: value.numpy() for key, value in state_of(2).items()}}, "ema (41 tensors)"),
    "int keys": (lambda: {"ema": dict(enumerate(state_of(2).values()))}, "ema (41 tensors)"),
    "tuple keys": (lambda: {"ema": {(key, 1): value for key, value in state_of(2).items()}}, "ema (41 tensors)"),
    "negative keys": (lambda: {"ema": {-1: torch.ones(2)}}, "ema (1 tensor, [2])"),
    "shadow_params": (lambda: {"ema": {"decay": 0.9, "shadow_params": _lists(41)}}, "ema.shadow_params (41 tensors)"),
    "an object": (lambda: {"ema": Average()}, "ema.shadow (41 tensors)"),
    "fp32_from_fp16_groups": (
        lambda: {"fp32_from_fp16_groups": [_lists(), _lists(1)]},
        "fp32_from_fp16_groups.1 (1 tensor, [99, 32])",
    ),
    "a list": (lambda: {"crf": [torch.ones(3, 3)]}, "crf (1 tensor, [3, 3])"),
    "a tuple in a list": (lambda: {"crf": [(torch.ones(3, 3), 1)]}, "crf.0 (1 tensor, [3, 3])"),
    "an array": (lambda: {"prototypes": np.ones((3, 2))}, "prototypes (1 tensor, [3, 2])"),
    "a single number": (lambda: {"temperature": torch.tensor(0.5)}, "temperature (1 tensor, [])"),
    "complex numbers": (lambda: {"rotary": torch.ones(2, dtype=torch.complex64)}, "rotary (1 tensor, [2])"),
    "whole numbers": (lambda: {"codes": torch.ones(2, 2, dtype=torch.int64)}, "codes (1 tensor, [2, 2])"),
    "a sparse tensor": (lambda: {"graph": torch.eye(3).to_sparse()}, "graph."),
    "a parameter": (lambda: {"p": [torch.nn.Parameter(torch.ones(2))]}, "p (1 tensor, [2])"),
}


@pytest.mark.parametrize("name", SECOND_MODELS)
@pytest.mark.parametrize("protocol", [2, 4])
def test_a_second_model_in_a_file_is_a_candidate_whatever_holds_it(
    name: str, protocol: int, folder: Path, tmp_path: Path
) -> None:
    torch.save({"model": state_of(1), **SECOND_MODELS[name]()}, folder / "last.pt", pickle_protocol=protocol)
    found = headscope.repair(folder, tmp_path / "new")
    assert found.verdict.value == "not_determined" and not (tmp_path / "new").exists()
    candidates = [item.take for item in found.states[-1].candidates]
    assert candidates[0] == "model" and len(candidates) == 2
    for seed, take in enumerate(candidates, 1):
        made = headscope.repair(folder, tmp_path / str(seed), take=take)
        if name == "with a key momentum_buffer" and seed == 2:
            assert (made.proof.unused, made.proof.lost) == (("momentum_buffer",), ())
            continue
        assert made.verdict.value == "proven", made.proof
        loads(tmp_path / str(seed), state_of(seed))
        assert any("41 tensors" in group or "42 tensors" in group for group in made.not_taken)


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("protocol", [2, 4])
def test_what_is_not_in_the_state_dict_is_told_with_its_place(
    name: str, protocol: int, folder: Path, tmp_path: Path, capsys: Any
) -> None:
    build, group = PARTS[name]
    torch.save({"model": state_of(1), **build()}, folder / "last.pt", pickle_protocol=protocol)
    code, report = documents(capsys, "repair", str(folder), "-o", str(tmp_path / "new"))
    assert (code, report["verdict"]) == (1, "incomplete"), report
    assert any(item.replace("<tuple>", "").startswith(group) for item in report["not_taken"]), report["not_taken"]
    loads(tmp_path / "new", state_of(1))
    taken = headscope.repair(folder, tmp_path / "taken", take="model")
    assert taken.verdict.value == "proven" and taken.not_taken == tuple(report["not_taken"])


def test_the_state_of_a_training_is_no_loss(folder: Path, tmp_path: Path) -> None:
    """What torch's optimizer, scheduler, scaler and generators save, and a second name of the same tensors."""
    model = model_of(1)
    optimizer = torch.optim.AdamW(model.parameters())
    sum(item.sum() for item in model.parameters()).backward()
    before = state_of(1)
    optimizer.step()
    model.load_state_dict(before)
    held = {
        "model": model.state_dict(), "anything": optimizer.state_dict(), "epoch": 3, "loss": 0.5,
        "s": torch.optim.lr_scheduler.LinearLR(optimizer).state_dict(), "best": np.float64(0.5),
        "rng": [torch.get_rng_state()], "np": np.random.get_state(), "params": list(model.parameters()),
        "amp": torch.amp.GradScaler("cpu").state_dict(), "names": np.array(["a", "b"]), "whole": optimizer,
    }  # fmt: skip
    torch.save(held, folder / "last.pt")
    found = headscope.repair(folder, tmp_path / "new")
    assert (found.verdict.value, found.not_taken) == ("proven", ())
    loads(tmp_path / "new", before)


def test_many_groups_are_told_by_their_top(folder: Path, tmp_path: Path) -> None:
    torch.save({"model": state_of(1), "ema": [[torch.ones(2)] for _ in range(30)]}, folder / "last.pt")
    assert headscope.repair(folder, tmp_path / "new").not_taken == ("ema (30 tensors)",)


def test_attributes_of_a_pickled_model_are_told(folder: Path, tmp_path: Path) -> None:
    model = model_of(1)
    model.prototypes = [torch.ones(3, 2)]
    model.bert.scale = (torch.ones(2),)
    torch.save(model, folder / "whole.pt")
    found = headscope.repair(folder, tmp_path / "new")
    assert found.verdict.value == "incomplete" and len(found.not_taken) == 2, found
    assert "prototypes (1 tensor, [3, 2])" in found.not_taken
    loads(tmp_path / "new", state_of(1))


@pytest.mark.parametrize("same", [True, False])
def test_parts_of_model_parallel_ranks_are_refused_unless_they_are_equal(
    same: bool, folder: Path, tmp_path: Path, capsys: Any
) -> None:
    save_ranks(folder, state_of(1), state_of(1 if same else 2))
    code, report = documents(capsys, "repair", str(folder), "-o", str(tmp_path / "new"))
    assert (code, report["verdict"]) == ((0, "proven") if same else (1, "refused")), report
    assert same or "parts of 2 model-parallel ranks, which headscope doesn't join" in report["proof"]["reason"]
    assert (tmp_path / "new").exists() is same


@pytest.mark.parametrize("other", ["layer_00-model_states.pt", "layer_0_expert_1_mp_rank_00_model_states.pt"])
def test_layers_and_experts_in_other_files_are_refused(other: str, folder: Path, tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(2)}, save_ranks(folder, state_of(1)) / other)
    found = headscope.repair(folder, tmp_path / "new")
    assert found.verdict.value == "refused" and other in found.proof.reason


def test_what_a_client_saved_beside_the_module_of_deepspeed_is_told(folder: Path, tmp_path: Path) -> None:
    save_ranks(folder, state_of(1), ema=state_of(2), optimizer={"state": {0: state_of(3)}, "param_groups": []})
    found = headscope.repair(folder, tmp_path / "new")
    assert (found.verdict.value, found.not_taken) == ("incomplete", ("ema (41 tensors)",))


@pytest.mark.parametrize("name", ["scheduled_net", "optimal", "state"])
def test_a_second_model_in_a_distributed_checkpoint_is_named_by_whatever_name(
    name: str, folder: Path, tmp_path: Path
) -> None:
    import torch.distributed.checkpoint as dcp

    kept = {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": [{"lr": 0.1}]}
    dcp.save({"model": state_of(1), name: state_of(2), "o": kept}, checkpoint_id=folder)
    found = headscope.repair(folder, tmp_path / "new", take="model")
    assert (found.verdict.value, found.not_taken) == ("proven", (f"{name} (41 tensors)",))
    assert headscope.repair(folder, tmp_path / "other").verdict.value == "not_determined"


@pytest.mark.parametrize(
    ("read", "other"),
    [
        ("model.safetensors", "ema.safetensors"),
        ("model.safetensors", "last.ckpt"),
        ("model.safetensors", "pytorch_model.bin"),
        ("pytorch_model.bin", "model_ema.bin"),
    ],
)
def test_other_weight_files_are_named_where_the_loader_prefers_one(
    read: str, other: str, folder: Path, tmp_path: Path, capsys: Any
) -> None:
    save(state_of(1, "module."), folder / read)
    save(state_of(2, "module."), folder / other)
    code, report = documents(capsys, "repair", str(folder), "-o", str(tmp_path / "new"))
    assert (code, report["verdict"], report["kept_weights"]) == (0, "proven", [other])
    loads(tmp_path / "new", state_of(1))
    assert json.loads((tmp_path / "new" / "headscope-repair.json").read_text())["kept_weights"] == [other]
    assert main(["repair", str(folder), "-o", str(tmp_path / "again")]) == 0
    assert f"not read {other}" in " ".join(capsys.readouterr().out.split())


def _shard_sets(folder: Path) -> None:
    for seed, count in enumerate((2, 3), 1):
        items = list(state_of(seed).items())
        for at in range(count):
            part = dict(items[len(items) * at // count : len(items) * (at + 1) // count])
            save(part, folder / f"pytorch_model-{at + 1:05d}-of-{count:05d}.bin")


def _folders(*names: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        for seed, name in enumerate(names, 1):
            model_of(seed).save_pretrained(folder / name)

    return make


FOLDERS: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "two sets of shards": (_shard_sets, ("pytorch_model-00001-of-00002.bin", "pytorch_model-00001-of-00003.bin")),
    "best and last": (_folders("best", "last"), ("best", "last")),
    "epochs": (_folders("epoch_1", "epoch_2"), ("epoch_1", "epoch_2")),
    "a step and best": (_folders("checkpoint-2", "best"), ("checkpoint-2", "best")),
}


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("with_config", [True, False])
def test_folders_that_load_nothing_name_their_models(name: str, with_config: bool, tmp_path: Path, capsys: Any) -> None:
    make, takes = FOLDERS[name]
    folder = configured(tmp_path / "old") if with_config else tmp_path / "old"
    folder.mkdir(exist_ok=True)
    make(folder)
    with pytest.raises((OSError, ValueError)):
        transformers.BertForSequenceClassification.from_pretrained(folder)
    given = [] if with_config or "shards" not in name else ["--config", str(configured(tmp_path / "config"))]
    code, report = documents(capsys, "repair", str(folder), "-o", str(tmp_path / "new"), *given)
    assert (code, report["verdict"]) == (3, "not_determined"), report
    assert tuple(item["take"] for item in report["states"][-1]["candidates"]) == takes
    options = {"config": given[1]} if given else {}
    for seed, take in enumerate(takes, 1):
        assert headscope.repair(folder, tmp_path / str(seed), take=take, **options).verdict.value == "proven"
        loads(tmp_path / str(seed), state_of(seed))


@pytest.mark.parametrize("held", [{"opt": 1, "epoch": 1}, {"run": [1]}])
def test_the_one_model_of_a_file_is_repaired_whatever_its_name_is(
    held: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    name = next(iter(held))
    torch.save(held | {name: [state_of(1)] if isinstance(held[name], list) else state_of(1)}, folder / "last.pt")
    assert headscope.repair(folder, tmp_path / "new").verdict.value == "proven"
    loads(tmp_path / "new", state_of(1))


@pytest.mark.parametrize("held", [{"params": [torch.ones(2)]}, {"epoch": 1}, Average(), [torch.ones(2)]])
def test_a_folder_without_weights_is_never_clean(held: Any, folder: Path, tmp_path: Path, capsys: Any) -> None:
    torch.save(held, folder / "last.pt")
    with pytest.raises(HeadscopeError):
        headscope.repair(folder, tmp_path / "new")
    assert main(["repair", str(folder), "-o", str(tmp_path / "new")]) not in (0, 130)
    assert main(["repair", str(configured(tmp_path / "empty")), "-o", str(tmp_path / "new")]) != 0
