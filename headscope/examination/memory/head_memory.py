"""A live model at one time: which tensors its head and the rest have, and a digest and a norm of each of the head."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from headscope.examination.memory.module import Unwrapped, unwrap
from headscope.facts import ParameterStatus, Report
from headscope.upstream.peft import held_adapters

if TYPE_CHECKING:
    import torch
    from torch import nn

_SHARDED = "it is sharded over processes: no process holds its whole numbers"
_PIECE = 16_000_000
"""How many elements are hashed at a time."""


@dataclass(frozen=True, slots=True)
class HeadMemory:
    """The head of a model at one time, without copies.

    `names` are those of its tensors in `unwrapped.module`, `given` is what the load did to each. `digests` and `norms`
    are those of the tensors whose numbers this process holds. `rest` are the other tensors that a save of the whole
    model has to hold.
    """

    unwrapped: Unwrapped
    names: tuple[str, ...]
    given: Mapping[str, ParameterStatus] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    norms: Mapping[str, float] = field(default_factory=dict)
    rest: tuple[str, ...] = ()


def remember_head(module: nn.Module, report: Report, *, watches: bool = True) -> HeadMemory | None:
    """The head of `module` as it is now, whose trace a report holds; None for a report without one.

    With `watches`, the numbers are kept too, to see later whether they changed.
    """
    if report.head is None:
        return None
    unwrapped = unwrap(module)
    persistent = unwrapped.module.state_dict(keep_vars=True)
    live = {item.name: item.status for item in report.head.tensors if item.live and item.name in persistent}
    names = tuple(dict.fromkeys((*live, *_beside(unwrapped.module, live))))
    rest = tuple(sorted(name for name in set(persistent).difference(names) if not name.startswith(_unused(unwrapped))))
    memory = HeadMemory(unwrapped, names, live, rest=rest)
    if not watches:
        return memory
    held = held_tensors(unwrapped)
    taken = {
        name: digest_of(held[name]) for name in memory.names if name in held and not why_not_here(memory, held[name])
    }
    return replace(
        memory,
        digests={name: digest for name, (digest, _) in taken.items()},
        norms={name: norm for name, (_, norm) in taken.items()},
    )


def _unused(unwrapped: Unwrapped) -> tuple[str, ...]:
    """How the names of modules begin of which PEFT runs a copy."""
    return tuple(held_adapters(unwrapped.module).replaced)


def _beside(module: nn.Module, names: Iterable[str]) -> list[str]:
    """The tensors that PEFT adds to the layers of some tensors."""
    layers = tuple(f"{name.partition('.base_layer.')[0]}." for name in names if ".base_layer." in name)
    return sorted(name for name in beside_layers(module) if name.startswith(layers)) if layers else []


def beside_layers(module: nn.Module) -> frozenset[str]:
    """The tensors that PEFT adds to layers, without the modules that it saves whole."""
    from headscope.model.tensors.held import added_by_peft

    return frozenset(name for name in added_by_peft(module) if ".modules_to_save." not in name)


def every_tensor(module: nn.Module) -> HeadMemory:
    """All tensors that a save of `module` has to hold, for a model whose head is not known."""
    unwrapped = unwrap(module)
    names = unwrapped.module.state_dict(keep_vars=True)
    return HeadMemory(unwrapped, tuple(name for name in names if not name.startswith(_unused(unwrapped))))


def held_tensors(unwrapped: Unwrapped) -> dict[str, torch.Tensor]:
    """The tensors of a model by all their names, as they are now."""
    module = unwrapped.module
    found = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    return dict(found)


def why_not_here(memory: HeadMemory, tensor: torch.Tensor) -> str:
    """Why this process can't compare a live tensor; "" where it can."""
    from headscope.model.tensors.numbers import why_not_comparable

    if memory.unwrapped.is_sharded or not tensor.numel():
        return _SHARDED
    return why_not_comparable(tensor)


def digest_of(tensor: torch.Tensor) -> tuple[str, float]:
    """A digest of a tensor's bytes, and its Euclidean norm."""
    import torch

    found, squares = hashlib.blake2b(digest_size=16), 0.0
    flat = tensor.detach().reshape(-1)
    for begin in range(0, flat.numel(), _PIECE):
        piece = flat[begin : begin + _PIECE].cpu().contiguous()
        found.update(piece.view(torch.uint8).numpy().data)
        squares += float(torch.linalg.vector_norm(piece.to(_wide(piece)))) ** 2
    return found.hexdigest(), squares**0.5


def _wide(numbers: torch.Tensor) -> torch.dtype:
    """The dtype in which a norm is computed: complex and whole numbers have their own."""
    import torch

    return torch.complex128 if numbers.is_complex() else torch.float64
