"""What to scan: checkpoints by name, from a list, from the folders of a disk."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from headscope.core.facts.stored.location import Location
from headscope.core.source.request import Request
from headscope.errors import NotFound, UsageError

_LONGEST_LINE = 10_000
_WEIGHTS = re.compile(r"(.*\.safetensors|pytorch_model.*\.bin)(\.index\.json)?|tf_model.*\.h5|flax_model.*\.msgpack")
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
        """Makes the request for this checkpoint, otherwise as the template."""
        place = replace(template.location, reference=self.reference, commit=self.commit, names=self.names)
        return replace(template, location=place)


@dataclass(frozen=True, slots=True)
class ScanSources:
    """Sources of a scan's checkpoints.

    `listed` is a text file, as for `read_list`; `on_hub` says which models a listing of the Hub should name (see
    `listed_models`).
    """

    references: Iterable[str | Target] = ()
    listed: str | None = None
    folders: Sequence[str] = ()
    on_hub: Mapping[str, Any] | None = None

    def targets(self, template: Location) -> list[Target]:
        """Lists what to scan, each once; the template says how to read a Hub listing. Raises UsageError for none."""
        found: list[Iterable[Target]] = [
            (one if isinstance(one, Target) else Target(str(one)) for one in self.references)
        ]
        found += [] if self.listed is None else [read_list(self.listed)]
        found += map(found_below, self.folders)
        found += [on_hub(template, **self.on_hub)] if self.on_hub else []
        targets = list(without_repeats(chain.from_iterable(found)))
        if not targets:
            raise self._nothing_to_scan()
        return targets

    def _nothing_to_scan(self) -> UsageError:
        """Makes the error that names the sources, which were all empty."""
        empty = [] if self.listed is None else [f"{'stdin' if self.listed == '-' else self.listed} lists no models"]
        empty += [
            f"{folder} holds no config.json beside weights, no adapter and no snapshot" for folder in self.folders
        ]
        empty += ["the listing of the Hub names no models"] if self.on_hub else []
        message = f"there is nothing to scan: {'; '.join(empty)}" if empty else "there is nothing to scan"
        return UsageError(message, "name models, or a source such as --from FILE, --folder or --author")


def without_repeats(targets: Iterable[Target]) -> Iterator[Target]:
    """Gives each name once, at its first place; a name without a commit is the same as with any."""
    seen: dict[str, set[str | None]] = {}
    for target in targets:
        commits = seen.setdefault(target.reference, set())
        if not commits or (target.commit is not None and commits.isdisjoint((None, target.commit))):
            yield target
        commits.add(target.commit)


def on_hub(template: Location, **wanted: Any) -> Iterator[Target]:
    """Gives the models that a listing of the Hub names, to be read as the template; `wanted` as for `listed_models`.

    A listing tells the commit and the files of the main branch, so a target has neither where the template asks for a
    revision. Raises Offline, NotFound for an unknown collection, or NetworkError.
    """
    from headscope.slices.fleet.hub.listing import listed_models

    for model in listed_models(template.hub, **wanted):
        place = model.location(template.hub)
        is_main = template.revision is None
        yield Target(place.reference, place.commit, place.names) if is_main else Target(place.reference)


def read_list(file: str) -> Iterator[Target]:
    """Reads the checkpoints that a text file lists, one per line; `-` is stdin. Skips empty lines and comments (`#`).

    Raises NotFound or UsageError for a file that isn't such a list, with the number of the line.
    """
    name = "stdin" if file == "-" else file
    hint = "name a text file with one model per line, or - for stdin"
    try:
        with nullcontext(sys.stdin.buffer) if file == "-" else Path(file).open("rb") as stream:
            # With a limit for each line: a file of weights, named by mistake, may be one line of gigabytes.
            for number, line in enumerate(iter(lambda: stream.readline(_LONGEST_LINE + 1), b""), 1):
                reference = _parse_line(line, name, number)
                if reference:
                    yield Target(reference)
    except FileNotFoundError as err:
        raise NotFound(f"{name} does not exist", hint) from err
    except OSError as err:
        raise UsageError(f"{name} can't be read: {err.strerror}", hint) from err


def _parse_line(line: bytes, name: str, number: int) -> str:
    hint = "write one model per line: a Hub ID or a path"
    if len(line) > _LONGEST_LINE:
        raise UsageError(f"line {number} of {name} is longer than {_LONGEST_LINE:,} bytes", hint)
    try:
        # Editors on Windows put a byte order mark at the beginning of a file.
        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as err:
        raise UsageError(f"line {number} of {name} isn't UTF-8 text", hint) from err
    if "\0" in text:
        raise UsageError(f"line {number} of {name} holds a zero byte", hint)
    text = text.strip()
    return "" if text.startswith("#") else text


def found_below(folder: str) -> Iterator[Target]:
    """Finds checkpoints and snapshots at and below a folder, in the order of their paths; skips links to folders.

    A folder below it that can't be listed is a target too: a scan that left it out would look complete. Raises NotFound
    where there is no such folder, and UsageError where it can't be listed.
    """
    if not Path(folder).is_dir():
        raise NotFound(f"{folder} is not a folder", "name a folder that holds checkpoints")
    closed: list[str] = []

    def note(err: OSError) -> None:
        if err.filename == folder:
            raise UsageError(f"{folder} can't be listed: {err.strerror}", "check its permissions") from err
        closed.append(err.filename)

    for place, below, files in os.walk(folder, onerror=note):
        # os.walk descends into what is left in the list, in its order.
        below[:] = sorted(
            name for name in below
            if not name.startswith(".") and not ("modules.json" in files and _MODULE.fullmatch(name))
        )  # fmt: skip
        if "adapter_config.json" in files or ("config.json" in files and any(map(_WEIGHTS.fullmatch, files))):
            yield Target(place)
        for name in sorted(files):
            if name.endswith(".json") and _is_snapshot(Path(place, name)):
                yield Target(str(Path(place, name)))
    yield from map(Target, closed)


def _is_snapshot(file: Path) -> bool:
    try:
        if not file.is_file():  # to open a pipe is to wait for its writer
            return False
        with file.open("rb") as stream:
            return b'"headscope-snapshot"' in stream.read(200)
    except OSError:
        return False
