"""Which checkpoint is meant, and how the Hub is reached: one value, handed on whole."""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

_MOST_KEPT = 64


class Memory:
    """What readings have learnt that cannot change, such as a file at a commit, for those that follow.

    It holds the entries that were used last. A copy in another process begins empty.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = Lock()

    def __reduce__(self) -> tuple[type["Memory"], tuple[()]]:
        return Memory, ()

    def get(self, key: Hashable) -> Any:
        """What was kept under a key, or None."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def keep(self, key: Hashable, value: Any) -> None:
        """Keeps a value in the place of one that was not used for long."""
        with self._lock:
            self._kept[key] = value
            self._kept.move_to_end(key)
            while len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)


@dataclass(frozen=True, slots=True)
class HubOptions:
    """How the Hub is reached. `timeout` is in seconds, for all requests together.

    `budget` is a file in which processes share what the Hub says of its limits (see `SharedBudget`); None for a process
    that is alone.
    """

    cache_dir: str | None = None
    token: str | None = field(default=None, repr=False)
    offline: bool = False
    timeout: float | None = None
    budget: str | None = None
    memory: Memory = field(default_factory=Memory, repr=False, compare=False, metadata={"stored": False})


@dataclass(frozen=True, slots=True)
class Location:
    """What a user named, and what of it: the files of one checkpoint.

    `reference` is as it was written. `commit` is what a revision was found to be: what is read later is of that commit.
    `names` are the files of the repository at that commit, where a listing of the Hub has told them.
    """

    reference: str
    revision: str | None = None
    commit: str | None = None
    subfolder: str | None = None
    variant: str | None = None
    hub: HubOptions = field(default_factory=HubOptions)
    names: tuple[str, ...] | None = field(default=None, repr=False)

    def keywords(self) -> dict[str, Any]:
        """The arguments under which `from_pretrained` reads the same files, but for the variant."""
        return {
            "revision": self.commit or self.revision or "main",
            "subfolder": self.subfolder or "",
            "cache_dir": self.hub.cache_dir,
            "token": self.hub.token,
            "local_files_only": self.hub.offline,
        }
