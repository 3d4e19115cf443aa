"""Files of an edited checkpoint: a new folder, written atomically; most files are copied unchanged."""

from __future__ import annotations

import glob
import json
import math
import os
import secrets
import shlex
import shutil
import stat
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import reduce
from operator import and_
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from headscope.copies.carried import INDEXES, read_contents
from headscope.core.checkpoints.formats.config_file import parse_object
from headscope.core.checkpoints.formats.dtypes import SAFETENSORS
from headscope.core.facts import CheckpointManifest, TensorHeader, WeightsFormat
from headscope.core.outputs import is_in_hub_cache
from headscope.core.upstream.python import write_hint
from headscope.errors import HeadscopeError, Malformed, NotFound, UnfinishedOutput, Unsupported, UsageError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    import torch

    from headscope.core.source.stored_tensors import StoredFiles

_PIECE = 16_000_000
"""Bytes that are copied at a time."""
_DTYPES = {torch_name: (name, bits) for name, (torch_name, bits) in SAFETENSORS.items()}
_ALIGNMENT = 8


class WriteFailed(HeadscopeError):
    """Failure to write the result, such as a full disk or a missing permission. Nothing was left behind."""

    code = "output"


@dataclass(frozen=True, slots=True)
class NewTensor:
    """A tensor to write: its header, and a function for its values if they aren't those of the source."""

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
    if is_in_hub_cache(output.parent):
        raise UsageError(f"{output} is in the Hub's cache, which only its client writes to", "give a folder elsewhere")
    warn_of_unfinished(output)


def name_beside(source: Path, ending: str) -> Path:
    """Names a place beside a folder or a file, for the report of a run that writes nothing."""
    named = with_name(source)
    return Path(f"{named.with_suffix('') if named.is_file() else named}-{ending}")


_BACKUP = ".before-edit"


def backup_of(source: Path) -> Path:
    """Gives the path where a checkpoint that is edited in place is kept. Raises UsageError if it is taken."""
    check_path(source)
    named = with_name(source)
    backup = named.with_name(f"{named.name}{_BACKUP}")
    if backup.exists():
        raise UsageError(f"{backup} exists already", "move the older backup away")
    return backup


def check_in_place(folder: Path) -> None:
    """Raises if a checkpoint can't be edited in place, or if an earlier edit was killed between its two renames."""
    named = with_name(folder)
    backup = named.with_name(f"{named.name}{_BACKUP}")
    if backup.is_dir() and not folder.exists():
        how = f"bring it back: mv {shlex.quote(str(backup))} {shlex.quote(str(folder))}"
        raise NotFound(f"{folder} isn't there: an earlier edit was ended before its result was in place", how)
    if is_in_hub_cache(folder):
        raise UsageError(f"{folder} is in the Hub's cache, whose files are named by their contents", "give -o DIR")
    backup_of(folder)


def with_name(folder: Path) -> Path:
    """Gives the folder by a path that ends in its name, unlike `.` and `..`."""
    return folder.resolve() if folder.name in ("", "..") else folder


