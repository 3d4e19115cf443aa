"""Whether headscope says of an adapter what PEFT does with it: drawn adapters, each loaded by PEFT for real.

    python -m tests.sweeps.adapter_sweep [--count 400] [--seed 1]

Draws a base model, a method of PEFT, the layers that it changes, what it saves whole, and a change of the save.
Compares whether PEFT raises an error, which stored tensors it leaves, whether it lacks some, and where each tensor of
the head comes from. Truth are the values: every stored tensor holds its own random values.
"""

import argparse
import json
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.pytorch_utils import Conv1D

import headscope
from headscope.errors import HeadscopeError
from tests.families import FAMILIES

_BASES = (
    "bert",
    "roberta",
    "distilbert",
    "gpt2",
    "llama",
    "vit",
    "electra",
    "albert",
    "t5",
    "deberta-v2",
    "modernbert",
)
_FILE = "adapter_model.safetensors"
State = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Drawn:
    """One adapter: what was drawn."""

    family: str
    has_head: bool
    method: str
    targets: str
    task: str | None
    saves_head: bool
    change: str

    def __str__(self) -> str:
        return ", ".join(str(value) for value in vars(self).values())


def _methods(targets: Any, norms: list[str]) -> dict[str, Any]:
    """PEFT's configurations by name, as functions of the settings that all have."""
    lora = {"r": 4, "target_modules": targets}
    return {
        "lora": lambda **more: peft.LoraConfig(**lora, **more),
        "dora": lambda **more: peft.LoraConfig(**lora, use_dora=True, **more),
        "lora with bias": lambda **more: peft.LoraConfig(**lora, bias="all", **more),
        "rslora": lambda **more: peft.LoraConfig(**lora, use_rslora=True, rank_pattern={"0.*": 2}, **more),
        "ia3": lambda **more: peft.IA3Config(target_modules=targets, feedforward_modules=[], **more),
        "loha": lambda **more: peft.LoHaConfig(**lora, **more),
        "lokr": lambda **more: peft.LoKrConfig(**lora, **more),
        "oft": lambda **more: peft.OFTConfig(target_modules=targets, oft_block_size=4, r=0, **more),
        "boft": lambda **more: peft.BOFTConfig(target_modules=targets, boft_block_size=4, **more),
        "adalora": lambda **more: peft.AdaLoraConfig(target_modules=targets, total_step=10, **more),
        "vera": lambda **more: peft.VeraConfig(**lora, **more),
        "vblora": lambda **more: peft.VBLoRAConfig(**lora, vector_length=4, num_vectors=16, topk=2, **more),
        "ln": lambda **more: peft.LNTuningConfig(target_modules=norms, **more),
        "fourierft": lambda **more: peft.FourierFTConfig(target_modules=targets, n_frequency=10, **more),
        "hra": lambda **more: peft.HRAConfig(**lora, **more),
        "miss": lambda **more: peft.MissConfig(**lora, **more),
        "randlora": lambda **more: peft.RandLoraConfig(**lora, **more),
        "road": lambda **more: peft.RoadConfig(target_modules=targets, group_size=4, **more),
        "prompt": lambda **more: peft.PromptTuningConfig(num_virtual_tokens=4, **more),
        "prefix": lambda **more: peft.PrefixTuningConfig(num_virtual_tokens=4, **more),
        "p-tuning": lambda **more: peft.PromptEncoderConfig(num_virtual_tokens=4, encoder_hidden_size=8, **more),
    }


_METHODS = tuple(_methods([], []))
_TARGETS = ("two", "one", "all-linear", "pattern")
_CHANGES = (
    "none", "none", "none", "no head", "a tensor lost", "a tensor renamed", "a tensor reshaped", "layer 0 only",
    "targets the head", "of a language model", "without task", "of another rank", "without modules_to_save",
)  # fmt: skip


def drawn(draw: random.Random) -> Drawn:
    """One legal or illegal adapter; whether PEFT can make it is seen when it is made."""
    return Drawn(
        family=draw.choice(_BASES),
        has_head=draw.random() < 0.5,
        method=draw.choice([*_METHODS, "lora", "lora"]),
        targets=draw.choice(_TARGETS),
        task=draw.choice(["SEQ_CLS", "SEQ_CLS", None]),
        saves_head=draw.random() < 0.5,
        change=draw.choice(_CHANGES),
    )


