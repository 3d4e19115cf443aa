"""Comparison of a tensor's values with stored ones, piece by piece, in the memory of one piece."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from headscope.core.facts.counting import few_of
from headscope.core.model.loading.adapters import scale_of
from headscope.errors import Unsupported

PIECE = 4_000_000
"""How many elements are compared at a time."""
_TOLERANCE = 8
"""How many times the rounding step of its dtype a number may be off that was computed a second time."""
_SHORTER = (torch.bfloat16, torch.float16)
"""The formats through which a load or a merge may have rounded on the way."""


@dataclass(slots=True)
class NumberDifference:
    """Result of a comparison so far, over all pieces.

    `equal`: no bit differs; `cast`: equal after rounding to the tensor's dtype; `through` are the shorter formats that
    explain the numbers as a detour, which neither the file nor the model shows. `largest` is the largest difference of
    finite values, `scale` the largest stored number. `overflows`: a finite number was stored, and the tensor holds an
    infinite one. `zeros`, `has_nan` and `has_infinite` are on the tensor alone.
    """

    equal: bool = True
    cast: bool = True
    largest: float = 0.0
    scale: float = 0.0
    zeros: bool = True
    has_nan: bool = False
    has_infinite: bool = False
    through: tuple[torch.dtype, ...] = _SHORTER
    overflows: bool = False

    @property
    def is_load(self) -> bool:
        """True if a load of the stored values gives these: as they are, or rounded on the way."""
        return self.equal or self.cast or bool(self.through)

    def is_within_rounding(self, *dtypes: torch.dtype) -> bool:
        """True if a second computation in one of these dtypes can leave a difference as large as the largest."""
        coarsest = max(map(torch.finfo, dtypes), key=lambda limits: limits.eps)
        return self.largest <= _TOLERANCE * coarsest.eps * max(self.scale, coarsest.tiny)


def why_not_comparable(tensor: torch.Tensor) -> str:
    """Gives the reason why a tensor's values can't be compared with stored ones; "" if they can."""
    if tensor.is_meta:
        return "it is on the meta device and holds no numbers (offloaded, or never loaded)"
    if type(tensor) not in (torch.Tensor, nn.Parameter, nn.Buffer):
        return f"it is a {type(tensor).__name__}, whose values are packed or sharded"
    return ""


def compare_numbers(
    tensor: torch.Tensor, stored: torch.Tensor | Callable[[int, int], torch.Tensor]
) -> NumberDifference:
    """Compares a tensor with stored values in its order, or with a function that reads a stretch of them.

    Raises Unsupported if there are fewer or more of them. A tensor may have any shape; both are compared flat.
    """
    found = NumberDifference()
    if isinstance(stored, torch.Tensor):
        every = stored.reshape(-1)
        return compare_numbers(tensor, lambda begin, end: every[begin:end])
    flat = tensor.detach().reshape(-1)
    for begin in range(0, flat.numel(), PIECE):
        own = flat[begin : begin + PIECE].cpu()
        other = stored(begin, begin + own.numel())
        if other.numel() != own.numel():
            raise Unsupported(f"{other.numel():,} numbers are stored for {own.numel():,} of the model", "")
        _compare_piece(found, own, other)
    return found


def _compare_piece(found: NumberDifference, own: torch.Tensor, other: torch.Tensor) -> None:
    found.zeros = found.zeros and not (bool(own[:64].any()) or bool(own.any()))  # the first few tell nearly always
    if own.is_floating_point() and own.dtype.itemsize > 1 and not found.has_infinite:
        # A finite sum, which takes less time than a look at each number, shows that none is infinite. PyTorch doesn't
        # sum floats of 8 bits.
        found.has_infinite = not bool(own.sum().isfinite()) and bool(own.isinf().any())
    same = own.dtype == other.dtype and torch.equal(own, other)  # NaN is equal to nothing here, so none is there
    if not same and own.is_floating_point():
        found.has_nan = found.has_nan or bool(own.isnan().any())
        same = own.dtype == other.dtype and _equal_with_nan(own, other)
    if same:
        if not found.equal:
            found.scale = max(found.scale, _largest_finite(other.to(torch.float64)))
        return
    found.equal = False
    found.cast = found.cast and _equal_with_nan(own, other.to(own.dtype))
    is_float = own.is_floating_point() and other.is_floating_point()
    if not found.cast:
        found.through = tuple(
            way for way in found.through if is_float and _equal_with_nan(own, other.to(way).to(own.dtype))
        )
    wide, reference = own.to(torch.float64), other.to(torch.float64)
    found.largest = max(found.largest, _largest_finite(wide - reference))
    if bool((wide.isfinite() != reference.isfinite()).any()):
        found.largest = math.inf
        found.overflows = found.overflows or bool((wide.isinf() & reference.isfinite()).any())
    found.scale = max(found.scale, _largest_finite(reference))


def _equal_with_nan(one: torch.Tensor, other: torch.Tensor) -> bool:
    # NaN is unequal to itself: `torch.equal` would report two identical tensors with NaN as different.
    if not one.is_floating_point():
        return torch.equal(one, other)
    return bool(torch.isclose(one, other, rtol=0, atol=0, equal_nan=True).all())


def _possible_roundings(stored: torch.Tensor, dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Yields the stored values as a merge may leave them in `dtype`: rounded directly, or through a shorter format."""
    yield stored.to(dtype)
    if stored.is_floating_point() and dtype.is_floating_point:
        yield from (stored.to(way).to(dtype) for way in _SHORTER)


