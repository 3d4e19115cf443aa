"""The stored tensors of a checkpoint and their values: in part, whole, some together, or in a stream."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope.core.facts import (
    Carried,
    CheckpointKind,
    CheckpointManifest,
    HeadParameter,
    ParameterOrigin,
    ParameterStatus,
    TensorHeader,
    WeightsFormat,
)
from headscope.core.facts.stored.location import Location
from headscope.core.source.request import Request
from headscope.errors import Malformed, Unsupported

if TYPE_CHECKING:
    import torch

    from headscope.core.checkpoints.checkpoint_files import FileReader, TensorBytes

_BLOCK = 4 << 20
"""Bytes at a time: what was read is still in the processor's cache when its values are looked at."""


@dataclass(frozen=True)
class StoredFiles:
    """A place with weights, the checkpoint's own or its adapter's, and the manifest of what is there.

    Its tensors are read as they are stored: in their own dtype, packed ones packed.
    """

    sidecar: FileReader
    manifest: CheckpointManifest

    def header_of(self, item: HeadParameter | ParameterOrigin) -> TensorHeader | None:
        """Finds the one stored tensor that fills a parameter; None if this place (adapter or base) lacks it."""
        if item.status is not ParameterStatus.LOADED or len(item.checkpoint_keys) != 1:
            return None
        is_of_adapter = self.manifest.kind is CheckpointKind.ADAPTER
        return (
            self._headers_by_key.get(item.checkpoint_keys[0])
            if (item.adapter is Carried.SAVED) == is_of_adapter
            else None
        )

    @cached_property
    def _headers_by_key(self) -> dict[str, TensorHeader]:
        return {tensor.key: tensor for tensor in self.manifest.tensors}

    @property
    def bytes_read(self) -> int:
        """Bytes of tensors that were read, by range or from a pickle."""
        return self._range_reader.bytes_read + self._pickle_reader.bytes_read

    @property
    def is_pickled(self) -> bool:
        """True if the tensors are in PyTorch files. On this machine these are unpickled with weights_only."""
        return self.manifest.format is WeightsFormat.TORCH

    def unreadable(self, headers: Iterable[TensorHeader]) -> dict[TensorHeader, str]:
        """Finds the tensors whose values can't be read, and why."""
        kinds = {header: _dtype_of(header) for header in headers}
        found = {
            header: f"its dtype {header.dtype} is not one that PyTorch reads"
            for header, kind in kinds.items()
            if kind is None
        }
        by_range = [header for header in kinds if header not in found and self._unpickled_path(header.file) is None]
        for header, place in self._range_reader.places(by_range).items():
            kind = kinds[header]
            if place is None and self.is_pickled:
                found[header] = f"its elements don't follow in order in {header.file}"
            elif place is not None and kind and place[1] - place[0] != math.prod(header.shape) * kind.itemsize:
                found[header] = f"several of its values are packed into one of {header.dtype}"
        return found

    def part(self, header: TensorHeader, begin: int, end: int) -> torch.Tensor:
        """Reads some of a tensor's elements, flat. Nothing may write to them.

        Raises Unsupported if they can't be read.
        """
        self._check_readable([header])
        if self._unpickled_path(header.file) is not None:
            return self._pickle_reader.counted(self._unpickled_tensor(header).reshape(-1)[begin:end])
        size = _size_of_number(header)
        return _as_numbers(self._range_reader.read({header: [(begin * size, end * size)]})[header], header)

    def whole(self, header: TensorHeader) -> torch.Tensor:
        """Reads a tensor. Raises Unsupported if it can't be read."""
        return self.together({header: None})[header]

    def together(self, wanted: Mapping[TensorHeader, Sequence[int] | None]) -> dict[TensorHeader, torch.Tensor]:
        """Reads whole tensors, or some of their rows.

        What lies close together is read in one request. Raises as `whole`.
        """
        self._check_readable(wanted)
        here = [header for header in wanted if self._unpickled_path(header.file) is not None]
        found = {}
        for header in here:
            tensor, rows = self._unpickled_tensor(header), wanted[header]
            found[header] = self._pickle_reader.counted(tensor if rows is None else tensor[list(rows)])
        rest = {header: rows for header, rows in wanted.items() if header not in found}
        ranges = {}
        for header, rows in rest.items():
            size = _size_of_number(header)
            width = math.prod(header.shape[1:]) * size
            whole = [(0, math.prod(header.shape) * size)]
            ranges[header] = whole if rows is None else [(row * width, (row + 1) * width) for row in rows]
        data = self._range_reader.read(ranges)
        for header, rows in rest.items():
            shape = header.shape if rows is None else (len(rows), *header.shape[1:])
            found[header] = _as_numbers(data[header], header).reshape(shape)
        return found

    def bytes_of(self, header: TensorHeader) -> bytes:
        """Reads the bytes of a tensor in a safetensors file, in whatever format its values are."""
        begin, end = self._range_reader.places([header])[header] or (0, 1)  # of what is not there, no byte can be read
        return self._range_reader.read({header: [(0, end - begin)]})[header]

    def pieces(self, header: TensorHeader, size: int) -> Iterator[bytes]:
        """Reads the bytes of a tensor in a safetensors file, at most `size` at a time."""
        begin, end = self._range_reader.places([header])[header] or (0, 1)  # of what is not there, no byte can be read
        for at in range(0, end - begin, size):
            yield self._range_reader.read({header: [(at, min(at + size, end - begin))]})[header]

    def path_of(self, file: str) -> Path:
        """Gives the path of a weight file. Raises Unsupported if it isn't on this machine."""
        path = self._local_path(file)
        if path is None:
            raise Unsupported(f"{file} is not on this machine", "download it with `hf download`")
        return path

    def stream(self, headers: Iterable[TensorHeader]) -> Iterator[tuple[TensorHeader, torch.Tensor]]:
        """Reads all numbers of tensors on this machine, flat, block by block; each block overwrites the last one."""
        for file, some in groupby(headers, lambda header: header.file):
            if self._unpickled_path(file) is not None:
                yield from ((header, self._unpickled_tensor(header).flatten()) for header in some)
            else:
                path = self._local_path(file)
                assert path is not None  # only places on this machine are streamed
                yield from _blocks_of(path, self._range_reader.places(some))

    def release(self) -> None:
        """Lets go of an unpickled file: one that PyTorch wrote before 1.6 is whole in memory."""
        self._pickle_reader.release()

    def _check_readable(self, headers: Iterable[TensorHeader]) -> None:
        why = next(iter(self.unreadable(headers).values()), "")
        if why:
            raise Unsupported(why, "")

    def _unpickled_tensor(self, header: TensorHeader) -> torch.Tensor:
        path = self._unpickled_path(header.file)
        assert path is not None  # others are read by range
        return self._pickle_reader.tensor(path, header.key_in_file)

    def _unpickled_path(self, file: str) -> Path | None:
        """Gives the path of a PyTorch file on this machine; None for a file that is read by range."""
        is_pickled = file.endswith(".bin") or (self.is_pickled and not file.endswith(".safetensors"))
        return self._local_path(file) if is_pickled else None

    def _local_path(self, file: str) -> Path | None:
        from headscope.core.checkpoints.checkpoint_files import path_in

        return path_in(self.sidecar, file)

    @cached_property
    def _pickle_reader(self) -> _PickleReader:
        return _PickleReader()

    @cached_property
    def _range_reader(self) -> TensorBytes:
        from headscope.core.checkpoints.checkpoint_files import TensorBytes

        return TensorBytes(self.sidecar, {file.name: file.size for file in self.manifest.files})


