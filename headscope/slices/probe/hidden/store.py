"""Files with the vectors of all texts, one row per text, and the origin that says whether they can be used again."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headscope.core.facts import CheckpointKind, CheckpointManifest, Gap
from headscope.core.facts.counting import counted, few_of
from headscope.core.facts.plain import restore, store
from headscope.core.outputs import is_in_hub_cache, write_whole
from headscope.core.source.reading.reading import loadable
from headscope.core.source.request import Request
from headscope.core.source.storage.cache import versions_key
from headscope.errors import Unsupported, UsageError
from headscope.slices.probe.arrays import Array
from headscope.slices.probe.facts.data import LayerNumbers, Precision
from headscope.slices.probe.facts.result import Vector
from headscope.slices.probe.hidden.pooled import Batch, LayerVector

MANIFEST = "features.json"
_SCORES = "scores"
_ROOM = 1.05
"""How much more space than the vectors need must be free."""
_OPEN_BYTES = 32 * 2**20
"""Bytes that are written before the files are mapped again."""
_MOST_JSON = 16 * 2**20
_LARGEST_BESIDE = 64 * 2**20
"""Bytes of a file beside the weights that is read: a tokenizer's are smaller."""


@dataclass(frozen=True, slots=True)
class TextLengths:
    """Lengths of the texts, in tokens; `limit` is the most that the model takes, None if it isn't known."""

    fewest: int
    most: int
    limit: int | None
    truncated: int


@dataclass(frozen=True, slots=True)
class Seen:
    """Findings of one pass over the texts, besides the vectors.

    `layers` counts the hidden states. `padded` says whether texts of different lengths shared a batch. `left_out` are
    vectors that this model or these texts don't have, `not_determined` those that could not be read. `effects` says for
    a vector by its name how much padding changes it. `tokens` is None for images and sounds.
    """

    layers: int
    padded: bool
    left_out: tuple[Gap, ...] = ()
    not_determined: tuple[Gap, ...] = ()
    notes: tuple[str, ...] = ()
    effects: tuple[tuple[str, float], ...] = ()
    layer_numbers: tuple[LayerNumbers, ...] = ()
    tokens: TextLengths | None = None
    precision: Precision = Precision("float32", "float32")  # noqa: RUF009  frozen


@dataclass(frozen=True, slots=True)
class Features:
    """Stored vectors of a pass: one array per part, in a file, with a row for each text, in float32.

    `scores` are the model's own logits. `reused` says that an earlier run made the files.
    """

    parts: dict[LayerVector, Array]
    scores: Array
    seen: Seen
    reused: bool = False


def whole_array(array: Array) -> Array:
    """Reads a part into memory; its file isn't kept mapped, which would count as memory of the process."""
    return np.load(array.filename) if isinstance(array, np.memmap) and array.filename else np.asarray(array)


def name_of_part(part: LayerVector) -> str:
    """Names a part: its file and its candidate have this name."""
    vector, layer = part
    return vector.value if layer is None else f"{vector.value}-{layer}"


