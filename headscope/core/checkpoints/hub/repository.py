"""One repository of the Hub as a storage of files at one commit: small files whole, weights by range.

A file is requested from the resolver by name; the answer also shows whether it exists and which commit a revision
means. The list of all files is requested from the Hub's API, whose limits are tighter, and only if names alone don't
help.
"""

import json
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from headscope.core.checkpoints.contents.adapter import ADAPTER_CONFIG, holds_adapter_alone
from headscope.core.checkpoints.contents.sentence import MODULES
from headscope.core.checkpoints.foreign.adapter_hub import refuse_adapter_hub
from headscope.core.checkpoints.formats.bytes import FIRST_BYTES, ByteSource, LocalBytes
from headscope.core.checkpoints.formats.config_file import LARGEST_JSON, largest_text
from headscope.core.checkpoints.hub.access import HubAccess
from headscope.core.checkpoints.hub.ranges import Beginning, RangeBytes, read_whole
from headscope.core.checkpoints.hub.requests import understood
from headscope.core.checkpoints.local import read_small_file
from headscope.core.checkpoints.reference import HubReference, parse_reference
from headscope.core.facts.stored.checkpoint import CONFIG
from headscope.core.facts.stored.location import is_path_inside
from headscope.core.upstream.hub import cached_file
from headscope.errors import HeadscopeError, NetworkError, NotFound, WithoutConfig

if TYPE_CHECKING:
    from headscope.core.checkpoints.unusual import PlaceSurroundings

_ASKED_FOR = {
    CONFIG: True,
    MODULES: True,
    "tokenizer_config.json": True,
    "tokenizer.json": True,
    "model.safetensors.index.json": True,
    "model.safetensors": False,
}
"""Files whose absence a request for the file itself finds out, and whether they are small: most repositories that
headscope reads hold them, or nothing but them can tell that they are not there."""
_WHOLE = ("model.safetensors", "model.safetensors.index.json")
"""What a repository that holds an adapter alone lacks."""
_LARGEST_KEPT = 1_000_000
_Value = TypeVar("_Value")


def _list_files(access: HubAccess, revision: str | None) -> tuple[str | None, tuple[str, ...]]:
    """Requests the commit and the names of the files of a repository from the Hub's API."""
    from huggingface_hub import constants

    at = f"/revision/{quote(revision, safe='')}" if revision else ""
    url = f"{constants.ENDPOINT}/api/models/{access.repo}{at}"
    found = read_whole(access.connection, url, f"the list of files of {access.repo}", LARGEST_JSON)
    with understood(access.repo):
        described = json.loads(found.content)
        return described.get("sha"), plain_names(described.get("siblings") or ())


def config_name(access: HubAccess, storage: "Repository", pool: Executor) -> str:
    """Finds the configuration of a repository: config.json, or adapter_config.json if it holds an adapter alone.

    `pool` requests what follows the model at the same time. Raises an error that says what the repository is without a
    configuration.
    """
    try:
        storage.read_text(CONFIG)
    except NotFound:
        if ADAPTER_CONFIG not in storage.names():
            error = surroundings_of(access, storage).error_without_config()
            if error.state is None and not isinstance(error, WithoutConfig):
                error = NotFound(f"{access.repo} holds no {CONFIG}", "it may not be a Transformers model; see its page")
            raise error from None
    else:
        storage.expect(MODULES, pool)
        if any(map(storage.has, _WHOLE)) or not holds_adapter_alone(storage.names()):
            return CONFIG
    refuse_adapter_hub(storage.names(), storage, access.repo)
    return ADAPTER_CONFIG


def surroundings_of(access: HubAccess, storage: "Repository") -> "PlaceSurroundings":
    """Describes a repository as a place whose state is looked for."""
    # Imported here: what tells other places apart is only needed where a checkpoint isn't a plain one.
    from headscope.core.checkpoints.states.place import StatePlace
    from headscope.core.checkpoints.unusual import PlaceSurroundings

    place = StatePlace(access.repo, storage.names(), storage.open, storage.read_text)
    return PlaceSurroundings(storage, place, access.repo, repo=access.repo)


