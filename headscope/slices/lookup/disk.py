"""`cache`: what headscope keeps on disk, and removing it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from headscope.core.facts import Gap
from headscope.core.facts.counting import counted, few_of
from headscope.core.facts.stored.disk_usage import DiskUsage, EntryKind, ShippedStore
from headscope.core.source.storage.cache import (
    MOST_CACHED_BYTES,
    MOST_ENTRIES,
    StoredFile,
    cache_folder,
    open_cache,
    opened_folder,
    remove_stored,
    stored_files,
)
from headscope.core.source.storage.shipped import PLACE, shipped_entries
from headscope.errors import UsageError

_KINDS = {
    "remembered": "reports",
    "ruleevidence": "evidence",
    "basenumbers": "numbers",
    "runtrial": "runs",
    "key": "key",
}
_OTHERS = "others"
_HUB = Gap("downloads", "files from the Hub are in the cache of its client; run `hf cache ls` to list them")
_TEMPORARY = Gap(
    "temporary files", "a command removes its own, and the next scan removes those of a scan that was killed"
)


def disk_usage(*, clear: bool = False) -> DiskUsage:
    """Reports what headscope keeps on disk; with `clear`, removes the entries of the cache.

    Only files with headscope's names are removed, and no link is followed. What can't be removed is in
    `not_determined`. Raises UsageError for a cache folder that is a link.
    """
    folder = cache_folder()
    files, gaps = _read_or_clear(folder, clear=clear)
    own = [file for file in files if file.kind]
    kept = [file for file in files if not file.kind]
    foreign = (Gap("other files", f"{few_of(file.name for file in kept)} may be another program's"),) if kept else ()
    sizes: dict[str, list[int]] = {name: [] for name in (*_KINDS.values(), _OTHERS)}
    for file in own:
        sizes[_KINDS.get(file.kind, _OTHERS)].append(file.size)
    return DiskUsage(
        folder=None if folder is None else str(folder),
        is_on=open_cache(wanted=True).is_open,
        cleared=clear,
        entries=len(own),
        bytes=sum(file.size for file in own),
        kinds=tuple(EntryKind(name, len(each), sum(each)) for name, each in sizes.items() if each),
        most_entries=MOST_ENTRIES,
        most_bytes=MOST_CACHED_BYTES,
        shipped=ShippedStore(str(PLACE), shipped_entries(), PLACE.stat().st_size if PLACE.exists() else 0),
        not_read=(_HUB, _TEMPORARY, *foreign),
        not_determined=gaps,
    )


def _read_or_clear(folder: Path | None, *, clear: bool) -> tuple[list[StoredFile], tuple[Gap, ...]]:
    """Reads the files in a folder, or removes headscope's with `clear`; gives these, other files, and what failed."""
    if folder is None:
        return [], ()
    if clear and folder.is_symlink():
        raise UsageError(
            f"the cache folder {folder} is a link, and --clear follows no links",
            f"set HEADSCOPE_CACHE={folder.resolve()} to clear the folder that it leads to",
        )
    try:
        with opened_folder(folder if clear else folder.resolve()) as place:
            files = stored_files(place)
            return (files, ()) if not clear else _remove_entries(place, files)
    except FileNotFoundError:
        return [], ()
    except OSError as err:
        return [], (Gap("cache", f"{folder} can't be read: {err.strerror or err}"),)


def _remove_entries(place: int | Path, files: list[StoredFile]) -> tuple[list[StoredFile], tuple[Gap, ...]]:
    """Removes headscope's files; gives them, the files of others, and what failed."""
    # Beside another program's files, the key may be theirs, so it stays.
    is_shared = any(not file.kind for file in files)
    foreign = [file for file in files if not file.kind or (is_shared and file.kind == "key")]
    gone, failed = [], Counter[str]()
    # The key comes last: if the removal breaks off, the entries that are left can still be read.
    for file in sorted((one for one in files if one not in foreign), key=lambda one: one.kind == "key"):
        try:
            remove_stored(place, file)
            gone.append(file)
        except OSError as err:
            failed[str(err.strerror)] += 1
    gaps = tuple(Gap("cache", f"{counted(count, 'file')} can't be removed: {why}") for why, count in failed.items())
    return [*gone, *(StoredFile(file.name, "", file.size) for file in foreign)], gaps
