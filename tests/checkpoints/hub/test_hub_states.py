"""Repositories of the Hub in states that `from_pretrained` does not read: told from the listing and from headers."""

import io
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from families import FAMILIES
from hub import Hub, files_of, run_asking, serve
from safetensors.torch import save

from tests.checkpoints import foreign

REPO = "someone/repo"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a small classifier."""
    family = FAMILIES["bert"]
    folder = tmp_path_factory.mktemp("model")
    family.build(family.classifier).save_pretrained(folder)
    return {name: content for name, content in files_of(folder).items() if name != "README.md"}


@dataclass(frozen=True)
class Ran:
    """How a command ended, and which files of the repository it asked for."""

    code: int
    answer: dict[str, Any]
    asked: tuple[str, ...]

    @property
    def state(self) -> dict[str, Any]:
        if "state" in self.answer:
            return dict(self.answer["state"])
        (found,) = self.answer["checkpoint"]["states"]
        return dict(found)


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., Ran]:
    """`headscope COMMAND` on a repository of these files, in a process of its own."""

    def run(files: dict[str, bytes], command: str = "snapshot", *options: str) -> Ran:
        written = ("-o", str(tmp_path / "out.json")) if command == "snapshot" else ()
        with serve(Hub({REPO: files})) as hub:
            given = ("-m", "headscope", command, REPO, "--json", *written, *options)
            ran = run_asking(hub.endpoint, tmp_path, *given)
            asked = tuple(item.path for item in hub.log if "agent-harnesses" not in item.path)
        return Ran(ran.returncode, json.loads(ran.stdout), asked)

    return run


def saved(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def trainer_output(model: dict[str, bytes]) -> dict[str, bytes]:
    steps = {f"checkpoint-{step}/{name}": content for step in (4, 8) for name, content in model.items()}
    state = {"best_model_checkpoint": "/elsewhere/out/checkpoint-4", "best_metric": 0.75}
    return steps | {"README.md": b"", "checkpoint-8/trainer_state.json": json.dumps(state).encode()}


def deepspeed(model: dict[str, bytes]) -> dict[str, bytes]:
    state = {"module": {"bert.pooler.dense.weight": torch.ones(32, 32)}, "param_shapes": None}
    return {"latest": b"global_step7", "global_step7/mp_rank_00_model_states.pt": saved(state)}


def lightning(model: dict[str, bytes]) -> dict[str, bytes]:
    value = {"state_dict": {"model.x.weight": torch.ones(2)}, "pytorch-lightning_version": "2.6.6", "epoch": 1}
    return {"last.ckpt": saved(value), "hparams.yaml": b""}


def distributed(model: dict[str, bytes]) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        dcp.save({"model": {"classifier.weight": torch.ones(2, 32)}}, checkpoint_id=f"{folder}/pytorch_model_fsdp_0")
        return files_of(Path(folder))


STATES: dict[str, tuple[str, Callable[[dict[str, bytes]], dict[str, bytes]]]] = {
    "trainer": ("HS808", trainer_output),
    "deepspeed": ("HS804", deepspeed),
    "distributed": ("HS805", distributed),
    "lightning": ("HS807", lightning),
    "tensorflow": ("HS810", lambda model: {"tf_model.h5": b"\x89HDF"}),
    "flax": ("HS810", lambda model: {"flax_model.msgpack": b"\x80"}),
    "megatron": ("HS806", lambda model: {"iter_0000010/mp_rank_00/model_optim_rng.pt": b"0"}),
    "no config": ("HS809", lambda model: {"model.safetensors": model["model.safetensors"]}),
}


_REPORTED = {(name, True) for name in ("trainer", "deepspeed", "distributed", "lightning", "megatron")}
"""Where a report can be made: the configuration says which class it is."""


@pytest.mark.parametrize(
    ("name", "configured"),
    [(name, flag) for name in STATES for flag in (True, False) if (name, flag) != ("no config", True)],
)
def test_a_repository_names_its_state(
    name: str, configured: bool, model: dict[str, bytes], ask: Callable[..., Ran]
) -> None:
    rule, files = STATES[name]
    held = files(model) | ({"config.json": model["config.json"]} if configured else {})
    ran = ask(held, "diff-weights" if (name, configured) in _REPORTED or name == "no config" else "snapshot")
    assert (ran.code, "checkpoint" in ran.answer) == (3, (name, configured) in _REPORTED)
    assert ran.state["rule"] == rule
    assert not [path for path in ran.asked if path.endswith(".distcp")]
    if name == "no config":
        assert "BertForSequenceClassification" in ran.state["evidence"][0]
    elif ran.state["repair"] is not None:
        assert f"hf download {REPO} --local-dir ." in ran.state["repair"]["sentence"]
    if name == "trainer":
        assert "--subfolder checkpoint-4" in ran.state["repair"]["sentence"]


def test_the_checkpoint_in_a_repository_of_the_trainer_is_examined_by_its_name(
    model: dict[str, bytes], ask: Callable[..., Ran]
) -> None:
    ran = ask(trainer_output(model), "diff-weights", "--subfolder", "checkpoint-4")
    assert (ran.code, ran.answer["weights"]["new"], ran.answer["checkpoint"]["states"]) == (0, [], [])


@pytest.mark.parametrize(
    "beside", [{}, {"runs/events.part": b"", "checkpoint-4/config.json": b"{}", "tf_model.h5": b"0"}]
)
def test_a_clean_checkpoint_costs_no_request_more(
    beside: dict[str, bytes], model: dict[str, bytes], ask: Callable[..., Ran]
) -> None:
    """For config.json, the header and modules.json, whatever lies beside; LFS makes two of one request."""
    ran = ask({"config.json": model["config.json"], "model.safetensors": model["model.safetensors"]} | beside)
    assert ran.code == 0
    assert {path.rpartition("/")[2] for path in ran.asked} == {"config.json", "model.safetensors", "modules.json"}
    assert not any(path.startswith("/api/") for path in ran.asked)
    assert len(ran.asked) == ran.answer["requests"] == 4


@pytest.mark.parametrize("name", ["adapters", "adapters, head alone", "timm", "open_clip", "flair", "spacy"])
def test_a_repository_of_another_library_is_named(name: str, tmp_path: Path, ask: Callable[..., Ran]) -> None:
    write, words = foreign.FOLDERS[name]
    folder = tmp_path / "saved"
    folder.mkdir()
    write(folder)
    ran = ask(files_of(folder), "check" if name == "timm" else "snapshot")
    assert (ran.code, ran.answer["error"]["code"]) == (3, "unsupported")
    assert words in ran.answer["error"]["message"]
    assert ("contents" in ran.answer) == name.startswith(("adapters", "timm"))


def test_a_peft_adapter_of_the_hub_costs_no_request_more(ask: Callable[..., Ran]) -> None:
    config = json.dumps({"peft_type": "LORA", "base_model_name_or_path": ""}).encode()
    weights = save({"base_model.model.x.lora_A.weight": torch.ones(2, 2)})
    ran = ask({"adapter_config.json": config, "adapter_model.safetensors": weights})
    assert "base model" in ran.answer["error"]["message"]
    assert len([path for path in ran.asked if path.endswith("adapter_config.json")]) <= 2
