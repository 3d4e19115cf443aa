"""Every command on every bundled checkpoint and on small saved ones, as every task its family has, with and without a
pad token, by shapes and with weights: no traceback, and the exit code that Transformers itself gives reason for."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig
from transformers.initialization import no_init_weights

import headscope
from headscope.core.model.classes.catalog import classes_of_family
from headscope.core.model.quiet import quiet
from headscope.shell.app import main
from tests.families import FAMILIES

BUNDLED = Path(headscope.__file__).parent / "core" / "checkpoints" / "bundled"
SNAPSHOTS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(BUNDLED.glob("*.json"))}
CHECKS = (("check", "--for", "inference"), ("check", "--for", "training"))  # first: what they find is remembered
COMMANDS = (*CHECKS, ("inspect",), ("diff-weights",), ("forward",), ("compare",), ("diagram",))
TEXT_ONLY = {"diagram"}
PADS = (None, 1)


@dataclass(frozen=True)
class Truth:
    """What Transformers says of a checkpoint as a class: whether one row runs, and two, and what is loaded."""

    runs: bool
    runs_two: bool
    missing: frozenset[str]
    mismatched: bool
    is_of_another_classifier: bool


def _targets(model_types: dict[str, str]) -> list[tuple[str, str, str]]:
    """Name, class and task."""
    return [
        (name, found.name, found.task.value) for name, kind in model_types.items() for found in classes_of_family(kind)
    ]


def _shallow(data: dict[str, Any]) -> dict[str, Any]:
    """A snapshot with the first two of its layers, which are all alike."""
    name = next(name for name in ("num_hidden_layers", "n_layers", "n_layer") if name in data["config"])
    tensors = [item for item in data["tensors"] if not re.search(r"\b(h|layer)\.([2-9]|1\d)\.", item["key"])]
    assert len(tensors) < len(data["tensors"]) / 2
    return data | {"config": data["config"] | {name: 2}, "tensors": tensors}


SHAPES = _targets({name: data["config"]["model_type"] for name, data in SNAPSHOTS.items()})
SAVED = _targets({name: family.build_config().model_type for name, family in FAMILIES.items()})


def truth(class_name: str, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Truth:
    """By the loader and by a plain run on the meta device."""
    cls = getattr(transformers, class_name)
    built = AutoConfig.for_model(**config)
    with quiet():
        _, info = cls.from_pretrained(
            None,
            config=built,
            state_dict=dict(tensors),
            device_map="meta",
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
        with no_init_weights():  # whether it runs does not depend on its values
            made = cls(AutoConfig.for_model(**config | {"vocab_size": 100, "bos_token_id": 2, "eos_token_id": 3}))
        small = made.eval()
    made_for = (config.get("architectures") or [class_name])[0]
    return Truth(
        runs(small),
        _takes(small, 2),
        frozenset(info["missing_keys"]),
        bool(info["mismatched_keys"]),
        made_for != class_name and not made_for.endswith(("LMHeadModel", "ForMaskedLM")),
    )


def runs(model: Any) -> bool:
    """Whether the forward takes a text, if need be with a pad token set after the model was built."""
    if _takes(model, 1):
        return True
    model.config.pad_token_id = 1
    try:
        return _takes(model, 1)
    finally:
        model.config.pad_token_id = None


def _takes(model: Any, rows: int) -> bool:
    """Whether the forward takes that many rows of text, an `<eos>` among them."""
    eos = getattr(model.config, "eos_token_id", None)
    ids = torch.tensor([5, 6, 7, 8, eos if isinstance(eos, int) and eos < 90 else 9, 10])
    try:
        with torch.no_grad():
            model(input_ids=ids.expand((rows, 2, 6) if type(model).__name__.endswith("MultipleChoice") else (rows, 6)))
    except (TypeError, ValueError):
        return False
    return True


def expected(command: tuple[str, ...], known: Truth) -> int:
    """The exit code that a command ends with."""
    if command[0] == "diff-weights":
        return 0
    if not known.runs:
        return 3
    if command[0] != "check":
        return 0
    if (
        "inference" in command
    ):  # a head that is loaded whole was trained: in pretraining, or for the class that the configuration names
        return int(known.mismatched or bool(known.missing) or known.is_of_another_classifier)
    return int(known.mismatched or not known.runs_two)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Runs a command in this process; fails for a traceback, or output that says that it is JSON and is not."""
    monkeypatch.delenv("HEADSCOPE_NO_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(*arguments: str) -> tuple[int, str]:
        code = main(list(arguments))
        out, err = capsys.readouterr()
        assert "Traceback" not in err, err
        assert "bug in headscope" not in err
        if "--json" in arguments:
            json.loads(out)
        return code, out

    yield run


def _words(command: tuple[str, ...], reference: str, class_name: str, pad: int | None) -> list[str]:
    models = [reference, reference] if command[0] == "compare" else [reference]
    form = ["--json"] if pad is not None and command[0] not in TEXT_ONLY else []
    return [command[0], *models, *command[1:], "--model-class", class_name, "--offline", *form]


@pytest.mark.parametrize(("name", "class_name", "task"), SHAPES, ids=[f"{row[0]}-{row[2]}" for row in SHAPES])
def test_every_command_on_every_bundled_checkpoint(
    name: str, class_name: str, task: str, tmp_path: Path, run: Any
) -> None:
    data = _shallow(SNAPSHOTS[name])
    held = {item["key"]: _meta(item) for item in data["tensors"]}
    for pad in PADS:
        config = data["config"] | {"pad_token_id": pad}
        path = tmp_path / f"pad-{pad}.json"
        path.write_text(json.dumps(data | {"config": config}), encoding="utf-8")
        known = truth(class_name, config, held)
        for command in COMMANDS:
            code, out = run(*_words(command, str(path), class_name, pad))
            assert code == expected(command, known), (command, pad, known, out)


def _meta(item: dict[str, Any]) -> torch.Tensor:
    return torch.empty(item["shape"], dtype=getattr(torch, item["dtype"]), device="meta")


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_every_bundled_checkpoint_by_its_name(name: str, tmp_path: Path, run: Any) -> None:
    target = tmp_path / "again.json"
    assert run("snapshot", name, "-o", str(target), "--offline")[0] == 0
    assert run("forward", name, "--num-labels", "3", "--offline")[0] == 0
    assert run("forward", str(target), "--num-labels", "3", "--json")[0] == 0


@pytest.mark.parametrize(("name", "class_name", "task"), SAVED, ids=[f"{row[0]}-{row[2]}" for row in SAVED])
def test_every_small_checkpoint_by_shapes_and_with_weights(
    name: str, class_name: str, task: str, tmp_path: Path, run: Any
) -> None:
    for pad in (None, 0):
        with quiet():
            model = FAMILIES[name].build(class_name, pad_token_id=pad)
            model.save_pretrained(tmp_path / f"pad-{pad}")
        known = name == "vit" or runs(model)
        for device in ("meta", "cpu"):
            words = ["forward", str(tmp_path / f"pad-{pad}"), "--model-class", class_name, "--device", device]
            code, out = run(*words, "--json")
            assert code == (0 if known else 3), (pad, device, out)
            if known:
                assert json.loads(out)["dummy_inputs"] is True
                assert json.loads(out)["scored"] == []


def test_the_grid_is_as_large_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    runs = len(SHAPES) * len(PADS) * len(COMMANDS) + 3 * len(SNAPSHOTS) + len(SAVED) * len(PADS) * 2
    with capsys.disabled():
        print(f"\nthe grid: {runs} runs; {len(SNAPSHOTS)} bundled checkpoints in {len(SHAPES)} classes, "
              f"{len(SAVED)} saved ones, {len(PADS)} pad tokens, {len(COMMANDS)} commands")  # fmt: skip
    assert runs >= 400