class _PickleReader:
    """Tensors of the PyTorch file that was read last, mapped into memory if it is a zip."""

    def __init__(self) -> None:
        self.bytes_read = 0
        self._path: Path | None = None
        self._tensors: Mapping[str, torch.Tensor] = {}

    def tensor(self, path: Path, key: str) -> torch.Tensor:
        """Gives a tensor by its key. Raises Malformed if PyTorch refuses the file, or the file lacks the tensor."""
        try:
            if path != self._path:
                self._tensors, self._path = _unpickle_file(path), path
            return self._tensors[key]
        except Exception as err:
            raise Malformed(f"{path.name} cannot be read by PyTorch: {type(err).__name__}", "save it again") from err

    def release(self) -> None:
        """Lets go of the file that was read last."""
        self._path, self._tensors = None, {}

    def counted(self, numbers: torch.Tensor) -> torch.Tensor:
        """Counts the numbers as read, and returns them."""
        self.bytes_read += numbers.numel() * numbers.element_size()
        return numbers


def _unpickle_file(path: Path) -> Mapping[str, torch.Tensor]:
    import torch

    with path.open("rb") as file:
        is_zip = file.read(2) == b"PK"  # as PyTorch has written since 1.6
    state = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    # Trainers such as Lightning save the weights under this key, beside the optimizer's state.
    found: Mapping[str, Any] = state.get("state_dict", state)
    return found


