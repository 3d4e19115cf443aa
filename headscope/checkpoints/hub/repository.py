"""One repository of the Hub as a storage of files, through the official client."""

from concurrent.futures import Future
from pathlib import Path
from typing import Any

from headscope.checkpoints.adapter import ADAPTER_CONFIG
from headscope.checkpoints.config_file import LARGEST_JSON
from headscope.checkpoints.foreign.adapter_hub import refuse_adapter_hub
from headscope.checkpoints.formats.bytes import FIRST_BYTES, ByteSource, LocalBytes
from headscope.checkpoints.hub.access import HubAccess
from headscope.checkpoints.hub.errors import understood
from headscope.checkpoints.hub.http_limits import bounded_answers
from headscope.checkpoints.hub.ranges import REQUEST_SECONDS, RangeBytes
from headscope.checkpoints.manifest import CONFIG
from headscope.checkpoints.states.place import Place
from headscope.checkpoints.unusual import Surroundings, without_config
from headscope.errors import NotFound, WithoutConfig
from headscope.upstream.hub import cached_file


def list_files(access: HubAccess, revision: str | None) -> Any:
    """The Hub's own description of a repository: its commit and its files."""
    from huggingface_hub import HfApi

    seconds = min(REQUEST_SECONDS, access.deadline.left())
    with understood(access.repo), bounded_answers(access.deadline, LARGEST_JSON):
        return HfApi(token=access.location.hub.token).model_info(access.repo, revision=revision, timeout=seconds)


def config_path(access: HubAccess, listing: Future[Any]) -> str:
    """The cached config.json, or the adapter_config.json of an adapter, which has no other."""
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return _download(access, CONFIG, access.revision)
    except LocalEntryNotFoundError:
        raise
    except EntryNotFoundError:
        storage = Repository(access, None, listing)
        names = storage.names()
        if ADAPTER_CONFIG in names:
            refuse_adapter_hub(names, storage, access.repo)
            return _download(access, ADAPTER_CONFIG, access.revision)
        found = without_config(surroundings(access, storage))
        if found.state is None and not isinstance(found, WithoutConfig):
            raise
        raise found from None


def surroundings(access: HubAccess, storage: "Repository") -> Surroundings:
    """A repository as a place whose state is looked for."""
    place = Place(access.repo, storage.names(), storage.open, storage.read_text)
    return Surroundings(storage, place, access.repo, repo=access.repo)


def _download(access: HubAccess, name: str, revision: str | None) -> str:
    """A small file through the client's cache; its path."""
    from huggingface_hub import hf_hub_download

    with understood(access.repo), bounded_answers(access.deadline, LARGEST_JSON):
        path = hf_hub_download(
            access.repo,
            name,
            revision=revision,
            subfolder=access.location.subfolder,
            cache_dir=access.location.hub.cache_dir,
            token=access.location.hub.token,
            etag_timeout=min(REQUEST_SECONDS, access.deadline.left()),
        )
    return str(path)


class Repository:
    """A repository at one commit as a storage: small files through the cache, weights by range."""

    def __init__(self, access: HubAccess, commit: str | None, listing: Future[Any] | None = None) -> None:
        self._commit = commit
        self._revision = commit or access.revision
        self._listing = listing
        self._access = access
        self._names: tuple[str, ...] | None = None

    def names(self) -> tuple[str, ...]:
        """The files at the commit, below the subfolder if one was asked for."""
        if self._names is None:
            self._names = self._listed()
        return self._names

    def _listed(self) -> tuple[str, ...]:
        info = self._listing.result() if self._listing is not None else None
        if info is None or (self._commit is not None and info.sha != self._commit):  # it moved on meanwhile
            info = list_files(self._access, self._revision)
        prefix = f"{self._access.location.subfolder}/" if self._access.location.subfolder else ""
        names = [name for sibling in info.siblings or () if _is_plain(name := sibling.rfilename)]
        return tuple(sorted(name.removeprefix(prefix) for name in names if name.startswith(prefix)))

    def read_text(self, name: str) -> bytes:
        """See `Storage`. Raises NotFound for a file that is not there."""
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        try:
            return Path(_download(self._access, name, self._revision)).read_bytes()
        except LocalEntryNotFoundError:  # the Hub was not reached
            raise
        except EntryNotFoundError as err:
            raise self._lacks(name) from err

    def open(self, name: str, first: int = FIRST_BYTES) -> ByteSource:
        """See `Storage`; a weight file that is in the cache is read there."""
        access = self._access
        cached = cached_file(access.repo, access.inside(name), self._revision, access.location.hub.cache_dir)
        if cached is not None:
            return LocalBytes(cached, name)
        return self._by_range(name, first)

    def _by_range(self, name: str, first: int) -> RangeBytes:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.errors import EntryNotFoundError

        url = hf_hub_url(self._access.repo, name, subfolder=self._access.location.subfolder, revision=self._revision)
        try:
            return RangeBytes(url, name, self._access.location.hub.token, self._access.deadline, first)
        except EntryNotFoundError as err:
            raise self._lacks(name) from err

    def _lacks(self, name: str) -> NotFound:
        return NotFound(f"{self._access.repo} holds no {name}", "the repository may be incomplete")


def _is_plain(name: Any) -> bool:
    """Whether a listed name is one of a file inside the repository."""
    if not isinstance(name, str) or any(sign in name for sign in "\\:\0"):
        return False
    return not name.startswith("/") and ".." not in name.split("/")
