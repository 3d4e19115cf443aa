"""What training did to the head of a model since it was recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headscope.examination.memory.head_memory import HeadMemory, beside_layers, digest_of, why_not_here
from headscope.facts.results.verification import HeadMove, Standstill
from headscope.facts.stored.weights import NEW_AT_LOAD

if TYPE_CHECKING:
    from torch import nn


def moves_since(memory: HeadMemory, optimizer: Any = None) -> tuple[HeadMove, ...]:
    """What training did to each parameter of a head since it was recorded."""
    held = dict(memory.unwrapped.module.named_parameters(remove_duplicate=False))
    known = [name for name in memory.names if name in held and name in memory.digests]
    moves = [_move(name, held[name], memory, optimizer) for name in known]
    added = beside_layers(memory.unwrapped.module) if any(move.still for move in moves) else frozenset()
    # One of the two matrices of LoRA begins at zero, and so the other has no gradient in the first step.
    return tuple(move for move in moves if move.still is None or move.name not in added)


def _move(name: str, parameter: nn.Parameter, memory: HeadMemory, optimizer: Any) -> HeadMove:
    if why_not_here(memory, parameter):
        return HeadMove(name, memory.norms[name], memory.norms[name], Standstill.UNKNOWN)
    digest, norm = digest_of(parameter)
    still = _still(parameter, optimizer) if digest == memory.digests[name] else _decayed(parameter, optimizer)
    is_new = memory.given.get(name) in NEW_AT_LOAD
    return HeadMove(name, memory.norms[name], norm, still, is_new, parameter.dim() > 1)


def _still(parameter: nn.Parameter, optimizer: Any) -> Standstill:
    """Why an optimizer left a parameter as it was."""
    if not parameter.requires_grad:
        return Standstill.FROZEN
    if optimizer is None:
        return Standstill.UNKNOWN
    group = next((group for group in optimizer.param_groups if any(p is parameter for p in group["params"])), None)
    if group is None:
        return Standstill.LEFT_OUT
    if not group.get("initial_lr", group.get("lr", 1.0)):
        return Standstill.NO_RATE
    state = optimizer.state.get(parameter)
    if not state:
        keeps_state = any(bool(item) for item in optimizer.state.values())
        return Standstill.NO_GRADIENT if keeps_state else Standstill.UNKNOWN
    return Standstill.ZERO_GRADIENT if _saw_only_zeros(state) else Standstill.TOO_SMALL


def _decayed(parameter: nn.Parameter, optimizer: Any) -> Standstill | None:
    """Why a parameter did not learn although its numbers changed: weight decay shrinks what gets no gradient too."""
    state = optimizer.state.get(parameter) if optimizer is not None else None
    return Standstill.ZERO_GRADIENT if state and _saw_only_zeros(state) else None


def _saw_only_zeros(state: Mapping[str, Any]) -> bool:
    """Whether what an optimizer sums up of a parameter's gradients is zero throughout."""
    import torch

    sums = [item for key in ("exp_avg_sq", "exp_avg", "square_avg", "sum") if torch.is_tensor(item := state.get(key))]
    momentum = state.get("momentum_buffer")
    sums += [momentum] if torch.is_tensor(momentum) else []
    return bool(sums) and not any(bool(item.any()) for item in sums)
