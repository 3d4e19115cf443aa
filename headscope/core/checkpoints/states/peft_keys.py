"""The state dict of a PEFT model saved as a whole checkpoint: `base_model.model.`, `base_layer`, `lora_A` in keys."""

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, ClassVar

from headscope.core.checkpoints.states.place import repair_by
from headscope.core.facts import CheckpointManifest, CheckpointState, Repair, StateKind, TensorHeader, WeightsFormat
from headscope.core.facts.counting import counted, few_of
from headscope.core.facts.stored.weights import names_given_twice

PREFIX = "base_model.model."
_LORA = re.compile(r"\.(lora_\w+)\.")
_LAYER = re.compile(r"\.base_layer\.")
_REPLACED = re.compile(r"\.original_module\.")
_SAVED = re.compile(r"^(.+)\.modules_to_save\.[^.]+\.")
_ADAPTER = re.compile(r"\.(?:lora_(?:A|B|embedding_A|embedding_B|magnitude_vector)|modules_to_save)(?:\.|$)")
_TENSORS = ("weight", "bias")
_INSIDE = re.compile(r"\.(base_layer|modules_to_save\.[^.]+)(?=\.)")
REMEDY_OF_TWO_TENSORS = "Save the checkpoint again without the tensors that are not meant."
_AUTO = re.compile(r"AutoModelFor[A-Za-z]{1,60}")
_USUAL = "AutoModelForSequenceClassification"


def find_peft_keys(manifest: CheckpointManifest) -> CheckpointManifest | None:
    """Gives the manifest with the base model's names, as merging would leave it; None if the keys are not PEFT's."""
    changed = _changed_layers([tensor.key for tensor in manifest.tensors])
    if not any(_is_change(tensor.key, changed) for tensor in manifest.tensors):
        return None
    kept: dict[str, TensorHeader] = {}
    for item in manifest.tensors:
        if not _is_change(item.key, changed) and not _REPLACED.search(item.key):
            kept.setdefault(_base_name(item.key), replace(item, key=_base_name(item.key)))
    return replace(manifest, tensors=tuple(kept.values()), shared=())


def _changed_layers(keys: Iterable[str]) -> frozenset[str]:
    """Finds the layers that an adapter changes: those with a `base_layer` inside."""
    return frozenset(key[: match.start()] for key in keys if (match := _LAYER.search(key)))


def _is_change(key: str, changed: Container[str]) -> bool:
    """True if a tensor is an adapter's: it is in a changed layer, but not in its `base_layer`."""
    if _LORA.search(key):
        return True
    parts = key.split(".")
    layer = _layer_in(parts, changed)
    return bool(layer) and parts[layer] != "base_layer"


def _layer_in(parts: Sequence[str], changed: Container[str]) -> int:
    """Counts the parts of a key that name a changed layer; 0 if none do."""
    return next((at for at in range(len(parts) - 1, 0, -1) if ".".join(parts[:at]) in changed), 0)


def _base_name(key: str) -> str:
    """Gives the name in the base model."""
    return _INSIDE.sub("", key.rpartition(PREFIX)[2] if PREFIX in key else key)


def state_of_peft_keys(manifest: CheckpointManifest, class_name: str) -> CheckpointState:
    """Describes the state of a checkpoint with the keys of a PEFT model, which loads as a class of Transformers."""
    keys = [tensor.key for tensor in manifest.tensors]
    beginning = sum(PREFIX in key for key in keys)
    changed = _changed_layers(keys)
    saved = sorted({match[1].rpartition(".")[2] for key in keys if (match := _SAVED.match(key))})
    layers = {key.partition(".lora_A.")[0] for key in keys if ".lora_A." in key} or changed
    # The rank is the shorter side of the matrix.
    ranks = [min(tensor.shape) for tensor in manifest.tensors if ".lora_A." in tensor.key and tensor.shape]
    targets = sorted({layer.rpartition(".")[2] for layer in layers})
    kind = "low-rank changes"
    if not ranks:  # the adapter's tensors in a layer: `ia3_l`, `hada_w1_a`
        paths = [key.split(".")[:-1] for key in keys if _is_change(key, changed)]
        parts = {next((part for part in reversed(path) if part != "default"), "default") for path in paths}
        kind = f"changes ({few_of(sorted(parts))})"
    evidence = [f"{beginning:,} of {counted(len(keys), 'key')} contain {PREFIX!r}"] if beginning else []
    evidence.append(f"{counted(len(layers), 'layer')} ({few_of(targets)}) with {kind} beside the weights")
    evidence += [f"PEFT saved {few_of(saved)} whole"] if saved else []
    adapters = list(dict.fromkeys(_adapter_names(keys, changed)))
    unclear, remedy = _why_unclear(keys, adapters)
    adapter = next(iter(adapters), "default")
    return CheckpointState(
        StateKind.PEFT_KEYS,
        tool="PEFT",
        sentence="The file is the state dict of a PEFT model, with the adapter still beside the base model's weights: "
        "from_pretrained does not recognize the keys.",
        evidence=(*evidence, *unclear),
        repair=None
        if unclear
        else _build_repair(manifest, class_name, ranks, targets=targets, saved=saved, adapter=adapter),
        remedy=remedy,
    )


