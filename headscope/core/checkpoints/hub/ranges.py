"""Parts of a file on the Hub: one request gives its size and its beginning, each further part is one more."""

from dataclasses import dataclass
from typing import Any

from headscope.core.checkpoints.formats.bytes import FIRST_BYTES
from headscope.core.checkpoints.hub.requests import HubConnection, Passing, raise_fault, repository_of
from headscope.errors import Malformed, NetworkError

_PARTIAL_CONTENT, _UNSATISFIABLE = 206, 416
_REFUSED = (401, 403, 404, 410)


@dataclass(frozen=True, slots=True)
class Beginning:
    """First bytes of a file behind a URL, its size, the commit that the server names, and the address of its store."""

    data: bytes
    size: int
    commit: str | None
    store: str


class RangeBytes:
    """A file behind a URL, read by HTTP ranges.

    The first request brings its beginning, which is always read. With the `beginning` of an earlier reading there is no
    first request.
    """

    def __init__(
        self,
        url: str,
        name: str,
        connection: HubConnection,
        first: int = FIRST_BYTES,
        *,
        beginning: Beginning | None = None,
    ) -> None:
        self.name = name
        self.bytes_read = 0
        self._url = url
        self._store = url if beginning is None else beginning.store
        self._connection = connection
        self._commit: str | None = None
        if beginning is None:
            start, self.size = self._fetch_range(0, first, None)
            beginning = Beginning(start, self.size, self._commit, self._store)
        self.size = beginning.size
        self.beginning = beginning

    def read_at(self, offset: int, length: int) -> bytes:
        """See `ByteSource`. Raises NetworkError where the server does not answer with just that range."""
        have = self.beginning.data[offset : offset + length]
        if len(have) == length:
            return have
        rest, _ = self._fetch_range(offset + len(have), length - len(have), self.size)
        return have + rest

    def _fetch_range(self, offset: int, length: int, size: int | None) -> tuple[bytes, int]:
        """Fetches `length` bytes, or fewer if a file of unknown size ends first; returns its size too."""
        data, size = self._connection.patiently(lambda: self._request_range(offset, length, size), self.name)
        self.bytes_read += len(data)
        return data, size

    def _request_range(self, offset: int, length: int, size: int | None) -> tuple[bytes, int]:
        wanted = {"Range": f"bytes={offset}-{offset + length - 1}"}
        with self._connection.asked(self._url, self._store, self.name, wanted) as response:
            if response.status in _REFUSED and self._store != self._url:  # an address that was good for a while only
                self._store = self._url
                raise Passing(f"the server answered {response.status}", 0.0)
            raise_fault(response, self._url, self.name)
            if response.status == _UNSATISFIABLE and offset == 0:
                raise Malformed(f"{self.name} is empty", "upload the file again")
            if "X-Error-Code" in response.headers:  # the Hub's own word, not that of the store behind it
                response.raise_refusal()
            if response.status != _PARTIAL_CONTENT:
                raise NetworkError(
                    f"the server answered {response.status} to a request for a part of {self.name}",
                    "weights are never fetched whole; download the checkpoint with `hf download` and pass the folder",
                )
            begin, end, whole = _part_of(response.headers, self.name)
            expected = min(length, whole - offset)
            # Another size means that the file was replaced between two requests.
            if (begin, end - begin + 1) != (offset, expected) or size not in (None, whole):
                raise NetworkError(f"the server sent a different part of {self.name} than requested", "try again later")
            # The next part goes straight to the store behind the redirect: one request instead of two.
            self._store = str(response.last.url)
            self._commit = response.commit or self._commit
            data = response.body(expected, self.name, self._connection.deadline)
        if len(data) != expected:
            raise Passing("the server closed the connection", None)
        return data, whole


def _part_of(headers: Any, name: str) -> tuple[int, int, int]:
    """Reads the first byte, the last byte and the size from Content-Range, for a part that is sent as it is stored."""
    try:
        unit, _, rest = headers.get("Content-Range", "").partition(" ")
        bounds, _, whole = rest.partition("/")
        begin, _, end = bounds.partition("-")
        found = int(begin), int(end), int(whole)
    except ValueError:
        found, unit = (0, -1, 0), ""
    if (
        unit != "bytes"
        or not 0 <= found[0] <= found[1] < found[2]
        # A range of a compressed answer would be of the compressed bytes.
        or headers.get("Content-Encoding", "identity") != "identity"
    ):
        raise NetworkError(f"the server sent a different part of {name} than requested", "try again later")
    return found


@dataclass(frozen=True, slots=True)
class WholeFile:
    """Content of a file, the commit that its server names, if it does, and the ID under which the Hub keeps it.

    `next` is the address of the page that follows, for a listing.
    """

    content: bytes
    commit: str | None
    repo: str
    next: str | None = None


def read_whole(connection: HubConnection, url: str, name: str, limit: int, *, store: str = "") -> WholeFile:
    """Reads the content behind a URL (or `store`, a further page of it), of at most `limit` bytes.

    Raises EntryNotFoundError of the Hub's client if there is none, NetworkError if it cannot be read.
    """
    return connection.patiently(lambda: _request_whole(connection, url, name, limit, store or url), name)


def _request_whole(connection: HubConnection, url: str, name: str, limit: int, store: str) -> WholeFile:
    with connection.asked(url, store, name) as response:
        raise_fault(response, url, name)
        if not response.last.is_success:
            response.raise_refusal()
            raise NetworkError(f"the server answered {response.status} for {name}", "try again later")
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise NetworkError(
                f"the server sent {name} in an encoding that headscope didn't request", "try again later"
            )
        size = response.headers.get("Content-Length", "")
        # Refused before the first byte; `body` counts for servers that don't send their length.
        if size.isascii() and size.isdigit() and int(size[:20]) > limit:
            raise NetworkError(
                f"the server wants to send {int(size[:20]):,} bytes of {name}, over the limit of {limit:,}",
                "don't trust this endpoint; check HF_ENDPOINT",
            )
        content = response.body(limit, name, connection.deadline)
        following = response.last.links.get("next", {}).get("url")
        return WholeFile(content, response.commit, repository_of(response, url), following)
