"""What every request and answer keeps to while a checkpoint is read: the Hub's limits, a size, a time, plain names."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any, Protocol

from headscope.checkpoints.hub.ranges import Deadline, pause_asked_for
from headscope.errors import NetworkError
from headscope.facts.location import RequestBudget
from headscope.upstream.hub import event_hooks, library_of

_TAG = re.compile(r'(W/)?"?(?!\.\.?"?$)[A-Za-z0-9._=+:,;@-]{0,200}"?')
_PATH_PARTS = {"X-Repo-Commit": re.compile(r"[0-9a-f]{7,64}"), "ETag": _TAG, "X-Linked-ETag": _TAG}
_HINT = "don't trust this endpoint; check HF_ENDPOINT"


class Clock(Protocol):
    """A deadline."""

    def left(self) -> float:
        """Seconds that remain. Raises NetworkError where none do."""
        ...


_BOUNDS: ContextVar[tuple[Clock, int] | None] = ContextVar("headscope_bounds", default=None)
_WATCHES: ContextVar[tuple[list[str], ...]] = ContextVar("headscope_watches", default=())
"""The watches that the requests of this context belong to: the client's hooks are those of the whole process."""
_HOOKS = Lock()


@contextmanager
def bounded_answers(deadline: Clock, limit: int) -> Iterator[None]:
    """Within the block, and in its thread, the client's answers come in time and have at most `limit` bytes.

    Raises NetworkError where one does not; only inside of `limited_requests`.
    """
    before = _BOUNDS.set((deadline, limit))
    try:
        yield
    finally:
        _BOUNDS.reset(before)


@contextmanager
def limited_requests(
    budget: RequestBudget | None, deadline: Deadline, *, client_waits: bool = False
) -> Iterator[list[str]]:
    """The methods of the requests that the Hub's client makes in this context, with redirects and repetitions.

    Where there is a budget, each waits for its turn in it, as long as the deadline lets it, and each answer tells what
    is left of it.
    A separate thread belongs to it if it runs in a copy of the context; requests of other threads are neither
    counted, nor limited, nor refused.

    With `client_waits` the client repeats requests on its own, and sleeps as long as a server asks it to: as long as
    the deadline lets it. Raises NetworkError for an answer whose commit or entity tag could not be part of a path: the
    client makes paths of its cache from them.
    """
    seen: list[str] = []

    def is_ours() -> bool:
        return any(watch is seen for watch in _WATCHES.get())

    def note(request: Any) -> None:
        if is_ours():
            if budget is not None:
                budget.take(str(request.url), deadline)
            seen.append(request.method)
            _limit_waiting(request)

    def check(response: Any) -> None:
        if is_ours():
            if budget is not None:
                budget.learn(str(response.url), response.status_code, response.headers)
            wait = pause_asked_for(response) if client_waits else None
            if wait is not None and wait.pause is not None:
                deadline.pause(wait.pause)
            _check(response)

    own = {"request": note, "response": check}
    hooks = event_hooks()
    _change(hooks, lambda name, held: [*held, own[name]])
    before = _WATCHES.set((*_WATCHES.get(), seen))
    try:
        yield seen
    finally:
        _WATCHES.reset(before)
        _change(hooks, lambda name, held: [hook for hook in held if hook is not own[name]])


def _change(hooks: dict[str, list[Any]], change: Callable[[str, list[Any]], list[Any]]) -> None:
    """New lists instead of the old: another thread may be going through them."""
    with _HOOKS:
        for name in ("request", "response"):
            hooks[name] = change(name, hooks[name])


def _limit_waiting(request: Any) -> None:
    """No silence longer than the time that is left: the client itself waits for ever."""
    bounds = _BOUNDS.get()
    if bounds is None:
        return
    left = bounds[0].left()
    asked = request.extensions.get("timeout") or dict.fromkeys(("connect", "read", "write", "pool"))
    limits = {name: left if value is None else min(value, left) for name, value in asked.items()}
    request.extensions = {**request.extensions, "timeout": limits}


def _check(response: Any) -> None:
    _refuse_paths(response)
    bounds = _BOUNDS.get()
    if bounds is None:
        return
    deadline, limit = bounds
    size = response.headers.get("Content-Length", "")
    if response.is_success and size.isascii() and size.isdigit() and int(size[:20]) > limit:
        raise NetworkError(f"the server wants to send {int(size[:20]):,} bytes, over the limit of {limit:,}", _HINT)
    response.stream = _bounded(response.stream, deadline, limit)


def _refuse_paths(response: Any) -> None:
    """Of the Hub's own answers; the store behind it may tag its files as it likes, and no path is made of that."""
    if "X-Repo-Commit" not in response.headers:
        return
    for header, pattern in _PATH_PARTS.items():
        value = response.headers.get(header)
        if value is not None and not pattern.fullmatch(value):
            raise NetworkError(f"the server says {header}: {value[:80]!r}, which is invalid", _HINT)


def _bounded(stream: Any, deadline: Clock, limit: int) -> Any:
    """The body of an answer, which ends with NetworkError where it is too long or comes too late."""
    library: Any = library_of(stream)

    class Bounded(library.SyncByteStream):  # type: ignore[misc]  # the client's library, whichever it is
        def __iter__(self) -> Iterator[bytes]:
            total = 0
            for chunk in stream:
                total += len(chunk)
                deadline.left()
                if total > limit:
                    raise NetworkError(f"the server sent more than the limit of {limit:,} bytes", _HINT)
                yield chunk

        def close(self) -> None:
            stream.close()

    return Bounded()