def _classifier(item: Drawn, base: Path, seed: int = 1) -> Any:
    torch.manual_seed(seed)
    labels = {"num_labels": 3}
    return getattr(transformers, FAMILIES[item.family].classifier).from_pretrained(base, **labels)


def _fill(tensors: Any) -> None:
    """Every tensor gets its own random values."""
    for tensor in tensors:
        if tensor.is_floating_point():
            tensor.data.uniform_(0.05, 1.0)


def _refilled(state: State) -> State:
    """New numbers for each tensor; the same ones for what PEFT saves under several names."""
    made: dict[tuple[Any, ...], torch.Tensor] = {}
    for name, value in state.items():
        is_shared = bool(value.numel()) and bool((value != value.flatten()[0]).any())
        key = (
            (tuple(value.shape), value.numpy().tobytes())
            if is_shared
            else (name.replace(".modules_to_save", "").replace(".default", ""),)
        )
        if key not in made:
            made[key] = value.clone()
            _fill([made[key]])
        state[name] = made[key].clone()
    return state


def save(item: Drawn, folder: Path) -> bool:
    """Base and adapter on disk; False where PEFT can't make such an adapter."""
    family = FAMILIES[item.family]
    extra = {"num_labels": 3} if item.has_head else {}
    base = family.build(family.classifier if item.has_head else family.base, **extra)
    _fill(base.parameters())
    base.save_pretrained(folder / "base")
    model = _classifier(item, folder / "base")
    inside = list(model.base_model.named_modules())
    kinds = (torch.nn.Linear, Conv1D)
    names = sorted({path.rpartition(".")[2] for path, module in inside if isinstance(module, kinds)} - {"dense"})
    norms = sorted({path.rpartition(".")[2] for path, module in inside if isinstance(module, torch.nn.LayerNorm)})
    targets = {
        "two": names[-2:],
        "one": names[:1],
        "all-linear": "all-linear",
        "pattern": rf".*\.({'|'.join(names[:2])})",
    }
    heads = [path for path, _ in model.named_children() if path not in (model.base_model_prefix, "dropout")]
    more: dict[str, Any] = {"task_type": item.task}
    if item.saves_head and item.method not in ("prompt", "prefix", "p-tuning"):
        more["modules_to_save"] = heads
    try:
        wrapped = peft.get_peft_model(model, _methods(targets[item.targets], norms)[item.method](**more))
        wrapped.save_pretrained(folder / "adapter")
    except Exception:
        return False
    state = load_file(folder / "adapter" / _FILE)
    state = _refilled(state)
    config = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    state = _changed(item, state, config, heads)
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(config))
    save_file(state, folder / "adapter" / _FILE)
    return bool(state)


