"""The state dict of a PEFT model saved as a whole checkpoint: `base_model.model.`, `base_layer`, `lora_A` in keys."""

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from headscope.facts import CheckpointManifest, CheckpointState, Repair, StateKind, TensorHeader, WeightsFormat
from headscope.facts.counting import counted, few_of

PREFIX = "base_model.model."
_LORA = re.compile(r"\.(lora_\w+)\.")
_LAYER = re.compile(r"\.base_layer\.")
_REPLACED = re.compile(r"\.original_module\.")
_SAVED = re.compile(r"^(.+)\.modules_to_save\.\w+\.")
_INSIDE = re.compile(r"\.(base_layer|modules_to_save\.\w+)(?=\.)")
_CLASS = re.compile(r"[A-Z][A-Za-z0-9]{0,80}")
_AUTO = re.compile(r"AutoModelFor[A-Za-z]{1,60}")
_USUAL = "AutoModelForSequenceClassification"


def find_peft_keys(manifest: CheckpointManifest) -> CheckpointManifest | None:
    """The manifest with the names of the base model, as merging would leave it; None where the keys are not PEFT's."""
    changed = _changed([tensor.key for tensor in manifest.tensors])
    if not any(_is_change(tensor.key, changed) for tensor in manifest.tensors):
        return None
    kept = {
        _plain(item.key): replace(item, key=_plain(item.key))
        for item in manifest.tensors
        if not _is_change(item.key, changed) and not _REPLACED.search(item.key)
    }
    return replace(manifest, tensors=tuple(kept.values()), shared=())


def _changed(keys: Iterable[str]) -> frozenset[str]:
    """The layers that an adapter changes: those with a `base_layer` inside."""
    return frozenset(key[: match.start()] for key in keys if (match := _LAYER.search(key)))


def _is_change(key: str, changed: Container[str]) -> bool:
    """Whether a tensor is an adapter's: it is in a changed layer, but not in its `base_layer`."""
    if _LORA.search(key):
        return True
    parts = key.split(".")
    layer = next((at for at in range(len(parts) - 1, 0, -1) if ".".join(parts[:at]) in changed), None)
    return layer is not None and parts[layer] != "base_layer"


def _plain(key: str) -> str:
    """The name in the base model."""
    return _INSIDE.sub("", key.rpartition(PREFIX)[2] if PREFIX in key else key)


def state_of_peft_keys(manifest: CheckpointManifest) -> CheckpointState:
    """The state of a checkpoint with the keys of a PEFT model."""
    keys = [tensor.key for tensor in manifest.tensors]
    beginning = sum(PREFIX in key for key in keys)
    changed, saved = _changed(keys), sorted(set(_saved_modules(keys)))
    ranks, targets = _ranks(manifest.tensors), _targets(keys, changed)
    kind = "low-rank changes" if ranks else f"changes ({few_of(_parts(keys, changed))})"
    evidence = [f"{beginning:,} of {counted(len(keys), 'key')} contain {PREFIX!r}"] if beginning else []
    evidence.append(
        f"{counted(len(ranks) or len(changed), 'layer')} ({few_of(targets)}) with {kind} beside the weights"
    )
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


def _targets(keys: list[str], changed: Iterable[str]) -> list[str]:
    """The names of the layers that the adapter changes."""
    found = [key.partition(".lora_A.")[0] for key in keys if ".lora_A." in key] or changed
    return sorted({layer.rpartition(".")[2] for layer in found})


def _parts(keys: list[str], changed: Container[str]) -> list[str]:
    """The names of an adapter's tensors in a layer: `ia3_l`, `hada_w1_a`."""
    return sorted({next(part for part in reversed(key.split(".")[:-1]) if part != "default")
                   for key in keys if _is_change(key, changed)})  # fmt: skip


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
    remote = _remote_class(manifest.config)
    cls, trust = remote or cls, ", trust_remote_code=True" if remote else ""
    build = f"{cls}.from_config" if cls.startswith("Auto") else cls
    files = [file.name for file in manifest.files]
    is_torch = manifest.format is WeightsFormat.TORCH
    load = "torch.load(file, map_location='cpu', weights_only=True)" if is_torch else "load_file(file)"
    config, needed, sentence = _config(
        ranks, targets, saved, is_dora=any(".lora_magnitude_vector." in item.key for item in manifest.tensors)
    )
    code = (
        f"{'import torch' if is_torch else 'from safetensors.torch import load_file'}\n"
        f"from peft import {needed}get_peft_model\n"
        f"from transformers import AutoConfig, {cls}\n"
        f"{config}\n"
        f"model = get_peft_model({build}(AutoConfig.from_pretrained('.'{trust}){trust}), config)\n"
        "state = {}\n"
        f"for file in {files!r}:\n"
        f"    state |= {load}\n"
        f"state = {{{PREFIX!r} + key.rpartition({PREFIX!r})[2]: value for key, value in state.items()}}\n"
        "model.load_state_dict(state)\n"
        "model.merge_and_unload().save_pretrained('.')"
    )
    return Repair(f"If you trust the model code of the checkpoint, m{sentence[1:]}" if remote else sentence, code)


def _remote_class(config: Mapping[str, Any]) -> str:
    """The auto class for a model whose code is in the checkpoint; "" for one of Transformers."""
    named = config.get("auto_map")
    found = (
        [name for name in named if isinstance(name, str) and _AUTO.fullmatch(name)] if isinstance(named, dict) else []
    )
    return _USUAL if _USUAL in found else next(iter(found), "")


def _config(ranks: list[int], targets: list[str], saved: list[str], *, is_dora: bool) -> tuple[str, str, str]:
    """The code that makes PEFT's configuration, what it imports, and the sentence on what the reader sets.

    Any number would merge without an error, so that the reader has to set what the file does not hold.
    """
    if not ranks:
        sentence = (
            "Merge the adapter into the weights; set config to that of your training, which the file does not hold:"
        )
        return "config = ...  # the IA3Config, LoHaConfig, ... of your training", "", sentence
    rank = Counter(ranks).most_common(1)[0][0]
    code = (
        "lora_alpha = ...  # that of your LoraConfig\n"
        f"config = LoraConfig(r={rank}, lora_alpha=lora_alpha, target_modules={targets!r}, "
        f"modules_to_save={saved or None!r}{', use_dora=True' if is_dora else ''})"
    )
    sentence = (
        "Merge the adapter into the weights; set lora_alpha to that of your LoraConfig, which the file does not hold. "
        "Add use_rslora=True if you trained with it, and set lora_alpha to 0 if merge_adapter() ran before the save:"
    )
    return code, "LoraConfig, ", sentence
