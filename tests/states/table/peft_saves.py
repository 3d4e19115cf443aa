"""Saves of PEFT models by `state_dict()`, with and without the adapter merged, held against PEFT's own merge."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from states.table.entry import Made, entry
from states.table.small import classifier, configured
from states.table.wrapped import BIN, SAFE
from torch import nn

from tests.saving import save_state

_entry = partial(entry, needs=("torch", "peft"))
_ALPHA: dict[str, Any] = {
    "filled": ((r"lora_alpha = \.\.\.", "lora_alpha = 32"),),
    "given": ("--set", "lora_alpha=32"),
}
_SET_IA3 = (
    (
        r"config = \.\.\..*",
        "from peft import IA3Config; config = IA3Config(task_type='SEQ_CLS', "
        "target_modules=['k_lin', 'v_lin', 'lin2'], feedforward_modules=['lin2'])",
    ),
)


def peft_model(family: str, targets: list[str], **settings: Any) -> Any:
    """A PEFT model with weights in its adapter, of rank 4 and alpha 32."""
    import peft

    model = classifier(family)
    config = peft.LoraConfig(task_type="SEQ_CLS", r=4, lora_alpha=32, target_modules=targets, **settings)
    made = peft.get_peft_model(model, config)
    for name, parameter in made.named_parameters():
        if "lora_" in name or "modules_to_save" in name:
            nn.init.normal_(parameter, std=0.05)
    return made


def _saved(family: str, targets: list[str], file: str, code: str, wrap: Any = None, **settings: Any) -> None:
    rslora = (("lora_alpha=lora_alpha", "lora_alpha=lora_alpha, use_rslora=True"),) if "use_rslora" in settings else ()
    settings_shown = "".join(f", {name}={value!r}" for name, value in settings.items())

    @_entry(
        f"{family} with LoRA{settings_shown}, {code}",
        "HS803",
        f"{code} of get_peft_model(model, LoraConfig(task_type='SEQ_CLS'{settings_shown}))",
    )
    def make(folder: Path) -> Made:
        model = peft_model(family, targets, **settings)
        configured(model.base_model.model, folder)
        save_state((wrap(model) if wrap else model).state_dict(), folder / file)
        given = (*_ALPHA["given"], *(("--set", "use_rslora=true") if rslora else ()))
        return Made(model.merge_and_unload(), filled=(*_ALPHA["filled"], *rslora), given=given)


_saved("bert", ["query", "value"], BIN, "torch.save(state_dict)")
_saved("gpt2", ["c_attn"], SAFE, "save_file(state_dict)")
_saved("distilbert", ["q_lin", "v_lin"], BIN, "torch.save(DataParallel state_dict)", nn.DataParallel)
_saved("llama", ["q_proj", "v_proj"], SAFE, "save_file(torch.compile state_dict)", torch.compile)
_saved("roberta", ["query", "value"], BIN, "torch.save(state_dict)", use_dora=True)
_saved("deberta-v2", ["query_proj", "value_proj"], BIN, "torch.save(state_dict)", bias="all")
_saved("electra", ["query"], BIN, "torch.save(state_dict)", use_rslora=True)


@_entry(
    "llama with LoRA merged, the PEFT model's state dict saved",
    "HS802",
    "model.merge_and_unload(); torch.save(peft_model.state_dict(), ...)",
    tool="PEFT",
)
def _merged(folder: Path) -> Made:
    model = peft_model("llama", ["q_proj", "v_proj"])
    merged = model.merge_and_unload()
    torch.save(model.state_dict(), configured(merged, folder) / BIN)
    return Made(merged)


@_entry(
    "bert with LoRA merged by hand",
    "HS802",
    "weight + scaling * lora_B @ lora_A under the keys of PEFT, torch.save",
    tool="PEFT",
)
def _by_hand(folder: Path) -> Made:
    model = peft_model("bert", ["query", "value"])
    state = dict(model.state_dict())
    for key in [key for key in state if key.endswith("base_layer.weight")]:
        start = key.removesuffix("base_layer.weight")
        change = state.pop(f"{start}lora_B.default.weight") @ state.pop(f"{start}lora_A.default.weight")
        state[f"{start}weight"] = state.pop(key) + 8 * change
        state[f"{start}bias"] = state.pop(f"{start}base_layer.bias")
    for key in [key for key in state if ".modules_to_save.default." in key]:
        state[key.replace(".modules_to_save.default", "")] = state.pop(key)
        state.pop(key.replace("modules_to_save.default", "original_module"), None)
    configured(model.base_model.model, folder)
    torch.save(state, folder / BIN)
    return Made(model.merge_and_unload())


@_entry(
    "bert with LoRA merged in place, the PEFT model's state dict saved",
    "HS803",
    "model.merge_adapter(); torch.save(model.state_dict(), ...)",
    said=("merge_adapter",),
)
def _in_place(folder: Path) -> Made:
    model = peft_model("bert", ["query", "value"])
    model.merge_adapter()
    configured(model.base_model.model, folder)
    torch.save(model.state_dict(), folder / BIN)
    return Made(model.merge_and_unload(), filled=((r"lora_alpha = \.\.\.", "lora_alpha = 0"),),
                given=("--set", "lora_alpha=0"))  # fmt: skip


@_entry(
    "distilbert with IA3, torch.save(state_dict)",
    "HS803",
    "torch.save(get_peft_model(model, IA3Config(task_type='SEQ_CLS')).state_dict(), ...)",
)
def _ia3(folder: Path) -> Made:
    import peft

    model = peft.get_peft_model(
        classifier("distilbert"),
        peft.IA3Config(task_type="SEQ_CLS", target_modules=["k_lin", "v_lin", "lin2"], feedforward_modules=["lin2"]),
    )
    for name, parameter in model.named_parameters():
        if "ia3_" in name:
            nn.init.normal_(parameter, mean=1, std=0.1)
    configured(model.base_model.model, folder)
    torch.save(model.state_dict(), folder / BIN)
    model.peft_config["default"].save_pretrained(folder.parent / "adapter")
    return Made(model.merge_and_unload(), filled=_SET_IA3, given=("--config", str(folder.parent / "adapter")))


@_entry(
    "bert adapter saved by PEFT",
    "clean",
    "peft_model.save_pretrained(...) beside base_model.save_pretrained(...)",
    repaired=False,
)
def _adapter(folder: Path) -> Made:
    model = peft_model("bert", ["query"])
    base = classifier("bert")
    base.save_pretrained(folder / "base")
    model.peft_config["default"].base_model_name_or_path = str(folder / "base")
    model.save_pretrained(folder / "adapter")
    return Made(at="adapter")


@_entry(
    "electra with LoRA, config.json names the base model's class",
    "HS803",
    "torch.save(peft_model.state_dict(), ...), architectures of the checkpoint that training began with",
)
def _named_as_base(folder: Path) -> Made:
    model = peft_model("electra", ["query"])
    base = model.base_model.model
    base.config.architectures = ["ElectraModel"]
    torch.save(model.state_dict(), configured(base, folder) / BIN)
    return Made(model.merge_and_unload(), **_ALPHA)


def _base_saved(family: str, targets: list[str], **settings: Any) -> None:
    @_entry(
        f"{family} with its adapter, base_model.model.save_pretrained",
        "HS803",
        "peft_model.base_model.model.save_pretrained(...)",
    )
    def make(folder: Path) -> Made:
        model = peft_model(family, targets, **settings)
        model.base_model.model.save_pretrained(folder)
        return Made(model.merge_and_unload(), **_ALPHA)


_base_saved("bert", ["query", "value"])
_base_saved("gpt2", ["c_attn"])
_base_saved("llama", ["q_proj", "v_proj"])
