"""Checkpoints on the Hub, through the official client: configuration, index and header ranges; never the weights."""

import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from headscope.checkpoints.bytes import ByteSource, LocalBytes, complete
from headscope.checkpoints.config_file import canonical_text, parse_object
from headscope.checkpoints.local import CONFIG, Folder
from headscope.checkpoints.reference import HubReference
from headscope.checkpoints.snapshot import nearest_bundled, read_bundled
from headscope.checkpoints.weights import read_weights
from headscope.errors import Gated, HeadscopeError, NetworkError, NotFound, Offline, Unsupported
from headscope.facts import CheckpointKind, CheckpointManifest

_PROBE_SECONDS = 3.0
_REQUEST_SECONDS = 20.0
_PARTIAL_CONTENT = 206
_UNAUTHORISED = (401, 403)


@dataclass(frozen=True, slots=True)
class HubAccess:
    """How to reach the Hub."""

    cache_dir: str | None = None
    token: str | None = None
    offline: bool = False
    subfolder: str | None = None


def read_hub(wanted: HubReference, text: str, access: HubAccess, progress: Callable[[str], None]) -> CheckpointManifest:
    """The manifest of a repository of the Hub.

    Where the Hub is out of reach the cache is read, then a bundled snapshot of a known checkpoint, which a notice says.
    Raises NotFound, Gated, Offline or NetworkError.
    """
    reason = _why_offline(access)
    if reason is not None:
        return _without_network(wanted, text, access, reason)
    try:
        return _with_network(wanted, text, access, progress)
    except NetworkError as err:
        known = (
            read_bundled(wanted.repo, f"the Hub was not reached ({err.message})") if wanted.revision is None else None
        )
        if known is None:
            raise
        return replace(known, reference=text)


def _why_offline(access: HubAccess) -> str | None:
    """Why no request is to be made, or None where the Hub answers."""
    from huggingface_hub import constants

    if access.offline:
        return "offline was asked for"
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    return None if _answers(constants.ENDPOINT) else f"{_host(constants.ENDPOINT)} cannot be reached"


def _host(endpoint: str) -> str:
    return urlsplit(endpoint).hostname or endpoint


def _answers(endpoint: str) -> bool:
    """Whether the Hub's host takes a connection; not asked where a proxy stands between.

    The client retries an unreachable host for many seconds, so one short look comes first.
    """
    if getproxies():
        return True
    parts = urlsplit(endpoint)
    port = parts.port or (80 if parts.scheme == "http" else 443)
    try:
        with socket.create_connection((parts.hostname or "", port), timeout=_PROBE_SECONDS):
            return True
    except OSError:
        return False


def _without_network(wanted: HubReference, text: str, access: HubAccess, reason: str) -> CheckpointManifest:
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(
        wanted.repo, _inside(access, CONFIG), cache_dir=access.cache_dir, revision=wanted.revision
    )
    if isinstance(cached, str):
        manifest = _manifest(Folder(Path(cached).parent), text, wanted, _commit_of(cached, access))
        notice = f"{reason}: read from the local cache"
        if manifest.tensors:
            return replace(manifest, notices=(notice,))
    known = read_bundled(wanted.repo, reason) if wanted.revision is None else None
    if known is not None:
        return replace(known, reference=text)
    if isinstance(cached, str):
        return replace(manifest, notices=(notice,))
    raise _offline_error(wanted, reason)


def _offline_error(wanted: HubReference, reason: str) -> HeadscopeError:
    near = nearest_bundled(wanted.repo)
    hint = f"did you mean {near} (bundled)? " if near else ""
    hint += "without the Hub, give a local folder or a snapshot written by `headscope snapshot`"
    kind = NetworkError if "cannot be reached" in reason else Offline
    return kind(f"{wanted.repo} is not in the local cache, and {reason}", hint)


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
    with _translated(wanted):
        path = _download(wanted.repo, CONFIG, wanted.revision, access)
        commit = _commit_of(path, access)
        storage = Repository(wanted, commit, access)
        progress(f"reading the headers of {wanted.repo}")
        return _manifest(storage, text, wanted, commit)


def _manifest(storage: Any, text: str, wanted: HubReference, commit: str | None) -> CheckpointManifest:
    config = storage.read_text(CONFIG)
    weights = read_weights(storage)
    return CheckpointManifest(
        reference=text,
        kind=CheckpointKind.HUB,
        format=weights.format,
        config_text=canonical_text(parse_object(config, CONFIG)),
        tensors=weights.tensors,
        files=weights.files,
        revision=wanted.revision,
        commit=commit,
        bytes_read=weights.bytes_read + len(config),
        shared=weights.shared,
        gaps=weights.gaps,
    )


def _download(repo: str, name: str, revision: str | None, access: HubAccess) -> str:
    """A small file through the client's cache; its path."""
    from huggingface_hub import hf_hub_download

    return str(
        hf_hub_download(
            repo,
            name,
            revision=revision,
            subfolder=access.subfolder,
            cache_dir=access.cache_dir,
            token=access.token,
            etag_timeout=_REQUEST_SECONDS,
        )
    )


