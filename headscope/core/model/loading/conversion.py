"""Tensors as Transformers' loader makes them of stored ones that it fuses, splits or transposes."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy

import torch
from transformers import PreTrainedModel

from headscope.core.model.quiet import quiet
from headscope.core.upstream.peft import add_adapters
from headscope.core.upstream.transformers import load_for_real
from headscope.errors import Unsupported

_MOST_ELEMENTS = 1_000_000_000
"""Above it a second model in memory is too much to ask for."""


def check_size(module: PreTrainedModel) -> None:
    """Raises Unsupported for a model that is too large to be made a second time."""
    elements = sum(item.numel() for item in module.parameters())
    if elements > _MOST_ELEMENTS:
        raise Unsupported(
            f"the loader makes it of several stored tensors, and a model of {elements:,} parameters is too large to be "
            "loaded a second time for comparison",
            "",
        )


def converted(
    module: PreTrainedModel, names: Iterable[str], stored: dict[str, torch.Tensor], dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Makes the named tensors of `stored` as the loader does, for a model of the class and configuration of `module`.

    Raises Unsupported where the loader refuses them.
    """
    try:
        with quiet():
            made = load_for_real(type(module), deepcopy(module.config), stored, dtype)
    except Exception as err:
        raise Unsupported(f"Transformers could not convert it again: {type(err).__name__}: {err}", "") from err
    held = dict(made.named_parameters(remove_duplicate=False)) | dict(made.named_buffers(remove_duplicate=False))
    return {name: held[name] for name in names if name in held}


def computed_buffers(module: PreTrainedModel, adapters: Iterable[str] = ()) -> dict[str, torch.Tensor]:
    """Computes the buffers that the class makes from the configuration of `module`; random ones are left out.

    With `adapters`, also those that PEFT computes from their settings, which the module keeps. Parameters stay on
    the meta device. Raises Unsupported where the class cannot be made.
    """
    adapters = tuple(sorted(adapters))
    # Built twice: a buffer that differs each time is random, and can't be compared with the model's.
    one, other = _fresh_buffers(module, adapters), _fresh_buffers(module, adapters)
    return {
        name: item
        for name, item in one.items()
        if not item.is_meta and torch.equal(torch.nan_to_num(item), torch.nan_to_num(other[name]))
    }


def _fresh_buffers(module: PreTrainedModel, adapters: tuple[str, ...]) -> dict[str, torch.Tensor]:
    from accelerate import init_empty_weights  # type: ignore[import-untyped]

    try:
        # Parameters stay on the meta device, so that a large model costs no memory; only buffers are computed.
        with quiet(), torch.random.fork_rng(devices=[]), init_empty_weights(include_buffers=False):
            fresh = type(module)(deepcopy(module.config))
            add_adapters(fresh, module, adapters)
    except Exception as err:
        raise Unsupported(f"{type(module).__name__} could not be made again: {type(err).__name__}: {err}", "") from err
    return dict(fresh.named_buffers(remove_duplicate=False))
