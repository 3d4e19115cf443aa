"""PEFT adapters of the table: as people save them, and changed so that they can't work or compute something else."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.verdicts.cases import Case, Edit, State, first, with_settings, without
from tests.verdicts.models import Trained, scores_of

_TARGETS = {
    "bert": ["query", "value"],
    "roberta": ["query", "value"],
    "distilbert": ["q_lin", "v_lin"],
    "gpt2": ["c_attn"],
    "llama": ["q_proj", "v_proj"],
    "electra": ["query"],
}


def _saved(edit: Edit | None = None, **settings: Any) -> Callable[[Trained, Path], None]:
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
        weights = folder / "adapter_model.safetensors"
        state, config = load_file(weights), json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        edit(state, config)
        weights.unlink()
        if state:
            save_file(state, weights, {"format": "pt"})
        (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")

    return write


def _whole_numbers(state: State, config: dict[str, Any]) -> None:
    for name in state:
        if "lora" not in name:
            state[name] = state[name].to(torch.int8)


def broken_adapters() -> Iterator[Case]:
    for family in ("bert", "gpt2", "llama", "roberta"):
        head = {"bert": "classifier", "roberta": "out_proj"}.get(family, "score")
        ways: dict[str, Edit] = {
            "lora_B of NaN": first("lora_B", (...,), float("nan")),
            "lora_A of infinity": first("lora_A", (...,), float("inf")),
            "head of NaN": first(head, (...,), float("nan")),
            "no weight file": without(""),
            "head is missing": without(head),
            "half of the LoRA is missing": without(".1."),
            "layers left out": with_settings(layers_to_transform=[0]),
            "task CAUSAL_LM": with_settings(task_type="CAUSAL_LM"),
            "another rank": with_settings(r=8),
            "targets that don't exist": with_settings(target_modules=["nowhere"]),
            "head as whole numbers": _whole_numbers,
        }
        for way, edit in ways.items():
            yield Case(f"adapter: {way} {family}", family, adapter=_saved(edit))
    of_head = _saved(with_settings(target_modules=["classifier"]))
    yield Case("adapter: targets the classifier bert", "bert", adapter=of_head)


def healthy_adapters() -> Iterator[Case]:
    for family in _TARGETS:
        yield Case(f"lora {family}", family, adapter=_saved())
        yield Case(f"lora with its bias {family}", family, adapter=_saved(bias="all"))
        yield Case(f"dora {family}", family, adapter=_saved(use_dora=True))
        yield Case(f"rslora {family}", family, adapter=_saved(use_rslora=True))
        yield Case(f"lora with 5 classes {family}", family, adapter=_saved(), classes=5)
