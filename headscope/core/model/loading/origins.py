"""Tensors that track the checkpoint keys they were made from, through renames, fusions and splits."""

from collections.abc import Sequence
from types import NoneType
from typing import Any

import torch

from headscope.core.facts import CheckpointManifest, TensorHeader, WeightsFormat
from headscope.core.upstream.torch import tree_leaves, tree_map
from headscope.errors import Malformed, Unsupported


class OriginTensor(torch.Tensor):
    """A meta tensor with the set of checkpoint keys that its values would come from.

    `alike` are the keys that are stored as one memory with them: their values are equal.
    """

    origin: frozenset[str]
    alike: frozenset[str]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # A comparison of numbers that do not exist would raise: the loader compares only what it is about to tie. Some
        # versions of Transformers (5.5) tie two parameters whose keys are both there only if they are equal, as they
        # are in files of `torch.save`, where both name one memory: then their values are equal for certain.
        if func in (torch.equal, torch.Tensor.equal):
            one, other = args
            return bool(getattr(one, "alike", frozenset()) & getattr(other, "origin", frozenset()))
        if func is torch.Tensor.copy_:
            # As `load_state_dict` does it: what a marked tensor is copied into comes from its keys too.
            filled, source = args[:2]
            filled.origin = getattr(filled, "origin", frozenset()) | getattr(source, "origin", frozenset())
        result = super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        # Nearly every call reads a shape, a dtype or a flag, some ten times a tensor.
        if isinstance(result, _BARE):
            return result
        marked = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, OriginTensor)]
        keys, alike = _joined_keys("origin", marked), _joined_keys("alike", marked)

        def mark(value: Any) -> Any:
            if isinstance(value, OriginTensor):
                value.origin = getattr(value, "origin", frozenset()) | keys
                value.alike = getattr(value, "alike", frozenset()) | alike
            return value

        return tree_map(mark, result)


_BARE = (bool, int, str, torch.Size, torch.dtype, torch.device, NoneType)


def _joined_keys(name: str, tensors: Sequence[OriginTensor]) -> frozenset[str]:
    return frozenset().union(*(getattr(tensor, name, frozenset()) for tensor in tensors))


def header_only_tensors(manifest: CheckpointManifest) -> dict[str, torch.Tensor]:
    """Makes a state dict of the manifest's keys: right shapes and dtypes on the meta device, no storage.

    The order is that in which the loader reads them: where the configuration names no dtype, the first float decides.
    """
    alike = {key: frozenset(keys) for keys in manifest.shared for key in keys}
    headers = manifest.tensors
    if manifest.format is WeightsFormat.SAFETENSORS:
        headers = tuple(sorted(headers, key=lambda header: ("/" in header.file, header.file, header.key)))
    return {header.key: _header_only_tensor(header, alike.get(header.key, frozenset())) for header in headers}


def _header_only_tensor(header: TensorHeader, alike: frozenset[str]) -> torch.Tensor:
    dtype = getattr(torch, header.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise Unsupported(
            f"the tensor {header.key} has the dtype {header.dtype}, which PyTorch {torch.__version__} does not have",
            "a newer PyTorch may support it",
        )
    try:
        tensor = torch.empty(header.shape, dtype=dtype, device="meta").as_subclass(OriginTensor)
    except (TypeError, RuntimeError, OverflowError) as err:
        raise Malformed(f"the tensor {header.key} has the impossible shape {header.shape}", "save it again") from err
    tensor.origin, tensor.alike = frozenset((header.key,)), alike
    return tensor


def origin_of(tensor: torch.Tensor) -> tuple[str, ...]:
    """Gives the checkpoint keys that fill `tensor`, sorted; empty for one that no checkpoint filled."""
    return tuple(sorted(getattr(tensor, "origin", frozenset())))
