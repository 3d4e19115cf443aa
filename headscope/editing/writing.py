"""The files of an edited checkpoint: a new folder, written atomically; most files are copied as they are."""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from headscope.checkpoints.formats.dtypes import SAFETENSORS
from headscope.checkpoints.states.folders import RESUME_FILES
from headscope.errors import HeadscopeError, Malformed, NotFound, Unsupported, UsageError
from headscope.facts import CheckpointManifest, TensorHeader, WeightsFormat
from headscope.upstream.python import write_hint

if TYPE_CHECKING:
    import torch

    from headscope.examination.evidence.stored_tensors import StoredFiles

_PIECE = 16_000_000
"""Bytes that are copied at a time."""
_DTYPES = {torch_name: (name, bits) for name, (torch_name, bits) in SAFETENSORS.items()}
_EXPORTS = (".onnx", ".onnx_data", ".gguf", ".h5", ".msgpack", ".ot", ".tflite", ".mlmodel")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
"""What may hold the old head: exported models anywhere, and weights beside those that Transformers loads."""
_NOT_WEIGHTS = ("training_args.bin", *RESUME_FILES)
_OF_TOOLS = (".git", ".cache")
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_ALIGNMENT = 8


class WriteFailed(HeadscopeError):
    """The result could not be written: a full disk, no permission. Nothing was left behind."""

    code = "output"


@dataclass(frozen=True, slots=True)
class NewTensor:
    """A tensor of a file that is written: its header, and its numbers where they aren't those of the source."""

    header: TensorHeader
    numbers: Callable[[], torch.Tensor] | None = None


def check_target(output: Path, *read: Path) -> None:
    """Raises UsageError for a folder that can't become the result; `read` are all folders that are read."""
    for path in (output, *read):
        check_path(path)
    is_taken = output.exists() and (not output.is_dir() or any(output.iterdir()))
    if is_taken or output.is_symlink() or output.resolve() == Path.cwd():
        raise UsageError(f"{output} exists already", "give a folder that doesn't exist, or an empty one")
    if not output.parent.is_dir():
        raise UsageError(f"there is no folder {output.parent}", "make the folder first")
    inside = next((folder for folder in read if output.resolve().is_relative_to(folder.resolve())), None)
    if inside is not None:
        raise UsageError(f"{output} is inside {inside}, which is read", "give a folder beside it")


def check_path(path: Path) -> None:
    """Raises UsageError for a path that no record can name."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise UsageError(f"the path {str(path)!r} is not valid UTF-8", "give another name") from None


@contextmanager
def staged(output: Path) -> Iterator[Path]:
    """A folder beside the result to write into; removed in the end, unless `finish` has renamed it.

    Raises WriteFailed where the system refuses to write.
    """
    folder = output.parent / f".{output.name}.{secrets.token_urlsafe(6)}"
    try:
        folder.mkdir(0o700)  # inside the try: a signal may come as soon as it is there
        yield folder
    except OSError as err:
        raise _failed(output, err) from err
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _failed(output: Path, err: OSError) -> WriteFailed:
    why = err.strerror or type(err).__name__
    return WriteFailed(f"{output} could not be written: {why}", write_hint(err))


def put_in_place(folder: Path, output: Path, backup: Path | None) -> None:
    """Makes a folder the result by renaming it; what is there is kept as `backup`, or is an empty folder."""
    mask = os.umask(0)
    os.umask(mask)
    folder.chmod(0o777 & ~mask)  # `staged` gives it to its owner alone
    for path in (*folder.rglob("*"), folder):  # files that a library wrote too
        _sync(path)
    if backup is not None:
        output.rename(backup)
    elif output.exists():
        output.rmdir()
    try:
        folder.rename(output)
    except BaseException:
        if backup is not None:
            backup.rename(output)
        raise
    _sync(output.parent)


def _sync(path: Path) -> None:
    """Waits until the disk has a file or the entries of a folder."""
    number = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # file systems that don't sync folders
            os.fsync(number)
    finally:
        os.close(number)


FileStates = Mapping[str, tuple[int, int, int]]


def file_states(folder: Path) -> FileStates:
    """What tells that a file has changed: its size, its time and its number, by its name in the folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.relative_to(folder).parts[0] not in _OF_TOOLS:
            state = path.stat()
            found[str(path.relative_to(folder))] = (state.st_size, state.st_mtime_ns, state.st_ino)
    return found


def check_unchanged(folder: Path, states: FileStates) -> None:
    """Raises NotFound where a file is not as it was."""
    now = file_states(folder)
    changed = sorted(name for name in {*now, *states} if now.get(name) != states.get(name))
    if changed:
        raise NotFound(f"{changed[0]} changed while it was read", "run the command again")


def old_heads(names: Sequence[str], manifest: CheckpointManifest) -> tuple[str, ...]:
    """The files of a checkpoint that hold the old head, besides the weights that are edited."""
    weights = {file.name for file in manifest.files}
    is_sharded = manifest.format is WeightsFormat.SAFETENSORS and len(weights) > 1
    other_indexes = {name for name in INDEXES if not (is_sharded and name == INDEXES[0])}
    return tuple(
        name
        for name in names
        if name not in weights
        and not any(fnmatchcase(name, pattern) for pattern in _NOT_WEIGHTS)
        and (name.endswith(_EXPORTS) or ("/" not in name and name.endswith(_WEIGHTS)) or name in other_indexes)
    )


