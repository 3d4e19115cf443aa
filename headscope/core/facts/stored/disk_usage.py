"""What headscope keeps on disk: the entries of its cache by kind, and the structures that the package ships."""

from dataclasses import dataclass

from headscope.core.facts.stored.checkpoint import Gap


@dataclass(frozen=True, slots=True)
class EntryKind:
    """The entries of one kind."""

    name: str
    """What they hold: `reports`, `evidence`, `numbers`, `runs`, `others` (of another version), `key` (signs them)."""
    entries: int
    """Number of files."""
    bytes: int
    """Their size in bytes."""


@dataclass(frozen=True, slots=True)
class ShippedStore:
    """The examined structures that are part of the package; nothing removes them."""

    file: str
    """The file in the package."""
    entries: int
    """Number of entries, each for structures or classes of one family; 0 where the file can't be read."""
    bytes: int
    """Size of the file in bytes."""


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """What headscope keeps on disk, or what was removed of it."""

    folder: str | None
    """The folder of the cache; null where there is no home folder."""
    is_on: bool
    """Whether results are cached; `HEADSCOPE_NO_CACHE` turns that off."""
    cleared: bool
    """Whether the entries were removed: then the counts are those of the removed files."""
    entries: int
    """Number of files in the cache."""
    bytes: int
    """Their size in bytes."""
    kinds: tuple[EntryKind, ...]
    """The same by kind, without kinds that have no file."""
    most_entries: int
    """Beyond this number, the entries that were not used for the longest time are removed."""
    most_bytes: int
    """The same for their size in bytes."""
    shipped: ShippedStore
    """The structures that the package ships."""
    not_read: tuple[Gap, ...]
    """What was not looked at, each with its reason."""
    not_determined: tuple[Gap, ...] = ()
    """What could not be read or removed, each with its reason."""
