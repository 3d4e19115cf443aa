"""Comparison of a model in memory with the numbers of its checkpoint, where that is on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from headscope.core.source.live.origin import LoadOrigin
from headscope.core.source.stored_tensors import StoredFiles, open_stored_files
from headscope.core.upstream.peft import plain_name
from headscope.errors import HeadscopeError, Unsupported

if TYPE_CHECKING:
    from torch import nn


# Training changes nearly every value of a tensor, so the beginning tells whether it was trained. The head decides the
# verdict and is small; reading a whole base model would cost what headscope exists to save.
_BYTES_OF_HEAD = 16_000_000
_BYTES_ELSEWHERE = 64_000


def same_numbers(module: nn.Module, origin: LoadOrigin, head: frozenset[str]) -> dict[str, bool]:
    """Compares the parameters with the numbers that they were loaded with; leaves out what cannot be compared.

    Tensors of the head are read whole (up to 16 MB), of the others the beginning. No network is used.
    """
    try:
        request = origin.checkpoint.request
        location = request.location
        offline = replace(location, hub=replace(location.hub, offline=True))
        places = open_stored_files(replace(request, location=offline), origin.checkpoint.manifest)
        return {name: same for place in places for name, same in _compare_with_place(place, module, origin, head)}
    except (HeadscopeError, OSError):  # what cannot be read is not compared
        return {}


def _compare_with_place(
    place: StoredFiles, module: nn.Module, origin: LoadOrigin, head: frozenset[str]
) -> Iterator[tuple[str, bool]]:
    """Compares the parameters that a place fills: True for one that a load of its values gives."""
    from headscope.core.model.tensors.numbers import compare_numbers, why_not_comparable

    stated = {item.name: item for item in origin.given.parameters if not item.is_buffer}
    for name, tensor in module.named_parameters(remove_duplicate=False):
        given = stated.get(plain_name(name))
        header = place.header_of(given) if given is not None and given.quantized is None else None
        # Other shapes and packed values are the loader's to convert: they say nothing about training.
        if header is None or header.shape != tuple(tensor.shape) or "float" not in header.dtype:
            continue
        if tensor.is_floating_point() and tensor.numel() and not why_not_comparable(tensor):
            count = (_BYTES_OF_HEAD if name in head else _BYTES_ELSEWHERE) // tensor.itemsize
            with suppress(Unsupported):
                yield name, compare_numbers(tensor.flatten()[:count], partial(place.part, header)).is_load
