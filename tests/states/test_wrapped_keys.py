"""State dicts of wrapped models, made by the wrappers themselves: the state, the repair, and the real load after it."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from states.table.small import classifier, one_process
from states.table.wrapped import Holder, OwnClassifier
from torch import nn

import headscope
from headscope.core.checkpoints.states.wrapped_keys import Rekeying
from headscope.facts import Severity, StateKind
from headscope.shared.report.findings import next_of_inspect
from tests.families import FAMILIES
from tests.saving import save_sharded_safetensors, save_sharded_torch, save_state


@pytest.fixture(scope="module", autouse=True)
def _one_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with one_process(tmp_path_factory.mktemp("group")):
        yield


def _layer_compiled(model: nn.Module) -> nn.Module:
    model.bert.encoder.layer[0] = torch.compile(model.bert.encoder.layer[0])
    return model


_WRAPPERS: dict[str, tuple[Callable[[nn.Module], nn.Module], tuple[str, ...]]] = {
    "DistributedDataParallel": (nn.parallel.DistributedDataParallel, ("all 41 keys begin with 'module.'",)),
    "DataParallel": (nn.DataParallel, ("all 41 keys begin with 'module.'",)),
    "compiled": (torch.compile, ("all 41 keys contain '_orig_mod.'",)),
    "a compiled layer": (_layer_compiled, ("16 of 41 keys contain '_orig_mod.'",)),
    "compiled, then distributed": (
        lambda model: nn.parallel.DistributedDataParallel(torch.compile(model)),
        ("all 41 keys contain '_orig_mod.'", "all 41 keys begin with 'module.' without it"),
    ),
    "distributed, then compiled": (
        lambda model: torch.compile(nn.parallel.DistributedDataParallel(model)),
        ("all 41 keys contain '_orig_mod.'", "all 41 keys begin with 'module.' without it"),
    ),
    "a module of one's own": (
        Holder,
        ("41 of 42 keys begin with 'net.'", "the class has no place for 1 tensor: temperature"),
    ),
    "a classifier of one's own": (OwnClassifier, ("39 of 41 keys begin with 'backbone.'",)),
}


@pytest.mark.parametrize("name", _WRAPPERS)
def test_the_state_dict_of_a_wrapped_model_is_recognized_and_repaired(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrap, evidence = _WRAPPERS[name]
    model = classifier("bert")
    model.config.save_pretrained(tmp_path)
    torch.save(wrap(model).state_dict(), tmp_path / "pytorch_model.bin")
    cls = transformers.BertForSequenceClassification
    _, info = cls.from_pretrained(tmp_path, output_loading_info=True)
    found = headscope.check(str(tmp_path), "inference", offline=True)
    report = found.report
    (state,) = report.checkpoint.states
    assert (state.kind, state.rule, state.evidence) == (StateKind.WRAPPED_KEYS, "HS802", evidence)
    # what from_pretrained does stays what it is, and what the repair would give stands beside it
    assert set(report.weights.new) == set(info["missing_keys"])
    assert report.repaired.weights.new == ()
    assert all(item.status == "loaded" for item in report.repaired.head)
    monkeypatch.chdir(tmp_path)
    exec(state.repair.code, {})
    _, info = cls.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["mismatched_keys"]
    repaired = headscope.check(str(tmp_path), "inference", offline=True)
    assert repaired.report.checkpoint.states == () and repaired.report.repaired is None
    errors = [item.id for item in repaired.findings if item.severity is Severity.ERROR]
    assert errors == (["HS112"] if "no place" in " ".join(evidence) else [])  # a temperature scaled its scores
    assert repaired.report.weights.loaded == report.repaired.weights.loaded


@pytest.mark.parametrize("save", [save_sharded_safetensors, save_sharded_torch])
def test_the_repair_of_shards_rewrites_their_index(
    save: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = classifier("bert")
    save(model, tmp_path)
    monkeypatch.chdir(tmp_path)
    (index,) = tmp_path.glob("*.index.json")
    before = index.read_text()
    wrapping = Rekeying(("never.",), "", "module.")
    _rewrite(tmp_path, wrapping)
    (state,) = headscope.inspect(str(tmp_path), offline=True).checkpoint.states
    exec(state.repair.code, {})
    assert json.loads(index.read_text())["weight_map"] == json.loads(before)["weight_map"]
    _, info = transformers.BertForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]


def _rewrite(folder: Path, change: Rekeying) -> None:
    """Every shard and the index with changed keys."""
    for file in folder.glob("*-of-*"):
        read = load_file if file.suffix == ".safetensors" else torch.load
        save_state({change(key): value for key, value in read(file).items()}, file)
    (index,) = folder.glob("*.index.json")
    content = json.loads(index.read_text())
    content["weight_map"] = {change(key): name for key, name in content["weight_map"].items()}
    index.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "key", "expected"),
    [
        (Rekeying((), "module."), "module.a.module.b", "a.module.b"),
        (Rekeying((), "module."), "a.module.b", "a.module.b"),
        (Rekeying(("_orig_mod.",)), "a._orig_mod.b._orig_mod.c", "a.b.c"),
        (Rekeying(("_orig_mod.",), "module."), "_orig_mod.module.b", "b"),
        (Rekeying((), "backbone.", "bert."), "backbone.a", "bert.a"),
        (Rekeying((), "backbone.", "bert."), "classifier.a", "classifier.a"),
        (Rekeying(("_orig_mod.",), "a+b.", "bert."), "a+b._orig_mod.c", "bert.c"),
    ],
)
def test_a_change_of_keys_and_its_code_are_one(change: Rekeying, key: str, expected: str) -> None:
    assert change(key) == expected
    assert eval(change.as_code(), {"re": re, "key": key}) == expected


def test_a_prefix_of_some_is_no_state_where_the_loader_takes_the_keys_as_they_are(tmp_path: Path) -> None:
    """A language model's checkpoint: its own head is unused, the classifier is new, and nothing is wrapped."""
    family = FAMILIES["roberta"]
    family.build(family.language_model).save_pretrained(tmp_path)
    report = headscope.inspect(str(tmp_path), offline=True, task="sequence-classification")
    assert report.weights.new and report.weights.unused
    assert report.checkpoint.states == () and report.repaired is None


