"""Tensors that a repair writes, read from the files that a tool left; no code in a pickle runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from headscope.copies.proving import same_bytes
from headscope.copies.writing import NewTensor, size_of_tensor
from headscope.core.checkpoints.formats.bytes import ByteSource, LocalBytes
from headscope.core.checkpoints.formats.pickle.values import Opaque, PickledTensor
from headscope.core.checkpoints.formats.safetensors_header import read_safetensors_header
from headscope.core.checkpoints.formats.torch_file import StartOf, locate_torch_value
from headscope.core.checkpoints.states.deepspeed import MergeZero, rank_files
from headscope.core.checkpoints.states.distributed import MergeDistributed, StoredPart, is_shape, stored_parts
from headscope.core.checkpoints.states.held_tensors import named_entries, state_at, strings_in
from headscope.core.checkpoints.states.training_file import JoinFiles, SaveInside, SavePickledModel
from headscope.core.facts import TensorHeader
from headscope.errors import Malformed, Unsupported

if TYPE_CHECKING:
    import torch

    from headscope.core.facts.stored.states import RepairAction

_REPEATED = 1_000_000
"""Bytes by which a tensor whose values are repeated may be larger than its file."""


@dataclass(frozen=True)
class _TorchFile:
    """A PyTorch file: its content, with tensors described but not loaded, and where their values start."""

    source: ByteSource
    value: Any
    start_of: StartOf

    @classmethod
    def open(cls, source: ByteSource) -> _TorchFile:
        """Reads a file with headscope's own interpreter. Raises Malformed or Unsupported if it can't be read."""
        value, start_of = locate_torch_value(source, set())
        return cls(source, value, start_of)

    def numbers(self, item: PickledTensor) -> torch.Tensor:
        """Reads a tensor with the strides that it was stored with. Raises Malformed if its values can't be found."""
        import torch

        kind = getattr(torch, item.dtype, None)
        if isinstance(kind, torch.dtype) and math.prod(item.shape) * kind.itemsize > self.source.size + _REPEATED:
            raise Malformed(f"a tensor in {self.source.name} is larger than the file", "save the file again")
        last = sum((size - 1) * stride for size, stride in zip(item.shape, item.strides, strict=True))
        flat = self.part(item, 0, 0 if 0 in item.shape else last + 1)
        return torch.as_strided(flat, item.shape, item.strides) if flat.numel() else flat.reshape(item.shape)

    def part(self, item: PickledTensor, begin: int, end: int) -> torch.Tensor:
        """Reads elements of a tensor's storage, counted from its first one, as a flat tensor."""
        import torch

        start, kind = self.start_of(item.storage.key), getattr(torch, item.dtype, None)
        if start is None or not isinstance(kind, torch.dtype):
            raise Malformed(f"the values of a tensor in {self.source.name} can't be found", "save the file again")
        if begin == end:
            return torch.empty(0, dtype=kind)
        at, length = start + (item.offset + begin) * kind.itemsize, (end - begin) * kind.itemsize
        if at + length > self.source.size:
            raise Malformed(f"{self.source.name} ends before a tensor that it holds", "copy or save it again")
        # A copy that can be written: torch.frombuffer warns of read-only bytes.
        return torch.frombuffer(bytearray(self.source.read_at(at, length)), dtype=kind)


@dataclass
class _Slice:
    """A part of a file that is read like a file: torch.distributed.checkpoint writes several parts into one file."""

    name: str
    size: int
    whole: ByteSource
    at: int
    bytes_read: int = 0

    def read_at(self, offset: int, length: int) -> bytes:
        """See `ByteSource`. Raises Malformed for bytes behind the part."""
        if offset + length > self.size:
            raise Malformed(f"{self.name} ends early", "copy or save the checkpoint again")
        return self.whole.read_at(self.at + offset, length)