def _why_unclear(keys: Sequence[str], adapters: Sequence[str]) -> tuple[list[str], str]:
    """Tells why a file has no repair, and what to do about it; both empty if it has one."""
    if "" in adapters:
        return ["the keys of the adapter lack its name"], _REMEDY_OF_NO_NAME
    if len(adapters) > 1:
        reason = f"it holds {len(adapters)} adapters: {few_of(adapters)}; the file doesn't say which one is used"
        return [reason], "Load the model with one adapter, and save it again."
    # PEFT doesn't use the module that it replaced, so its tensors are not second ones.
    twice = of_two_tensors(names_given_twice([_base_name(key) for key in keys if not _REPLACED.search(key)]))
    return twice, REMEDY_OF_TWO_TENSORS if twice else ""


_REMEDY_OF_NO_NAME = (
    "Rename them to what the state dict of a PEFT model has (lora_A.default.weight), or save the model again."
)


def of_two_tensors(names: Sequence[str]) -> list[str]:
    """Gives the evidence that a file has two tensors for each of these parameters; empty for none."""
    return [f"two tensors stand for {few_of(names)}; the file doesn't say which one is meant"] if names else []


def _adapter_names(keys: Iterable[str], changed: Container[str]) -> Iterator[str]:
    """Reads the names that PEFT gave to the adapters: `query.lora_A.NAME.weight`, `query.ia3_l.NAME`; "" for none."""
    for key in keys:
        match, parts = _ADAPTER.search(key), key.split(".")
        layer = _layer_in(parts, changed)
        if match:
            yield _adapter_name_in(key[match.end() :].split("."))
        elif layer and parts[layer] not in ("base_layer", *_TENSORS):
            yield _adapter_name_in(parts[layer + 1 :])


def _adapter_name_in(rest: Sequence[str]) -> str:
    """Gives the adapter's name at the beginning of the rest of a key; "" if only the tensor's name is there."""
    return "" if not rest or (len(rest) == 1 and rest[0] in ("", *_TENSORS)) else rest[0]


