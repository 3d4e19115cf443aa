"""The record that `edit` leaves in a folder, as a sentence; shown only while the record's digests fit the files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

from headscope.core.checkpoints.checkpoint_files import FileReader, TensorBytes
from headscope.core.checkpoints.formats.config_file import parse_object
from headscope.core.facts import CheckpointManifest
from headscope.core.facts.counting import counted, few_of, shortened
from headscope.errors import HeadscopeError

EDIT_RECORD = "headscope-edit.json"
_CONFIG = "config.json"
_ENDS = 1 << 20
"""Bytes at either end of a tensor that its digest covers: a new training changes all of a head."""
_MOST_TENSORS = 64


def digests_of(files: FileReader, manifest: CheckpointManifest, keys: Iterable[str]) -> dict[str, str]:
    """Computes the digests that prove that config.json and some tensors are unchanged: the SHA-256 of each.

    Of a large tensor it covers the two ends. Raises a HeadscopeError for files that can't be read.
    """
    headers = {header.key: header for header in manifest.tensors}
    data = TensorBytes(files, {file.name: file.size for file in manifest.files})
    found = {_CONFIG: hashlib.sha256(files.storage.read_text(_CONFIG)).hexdigest()}
    for key in sorted(set(keys) & headers.keys()):
        header = headers[key]
        begin, end = data.places([header])[header] or (0, 0)
        size = end - begin
        ends = [(0, size)] if size <= 2 * _ENDS else [(0, _ENDS), (size - _ENDS, size)]
        # The same bytes in another dtype or shape are another tensor.
        form = f"{header.dtype} {header.shape} ".encode()
        found[key] = hashlib.sha256(form + (data.read({header: ends})[header] if size else b"")).hexdigest()
    return found


def edit_notice(files: FileReader, manifest: CheckpointManifest) -> str:
    """Describes the edit that a folder's record names, in one sentence; "" for a folder without a record.

    "" for a record of another form as well: whoever made the folder may have written anything.
    """
    if not files.has(EDIT_RECORD):
        return ""
    try:
        record = parse_object(files.storage.read_text(EDIT_RECORD), EDIT_RECORD)
        digests, source = record.get("digests"), record.get("source")
        if not isinstance(digests, dict) or not isinstance(source, str) or len(digests) > _MOST_TENSORS:
            return ""
        fits = _CONFIG in digests and digests_of(files, manifest, digests.keys()) == digests
        origin = shortened(source)
        if not fits:
            return f"{EDIT_RECORD} says that it was edited from {origin}, but the record no longer fits the files"
        return f"edited from {origin}: {', '.join(_describe_changes(record)) or 'config.json only'}"
    except (HeadscopeError, TypeError, ValueError, KeyError, AttributeError, ArithmeticError):
        # The record is foreign data: a wrong type in any field must not stop the examination of a good checkpoint.
        return ""


def _describe_changes(record: dict[str, Any]) -> Iterator[str]:
    """Describes each change in a few words."""
    labels, before = record["labels"], record["labels_before"]
    if record.get("merge") is not None:
        yield "an adapter merged"
    if record.get("fold") is not None:
        yield f"the head of {shortened(str(record['fold']['class_before']))} folded into the class"
    # "merged" classes are counted apart: their weights come from classes that were there before.
    new = [str(item["name"]) for item in labels if item["origin"] not in ("kept", "merged")]
    used = {item["from"] for item in labels} | {place for item in labels for place in item["merged"]}
    dropped = [str(name) for at, name in enumerate(before) if at not in used] if labels else []
    renamed = [item for item in labels if item["origin"] == "kept" and item["name"] != item["name_before"]]
    kept = [item["from"] for item in labels if item["origin"] == "kept"]
    merged = [str(item["name"]) for item in labels if item["origin"] == "merged"]
    for names, what in ((new, "added"), (dropped, "left out"), (merged, "merged from others")):
        if names:
            yield f"{counted(len(names), 'class', 'classes')} {what} ({few_of(map(shortened, names))})"
    if renamed:
        yield f"{counted(len(renamed), 'class', 'classes')} renamed"
    if kept != sorted(kept):
        yield "another order"
    if any(item["shift"] for item in labels if item["origin"] != "merged"):
        yield "thresholds or biases"
    if record["temperature"] != 1.0:
        yield f"a temperature of {float(record['temperature']):.3g}"
