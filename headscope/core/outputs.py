"""Where an output may go, and text files that are written atomically."""

import codecs
import os
import re
import secrets
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

from headscope.errors import UsageError

_PIECE = 65_536
_CHECKPOINT_PATTERNS = (
    "config.json", "generation_config.json", "adapter_config.json", "tokenizer_config.json", "quantize_config.json",
    "preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json", "sentence_*_config.json",
    "config_sentence_transformers.json", "config_setfit.json", "*.index.json", "modules.json", "model_args.json",
    "model_index.json", "trainer_state.json", "headscope-edit.json", "headscope-repair.json", "params.json",
    "tokenizer.json", "special_tokens_map.json", "added_tokens.json", "vocab.*", "*_vocab.*", "vocab-*.*", "vocab_*.*",
    "*merges.txt", "chat_template*", "*.jinja", "*.model", "*.spm", "*.tiktoken", "*.codes", "*.tokenizer", "emoji.*",
    "dict.txt", "normalizer.json", "word_*.json", "byte_maps.json", "readme.md", "license", "license.*",
    ".gitattributes", "*.safetensors", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.gguf", "*.onnx", "*.onnx_data",
    "*.onnx.data", "*.h5", "*.msgpack", "*.ot", "*.tflite", "*.pb", "*.pkl", "*.pickle", "*.joblib", "*.skops", "*.npz",
    "*.pte", "*.mlmodel", "*.distcp", "*.nemo",
)  # fmt: skip
"""Patterns of names, in lower case, that programs look for in the folder of a checkpoint."""
_RECORD_NAMES = ("headscope-edit.json", "headscope-repair.json")
"""Names of files that headscope writes into a checkpoint, as a part of it."""
_REPORT_ENDINGS = (
    "", ".txt", ".md", ".json", ".jsonl", ".sarif", ".xml", ".csv", ".py", ".log", ".out", ".svg", ".html", ".htm",
    ".mmd", ".mermaid", ".dot", ".gv",
)  # fmt: skip
"""Endings of the names of reports; an existing file with another ending is not a report."""
_FIELDS_OF_CHECKPOINTS = re.compile(
    rb'"(?:model_type|architectures|transformers_version|weight_map|peft_type|tokenizer_class|added_tokens|auto_map)"\s*:'
)
_REPORT_MARKS = re.compile(
    rb'\A\{(?=.*"schema_version": ).*"tool_version": |\A\{\s*"format": "headscope-|\nheadscope \d[^\n]*\n\s*\Z'
    rb'|\n_headscope \d[^\n]*_\n\s*\Z|\A"""[^\n]*`headscope (?:code|probe)|\A## headscope scan\n'
    rb'|\A<\?xml[^\n]*\n<testsuites name="headscope"|\A\{\s*"\$schema": "[^"]*sarif.*"name": "headscope"'
    rb'|\A::\w+ title=|\A\| model \| verdict \| findings \||\A\{"reference": .*"schema_version": '
    rb"|\A(?:\xef\xbb\xbf)?reference,verdict,commit,|\A<svg.*[hH]ead|\A<!DOCTYPE html>.*head"
    rb"|\A%%\{init: .*flowchart|\Adigraph head \{",
    re.DOTALL,
)
"""Beginning or end of each format of a report; a saved text ends in headscope's version for this."""
_MOST_LEVELS = 6
"""Number of folders that are searched upward for a checkpoint: `M/onnx/model.onnx`, `M/original/mp_rank_00/...`."""


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
    try:
        reason = _why_protected(target, tuple(read))
    except OSError as err:
        raise UsageError(
            f"{option} {path} can't be looked at: {err.strerror}", "check its permissions, or name another file"
        ) from err
    if reason:
        leads = "" if target.name == path.name else f" leads to {target.name}, which"
        raise UsageError(f"{option} {path}{leads} {reason}", "name another file")


