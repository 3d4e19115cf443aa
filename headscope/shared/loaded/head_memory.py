"""A live model's head at one time, as digests and norms, and what training did to it since."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from headscope.core.facts import ParameterStatus, Report
from headscope.core.facts.stored.weights import NEW_AT_LOAD
from headscope.core.model.tensors.held import added_by_peft
from headscope.core.model.tensors.numbers import why_not_comparable
from headscope.core.source.live.module import Unwrapped, unwrap
from headscope.core.upstream.peft import held_adapters
from headscope.shared.loaded.facts import HeadMove, Standstill

_SHARDED = "it is sharded over processes: no process holds all its values"
_PIECE = 16_000_000
"""How many elements are hashed at a time."""


@dataclass(frozen=True, slots=True)
class HeadMemory:
    """Record of a model's head at one time, without copies.

    `names` are those of its tensors in `unwrapped.module`, `given` is what the load did to each. `digests` and `norms`
    are those of the tensors whose values this process holds. `rest` are the other tensors that a save of the whole
    model has to hold.
    """

    unwrapped: Unwrapped
    names: tuple[str, ...]
    given: Mapping[str, ParameterStatus] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    norms: Mapping[str, float] = field(default_factory=dict)
    rest: tuple[str, ...] = ()


def remember_head(module: nn.Module, report: Report, *, watches: bool = True) -> HeadMemory | None:
    """Records the head of `module` as it is now, whose trace a report holds; None for a report without one.

    With `watches`, the numbers are recorded too, to see later whether they changed.
    """
    if report.head is None:
        return None
    unwrapped = unwrap(module)
    persistent = unwrapped.module.state_dict(keep_vars=True)
    live = {item.name: item.status for item in report.head.tensors if item.live and item.name in persistent}
    # PEFT adds tensors to the layers of some tensors.
    layers = tuple(f"{name.partition('.base_layer.')[0]}." for name in live if ".base_layer." in name)
    beside = sorted(name for name in beside_layers(unwrapped.module) if name.startswith(layers)) if layers else []
    names = tuple(dict.fromkeys((*live, *beside)))
    rest = tuple(
        sorted(
            name for name in set(persistent).difference(names) if not name.startswith(_prefixes_of_replaced(unwrapped))
        )
    )
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


def _prefixes_of_replaced(unwrapped: Unwrapped) -> tuple[str, ...]:
    """Gives the prefixes of the modules of which PEFT runs a copy."""
    return tuple(held_adapters(unwrapped.module).replaced)


def beside_layers(module: nn.Module) -> frozenset[str]:
    """Lists the tensors that PEFT adds to layers, without the modules that it saves whole."""
    return frozenset(name for name in added_by_peft(module) if ".modules_to_save." not in name)


def every_tensor(module: nn.Module) -> HeadMemory:
    """Records all tensors that a save of `module` has to hold, for a model whose head is not known."""
    unwrapped = unwrap(module)
    names = unwrapped.module.state_dict(keep_vars=True)
    return HeadMemory(unwrapped, tuple(name for name in names if not name.startswith(_prefixes_of_replaced(unwrapped))))


def held_tensors(unwrapped: Unwrapped) -> dict[str, torch.Tensor]:
    """Collects the tensors of a model by all their names, as they are now."""
    module = unwrapped.module
    found = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    return dict(found)


def why_not_here(memory: HeadMemory, tensor: torch.Tensor) -> str:
    """Says why this process can't compare a live tensor; "" if it can."""
    if memory.unwrapped.is_sharded or not tensor.numel():
        return _SHARDED
    return why_not_comparable(tensor)


def digest_of(tensor: torch.Tensor) -> tuple[str, float]:
    """Digests a tensor's bytes, and computes its Euclidean norm."""
    found, squares = hashlib.blake2b(digest_size=16), 0.0
    flat = tensor.detach().reshape(-1)
    for begin in range(0, flat.numel(), _PIECE):
        piece = flat[begin : begin + _PIECE].cpu().contiguous()
        found.update(piece.view(torch.uint8).numpy().data)
        wide = torch.complex128 if piece.is_complex() else torch.float64
        squares += float(torch.linalg.vector_norm(piece.to(wide))) ** 2
    return found.hexdigest(), squares**0.5


def moves_since(memory: HeadMemory, optimizer: Any = None) -> tuple[HeadMove, ...]:
    """Compares each parameter of a head with what was recorded, to see what training did to it."""
    held = dict(memory.unwrapped.module.named_parameters(remove_duplicate=False))
    known = [name for name in memory.names if name in held and name in memory.digests]
    moves = [_move_of_parameter(name, held[name], memory, optimizer) for name in known]
    added = beside_layers(memory.unwrapped.module) if any(move.still for move in moves) else frozenset()
    # One of the two matrices of LoRA begins at zero, and so the other has no gradient in the first step.
    return tuple(move for move in moves if move.still is None or move.name not in added)


def _move_of_parameter(name: str, parameter: nn.Parameter, memory: HeadMemory, optimizer: Any) -> HeadMove:
    if why_not_here(memory, parameter):
        return HeadMove(name, memory.norms[name], memory.norms[name], Standstill.UNKNOWN)
    digest, norm = digest_of(parameter)
    if digest == memory.digests[name]:
        still: Standstill | None = _why_still(parameter, optimizer)
    else:
        state = optimizer.state.get(parameter) if optimizer is not None else None
        # Weight decay shrinks a parameter without a gradient too: it changed, and did not learn.
        still = Standstill.ZERO_GRADIENT if state and _saw_only_zeros(state) else None
    is_new = memory.given.get(name) in NEW_AT_LOAD
    return HeadMove(name, memory.norms[name], norm, still, is_new, parameter.dim() > 1)


def _why_still(parameter: nn.Parameter, optimizer: Any) -> Standstill:
    """Says why an optimizer left a parameter as it was."""
    if not parameter.requires_grad:
        return Standstill.FROZEN
    if optimizer is None:
        return Standstill.UNKNOWN
    group = next((group for group in optimizer.param_groups if any(p is parameter for p in group["params"])), None)
    if group is None:
        return Standstill.LEFT_OUT
    # A scheduler keeps the planned rate in initial_lr: `lr` may be zero only now, as in a warmup.
    if not group.get("initial_lr", group.get("lr", 1.0)):
        return Standstill.NO_RATE
    state = optimizer.state.get(parameter)
    if not state:
        # An optimizer that keeps no state at all, such as plain SGD, says nothing of gradients.
        keeps_state = any(bool(item) for item in optimizer.state.values())
        return Standstill.NO_GRADIENT if keeps_state else Standstill.UNKNOWN
    return Standstill.ZERO_GRADIENT if _saw_only_zeros(state) else Standstill.TOO_SMALL


def _saw_only_zeros(state: Mapping[str, Any]) -> bool:
    """True if everything that an optimizer sums up of a parameter's gradients is zero."""
    # The names that Adam, RMSprop and Adagrad give their sums.
    sums = [item for key in ("exp_avg_sq", "exp_avg", "square_avg", "sum") if torch.is_tensor(item := state.get(key))]
    momentum = state.get("momentum_buffer")
    sums += [momentum] if torch.is_tensor(momentum) else []
    return bool(sums) and not any(bool(item.any()) for item in sums)
