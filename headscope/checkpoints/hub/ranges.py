"""Parts of a file on the Hub: one request tells its size and brings its beginning, and each further part is one more.

What may pass (a server in trouble, a broken connection, too many requests) is tried again a few times with growing
pauses, or after the pause that the server names; one deadline covers everything.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

from headscope.checkpoints.formats.bytes import FIRST_BYTES
from headscope.errors import Malformed, NetworkError
from headscope.upstream.hub import session, transport_error

REQUEST_SECONDS = 20.0
DEADLINE_SECONDS = 120.0
LONGEST_PAUSE = 600.0
"""The Hub counts requests in windows of 300 s; a server that asks for a much longer pause is not waited for."""
_PARTIAL_CONTENT, _UNSATISFIABLE = 206, 416
_PASSING = (408, 429, 500, 502, 503, 504)
_REFUSED = (401, 403, 404, 410)
_MISSING = 404
_ATTEMPTS = 4
_MOST_DIGITS = 10
_PAUSE = 0.5
_RESOLVE = "/resolve/"
_COMMIT = "X-Repo-Commit"
Answer = TypeVar("Answer")


@dataclass(slots=True)
class Deadline:
    """Until when everything has to be read, by the monotonic clock; for one that is `patient`, pauses don't count."""

    seconds: float = DEADLINE_SECONDS
    begun: float = field(default_factory=time.monotonic)
    patient: bool = False

    def left(self) -> float:
        """Seconds that remain. Raises NetworkError where none do."""
        remaining = self.begun + self.seconds - time.monotonic()
        if remaining <= 0:
            raise NetworkError(f"the Hub took longer than {self.seconds:g} s", "try again, or set a longer --timeout")
        return remaining

    def pause(self, seconds: float) -> None:
        """Sees to it that the Hub may be waited for so long. Raises NetworkError where that is too long."""
        if self.patient and seconds <= 2 * LONGEST_PAUSE:
            self.begun += seconds
        elif seconds >= self.left():
            raise NetworkError(
                f"the Hub asks to wait {seconds:.0f} s, longer than the time that is left",
                "try again later, or set a longer --timeout",
            )


@dataclass(frozen=True, slots=True)
class Beginning:
    """The first bytes of a file behind a URL, its size, the commit that the server names, and where it really lies."""

    data: bytes
    size: int
    commit: str | None
    store: str


class RangeBytes:
    """A file behind a URL, read by HTTP ranges. Its beginning, which is always read, comes with the first request.

    With the `beginning` of an earlier reading there is no first request.
    """

    def __init__(
        self,
        url: str,
        name: str,
        token: str | None,
        deadline: Deadline,
        first: int = FIRST_BYTES,
        *,
        beginning: Beginning | None = None,
    ) -> None:
        self.name = name
        self.bytes_read = 0
        self._url = url
        self._store = url if beginning is None else beginning.store
        self._token = token
        self._deadline = deadline
        self._commit: str | None = None
        if beginning is None:
            start, self.size = self._fetch(0, first, None)
            beginning = Beginning(start, self.size, self._commit, self._store)
        self.size = beginning.size
        self.beginning = beginning

    def read_at(self, offset: int, length: int) -> bytes:
        """See `ByteSource`. Raises NetworkError where the server does not answer with just that range."""
        have = self.beginning.data[offset : offset + length]
        if len(have) == length:
            return have
        rest, _ = self._fetch(offset + len(have), length - len(have), self.size)
        return have + rest

    def _fetch(self, offset: int, length: int, size: int | None) -> tuple[bytes, int]:
        """That many bytes from there, or fewer if the file ends first and its size isn't known yet; and its size."""
        data, size = patiently(lambda: self._ask(offset, length, size), self._deadline, self.name)
        self.bytes_read += len(data)
        return data, size

    def _ask(self, offset: int, length: int, size: int | None) -> tuple[bytes, int]:
        from huggingface_hub.errors import EntryNotFoundError
        from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]  # exported lazily

        wanted = {"Range": f"bytes={offset}-{offset + length - 1}"}
        with asked(self._url, self._store, self.name, self._token, self._deadline, headers=wanted) as response:
            status = response.status_code
            if status in _REFUSED and self._store != self._url:  # an address that was good for a while only
                self._store = self._url
                raise Passing(f"the server answered {status}", 0.0)
            pause = pause_asked_for(response)
            if pause is not None:
                raise pause
            if status == _UNSATISFIABLE and offset == 0:
                raise Malformed(f"{self.name} is empty", "download the file again")
            if is_missing(response, self._url):
                raise EntryNotFoundError(f"{self.name} is not there")
            if "X-Error-Code" in response.headers:  # the Hub's own word, not that of the store behind it
                response.read()
                hf_raise_for_status(response)
            if status != _PARTIAL_CONTENT:
                raise NetworkError(
                    f"the server answered {status} to a request for a part of {self.name}",
                    "weights are never fetched whole; download the checkpoint with `hf download` and pass the folder",
                )
            begin, end, whole = _part_of(response.headers, self.name)
            expected = min(length, whole - offset)
            if (begin, end - begin + 1) != (offset, expected) or size not in (None, whole):
                raise NetworkError(f"the server sent a different part of {self.name} than requested", "try again later")
            self._store = str(response.url)
            self._commit = commit_of(response) or self._commit
            data = b"".join(_bounded(response.iter_raw(), expected, self.name, self._deadline))
        if len(data) != expected:
            raise Passing("the server closed the connection", None)
        return data, whole


