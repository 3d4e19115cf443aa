"""Statistics of stored numbers, from the first bytes of a tensor."""

import math
from collections.abc import Iterable
from pathlib import Path

import torch

from headscope.errors import Malformed
from headscope.facts.check import TensorValues

_MOST = 4_000_000


def values_of(name: str, data: bytes, dtype: str, shape: tuple[int, ...]) -> TensorValues | None:
    """Statistics of the elements in `data`, the beginning of a stored tensor; None where they are not floats."""
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
        return None
    whole = len(data) - len(data) % kind.itemsize
    elements = torch.frombuffer(bytearray(data[:whole]), dtype=kind) if whole else torch.empty(0, dtype=kind)
    return _measured(name, elements, shape)


def whole_tensor(data: bytes, dtype: str, shape: tuple[int, ...]) -> torch.Tensor | None:
    """A stored tensor of floats, where `data` is all of it; None otherwise."""
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype) or not kind.is_floating_point or len(data) != math.prod(shape) * kind.itemsize:
        return None
    return torch.frombuffer(bytearray(data), dtype=kind).reshape(shape) if data else None


def values_of_tensor(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> TensorValues:
    """Statistics of a stored tensor that was read whole, under the name and the shape of its parameter."""
    return _measured(name, tensor.flatten(), shape)


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


def live_values(name: str, parameter: torch.Tensor) -> TensorValues | None:
    """Statistics of a parameter in memory; None for one without storage, or without floats."""
    if parameter.is_meta or not parameter.is_floating_point():
        return None
    return _measured(name, parameter.detach().flatten()[:_MOST].cpu(), tuple(parameter.shape))


def _measured(name: str, elements: torch.Tensor, shape: tuple[int, ...]) -> TensorValues:
    numbers = elements.to(torch.float64)
    finite = numbers[torch.isfinite(numbers)]
    return TensorValues(
        name=name,
        count=math.prod(shape),
        sampled=numbers.numel(),
        nan=int(torch.isnan(numbers).sum()),
        inf=int(torch.isinf(numbers).sum()),
        zeros=int((numbers == 0).sum()),
        constant_rows=_constant_rows(numbers, shape),
        mean=float(finite.mean()) if finite.numel() else 0.0,
        std=float(finite.std(unbiased=False)) if finite.numel() else 0.0,
    )


def _constant_rows(numbers: torch.Tensor, shape: tuple[int, ...]) -> int:
    """How many of the whole rows that were read hold one number throughout."""
    width = shape[-1] if len(shape) > 1 else 0
    if width < 2 or numbers.numel() < width:  # noqa: PLR2004  one number is always the same
        return 0
    rows = numbers[: numbers.numel() // width * width].reshape(-1, width)
    return int((rows == rows[:, :1]).all(dim=1).sum())
