"""Checkpoints on the Hub, through the official client: configuration, index and header ranges; never the weights."""

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from headscope.checkpoints.adapter import ADAPTER_CONFIG
from headscope.checkpoints.bytes import ByteSource, LocalBytes
from headscope.checkpoints.config_file import LARGEST_JSON, canonical_text, parse_object
from headscope.checkpoints.gguf import refuse_gguf
from headscope.checkpoints.http_limits import bounded_answers, limited_requests
from headscope.checkpoints.local import CONFIG, Folder
from headscope.checkpoints.ranges import (
    FIRST_BYTES,
    REQUEST_SECONDS,
    Deadline,
    RangeBytes,
    transport_error,
)
from headscope.checkpoints.reference import HubReference
from headscope.checkpoints.sentence import read_sentence_pipeline
from headscope.checkpoints.snapshot import nearest_bundled, read_bundled
from headscope.checkpoints.weights import Storage, read_adapter_weights, read_weights
from headscope.errors import Gated, HeadscopeError, NetworkError, NotFound, Offline, UsageError
from headscope.facts import CheckpointKind, CheckpointManifest

_PROBE_SECONDS = 3.0
_UNAUTHORISED = (401, 403)


@dataclass(frozen=True, slots=True)
class HubAccess:
    """How to reach the Hub."""

    cache_dir: str | None = None
    token: str | None = field(default=None, repr=False)
    offline: bool = False
    subfolder: str | None = None
    variant: str | None = None
    deadline: Deadline = field(default_factory=Deadline)


def read_hub(wanted: HubReference, text: str, access: HubAccess, progress: Callable[[str], None]) -> CheckpointManifest:
    """The manifest of a repository of the Hub.

    Where the Hub is out of reach the cache is read, then a bundled snapshot of a known checkpoint, which a notice says.
    Raises NotFound, Gated, Offline or NetworkError.
    """
    barred = _why_offline(access)
    if barred is not None:
        return _without_network(wanted, text, access, barred)
    try:
        return _with_network(wanted, text, access, progress)
    except NetworkError as err:
        barred = NetworkError(f"the Hub was not reached ({err.message})")
        cached = _cached(wanted, text, access, barred)
        whole = cached if cached is not None and cached.tensors and not cached.gaps else None
        known = whole or _bundled(wanted, text, access, barred)
        if known is None:
            raise
        return known


def _why_offline(access: HubAccess) -> Offline | NetworkError | None:
    """Why no request is to be made, as the error it becomes where nothing else helps; None where the Hub answers."""
    from huggingface_hub import constants

    if access.offline:
        return Offline("offline was asked for")
    if constants.HF_HUB_OFFLINE:
        return Offline("HF_HUB_OFFLINE is set")
    if _answers(constants.ENDPOINT):
        return None
    return NetworkError(f"{_host(constants.ENDPOINT)} cannot be reached")


def _host(endpoint: str) -> str:
    return urlsplit(endpoint).hostname or endpoint


def _answers(endpoint: str) -> bool:
    """Whether the Hub's host takes a connection, or the proxy that stands between.

    The client retries an unreachable host for many seconds, so one short look comes first.
    """
    try:
        parts = urlsplit(_first_hop(endpoint))
        port = parts.port or (443 if parts.scheme == "https" else 80)
        with socket.create_connection((parts.hostname or "", port), timeout=_PROBE_SECONDS):
            return True
    except (OSError, ValueError):  # ValueError: a setting that is no URL
        return False


def _first_hop(endpoint: str) -> str:
    """The URL that a request to the Hub connects to first."""
    parts = urlsplit(endpoint)
    proxy = getproxies().get(parts.scheme) or getproxies().get("all")
    if not proxy or proxy_bypass(parts.hostname or ""):
        return endpoint
    return proxy if "://" in proxy else f"http://{proxy}"


def _without_network(
    wanted: HubReference, text: str, access: HubAccess, barred: Offline | NetworkError
) -> CheckpointManifest:
    """The cache if it holds weights, else a bundled snapshot, else what the cache holds."""
    cached = _cached(wanted, text, access, barred)
    if cached is not None and cached.tensors:
        return cached
    found = _bundled(wanted, text, access, barred) or cached
    if found is None:
        raise _offline_error(wanted, barred)
    return found


def _cached(wanted: HubReference, text: str, access: HubAccess, barred: HeadscopeError) -> CheckpointManifest | None:
    from huggingface_hub import try_to_load_from_cache

    found = (
        try_to_load_from_cache(wanted.repo, _inside(access, name), cache_dir=access.cache_dir, revision=wanted.revision)
        for name in (CONFIG, ADAPTER_CONFIG)
    )
    path = next((item for item in found if isinstance(item, str)), None)
    if path is None:
        return None
    manifest = _manifest(Folder(Path(path).parent), Path(path).name, access.variant)
    notice = f"{barred.message}: read from the local cache"
    return replace(
        manifest,
        reference=text,
        revision=wanted.revision,
        commit=_commit_of(path, access),
        notices=(notice, *manifest.notices),
    )