def split_tensors(action: RepairAction, folder: Path) -> dict[str, NewTensor] | None:
    """Gives the tensors of an action, by their keys; None for one that doesn't read a tool's own files.

    Raises a HeadscopeError where the files can't be read, or hold something that headscope doesn't put together.
    """
    match action:
        case JoinFiles(files=files):
            return _join_files([folder / name for name in files])
        case SaveInside(file=file, path=path) | SavePickledModel(file=file, path=path):
            return _tensors_inside(_open_torch_file(folder / file), path)
        case MergeDistributed(folder=name, path=path):
            return _read_distributed(folder / name, path)
        case MergeZero(step=step):
            return _merge_zero(folder / step)
    return None


def open_safetensors(path: Path) -> Any:
    """Opens a safetensors file, whose tensors are read one by one. Raises Malformed if it can't be read."""
    import safetensors

    try:
        return safetensors.safe_open(path, "pt")
    except safetensors.SafetensorError as err:
        raise Malformed(f"{path.name} cannot be read: {err}", "copy or save it again") from err


def _open_torch_file(path: Path) -> _TorchFile:
    return _TorchFile.open(LocalBytes(path, path.name))


def _new_tensor(key: str, item: PickledTensor, file: _TorchFile) -> NewTensor:
    return NewTensor(TensorHeader(key, item.dtype, item.shape), partial(file.numbers, item))


def _tensors_inside(file: _TorchFile, path: Sequence[str | int]) -> dict[str, NewTensor]:
    return {key: _new_tensor(key, item, file) for key, item in state_at(file.value, path).items()}


def _join_files(paths: Sequence[Path]) -> dict[str, NewTensor]:
    """Joins the tensors of several files. Raises Malformed if two of them hold different values under one key."""
    found: dict[str, NewTensor] = {}
    for path in paths:
        tensors = (
            _read_safetensors(path) if path.suffix == ".safetensors" else _tensors_inside(_open_torch_file(path), ())
        )
        for key in sorted(found.keys() & tensors.keys()):
            one, other = found[key].numbers, tensors[key].numbers
            if one is None or other is None or not same_bytes(one(), other()):
                raise Malformed(f"{path.name} holds {key} with other values than a shard before it", "save it again")
        found |= tensors
    return found


def _read_safetensors(path: Path) -> dict[str, NewTensor]:
    file = open_safetensors(path)
    headers = read_safetensors_header(LocalBytes(path, path.name))
    return {
        header.key: NewTensor(replace(header, data=None), partial(file.get_tensor, header.key)) for header in headers
    }


def _read_distributed(folder: Path, path: tuple[str | int, ...]) -> dict[str, NewTensor]:
    source = LocalBytes(folder / ".metadata", ".metadata")
    found = stored_parts(source.read_at(0, source.size), path)
    return {
        header.key: NewTensor(header, partial(_join_parts, folder, header, parts)) for header, parts in found.items()
    }  # fmt: skip


def _join_parts(folder: Path, header: TensorHeader, parts: Sequence[StoredPart]) -> torch.Tensor:
    """Joins a tensor from its saved parts. Raises Malformed if they don't give each value exactly once."""
    import torch

    files = {part.file: LocalBytes(folder / part.file, part.file) for part in parts}
    # A damaged .metadata may describe a tensor of any size, and `torch.zeros` would allocate it.
    if size_of_tensor(header) > sum(file.size for file in files.values()) + _REPEATED:
        raise Malformed(f"the files hold fewer numbers of {header.key} than .metadata describes", "copy them again")
    whole = torch.zeros(header.shape, dtype=getattr(torch, header.dtype))
    is_given = torch.zeros(header.shape, dtype=torch.bool)
    for part in parts:
        stored = _TorchFile.open(_Slice(part.file, part.length, files[part.file], part.at))
        numbers = stored.numbers(stored.value) if isinstance(stored.value, PickledTensor) else None
        place = tuple(slice(begin, begin + size) for begin, size in zip(part.offsets, part.sizes, strict=True))
        if len(place) != whole.ndim or numbers is None or {numbers.shape, whole[place].shape} != {part.sizes}:
            raise Malformed(f"{part.file} doesn't hold the part of {header.key} that .metadata describes", "")
        if numbers.dtype != whole.dtype:
            raise Malformed(f"{part.file} holds {header.key} as {numbers.dtype}, .metadata says {whole.dtype}", "")
        if is_given[place].any():
            raise Malformed(f".metadata describes numbers of {header.key} twice", "save the checkpoint again")
        whole[place], is_given[place] = numbers, True
    if not is_given.all():
        raise Malformed(f".metadata describes {int(is_given.sum()):,} of {whole.numel():,} numbers of {header.key}", "")
    return whole


