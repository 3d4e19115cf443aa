"""Requests to the Hub: within its limits and in time, of plain names, and asked again after faults that may pass.

What may pass (a server in trouble, a broken connection, too many requests) is tried again a few times with growing
pauses, or after the pause that the server names; one deadline covers everything.
"""

import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

from headscope.core.checkpoints.snapshot import nearest_known
from headscope.core.facts.stored.checkpoint import CONFIG
from headscope.core.facts.stored.location import RequestBudget
from headscope.core.upstream.hub import session, transport_error
from headscope.errors import Gated, HeadscopeError, NetworkError, NotFound

REQUEST_SECONDS = 20.0
DEADLINE_SECONDS = 120.0
LONGEST_PAUSE = 600.0
"""The Hub counts requests in windows of 300 s; a server that asks for a much longer pause is not waited for."""
_PASSING = (408, 429, 500, 502, 503, 504)
_MISSING = 404
_ATTEMPTS = 4
_MOST_REDIRECTS = 20
_DIGITS_OF_REDIRECT = 4
_MOST_DIGITS = 10
_PAUSE = 0.5
_RESOLVE = "/resolve/"
_COMMIT = "X-Repo-Commit"
_TAG = re.compile(r'(W/)?"?(?!\.\.?"?$)[A-Za-z0-9._=+:,;@-]{0,200}"?')
_PATH_PARTS = {_COMMIT: re.compile(r"[0-9a-f]{7,64}"), "ETag": _TAG, "X-Linked-ETag": _TAG}
_HINT = "don't trust this endpoint; check HF_ENDPOINT"
_Answer = TypeVar("_Answer")


@dataclass(slots=True)
class Deadline:
    """Time limit for everything that is read, by the monotonic clock; if it is `patient`, pauses don't count."""

    seconds: float = DEADLINE_SECONDS
    begun: float = field(default_factory=time.monotonic)
    patient: bool = False

    def left(self) -> float:
        """Gives the seconds that remain. Raises NetworkError if none do."""
        remaining = self.begun + self.seconds - time.monotonic()
        if remaining <= 0:
            raise NetworkError(f"the Hub took longer than {self.seconds:g} s", "try again, or set a longer --timeout")
        return remaining

    def pause(self, seconds: float) -> None:
        """Checks that a pause fits into the time that is left. Raises NetworkError if it is too long."""
        # Processes that share a budget wait for each other; that is not the server's slowness.
        if self.patient and seconds <= 2 * LONGEST_PAUSE:
            self.begun += seconds
        elif seconds >= self.left():
            raise NetworkError(
                f"the Hub asks to wait {seconds:.0f} s, longer than the time that is left",
                "try again later, or set a longer --timeout",
            )


@dataclass(frozen=True, slots=True)
class Response:
    """An answer, after the redirects that led to it."""

    last: Any
    redirects: tuple[Any, ...]

    @property
    def every(self) -> tuple[Any, ...]:
        """Redirects and the answer, in order."""
        return *self.redirects, self.last

    @property
    def status(self) -> int:
        """Status code of the answer."""
        return int(self.last.status_code)

    @property
    def headers(self) -> Any:
        """Headers of the answer."""
        return self.last.headers

    @property
    def commit(self) -> str | None:
        """Commit that the Hub names in its answer, or in the redirect that led to it."""
        return next((one.headers[_COMMIT] for one in self.every if _COMMIT in one.headers), None)

    def body(self, limit: int, name: str, deadline: Deadline) -> bytes:
        """Reads the content, of at most `limit` bytes and in time. Raises NetworkError for a longer one."""
        chunks, total = [], 0
        for chunk in self.last.iter_raw():
            total += len(chunk)
            if total > limit:
                raise NetworkError(f"the server sent more than {limit:,} bytes of {name}", _HINT)
            deadline.left()
            chunks.append(chunk)
        return b"".join(chunks)

    def raise_refusal(self) -> None:
        """Raises the error of the Hub's client for a refusal. The text of the server is not read."""
        from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]  # exported lazily

        plain = {name: value for name, value in self.headers.items() if name.lower().startswith("x-")}
        # Rebuilt without a body: the client would read it for its message, however long it is.
        hf_raise_for_status(type(self.last)(self.status, headers=plain, request=self.last.request))