def _why_protected(target: Path, read: Iterable[Path]) -> str:
    """Gives the reason why a file must not be written, as the end of a sentence; "" if it may be."""
    is_new = not target.exists()
    is_named = any(fnmatchcase(target.name.lower(), pattern) for pattern in _CHECKPOINT_PATTERNS)
    if is_in_hub_cache(target.parent):
        return "is in the Hub's cache, which only its client writes to"
    for item in () if is_new else read:
        with suppress(OSError, ValueError):  # a text that isn't a path
            if item.samefile(target):
                return "is read by this command"
    content = b"" if is_new else _beginning_and_end(target)
    if _REPORT_MARKS.search(content) and target.name.lower() not in _RECORD_NAMES:
        return ""
    if is_named and (not is_new or _has_checkpoint(target.parent)):
        return "has the name of a file that checkpoints are made of"
    is_in_data = any(item.is_dir() and target.is_relative_to(os.path.realpath(item)) for item in read)
    return _why_content_protected(target, content, is_in_data=is_in_data) if content else ""


def _why_content_protected(target: Path, content: bytes, *, is_in_data: bool) -> str:
    """Gives the reason why a file with content that isn't a report must stay; "" if it may be replaced."""
    if target.suffix.lower() not in _REPORT_ENDINGS or not _is_text(content):
        return "exists and is not a report"
    if _FIELDS_OF_CHECKPOINTS.search(content):
        return "holds a part of a checkpoint"
    if is_in_data:
        return "is in a folder that this command reads"
    return "is in the folder of a checkpoint and isn't a report of headscope" if _has_checkpoint(target.parent) else ""


def _beginning_and_end(path: Path) -> bytes:
    """Reads the first and the last bytes of a file, by which a report of any size is recognized."""
    with path.open("rb") as file:
        start = file.read(_PIECE)
        file.seek(max(_PIECE, path.stat().st_size - _PIECE))
        return start + file.read(_PIECE)


def _is_text(content: bytes) -> bool:
    try:  # incremental: the piece may end inside a character
        text = codecs.getincrementaldecoder("utf-8")().decode(content[:_PIECE])
    except UnicodeDecodeError:
        return False
    return "\0" not in text


def _has_checkpoint(folder: Path) -> bool:
    """True if a folder is that of a checkpoint, or one above it is without doubt."""
    for level, place in enumerate((folder, *folder.parents[: _MOST_LEVELS - 1])):
        try:
            names = {item.name for item in place.iterdir()}
        except OSError:  # a folder above that this user may not list
            continue
        if any(name.endswith(".safetensors") or name in _CHECKPOINT_SIGNS for name in names):
            return True
        config = place / "config.json"
        if "config.json" in names and config.is_file() and _FIELDS_OF_CHECKPOINTS.search(_beginning_and_end(config)):
            return True
        # Further up, a lone file of weights proves nothing: a home folder may hold a .bin.
        if level == 0 and any(name.lower().endswith(_WEIGHT_ENDINGS) for name in names):
            return True
    return False


_CHECKPOINT_SIGNS = (
    "adapter_config.json",
    "pytorch_model.bin",
    "modules.json",
    "tokenizer_config.json",
    "tokenizer.json",
)
_WEIGHT_ENDINGS = (
    *(pattern.removeprefix("*") for pattern in _CHECKPOINT_PATTERNS if pattern.startswith("*.")),
    ".xml", ".metadata", "_iteration.txt", "_checkpoint_metadata",
)  # fmt: skip


def is_in_hub_cache(folder: Path) -> bool:
    """True if a folder is in a repository of the Hub's cache: `models--ORG--NAME/snapshots/COMMIT`, or its `blobs`.

    The folders themselves tell, wherever the cache is; a snapshot's files may also be links to another disk, which lead
    into a folder `blobs`.
    """
    place = Path(os.path.realpath(folder))
    if (place / "blobs").is_dir() and (place / "refs").is_dir():
        return True
    for inner, outer in zip((place, *place.parents), place.parents, strict=False):
        if inner.name in ("snapshots", "blobs", "refs") and (outer / "blobs").is_dir() and (outer / "refs").is_dir():
            return True
        if re.fullmatch(r"(models|datasets|spaces)--[^/]+", outer.name) and (outer / "snapshots").is_dir():
            return True
    if not place.is_dir():
        return False
    links = (Path(os.path.realpath(item.path)) for item in os.scandir(place) if item.is_symlink())
    return any(link.parent.name == "blobs" for link in links)


UNFINISHED = r"\.{name}\.[0-9a-z_]{{8}}"
"""Pattern for the name of a file until it is whole: a killed run can leave one behind."""


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
        temporary.replace(target)  # atomic, as both are in one folder
    except BaseException:  # also for Ctrl-C: no half file stays
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