class Store:
    """Files with a row for each text, made when the first batch says how large they are."""

    def __init__(self, folder: Path, rows: int, noun: str = "text") -> None:
        self._folder, self._rows, self._noun = folder, rows, noun
        self._files: dict[LayerVector | None, Array] = {}
        self._written = 0
        self._gaps: dict[str, str] = {}
        self._absent: dict[str, str] = {}
        self._notes: dict[str, None] = {}
        self._wrong: dict[LayerVector, set[int]] = {}
        self._of_layers: dict[int, tuple[Array, Array]] = {}
        self._layers = 0

    def note(self, sentence: str) -> None:
        """Adds a note to the result."""
        self._notes[sentence] = None

    def write(self, rows: Array, batch: Batch) -> None:
        """Stores the vectors of some texts, whose places are `rows`, [texts]. A part that a batch lacks is given up."""
        values = batch.vectors
        if not self._files:
            self._make_files(values)
        self._files = {part: stored for part, stored in self._files.items() if part in values}
        for part, stored in self._files.items():
            stored[rows] = values[part].numpy()
            self._written += values[part].nbytes
        for part, value in values.items():
            if part is not None and not bool(value.isfinite().all()):
                self._wrong.setdefault(part, set()).update(rows[(~value.isfinite().all(1)).numpy()].tolist())
        for layer, shares in batch.first_shares.items():
            both = self._of_layers.setdefault(layer, (np.full(self._rows, np.nan), np.full(self._rows, np.nan)))
            both[0][rows], both[1][rows] = shares.float().cpu(), batch.cosines[layer].float().cpu()
        self._layers = max(self._layers, batch.layers)
        self._gaps |= batch.gaps
        self._absent |= batch.absent
        if self._written > _OPEN_BYTES:
            # Written pages stay in the process's memory as long as they are mapped, so the files are mapped again.
            for part in self._files:
                self._files[part] = np.lib.format.open_memmap(self._path_of_part(part), "r+")
            self._written = 0

    def _make_files(self, values: Mapping[LayerVector | None, torch.Tensor]) -> None:
        """Makes the files. Raises Unsupported if the disk has too little space, or the folder can't be written to."""
        width = sum(value.shape[1] for value in values.values())
        needed, free = 4 * width * self._rows, shutil.disk_usage(self._folder).free
        if needed * _ROOM > free:
            raise Unsupported(
                f"the vectors of {counted(self._rows, self._noun)} need {needed / 1e9:.1f} GB, and {self._folder} has "
                f"{free / 1e9:.1f} GB free",
                "give a smaller --limit, or another folder with --features",
            )
        for part, value in values.items():
            shape = (self._rows, value.shape[1])
            try:
                self._files[part] = np.lib.format.open_memmap(self._path_of_part(part), "w+", np.float32, shape)
            except OSError as err:
                raise Unsupported(
                    f"the vectors can't be written to {self._folder}: {err.strerror or err}",
                    "free some space, check the permissions, or name another folder with --features",
                ) from err

    def _path_of_part(self, part: LayerVector | None) -> Path:
        return self._folder / f"{_SCORES if part is None else name_of_part(part)}.npy"

    def finished(
        self, *, padded: bool, several: Array | None, effects: Mapping[LayerVector | None, float],
        tokens: TextLengths | None, precision: Precision,
    ) -> Features:  # fmt: skip
        """Gives the stored vectors, and names the parts that are left out because of NaN or infinite values.

        `several` says which texts have two tokens or more. Raises Unsupported if no vector is left.
        """
        for part in [part for part in self._files if part in self._wrong]:
            assert part is not None
            count = counted(len(self._wrong[part]), self._noun)
            self._gaps[name_of_part(part)] = f"{count} of {self._rows:,} gave NaN or infinite values"
            del self._files[part]
        parts = [part for part in self._files if part is not None]
        if not parts:
            name, reason = next(iter(self._gaps.items()), ("vectors", "the model gave none"))
            raise Unsupported(
                f"no vector can be scored: {name}: {reason}", "see whether its weights are whole: headscope verify"
            )
        self._files = {}  # everything is written from here on
        seen = Seen(
            layers=self._layers,
            padded=padded,
            left_out=tuple(Gap(*item) for item in sorted(self._absent.items())),
            not_determined=tuple(Gap(*item) for item in sorted(self._gaps.items())),
            notes=tuple(self._notes),
            effects=tuple((name_of_part(part), effects[part]) for part in parts if part in effects),
            layer_numbers=tuple(self._layer_averages(several)),
            tokens=tokens,
            precision=precision,
        )
        return Features(
            {part: _map_array(self._path_of_part(part)) for part in parts}, _map_array(self._path_of_part(None)), seen
        )

    def keep_first_if_constant(self, reason: str) -> None:
        """Leaves out the first position unless it is the same kind of token for every input.

        Such a token has the same vector for all inputs in layer 0.
        """
        first, mean = (self._files.get((vector, 0)) for vector in (Vector.FIRST_TOKEN, Vector.MASKED_MEAN))
        if first is not None and mean is not None and _is_constant(first) and not _is_constant(mean):
            return
        self._files = {
            part: stored for part, stored in self._files.items() if not part or part[0] is not Vector.FIRST_TOKEN
        }
        self._absent["first_token"] = reason

    def _layer_averages(self, several: Array | None) -> Sequence[LayerNumbers]:
        if several is None or not several.any():
            return ()
        return [
            LayerNumbers(layer, float(shares[several].mean()), float(cosines[several].mean()))
            for layer, (shares, cosines) in sorted(self._of_layers.items())
            if np.isfinite(shares[several]).all() and np.isfinite(cosines[several]).all()
        ]


