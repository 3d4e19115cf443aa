"""Writes headscope/bundled/facts.zip, what headscope knows of the installed Transformers without importing it.

`write_shipped.py` takes minutes; `--check` makes everything again and prints what differs. The atlas is docs/atlas.json
without the effect of padding; it is made by `write_atlas.py`.
"""

import ast
import itertools
import json
import multiprocessing
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar
from zipfile import ZIP_LZMA, ZipFile, ZipInfo

from write_atlas import read_atlas

from headscope.checkpoints import bundled_snapshots
from headscope.examination.base.environment import environment
from headscope.examination.base.shipped import CLASSES, PLACE, SOURCES, classes_of
from headscope.facts.heads.atlas import HeadEntry
from headscope.facts.plain import to_dict
from headscope.model.classes.catalog import every_other_class
from headscope.model.classes.defaults import default_configs
from headscope.model.quiet import quiet
from headscope.upstream.imports import public_version
from headscope.upstream.sources import EVERYWHERE, folder_digest, folder_of_package
from headscope.upstream.torch import on_meta
from headscope.upstream.transformers import folder_of_type, tokenizer_of_type

Item = TypeVar("Item")
Result = TypeVar("Result")
_OPTIONAL = ("detectron2", "natten", "timm")
"""The packages that some classes need, none of which may be installed where the atlas is made."""


def main(arguments: list[str]) -> int:
    """Writes the file; with `--check` prints what differs and returns 1 where anything does."""
    installed = [name for name in _OPTIONAL if find_spec(name)]
    if installed:
        sys.exit(f"the shipped atlas is made without {', '.join(installed)}: see _OPTIONAL")
    members = shipped_members()
    if "--check" not in arguments:
        write(members)
        return 0
    with ZipFile(PLACE) as whole:
        kept = {name: json.loads(whole.read(name)) for name in whole.namelist()}
    made = json.loads(json.dumps(members))  # tuples are lists there
    differ = [name for name in sorted({*made, *kept}) if made.get(name) != kept.get(name)]
    print("\n".join(f"{name} differs" for name in differ))
    return int(bool(differ))


def shipped_members() -> dict[str, Any]:
    """Every part of the file by its name."""
    from shipped_sizes import SIZES
    from shipped_structures import classes_of_family, structures_of, structures_of_snapshot

    atlas = shipped_atlas()
    structures: dict[str, list[dict[str, Any]]] = {}
    families: dict[str, list[str]] = {}
    for entry in atlas["heads"]:
        families.setdefault(entry["model_type"], []).append(entry["class"])
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        found = [*_told(pool, structures_of_snapshot, bundled_snapshots()), *_told(pool, structures_of, SIZES)]
        for name, entry in itertools.chain(*found):
            structures.setdefault(name, []).append(entry)
        classes = dict(zip(families, _told(pool, classes_of_family, families.values()), strict=True))
    print(f"{sum(len(part) for part in structures.values())} structures of {len(SIZES)} configurations")
    print(f"{sum(len(found) for found in classes.values())} classes in their default configuration")
    every = [*itertools.chain(*structures.values()), *itertools.chain(*(found.values() for found in classes.values()))]
    folders = {name for found in atlas["folders"].values() for name in found}
    members = {
        "atlas.json": atlas,
        CLASSES: {name: family for family, found in classes.items() for name in found},
        **{classes_of(family): found for family, found in classes.items() if found},
        **structures,
    }
    return with_sources(members, folders.union(*(entry["folders"] for entry in every)))


def _told(pool: ProcessPoolExecutor, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """What a function gives for each item, in order; each is named when it is done."""
    waiting = {pool.submit(function, item): item for item in items}
    for number, future in enumerate(as_completed(waiting), 1):
        future.result()
        print(f"{number} of {len(waiting)}: {waiting[future]}"[:100], flush=True)
    return [future.result() for future in waiting]


def with_sources(members: dict[str, Any], folders: Iterable[str]) -> dict[str, Any]:
    """The parts with the versions and the digests of the folders that they were traced from."""
    here = environment()
    digests = {folder: folder_digest(folder) for folder in sorted({*folders, *EVERYWHERE})}
    versions = {"torch": public_version(here.torch), "transformers": here.transformers}
    return {SOURCES: {**versions, "folders": digests}, **members}


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
        sys.exit(f"docs/atlas.json is of Transformers {kept.transformers}: run scripts/write_atlas.py")
    entries = [without_padding(to_dict(entry)) for entry in kept.entries]
    return {
        "heads": entries,
        "folders": {entry.class_name: sorted(folders_of_entry(entry)) for entry in kept.entries},
        "others": every_other_class(),
        "absent": _OPTIONAL,
    }


def without_padding(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry as `heads` traces it: the effect of padding is measured for the page alone."""
    proof = (entry["head"] or {}).get("verification")
    if proof is not None:
        proof["padding"] = []
    return entry


def folders_of_entry(entry: HeadEntry) -> set[str]:
    """The folders of Transformers that hold the sources of a class at its default configuration."""
    import transformers

    found = folders_of_type(entry.model_type)
    try:
        cls = getattr(transformers, entry.class_name)
        with quiet(), on_meta():
            return found | folders_of_model(cls(next(default_configs(entry.model_type))[0]))
    except Exception:  # a class that can't be traced has the folder of its family
        return found


def folders_of_model(model: Any) -> set[str]:
    """The folders of every class in a model and of its configuration, and of what their modules import."""
    held = [type(module) for module in model.modules()] + [type(model.config), *map(type, vars(model.config).values())]
    modules = {base.__module__ for cls in held for base in cls.__mro__}
    return {folder for name in modules for folder in _folders_behind(name)}


def folders_of_type(model_type: str) -> set[str]:
    """The folders of a family, and of its tokenizers."""
    names = {name.removesuffix("Fast") for name in tokenizer_of_type().get(model_type, ())}
    shared = [
        kind for kind, items in tokenizer_of_type().items() if names & {name.removesuffix("Fast") for name in items}
    ]
    folders = {folder_of_type(kind) for kind in shared}
    root = folder_of_package("transformers")
    assert root is not None
    with_tokenizer = {name for name in folders if (root / "models" / name / f"tokenization_{name}.py").is_file()}
    return {f"models/{name}" for name in {folder_of_type(model_type), *with_tokenizer}}


@cache
def _folders_behind(module: str) -> frozenset[str]:
    """The folder of a module of Transformers' models, and those of the families that it imports."""
    if not module.startswith("transformers.models."):
        return frozenset()
    root = folder_of_package("transformers")
    assert root is not None
    path = root.joinpath(*module.split(".")[1:]).with_suffix(".py")
    imported = _imports(path) if path.is_file() else ()
    return frozenset({"/".join(module.split(".")[1:-1]), *imported})


def _imports(path: Path) -> Iterator[str]:
    """The folders of other families that a source file imports from, directly."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == 2 and node.module:
            yield f"models/{node.module.split('.')[0]}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
