"""PEFT adapters of the table: as people save them, and changed so that they can't work or compute something else."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.verdicts.cases import Case
from tests.verdicts.models import Trained, scores_of

State = dict[str, torch.Tensor]
_TARGETS = {
    "bert": ["query", "value"],
    "roberta": ["query", "value"],
    "distilbert": ["q_lin", "v_lin"],
    "gpt2": ["c_attn"],
    "llama": ["q_proj", "v_proj"],
    "electra": ["query"],
}


def _saved(
    edit: Callable[[State, dict[str, Any], Path], None] | None = None, **settings: Any
) -> Callable[[Trained, Path], None]:
    """Writes a LoRA whose tensors training has changed, then edits its files."""

    def write(made: Trained, folder: Path) -> None:
        from peft import LoraConfig, TaskType, get_peft_model

        torch.manual_seed(3)
        base = type(made.model)(made.model.config)
        base.load_state_dict(made.model.state_dict())
        base.name_or_path = str(folder.parent / "base")
        wanted = {"task_type": TaskType.SEQ_CLS, "r": 4, "target_modules": _TARGETS[made.family]} | settings
        model = get_peft_model(base, LoraConfig(**wanted))
        with torch.no_grad():
            for name, value in model.named_parameters():
                if "lora_B" in name:
                    value.normal_(0, 0.3)
                elif "modules_to_save" in name:
                    value.add_(torch.randn_like(value), alpha=0.3)
        model.save_pretrained(folder)
        torch.save(scores_of(model.get_base_model(), made.inputs), folder.parent / "expected.pt")
        if edit is None:
            return
        state = load_file(folder / "adapter_model.safetensors")
        config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        edit(state, config, folder)
        if (folder / "adapter_model.safetensors").exists():
            save_file(state, folder / "adapter_model.safetensors", {"format": "pt"})
        (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")

    return write


def _filled(part: str, value: float) -> Callable[[State, dict[str, Any], Path], None]:
    def edit(state: State, config: dict[str, Any], folder: Path) -> None:
        names = [name for name in state if part in name]
        assert names
        state[names[0]] = torch.full_like(state[names[0]], value)

    return edit


def _with(**settings: Any) -> Callable[[State, dict[str, Any], Path], None]:
    def edit(state: State, config: dict[str, Any], folder: Path) -> None:
        config.update(settings)

    return edit


def _without(part: str) -> Callable[[State, dict[str, Any], Path], None]:
    def edit(state: State, config: dict[str, Any], folder: Path) -> None:
        for name in [name for name in state if part in name]:
            del state[name]

    return edit


def _unlink(state: State, config: dict[str, Any], folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()


def _whole_numbers(state: State, config: dict[str, Any], folder: Path) -> None:
    for name in state:
        if "lora" not in name:
            state[name] = state[name].to(torch.int8)


def broken_adapters() -> Iterator[Case]:
    for family in ("bert", "gpt2", "llama", "roberta"):
        head = {"bert": "classifier", "roberta": "out_proj"}.get(family, "score")
        ways: dict[str, Callable[[State, dict[str, Any], Path], None]] = {
            "lora_B of NaN": _filled("lora_B", float("nan")),
            "lora_A of infinity": _filled("lora_A", float("inf")),
            "head of NaN": _filled(head, float("nan")),
            "no weight file": _unlink,
            "head is missing": _without(head),
            "half of the LoRA is missing": _without(".1."),
            "layers left out": _with(layers_to_transform=[0]),
            "task CAUSAL_LM": _with(task_type="CAUSAL_LM"),
            "another rank": _with(r=8),
            "targets that don't exist": _with(target_modules=["nowhere"]),
            "head as whole numbers": _whole_numbers,
        }
        for way, edit in ways.items():
            yield Case(f"adapter: {way} {family}", family, adapter=_saved(edit))
    yield Case("adapter: targets the classifier bert", "bert", adapter=_saved(_with(target_modules=["classifier"])))


def healthy_adapters() -> Iterator[Case]:
    for family in _TARGETS:
        yield Case(f"lora {family}", family, adapter=_saved())
        yield Case(f"lora with its bias {family}", family, adapter=_saved(bias="all"))
        yield Case(f"dora {family}", family, adapter=_saved(use_dora=True))
        yield Case(f"rslora {family}", family, adapter=_saved(use_rslora=True))
        yield Case(f"lora with 5 classes {family}", family, adapter=_saved(), classes=5)
