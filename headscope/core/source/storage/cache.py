"""Reports of checkpoints that have not changed: the second look imports neither torch nor transformers.

An entry is found by a digest of everything that its facts depend on: the manifest (configuration, every tensor header,
the commit), the identity of local files, the request, the versions of everything that took part, and the sources of
Transformers that the model's family runs. So an entry isn't used for another state of these, and the oldest go when
there are too many. What is not seen: other libraries' sources that change without a version, and numbers that another
process writes through a memory map, which leaves a file's times as they are for a while. An entry is signed with a key
that only the user reads: one that is broken, edited, renamed or of somebody else is as good as none.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from headscope.core.facts import CheckpointManifest
from headscope.core.facts.environment import package_version, tool_version
from headscope.core.facts.plain import restore, store
from headscope.core.outputs import UNFINISHED, write_whole
from headscope.core.source.environment import environment
from headscope.core.upstream.sources import sources_stamp

_FORMAT = 4
MOST_ENTRIES = 300
MOST_CACHED_BYTES = 100_000_000
_LARGEST_ENTRY = 20_000_000
_KEY, _KEY_BYTES = "key", 32
_FALSE = {"", "0", "false", "no", "off"}
_NAME = re.compile(r"[0-9a-f]{40}(?:-[0-9a-f]{16})?(?:-base)?-(?P<kind>[a-z]+)\.json")
_UNFINISHED = re.compile(UNFINISHED.format(name=_NAME.pattern))
_Fact = TypeVar("_Fact")


class Cache:
    """A folder of stored facts; with None as folder, nothing is stored."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    @property
    def is_open(self) -> bool:
        """True if facts are stored."""
        return self._folder is not None

    def load(self, kind: type[_Fact], key: str) -> _Fact | None:
        """Reads the fact stored under a key; None if there is none. Removes an entry that can't be read back."""
        if self._folder is None:
            return None
        file = self._entry_path(kind, key)
        try:
            # The folder may be shared, and JSON takes several times its size in memory.
            if file.stat().st_size > _LARGEST_ENTRY:
                raise ValueError("too large")
            entry = json.loads(file.read_text(encoding="utf-8"))
            digest, body = entry["digest"], entry["fact"]
            # Entries are written whole, but a disk, a sync tool or a person can change them later, and a wrong report
            # is worse than none.
            if not hmac.compare_digest(digest, self._sign_entry(file.name, body)):
                raise ValueError("damaged")
            found = restore(kind, body)
            # Marks the entry as used: `_make_room` removes those that were not used for the longest time.
            os.utime(file)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            _remove_file(file)
            return None
        return found

    def save(self, key: str, fact: Any) -> None:
        """Stores a fact atomically. A fact that can't be stored is not an error."""
        if self._folder is None:
            return
        body, file = store(fact), self._entry_path(type(fact), key)
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps({"digest": self._sign_entry(file.name, body), "fact": body})
            if len(text) <= _LARGEST_ENTRY:
                write_whole(file, text)
                self._make_room()

    def _sign_entry(self, name: str, body: Any) -> str:
        """Signs an entry with the user's key. Raises OSError if there is no key that only this user can read."""
        text = json.dumps([name, body]).encode()
        return hmac.new(_read_or_make_key(self._folder or Path()), text, hashlib.sha256).hexdigest()

    def _entry_path(self, kind: type, key: str) -> Path:
        return (self._folder or Path()) / f"{key}-{kind.__name__.lower()}.json"

    def _make_room(self) -> None:
        """Removes the least recently used entries beyond the limits; never a file of somebody else."""
        entries = []
        # The folder may be shared with other programs, so only files whose name has the form of an entry count.
        for file in (self._folder or Path()).glob("*.json"):
            if not _NAME.fullmatch(file.name):
                continue
            try:
                status = file.stat()
            except OSError:  # another process was faster
                continue
            entries.append((status.st_mtime_ns, status.st_size, file))
        room = MOST_CACHED_BYTES
        for place, (_, size, file) in enumerate(sorted(entries, key=lambda entry: entry[0], reverse=True)):
            room -= size
            if place >= MOST_ENTRIES or room < 0:
                _remove_file(file)


def _remove_file(file: Path) -> None:
    with suppress(OSError):  # a cache that may only be read
        file.unlink(missing_ok=True)


def _read_or_make_key(folder: Path) -> bytes:
    """Reads the user's key to the entries, or makes it. Raises OSError if others may have written it."""
    place = folder / _KEY
    try:
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        found = _read_private_file(place)
    else:
        found = secrets.token_bytes(_KEY_BYTES)
        with os.fdopen(descriptor, "wb") as file:
            file.write(found)
    # A key that others can write, or one of another length, could sign entries that this user didn't make.
    if len(found) != _KEY_BYTES:
        raise PermissionError(f"{place} is not the user's own key")
    return found


