"""Tensors that remember the checkpoint keys they were made from, through renames, fusions and splits."""

from typing import Any

import torch

from headscope.errors import Malformed, Unsupported
from headscope.facts import CheckpointManifest, TensorHeader
from headscope.upstream.torch import tree_leaves, tree_map


class OriginTensor(torch.Tensor):
    """A meta tensor with the set of checkpoint keys that its values would come from."""

    origin: frozenset[str]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        keys = _union(args, kwargs or {})

        def mark(value: Any) -> Any:
            if isinstance(value, OriginTensor):
                value.origin = getattr(value, "origin", frozenset()) | keys
            return value

        return tree_map(mark, result)


def _union(args: Any, kwargs: Any) -> frozenset[str]:
    leaves = (leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, OriginTensor))
    return frozenset().union(*(getattr(leaf, "origin", frozenset()) for leaf in leaves))


def header_only_tensors(manifest: CheckpointManifest) -> dict[str, torch.Tensor]:
    """A state dict of the manifest's keys: right shapes and dtypes on the meta device, no storage."""
    return {header.key: _header_only(header) for header in manifest.tensors}


def _header_only(header: TensorHeader) -> torch.Tensor:
    dtype = getattr(torch, header.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise Unsupported(
            f"the tensor {header.key} has the dtype {header.dtype}, which PyTorch {torch.__version__} does not have",
            "a newer PyTorch may know it",
        )
    try:
        tensor = torch.empty(header.shape, dtype=dtype, device="meta").as_subclass(OriginTensor)
    except (TypeError, RuntimeError, OverflowError) as err:
        raise Malformed(f"the tensor {header.key} has the impossible shape {header.shape}", "save it anew") from err
    tensor.origin = frozenset((header.key,))
    return tensor


def origin_of(tensor: torch.Tensor) -> tuple[str, ...]:
    """The checkpoint keys that fill `tensor`, sorted; empty for one that no checkpoint filled."""
    return tuple(sorted(getattr(tensor, "origin", frozenset())))
