"""Writes headscope/core/source/storage/bundled/facts.zip: what headscope knows of Transformers without importing it.

`write_shipped.py` takes hours, with names of families only their share; `--check` makes all again and prints what
differs. The atlas is docs/atlas.json without the effect of padding; it is made by `write_atlas.py`. Whole, it leaves
out what `vouch_versions.py` adds for other versions of Transformers.
"""

import inspect
import json
import multiprocessing
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib.util import find_spec
from typing import Any, TypeVar
from zipfile import ZIP_LZMA, ZipFile, ZipInfo

from headscope.core.facts.plain import to_dict
from headscope.core.model.classes.catalog import every_other_class
from headscope.core.source.environment import environment
from headscope.core.source.memory.shipped_structures import member_of
from headscope.core.source.storage.shipped import CLASSES, PLACE, SOURCES, VOUCHED, classes_of
from headscope.core.upstream.sources import file_digest
from scripts.pages.write_atlas import read_atlas

Item = TypeVar("Item")
Result = TypeVar("Result")
_OPTIONAL = ("detectron2", "natten", "timm")
"""The packages that some classes need, none of which may be installed where the atlas is made."""


def main(arguments: list[str]) -> int:
    """Writes the file; with `--check` prints what differs and returns 1 where anything does."""
    installed = [name for name in _OPTIONAL if find_spec(name)]
    if installed:
        sys.exit(f"the shipped atlas is made without {', '.join(installed)}: see _OPTIONAL")
    only = [name for name in arguments if name != "--check"]
    members = shipped_members(only)
    with ZipFile(PLACE) as whole:
        kept = {name: json.loads(whole.read(name)) for name in whole.namelist()}
    if "--check" not in arguments:
        write(_joined(kept, members) if only else members)
        return 0
    made = json.loads(json.dumps(members))  # tuples are lists there
    differ = [name for name in sorted({*made, *kept} - {VOUCHED}) if made.get(name) != kept.get(name)]
    print("\n".join(f"{name} differs" for name in differ))
    return int(bool(differ))


def shipped_members(only: Sequence[str] = ()) -> dict[str, Any]:
    """Every part of the file by its name; with `only`, those of some families."""
    from scripts.pages.shipped_sizes import SIZES
    from scripts.shipped.shipped_structures import classes_of_family, structures_of

    atlas = shipped_atlas()
    families: dict[str, list[str]] = {}
    for entry in atlas["heads"]:
        if not only or entry["model_type"] in only:
            families.setdefault(entry["model_type"], []).append(entry["class"])
    drawn = list(dict.fromkeys(name for name, _ in SIZES if not only or name in only))
    # A process for each family: what the one before left in its caches would change what is recorded of the next.
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        made = zip(map(member_of, drawn), _told(pool, structures_of, drawn), strict=True)
        structures = {name: entries for name, entries in made if entries}
        classes = dict(zip(families, _told(pool, classes_of_family, families.values()), strict=True))
    print(f"{sum(len(part) for part in structures.values())} structures of {len(drawn)} families")
    print(f"{sum(len(found) for found in classes.values())} classes in their default configuration")
    atlas["code"] = {name: entry["code"] for found in classes.values() for name, entry in found.items()}
    entries = [entry for part in structures.values() for entry in part]
    code = [*atlas["code"].values(), *(entry[name] for entry in entries for name in ("code", "code_of_base"))]
    return {
        SOURCES: {
            "transformers": environment().transformers,
            "reserved": reserved_names(),
            "files": {path: file_digest(path) for path in sorted({path for part in code for path, *_ in part})},
        },
        "atlas.json": atlas,
        CLASSES: {name: family for family, found in classes.items() for name in found},
        **{classes_of(family): found for family, found in classes.items() if found},
        **structures,
    }


def reserved_names() -> list[str]:
    """What a configuration has beside fields: a field of such a name would take the place of a function."""
    from transformers import PreTrainedConfig

    kinds = {name: inspect.getattr_static(PreTrainedConfig, name) for name in dir(PreTrainedConfig)}
    own = {name for name, kind in kinds.items() if callable(kind) or isinstance(kind, classmethod | staticmethod)}
    return sorted(name for name in own if not name.startswith("__"))


def _joined(kept: dict[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """The parts of some families instead of those that are kept."""
    code = kept["atlas.json"].get("code", {}) | made["atlas.json"]["code"]
    atlas = {**made["atlas.json"], "code": code}
    sources = {**made[SOURCES], "files": kept[SOURCES]["files"] | made[SOURCES]["files"]}
    return {**kept, **made, SOURCES: sources, "atlas.json": atlas, CLASSES: kept[CLASSES] | made[CLASSES]}


def _told(pool: ProcessPoolExecutor, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """What a function gives for each item, in order; each is named when it is done."""
    waiting = {pool.submit(function, item): item for item in items}
    for number, future in enumerate(as_completed(waiting), 1):
        future.result()
        print(f"{number} of {len(waiting)}: {waiting[future]}"[:100], flush=True)
    return [future.result() for future in waiting]


def write(members: dict[str, Any]) -> None:
    """Writes the parts, the same bytes for the same parts."""
    PLACE.parent.mkdir(exist_ok=True)
    with ZipFile(PLACE, "w", ZIP_LZMA) as whole:
        for name, part in members.items():
            whole.writestr(ZipInfo(name), json.dumps(part, separators=(",", ":")), ZIP_LZMA)
    print(f"{PLACE.name}: {PLACE.stat().st_size:,} bytes")


def shipped_atlas() -> dict[str, Any]:
    """The atlas as `headscope heads` reads it."""
    kept = read_atlas()
    if kept.transformers != environment().transformers:
        sys.exit(f"docs/atlas.json is of Transformers {kept.transformers}: run `python -m scripts.generate atlas`")
    entries = [without_padding(to_dict(entry)) for entry in kept.entries]
    return {
        "heads": entries,
        "others": every_other_class(),
        "absent": _OPTIONAL,
    }


def without_padding(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry as `heads` traces it: the effect of padding is measured for the page alone."""
    proof = (entry["head"] or {}).get("verification")
    if proof is not None:
        proof["padding"] = []
    return entry


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
