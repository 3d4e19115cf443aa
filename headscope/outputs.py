"""Where an output may go, and text files that are written atomically."""

import codecs
import os
import re
import secrets
import stat
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from headscope.errors import UsageError

_PIECE = 65_536
_OF_CHECKPOINTS = (
    "config.json", "*_config.json", "config_*.json", "*.index.json", "modules.json", "model_args.json",
    "model_index.json", "trainer_state.json", "headscope-edit.json", "headscope-repair.json",
    "tokenizer*.json", "*special_tokens*", "added_tokens*", "*vocab*", "*merges*", "chat_template*", "*.jinja",
    "*.model", "*.spm", "*.tiktoken", "*.codes", "*.tokenizer", "emoji.*", "dict.txt", "normalizer.json", "word_*.json",
    "byte_maps.json",
    "readme.md", "license*", ".gitattributes",
    "*.safetensors", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.gguf", "*.onnx", "*.onnx_data", "*.onnx.data", "*.h5",
    "*.msgpack", "*.ot", "*.tflite", "*.pb", "*.pkl", "*.pickle", "*.joblib", "*.skops", "*.npz", "*.pte",
    "*.mlmodel", "*.distcp",
)  # fmt: skip
"""Names, in lower case, that programs look for in the folder of a checkpoint."""
_FIELDS_OF_CHECKPOINTS = re.compile(
    rb'"(?:model_type|architectures|transformers_version|weight_map|peft_type|tokenizer_class|added_tokens|auto_map)"\s*:'
)
_MARKS = re.compile(
    rb'"tool_version": |"format": "headscope-|headscope \d|`headscope (?:code|probe)|## headscope scan'
    rb'|name="headscope"|"name": "headscope"|\A::\w+ title=|\A\| model \| verdict \|'
    rb'|\A\{"reference": "|\A(?:\xef\xbb\xbf)?reference,'
)
"""What each format of a report holds; a text that is saved ends in headscope's version for this."""
_PICTURES = (".svg", ".html", ".htm", ".mmd", ".mermaid", ".dot", ".gv")
"""Formats that no library reads a checkpoint from."""
_LEVELS = 3
"""How many folders up a checkpoint is looked for: `M/onnx/model.onnx`, `M/original/mp_rank_00/...`."""


def check_output(path: Path | None, option: str = "-o", read: Iterable[Path] = ()) -> None:
    """Raises UsageError for a path that can't become a file, or holds what a checkpoint is made of.

    A file that exists is protected if it is one of `read` (what this run reads), if it is in the Hub's cache, or if
    it belongs to a checkpoint by its name, its contents or its folder. Reports that headscope wrote may be replaced,
    and new files may be written beside a checkpoint, but not under a name that a loader looks for. Links are followed.
    """
    if path is None:
        return
    if path.is_dir():
        raise UsageError(f"{option} {path} is a folder", "name a file")
    if not path.parent.is_dir():
        raise UsageError(f"{option} {path}: there is no folder {path.parent}", "make the folder first")
    if path.exists() and not path.is_file():  # a device or a pipe
        return
    target = Path(os.path.realpath(path))
    reason = _protection(target, read)
    if reason:
        leads = "" if target.name == path.name else f" leads to {target.name}, which"
        raise UsageError(f"{option} {path}{leads} {reason}", "name another file")


def _protection(target: Path, read: Iterable[Path]) -> str:
    """Why a file must not be written, as the end of a sentence; "" where it may be."""
    is_new = not target.exists()
    named = any(fnmatchcase(target.name.lower(), pattern) for pattern in _OF_CHECKPOINTS)
    if is_in_hub_cache(target.parent):
        return "is in the Hub's cache, which only its client writes to"
    if not is_new and any(_is_same_file(item, target) for item in read):
        return "is read by this command"
    if named and (not is_new or _has_checkpoint(target.parent)):
        return "has the name of a file that checkpoints are made of"
    return "" if is_new else _protection_by_content(target)


