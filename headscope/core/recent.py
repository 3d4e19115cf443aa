"""What was used last, and no more of it than fits: the one small memory that rooms keep between two calls."""

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Any

_MOST = 64


class Recent:
    """Values by key; the one that was not used for the longest time goes first. Threads may share it.

    A copy in another process begins empty.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = Lock()

    def __reduce__(self) -> tuple[type["Recent"], tuple[int]]:
        # A lock can't be pickled.
        return type(self), (self._most,)

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable) -> Any:
        """Gives the value that was kept under a key, or None."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def keep(self, key: Hashable, value: Any) -> None:
        """Keeps a value, and drops the one that was not used for the longest time if there are too many."""
        with self._lock:
            self._kept[key] = value
            self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