def cached_folder(wanted: HubReference, revision: str | None, access: HubAccess) -> Path | None:
    """The folder of the Hub's cache that holds the configuration of a checkpoint; None where none does."""
    from huggingface_hub import try_to_load_from_cache

    for name in (CONFIG, ADAPTER_CONFIG):
        path = try_to_load_from_cache(
            wanted.repo, _inside(access, name), cache_dir=access.cache_dir, revision=wanted.revision or revision
        )
        if isinstance(path, str):
            return Path(path).parent
    return None


def _bundled(wanted: HubReference, text: str, access: HubAccess, barred: HeadscopeError) -> CheckpointManifest | None:
    """The bundled snapshot, which is of the main revision and has no subfolders or variants."""
    if wanted.revision is not None or access.subfolder or access.variant:
        return None
    known = read_bundled(wanted.repo, barred.message)
    return None if known is None else replace(known, reference=text)


def _offline_error(wanted: HubReference, barred: Offline | NetworkError) -> HeadscopeError:
    near = nearest_bundled(wanted.repo)
    hint = f"did you mean {near} (bundled)? " if near else ""
    hint += "without the Hub, give a local folder or a snapshot written by `headscope snapshot`"
    return type(barred)(f"{wanted.repo} is not in the local cache, and {barred.message}", hint)


def _inside(access: HubAccess, name: str) -> str:
    return f"{access.subfolder}/{name}" if access.subfolder else name


def _commit_of(path: str, access: HubAccess) -> str | None:
    """The commit in the path of a cached file: `.../snapshots/<commit>/...`."""
    parts = Path(path).parts
    repository = next((at for at, part in enumerate(parts) if part.startswith("models--")), None)
    inside = parts[repository + 1 :] if repository is not None else ()
    return inside[1] if len(inside) > 1 and inside[0] == "snapshots" else None


def _with_network(
    wanted: HubReference, text: str, access: HubAccess, progress: Callable[[str], None]
) -> CheckpointManifest:
    progress(f"reading the configuration of {wanted.repo}")
    with _translated(wanted), limited_requests() as requests, ThreadPoolExecutor(1) as pool:
        listing = pool.submit(
            copy_context().run, _listing, wanted, wanted.revision, access
        )  # while the configuration is on its way
        path = _config_path(wanted, access, listing)
        commit = _commit_of(path, access)
        storage = Repository(wanted, commit, access, listing)
        progress(f"reading the headers of {wanted.repo}")
        manifest = _manifest(storage, Path(path).name, access.variant)
    return replace(manifest, reference=text, revision=wanted.revision, commit=commit, requests=len(requests))


def _listing(wanted: HubReference, revision: str | None, access: HubAccess) -> Any:
    """The Hub's own description of a repository: its commit and its files."""
    from huggingface_hub import HfApi

    seconds = min(REQUEST_SECONDS, access.deadline.left())
    with _understood(wanted.repo), bounded_answers(access.deadline, LARGEST_JSON):
        return HfApi(token=access.token).model_info(wanted.repo, revision=revision, timeout=seconds)


@contextmanager
def _understood(repo: str) -> Iterator[None]:
    """An answer that the client stumbles over, as an error of the network: it is the server that is at fault."""
    from huggingface_hub.errors import HFValidationError

    try:
        yield
    except HFValidationError:
        raise
    except (ValueError, TypeError, AttributeError, KeyError) as err:
        raise NetworkError(
            f"the Hub's answer on {repo} cannot be understood ({type(err).__name__})",
            "see whether HF_ENDPOINT is a Hub",
        ) from err


def _config_path(wanted: HubReference, access: HubAccess, listing: Future[Any]) -> str:
    """The cached config.json, or the adapter_config.json of an adapter, which has no other."""
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return _download(wanted.repo, CONFIG, wanted.revision, access)
    except LocalEntryNotFoundError:
        raise
    except EntryNotFoundError:
        storage = Repository(wanted, None, access, listing)
        names = storage.names()
        if ADAPTER_CONFIG in names:
            return _download(wanted.repo, ADAPTER_CONFIG, wanted.revision, access)
        refuse_gguf(names, storage.open)
        raise


def _manifest(storage: Storage, name: str, variant: str | None) -> CheckpointManifest:
    """The manifest of what `storage` holds, without its own name; `name` is that of its configuration."""
    content = storage.read_text(name)
    config = parse_object(content, name)
    weights = read_adapter_weights(storage) if name == ADAPTER_CONFIG else read_weights(storage, config, variant)
    return CheckpointManifest(
        reference="",
        kind=CheckpointKind.ADAPTER if name == ADAPTER_CONFIG else CheckpointKind.HUB,
        format=weights.format,
        config_text=canonical_text(config),
        tensors=weights.tensors,
        files=weights.files,
        bytes_read=weights.bytes_read + len(content),
        shared=weights.shared,
        notices=weights.notices,
        gaps=weights.gaps,
        sentence=read_sentence_pipeline(storage),
    )


