"""Images and sounds in a column of labeled data, as files, and as tensors from the checkpoint's own processor."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headscope.core.facts.heads.tasks import Input
from headscope.core.model.loading.inference import count_frames
from headscope.errors import NotFound, UsageError
from headscope.shared.labeled.rows import RowCells, RowSource
from headscope.slices.probe.arrays import Array

_STORED = "stored:"


@dataclass(frozen=True, slots=True)
class Media:
    """Encoder of images or sounds: `encode` gives the tensors of the file at a path, as a batch of one."""

    kind: Input
    encode: Callable[[str], Mapping[str, torch.Tensor]]

    def lengths(self, paths: Sequence[str]) -> Array:
        """Counts the frames of each sound; 0 for images. The result is [paths]."""
        return np.array([count_frames(path) if self.kind is Input.AUDIO else 0 for path in paths])

    def batches(self, paths: Sequence[str]) -> Iterator[tuple[list[int], dict[str, torch.Tensor]]]:
        """Yields the tensors of several files, those of equal shapes together, with their places."""
        groups: dict[tuple[Any, ...], list[tuple[int, Mapping[str, torch.Tensor]]]] = {}
        for place, path in enumerate(paths):
            made = {name: value for name, value in self.encode(path).items() if isinstance(value, torch.Tensor)}
            groups.setdefault(tuple((name, value.shape[1:]) for name, value in made.items()), []).append((place, made))
        for group in groups.values():
            names = group[0][1]
            yield [place for place, _ in group], {name: torch.cat([made[name] for _, made in group]) for name in names}


def with_names(source: RowSource, column: str) -> RowSource:
    """Names the file in each row: by its path, or by a digest of the bytes that `datasets` stored in the cell."""
    base = Path(source.name).parent

    def read(wanted: Sequence[str]) -> Iterator[RowCells]:
        at = [place for place, name in enumerate(wanted) if name == column]
        for row in source.read(wanted):
            yield tuple(
                _name_file(cell, base, source, column) if place in at else cell for place, cell in enumerate(row)
            )

    return replace(source, read=read)


def _name_file(cell: Any, base: Path, source: RowSource, column: str) -> str | None:
    data = _stored_bytes(cell)
    if data is not None:
        return _STORED + hashlib.sha256(data).hexdigest()
    path = cell.get("path") if isinstance(cell, dict) else cell
    if path is None or path == "":
        return None
    if not isinstance(path, str):
        raise UsageError(
            f"{column!r} of {source.name} holds neither paths nor files", "name a column of paths, or an image column"
        )
    return str(base / path)


def content_of(source: RowSource) -> Callable[[str], str]:
    """Gives a function from a file's name to a digest of its bytes, which is equal for equal files and read once."""

    @cache
    def content(name: str) -> str:
        return name if name.startswith(_STORED) else _STORED + _digest_file(name, source)

    return content


def _digest_file(path: str, source: RowSource) -> str:
    """Computes a digest of a file. Raises NotFound for one that doesn't exist."""
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError) as err:
        if not Path(path).is_file():
            raise _missing_file_error(path, source) from err
        raise NotFound(
            f"{path} cannot be read: {getattr(err, 'strerror', None) or err}", "check its permissions"
        ) from err


def _missing_file_error(path: str, source: RowSource) -> NotFound:
    return NotFound(f"{path}, which {source.name} names, doesn't exist", "paths are relative to the data file")


def _stored_bytes(cell: Any) -> bytes | None:
    found = cell.get("bytes") if isinstance(cell, dict) else cell
    return found if isinstance(found, bytes) else None


def written(source: RowSource, column: str, names: Sequence[str], folder: Path) -> list[str]:
    """Gives the path of each file, and writes stored bytes to the folder. Raises NotFound for a missing file."""
    missing = {name for name in names if name.startswith(_STORED)}
    for (cell,) in source.read((column,)) if missing else ():
        data = _stored_bytes(cell)
        name = "" if data is None else _STORED + hashlib.sha256(data).hexdigest()
        if name in missing and data is not None:
            (folder / name.removeprefix(_STORED)).write_bytes(data)
            missing.discard(name)
    paths = [str(folder / name.removeprefix(_STORED)) if name.startswith(_STORED) else name for name in names]
    lost = next((path for path in paths if not Path(path).is_file()), None)
    if lost is not None:
        raise _missing_file_error(lost, source)
    return paths