@dataclass(frozen=True, slots=True)
class HubConnection:
    """Settings for the requests of one reading.

    `made` are their addresses, redirects and repetitions among them.
    """

    token: str | None = field(default=None, repr=False)
    deadline: Deadline = field(default_factory=Deadline)
    budget: RequestBudget | None = None
    made: list[str] = field(default_factory=list, compare=False)

    @contextmanager
    def asked(self, url: str, store: str, name: str, headers: dict[str, str] | None = None) -> Iterator[Response]:
        """Opens the answer to a GET of `store`, the place that `url` led to, as a stream; redirects are followed.

        Raises NetworkError if one leads to an address without encryption, or an answer names an invalid commit.
        """
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # exported lazily

        known = self.token if server_of(store) == server_of(url) else False  # the store gets no token
        # Of a compressed answer, a range would be of the compressed bytes, and a small file could be a bomb.
        sent = build_hf_headers(token=known) | (headers or {}) | {"Accept-Encoding": "identity"}
        request = session().build_request("GET", store, headers=sent)
        before: list[Any] = []
        while len(before) <= _MOST_REDIRECTS:
            answer = self._send_request(request, url, name)
            if answer.next_request is None:
                break
            size = answer.headers.get("Content-Length", "")
            if not answer.is_closed and size.isascii() and size.isdigit() and len(size) <= _DIGITS_OF_REDIRECT:
                with suppress(NetworkError):  # read whole, its connection serves the next request too
                    Response(answer, ()).body(int(size), name, self.deadline)
            answer.close()
            before.append(answer)
            request = answer.next_request
        else:
            raise NetworkError(f"the server redirects the request for {name} in a circle", "try again later")
        try:
            yield Response(answer, tuple(before))
        finally:
            answer.close()

    def _send_request(self, request: Any, url: str, name: str) -> Any:
        """Sends one request within the budget and the deadline, and checks the answer."""
        if self.budget is not None:
            self.budget.take(str(request.url), self.deadline)
        self.made.append(str(request.url))
        seconds = min(REQUEST_SECONDS, self.deadline.left())
        request.extensions = {**request.extensions, "timeout": dict.fromkeys(_KINDS_OF_TIMEOUT, seconds)}
        # Redirects are followed by hand, so that each address is counted and checked.
        answer = session().send(request, stream=True, follow_redirects=False)
        try:
            if self.budget is not None:
                self.budget.learn(str(answer.url), answer.status_code, answer.headers)
            if url.startswith("https:") and not str(answer.url).startswith("https:"):
                host = server_of(str(answer.url))[1]
                raise NetworkError(f"the server sent {name} from an address without encryption ({host})", _HINT)
            _refuse_paths(answer)
        except BaseException:
            answer.close()
            raise
        return answer

    def patiently(self, ask: Callable[[], _Answer], name: str) -> _Answer:
        """Calls `ask` again after faults that may pass. Raises NetworkError after a few attempts."""
        from huggingface_hub.errors import HfHubHTTPError

        transport = transport_error()
        for attempt in range(_ATTEMPTS):
            try:
                return ask()
            except HfHubHTTPError:  # an answer, though of the transport's family
                raise
            except (Passing, transport) as err:
                if attempt == _ATTEMPTS - 1:
                    fault = str(err) if isinstance(err, Passing) else type(err).__name__
                    raise NetworkError(f"{name} could not be read from the Hub: {fault}", "try again later") from err
                pause = err.pause if isinstance(err, Passing) else None
                # The factor keeps readers that failed together from coming back together.
                seconds = _PAUSE * 2**attempt * random.uniform(0.8, 1.2) if pause is None else pause
                self.deadline.pause(seconds)
                time.sleep(seconds)
        raise AssertionError("unreachable")


_KINDS_OF_TIMEOUT = ("connect", "read", "write", "pool")


def repository_of(response: Response, url: str) -> str:
    """Reads the ID in the resolver's last address: the Hub redirects the old ID of a repository to its new one."""
    from huggingface_hub import constants

    addresses = [str(one.url) for one in response.every]
    paths = [urlsplit(address).path for address in addresses if server_of(address) == server_of(url)]
    named = [path.partition(_RESOLVE)[0] for path in paths if _RESOLVE in path]
    return named[-1].removeprefix(urlsplit(constants.ENDPOINT).path).lstrip("/") if named else ""


