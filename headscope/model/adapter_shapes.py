"""What PEFT makes of an adapter's configuration in a base model: which tensors it expects, and in which shapes."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers.pytorch_utils import Conv1D

from headscope.errors import Unsupported
from headscope.facts import AdapterFault, AdapterFaultKind, TensorHeader, Unavailable
from headscope.upstream.peft import ADAPTER_NAME, SUFFIXES

METHODS = ("LORA", "IA3")
"""The methods of PEFT whose tensors headscope knows; others are reported as not determined."""

_Shapes = dict[str, tuple[int, ...]]
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_LARGEST = 2**31
_LONGEST = 500
_REPEATS = 2


@dataclass(frozen=True, slots=True)
class Fit:
    """How an adapter fits: what is wrong with it, and what could not be determined."""

    faults: tuple[AdapterFault, ...] = ()
    gaps: tuple[Unavailable, ...] = ()


def split_key(name: str, method: str) -> tuple[str, str]:
    """The module and the tensor of an adapter's key without its prefix; two empty texts for one that PEFT ignores."""
    found = re.fullmatch(rf"(.+)\.({SUFFIXES[method]})", ADAPTER_NAME.sub(r"\1", name))
    return (found[1], found[2].removesuffix(".weight") if "magnitude" in found[2] else found[2]) if found else ("", "")


def check_fit(
    config: Mapping[str, Any], modules: Mapping[str, nn.Module], held: Mapping[str, Mapping[str, TensorHeader]]
) -> Fit:
    """Holds the configuration and `held` (the tensors of each adapted module) against the modules of the base model.

    Values of the configuration that PEFT refuses hide what follows from them: then only they are reported.
    """
    method = str(config.get("peft_type"))
    if method not in METHODS:
        reason = f"headscope does not know the tensors of the PEFT method {method[:40]!r}"
        return Fit(gaps=(Unavailable("adapter shapes", reason),))
    refused = tuple(_refused_values(config, method))
    if refused:
        return Fit(refused)
    wanted = _targets(config, modules)
    faults: list[AdapterFault] = []
    gaps: list[Unavailable] = []
    if wanted == frozenset():
        faults.append(_of_config("target_modules", config["target_modules"], "the name of a module of the base model"))
    for path in sorted({*held, *(wanted or ())}):
        if wanted is not None and path not in wanted:
            faults += [_unexpected(header) for header in held[path].values()]
            continue
        try:
            expected = _shapes_of(modules[path], path, config, method)
        except _Unknown as err:
            gaps.append(Unavailable("adapter shapes", f"{path}: {err}"))
            continue
        faults += _misfits(path, expected, held.get(path, {}))
    return Fit(tuple(faults), tuple(dict.fromkeys(gaps)))


class _Unknown(Exception):
    """What PEFT would make of a module is not known; the text says why."""


def _refused_values(config: Mapping[str, Any], method: str) -> Iterator[AdapterFault]:
    targets = config.get("target_modules")
    if not isinstance(targets, str | list | dict | None):
        yield _of_config("target_modules", targets, "a list of module names, or a pattern")
    if method != "LORA":
        return
    for name, value in _settings(config, "r", "rank_pattern", 8):
        if not _is_number(value) or not isinstance(value, int) or not 0 < value < _LARGEST:
            yield _of_config(name, value, "a positive integer")
    for name, value in _settings(config, "lora_alpha", "alpha_pattern", 8):
        if not _is_number(value):
            yield AdapterFault(
                AdapterFaultKind.SCALING if isinstance(value, float) else AdapterFaultKind.CONFIGURATION,
                name,
                _short(value),
                "a finite number",
            )
    for pattern in ("rank_pattern", "alpha_pattern"):
        exceptions = config.get(pattern)
        for key in exceptions if isinstance(exceptions, dict) else ():
            if not _is_pattern(str(key)):
                yield _of_config(pattern, key, "valid regular expressions as keys")
    dropout = config.get("lora_dropout", 0.0)
    if not _is_number(dropout) or dropout > 1:
        yield _of_config("lora_dropout", dropout, "a number from 0 to 1")


def _is_pattern(text: str) -> bool:
    """Whether PEFT can compile a key of its patterns; it is only parsed here, never matched."""
    try:
        re.compile(rf"(.*\.)?({text})$")
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def _settings(config: Mapping[str, Any], name: str, pattern: str, default: int) -> Iterator[tuple[str, Any]]:
    """A setting and its exceptions for single modules, by name."""
    yield name, config.get(name, default)
    exceptions = config.get(pattern)
    if isinstance(exceptions, dict):
        yield from ((f"{pattern}[{key}]", value) for key, value in exceptions.items())
    elif exceptions is not None:
        yield pattern, exceptions


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:
        return False


def _of_config(name: str, value: Any, expected: str) -> AdapterFault:
    return AdapterFault(AdapterFaultKind.CONFIGURATION, name, _short(value), expected)


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        text = "an integer of many digits"
    return text if len(text) <= len("...") + 40 else f"{text[:40]}..."


def _targets(config: Mapping[str, Any], modules: Mapping[str, nn.Module]) -> frozenset[str] | None:
    """The modules that PEFT wraps; None where only PEFT itself can tell."""
    targets = config.get("target_modules")
    narrowed = ("exclude_modules", "layers_to_transform", "target_parameters")
    if any(config.get(name) for name in narrowed) or not isinstance(targets, str | list) or targets == "all-linear":
        return None
    if isinstance(targets, list):
        names = [name for name in targets if isinstance(name, str)]
        exact, ends = set(names), tuple(f".{name}" for name in names)
        found = {path for path in modules if path in exact or path.endswith(ends)}
    else:
        matches = _matcher(targets)
        if matches is None:
            return None
        found = {path for path in modules if matches(path)}
    saved = _saved_modules(config)
    return frozenset(path for path in found if path and not any(f".{name}." in f".{path}." for name in saved))


