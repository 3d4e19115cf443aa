"""The files of a checkpoint: its tokenizer's settings, and the bytes of its tensors."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from headscope.core.checkpoints.contents.weights import FileStorage
from headscope.core.checkpoints.formats.bytes import ByteSource
from headscope.core.checkpoints.formats.config_file import parse_object
from headscope.core.checkpoints.formats.safetensors_header import read_safetensors_header
from headscope.core.checkpoints.local import Folder
from headscope.core.checkpoints.reference import HubReference, parse_reference
from headscope.core.facts import TensorHeader
from headscope.core.facts.stored.checkpoint import TOKENIZER_CONFIG, WEIGHT_SUFFIXES
from headscope.core.facts.stored.location import Location
from headscope.errors import NotFound

_SPECIAL_TOKENS = "special_tokens_map.json"
_TOKENIZER_FILES = (
    TOKENIZER_CONFIG, _SPECIAL_TOKENS, "added_tokens.json", "tokenizer.json", "vocab.txt", "vocab.json", "spiece.model",
    "tokenizer.model",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FileReader:
    """A place that holds the files of a checkpoint, its weights among them.

    `reads_cheaply` is true where a few megabytes cost nothing; over a network only a few kilobytes are read. Every
    reading runs inside `reaching`, which turns the errors of the Hub's client into ours. `asked` collects the number of
    its requests.
    """

    storage: FileStorage
    reads_cheaply: bool
    reaching: Callable[[], AbstractContextManager[Any]] = nullcontext
    asked: list[int] = field(default_factory=list, compare=False)

    def names(self) -> tuple[str, ...]:
        """Lists the files there."""
        with self.reaching():
            return self.storage.names()

    def has(self, name: str) -> bool:
        """True if a file of that name is there."""
        with self.reaching():
            return self.storage.has(name)


def open_sidecar(location: Location) -> FileReader | None:
    """Opens the files that a location names, at the examined commit; None for a snapshot, which holds no files."""
    found = parse_reference(location.reference)
    if isinstance(found, HubReference):
        from huggingface_hub import constants

        from headscope.core.checkpoints.hub.access import access_to
        from headscope.core.checkpoints.hub.offline import cached_folder
        from headscope.core.checkpoints.hub.reading import reaching
        from headscope.core.checkpoints.hub.repository import Repository

        access = access_to(found, location)
        folder = cached_folder(access)
        if location.hub.offline or constants.HF_HUB_OFFLINE:
            return FileReader(Folder(folder), True) if folder is not None else None
        asked: list[int] = []
        return FileReader(Repository(access), False, partial(reaching, access, asked), asked)
    path = found / location.subfolder if location.subfolder else found
    if path.is_dir():
        return FileReader(Folder(path), True)
    return FileReader(Folder(path.parent), True) if path.suffix in WEIGHT_SUFFIXES else None


def read_tokenizer_settings(sidecar: FileReader) -> dict[str, Any] | None:
    """Reads the tokenizer's own settings: {} if it has files without settings, None if there is no tokenizer.

    As in Transformers, `special_tokens_map.json` wins over settings that don't list the added tokens. Raises Malformed
    for settings that are not a JSON object.
    """
    found = _object_in(sidecar, TOKENIZER_CONFIG) if sidecar.has(TOKENIZER_CONFIG) else None
    if found is None and not holds_tokenizer(sidecar.names()):
        return None
    # Newer tokenizers list their added tokens in tokenizer_config.json; then the older file no longer counts.
    is_older = "added_tokens_decoder" not in (found or {}) and sidecar.has(_SPECIAL_TOKENS)
    return (found or {}) | (_object_in(sidecar, _SPECIAL_TOKENS) if is_older else {})


def holds_tokenizer(names: Iterable[str]) -> bool:
    """True if some file among `names` belongs to a tokenizer."""
    return not {TOKENIZER_CONFIG, *_TOKENIZER_FILES}.isdisjoint(names)


def _object_in(sidecar: FileReader, name: str) -> dict[str, Any]:
    with sidecar.reaching():
        return parse_object(sidecar.storage.read_text(name), name)


_NEAR = 1_000_000
"""Bytes between two tensors that cost less than another request."""
_PIECE = 32_000_000
"""Bytes that are read at a time."""


Ranges = Mapping[TensorHeader, Sequence[tuple[int, int]]]
"""Parts of the data of tensors: where each begins and ends in the data of its tensor."""


class TensorBytes:
    """Data of the tensors in the weight files of one place, read by range; each file is opened once."""

    def __init__(self, files: FileReader, sizes: Mapping[str, int | None]) -> None:
        self._files = files
        self._sizes = sizes
        self._opened: dict[str, ByteSource] = {}
        self._places: dict[TensorHeader, tuple[int, int] | None] = {}
        self._finders: dict[str, Callable[[str], tuple[int, int] | None]] = {}
        self.bytes_read = 0

    def read(self, wanted: Ranges) -> dict[TensorHeader, bytes]:
        """Reads some ranges of the data of each tensor and joins them; what lies close together is read in one request.

        Raises NotFound for a tensor that is not there or is shorter: then the file has changed since it was examined.
        """
        found: dict[TensorHeader, bytes] = {}
        places = self.places(wanted)
        with self._files.reaching():
            by_file: dict[str, list[TensorHeader]] = {}
            for header in wanted:
                by_file.setdefault(header.file, []).append(header)
            for file, headers in by_file.items():
                parts = {header: _parts_of(header, places[header], wanted[header]) for header in headers}
                found |= self._read_parts(self._open_once(file), parts)
        self.bytes_read += sum(map(len, found.values()))
        return found

    def places(self, headers: Iterable[TensorHeader]) -> dict[TensorHeader, tuple[int, int] | None]:
        """Finds the data of each tensor in its file: as its header says, otherwise as the file shows.

        None for a tensor that is not there, and for one in a pickle whose elements don't follow in order.
        """
        every = dict.fromkeys(headers)
        unknown = [header for header in every if header.data is None and header not in self._places]
        with self._files.reaching() if unknown else nullcontext():
            for header in unknown:
                self._places[header] = self._place_finder(header.file)(header.key_in_file)
        return {header: header.data or self._places[header] for header in every}

    def _read_parts(
        self, source: ByteSource, parts: Mapping[TensorHeader, Sequence[tuple[int, int]]]
    ) -> dict[TensorHeader, bytes]:
        # Bytes between two parts cost time over a network, but less than a second request does.
        gap = 0 if self._files.reads_cheaply else _NEAR
        blocks = _join_near_parts(sorted(part for some in parts.values() for part in some), gap)
        read = {}
        for begin, end in blocks:
            pieces = (source.read_at(at, min(_PIECE, end - at)) for at in range(begin, end, _PIECE))
            read[begin] = b"".join(pieces)
        starts = list(read)
        found = {}
        for header, some in parts.items():
            inside = [(starts[bisect_right(starts, begin) - 1], begin, end) for begin, end in some]
            found[header] = b"".join(read[start][begin - start : end - start] for start, begin, end in inside)
        return found

    def _place_finder(self, file: str) -> Callable[[str], tuple[int, int] | None]:
        """Gives the function that finds the data of a tensor in a file by the tensor's key."""
        if file not in self._finders:
            source = self._open_once(file)
            if file.endswith(".safetensors"):
                self._finders[file] = {header.key: header.data for header in read_safetensors_header(source)}.get
            else:
                from headscope.core.checkpoints.formats.torch_file import torch_places

                self._finders[file] = torch_places(source)
        return self._finders[file]

    def _open_once(self, file: str) -> ByteSource:
        if file not in self._opened:
            source = self._files.storage.open(file)
            # The places of the tensors are those of the file that was examined: in another file they would give wrong
            # bytes.
            if self._sizes.get(file) not in (None, source.size):
                raise _changed_file_error(file, f"it now has {source.size:,} bytes")
            self._opened[file] = source
        return self._opened[file]