def _is_missing(response: Response, url: str) -> bool:
    """True if the Hub says that there is no such file: a 404 with its code for that, or a direct one without a code."""
    code = response.headers.get("X-Error-Code")
    is_own = server_of(str(response.last.url)) == server_of(url)
    return (
        response.status == _MISSING
        and _RESOLVE in url
        and is_own
        and (code == "EntryNotFound" or (code is None and not response.redirects))
    )


def server_of(url: str) -> tuple[str, str]:
    """Gives the scheme and the host of a URL."""
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


def _refuse_paths(answer: Any) -> None:
    """Raises NetworkError if the Hub's own answer has a header that would make a bad path.

    The store behind the Hub may tag its files as it likes: no path is made of that.
    """
    if _COMMIT not in answer.headers:
        return
    for header, pattern in _PATH_PARTS.items():
        value = answer.headers.get(header)
        if value is not None and not pattern.fullmatch(value):
            raise NetworkError(f"the server says {header}: {value[:80]!r}, which is invalid", _HINT)


class Passing(Exception):
    """A fault that may be gone at the next attempt, and the pause that the server asked for."""

    def __init__(self, what: str, pause: float | None) -> None:
        super().__init__(what)
        self.pause = pause


def raise_fault(response: Response, url: str, name: str) -> None:
    """Raises Passing for an answer that tells of a fault that may pass, with the pause that it asks for.

    Raises EntryNotFoundError of the Hub's client if there is no such file.
    """
    from huggingface_hub.errors import EntryNotFoundError

    if response.status in _PASSING:
        raise Passing(f"the server answered {response.status}", seconds_asked_for(response.headers))
    if _is_missing(response, url):
        raise EntryNotFoundError(f"{name} is not there")


def seconds_asked_for(headers: Any) -> float | None:
    """Reads the seconds in Retry-After, or until the window of RateLimit ends; None if neither says."""
    value = headers.get("Retry-After", "").strip()
    if value.isascii() and value.isdigit() and len(value) < _MOST_DIGITS:
        return float(value)
    window = rate_limit_in(headers)
    return None if window is None else window[1]


def rate_limit_in(headers: Any) -> tuple[int, float] | None:
    """Reads how many requests are left, and for how many seconds, from the Hub's answer; None if that is invalid.

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


@contextmanager
def understood(repo: str) -> Iterator[None]:
    """Turns an answer in another form than expected into an error of the network: the server is at fault.

    Raises NetworkError.
    """
    try:
        yield
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as err:
        raise NetworkError(
            f"the Hub's answer on {repo} cannot be understood ({type(err).__name__})",
            "check that HF_ENDPOINT is a Hub",
        ) from err


@contextmanager
def translated(repo: str, revision: str | None) -> Iterator[None]:
    """Turns the client's exceptions into ours, each with its next step. Raises Gated, NotFound or NetworkError."""
    from huggingface_hub import constants, errors

    page = f"{constants.ENDPOINT}/{repo}"
    try:
        yield
    except HeadscopeError:
        # The narrow errors come first: several of them are subclasses of those below.
        raise
    except errors.GatedRepoError as err:
        raise Gated(
            f"{repo} is gated: you must accept its license", f"accept it at {page}, then run `hf auth login`"
        ) from err
    except errors.RepositoryNotFoundError as err:
        near = nearest_known(repo)
        hint = f"did you mean {near}? For" if near else "check the name; for"
        raise NotFound(
            f"the Hub has no repository {repo}, or it is private", f"{hint} a private one, run `hf auth login`"
        ) from err
    except errors.RevisionNotFoundError as err:
        raise NotFound(f"{repo} has no revision {revision or 'main'}", f"see {page}/tree/main") from err
    except errors.EntryNotFoundError as err:
        raise NotFound(f"{repo} holds no {CONFIG}", "it may not be a Transformers model; see its page") from err
    except errors.HFValidationError as err:
        raise NotFound(f"{repo} is not a valid Hub ID: {err}", "a Hub ID is `name` or `owner/name`") from err
    except errors.HfHubHTTPError as err:
        status = getattr(getattr(err, "response", None), "status_code", None)
        if status in (401, 403):
            raise Gated(f"the Hub refused access to {repo} ({status})", "`hf auth login`, or pass --token") from err
        raise NetworkError(f"the Hub answered {status} for {repo}", "try again later") from err
    except (transport_error(), OSError) as err:
        raise NetworkError(f"{repo} could not be read from the Hub: {type(err).__name__}", "try again later") from err