_Pieces = Sequence[tuple[_TorchFile, PickledTensor]]
"""Flat tensors, one behind the other."""


def _merge_zero(step: Path) -> dict[str, NewTensor]:
    """Joins the weights that ZeRO split, as DeepSpeed's zero_to_fp32.py does.

    https://github.com/deepspeedai/DeepSpeed/blob/v0.19.8/deepspeed/utils/zero_to_fp32.py
    """
    models, optimizers = ([_open_torch_file(step / name) for name in names] for names in rank_files(step))
    held = [_dict_in(file) for file in models]
    states = []
    for file in optimizers:
        state = _dict_in(file).get("optimizer_state_dict")
        if not isinstance(state, dict):
            what = f"{file.source.name} holds no state of ZeRO's optimizer"
            raise Malformed(what, "copy or save the checkpoint again")
        states.append(state)
    if not held or not states:
        raise Malformed(f"{step.name} lacks the files of the model or of the optimizer", "copy all of them")
    stage, ranks = states[0].get("zero_stage"), states[0].get("partition_count")
    stage = stage.arguments[0] if isinstance(stage, Opaque) and stage.arguments else stage  # a member of an enum
    if type(stage) is not int or len(states) not in (ranks if isinstance(ranks, list) else [ranks]):
        raise Malformed(f"the files in {step.name} aren't those of one run: {len(states)} parts", "copy all of them")
    listed = held[0].get("param_shapes")
    groups = [_parse_shapes(group) for group in listed] if isinstance(listed, list) else []
    name = "single_partition_of_fp32_groups" if stage <= _SHARDED_OPTIMIZER else "fp32_flat_groups"
    flat = []
    for file, state in zip(optimizers, states, strict=True):
        items = state.get(name) or ()
        if not (isinstance(items, list) and all(_is_flat(item) and len(item.shape) == 1 for item in items)):
            what = f"{file.source.name} holds no flat weights of ZeRO 1, 2 or 3"
            raise Unsupported(what, "use DeepSpeed's own script")
        flat.append([(file, item) for item in items])
    if stage <= _SHARDED_OPTIMIZER and {len(pieces) for pieces in flat} != {len(groups)}:
        raise Malformed(f"the files in {step.name} hold other groups of parameters than they list", "copy all of them")
    if stage <= _SHARDED_OPTIMIZER:
        columns = zip(groups, zip(*flat, strict=True), strict=True)
        found = {key: item for group, pieces in columns for key, item in _unpack_groups(group, pieces)}
    else:
        found = dict(_unpack_shards({key: shape for group in groups for key, shape in group.items()}, flat))
    return found | dict(_tensors_beside_optimizer(list(zip(models, held, strict=True)), stage, found))


_SHARDED_OPTIMIZER = 2
"""The highest stage of ZeRO that leaves the parameters of a process whole."""


def _parse_shapes(group: Any) -> dict[str, tuple[int, ...]]:
    """Gives the shapes of parameters by name. Raises Malformed for anything else."""
    if not all(is_shape(shape) for _, shape in named_entries(group)) or not isinstance(group, dict):
        raise Malformed("the shapes of the parameters can't be read", "copy or save the checkpoint again")
    return dict(named_entries(group))


def _dict_in(file: _TorchFile) -> dict[Any, Any]:
    if not isinstance(file.value, dict):
        raise Malformed(f"{file.source.name} doesn't hold what DeepSpeed writes", "copy or save the checkpoint again")
    return file.value


def _is_flat(item: Any) -> TypeGuard[PickledTensor]:
    """True if a tensor's values are contiguous in its file."""
    return isinstance(item, PickledTensor) and item.begin is not None


