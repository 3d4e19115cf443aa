"""The numbers of a model in memory held against those in its checkpoint, where that is on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headscope.errors import HeadscopeError, Unsupported
from headscope.examination.origin import Origin
from headscope.examination.pairing import Place, numbers_of
from headscope.examination.reading import StoredFiles, open_stored_files
from headscope.facts import TensorHeader, WeightsFormat
from headscope.upstream.peft import plain_name

if TYPE_CHECKING:
    import torch
    from torch import nn


# Training changes nearly every number of a tensor, so the beginning tells whether it was trained. The head decides the
# verdict and is small; reading a whole base model would cost what headscope exists to save.
_BYTES_OF_HEAD = 16_000_000
_BYTES_ELSEWHERE = 64_000


@dataclass(frozen=True, slots=True)
class _Pair:
    """A parameter in memory and the stored tensor that filled it."""

    name: str
    tensor: torch.Tensor
    header: TensorHeader
    limit: int


def same_numbers(module: nn.Module, origin: Origin, head: frozenset[str]) -> dict[str, bool]:
    """Whether the parameters hold the numbers that they were loaded with; those that cannot be compared are left out.

    Tensors of the head are read whole (up to 16 MB), of the others the beginning. No network is used.
    """
    try:
        location = origin.request.location
        offline = replace(location, hub=replace(location.hub, offline=True))
        places = open_stored_files(replace(origin.request, location=offline), origin.manifest)
        return {name: told for place in places for name, told in _told(place, _pairs(module, origin, head, place))}
    except (HeadscopeError, OSError):  # what cannot be read is not compared
        return {}


def _pairs(module: nn.Module, origin: Origin, head: frozenset[str], place: StoredFiles) -> Iterator[_Pair]:
    from headscope.model.held import is_comparable

    stated = {item.name: item for item in origin.given.parameters if not item.is_buffer}
    for name, tensor in module.named_parameters(remove_duplicate=False):
        given = stated.get(plain_name(name))
        header = place.header_of(given) if given is not None and given.quantised is None else None
        if header is not None and header.shape == tuple(tensor.shape) and is_comparable(tensor):
            yield _Pair(name, tensor, header, _BYTES_OF_HEAD if name in head else _BYTES_ELSEWHERE)


def _told(place: StoredFiles, pairs: Iterator[_Pair]) -> Iterator[tuple[str, bool]]:
    from headscope.checkpoints import path_in
    from headscope.model.held import equal_numbers
    from headscope.model.values import stored_tensors

    if place.manifest.format not in (WeightsFormat.SAFETENSORS, WeightsFormat.TORCH):
        return
    opened = Place(place)
    by_file: dict[str, list[_Pair]] = {}
    for pair in pairs:
        by_file.setdefault(pair.header.file, []).append(pair)
    for file, some in by_file.items():
        path = path_in(place.sidecar, file) if place.manifest.format is WeightsFormat.TORCH else None
        unpickled = {} if path is None else stored_tensors(path, [pair.header.key for pair in some])
        for pair in some:
            count = min(pair.tensor.numel(), pair.limit // pair.tensor.itemsize)
            with suppress(Unsupported):
                whole = unpickled.get(pair.header.key)
                stored = numbers_of(opened, pair.header)(0, count) if whole is None else whole.flatten()[:count]
                if stored.is_floating_point():
                    yield pair.name, equal_numbers(pair.tensor, stored)
