"""Values of a tensor with a class axis after an edit, computed from those before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from headscope.copies.facts import EditedLabel, LabelOrigin
from headscope.errors import Unsupported


def edited_tensor(
    tensor: torch.Tensor,
    axis: int,
    labels: Sequence[EditedLabel],
    *,
    temperature: float = 1.0,
    takes_shift: bool = False,
    fresh: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Gives `tensor`, [..., classes before, ...], the classes of `labels` on `axis`, in its own dtype or in another.

    Rows that are kept or copied are equal bit by bit, unless a temperature or, for a bias (`takes_shift`), a shift
    changes them. `fresh` holds the rows of random classes, in their order. Raises Unsupported where the dtype can't
    hold the numbers, or rounds a change away.
    """
    dtype = dtype or tensor.dtype
    rows = tensor.movedim(axis, 0)
    places = torch.tensor([label.source or 0 for label in labels])
    found = rows[places].double()  # rounded once, in the end
    draws: Iterator[torch.Tensor] = iter(() if fresh is None else fresh.movedim(axis, 0))
    for at, label in enumerate(labels):
        if label.source is None:
            found[at] = _new_row(label, rows, draws).double()
    shifts = torch.tensor([label.shift if takes_shift else 0.0 for label in labels], dtype=torch.float64)
    exact = (found + _along_first(shifts, found)) / temperature
    computed = exact.to(dtype)
    _check_held(labels, found, exact, computed)
    keeps = [keeps_bits(label, temperature=temperature, takes_shift=takes_shift) for label in labels]
    found = torch.where(_along_first(torch.tensor(keeps), computed), rows[places].to(dtype), computed)
    return found.movedim(0, axis).contiguous()


_LARGEST_LOSS = 0.5
"""The largest share of a change that rounding may take: with more, another change is stored than the one asked for."""
_ROUNDINGS = 4
"""How much rounding is normal, in units of the format; numbers that are too small for it lose more."""


def _check_held(labels: Sequence[EditedLabel], old: torch.Tensor, exact: torch.Tensor, stored: torch.Tensor) -> None:
    """Raises Unsupported if the stored rows aren't close to the exact ones, or if rounding loses the change."""
    loss, size, change = (item.reshape(len(labels), -1).norm(dim=1) for item in (stored - exact, exact, exact - old))
    held = loss <= size * (_ROUNDINGS * torch.finfo(stored.dtype).eps)
    kept = (loss <= change * _LARGEST_LOSS) | (change == 0)
    unknown = ~size.isfinite()  # numbers that were none before
    for label, is_held, is_kept in zip(labels, held | unknown, kept | unknown, strict=True):
        name, hint = str(stored.dtype).removeprefix("torch."), "choose another number"
        hint = f"store the last layer with --dtype float32, or {hint}" if stored.element_size() < _FINEST else hint
        if not is_held:
            raise Unsupported(f"the numbers of {label.name} are too large or too small for {name}", hint)
        if not is_kept:
            raise Unsupported(f"the change of {label.name} is lost in the rounding of {name}", hint)


_FINEST = torch.float32.itemsize
"""Bytes of a number in the finest format that `--dtype` takes."""


def _along_first(values: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return values.reshape(-1, *[1] * (other.dim() - 1))


def keeps_bits(label: EditedLabel, *, temperature: float, takes_shift: bool) -> bool:
    """True if the row of a class keeps its bits."""
    return label.source is not None and temperature == 1.0 and not (takes_shift and label.shift)


def promised_scores(scores: torch.Tensor, labels: Sequence[EditedLabel], temperature: float) -> torch.Tensor:
    """Computes the promised scores, [inputs, classes after], from the logits before, [inputs, classes].

    In double precision; NaN for a class whose row is random, about whose scores nothing is promised.
    """
    scores = scores.double()
    nothing = torch.zeros(len(scores), dtype=torch.float64)
    columns = []
    for label in labels:
        if label.source is not None:
            column = scores[:, label.source]
        elif label.merged:
            column = scores[:, list(label.merged)].mean(1)
        elif label.origin is LabelOrigin.MEAN:
            column = scores.mean(1)
        else:
            column = nothing * (torch.nan if label.origin is LabelOrigin.RANDOM else 1.0)
        columns.append((column + label.shift) / temperature)
    return torch.stack(columns, 1)


def _new_row(label: EditedLabel, rows: torch.Tensor, draws: Iterator[torch.Tensor]) -> torch.Tensor:
    if label.merged:
        return rows[list(label.merged)].double().mean(0)
    match label.origin:
        case LabelOrigin.MEAN:
            return rows.double().mean(0)
        case LabelOrigin.RANDOM:
            return next(draws)
    return torch.zeros_like(rows[0])