@dataclass(frozen=True, slots=True)
class MergePeft:
    """Puts a model together as PEFT had it, loads the state dict, merges and saves it.

    Any number would merge without an error, so that the reader has to set what the file does not hold.
    """

    class_name: str
    trust: bool
    files: tuple[str, ...]
    is_torch: bool
    rank: int
    """That of most layers; 0 for an adapter of another kind than LoRA."""
    targets: tuple[str, ...]
    saved: tuple[str, ...]
    is_dora: bool
    adapter: str = "default"
    """PEFT's name for it."""
    read_settings: ClassVar = frozenset({"r", "target_modules", "modules_to_save"})
    """What the file itself tells of the LoraConfig."""

    def code(self) -> str:
        """See `RepairAction`."""
        return f"{self.code_to_load('.', {}, '')}\n{self.code_to_save('.')}"

    def options(self) -> str:
        """See `RepairAction`."""
        return " --set lora_alpha=N" if self.rank else " --config FOLDER_WITH_ADAPTER_CONFIG"

    def code_to_load(self, folder: str, settings: Mapping[str, Any], config: str) -> str:
        """Gives the code that loads `model`, not merged yet, with settings of the reader or a PEFT configuration."""
        trust = ", trust_remote_code=True" if self.trust else ""
        cls = self.class_name
        build = f"{cls}.from_config" if cls.startswith("Auto") else cls
        load = "torch.load(path, map_location='cpu', weights_only=True)" if self.is_torch else "load_file(path)"
        needed, configured = self._config_code(settings, config)
        named = "" if self.adapter == "default" else f", adapter_name={self.adapter!r}"
        return (
            f"{'import torch' if self.is_torch else 'from safetensors.torch import load_file'}\n"
            f"from peft import {needed}get_peft_model\n"
            f"from transformers import AutoConfig, {cls}\n"
            f"{configured}\n"
            f"model = get_peft_model({build}(AutoConfig.from_pretrained({folder!r}{trust}){trust}), config{named})\n"
            "state = {}\n"
            f"for path in {[str(PurePath(folder, name)) for name in self.files]!r}:\n"
            f"    state |= {load}\n"
            f"state = {{{PREFIX!r} + key.rpartition({PREFIX!r})[2]: value for key, value in state.items()}}\n"
            "_, unexpected = model.load_state_dict(state, strict=False)\n"
            # A tensor of two names is stored under one of them, and PEFT doesn't use the module that it replaced.
            "own = model.state_dict()\n"
            "loaded = {value.data_ptr() for key, value in own.items() if key in state or '.original_module.' in key}\n"
            "lacking = [key for key, value in own.items() if value.data_ptr() not in loaded]\n"
            "assert not unexpected and not lacking, (unexpected, lacking)"
        )

    def code_to_save(self, folder: str) -> str:
        """Gives the code that merges `model` and saves it."""
        return f"model.merge_and_unload().save_pretrained({folder!r})"

    def _config_code(self, settings: Mapping[str, Any], config: str) -> tuple[str, str]:
        """Gives what is imported from PEFT, and the code that makes its configuration."""
        if config:
            return "PeftConfig, ", f"config = PeftConfig.from_pretrained({config!r})"
        if not self.rank:
            return "", "config = ...  # the IA3Config, LoHaConfig, ... of your training"
        alpha = repr(settings["lora_alpha"]) if "lora_alpha" in settings else "...  # that of your LoraConfig"
        more = {"use_dora": True} if self.is_dora else {}
        more |= {name: value for name, value in settings.items() if name != "lora_alpha"}
        return "LoraConfig, ", (
            f"lora_alpha = {alpha}\n"
            f"config = LoraConfig(r={self.rank}, lora_alpha=lora_alpha, target_modules={list(self.targets)!r}, "
            f"modules_to_save={list(self.saved) or None!r}{''.join(f', {name}={more[name]!r}' for name in more)})"
        )


def _build_repair(
    manifest: CheckpointManifest, class_name: str, ranks: list[int], *, targets: list[str], saved: list[str],
    adapter: str,
) -> Repair:  # fmt: skip
    remote = _remote_class(manifest.config)
    action = MergePeft(
        remote or class_name, bool(remote), tuple(file.name for file in manifest.files),
        manifest.format is WeightsFormat.TORCH, Counter(ranks).most_common(1)[0][0] if ranks else 0, tuple(targets),
        tuple(saved), any(".lora_magnitude_vector." in item.key for item in manifest.tensors),
        adapter,
    )  # fmt: skip
    sentence = _LORA_SENTENCE if ranks else _OTHER_SENTENCE
    return repair_by(f"If you trust the model code of the checkpoint, m{sentence[1:]}" if remote else sentence, action)


_LORA_SENTENCE = (
    "Merge the adapter into the weights; set lora_alpha to that of your LoraConfig, which the file does not hold. "
    "Add use_rslora=True if you trained with it, and set lora_alpha to 0 if merge_adapter() ran before the save:"
)
_OTHER_SENTENCE = (
    "Merge the adapter into the weights; set config to that of your training, which the file does not hold:"
)


def _remote_class(config: Mapping[str, Any]) -> str:
    """Gives the auto class for a model whose code is in the checkpoint; "" for one of Transformers."""
    named = config.get("auto_map")
    found = (
        [name for name in named if isinstance(name, str) and _AUTO.fullmatch(name)] if isinstance(named, dict) else []
    )
    return _USUAL if _USUAL in found else next(iter(found), "")