def test_fsdp_and_checkpointed_parts_are_known_by_the_names_that_torch_uses() -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import _CHECKPOINT_PREFIX
    from torch.distributed.fsdp._common_utils import FSDP_PREFIX

    from headscope.core.checkpoints.states.wrapped_keys import ANYWHERE

    assert {_CHECKPOINT_PREFIX, FSDP_PREFIX, "_orig_mod."} == set(ANYWHERE)


@pytest.mark.parametrize("prefix", ["module.", "net."])
@pytest.mark.parametrize("stray", ["classifier.weight", "bert.pooler.dense.weight", "pooler.dense.weight"])
def test_no_repair_is_named_that_gives_a_parameter_two_tensors(tmp_path: Path, prefix: str, stray: str) -> None:
    model = classifier("bert")
    state = {f"{prefix}{key}": value for key, value in model.state_dict().items()}
    model.config.save_pretrained(tmp_path)
    torch.save(state, tmp_path / "pytorch_model.bin")
    assert [item.rule for item in headscope.inspect(tmp_path).checkpoint.states] == ["HS802"]
    torch.save(state | {stray: torch.randn(3 if stray.startswith("c") else 32, 32)}, tmp_path / "pytorch_model.bin")
    report = headscope.inspect(tmp_path)
    (found,) = report.checkpoint.states
    assert found.rule == "HS802" and found.repair is None and report.repaired is None and report.weights.new
    told = rf"two tensors stand for \S*{re.escape(stray)}; the file doesn't say which one is meant"
    assert re.search(told, found.seen())
    refused = headscope.repair(tmp_path, tmp_path.parent / "repaired")
    assert refused.verdict.value == "refused" and "two tensors stand for" in refused.proof.reason
    assert "without the tensors that are not meant" in refused.proof.reason
    assert not (tmp_path.parent / "repaired").exists()


def _next(place: Path, words: str) -> list[str]:
    report = headscope.inspect(place)
    assert report.checkpoint.states
    return [
        command for command, _ in next_of_inspect(report, words, details=True) if command.startswith("headscope repair")
    ]


def _in_training_file(folder: Path, **stray: torch.Tensor) -> Path:
    """A checkpoint whose weights are inside a file of a training run, with the keys of DDP; `stray` have their own."""
    model = classifier("bert")
    model.config.save_pretrained(folder)
    state = {f"module.{key}": value for key, value in model.state_dict().items()}
    torch.save({"model_state_dict": state | stray}, folder / "pytorch_model.bin")
    return folder


def test_the_next_step_is_a_repair_that_headscope_carries_out(tmp_path: Path) -> None:
    folder = _in_training_file(tmp_path / "model")
    name = str(folder)
    assert _next(folder, name) == [f"headscope repair {name} -o DIR"]
    assert headscope.repair(folder, tmp_path / "repaired").verdict.value == "proven"
    assert _next(folder, f"{name} --subfolder in") == []
    assert _next(folder / "pytorch_model.bin", f"{name}/pytorch_model.bin") == []


def test_behind_a_state_that_is_not_clear_no_repair_is_carried_out(tmp_path: Path) -> None:
    """The reading after the first repair, which is known, stays in the report."""
    folder = _in_training_file(tmp_path / "model", **{"classifier.weight": torch.randn(3, 32)})
    report = headscope.inspect(folder)
    assert [(item.rule, bool(item.repair)) for item in report.checkpoint.states] == [("HS807", True), ("HS802", False)]
    assert report.repaired is not None and "HS807" in report.repaired.change
    assert _next(folder, str(folder)) == []
    remedies = {item.id: item.remedy for item in headscope.check(folder).findings}
    assert "headscope repair" not in remedies["HS807"]
    assert "without the tensors that are not meant" in remedies["HS802"]
    assert headscope.repair(folder, tmp_path / "repaired").verdict.value == "refused"
    assert not (tmp_path / "repaired").exists()
