"""Which files of a checkpoint an edited copy takes over: those that are known to hold no head."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from headscope.checkpoints.states.folders import RESUME_FILES
from headscope.facts import CheckpointManifest, WeightsFormat

INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
TOOL_FOLDERS = (".git", ".cache")
_WITHOUT_HEAD = (
    "*.txt", "*.md", "*.rst", "*.py", "*.jinja", "*.yaml", "*.yml", "*.toml", "*.cfg", "*.ini", "*.html", "*.csv",
    "*.tsv", "license*", "notice*", ".gitattributes", ".gitignore", "*.png", "*.jpg", "*.jpeg", "*.gif", "*.webp",
    "*.svg", "*vocab*", "*merges*", "*.spm", "*.tiktoken", "*.codes", "*spiece*.model", "*sentencepiece*.model",
    "*tokenizer*.model", "*spm*.model", "*bpe*.model", "training_args.bin", *RESUME_FILES,
)  # fmt: skip
"""Texts, pictures, vocabularies, and what a training keeps beside weights; names in lower case."""
_JSON_WITHOUT_HEAD = (
    "*config*.json", "*tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "*vocab*.json",
    "trainer_state.json", "modules.json", "normalizer.json", "*_results.json",
)  # fmt: skip
_FRACTION = re.compile(rb"\d\.\d|\de-\d")
_MOST_FRACTIONS = 64
"""Fractional numbers in a JSON file without a known name: a head has at least one for each of its hidden features."""
_LARGEST_JSON = 5_000_000


@dataclass(frozen=True, slots=True)
class Contents:
    """What is in a folder: its files, which may be links, and everything else with what it is."""

    files: tuple[str, ...]
    others: tuple[str, ...]
    """Folders that are empty, links or a tool's, and what is not a file: never taken over."""


def read_contents(folder: Path) -> Contents:
    """All entries of a folder, by their paths in it; folders end in `/`. Links to folders are not followed."""
    files, others = [], []
    for place, folders, names in os.walk(folder):
        inside = Path(place).relative_to(folder)
        tools = [name for name in folders if name in TOOL_FOLDERS and inside == Path()]
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        others += [f"{inside / name}/" for name in tools]
        others += [f"{inside / name}/ (a link)" for name in links if name not in tools]
        if inside != Path() and not (folders or names):
            others.append(f"{inside}/ (empty)")
        folders[:] = sorted(name for name in folders if name not in (*tools, *links))
        for name in names:
            if (Path(place) / name).is_file():
                files.append((inside / name).as_posix())
            else:
                others.append(f"{(inside / name).as_posix()} (not a file)")
    return Contents(tuple(sorted(files)), tuple(sorted(others)))


def left_behind(folder: Path, contents: Contents, manifest: CheckpointManifest) -> tuple[str, ...]:
    """What an edited copy of a checkpoint doesn't take over, sorted; a folder stays behind whole, and ends in `/`.

    The weights that are edited aren't among them.
    """
    weights = {file.name for file in manifest.files}
    is_sharded = manifest.format is WeightsFormat.SAFETENSORS and len(weights) > 1
    own = weights | ({INDEXES[0]} if is_sharded else set())
    left = {_top(name) for name in contents.files if name not in own and not _holds_no_head(folder / name)}
    left |= {_top(name) for name in contents.others if "/" in name.partition(" (")[0].rstrip("/")}
    left |= {name for name in contents.others if "/" not in name.partition(" (")[0].rstrip("/")}
    if left.intersection(_module_folders(folder)):
        left.add("modules.json")  # it would name folders that aren't there
    return tuple(sorted(left))


def is_left(name: str, left: Iterable[str]) -> bool:
    """Whether a file stays behind, or the folder that holds it."""
    return name in left or _top(name) in left


def _top(name: str) -> str:
    """The folder at the top that holds an entry, or the entry itself."""
    first, inside, _ = name.partition("/")
    return f"{first}/" if inside else name


def _module_folders(folder: Path) -> Iterator[str]:
    """The folders of the modules that sentence-transformers loads."""
    try:
        modules = json.loads((folder / "modules.json").read_bytes())
        yield from (f"{item['path'].rstrip('/')}/" for item in modules if item["path"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return


def _holds_no_head(path: Path) -> bool:
    """Whether a file is known to hold no weights: by its name, or as JSON without rows of numbers."""
    name = path.name.lower()
    if name.endswith(".index.json"):
        return False
    if not name.endswith(".json"):
        return any(fnmatchcase(name, pattern) for pattern in _WITHOUT_HEAD)
    if any(fnmatchcase(name, pattern) for pattern in _JSON_WITHOUT_HEAD):
        return True
    if path.stat().st_size > _LARGEST_JSON:
        return False
    return len(_FRACTION.findall(path.read_bytes())) < _MOST_FRACTIONS


def taken_names(names: Sequence[str], left: Iterable[str], *others: str) -> list[str]:
    """The files that are copied as they are: those that neither stay behind nor are `others`, which are written."""
    kept = set(left)
    return [name for name in names if not is_left(name, kept) and name not in others]
