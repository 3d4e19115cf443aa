"""Stored tensors as the loader gives them, and what their numbers are."""

import math
from collections.abc import Iterable
from pathlib import Path

import torch

from headscope.errors import Malformed
from headscope.facts.check import TensorValues


def tensor_of(data: bytes, dtype: str, shape: tuple[int, ...]) -> torch.Tensor | None:
    """A stored tensor of any dtype that PyTorch has, where `data` is all of it; None otherwise."""
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype) or len(data) != math.prod(shape) * kind.itemsize:
        return None
    return torch.frombuffer(bytearray(data), dtype=kind).reshape(shape) if data else torch.empty(shape, dtype=kind)


def as_loaded(stored: torch.Tensor, dtype: str) -> torch.Tensor:
    """A stored tensor as the loader gives it: in the dtype of the model's."""
    return stored.to(getattr(torch, dtype))


def stored_tensors(path: Path, keys: Iterable[str]) -> dict[str, torch.Tensor]:
    """Tensors of a PyTorch file on this machine by their keys, mapped into memory and unpickled with weights_only.

    Raises Malformed where PyTorch refuses it.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=_can_be_mapped(path))
        state = state.get("state_dict", state)
        return {key: state[key] for key in keys}
    except Exception as err:
        raise Malformed(f"{path.name} cannot be read by PyTorch: {type(err).__name__}", "save it again") from err


def _can_be_mapped(path: Path) -> bool:
    """Whether the file is a zip, as PyTorch has written since 1.6."""
    with path.open("rb") as file:
        return file.read(2) == b"PK"


def values_of(name: str, tensor: torch.Tensor, stored: torch.dtype | None = None) -> TensorValues:
    """What the numbers of a tensor are; `stored` is the dtype in the checkpoint, where there is one."""
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