def _read_private_file(place: Path) -> bytes:
    """Reads a file that only this user may read and write; b"" for any other. Raises OSError.

    Opens the file once: between two looks, a path can be changed to lead to another file.
    """
    # O_NOFOLLOW refuses a link, and O_NONBLOCK doesn't wait for a writer if the path is a pipe. Windows has neither.
    descriptor = os.open(place, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        is_own = not hasattr(os, "geteuid") or (status.st_uid == os.geteuid() and not status.st_mode & 0o077)
        return file.read(_KEY_BYTES + 1) if is_own and stat.S_ISREG(status.st_mode) else b""


def open_cache(wanted: bool) -> Cache:
    """Opens the user's cache; one that stores nothing if `wanted` is false or `$HEADSCOPE_NO_CACHE` is set."""
    if not wanted or os.environ.get("HEADSCOPE_NO_CACHE", "").strip().lower() not in _FALSE:
        return Cache(None)
    return Cache(cache_folder())


def cache_folder() -> Path | None:
    """Finds the folder of entries: `$HEADSCOPE_CACHE`, or the system's place for caches; None without a home folder."""
    place = os.environ.get("HEADSCOPE_CACHE")
    if place:
        return Path(place)
    try:
        home = Path.home()
    except RuntimeError:
        return None
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "headscope"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "headscope" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "headscope"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in the folder of the cache: its `kind` of entry, "key", or "" for a file that isn't headscope's."""

    name: str
    kind: str
    size: int


@contextmanager
def opened_folder(folder: Path) -> Iterator[int | Path]:
    """Opens a folder for `stored_files` and `remove_stored`; it stays the same folder if its path changes.

    Raises OSError, for a link as well.
    """
    if os.unlink not in os.supports_dir_fd or os.scandir not in os.supports_fd:  # Windows
        if folder.is_symlink():
            raise NotADirectoryError(f"{folder} is a link")
        # Windows can't address files by an open folder: only the check for a link is left.
        yield folder
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def stored_files(folder: int | Path) -> list[StoredFile]:
    """Lists the files in a folder, sorted by name; a link or a folder never counts as headscope's. Raises OSError."""
    found = []
    with os.scandir(folder) as items:
        for item in items:
            status = item.stat(follow_symlinks=False)
            kind = _kind_of(item.name, status.st_size) if stat.S_ISREG(status.st_mode) else ""
            found.append(StoredFile(item.name, kind, status.st_size))
    return sorted(found, key=lambda file: file.name)


def _kind_of(name: str, size: int) -> str:
    match = _NAME.fullmatch(name) or _UNFINISHED.fullmatch(name)
    if match is not None:
        return match["kind"]
    return _KEY if name == _KEY and size == _KEY_BYTES else ""


def remove_stored(folder: int | Path, file: StoredFile) -> None:
    """Removes a file of the folder, which may be gone already. Raises OSError."""
    with suppress(FileNotFoundError):
        if isinstance(folder, int):
            os.unlink(file.name, dir_fd=folder)
        else:
            (folder / file.name).unlink()


def key_of(manifest: CheckpointManifest, *parts: object) -> str:
    """Digests a manifest, the `parts` that a report also depends on, and the versions that take part."""
    from headscope.core.checkpoints.snapshot import snapshot_text

    repaired = manifest.repaired.tensors if manifest.repaired is not None else ()
    rest = (manifest.kind.value, manifest.notices, manifest.unread, repr(manifest.states), repr(repaired))
    given = manifest.adapter
    adapter = () if given is None else (given.notices, package_version("peft"), given.lacks_tokenizer)
    text = json.dumps([versions_key(manifest.config), rest, adapter, [repr(part) for part in parts]], default=list)
    # Names in a checkpoint may hold half a surrogate pair, which UTF-8 refuses.
    return hashlib.sha256(f"{text}\n{snapshot_text(manifest)}".encode("utf-8", "surrogatepass")).hexdigest()[:40]


def versions_key(config: Mapping[str, Any]) -> tuple[object, ...]:
    """Lists the versions of everything that takes part in an examination with this configuration.

    headscope's own code and Transformers' sources for the model's families are among them.
    """
    parts = [config, *(value for value in config.values() if isinstance(value, dict))]
    families = {name for part in parts if isinstance(name := part.get("model_type"), str)}
    return _FORMAT, tool_version(), _own_code_stamp(), store(environment()), sources_stamp(tuple(sorted(families)))


@cache
def _own_code_stamp() -> tuple[int, int]:
    """Stamps headscope's own code, which changes without a new version in a development install."""
    stamps = [file.stat().st_mtime_ns for file in Path(__file__).parents[3].rglob("*.py")]
    return len(stamps), max(stamps, default=0)


def state_of(paths: Sequence[Path]) -> tuple[tuple[str, int, int, int, int], ...]:
    """Describes local files so that a change shows: name, size, times, and which file it is.

    Anybody can set the time of the last change (mtime), but not that of the last change of the entry (ctime).
    """
    found = []
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            found.append((path.name, -1, 0, 0, 0))
            continue
        found.append((path.name, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino))
    return tuple(found)
