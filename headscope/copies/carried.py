"""Files of a checkpoint that an edited copy takes over: those that are known to hold no head."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from headscope.core.checkpoints.states.folders import RESUME_FILES
from headscope.core.facts import CheckpointManifest, WeightsFormat

INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
TOOL_FOLDERS = (".git", ".cache")
_TEXTS = (".txt", ".yaml", ".yml", ".toml", ".cfg", ".ini", ".html", ".csv", ".tsv", ".svg", ".json")
_CODE = (".md", ".rst", ".py", ".jinja")
"""Texts that people write: their numbers aren't rows of a head."""
_PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".webp")
_VOCABULARIES = (
    "vocab.*", "*_vocab.*", "vocab-*.*", "vocab_*.*", "*merges.txt", "*.spm", "*.tiktoken", "*.codes", "*.tokenizer",
    "tokenizer.json", "tekken.json", "unigram.json", "added_tokens.json", "special_tokens_map.json", "normalizer.json",
    "emoji.json", "byte_maps.json", "trainer_state.json",
)  # fmt: skip
"""Large or full of numbers, and known by their names."""
_PLAIN = (
    "license", "license.txt", "notice", "notice.txt", ".gitattributes", ".gitignore", "training_args.bin",
    *RESUME_FILES,
)  # fmt: skip
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".npy", ".npz", ".onnx", ".pkl")
"""Never a vocabulary, whatever the rest of the name says."""
_JUNK = (".DS_Store", "Thumbs.db", "__pycache__", ".ipynb_checkpoints")
"""What systems and tools leave in any folder: it stays behind, and its folder doesn't."""
_NUMBER = re.compile(rb"[-+]?\d+\.\d+|\d[eE][-+]?\d")
_MOST_FRACTIONS, _MOST_NUMBERS, _LONGEST_TEXT = 64, 512, 4096
"""A head has at least a fractional number for each of its hidden features, or as many whole ones, or a coded text."""
_LARGEST = 5_000_000


@dataclass(frozen=True, slots=True)
class Contents:
    """Contents of a folder: its files, which may be links, and all other entries with a word on what they are."""

    files: tuple[str, ...]
    others: tuple[tuple[str, str], ...]
    """Folders that are empty, links or a tool's, and what is not a file, each with a word on it: never taken over."""


def read_contents(folder: Path) -> Contents:
    """Lists all entries of a folder, by their paths in it; folders end in `/`. Doesn't follow links to folders."""
    files: list[str] = []
    others: list[tuple[str, str]] = []
    for place, folders, names in os.walk(folder):
        inside = PurePosixPath(Path(place).relative_to(folder).as_posix())
        tools = [name for name in folders if (name in TOOL_FOLDERS and place == str(folder)) or name in _JUNK]
        links = [name for name in folders if (Path(place) / name).is_symlink() and name not in tools]
        others += [(f"{inside / name}/", "") for name in tools]
        others += [(f"{inside / name}/", "a link") for name in links]
        if not (folders or names) and place != str(folder):
            others.append((f"{inside}/", "empty"))
        # os.walk enters only the folders that are left in its list.
        folders[:] = sorted(name for name in folders if name not in (*tools, *links))
        for name in names:
            if (Path(place) / name).is_file() and name not in _JUNK:
                files.append(str(inside / name))
            else:
                others.append((str(inside / name), "" if name in _JUNK else "not a file"))
    return Contents(tuple(sorted(files)), tuple(sorted(others)))


def left_behind(folder: Path, contents: Contents, manifest: CheckpointManifest) -> tuple[str, ...]:
    """Lists what an edited copy of a checkpoint doesn't take over, sorted; a skipped folder is one entry ending in `/`.

    The weights that are edited aren't among them.
    """
    weights = {file.name for file in manifest.files}
    is_sharded = manifest.format is WeightsFormat.SAFETENSORS and len(weights) > 1
    own = weights | ({INDEXES[0]} if is_sharded else set())  # the index is written again
    left = {_top_entry(name) for name in contents.files if name not in own and not _holds_no_head(folder / name)}
    for name, word in contents.others:
        path = PurePosixPath(name)
        is_inside = len(path.parts) > 1 and path.name not in _JUNK
        left.add(_top_entry(name) if is_inside else f"{name} ({word})" if word else name)
    if left.intersection(_module_folders(folder)):
        left.add("modules.json")  # it would name folders that aren't there
    return tuple(sorted(left))


def _top_entry(name: str) -> str:
    """Gives the folder at the top that holds an entry, or the entry itself if it is at the top."""
    first, inside, _ = name.partition("/")
    return f"{first}/" if inside else name


def _module_folders(folder: Path) -> Iterator[str]:
    """Yields the folders of the modules that sentence-transformers loads."""
    try:
        modules = json.loads((folder / "modules.json").read_bytes())
        yield from (f"{item['path'].rstrip('/')}/" for item in modules if item["path"])
    # Without a readable modules.json, sentence-transformers finds no modules here either.
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return


def _holds_no_head(path: Path) -> bool:
    """True if a file is known to hold no weights, by its name or by its content."""
    name = path.name.lower()
    if any(fnmatchcase(name, pattern) for pattern in _PLAIN):
        return True
    if name.endswith((*_WEIGHTS, ".index.json")):
        return False
    if any(fnmatchcase(name, pattern) for pattern in _VOCABULARIES) or name.endswith((*_CODE, *_PICTURES)):
        return True
    if not name.endswith((*_TEXTS, ".model")) or path.stat().st_size > _LARGEST:
        return False
    content = path.read_bytes()
    if name.endswith(".model"):
        # SentencePiece's file begins with its pieces; a line of tiktoken's is a token in base64 and its rank.
        is_of_tiktoken = re.match(rb"[A-Za-z0-9+/=]+ \d+\r?\n", content) is not None
        return is_of_tiktoken or (content[:1] == b"\n" and b"<unk>" in content[:2000])
    words = re.split(rb"[\s,;:\[\]{}\"']+", content)
    is_coded = any(len(word) > _LONGEST_TEXT for word in words)
    numbers = sum(word.lstrip(b"-+")[:1].isdigit() for word in words)
    return not is_coded and numbers < _MOST_NUMBERS and len(_NUMBER.findall(content)) < _MOST_FRACTIONS


def taken_names(names: Sequence[str], left: Iterable[str], *others: str) -> list[str]:
    """Lists the files to copy unchanged: those that are neither left behind nor `others`, which are written."""
    kept = set(left)
    return [name for name in names if not kept.intersection((name, _top_entry(name))) and name not in others]
