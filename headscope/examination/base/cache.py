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
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from headscope.examination.base.environment import environment
from headscope.facts import CheckpointManifest
from headscope.facts.plain import restore, store
from headscope.facts.results.environment import package_version, tool_version
from headscope.outputs import UNFINISHED, write_whole
from headscope.upstream.sources import sources_stamp

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
        """Whether anything is stored."""
        return self._folder is not None

    def load(self, kind: type[_Fact], key: str) -> _Fact | None:
        """The fact stored under a key, or None; what cannot be read back is removed."""
        if self._folder is None:
            return None
        file = self._file(kind, key)
        try:
            # The folder may be shared, and JSON takes several times its size in memory.
            if file.stat().st_size > _LARGEST_ENTRY:
                raise ValueError("too large")
            entry = json.loads(file.read_text(encoding="utf-8"))
            digest, body = entry["digest"], entry["fact"]
            # Entries are written whole, but a disk, a sync tool or a person can change them later, and a wrong report
            # is worse than none.
            if not hmac.compare_digest(digest, self._digest(file.name, body)):
                raise ValueError("damaged")
            found = restore(kind, body)
            # Marks the entry as used: `_make_room` removes those that were not used for the longest time.
            os.utime(file)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            _remove(file)
            return None
        return found

    def save(self, key: str, fact: Any) -> None:
        """Stores a fact, atomically; that it cannot be stored is not a failure."""
        if self._folder is None:
            return
        body, file = store(fact), self._file(type(fact), key)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps({"digest": self._digest(file.name, body), "fact": body})
            if len(text) > _LARGEST_ENTRY:
                return
            write_whole(file, text)
            self._make_room()
        except OSError:
            return

    def _digest(self, name: str, body: Any) -> str:
        """The signature of an entry. Raises OSError where there is no key that only this user reads."""
        text = json.dumps([name, body]).encode()
        return hmac.new(_secret(self._folder or Path()), text, hashlib.sha256).hexdigest()

    def _file(self, kind: type, key: str) -> Path:
        return (self._folder or Path()) / f"{key}-{kind.__name__.lower()}.json"

    def _make_room(self) -> None:
        """Removes the entries that were not used for the longest time, beyond the limits; never another's file."""
        entries = []
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
                _remove(file)


def _remove(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except OSError:  # a cache that may only be read
        return


def _secret(folder: Path) -> bytes:
    """The user's key to the entries, made where there is none. Raises OSError for one that others may have written."""
    place = folder / _KEY
    try:
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        found = _read_own(place)
    else:
        found = secrets.token_bytes(_KEY_BYTES)
        with os.fdopen(descriptor, "wb") as file:
            file.write(found)
    if len(found) != _KEY_BYTES:
        raise PermissionError(f"{place} is not the user's own key")
    return found


def _read_own(place: Path) -> bytes:
    """What a file holds that only this user may read and write; b"" for any other. Raises OSError.

    It is opened once: a path can lead to another file at the next look.
    """
    descriptor = os.open(place, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        is_own = not hasattr(os, "geteuid") or (status.st_uid == os.geteuid() and not status.st_mode & 0o077)
        return file.read(_KEY_BYTES + 1) if is_own and stat.S_ISREG(status.st_mode) else b""


def open_cache(wanted: bool) -> Cache:
    """The user's cache: `$HEADSCOPE_CACHE`, or the system's place for caches; none under `$HEADSCOPE_NO_CACHE`."""
    if not wanted or os.environ.get("HEADSCOPE_NO_CACHE", "").strip().lower() not in _FALSE:
        return Cache(None)
    return Cache(cache_folder())


def cache_folder() -> Path | None:
    """Where entries are stored, whether or not the cache is in use; None where there is no home folder."""
    place = os.environ.get("HEADSCOPE_CACHE")
    return Path(place) if place else _usual_place()


def _usual_place() -> Path | None:
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
    """A folder for `stored_files` and `remove_stored`; it stays the same whatever happens to its path.

    Raises OSError, also for a link.
    """
    if os.unlink not in os.supports_dir_fd or os.scandir not in os.supports_fd:  # Windows
        if folder.is_symlink():
            raise NotADirectoryError(f"{folder} is a link")
        yield folder
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def stored_files(folder: int | Path) -> list[StoredFile]:
    """The files in a folder, sorted by name; a link or a folder is never headscope's. Raises OSError."""
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
    """Removes a file of the folder, which may be gone. Raises OSError."""
    try:
        if isinstance(folder, int):
            os.unlink(file.name, dir_fd=folder)
        else:
            (folder / file.name).unlink()
    except FileNotFoundError:
        return


def key_of(manifest: CheckpointManifest, *parts: object) -> str:
    """The digest of a manifest, of everything else that is named, and of the versions that take part."""
    from headscope.checkpoints import snapshot_text

    repaired = manifest.repaired.tensors if manifest.repaired is not None else ()
    rest = (manifest.kind.value, manifest.notices, manifest.unread, repr(manifest.states), repr(repaired))
    given = manifest.adapter
    adapter = () if given is None else (given.notices, package_version("peft"), given.lacks_tokenizer)
    text = json.dumps([versions_key(manifest.config), rest, adapter, [repr(part) for part in parts]], default=list)
    # Names in a checkpoint may hold half a surrogate pair, which UTF-8 refuses.
    return hashlib.sha256(f"{text}\n{snapshot_text(manifest)}".encode("utf-8", "surrogatepass")).hexdigest()[:40]


def versions_key(config: Mapping[str, Any]) -> tuple[object, ...]:
    """The versions of everything that takes part in an examination of a model with this configuration, headscope's own
    code and Transformers' sources among them.
    """
    parts = [config, *(value for value in config.values() if isinstance(value, dict))]
    families = {name for part in parts if isinstance(name := part.get("model_type"), str)}
    return _FORMAT, tool_version(), _own_code(), store(environment()), sources_stamp(tuple(sorted(families)))


@cache
def _own_code() -> tuple[int, int]:
    """The state of headscope's own code, which a development install changes without a new version."""
    stamps = [file.stat().st_mtime_ns for file in Path(__file__).parents[2].rglob("*.py")]
    return len(stamps), max(stamps, default=0)


def state_of(paths: Sequence[Path]) -> tuple[tuple[str, int, int, int, int], ...]:
    """What tells whether local files have changed: name, size, times, and which file it is.

    The time of the last change can be set to any value; that of the last change of the entry (ctime) can't.
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