def _is_constant(stored: Array) -> bool:
    """True if all rows are equal, up to the rounding of batches of different sizes."""
    return bool(np.allclose(stored, stored[:1], rtol=0, atol=1e-5 * float(np.abs(stored[:1]).max() or 1)))


def _map_array(path: Path) -> Array:
    found: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    return found


@dataclass(frozen=True, slots=True)
class Origin:
    """Everything that the vectors depend on, by name; `unknown` says why it can't be compared with another run's."""

    parts: dict[str, str] = field(default_factory=dict)
    unknown: str = ""


def origin_of_vectors(
    request: Request,
    manifest: CheckpointManifest,
    texts: Sequence[tuple[str, ...]],
    options: dict[str, str],
    *,
    are_files: bool,
) -> Origin:
    """Gives the origin of the vectors of these texts or files; `options` names what else they depend on."""
    if manifest.kind is CheckpointKind.HUB and not manifest.commit:
        return Origin(unknown="the commit of the checkpoint is not known")
    try:
        checkpoint = manifest.commit or _digest_of_folder(request, manifest)
        given = [(digest_of_file(Path(path)),) for (path,) in texts] if are_files else texts
    except OSError as err:
        return Origin(unknown=f"the files of the checkpoint or of the data cannot be read: {err.strerror}")
    digest = hashlib.blake2b(digest_size=20)
    for text in given:
        digest.update(repr(text).encode("utf-8", "backslashreplace") + b"\n")
    parts = {
        "checkpoint": f"{checkpoint} {request.location.subfolder or ''} {request.location.variant or ''}",
        "texts": digest.hexdigest(),
        "versions": hashlib.sha256(repr(versions_key(manifest.config)).encode()).hexdigest()[:40],
    }
    return Origin(parts | options)


def _digest_of_folder(request: Request, manifest: CheckpointManifest) -> str:
    """Digests the weights and all files beside them that a model or a tokenizer may read. Raises OSError."""
    place = loadable(request, manifest)
    folder = Path(place.reference, place.subfolder or "")
    found = hashlib.blake2b(digest_size=20)
    # Sorted, because the order of a folder's entries depends on the file system.
    beside = (path for path in folder.iterdir() if path.is_file() and path.stat().st_size <= _LARGEST_BESIDE)
    for path in sorted({*(folder / file.name for file in manifest.files), *beside}):
        found.update(f"{path.name} {digest_of_file(path)}\n".encode("utf-8", "backslashreplace"))
    return found.hexdigest()


def keep_manifest(folder: Path, origin: Origin, features: Features) -> None:
    """Writes the origin beside the files; it is written last, so that an interrupted pass has none."""
    if origin.unknown:
        return
    names = (*map(name_of_part, features.parts), _SCORES)
    body = {
        "origin": origin.parts,
        "parts": [[part[0].value, part[1]] for part in features.parts],
        "files": {name: digest_of_file(folder / f"{name}.npy") for name in names},
        "seen": store(features.seen),
    }
    with suppress(OSError):  # the vectors are there; the next run makes them again
        write_whole(folder / MANIFEST, json.dumps(body, indent=1) + "\n")


