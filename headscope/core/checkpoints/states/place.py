"""A place with files of a checkpoint, a few folders deep, as the recognizers of states look at it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from os import DirEntry, scandir
from pathlib import Path

from headscope.core.checkpoints.formats.bytes import ByteSource
from headscope.core.facts import CheckpointState, Repair, TensorHeader
from headscope.core.facts.stored.states import PossibleModel, RepairAction
from headscope.errors import HeadscopeError

_MOST_FOLDERS = 200
_MOST_FILES = 2000
_LARGEST_TEXT = 20_000_000


@dataclass(frozen=True, slots=True)
class StatePlace:
    """A place with files: `names` are paths below it, with `/`, `open` opens one of them, `name` is its own path.

    `read` reads a small file whole, if that is another way than to open it, as in a repository.
    """

    name: str
    names: tuple[str, ...]
    open: Callable[[str], ByteSource]
    read: Callable[[str], bytes] | None = None

    def top(self) -> tuple[str, ...]:
        """Lists the files in the place itself."""
        return tuple(name for name in self.names if "/" not in name)

    def folders(self) -> tuple[str, ...]:
        """Lists the folders in the place itself that hold files."""
        return tuple(dict.fromkeys(name.partition("/")[0] for name in self.names if "/" in name))

    def inside(self, folder: str) -> tuple[str, ...]:
        """Lists the files in a folder, by their names there."""
        return tuple(name.removeprefix(f"{folder}/") for name in self.names if name.startswith(f"{folder}/"))

    def within(self, folder: str) -> "StatePlace":
        """Gives the folder as a place."""
        read = self.read
        return StatePlace(
            folder,
            self.inside(folder),
            lambda name: self.open(f"{folder}/{name}"),
            None if read is None else lambda name: read(f"{folder}/{name}"),
        )

    def text(self, name: str) -> bytes:
        """Reads a small file whole; b"" for one that is not there, cannot be read or is large."""
        try:
            if self.read is not None:
                return self.read(name) if name in self.names else b""
            source = self.open(name)
            return source.read_at(0, source.size) if source.size <= _LARGEST_TEXT else b""
        except HeadscopeError:
            return b""

    def start(self, name: str, length: int) -> bytes:
        """Reads the first bytes of a file; b"" if it cannot be read."""
        try:
            source = self.open(name)
            return source.read_at(0, min(length, source.size))
        except HeadscopeError:
            return b""

    def size(self, name: str) -> int:
        """Gives the size of a file; 0 for one that cannot be read."""
        try:
            return self.open(name).size
        except HeadscopeError:
            return 0


@dataclass(frozen=True, slots=True)
class Found:
    """A state, and the tensors that the repair would write to `file`; None where their keys cannot be read.

    `left_out` says which trained tensors the repair leaves out, by group.
    """

    state: CheckpointState
    tensors: tuple[TensorHeader, ...] | None = None
    file: str = "model.safetensors"
    left_out: tuple[str, ...] = ()


def found_between(options: Sequence[tuple[str, Found]], several: CheckpointState, preferred: str = "") -> Found | None:
    """Picks among models by the names for `--take`: the only one, the preferred one, or `several`."""
    candidates = tuple(
        PossibleModel(take, len(item.tensors) if item.tensors else None, left_out=item.left_out, state=item.state,
                      headers=item.tensors or ())
        for take, item in options
    )  # fmt: skip
    left = tuple(item for item in candidates if item.take == preferred) or candidates
    state = replace(several, candidates=candidates).among(left)
    return Found(state, left[0].headers or None) if len(left) == 1 else Found(state) if left else None


def repair_by(sentence: str, action: RepairAction, language: str = "python") -> Repair:
    """Builds the repair of an action: its code is what people run, and the action is what the command carries out."""
    return Repair(sentence, action.code(), language, action)


class ReadyAction:
    """An action that needs nothing beside the checkpoint."""

    __slots__ = ()

    def options(self) -> str:
        """See `RepairAction`."""
        return ""


def names_below(path: Path, depth: int = 4) -> tuple[str, ...]:
    """Lists the files of a folder and of the folders in it, up to a limit; links to folders are not followed."""
    return tuple(islice(_walk_folder(path, "", depth), _MOST_FILES))


def _walk_folder(path: Path, before: str, depth: int) -> Iterator[str]:
    entries = _list_entries(path)
    yield from (f"{before}{entry.name}" for entry in entries if not _is_folder(entry))
    if depth > 1:
        for entry in [entry for entry in entries if _is_folder(entry)][:_MOST_FOLDERS]:
            yield from _walk_folder(path / entry.name, f"{before}{entry.name}/", depth - 1)


def _list_entries(path: Path) -> list["DirEntry[str]"]:
    try:
        with scandir(path) as found:
            # scandir gives the entries in no order, and reports must not depend on it.
            return sorted(islice(found, _MOST_FILES), key=lambda entry: entry.name)
    except OSError:
        return []


def _is_folder(entry: "DirEntry[str]") -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False