def _dtype_of(header: TensorHeader) -> torch.dtype | None:
    import torch

    kind = getattr(torch, header.dtype, None)
    return kind if isinstance(kind, torch.dtype) else None


def _size_of_number(header: TensorHeader) -> int:
    kind = _dtype_of(header)
    assert kind is not None  # others were refused before
    return kind.itemsize


def _as_numbers(data: bytes, header: TensorHeader) -> torch.Tensor:
    """Views stored bytes as a flat tensor that shares their memory; nothing may write to it."""
    import torch

    kind = getattr(torch, header.dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the memory can't be written to is right
        return torch.frombuffer(data, dtype=kind) if data else torch.empty(0, dtype=kind)


def _blocks_of(
    path: Path, places: Mapping[TensorHeader, tuple[int, int] | None]
) -> Iterator[tuple[TensorHeader, torch.Tensor]]:
    """Reads the numbers of tensors of one file, one block after the other into the same memory."""
    import torch

    buffer = memoryview(bytearray(_BLOCK))
    memory = torch.frombuffer(buffer, dtype=torch.uint8)
    # Unbuffered: the blocks are large already, and a buffer would copy them once more.
    with path.open("rb", buffering=0) as file:
        for header, place in places.items():
            first, last = place or (0, 0)
            for begin in range(first, last, _BLOCK):
                size = min(_BLOCK, last - begin)
                file.seek(begin)
                if file.readinto(buffer[:size]) != size:
                    raise Malformed(f"{header.file} is shorter than its header says", "download or save it again")
                yield header, memory[:size].view(getattr(torch, header.dtype))


def open_stored_files(request: Request, manifest: CheckpointManifest) -> list[StoredFiles]:
    """Opens each place that holds files of the checkpoint, the adapter's first; none for a snapshot.

    Each is opened at its own commit: an adapter and its base model seldom are in one repository. Raises a
    HeadscopeError if one cannot be reached.
    """
    if manifest.kind is CheckpointKind.SNAPSHOT:
        return []
    if manifest.adapter is None:
        return _open_place(replace(request.location, revision=manifest.revision, commit=manifest.commit), manifest)
    from headscope.core.checkpoints.score_heads import VALUE_HEAD_FILES

    subfolder, hub = request.location.subfolder, request.location.hub
    folder_of_adapter, folder_of_base = (None, subfolder) if request.adapter else (subfolder, None)
    adapter = manifest.adapter
    base = replace(
        manifest, adapter=None, kind=CheckpointKind.LOCAL, revision=manifest.base_revision, commit=manifest.base_commit
    )
    # A value head's file is in the adapter's folder, but its tensors are not part of the adapter.
    beside = tuple(tensor for tensor in manifest.tensors if tensor.file in VALUE_HEAD_FILES)
    own = replace(base, tensors=tuple(tensor for tensor in manifest.tensors if tensor not in beside))
    place = Location(adapter.reference, adapter.revision, adapter.commit, folder_of_adapter, hub=hub)
    return [
        *_open_place(place, adapter),
        *_open_place(Location(manifest.base, base.revision, base.commit, folder_of_base, hub=hub), own),
        *(_open_place(place, replace(base, tensors=beside)) if beside else ()),
    ]


def _open_place(location: Location, manifest: CheckpointManifest) -> list[StoredFiles]:
    from headscope.core.checkpoints.checkpoint_files import open_sidecar

    sidecar = open_sidecar(location)
    return [] if sidecar is None else [StoredFiles(sidecar, manifest)]
