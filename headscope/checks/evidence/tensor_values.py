"""Counts of the special numbers in a tensor: NaN, infinite, zero."""

import torch

from headscope.checks.facts import TensorValues


def values_of(name: str, tensor: torch.Tensor, stored: torch.dtype | None = None) -> TensorValues:
    """Counts the special numbers of a tensor; `stored` is the dtype in the checkpoint, where there is one.

    The tensor may have any shape.
    """
    numbers = tensor.detach()
    is_whole = (
        stored is not None and numbers.is_floating_point() and not (stored.is_floating_point or stored.is_complex)
    )
    return TensorValues(
        name=name,
        count=numbers.numel(),
        nan=int(torch.isnan(numbers).sum()),
        inf=int(torch.isinf(numbers).sum()),
        zeros=int((numbers == 0).sum()),
        whole=str(stored).removeprefix("torch.") if is_whole else "",
    )
