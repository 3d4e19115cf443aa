"""Which checkpoint is meant, and how the Hub is reached: one value, handed on whole."""

from dataclasses import dataclass, field
from typing import Any, Protocol, TypeGuard

from headscope.core.recent import Recent


def is_file_name(name: object) -> TypeGuard[str]:
    """True if a name from a file or a server stays in its folder, on every system."""
    return isinstance(name, str) and name not in {"", ".", ".."} and set(name).isdisjoint("/\\:\0")


def is_path_inside(path: object) -> TypeGuard[str]:
    """True if a path from a file or a server, with `/` between folders, stays inside its root, on every system."""
    if not isinstance(path, str) or not set(path).isdisjoint("\\:\0"):
        return False
    return not path.startswith("/") and ".." not in path.split("/")


def is_own_code(class_name: str | None) -> bool:
    """True if a class is named with the place of its code: `FILE.py:CLASS` or `MODULE:CLASS`."""
    return ":" in (class_name or "")


class Patience(Protocol):
    """A deadline that pauses can extend."""

    def pause(self, seconds: float) -> None:
        """Sees to it that so long may be waited. Raises NetworkError where that is too long."""
        ...


class RequestBudget(Protocol):
    """What many processes know together of the Hub's limits (see `SharedBudget`)."""

    def take(self, url: str, patience: Patience) -> None:
        """Waits until a request may be made, and counts it. Raises NetworkError where that takes too long."""
        ...

    def learn(self, url: str, status: int, headers: Any) -> None:
        """Takes up what an answer says of the limits."""
        ...


@dataclass(frozen=True, slots=True)
class HubOptions:
    """How the Hub is reached. `timeout` is in seconds, for all requests together.

    `budget` is what processes share of the Hub's limits; None for a process that is alone. `memory` is what readings
    have learned that cannot change, such as a file at a commit, for those that follow.
    """

    cache_dir: str | None = None
    token: str | None = field(default=None, repr=False)
    offline: bool = False
    timeout: float | None = None
    budget: RequestBudget | None = None
    memory: Recent = field(default_factory=Recent, repr=False, compare=False)


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
        """Gives the arguments with which `from_pretrained` reads the same files, except the variant."""
        return {
            "revision": self.commit or self.revision or "main",
            "subfolder": self.subfolder or "",
            "cache_dir": self.hub.cache_dir,
            "token": self.hub.token,
            "local_files_only": self.hub.offline,
        }