@contextmanager
def asked(
    url: str, store: str, name: str, token: str | None, deadline: Deadline, *, headers: dict[str, str] | None = None
) -> Iterator[Any]:
    """The answer to a GET of `store`, the place that `url` led to, as a stream; redirects are followed.

    Raises NetworkError where one leads to an address without encryption.
    """
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # exported lazily

    known = token if _origin(store) == _origin(url) else False  # the store gets no token
    # `identity`: of a compressed answer, a range would be of the compressed bytes, and a small file could be a bomb.
    sent = build_hf_headers(token=known) | (headers or {}) | {"Accept-Encoding": "identity"}
    seconds = min(REQUEST_SECONDS, deadline.left())
    with session().stream("GET", store, headers=sent, follow_redirects=True, timeout=seconds) as response:
        for answer in (*response.history, response):
            _refuse_downgrade(url, str(answer.url), name)
        yield response


def commit_of(response: Any) -> str | None:
    """The commit that the Hub names in its answer, or in the redirect that led to it."""
    return next((one.headers[_COMMIT] for one in (*response.history, response) if _COMMIT in one.headers), None)


def repository_of(response: Any, url: str) -> str:
    """The id that the resolver's last address names: the Hub redirects the old id of a repository to its new one."""
    from huggingface_hub import constants

    addresses = [str(one.url) for one in (*response.history, response)]
    paths = [urlsplit(address).path for address in addresses if _origin(address) == _origin(url)]
    named = [path.partition(_RESOLVE)[0] for path in paths if _RESOLVE in path]
    return named[-1].removeprefix(urlsplit(constants.ENDPOINT).path).lstrip("/") if named else ""


def is_missing(response: Any, url: str) -> bool:
    """Whether the Hub says that there is no such file: a 404 with its code for that, or a direct one without a code."""
    code = response.headers.get("X-Error-Code")
    is_own = _origin(str(response.url)) == _origin(url)
    return (
        response.status_code == _MISSING
        and is_own
        and (code == "EntryNotFound" or (code is None and not response.history))
    )


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


def _refuse_downgrade(asked: str, answered: str, name: str) -> None:
    """Raises NetworkError where a redirect has led from an encrypted address to one that is not."""
    if asked.startswith("https:") and not answered.startswith("https:"):
        raise NetworkError(
            f"the server sent {name} from an address without encryption ({_origin(answered)[1]})",
            "don't trust this endpoint; check HF_ENDPOINT",
        )


class Passing(Exception):
    """A fault that may be gone at the next attempt, and the pause that the server asked for."""

    def __init__(self, what: str, pause: float | None) -> None:
        super().__init__(what)
        self.pause = pause


def patiently(ask: Callable[[], Answer], deadline: Deadline, name: str) -> Answer:
    """The answer, asked for again after faults that may pass. Raises NetworkError after a few attempts."""
    from huggingface_hub.errors import HfHubHTTPError

    transport = transport_error()
    for attempt in range(_ATTEMPTS):
        try:
            return ask()
        except (Passing, transport, HfHubHTTPError) as err:
            fault = err if isinstance(err, Passing) else pause_asked_for(getattr(err, "response", None))
            if isinstance(err, HfHubHTTPError) and fault is None:  # an answer, though of the transport's family
                raise
            if attempt == _ATTEMPTS - 1:
                raise NetworkError(
                    f"{name} could not be read from the Hub: {_sentence(fault or err)}", "try again later"
                ) from err
            pause = fault.pause if fault is not None else None
            # The factor keeps readers that failed together from coming back together.
            _wait(_PAUSE * 2**attempt * random.uniform(0.8, 1.2) if pause is None else pause, deadline)
    raise AssertionError("unreachable")


def _sentence(err: Exception) -> str:
    return str(err) if isinstance(err, Passing) else type(err).__name__


def _wait(seconds: float, deadline: Deadline) -> None:
    deadline.pause(seconds)
    time.sleep(seconds)


def pause_asked_for(response: Any) -> Passing | None:
    """The fault that an answer tells of, where it may pass, and the pause that it asks for; None for other answers."""
    if response is None or response.status_code not in _PASSING:
        return None
    return Passing(f"the server answered {response.status_code}", seconds_asked_for(response.headers))


def seconds_asked_for(headers: Any) -> float | None:
    """Seconds in Retry-After, or until the window of RateLimit ends; None where neither says."""
    value = headers.get("Retry-After", "").strip()
    if value.isascii() and value.isdigit() and len(value) < _MOST_DIGITS:
        return float(value)
    window = rate_limit_in(headers)
    return None if window is None else window[1]


def rate_limit_in(headers: Any) -> tuple[int, float] | None:
    """Requests that are left, and for how many seconds, as the Hub says in its answers; None where that has no sense.

    `RateLimit: "resolvers";r=2999;t=172` are 2,999 requests in the next 172 seconds.
    """
    from huggingface_hub.utils import parse_ratelimit_headers  # type: ignore[attr-defined]  # exported lazily

    try:
        found = parse_ratelimit_headers(headers)
    except ValueError:  # thousands of digits
        return None
    if found is None or found.reset_in_seconds >= 10**_MOST_DIGITS:
        return None
    return found.remaining, float(found.reset_in_seconds)


def _part_of(headers: Any, name: str) -> tuple[int, int, int]:
    """First byte, last byte and size in Content-Range, of a part that is sent as it is stored."""
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
        or headers.get("Content-Encoding", "identity") != "identity"
    ):
        raise NetworkError(f"the server sent a different part of {name} than requested", "try again later")
    return found


def _bounded(chunks: Iterator[bytes], length: int, name: str, deadline: Deadline) -> Iterator[bytes]:
    """The chunks of an answer, as long as they are no more than requested and arrive in time."""
    total = 0
    for chunk in chunks:
        total += len(chunk)
        if total > length:
            raise NetworkError(f"the server sent more of {name} than requested", "try again later")
        deadline.left()
        yield chunk
