"""Signs that a model in memory shows on its parameters: the loader's marks, PEFT's wrapping, missing storage."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel

from headscope.core.model.quiet import quiet
from headscope.core.upstream.peft import WRAPPED, plain_name
from headscope.core.upstream.torch import on_meta
from headscope.core.upstream.transformers import is_filled


@dataclass(frozen=True, slots=True)
class Held:
    """Names of parameters as the module holds them.

    `marked`: filled by the loader. Without any mark nothing follows from its absence: a deep copy has none. `empty`: on
    the meta device, without values. `of_adapter`: made by PEFT, which no load of the model fills. `changed`: PEFT's
    copies that differ from the original beside them: trained, or filled from an adapter.
    """

    marked: frozenset[str] = frozenset()
    empty: frozenset[str] = frozenset()
    of_adapter: frozenset[str] = frozenset()
    changed: frozenset[str] = frozenset()


def held_by(module: nn.Module) -> Held:
    """Reads these names off the parameters of `module`."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    # A name alone proves nothing: a head that was replaced after the load bears the name of the one that was loaded.
    marked = {name for name, item in parameters.items() if is_filled(item)}
    originals = {}
    for name in parameters:
        path, copied, rest = name.partition(".modules_to_save.")
        if copied:  # `classifier.modules_to_save.default.weight` -> `classifier.original_module.weight`
            originals[name] = f"{path}.original_module.{rest.partition('.')[2]}"
    copies = {name: parameters[original] for name, original in originals.items() if original in parameters}
    return Held(
        # PEFT copies the original with deepcopy, which loses the marks: a copy of a filled original counts as filled.
        marked=frozenset(marked | {name for name, original in originals.items() if original in marked}),
        empty=frozenset(name for name, item in parameters.items() if item.is_meta),
        of_adapter=added_by_peft(module),
        changed=frozenset(
            name for name, original in copies.items() if not _have_equal_numbers(parameters[name], original)
        ),
    )


def _have_equal_numbers(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.is_meta or other.is_meta or one.shape != other.shape:
        return one.shape == other.shape
    return torch.equal(one.detach().cpu(), other.detach().to("cpu", one.dtype))


def added_by_peft(module: nn.Module) -> frozenset[str]:
    """Gives the parameters and buffers of `module` that PEFT made beside those of the layers which it wraps."""
    named = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    wrappers = {path for path, part in module.named_modules() if type(part).__module__.split(".")[0] == "peft"}
    return frozenset(name for name, _ in named if _is_added(name, wrappers))


def _is_added(name: str, wrappers: set[str]) -> bool:
    """True if what follows the innermost wrapper in a name is not something wrapped.

    PEFT's own containers (`lora_A`) are PyTorch's; a layer below `base_layer` may be a wrapper again.
    """
    parts = name.split(".")
    inside = [at for at in range(len(parts)) if ".".join(parts[:at]) in wrappers]
    return any(parts[at] not in WRAPPED for at in inside[-1:])


def has_own_modules(module: PreTrainedModel) -> bool:
    """True if a model has the modules that its class makes of its configuration, apart from PEFT's wrappers.

    False where the class can't make a model of it.
    """
    try:
        return has_kinds_of(module, fresh_skeleton(module))
    except Exception:  # whatever a foreign constructor raises
        return False


def has_kinds_of(module: nn.Module, other: nn.Module) -> bool:
    """True if two models have modules of the same classes at the same places, apart from PEFT's wrappers."""
    return _classes_by_path(module) == _classes_by_path(other)


def fresh_skeleton(module: PreTrainedModel) -> PreTrainedModel:
    """Builds a model of the class and configuration of `module` on the meta device. Raises as the class does."""
    with quiet(), on_meta():
        return type(module)(deepcopy(module.config))


def _classes_by_path(module: nn.Module) -> dict[str, type[nn.Module]]:
    """Maps each module's path without wrappers to its class; what PEFT adds is left out."""
    wrappers = {path for path, part in module.named_modules() if type(part).__module__.split(".")[0] == "peft"}
    return {
        plain_name(f"{path}.")[:-1]: type(part)
        for path, part in module.named_modules()
        if path not in wrappers and path.rpartition(".")[2] != "modules_to_save" and not _is_added(f"{path}.", wrappers)
    }
