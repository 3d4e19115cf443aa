"""Exchange with a server: bounded in time, in bytes and in attempts, and within the server's origin."""

from __future__ import annotations

import json
import random
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, NoReturn, TypeVar
from urllib.parse import urljoin

from headscope.core.upstream.hub import http_library
from headscope.errors import Malformed, NetworkError, UsageError
from headscope.shared.serving.asking.address import ServerAddress, one_line, server_origin

MOST_REPLY_BYTES = 64 * 2**20
"""An answer to 16 texts with 40,000 named classes each has about half of this."""
CONNECT_SECONDS = 10.0
_PASSING = (429, 502, 503, 504)
_MOST_REDIRECTS = 5
_REDIRECTS, _THAT_KEEP_THE_METHOD = (301, 302, 303, 307, 308), (307, 308)
_PAUSE, _LONGEST_PAUSE = 0.5, 8.0
_UNZIPPED = 32 + zlib.MAX_WBITS
_PATIENCE = "try again, or allow more time"
_Result = TypeVar("_Result")
TOKEN_HINT = "pass a token that the server accepts: HEADSCOPE_SERVER_TOKEN or --server-token"
_WRONG_SERVER = "check that the URL is that of an inference server"


@dataclass(frozen=True, slots=True)
class ServerReply:
    """Answer of a server to one request. `payload` is the JSON, None for an answer that is not JSON."""

    status: int
    payload: Any
    is_json: bool
    says: str
    where: str

    def json(self) -> Any:
        """Gives the JSON of a request that succeeded. Raises the error that the status or the content amounts to."""
        if self.status in (401, 403):
            raise NetworkError(f"{self.where} refuses access ({self.status})", TOKEN_HINT)
        if not 200 <= self.status < 300:
            told = f": {self.says}" if self.says else ""
            raise NetworkError(f"{self.where} answered {self.status}{told}", "check the server's log, or its settings")
        if not self.is_json:
            raise Malformed(f"{self.where} answered {self.says}, but JSON was expected", _WRONG_SERVER)
        return self.payload


