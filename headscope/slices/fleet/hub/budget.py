"""How many requests the Hub still allows, known to all processes that share a file.

The Hub counts requests in windows of some minutes, one count for the resolver and one for its API, and says in every
answer how many are left (`RateLimit: "resolvers";r=2999;t=172`). While nothing is known of a window, one request goes
ahead and the others wait for its answer; so nobody storms a new window, or the Hub after it has refused a request.
"""

import json
import random
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from headscope.core.checkpoints.hub.requests import LONGEST_PAUSE, REQUEST_SECONDS, rate_limit_in, seconds_asked_for
from headscope.core.facts.stored.location import Patience
from headscope.errors import UsageError

_TOO_MANY = 429
_EDGE_CACHE = "/api/resolve-cache/"
_PROBE_SECONDS = 3.0
# A request that waits for the answer to another looks this often whether it came.
_LOOK_AGAIN = 0.05
_UNLIMITED_SECONDS = 60.0
_PAUSE_UNKNOWN = 2.0
_ROUNDING = 1.0
"""The Hub says whole seconds, rounded in a way that it does not promise."""


@dataclass(frozen=True, slots=True)
class _Window:
    """State of one of the Hub's counts, in times of the system's clock, which all processes share.

    `left` is None where nothing is known; `ends` is when the window does, and until `closed` no request is made.
    `free` is until when the Hub is taken to have no limits, having named none. `sent` are the times of the requests
    that have no answer yet.
    """

    left: int | None = None
    ends: float = 0.0
    closed: float = 0.0
    free: float = 0.0
    sent: tuple[float, ...] = ()

    def at(self, now: float) -> "_Window":
        """Drops what is out of date: a window that is over, and requests whose answers will not come any more."""
        # A time further ahead than any answer can say was written before the clock was set back.
        awaited = tuple(begun for begun in self.sent if 0 <= now - begun < REQUEST_SECONDS + _PROBE_SECONDS)
        known = self.left is not None and 0 < self.ends - now <= LONGEST_PAUSE + _ROUNDING
        closed = self.closed if self.closed - now <= LONGEST_PAUSE else 0.0
        free = self.free if self.free - now <= _UNLIMITED_SECONDS else 0.0
        return replace(self, left=self.left if known else None, closed=closed, free=free, sent=awaited)

    def wait(self, now: float) -> float:
        """Gives the seconds to wait for a request or for another look; 0 if a request may be made now."""
        if now < self.closed:
            return self.closed - now
        if self.left is not None:
            return 0.0 if self.left > 0 else self.ends - now
        is_probed = any(now - begun < _PROBE_SECONDS for begun in self.sent)
        return _LOOK_AGAIN if is_probed and now >= self.free else 0.0

    def after_request(self, now: float) -> "_Window":
        """Gives the state after one more request."""
        left = None if self.left is None else self.left - 1
        return replace(self, left=left, sent=(*self.sent, now))

    def after_answer(self, now: float, status: int, headers: Any) -> "_Window":
        """Gives the state after an answer."""
        window = replace(self, sent=self.sent[1:])
        if status == _TOO_MANY:
            pause = seconds_asked_for(headers)
            until = now + min(LONGEST_PAUSE, _PAUSE_UNKNOWN if pause is None else pause + _ROUNDING)
            return replace(window, left=None, closed=max(self.closed, until), free=0.0)
        limit = rate_limit_in(headers)
        if limit is None:
            return replace(window, free=now + _UNLIMITED_SECONDS) if self.left is None else window
        left = max(0, limit[0] - len(window.sent))  # those that have no answer yet may not be counted yet
        if self.left is None:
            return replace(window, left=left, ends=now + min(limit[1], LONGEST_PAUSE) + _ROUNDING, free=0.0)
        return replace(window, left=min(self.left, left))  # answers may overtake each other


@dataclass(frozen=True, slots=True)
class SharedBudget:
    """Request budget of all processes that use one file."""

    file: Path

    def take(self, url: str, patience: Patience) -> None:
        """Waits until a request for a URL may be made, and counts it.

        Raises NetworkError where the Hub allows none for longer than `patience` does.
        """
        kind = limit_of(url)
        while kind is not None:
            with self._locked_windows() as state:
                now = time.time()
                window = state.get(kind, _Window()).at(now)
                seconds = window.wait(now)
                state[kind] = window if seconds else window.after_request(now)
            if not seconds:
                return
            # Those that wait together must not come back together.
            pause = seconds + random.uniform(0.0, min(1.0, seconds))
            patience.pause(pause)
            time.sleep(pause)

    def learn(self, url: str, status: int, headers: Any) -> None:
        """Takes in what the answer to a request for a URL says of the limits."""
        kind = limit_of(url)
        if kind is not None:
            with self._locked_windows() as state:
                now = time.time()
                state[kind] = state.get(kind, _Window()).at(now).after_answer(now, status, headers)

    @contextmanager
    def _locked_windows(self) -> Iterator[dict[str, _Window]]:
        """Gives the windows by kind, to read and to change; other processes wait until they are stored."""
        # SQLite brings a lock that the end of a process releases, on every system.
        try:
            with closing(sqlite3.connect(self.file, timeout=30.0, isolation_level=None)) as store:
                store.execute("PRAGMA synchronous = OFF")  # it has no worth after a crash of the machine
                store.execute("BEGIN IMMEDIATE")
                store.execute("CREATE TABLE IF NOT EXISTS windows (state TEXT)")
                row = store.execute("SELECT state FROM windows").fetchone()
                stored = json.loads(row[0]) if row else {}
                state = {kind: _Window(**(values | {"sent": tuple(values["sent"])})) for kind, values in stored.items()}
                yield state
                store.execute("DELETE FROM windows")
                text = json.dumps({kind: asdict(window) for kind, window in state.items()})
                store.execute("INSERT INTO windows VALUES (?)", (text,))
                store.execute("COMMIT")
        except sqlite3.Error as err:
            raise UsageError(
                f"the file in which processes share the limits of the Hub cannot be used: {err}",
                "name a file in a folder of this machine that may be written",
            ) from err


def limit_of(url: str) -> str | None:
    """Gives the Hub's count that a request falls under, `resolvers` or `api`; None for a request that none counts."""
    from huggingface_hub import constants

    asked, hub = urlsplit(url), urlsplit(constants.ENDPOINT)
    path = asked.path.removeprefix(hub.path.rstrip("/"))
    # Only the Hub counts requests, not another server that it redirects to.
    if (asked.scheme, asked.netloc) != (hub.scheme, hub.netloc) or path.startswith(_EDGE_CACHE):
        return None
    if path.startswith("/api/"):
        return "api"
    return "resolvers" if "/resolve/" in asked.path else None