def _is_same_file(path: Path, other: Path) -> bool:
    """Whether a path leads to a file that exists; a text that isn't a path leads nowhere."""
    try:
        return path.samefile(other)
    except (OSError, ValueError):
        return False


def _protection_by_content(target: Path) -> str:
    """Why a file that exists must stay, by what it holds and where it is; "" where it may be replaced."""
    content = _beginning_and_end(target)
    if not content or _MARKS.search(content):
        return ""
    if not _is_text(target):
        return "exists and is not a text file, so it is not a report"
    if target.suffix.lower() in _PICTURES:
        return ""
    if _FIELDS_OF_CHECKPOINTS.search(content):
        return "holds a part of a checkpoint"
    return "is in the folder of a checkpoint, and headscope didn't write it" if _has_checkpoint(target.parent) else ""


def _beginning_and_end(path: Path) -> bytes:
    """The first and the last bytes of a file: a report is known by them, whatever its size."""
    with path.open("rb") as file:
        start = file.read(_PIECE)
        file.seek(max(_PIECE, path.stat().st_size - _PIECE))
        return start + file.read(_PIECE)


def _is_text(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(_PIECE)
    try:  # incremental: the piece may end inside a character
        text = codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return False
    return "\0" not in text


def _has_checkpoint(folder: Path) -> bool:
    """Whether a folder, or one of those above it, is that of a checkpoint."""
    for place in (folder, *folder.parents[: _LEVELS - 1]):
        try:
            names = {item.name for item in place.iterdir()}
        except OSError:
            continue
        if any(name.endswith((".safetensors", ".gguf")) or name in _SIGNS for name in names):
            return True
        config = place / "config.json"
        if "config.json" in names and config.is_file() and _FIELDS_OF_CHECKPOINTS.search(_beginning_and_end(config)):
            return True
    return False


_SIGNS = ("adapter_config.json", "pytorch_model.bin", "modules.json", "tokenizer_config.json", "tokenizer.json")


def is_in_hub_cache(folder: Path) -> bool:
    """Whether a folder is in a repository of the Hub's cache: `models--ORG--NAME/snapshots/COMMIT`, or its `blobs`.

    Known by what the folders are, so that a path is seen as an ID is; a snapshot's files may also be links elsewhere
    (`HF_HUB_CACHE` on another disk), which lead into a folder `blobs`.
    """
    place = Path(os.path.realpath(folder))
    for inner, outer in zip((place, *place.parents), place.parents, strict=False):
        if inner.name in ("snapshots", "blobs", "refs") and (outer / "blobs").is_dir() and (outer / "refs").is_dir():
            return True
        if re.fullmatch(r"(models|datasets|spaces)--[^/]+", outer.name) and (outer / "snapshots").is_dir():
            return True
    if not place.is_dir():
        return False
    links = (Path(os.path.realpath(item.path)) for item in os.scandir(place) if item.is_symlink())
    return any(link.parent.name == "blobs" for link in links)


def write_whole(target: Path, text: str) -> None:
    """Writes `text` to `target`, whose permissions stay. Raises OSError; then `target` is as it was."""
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    # 0o666 less the umask, which the system takes off itself: reading it would mean to set it, for all threads.
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            if target.exists():
                temporary.chmod(stat.S_IMODE(target.stat().st_mode))
            file.write(text)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_over(path: Path, text: str, option: str = "-o", read: Sequence[Path] = ()) -> bool:
    """Writes `text` to where `path` leads. A link is followed; a device or pipe (`/dev/stdout`) is written to
    directly.

    Returns whether a file was written whole. Raises UsageError as `check_output` does, and OSError.
    """
    check_output(path, option, read)
    if path.exists() and not path.is_file():  # the path itself: a pipe behind /dev/stdout has no other name
        path.write_text(text, encoding="utf-8")
        return False
    write_whole(Path(os.path.realpath(path)), text)
    return True