def check_path(path: Path) -> None:
    """Raises UsageError for a path that isn't valid UTF-8, which no record could hold."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise UsageError(f"the path {str(path)!r} is not valid UTF-8", "give another name") from None


@contextmanager
def staged(output: Path) -> Iterator[Path]:
    """Makes a folder beside the result to write into, and removes it afterwards unless `put_in_place` has renamed it.

    The folder stays locked while it is written to, so that a later run recognizes one that a killed run left. Raises
    WriteFailed if the system refuses to write.
    """
    folder = output.parent / f"{_staging_prefix(output)}{secrets.token_hex(4)}"
    lock = None
    try:
        folder.mkdir(0o700)  # inside the try: a signal may come as soon as it is there
        folder.chmod(0o700)  # a umask may take the owner's own permissions
        lock = _lock_folder(folder)
        yield folder
    except OSError as err:
        raise WriteFailed(
            f"{output} could not be written: {err.strerror or type(err).__name__}", write_hint(err)
        ) from err
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _staging_prefix(output: Path) -> str:
    return f".{output.name}.headscope-"


def _lock_folder(folder: Path) -> int | None:
    """Locks a folder and gives the descriptor; None if another process holds the lock, or there are no locks."""
    if fcntl is None:
        return None
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # it belongs to somebody else
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def warn_of_unfinished(output: Path) -> None:
    """Warns of folders that killed runs left beside a result, with the command that removes them."""
    for folder in sorted(output.parent.glob(f"{glob.escape(_staging_prefix(output))}*")):
        lock = _lock_folder(folder) if folder.is_dir() and not folder.is_symlink() else None
        if lock is not None:
            os.close(lock)
            text = f"an earlier run was killed and left {folder}; remove it with: rm -r {shlex.quote(str(folder))}"
            warnings.warn(text, UnfinishedOutput, stacklevel=2)


def put_in_place(folder: Path, output: Path, backup: Path | None, sources: Sequence[Path]) -> None:
    """Makes a folder the result by renaming it; an existing result must be empty, or is kept as `backup`.

    The result has no permissions that `sources`, the folders and files that it was made of, don't have.
    """
    limit_permissions(folder, sources, output)
    for path in (*folder.rglob("*"), folder):  # files that a library wrote too
        _sync_to_disk(path)
    if backup is not None:
        output.rename(backup)
    elif output.exists():
        output.rmdir()  # fails if something was put there meanwhile
    try:
        folder.rename(output)
    except BaseException:  # Ctrl-C too: the checkpoint must be where it was
        if backup is not None:
            backup.rename(output)
        raise
    _sync_to_disk(output.parent)


def limit_permissions(folder: Path, sources: Sequence[Path], output: Path) -> None:
    """Gives each new file the permissions of the same file in the sources.

    A file that no source has gets those that all sources share and that the process gives to new files.
    """
    own_files, own_folders = _modes_of_new(folder)
    given = [source for source in sources if source.is_file()]
    sources = [source for source in sources if source.is_dir()]
    files = [*given, *(item for source in sources for item in source.iterdir() if item.is_file())]
    shared = _shared_mode(files, own_files)
    for path in folder.rglob("*"):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
            continue  # a link: its permissions are those of the source
        same = [source / path.relative_to(folder) for source in sources if (source / path.relative_to(folder)).exists()]
        same += [source for source in given if source.name == path.name]
        if path.is_dir():
            path.chmod(_shared_mode(same or sources, own_folders) | _OWNER_IN_FOLDER)
        else:
            mode = _shared_mode(same, 0o7777) if same else shared
            # of several sources, each file may hold something of each
            path.chmod((mode if len(sources) + len(given) == 1 else mode & shared) | _OWNER)
    places = [*sources, *([output] if output.is_dir() else [])]
    folder.chmod(_shared_mode(places, own_folders) | _OWNER_IN_FOLDER)


_OWNER, _OWNER_IN_FOLDER = 0o600, 0o700


def _shared_mode(paths: Iterable[Path], most: int) -> int:
    """Gives the permissions that all files or folders have, limited to those in `most`."""
    return reduce(and_, (stat.S_IMODE(path.stat().st_mode) for path in paths), most)


def _modes_of_new(folder: Path) -> tuple[int, int]:
    """Finds the permissions that this process gives to new files and folders, by making one of each.

    Reading the umask would mean to set it for a moment, for all threads of the process.
    """
    place = folder / ".permissions"
    place.mkdir()
    file = place / "file"
    file.touch()
    found = stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(place.stat().st_mode)
    shutil.rmtree(place)
    return found


def _sync_to_disk(path: Path) -> None:
    """Waits until a file, or the entries of a folder, are on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # file systems that don't sync folders
            os.fsync(number)
    finally:
        os.close(number)


FileStates = Mapping[str, tuple[int, int, int]]


def file_states(folder: Path) -> FileStates:
    """Reads what shows later that a file has changed: its size, time and inode number, by its name in the folder."""
    states = {name: (folder / name).stat() for name in read_contents(folder).files}
    return {name: (state.st_size, state.st_mtime_ns, state.st_ino) for name, state in states.items()}


def check_unchanged(folder: Path, states: FileStates) -> None:
    """Raises NotFound if a file has changed."""
    now = file_states(folder)
    changed = sorted(name for name in {*now, *states} if now.get(name) != states.get(name))
    if changed:
        raise NotFound(f"{changed[0]} changed while it was read", "run the command again")


def copy_files(source: Path, folder: Path, names: Sequence[str], *, link: bool) -> None:
    """Copies files with their folders, times and permissions; with `link`, makes hard links to safetensors files.

    Only safetensors files are linked: programs that save them write a new file and rename it. A tokenizer, a text or a
    file of `torch.save` is written in place, which would change the source.
    """
    for name in names:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        origin = (source / name).resolve()  # the Hub's cache holds links
        if link and name.endswith(".safetensors"):
            try:
                os.link(origin, target)
                continue
            except OSError:  # no hard links here, or another file system: copied below
                pass
        shutil.copyfile(origin, target)
        with suppress(OSError):
            shutil.copystat(origin, target)
        _sync_to_disk(target)