class Repository:
    """A repository at one commit as a storage: small files through the cache, weights by range."""

    def __init__(self, wanted: HubReference, commit: str | None, access: HubAccess) -> None:
        self._wanted = wanted
        self._revision = commit or wanted.revision
        self._access = access

    def names(self) -> tuple[str, ...]:
        """The files at the commit, below the subfolder if one was asked for."""
        from huggingface_hub import HfApi

        info = HfApi(token=self._access.token).model_info(
            self._wanted.repo, revision=self._revision, timeout=_REQUEST_SECONDS
        )
        prefix = f"{self._access.subfolder}/" if self._access.subfolder else ""
        names = (sibling.rfilename for sibling in info.siblings or ())
        return tuple(sorted(name.removeprefix(prefix) for name in names if name.startswith(prefix)))

    def read_text(self, name: str) -> bytes:
        """See `Storage`."""
        return Path(_download(self._wanted.repo, name, self._revision, self._access)).read_bytes()

    def open(self, name: str) -> ByteSource:
        """See `Storage`; a weight file that is in the cache is read there."""
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(
            self._wanted.repo, _inside(self._access, name), cache_dir=self._access.cache_dir, revision=self._revision
        )
        if isinstance(cached, str):
            return LocalBytes(Path(cached), name)
        return self._by_range(name)

    def _by_range(self, name: str) -> "RangeBytes":
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.errors import EntryNotFoundError

        url = hf_hub_url(self._wanted.repo, name, subfolder=self._access.subfolder, revision=self._revision)
        try:
            metadata = get_hf_file_metadata(url, token=self._access.token, timeout=_REQUEST_SECONDS)
        except EntryNotFoundError as err:
            raise NotFound(f"{self._wanted.repo} holds no {name}", "the repository may be incomplete") from err
        if metadata.size is None:
            raise Unsupported(f"the Hub does not say the size of {name}", "fetch it and give the folder")
        return RangeBytes(url, name, metadata.size, self._access.token)


class RangeBytes:
    """A file behind a URL, read by HTTP ranges."""

    def __init__(self, url: str, name: str, size: int, token: str | None) -> None:
        self.name = name
        self.size = size
        self.bytes_read = 0
        self._url = url
        self._token = token

    def read_at(self, offset: int, length: int) -> bytes:
        """See `ByteSource`. Raises NetworkError where the server does not answer with just that range."""
        from huggingface_hub.utils import (  # type: ignore[attr-defined]  # exported lazily
            build_hf_headers,
            get_session,
        )

        if length == 0:
            return b""
        wanted = f"bytes={offset}-{offset + length - 1}"
        headers = build_hf_headers(token=self._token) | {"Range": wanted, "Accept-Encoding": "identity"}
        request = get_session().stream(
            "GET", self._url, headers=headers, follow_redirects=True, timeout=_REQUEST_SECONDS
        )
        with request as response:
            if response.status_code != _PARTIAL_CONTENT:
                raise NetworkError(
                    f"the server answered {response.status_code} to a request for a part of {self.name}",
                    "weights are never fetched whole; fetch the checkpoint with `hf download` and give the folder",
                )
            data = b"".join(_bounded(response.iter_bytes(), length, self.name))
        self.bytes_read += len(data)
        return complete(data, length, self.name)


def _bounded(chunks: Iterator[bytes], length: int, name: str) -> Iterator[bytes]:
    """The chunks of an answer, as long as they are no more than was asked for."""
    total = 0
    for chunk in chunks:
        total += len(chunk)
        if total > length:
            raise NetworkError(f"the server sent more of {name} than was asked for", "try again later")
        yield chunk


@contextmanager
def _translated(wanted: HubReference) -> Iterator[None]:
    """The client's exceptions as ours, each with its next step."""
    from huggingface_hub import errors

    repo, page = wanted.repo, f"https://huggingface.co/{wanted.repo}"
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
        raise NotFound(f"{repo} has no revision {wanted.revision}", f"see the branches at {page}/tree/main") from err
    except errors.LocalEntryNotFoundError as err:
        raise NetworkError(f"the Hub broke off while {repo} was read", "try again, or use --offline") from err
    except errors.EntryNotFoundError as err:
        raise NotFound(f"{repo} holds no {CONFIG}", "it may be no Transformers model; see its page") from err
    except errors.HFValidationError as err:
        raise NotFound(f"{repo} is no possible Hub id: {err}", "a Hub id reads `name` or `owner/name`") from err
    except errors.HfHubHTTPError as err:
        raise _http_error(repo, err) from err
    except (_transport_error(), OSError) as err:
        raise NetworkError(f"{repo} could not be read from the Hub: {type(err).__name__}", "try again later") from err


def _transport_error() -> type[Exception]:
    """The base of the errors of the client's HTTP library, whichever that is (httpx or its successor)."""
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]  # exported lazily

    library = sys.modules[type(get_session()).__module__.partition(".")[0]]
    found: type[Exception] = library.HTTPError
    return found


def _http_error(repo: str, err: Any) -> HeadscopeError:
    status = getattr(getattr(err, "response", None), "status_code", None)
    if status in _UNAUTHORISED:
        return Gated(f"the Hub refused access to {repo} ({status})", "`hf auth login`, or pass --token")
    return NetworkError(f"the Hub answered {status} for {repo}", "try again later")