def _download(repo: str, name: str, revision: str | None, access: HubAccess) -> str:
    """A small file through the client's cache; its path."""
    from huggingface_hub import hf_hub_download

    with _understood(repo), bounded_answers(access.deadline, LARGEST_JSON):
        path = hf_hub_download(
            repo,
            name,
            revision=revision,
            subfolder=access.subfolder,
            cache_dir=access.cache_dir,
            token=access.token,
            etag_timeout=min(REQUEST_SECONDS, access.deadline.left()),
        )
    return str(path)


class Repository:
    """A repository at one commit as a storage: small files through the cache, weights by range."""

    def __init__(
        self, wanted: HubReference, commit: str | None, access: HubAccess, listing: Future[Any] | None = None
    ) -> None:
        self._wanted = wanted
        self._commit = commit
        self._revision = commit or wanted.revision
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
            info = _listing(self._wanted, self._revision, self._access)
        prefix = f"{self._access.subfolder}/" if self._access.subfolder else ""
        names = [name for sibling in info.siblings or () if _is_plain(name := sibling.rfilename)]
        return tuple(sorted(name.removeprefix(prefix) for name in names if name.startswith(prefix)))

    def read_text(self, name: str) -> bytes:
        """See `Storage`. Raises NotFound for a file that is not there."""
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        try:
            return Path(_download(self._wanted.repo, name, self._revision, self._access)).read_bytes()
        except LocalEntryNotFoundError:  # the Hub was not reached
            raise
        except EntryNotFoundError as err:
            raise self._lacks(name) from err

    def open(self, name: str, first: int = FIRST_BYTES) -> ByteSource:
        """See `Storage`; a weight file that is in the cache is read there."""
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(
            self._wanted.repo, _inside(self._access, name), cache_dir=self._access.cache_dir, revision=self._revision
        )
        if isinstance(cached, str):
            return LocalBytes(Path(cached), name)
        return self._by_range(name, first)

    def _by_range(self, name: str, first: int) -> RangeBytes:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.errors import EntryNotFoundError

        url = hf_hub_url(self._wanted.repo, name, subfolder=self._access.subfolder, revision=self._revision)
        try:
            return RangeBytes(url, name, self._access.token, self._access.deadline, first)
        except EntryNotFoundError as err:
            raise self._lacks(name) from err

    def _lacks(self, name: str) -> NotFound:
        return NotFound(f"{self._wanted.repo} holds no {name}", "the repository may be incomplete")


def _is_plain(name: Any) -> bool:
    """Whether a listed name is one of a file inside the repository."""
    if not isinstance(name, str) or any(sign in name for sign in "\\:\0"):
        return False
    return not name.startswith("/") and ".." not in name.split("/")


@contextmanager
def reaching(wanted: HubReference) -> Iterator[None]:
    """For readings of a repository beside its manifest: the client's errors as ours, and no answer that makes paths."""
    with _translated(wanted), limited_requests():
        yield


@contextmanager
def _translated(wanted: HubReference) -> Iterator[None]:
    """The client's exceptions as ours, each with its next step."""
    from huggingface_hub import constants, errors

    repo, page = wanted.repo, f"{constants.ENDPOINT}/{wanted.repo}"
    try:
        yield
    except HeadscopeError:
        raise
    except errors.GatedRepoError as err:
        raise Gated(
            f"{repo} is gated: its licence has to be accepted", f"accept it at {page}, then `hf auth login`"
        ) from err
    except errors.RepositoryNotFoundError as err:
        raise NotFound(
            f"the Hub has no repository {repo}, or it is private", "check the name; for a private one `hf auth login`"
        ) from err
    except errors.RevisionNotFoundError as err:
        raise NotFound(
            f"{repo} has no revision {wanted.revision or 'main'}", f"see the branches at {page}/tree/main"
        ) from err
    except errors.LocalEntryNotFoundError as err:
        raise NetworkError(f"the Hub broke off while {repo} was read", "try again, or use --offline") from err
    except errors.EntryNotFoundError as err:
        raise NotFound(f"{repo} holds no {CONFIG}", "it may be no Transformers model; see its page") from err
    except errors.HFValidationError as err:
        raise NotFound(f"{repo} is no possible Hub id: {err}", "a Hub id reads `name` or `owner/name`") from err
    except errors.HfHubHTTPError as err:
        raise _http_error(repo, err) from err
    except (PermissionError, FileNotFoundError, NotADirectoryError, IsADirectoryError, FileExistsError) as err:
        raise UsageError(
            f"the local cache cannot be written: {err.strerror}", "set HF_HOME or --cache-dir to a folder of yours"
        ) from err
    except (transport_error(), OSError) as err:
        raise NetworkError(f"{repo} could not be read from the Hub: {type(err).__name__}", "try again later") from err


def _http_error(repo: str, err: Any) -> HeadscopeError:
    status = getattr(getattr(err, "response", None), "status_code", None)
    if status in _UNAUTHORISED:
        return Gated(f"the Hub refused access to {repo} ({status})", "`hf auth login`, or pass --token")
    return NetworkError(f"the Hub answered {status} for {repo}", "try again later")