@dataclass(slots=True)
class Exchange:
    """Requests of one call to a server; they share a deadline. Use it in a `with` statement."""

    server: ServerAddress
    ends: float = field(init=False)
    _client: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.ends = time.monotonic() + self.server.timeout
        self._client = http_library().Client(follow_redirects=False, verify=self._read_certificates())

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(Exception):  # a request that was given up may still use it
            self._client.close()

    def _read_certificates(self) -> ssl.SSLContext | bool:
        """Gives the certificates to trust. Raises UsageError for a file that holds none."""
        if self.server.ca is None:
            return True
        try:
            return ssl.create_default_context(cafile=self.server.ca)
        except OSError as err:  # ssl.SSLError is one
            found = f"{self.server.ca} holds no certificates that can be read ({type(err).__name__})"
            raise UsageError(found, "give a file in PEM, such as the server's certificate") from err

    def left(self) -> float:
        """Gives the seconds that remain. Raises NetworkError where none do."""
        remaining = self.ends - time.monotonic()
        if remaining <= 0:
            raise NetworkError(f"{self.server.shown} took longer than {self.server.timeout:g} s", _PATIENCE)
        return remaining

    def get(self, url: str, retries: int | None = None, seconds: float | None = None) -> ServerReply:
        """Sends a GET and gives the answer, whatever its status."""
        return self._request_with_retries("GET", url, None, retries, seconds)

    def post(self, url: str, body: Any) -> ServerReply:
        """Sends a POST of JSON and gives the answer, whatever its status."""
        return self._request_with_retries("POST", url, body, None, None)

    def _request_with_retries(
        self, method: str, url: str, body: Any, retries: int | None, seconds: float | None
    ) -> ServerReply:
        """Sends a request, again after faults that may pass, and gives the answer."""
        attempts = 1 + (self.server.retries if retries is None else retries)
        errors = http_library()
        for attempt in range(attempts):
            is_last = attempt == attempts - 1
            pause: float | None = None
            try:
                limit = self.left() if seconds is None else min(seconds, self.left())
                reply, headers = _call_within(limit, partial(self._follow_redirects, method, url, body, limit))
                if reply.status not in _PASSING or is_last:
                    return reply
                pause = _seconds_asked_for(headers)
            except (TimeoutError, errors.TimeoutException) as err:
                self.left()
                raise NetworkError(f"{self._describe_request(method, url)}: no answer in time", _PATIENCE) from err
            except errors.HTTPError as err:
                distrust = _describe_distrust(err)
                if distrust:
                    hint = "pass the server's certificate, or that of its authority, with --ca FILE"
                    raise NetworkError(f"{self._describe_request(method, url)}: {distrust}", hint) from None
                if is_last:
                    raise NetworkError(
                        f"{self._describe_request(method, url)}: the connection failed ({type(err).__name__})",
                        "check that the server runs and that the URL is right",
                    ) from None  # its text and its request may hold the token
            except (errors.InvalidURL, ValueError, UnicodeError) as err:
                raise NetworkError(
                    f"{self._describe_request(method, url)}: {type(err).__name__}", _WRONG_SERVER
                ) from None
            self._wait_before_retry(pause, attempt)
        raise AssertionError("unreachable")

    def _wait_before_retry(self, asked: float | None, attempt: int) -> None:
        own = min(_PAUSE * 2**attempt, _LONGEST_PAUSE) * random.uniform(0.8, 1.2)
        seconds = own if asked is None else asked
        if seconds >= self.left():
            raise NetworkError(
                f"{self.server.shown} is busy; waiting {seconds:.0f} s would pass the time limit", _PATIENCE
            )
        time.sleep(seconds)

    def _describe_request(self, method: str, url: str) -> str:
        return f"{method} {one_line(url.partition('?')[0], self.server.token)}"

    def _follow_redirects(
        self, method: str, url: str, body: Any, seconds: float
    ) -> tuple[ServerReply, Mapping[str, str]]:
        """Gives the answer after redirects, which may not leave the origin: texts and the token are for one server."""
        asked = url
        for _ in range(_MOST_REDIRECTS + 1):
            reply, headers = self._send_request(method, url, body, seconds)
            if reply.status not in _REDIRECTS or "location" not in headers:
                return reply, headers
            url = self._check_redirect(method, asked, url, headers["location"], reply.status)
        raise NetworkError(
            f"{self._describe_request(method, asked)} redirects more than {_MOST_REDIRECTS} times", _WRONG_SERVER
        )

    def _check_redirect(self, method: str, asked: str, url: str, location: str, status: int) -> str:
        target = urljoin(url, location)
        where = one_line(target.partition("?")[0], self.server.token)
        try:
            stays = server_origin(target) == server_origin(self.server.url)
        except ValueError:
            stays = False
        if not stays:
            raise NetworkError(
                f"{self._describe_request(method, asked)} redirects to another server, {where}",
                "if you trust it, pass its URL",
            )
        if method != "GET" and status not in _THAT_KEEP_THE_METHOD:
            raise NetworkError(
                f"{self._describe_request(method, asked)} redirects to {where}", "pass the URL it redirects to"
            )
        return target

    def _send_request(self, method: str, url: str, body: Any, seconds: float) -> tuple[ServerReply, Mapping[str, str]]:
        library = http_library()
        # Without compression, the limit on bytes is one on memory.
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if self.server.token is not None:
            headers["Authorization"] = f"Bearer {self.server.token}"
        content = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            content = json.dumps(body, allow_nan=False).encode()  # ASCII: lone surrogates stay escapes
        limits = library.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS))
        with self._client.stream(method, url, headers=headers, content=content, timeout=limits) as answer:
            told = dict(answer.headers)
            return self._parse_reply(answer.status_code, self._read_body(answer, told), told, method, url), told

    def _read_body(self, answer: Any, headers: Mapping[str, str]) -> bytes:
        """Reads the bytes of an answer, unzipped where the server zipped them anyway. Raises Malformed for too many."""
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("identity", "", "gzip", "x-gzip", "deflate"):
            raise Malformed(
                f"{self.server.shown} answered in the encoding {one_line(encoding)!r}", "turn it off in the server"
            )
        unzip = zlib.decompressobj(_UNZIPPED) if encoding not in ("identity", "") else None
        parts, total = [], 0
        for chunk in answer.iter_raw():
            self.left()
            try:
                part = chunk if unzip is None else unzip.decompress(chunk, MOST_REPLY_BYTES + 1)
            except zlib.error as err:
                raise Malformed(f"{self.server.shown} sent an answer that can't be unzipped", _WRONG_SERVER) from err
            total += len(part)
            if total > MOST_REPLY_BYTES:
                raise Malformed(
                    f"{self.server.shown} answered more than {MOST_REPLY_BYTES:,} bytes", "use a smaller batch size"
                )
            parts.append(part)
        if unzip is not None and not unzip.eof:
            raise Malformed(f"{self.server.shown} sent a zipped answer that is cut short", _WRONG_SERVER)
        return b"".join(parts)

    def _parse_reply(self, status: int, data: bytes, headers: Mapping[str, str], method: str, url: str) -> ServerReply:
        where, token = self._describe_request(method, url), self.server.token
        try:
            payload = json.loads(data, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as err:
            kind = one_line(headers.get("content-type", "").partition(";")[0], token) or "no content type"
            said = "nothing" if not data else f"{len(data):,} bytes of {kind}"
            if isinstance(err, _NotFinite):
                said = f"JSON with {err}"
            return ServerReply(status, None, False, said, where)
        return ServerReply(status, payload, True, one_line(_message_in(payload), token), where)


def _describe_distrust(err: BaseException) -> str:
    """Says why a server's certificate is not trusted; "" for another error."""
    cause: BaseException | None = err
    while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
        cause = cause.__cause__ or cause.__context__
    return "" if cause is None else f"the server's certificate is not trusted: {one_line(cause.verify_message)}"


class _NotFinite(ValueError):
    """Raised for a constant that JSON doesn't have."""


def _refuse_constant(name: str) -> NoReturn:
    raise _NotFinite(f"{name}, which is not a finite number")


def _message_in(payload: Any) -> str:
    """Finds what an answer says on its failure; the field differs between servers."""
    for _ in range(3):
        if isinstance(payload, list) and payload:
            payload = payload[0]
        if not isinstance(payload, dict):
            break
        payload = next((payload[name] for name in ("error", "message", "detail", "msg") if payload.get(name)), "")
    return payload if isinstance(payload, str) else ""


def _seconds_asked_for(headers: Mapping[str, str]) -> float | None:
    """Reads the seconds that Retry-After asks for, as a number or a date; None where it says neither."""
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def _call_within(seconds: float, call: Callable[[], _Result]) -> _Result:
    """Gives what a call returns. Raises TimeoutError after some seconds, even if a header comes byte by byte."""
    results: list[_Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as err:
            errors.append(err)

    # A client's timeout counts from the last byte, so a slow server could hold a request forever. A thread can be left.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError
    return results[0]