def _unpack_groups(shapes: Mapping[str, Any], pieces: _Pieces) -> Iterator[tuple[str, NewTensor]]:
    """Unpacks stages 1 and 2: a group of parameters is one flat vector, split between the processes."""
    at = 0
    for key, shape in shapes.items():
        yield key, _tensor_from_flat(key, shape, [(pieces, at)], math.prod(shape))
        at += math.prod(shape)
    unit = _ALIGNMENT * len(pieces)
    if -(-at // unit) != -(-_count_numbers(pieces) // unit):
        raise _length_error(at, pieces)


_ALIGNMENT = 2
"""To a multiple of this and the number of processes, ZeRO 1 and 2 pad a group."""


def _count_numbers(pieces: _Pieces) -> int:
    return sum(math.prod(item.shape) for _, item in pieces)


def _length_error(count: int, pieces: _Pieces) -> Malformed:
    return Malformed(
        f"the shapes of the parameters take {count:,} numbers, and {pieces[0][0].source.name} gives"
        f" {_count_numbers(pieces):,}",
        "copy or save the checkpoint again",
    )


def _unpack_shards(shapes: Mapping[str, Any], ranks: Sequence[_Pieces]) -> Iterator[tuple[str, NewTensor]]:
    """Unpacks stage 3: every parameter is split between the processes, and padded."""
    at = 0
    for key, shape in shapes.items():
        share = -(-math.prod(shape) // len(ranks))
        yield key, _tensor_from_flat(key, shape, [(pieces, at) for pieces in ranks], share)
        at += share
    for pieces in ranks:
        if at != _count_numbers(pieces):
            raise _length_error(at, pieces)


def _tensor_from_flat(key: str, shape: Any, places: Sequence[tuple[_Pieces, int]], count: int) -> NewTensor:
    """Builds a tensor from `count` numbers at each place."""

    def numbers() -> torch.Tensor:
        import torch

        parts = [part for pieces, at in places for part in _slice_pieces(pieces, at, at + count)]
        joined = torch.cat(parts) if parts else torch.empty(0)
        if joined.numel() < math.prod(shape):
            raise Malformed(f"the flat weights end before {key}", "copy or save the checkpoint again")
        return joined[: math.prod(shape)].reshape(shape)

    dtype = places[0][0][0][1].dtype
    return NewTensor(TensorHeader(key, dtype, tuple(shape)), numbers)


def _slice_pieces(pieces: _Pieces, begin: int, end: int) -> Iterator[torch.Tensor]:
    at = 0
    for file, item in pieces:
        count = math.prod(item.shape)
        first, last = max(begin - at, 0), min(end - at, count)
        if first < last:
            yield file.part(item, first, last)
        at += count


def _tensors_beside_optimizer(
    models: Sequence[tuple[_TorchFile, Mapping[str, Any]]], stage: int, found: Mapping[str, NewTensor]
) -> Iterator[tuple[str, NewTensor]]:
    """Yields what the optimizer doesn't hold: buffers, frozen parameters, and second names of parameters."""
    file, held = models[0]
    buffers = strings_in(held.get("buffer_names"))
    for key, item in named_entries(held.get("module")):
        if isinstance(item, PickledTensor) and key in buffers:
            yield key, _new_tensor(key, item, file)
    for key, shape in _parse_shapes(held.get("frozen_param_shapes") or {}).items():
        files = models if stage > _SHARDED_OPTIMIZER else models[:1]
        held_by = [
            (file, dict(named_entries(of_rank.get("frozen_param_fragments"))).get(key)) for file, of_rank in files
        ]
        parts = [(file, item) for file, item in held_by if _is_flat(item)]
        if len(parts) < len(files):
            raise Malformed(f"the frozen parameter {key} is not in the files of every process", "copy all of them")
        yield key, _tensor_from_flat(key, shape, [([part], 0) for part in parts], math.prod(parts[0][1].shape))
    for key, other in named_entries(held.get("shared_params")):
        if isinstance(other, str) and other in found:
            first = found[other]
            yield key, NewTensor(TensorHeader(key, first.header.dtype, first.header.shape), first.numbers)