def read_kept(folder: Path, origin: Origin) -> Features | str:
    """Reads the vectors of an earlier run with exactly this origin, or gives the reason why not ("" if none exist)."""
    path = folder / MANIFEST
    if not path.is_file():
        has_files = next(folder.glob("*.npy"), None) is not None
        return "the run that wrote them did not finish" if has_files else ""
    if origin.unknown:
        return origin.unknown
    try:
        if path.stat().st_size > _MOST_JSON:
            raise ValueError("too large")
        body = json.loads(path.read_text(encoding="utf-8"))
        given = body["origin"]
        names = [*origin.parts, *(name for name in given if name not in origin.parts)]
        changed = [name for name in names if given.get(name) != origin.parts.get(name)]
        if changed:
            return f"{', '.join(name for name in changed if name in origin.parts) or 'options'} changed"
        return _read_features(folder, body)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, EOFError):
        return f"{MANIFEST} is damaged"


def _read_features(folder: Path, body: Any) -> Features | str:
    parts: list[LayerVector] = [(Vector(vector), layer) for vector, layer in body["parts"]]
    if not all(layer is None or type(layer) is int for _, layer in parts):
        raise ValueError("not a layer")
    seen = restore(Seen, body["seen"])
    for name in (*map(name_of_part, parts), _SCORES):
        path = folder / f"{name}.npy"
        if not path.is_file() or digest_of_file(path) != body["files"][name]:
            return f"{name}.npy is not the file that was written"
    opened = {part: _map_array(folder / f"{name_of_part(part)}.npy") for part in parts}
    return Features(opened, _map_array(folder / f"{_SCORES}.npy"), seen, reused=True)


def digest_of_file(path: Path) -> str:
    """Computes a digest of all bytes of a file. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


@contextmanager
def vector_folder(given: str | None) -> Iterator[Path]:
    """Gives the folder for the vectors: the caller's, made if it doesn't exist, or a temporary one.

    Raises UsageError if it can't be used, or holds other files.
    """
    if given is None:
        with tempfile.TemporaryDirectory(prefix="headscope-probe-", ignore_cleanup_errors=True) as name:
            yield Path(name)
        return
    place = Path(given)
    if is_in_hub_cache(place):
        raise UsageError(f"--features {given} is in the Hub's cache, which only its client writes to", "name a folder")
    try:
        place.mkdir(parents=True, exist_ok=True)
        strangers = sorted(item.name for item in place.iterdir() if not _is_ours(item))
    except OSError as err:
        raise UsageError(f"--features {given} cannot be used: {err.strerror}", "name a folder") from err
    if strangers:
        raise UsageError(f"--features {given} holds other files: {few_of(strangers)}", "name an empty folder")
    with _lock_folder(place):
        yield place


@contextmanager
def _lock_folder(place: Path) -> Iterator[None]:
    """Locks a folder of vectors: another run would read them half written. Raises UsageError if it is locked."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    descriptor = os.open(place, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            raise UsageError(
                f"--features {place} is in use by another run of probe", "wait for it, or name another folder"
            ) from err
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(descriptor)


def _is_ours(path: Path) -> bool:
    """True if headscope wrote a file in a folder for vectors."""
    if not path.is_file():
        return False
    if path.name != MANIFEST:
        vector, dash, layer = path.stem.partition("-")
        is_known = vector in (*Vector, _SCORES) and (not dash or (layer.isascii() and layer.isdigit()))
        return is_known and path.suffix == ".npy"
    # The name is a common one, so what `keep_manifest` writes is recognized by its beginning.
    with path.open("rb") as file:
        return file.read(64).lstrip(b"{ \n").startswith(b'"origin":')


def clear_folder(folder: Path) -> None:
    """Removes the vectors of an earlier run, their manifest first."""
    (folder / MANIFEST).unlink(missing_ok=True)
    for item in [item for item in folder.iterdir() if _is_ours(item)]:
        item.unlink()
