"""What to scan: checkpoints by name, from a list, from the folders of a disk."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headscope.errors import NotFound, UsageError
from headscope.examination.request import Request
from headscope.facts.location import HubOptions

_LONGEST_LINE = 10_000
_SNAPSHOT = b'"headscope-snapshot"'
_WEIGHTS = re.compile(r".*\.safetensors|pytorch_model.*\.bin(\.index\.json)?")
_MODULE = re.compile(r"\d+_\w+")  # the folders of sentence-transformers' modules, `2_Dense`


@dataclass(frozen=True, slots=True)
class Target:
    """A checkpoint to scan, as its source named it.

    `commit` and `names`, its files, are known where a listing of the Hub told them.
    """

    reference: str
    commit: str | None = None
    names: tuple[str, ...] | None = None

    def request(self, template: Request) -> Request:
        """The request for this checkpoint, otherwise as the template."""
        place = replace(template.location, reference=self.reference, commit=self.commit, names=self.names)
        return replace(template, location=place)


def without_repeats(targets: Iterable[Target]) -> Iterator[Target]:
    """Each checkpoint once, at its first place."""
    seen: set[tuple[str, str | None]] = set()
    for target in targets:
        key = (target.reference, target.commit)
        if key not in seen:
            seen.add(key)
            yield target


def on_hub(hub: HubOptions, **wanted: Any) -> Iterator[Target]:
    """The models that a listing of the Hub names; `wanted` is as for `listed_models`.

    Raises Offline, NotFound for an unknown collection, or NetworkError.
    """
    from headscope.checkpoints import listed_models

    for model in listed_models(hub, **wanted):
        place = model.location(hub)
        yield Target(place.reference, place.commit, place.names)


def listed(file: str) -> Iterator[Target]:
    """The checkpoints that a text file lists, one a line; `-` is stdin. Empty lines and comments (`#`) are left out.

    Raises NotFound or UsageError for a file that is no such list, with the number of the line.
    """
    name = "stdin" if file == "-" else file
    try:
        stream = sys.stdin.buffer if file == "-" else Path(file).open("rb")  # noqa: SIM115  closed below
    except FileNotFoundError as err:
        raise NotFound(f"{file} does not exist", "name a text file with one model a line, or - for stdin") from err
    except OSError as err:
        raise UsageError(f"{file} can't be read: {err.strerror}", "name a text file with one model a line") from err
    try:
        for number, line in enumerate(iter(lambda: stream.readline(_LONGEST_LINE + 1), b""), 1):
            reference = _reference(line, name, number)
            if reference:
                yield Target(reference)
    finally:
        if file != "-":
            stream.close()


def _reference(line: bytes, name: str, number: int) -> str:
    hint = "write one model a line: a Hub ID or a path"
    if len(line) > _LONGEST_LINE:
        raise UsageError(f"line {number} of {name} is longer than {_LONGEST_LINE:,} bytes", hint)
    try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as err:
        raise UsageError(f"line {number} of {name} isn't UTF-8 text", hint) from err
    if "\0" in text:
        raise UsageError(f"line {number} of {name} holds a zero byte", hint)
    text = text.strip()
    return "" if text.startswith("#") else text


def found_below(folder: str) -> Iterator[Target]:
    """The checkpoints and snapshots at and below a folder, in the order of their paths; links to folders are left out.

    Raises NotFound where there is no such folder, and UsageError for one that can't be listed.
    """
    root = Path(folder)
    if not root.is_dir():
        raise NotFound(f"{folder} is not a folder", "name a folder that holds checkpoints")

    def refuse(err: OSError) -> None:
        if err.filename == folder:
            raise UsageError(f"{folder} can't be listed: {err.strerror}", "check its permissions") from err

    for place, below, files in os.walk(folder, onerror=refuse):
        below[:] = sorted(name for name in below if not name.startswith(".") and not _is_module(name, files))
        if _is_checkpoint(files):
            yield Target(place)
        for name in sorted(files):
            if name.endswith(".json") and _is_snapshot(Path(place, name)):
                yield Target(str(Path(place, name)))


def _is_module(name: str, beside: list[str]) -> bool:
    return "modules.json" in beside and _MODULE.fullmatch(name) is not None


def _is_checkpoint(files: list[str]) -> bool:
    names = set(files)
    return "adapter_config.json" in names or ("config.json" in names and any(map(_WEIGHTS.fullmatch, files)))


def _is_snapshot(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            return _SNAPSHOT in stream.read(200)
    except OSError:
        return False