def copy_files(source: Path, folder: Path, names: Sequence[str], *, link: bool) -> None:
    """Copies files with their folders and times; with `link`, they are hard links where the file system has them."""
    for name in names:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        origin = (source / name).resolve()  # the Hub's cache holds links
        if link:
            try:
                os.link(origin, target)
                continue
            except OSError:
                pass
        shutil.copyfile(origin, target)
        with suppress(OSError):
            shutil.copystat(origin, target)
        _sync(target)


def write_small_file(path: Path, text: str) -> None:
    """Writes a small file, whose name may be that of a link to the source."""
    path.unlink(missing_ok=True)
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
    _sync(path)


def write_weights(
    folder: Path, manifest: CheckpointManifest, stored: StoredFiles, new: Mapping[str, NewTensor]
) -> None:
    """Writes the weight files that hold a tensor of `new`, by its key; PyTorch files become safetensors.

    Of a safetensors file, all other bytes are copied as they are. No more than one tensor is in memory at a time.
    """
    by_file: dict[str, list[TensorHeader]] = {}
    for header in manifest.tensors:
        by_file.setdefault(header.file, []).append(header)
    names = _file_names(manifest)
    for file, headers in by_file.items():
        if manifest.format is WeightsFormat.SAFETENSORS and not any(header.key in new for header in headers):
            continue
        tensors = [new.get(header.key) or NewTensor(header) for header in headers]
        _write_file(folder / names[file], tensors, stored, manifest)
    if len(by_file) > 1:
        _write_index(folder, manifest, names, new)


def _file_names(manifest: CheckpointManifest) -> dict[str, str]:
    """The names of the written weight files by those of the source."""
    names = [file.name for file in manifest.files]
    if manifest.format is WeightsFormat.SAFETENSORS:
        return {name: name for name in names}
    if len(names) == 1:
        return {names[0]: "model.safetensors"}
    return {name: f"model-{at:05d}-of-{len(names):05d}.safetensors" for at, name in enumerate(names, 1)}


def _write_file(path: Path, tensors: Sequence[NewTensor], stored: StoredFiles, manifest: CheckpointManifest) -> None:
    is_copied = manifest.format is WeightsFormat.SAFETENSORS
    described: dict[str, object] = {"__metadata__": _metadata(stored, tensors[0].header.file) if is_copied else _PLAIN}
    tensors = sorted(tensors, key=lambda item: (-_DTYPES[_checked(item.header).dtype][1], item.header.key))
    end = 0
    for item in tensors:
        size = size_of_tensor(item.header)
        described[item.header.key] = {
            "dtype": _DTYPES[item.header.dtype][0], "shape": list(item.header.shape), "data_offsets": [end, end + size],
        }  # fmt: skip
        end += size
    head = json.dumps(described, ensure_ascii=False, separators=(",", ":")).encode()
    head += b" " * (-len(head) % _ALIGNMENT)
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        file.write(len(head).to_bytes(_LENGTH, "little") + head)
        for item in tensors:
            _write_numbers(file, item, stored)
        file.flush()
        os.fsync(file.fileno())


_PLAIN = {"format": "pt"}
_LENGTH = 8
"""The bytes at the beginning of a safetensors file that say how long its header is."""


def _metadata(stored: StoredFiles, file: str) -> object:
    """What a safetensors file says of itself."""
    path = stored.path_of(file)
    with path.open("rb") as opened:
        size = int.from_bytes(opened.read(_LENGTH), "little")
        found = json.loads(opened.read(size))
    return found.get("__metadata__", _PLAIN)


def _checked(header: TensorHeader) -> TensorHeader:
    if header.dtype not in _DTYPES:
        raise Unsupported(f"{header.key} is stored as {header.dtype}, which safetensors files don't hold", "")
    return header


def size_of_tensor(header: TensorHeader) -> int:
    """The bytes of a tensor in a safetensors file. Raises Unsupported for a format that such files don't hold."""
    return math.prod(header.shape) * _DTYPES[_checked(header).dtype][1] // 8


def _write_numbers(file: BinaryIO, item: NewTensor, stored: StoredFiles) -> None:
    if item.numbers is None and item.header.data is not None:
        for piece in stored.pieces(item.header, _PIECE):
            file.write(piece)
        return
    tensor = stored.whole(item.header) if item.numbers is None else item.numbers()
    if tuple(tensor.shape) != item.header.shape or str(tensor.dtype) != f"torch.{item.header.dtype}":
        raise Malformed(f"{item.header.key} is not as its file describes it", "save the checkpoint again")
    import torch

    file.write(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def _write_index(
    folder: Path, manifest: CheckpointManifest, names: Mapping[str, str], new: Mapping[str, NewTensor]
) -> None:
    sizes = (size_of_tensor(new[header.key].header if header.key in new else header) for header in manifest.tensors)
    index = {
        "metadata": {"total_size": sum(sizes)},
        "weight_map": {header.key: names[header.file] for header in manifest.tensors},
    }
    write_small_file(folder / INDEXES[0], json.dumps(index, indent=2, sort_keys=True) + "\n")
