"""What is beside the weights of a checkpoint: its tokenizer's settings, and the first bytes of a few tensors."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from headscope.checkpoints.config_file import parse_object
from headscope.checkpoints.formats.bytes import ByteSource
from headscope.checkpoints.formats.safetensors_header import read_safetensors_places
from headscope.checkpoints.formats.torch_file import read_torch_places
from headscope.checkpoints.local import WEIGHT_SUFFIXES, Folder
from headscope.checkpoints.reference import HubReference, parse_reference
from headscope.checkpoints.weights import Storage
from headscope.errors import NotFound
from headscope.facts.location import Location

TOKENIZER_CONFIG = "tokenizer_config.json"
_SPECIAL_TOKENS = "special_tokens_map.json"
_TOKENIZER_FILES = (
    TOKENIZER_CONFIG, _SPECIAL_TOKENS, "added_tokens.json", "tokenizer.json", "vocab.txt", "vocab.json", "spiece.model",
    "tokenizer.model",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FileReader:
    """A place that holds the files of a checkpoint, its weights among them.

    `reads_cheaply` says that a few megabytes cost nothing; over a network a few kilobytes are read. `reaching` is what
    every reading is done in: it turns the errors of the Hub's client into ours. `asked` collects its requests.
    """

    storage: Storage
    reads_cheaply: bool
    reaching: Callable[[], AbstractContextManager[Any]] = nullcontext
    asked: list[int] = field(default_factory=list, compare=False)

    def names(self) -> tuple[str, ...]:
        """The files there."""
        with self.reaching():
            return self.storage.names()

    def has(self, name: str) -> bool:
        """Whether a file of that name is there."""
        with self.reaching():
            return self.storage.has(name)


def open_sidecar(location: Location) -> FileReader | None:
    """What a location names, at the commit that was examined; None for a snapshot, which holds no files."""
    found = parse_reference(location.reference)
    if isinstance(found, HubReference):
        from huggingface_hub import constants

        from headscope.checkpoints.hub.access import access_to
        from headscope.checkpoints.hub.offline import cached_folder
        from headscope.checkpoints.hub.reading import reaching
        from headscope.checkpoints.hub.repository import Repository

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
    """The tokenizer's own settings, {} where it has files without settings; None where there is no tokenizer.

    As in Transformers, `special_tokens_map.json` wins over settings that don't list the added tokens.
    Raises Malformed for settings that are not a JSON object.
    """
    found = _object_in(sidecar, TOKENIZER_CONFIG) if sidecar.has(TOKENIZER_CONFIG) else None
    if found is None and not set(sidecar.names()) & set(_TOKENIZER_FILES):
        return None
    is_older = "added_tokens_decoder" not in (found or {}) and sidecar.has(_SPECIAL_TOKENS)
    return (found or {}) | (_object_in(sidecar, _SPECIAL_TOKENS) if is_older else {})


def _object_in(sidecar: FileReader, name: str) -> dict[str, Any]:
    with sidecar.reaching():
        return parse_object(sidecar.storage.read_text(name), name)


def read_places(sidecar: FileReader, file: str) -> dict[str, tuple[int, int]]:
    """Where the data of each tensor of a safetensors file is: its first byte, and the byte after its last."""
    with sidecar.reaching():
        return read_safetensors_places(sidecar.storage.open(file))


Rows = tuple[int, tuple[int, ...]] | None
"""How many rows a tensor has, and which of them are wanted; None for all."""
_NEAR = 1_000_000
"""Bytes between two tensors that cost less than another request."""


def read_parts(sidecar: FileReader, file: str, wanted: Mapping[str, Rows]) -> dict[str, bytes]:
    """The data of tensors of a weight file: whole, or of some rows; what lies close together in one request.

    Left out are tensors of a pickle whose elements don't follow in order. Raises NotFound for a tensor that is not in a
    safetensors file.
    """
    with sidecar.reaching():
        source = sidecar.storage.open(file)
        is_pickle = not file.endswith(".safetensors")
        places = read_torch_places(source, wanted) if is_pickle else read_safetensors_places(source)
        lost = next((key for key in wanted if key not in places), None)
        if lost is not None and not is_pickle:
            raise NotFound(f"{file} holds no tensor {lost}", "the file has changed; run the command again")
        parts = {key: list(_parts_of(places[key], rows)) for key, rows in wanted.items() if key in places}
        blocks = _blocks(
            sorted(part for some in parts.values() for part in some), 0 if sidecar.reads_cheaply else _NEAR
        )
        read = {begin: source.read_at(begin, end - begin) for begin, end in blocks}
    found = {}
    for key, some in parts.items():
        starts = [max(block for block in read if block <= begin) for begin, _ in some]
        found[key] = b"".join(
            read[start][begin - start : end - start] for start, (begin, end) in zip(starts, some, strict=True)
        )
    return found


def _parts_of(place: tuple[int, int], rows: Rows) -> Iterator[tuple[int, int]]:
    begin, end = place
    if rows is None:
        yield place
        return
    width = (end - begin) // max(rows[0], 1)
    yield from ((begin + row * width, begin + (row + 1) * width) for row in rows[1])


def _blocks(parts: Iterable[tuple[int, int]], gap: int) -> list[tuple[int, int]]:
    """Sorted parts, joined where no more than a gap is between them."""
    found: list[tuple[int, int]] = []
    for begin, end in parts:
        if found and begin - found[-1][1] <= gap:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


class TensorBytes:
    """The data of the tensors in the safetensors files of one place, by range; each header is read once."""

    def __init__(self, files: FileReader) -> None:
        self._files = files
        self._opened: dict[str, tuple[ByteSource, dict[str, tuple[int, int]]]] = {}
        self.bytes_read = 0

    def read(self, file: str, key: str, begin: int, length: int) -> bytes:
        """`length` bytes of a tensor's data from its byte `begin` on.

        Raises NotFound for a tensor that is not there or is shorter: then the file has changed since it was examined.
        """
        with self._files.reaching():
            if file not in self._opened:
                source = self._files.storage.open(file)
                self._opened[file] = source, read_safetensors_places(source)
            source, places = self._opened[file]
            first, end = places.get(key, (0, 0))
            if first + begin + length > end:
                raise NotFound(f"{file} has changed: it no longer holds {key}", "run the command again")
            self.bytes_read += length
            return b"".join(
                source.read_at(at, min(_PIECE, first + begin + length - at))
                for at in range(first + begin, first + begin + length, _PIECE)
            )


_PIECE = 32_000_000


def files_beside(sidecar: FileReader, weights: Iterable[str]) -> list[Path]:
    """The files on this machine that the rules read: weights and the tokenizer's; none for a place elsewhere.

    A repository is read at one commit, whose files never change.
    """
    if not isinstance(sidecar.storage, Folder):
        return []
    return [sidecar.storage.path(name) for name in (*weights, *_TOKENIZER_FILES)]


def path_in(sidecar: FileReader, file: str) -> Path | None:
    """The file on this machine; None where it lies elsewhere."""
    return sidecar.storage.path(file) if isinstance(sidecar.storage, Folder) else None