def write_small_file(path: Path, content: str | bytes) -> None:
    """Writes a small file, replacing a link to the source; text is written as UTF-8."""
    path.unlink(missing_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    _sync_to_disk(path)


def write_json(path: Path, document: Mapping[str, object]) -> None:
    """Writes a small JSON file as a person reads it; see `write_small_file`."""
    write_small_file(path, json.dumps(document, indent=2, ensure_ascii=False) + "\n")


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
        _write_index(folder, manifest, stored, names, new)


def _file_names(manifest: CheckpointManifest) -> dict[str, str]:
    """Gives the names of the written weight files, by those of the source."""
    names = [file.name for file in manifest.files]
    if manifest.format is WeightsFormat.SAFETENSORS:
        return {name: name for name in names}
    if len(names) == 1:
        return {names[0]: "model.safetensors"}
    return {name: f"model-{at:05d}-of-{len(names):05d}.safetensors" for at, name in enumerate(names, 1)}


def _write_file(path: Path, tensors: Sequence[NewTensor], stored: StoredFiles, manifest: CheckpointManifest) -> None:
    is_copied = manifest.format is WeightsFormat.SAFETENSORS
    described: dict[str, object] = {
        "__metadata__": _read_metadata(stored, tensors[0].header.file) if is_copied else _PLAIN
    }
    # The widest dtypes come first, so that every tensor starts at a multiple of its item size.
    tensors = sorted(tensors, key=lambda item: (-_DTYPES[_check_dtype(item.header).dtype][1], item.header.key))
    end = 0
    for item in tensors:
        size = size_of_tensor(item.header)
        described[item.header.key] = {
            "dtype": _DTYPES[item.header.dtype][0], "shape": list(item.header.shape), "data_offsets": [end, end + size],
        }  # fmt: skip
        end += size
    head = json.dumps(described, ensure_ascii=False, separators=(",", ":")).encode()
    head += b" " * (-len(head) % _ALIGNMENT)  # the format allows spaces behind the JSON
    path.unlink(missing_ok=True)  # it may be a link to the source
    with path.open("wb") as file:
        file.write(len(head).to_bytes(_LENGTH, "little") + head)
        for item in tensors:
            _write_numbers(file, item, stored)
        file.flush()
        os.fsync(file.fileno())


_PLAIN = {"format": "pt"}
_LENGTH = 8
"""The bytes at the beginning of a safetensors file that say how long its header is."""


def _read_metadata(stored: StoredFiles, file: str) -> object:
    """Reads the metadata in a safetensors file's header."""
    path = stored.path_of(file)
    with path.open("rb") as opened:
        size = int.from_bytes(opened.read(_LENGTH), "little")
        found = json.loads(opened.read(size))
    return found.get("__metadata__", _PLAIN)


def _check_dtype(header: TensorHeader) -> TensorHeader:
    if header.dtype not in _DTYPES:
        raise Unsupported(f"{header.key} is stored as {header.dtype}, which safetensors files don't hold", "")
    return header


def size_of_tensor(header: TensorHeader) -> int:
    """Computes the bytes of a tensor in a safetensors file. Raises Unsupported for a dtype that such files lack."""
    return math.prod(header.shape) * _DTYPES[_check_dtype(header).dtype][1] // 8


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
    folder: Path,
    manifest: CheckpointManifest,
    stored: StoredFiles,
    names: Mapping[str, str],
    new: Mapping[str, NewTensor],
) -> None:
    """Writes the index of several weight files: that of the source, if it has one, with the new names and sizes."""
    headers = [(header, new[header.key].header if header.key in new else header) for header in manifest.tensors]
    # A repair makes several files of a source that has no index.
    source_index = Path(manifest.reference) / INDEXES[stored.is_pickled]
    index = parse_object(source_index.read_bytes(), source_index.name) if source_index.is_file() else {}
    metadata = index.get("metadata")
    totals = dict(metadata) if isinstance(metadata, dict) else {}
    totals["total_size"] = sum(size_of_tensor(after) for _, after in headers)
    if type(totals.get("total_parameters")) is int:
        totals["total_parameters"] += sum(math.prod(after.shape) - math.prod(before.shape) for before, after in headers)
    index |= {"metadata": totals, "weight_map": {header.key: names[header.file] for header, _ in headers}}
    write_small_file(folder / INDEXES[0], json.dumps(index, indent=2, sort_keys=True) + "\n")