def _changed_file_error(file: str, what: str) -> NotFound:
    return NotFound(f"{file} has changed: {what}", "run the command again")


def _parts_of(
    header: TensorHeader, place: tuple[int, int] | None, ranges: Iterable[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Shifts ranges of a tensor's data to where they are in its file. Raises NotFound if the file is shorter."""
    # Without a place no range fits, so the error below is raised.
    first, last = place or (0, -1)
    parts = [(first + begin, first + end) for begin, end in ranges]
    if any(end > last for _, end in parts):
        raise _changed_file_error(header.file, f"it no longer holds {header.key}")
    return parts


def _join_near_parts(parts: Iterable[tuple[int, int]], gap: int) -> list[tuple[int, int]]:
    """Joins sorted parts that have no more than `gap` bytes between them."""
    found: list[tuple[int, int]] = []
    for begin, end in parts:
        if found and begin - found[-1][1] <= gap:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def files_beside(sidecar: FileReader, weights: Iterable[str]) -> list[Path]:
    """Lists the files on this machine that the rules may read: the weights, and all in their folder; none for a place
    elsewhere.

    A repository is read at one commit, whose files never change.
    """
    if not isinstance(sidecar.storage, Folder):
        return []
    return [sidecar.storage.path(name) for name in dict.fromkeys((*weights, *sidecar.storage.names()))]


def path_in(sidecar: FileReader, file: str) -> Path | None:
    """Gives the path of the file on this machine; None if it lies elsewhere."""
    return sidecar.storage.path(file) if isinstance(sidecar.storage, Folder) else None