def _saved_modules(config: Mapping[str, Any]) -> list[str]:
    value = config.get("modules_to_save")
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


def _matcher(pattern: str) -> Callable[[str], bool] | None:
    """A function that matches whole names; None for a pattern that could take long: PEFT's are regular expressions."""
    repeats = len(re.findall(r"(?<!\\)[*+{]", pattern))
    if len(pattern) > _LONGEST or repeats > _REPEATS or re.search(r"\)[*+?{]", pattern):
        return None
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return None
    return lambda name: compiled.fullmatch(name) is not None


def _misfits(path: str, expected: _Shapes, held: Mapping[str, TensorHeader]) -> Iterator[AdapterFault]:
    for tensor, shape in expected.items():
        header = held.get(tensor)
        if header is None:
            yield AdapterFault(AdapterFaultKind.MISSING, f"{path}.{tensor}", "nothing", _size(shape))
        elif header.shape != shape:
            is_empty = 0 in header.shape and 0 not in shape
            yield AdapterFault(AdapterFaultKind.SHAPE, header.key, _size(header.shape), _size(shape), is_empty)
    yield from (_unexpected(header) for tensor, header in held.items() if tensor not in expected)


def _unexpected(header: TensorHeader) -> AdapterFault:
    return AdapterFault(AdapterFaultKind.UNEXPECTED, header.key, _size(header.shape), "nothing")


def _size(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "a scalar"


def _shapes_of(module: nn.Module, path: str, config: Mapping[str, Any], method: str) -> _Shapes:
    """The tensors that PEFT adds to a module, by the end of their names. Raises _Unknown."""
    if method == "IA3":
        return _ia3_shapes(module, path, config)
    rank = _rank_of(path, config)
    weight = getattr(module, "weight", None)
    if isinstance(module, nn.Embedding):
        if config.get("lora_bias"):
            raise _Unknown("PEFT does not support lora_bias for an embedding")
        shapes: _Shapes = {
            "lora_embedding_A": (rank, module.num_embeddings),
            "lora_embedding_B": (module.embedding_dim, rank),
        }
        magnitude: tuple[int, ...] = (module.embedding_dim,)
    elif isinstance(module, _CONVOLUTIONS):
        ones = (1,) * len(module.kernel_size)
        shapes = {
            "lora_A.weight": (rank, module.in_channels, *module.kernel_size),
            "lora_B.weight": (module.out_channels, rank // module.groups, *ones),
        }
        magnitude = (1, module.out_channels, *ones)
    elif isinstance(module, nn.Linear | Conv1D) and weight is not None:
        inputs, outputs = _features(module)
        shapes = {"lora_A.weight": (rank, inputs), "lora_B.weight": (outputs, rank)}
        magnitude = (outputs,)
    else:
        raise _Unknown(f"headscope does not know what PEFT adds to {type(module).__name__}")
    if config.get("use_dora"):
        shapes["lora_magnitude_vector"] = magnitude
    if config.get("lora_bias"):
        shapes["lora_B.bias"] = shapes["lora_B.weight"][:1]
    return shapes


def _features(module: nn.Module) -> tuple[int, int]:
    """What goes into a linear layer and what comes out."""
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    inputs, outputs = (int(size) for size in module.weight.shape)  # type: ignore[union-attr]  # Conv1D's matrix
    return inputs, outputs


def _ia3_shapes(module: nn.Module, path: str, config: Mapping[str, Any]) -> _Shapes:
    names = config.get("feedforward_modules") or []
    if isinstance(names, str):
        matches = _matcher(names)
        if matches is None:
            raise _Unknown("feedforward_modules is a pattern that headscope does not evaluate")
        before = matches(path)
    else:
        before = any(isinstance(name, str) and f".{path}".endswith(f".{name}") for name in names)
    if isinstance(module, nn.Linear | Conv1D):
        inputs, outputs = _features(module)
        return {"ia3_l": (1, inputs) if before else (outputs, 1)}
    if isinstance(module, nn.Conv2d | nn.Conv3d):
        channels = module.in_channels if before else module.out_channels
        return {"ia3_l": (1, channels, *(1,) * len(module.kernel_size))}
    raise _Unknown(f"headscope does not know what PEFT adds to {type(module).__name__}")


def _rank_of(path: str, config: Mapping[str, Any]) -> int:
    return int(_setting_of(path, config, "rank_pattern", config.get("r", 8)))


def _setting_of(path: str, config: Mapping[str, Any], patterns: str, general: Any) -> Any:
    """A setting for one module: that of the first pattern that its name ends with, or the general one."""
    for pattern, value in (config.get(patterns) or {}).items():
        matches = _matcher(pattern)
        if matches is None:
            raise _Unknown(f"{patterns} {pattern[:40]!r} is a pattern that headscope does not evaluate")
        ends = [path, *(path[at.end() :] for at in re.finditer(r"\.", path))]
        if any(matches(end) for end in ends):
            return value
    return general


def scale_of(path: str, config: Mapping[str, Any], rank: int) -> float:
    """By what LoRA multiplies the change of one module. Raises Unsupported where only PEFT can tell."""
    for name in ("use_dora", "lora_bias", "use_qalora", "alora_invocation_tokens", "arrow_config"):
        if config.get(name):
            raise Unsupported(f"the adapter sets {name}, whose merge headscope does not compute", "")
    try:
        alpha = float(_setting_of(path, config, "alpha_pattern", config.get("lora_alpha", 8)))
    except _Unknown as err:
        raise Unsupported(str(err), "") from err
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