def _changed(item: Drawn, state: State, config: dict[str, Any], heads: list[str]) -> State:
    keys = sorted(state)
    key = keys[len(keys) // 2]
    match item.change:
        case "no head":
            return {name: value for name, value in state.items() if not any(f".{head}." in name for head in heads)}
        case "a tensor lost":
            return {name: value for name, value in state.items() if name != key}
        case "a tensor renamed":
            return {name + "_" * (name == key): value for name, value in state.items()}
        case "a tensor reshaped":
            return state | {key: torch.rand(7, 5)}
        case "layer 0 only":
            config["layers_to_transform"] = [0]
        case "targets the head":
            config["target_modules"] = heads[0] if heads else "none"
        case "of a language model":
            config["task_type"] = "CAUSAL_LM"
        case "without task":
            config["task_type"] = None
        case "of another rank":
            config["r"] = 3
        case "without modules_to_save":
            config["modules_to_save"] = None
    return state


@dataclass(frozen=True)
class Truth:
    """What PEFT did: its error, the keys that it left, whether it lacked some, and where the head comes from."""

    error: str
    left: frozenset[str] = frozenset()
    lacks: bool = False
    head: tuple[tuple[str, str], ...] = ()


def truth(item: Drawn, folder: Path, head: list[str]) -> Truth:
    """A real load; `head` are the tensors whose origin is asked for."""
    base = _classifier(item, folder / "base", seed=7)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model = peft.PeftModel.from_pretrained(base, folder / "adapter")
        except Exception as err:
            return Truth(type(err).__name__)
    stored = load_file(folder / "adapter" / _FILE)
    held = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    by_shape: dict[Any, list[torch.Tensor]] = {}
    for tensor in held.values():
        by_shape.setdefault(tuple(tensor.shape), []).append(tensor)
    left = {
        key
        for key, value in stored.items()
        if not any(torch.equal(value.to(one.dtype), one) for one in by_shape.get(tuple(value.shape), ()))
    }
    of_base = load_file(folder / "base" / "model.safetensors").values()
    now = {_plain(name): tensor for name, tensor in held.items() if ".original_module." not in name}
    origins = tuple((name, _origin(now[name], stored.values(), of_base)) for name in head)
    return Truth("", frozenset(left), any("missing adapter keys" in str(one.message) for one in caught), origins)


def _plain(name: str) -> str:
    for part in (".modules_to_save.default", ".base_layer", ".ln_tuning_layers.default"):
        name = name.replace(part, "")
    return name.removeprefix("base_model.").removeprefix("model.") if name.startswith("base_model.model.") else (
        name.removeprefix("base_model."))  # fmt: skip


def _origin(tensor: torch.Tensor, adapter: Any, base: Any) -> str:
    for what, tensors in (("adapter", adapter), ("base", base)):
        if any(one.shape == tensor.shape and torch.equal(one.to(tensor.dtype), tensor) for one in tensors):
            return what
    return "random"


def said(report: Any) -> Truth:
    """What headscope says, in the same words."""
    adapter = report.adapter
    if adapter.is_refused:
        return Truth("refused")
    left = frozenset(fault.name for fault in adapter.faults if fault.kind.value == "unexpected")
    head = tuple((item.name, _said_of(item)) for item in report.head.parameters)
    return Truth("", left, any(fault.kind.value == "missing" for fault in adapter.faults), head)


def _said_of(item: Any) -> str:
    if item.status.value in ("new", "mismatched"):
        return "random"
    return "adapter" if item.adapter is not None and item.adapter.value == "saved" else "base"


def compare(item: Drawn, folder: Path) -> Iterator[str]:
    """What differs between headscope and PEFT; what headscope doesn't determine begins with "not determined"."""
    name = FAMILIES[item.family].classifier
    try:
        report = headscope.inspect(str(folder / "adapter"), model_class=name, num_labels=3, offline=True)
    except HeadscopeError as err:
        yield f"error: {err.message}"
        return
    if report.not_determined:
        yield f"not determined: {report.not_determined[0].reason}"
        return
    found = said(report)
    found = replace(found, left=found.left - _under_several_names(folder))
    real = truth(item, folder, [one.name for one in report.head.parameters])
    if item.change == "of a language model" and real.error == "AttributeError" and not found.error:
        return  # one without a head is held against the task of a classifier, as one would train it
    if bool(found.error) != bool(real.error):
        yield f"PEFT: {real.error or 'loads'}; headscope: {report.adapter.faults or report.adapter.promised}"
        return
    if real.error:
        return
    for field in ("left", "lacks", "head"):
        one, other = getattr(real, field), getattr(found, field)
        if one != other:
            yield f"{field}: PEFT {_less(one, other)}, headscope {_less(other, one)}"


def _under_several_names(folder: Path) -> set[str]:
    """The keys whose values another key has too: their values don't show whether PEFT read them."""
    stored = {
        key: (value.shape, value.numpy().tobytes()) for key, value in load_file(folder / "adapter" / _FILE).items()
    }
    counts = Counter(stored.values())
    return {key for key, value in stored.items() if counts[value] > 1}


def _less(one: Any, other: Any) -> Any:
    return one if isinstance(one, bool) else sorted(set(one) - set(other))


def sweep(count: int, seed: int) -> Iterator[tuple[Drawn, list[str]]]:
    """`count` adapters that PEFT could save, each with what differs."""
    draw, made = random.Random(seed), 0
    while made < count:
        item = drawn(draw)
        with tempfile.TemporaryDirectory() as place:
            if save(item, Path(place)):
                made += 1
                yield item, list(compare(item, Path(place)))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    start = time.monotonic()
    for item, lines in sweep(given.count, given.seed):
        open_ = bool(lines) and lines[0].startswith("not determined")
        counts["not determined" if open_ else "differ" if lines else "agree"] += 1
        for line in lines:
            print(f"{item}: {line[:500]}", flush=True)
    print(f"{given.count} adapters, {dict(counts)}, {time.monotonic() - start:.0f} s")
    return 1 if counts["differ"] else 0


if __name__ == "__main__":
    sys.exit(main())
