"""The state dict of a PEFT model saved as a whole checkpoint: `base_model.model.`, `base_layer`, `lora_A` in keys."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from headscope.facts import CheckpointManifest, CheckpointState, Repair, StateKind, TensorHeader, WeightsFormat
from headscope.facts.counting import counted, few_of

PREFIX = "base_model.model."
_CHANGE = re.compile(r"\.(lora_\w+)\.")
_REPLACED = re.compile(r"\.original_module\.")
_SAVED = re.compile(r"^(.+)\.modules_to_save\.\w+\.")
_INSIDE = re.compile(r"\.(base_layer|modules_to_save\.\w+)(?=\.)")
_CLASS = re.compile(r"[A-Z][A-Za-z0-9]{0,80}")
_USUAL = "AutoModelForSequenceClassification"


def find_peft_keys(manifest: CheckpointManifest) -> CheckpointManifest | None:
    """The manifest with the names of the base model, as merging would leave it; None where the keys are not PEFT's."""
    if not any(_CHANGE.search(tensor.key) for tensor in manifest.tensors):
        return None
    kept = {plain: replace(item, key=plain) for item in manifest.tensors if (plain := _plain(item.key)) is not None}
    return replace(manifest, tensors=tuple(kept.values()), shared=())


def _plain(key: str) -> str | None:
    """The name in the base model; None for a tensor that merging takes away."""
    if _CHANGE.search(key) or _REPLACED.search(key):
        return None
    return _INSIDE.sub("", key.rpartition(PREFIX)[2] if PREFIX in key else key)


def state_of_peft_keys(manifest: CheckpointManifest) -> CheckpointState:
    """The state of a checkpoint with the keys of a PEFT model."""
    keys = [tensor.key for tensor in manifest.tensors]
    beginning = sum(PREFIX in key for key in keys)
    ranks, targets, saved = _ranks(manifest.tensors), _targets(keys), _saved(keys)
    evidence = [f"{beginning:,} of {counted(len(keys), 'key')} contain {PREFIX!r}"]
    evidence.append(f"{counted(len(ranks), 'layer')} ({few_of(targets)}) with low-rank changes beside the weights")
    evidence += [f"PEFT saved {few_of(saved)} whole"] if saved else []
    return CheckpointState(
        StateKind.PEFT_KEYS,
        tool="PEFT",
        sentence="The file is the state dict of a PEFT model, with the adapter still beside the base model's weights: "
        "from_pretrained does not recognize the keys.",
        evidence=tuple(evidence),
        repair=_repair(manifest, ranks, targets, saved),
    )


def _ranks(tensors: tuple[TensorHeader, ...]) -> list[int]:
    return [min(tensor.shape) for tensor in tensors if ".lora_A." in tensor.key and tensor.shape]


def _targets(keys: list[str]) -> list[str]:
    """The names of the layers that the adapter changes."""
    return sorted({key.partition(".lora_A.")[0].rpartition(".")[2] for key in keys if ".lora_A." in key})


def _saved(keys: list[str]) -> list[str]:
    return sorted(set(_saved_modules(keys)))


def _saved_modules(keys: list[str]) -> Iterator[str]:
    for key in keys:
        match = _SAVED.match(key)
        if match:
            yield match[1].rpartition(".")[2]


def _repair(manifest: CheckpointManifest, ranks: list[int], targets: list[str], saved: list[str]) -> Repair:
    """The code that puts the model together as PEFT had it, loads the state dict, merges and saves it."""
    named = manifest.config.get("architectures")
    first = named[0] if isinstance(named, list) and named else None
    cls = first if isinstance(first, str) and _CLASS.fullmatch(first) else _USUAL
    build = f"{cls}.from_config" if cls.startswith("Auto") else cls
    files = [file.name for file in manifest.files]
    is_torch = manifest.format is WeightsFormat.TORCH
    load = "torch.load(file, map_location='cpu', weights_only=True)" if is_torch else "load_file(file)"
    rank = Counter(ranks).most_common(1)[0][0] if ranks else 8
    code = (
        f"{'import torch' if is_torch else 'from safetensors.torch import load_file'}\n"
        "from peft import LoraConfig, get_peft_model\n"
        f"from transformers import AutoConfig, {cls}\n"
        "lora_alpha = ...  # that of your LoraConfig\n"  # any number would merge without an error
        f"config = LoraConfig(r={rank}, lora_alpha=lora_alpha, target_modules={targets!r}, "
        f"modules_to_save={saved or None!r})\n"
        f"model = get_peft_model({build}(AutoConfig.from_pretrained('.')), config)\n"
        "state = {}\n"
        f"for file in {files!r}:\n"
        f"    state |= {load}\n"
        "model.load_state_dict({key[key.index('base_model.'):]: value for key, value in state.items()})\n"
        "model.merge_and_unload().save_pretrained('.')"
    )
    return Repair(
        "Merge the adapter into the weights; set lora_alpha to that of your LoraConfig, which the file does not hold:",
        code,
    )