def _largest_finite(numbers: torch.Tensor) -> float:
    finite = numbers[numbers.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


@dataclass(frozen=True, slots=True)
class Merge:
    """Stored weight and what an adapter adds to it, in float32; `terms` sums the absolute values of its products."""

    base: torch.Tensor
    added: torch.Tensor
    terms: torch.Tensor
    rank: int

    @property
    def merged(self) -> torch.Tensor:
        """Weight after the merge."""
        return self.base.to(torch.float32) + self.added

    def made(self, tensor: torch.Tensor) -> bool:
        """True if a merge left these numbers: those computed here, or nearer to them than to the base model's.

        Each element may be off by as much as rounding explains at its own size. A tolerance for the whole tensor would
        take a weight in bfloat16 without any merge for a merged one.
        """
        own = tensor.detach().cpu()
        ways = dict.fromkeys((own.dtype, *_SHORTER))
        # As PEFT may leave the merged weight: rounded after the sum, or its two parts rounded before.
        sums = ((self.base.to(way) + self.added.to(way)).to(own.dtype) for way in ways)
        merges = [*_possible_roundings(self.merged, own.dtype), *sums]
        if any(_equal_with_nan(own, item) for item in merges):
            return True
        wide, exact = own.to(torch.float64), self.merged.to(torch.float64)
        if not bool(((wide - exact).abs() <= self._explained_rounding(own, exact)).all()):
            return False
        off = min(_total_distance(wide, item) for item in merges)
        return off < min(_total_distance(wide, item) for item in _possible_roundings(self.base, own.dtype))

    def _explained_rounding(self, own: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
        """Bounds each element's error from rounding the weight, the sum, the products and the adapter's numbers."""
        step = torch.finfo(
            next((way for way in _SHORTER if _equal_with_nan(own, own.to(way).to(own.dtype))), own.dtype)
        )
        single = torch.finfo(torch.float32).eps
        terms = self.terms.to(torch.float64) * (3 * step.eps + self.rank * single)
        return step.eps * (self.base.abs() + exact.abs()) / 2 + terms + 3 * step.eps * step.tiny


def _total_distance(wide: torch.Tensor, other: torch.Tensor) -> float:
    return float((wide - other.to(torch.float64)).abs().sum())


def merge_lora(
    base: torch.Tensor, changes: Mapping[str, torch.Tensor], path: str, config: Mapping[str, Any], module: nn.Module
) -> Merge:
    """Computes what PEFT merges into the weight of the module at `path`: `W + (B @ A) * scale`, in float32.

    `changes` are the adapter's tensors for it by the ends of their names (`lora_A.weight` [rank, in], `lora_B.weight`
    [out, rank]). Raises Unsupported for a method or a layer whose merge is another. Source: `get_delta_weight` in
    peft/tuners/lora/layer.py.
    """
    if config.get("peft_type") != "LORA":
        raise Unsupported(f"headscope does not compute the merge of the PEFT method {config.get('peft_type')}", "")
    down = changes.get("lora_A.weight", changes.get("lora_embedding_A"))
    up = changes.get("lora_B.weight", changes.get("lora_embedding_B"))
    if down is None or up is None or down.dim() != base.dim() or base.dim() != 2:
        raise Unsupported(f"headscope does not compute the merge of {few_of(sorted(changes))}", "")
    up, down, scale = up.to(torch.float32), down.to(torch.float32), scale_of(path, config, down.shape[0])
    added, terms = (up @ down) * scale, (up.abs() @ down.abs()) * abs(scale)
    # An embedding is [tokens, features] and Conv1D's matrix [in, out]; both are the transpose of what B @ A makes.
    if isinstance(module, nn.Embedding | Conv1D):
        added, terms = added.T, terms.T
    return Merge(base, added, terms, down.shape[0])
