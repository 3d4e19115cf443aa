"""Vectors of one batch, picked or averaged from its hidden states; padding is never read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from headscope.slices.probe.facts.result import Vector

LayerVector = tuple[Vector, int | None]
"""A vector that the pass stores, and the layer that it is made of; None for the pooler and the head's input."""

_POSITIONS = 3
_MAPS = 4


@dataclass(frozen=True, slots=True)
class Batch:
    """Vectors of some texts and, under None, their scores; `layers` counts the hidden states.

    `first_shares` and `cosines` are those of `LayerNumbers`, one number per text. `gaps` are layers that could not be
    read, `absent` vectors that this model doesn't have, each with the reason.
    """

    layers: int
    parts: dict[LayerVector | None, torch.Tensor] = field(default_factory=dict)
    first_shares: dict[int, torch.Tensor] = field(default_factory=dict)
    cosines: dict[int, torch.Tensor] = field(default_factory=dict)
    gaps: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    @property
    def vectors(self) -> dict[LayerVector | None, torch.Tensor]:
        """Vectors and scores in float32 on the CPU, with one transfer for each size; each is [texts, numbers]."""
        values = {part: value.detach() for part, value in self.parts.items()}
        if values[None].device.type == "cpu":
            return {part: value.float() for part, value in values.items()}
        found: dict[LayerVector | None, torch.Tensor] = {}
        for width in {value.shape[-1] for value in values.values()}:
            chosen = [part for part, value in values.items() if value.shape[-1] == width]
            moved = torch.stack([values[part].float() for part in chosen]).cpu()
            found |= dict(zip(chosen, moved, strict=True))
        return {part: found[part] for part in values}


def pool_tokens(states: Sequence[torch.Tensor], mask: torch.Tensor, ends: torch.Tensor | None) -> Batch:
    """Pools the vectors of every layer; `mask` marks the tokens of the texts, `ends` the end-of-sequence tokens.

    Each of `states` is [texts, positions, features], `mask` and `ends` are [texts, positions]; a vector is [texts,
    features].
    """
    whole = {layer: state for layer, state in enumerate(states) if state.shape[:2] == mask.shape}
    found = Batch(len(states))
    for layer, state in enumerate(states):
        if layer not in whole:
            count = state.shape[1] if state.dim() == _POSITIONS else "no"
            found.gaps[f"layer {layer}"] = f"its hidden states have {count} positions for {mask.shape[1]} tokens"
    first, last = mask.int().argmax(1), last_of(mask)
    weights = _mean_weights(mask, first)
    for layer, state in whole.items():
        both = _weighted_sums(state, weights, mask)
        found.parts[Vector.FIRST_TOKEN, layer] = at(state, first)
        found.parts[Vector.MASKED_MEAN, layer] = both[:, 0]
        found.parts[Vector.LAST_NON_PAD_TOKEN, layer] = at(state, last)
        norms = torch.linalg.vector_norm(state, dim=-1, dtype=torch.float32).masked_fill(~mask, 0)
        found.first_shares[layer] = at(norms, first) / norms.sum(1)
        found.cosines[layer] = torch.cosine_similarity(both[:, 0], both[:, 1])
    final = len(states) - 1
    if final in whole:
        found.parts[Vector.MAX, final] = states[-1].masked_fill(~mask[:, :, None], float("-inf")).amax(1)
        if ends is not None and bool(ends.any(1).all()):
            found.parts[Vector.EOS_TOKEN, final] = at(states[-1], last_of(ends))
        else:
            found.absent["eos_token"] = "the tokenizer puts no end-of-sequence token behind the texts"
    return found


def _mean_weights(mask: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    """Computes two rows of weights per text, for its mean, and for its mean without the first token.

    The result is [texts, 2, positions].
    """
    every = mask.float()
    others = every.clone()
    others[torch.arange(len(mask), device=mask.device), first] = 0
    rows = torch.stack([every, others], 1)
    return rows / rows.sum(-1, keepdim=True).clamp(min=1)


def _weighted_sums(state: torch.Tensor, weights: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Sums over the positions, in float32, from one reading of the hidden states."""
    made = torch.bmm(weights, state.float())
    if bool(made.isfinite().all()):
        return made
    # Padding may hold NaN, which a product with 0 keeps.
    return torch.bmm(weights, state.float().masked_fill(~mask[:, :, None], 0))


def at(state: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Picks one place of each row of a batch.

    `state` is [rows, positions, ...], `places` is [rows], the result [rows, ...].
    """
    return state[torch.arange(len(state), device=state.device), places]


def last_of(mask: torch.Tensor) -> torch.Tensor:
    """Finds the last place of each row that the mask marks. `mask` is [rows, positions], the result [rows]."""
    return mask.shape[1] - 1 - mask.flip(1).int().argmax(1)


def pool_positions(states: Sequence[torch.Tensor]) -> Batch:
    """Pools images or sounds, whose positions all count: patches, frames, or maps with channels first.

    Each of `states` is [inputs, positions, features] or [inputs, features, height, width]; a vector is [inputs,
    features].
    """
    found = Batch(len(states))
    for layer, state in enumerate(states):
        if state.dim() not in (_POSITIONS, _MAPS):
            found.gaps[f"layer {layer}"] = f"its hidden states have the shape {tuple(state.shape)}"
            continue
        rows = state.flatten(2).transpose(1, 2) if state.dim() == _MAPS else state
        found.parts[Vector.MASKED_MEAN, layer] = rows.float().mean(1)
        found.parts[Vector.MAX, layer] = rows.amax(1)
        if state.dim() == _POSITIONS:
            found.parts[Vector.FIRST_TOKEN, layer] = state[:, 0]
    return found