class Repository:
    """A repository as a storage. The first answer gives the commit, and what is read afterwards is of that commit."""

    def __init__(self, access: HubAccess) -> None:
        self.commit = access.location.commit
        self._id = access.repo
        self._access = access
        self._memory = access.location.hub.memory
        self._texts: dict[str, Future[bytes | None]] = {}
        self._opened: dict[str, ByteSource] = {}
        self._absent: set[str] = set()
        self._listed: tuple[str, ...] | None = None
        self._lock = Lock()
        if self.commit is not None and access.location.names is not None:
            self._memory.keep((access.repo, self.commit), access.location.names)

    def names(self) -> tuple[str, ...]:
        """See `Storage`; the files below the subfolder if one was given."""
        found = self.names_at_hand()
        if found is None:
            commit, names = _list_files(self._access, self._known_revision)
            self._pin_commit(commit)
            self._memory.keep((self._access.repo, self.commit), names)
            found = self._names_in_subfolder(names)
            # What the resolver has said is not there.
            wrong = next((name for name in found if name in self._absent), None)
            if wrong is not None:
                what = f"the Hub lists {wrong} in {self._access.repo} and does not send it"
                raise NetworkError(what, "try again later")
        return found

    def names_at_hand(self) -> tuple[str, ...] | None:
        """See `Storage`."""
        if self._listed is None and self.commit is not None:
            self._listed = self._memory.get((self._access.repo, self.commit))
        return None if self._listed is None else self._names_in_subfolder(self._listed)

    def _names_in_subfolder(self, listed: tuple[str, ...]) -> tuple[str, ...]:
        prefix = f"{self._access.location.subfolder}/" if self._access.location.subfolder else ""
        return tuple(sorted(name.removeprefix(prefix) for name in listed if name.startswith(prefix)))

    def has(self, name: str) -> bool:
        """See `Storage`."""
        at_hand = self.names_at_hand()
        if at_hand is not None or name not in _ASKED_FOR:
            return name in (self.names() if at_hand is None else at_hand)
        if _ASKED_FOR[name]:
            is_there = self._request_text(name).result() is not None
        else:
            is_there = False
            with suppress(NotFound):
                self._opened[name] = self.open(name)
                is_there = True
        if not is_there:
            self._absent.add(name)
        return is_there

    def expect(self, name: str, pool: Executor) -> None:
        """Requests a small file beside other requests, if it isn't known yet whether it is there."""
        if self.names_at_hand() is None:
            pool.submit(self._request_text, name)

    def read_text(self, name: str) -> bytes:
        """See `Storage`. Raises NotFound for a file that is not there."""
        at_hand = self.names_at_hand()
        is_asked_for = at_hand is None or name in at_hand or name in self._texts
        found = self._request_text(name).result() if is_asked_for else None
        if found is None:
            raise self._missing_file_error(name)
        return found

    def _request_text(self, name: str) -> Future[bytes | None]:
        """Gives the answer to the one request for a small file, as soon as it is there; a failure is not cached.

        None for a file that is not there.
        """
        with self._lock:
            known = self._texts.get(name)
            if known is not None:
                return known
            found = self._texts[name] = Future()
        try:
            found.set_result(self._read_or_fetch(name))
        except BaseException as err:
            # Other threads may wait for this answer, so even an interruption has to reach them.
            with self._lock:
                del self._texts[name]
            found.set_exception(err)
        return found

    def _read_or_fetch(self, name: str) -> bytes | None:
        known = self._remembered_value(name)
        if isinstance(known, bytes):
            return known
        cached = self._cached_path(name)
        if cached is not None:
            return read_small_file(cached, name)
        connection = self._access.connection
        found = self._unless_missing(lambda: read_whole(connection, self._file_url(name), name, largest_text(name)))
        if found is None:
            return None
        self._pin_commit(found.commit)
        # The Hub redirects a renamed repository; with the new ID the next requests need no redirect.
        self._id = found.repo if is_id(found.repo) else self._id
        self._remember_value(name, found.content, len(found.content))
        return found.content

    def open(self, name: str, first: int = FIRST_BYTES) -> ByteSource:
        """See `Storage`; a weight file that is in the cache is read there. Raises NotFound if there is no such file."""
        opened = self._opened.pop(name, None)
        if opened is not None:
            return opened
        at_hand = self.names_at_hand()
        cached = self._cached_path(name)
        if cached is not None:
            return LocalBytes(cached, name)
        known = self._remembered_value(name)
        beginning = known if isinstance(known, Beginning) else None
        connection, source = self._access.connection, None
        if at_hand is None or name in at_hand:
            source = self._unless_missing(
                lambda: RangeBytes(self._file_url(name), name, connection, first, beginning=beginning)
            )
        if source is None:
            raise self._missing_file_error(name)
        self._pin_commit(source.beginning.commit)
        self._remember_value(name, source.beginning, len(source.beginning.data))
        return source

    def _unless_missing(self, ask: Callable[[], _Value]) -> _Value | None:
        """Gives the requested file, or None if the Hub reports that there is no such file."""
        from huggingface_hub.errors import EntryNotFoundError

        try:
            return ask()
        except EntryNotFoundError:
            return None

    @property
    def _known_revision(self) -> str | None:
        return self.commit or self._access.revision

    def _file_url(self, name: str) -> str:
        from huggingface_hub import hf_hub_url

        subfolder = self._access.location.subfolder
        return str(hf_hub_url(self._id, name, subfolder=subfolder, revision=self._known_revision))

    def _cached_path(self, name: str) -> Path | None:
        """Finds the file in the client's cache, if the commit is known: a branch may have moved on."""
        if self.commit is None:
            return None
        access = self._access
        return cached_file(access.repo, access.inside(name), self.commit, access.location.hub.cache_dir)

    def _remembered_value(self, name: str) -> Any:
        """Gives what an earlier reading kept of a file."""
        return None if self.commit is None else self._memory.get(self._memory_key(name))

    def _remember_value(self, name: str, value: Any, size: int) -> None:
        # Without a commit the content could change under the same key.
        if self.commit is not None and size <= _LARGEST_KEPT:
            self._memory.keep(self._memory_key(name), value)

    def _memory_key(self, name: str) -> tuple[str, str | None, str]:
        return self._access.repo, self.commit, self._access.inside(name)

    def _pin_commit(self, commit: str | None) -> None:
        """Takes the commit of the first answer. Raises NetworkError if a later one is of another, or none says."""
        if self.commit is None and not commit:
            raise NetworkError(
                f"the server does not say which commit of {self._access.repo} it sends",
                "check that HF_ENDPOINT is a Hub",
            )
        if self.commit is None:
            self.commit = commit
        elif commit and commit != self.commit:
            raise NetworkError(
                f"the server sent commit {commit} of {self._access.repo} instead of the requested {self.commit}",
                "try again later",
            )

    def _missing_file_error(self, name: str) -> NotFound:
        return NotFound(f"{self._access.repo} holds no {name}", "the repository may be incomplete")


def is_id(name: Any) -> bool:
    """True if a name is a possible ID of a repository."""
    try:
        return isinstance(name, str) and parse_reference(f"hf://{name}") == HubReference(name)
    except HeadscopeError:
        return False


def plain_names(siblings: Iterable[Any]) -> tuple[str, ...]:
    """Keeps the files inside the repository, of those that a description of it names."""
    names = (one.get("rfilename") for one in siblings if isinstance(one, dict))
    return tuple(str(name) for name in names if is_path_inside(name))
