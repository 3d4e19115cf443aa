"""Snapshots: a checkpoint's configuration and tensor headers in one small JSON file, without weights."""

import dataclasses
import difflib
import json
from collections.abc import Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from headscope.core.checkpoints.formats.config_file import parse_object
from headscope.core.checkpoints.formats.dtypes import TORCH_DTYPES
from headscope.core.facts import (
    CheckpointKind,
    CheckpointManifest,
    Gap,
    ModuleTensor,
    PickledHead,
    SentenceModule,
    SentencePipeline,
    TensorHeader,
    WeightFile,
    WeightsFormat,
)
from headscope.core.outputs import write_over
from headscope.core.upstream.hub import cached_repositories
from headscope.core.upstream.python import FULL, write_hint
from headscope.errors import Malformed, Unsupported, UsageError

FORMAT = "headscope-snapshot"
VERSION = 1
LARGEST_SNAPSHOT = 30_000_000
_SIZES = 2**63
"""Sizes of axes are below this: PyTorch keeps them in signed 64 bits."""


def snapshot_text(manifest: CheckpointManifest, provenance: str = "") -> str:
    """Writes a manifest as the text of a snapshot: JSON, one tensor per line, the same for the same checkpoint."""
    # A snapshot of a snapshot keeps the provenance of the first one, which is among its notices.
    source = () if manifest.kind is CheckpointKind.SNAPSHOT else (f"read from {manifest.kind.value}",)
    head = {
        "format": FORMAT,
        "version": VERSION,
        "reference": manifest.reference,
        "provenance": provenance or "; ".join((*source, *manifest.notices)),
        "revision": manifest.revision,
        "commit": manifest.commit,
        "weights_format": manifest.format.value,
        "config": manifest.config,
        "files": [{"name": file.name, "size": file.size} for file in manifest.files],
        "shared": [list(group) for group in manifest.shared],
        "gaps": [{"what": gap.topic, "reason": gap.reason} for gap in manifest.gaps],
    }
    if manifest.sentence is not None:
        head["sentence"] = dataclasses.asdict(manifest.sentence)
    if manifest.adapter is not None:
        head |= {
            "base": manifest.base,
            "base_revision": manifest.base_revision,
            "base_commit": manifest.base_commit,
            "adapter": json.loads(snapshot_text(manifest.adapter, "the adapter")),
        }
    lines = [f"{json.dumps(name)}: {json.dumps(value, sort_keys=True)}" for name, value in head.items()]
    entries = (
        {"key": tensor.key, "dtype": tensor.dtype, "shape": list(tensor.shape), "file": tensor.file}
        for tensor in manifest.tensors
    )
    tensors = map(json.dumps, entries)
    return "{\n" + ",\n".join(lines) + ',\n"tensors": [\n' + ",\n".join(tensors) + "\n]\n}\n"


def write_snapshot(manifest: CheckpointManifest, path: str | Path, provenance: str = "") -> None:
    """Writes a snapshot atomically. Raises UsageError where it cannot be written, Unsupported on a full disk."""
    target = Path(path)
    try:
        write_over(target, snapshot_text(manifest, provenance), "output", [Path(manifest.reference)])
    except OSError as err:
        kind = Unsupported if err.errno in FULL else UsageError
        raise kind(f"{target} cannot be written: {err.strerror}", write_hint(err)) from err


def read_snapshot(text: bytes, reference: str) -> CheckpointManifest:
    """Reads the manifest from the text of a snapshot. Raises Malformed if it is not one."""
    return _build_manifest(_parse_snapshot(text, reference), reference, len(text))


def _build_manifest(values: dict[str, Any], reference: str, size: int) -> CheckpointManifest:
    try:
        files = tuple(
            WeightFile(_checked_type(file["name"], str), _checked_size(file["size"])) for file in values["files"]
        )
        tensors = tuple(_read_tensor_entries(values["tensors"], {"", *(file.name for file in files)}))
        return CheckpointManifest(
            reference=reference,
            kind=CheckpointKind.SNAPSHOT,
            format=WeightsFormat(values["weights_format"]),
            config=_checked_type(values["config"], dict),
            tensors=tensors,
            files=files,
            revision=_checked_optional_text(values["revision"]),
            commit=_checked_optional_text(values["commit"]),
            bytes_read=size,
            shared=tuple(_read_shared_groups(values["shared"], {tensor.key for tensor in tensors})),
            notices=(
                f"snapshot of {_checked_type(values['reference'], str)} ({_checked_type(values['provenance'], str)})",
            ),
            gaps=tuple(
                Gap(_checked_type(gap["what"], str), _checked_type(gap["reason"], str))
                for gap in _checked_type(values["gaps"], list)
            ),
            base=_checked_type(values.get("base", ""), str),
            base_revision=_checked_optional_text(values.get("base_revision")),
            base_commit=_checked_optional_text(values.get("base_commit")),
            adapter=_adapter_in(values),
            sentence=_sentence_in(values.get("sentence")),
        )
    except (KeyError, TypeError, ValueError) as err:
        # What the checks below raise: a missing field, a wrong type, an invalid value.
        raise Malformed(
            f"{reference} is not a complete snapshot: {type(err).__name__} {err}",
            "write it again with headscope snapshot",
        ) from err


def _adapter_in(values: dict[str, Any]) -> CheckpointManifest | None:
    if values.get("adapter") is None:
        return None
    adapter = _checked_type(values["adapter"], dict)
    # Nested adapters could go on without end.
    if "adapter" in adapter:
        raise ValueError("an adapter holds an adapter")
    return _build_manifest(adapter, _checked_type(adapter["reference"], str), 0)


def _sentence_in(value: Any) -> SentencePipeline | None:
    if value is None:
        return None
    ids = _checked_type(value.get("token_ids", []), list)
    if not all(type(item) is int and item >= 0 for item in ids):
        raise TypeError("the tokens of a reranker are not ids")
    return SentencePipeline(
        modules=_texts_in(value["modules"]),
        pooling=_texts_in(value["pooling"]),
        reason=_checked_type(value["reason"], str),
        classifier=_checked_type(value["classifier"], str),
        library_class=_checked_type(value.get("library_class", ""), str),
        activation=_checked_type(value.get("activation", ""), str),
        token_ids=tuple(ids),
        parts=tuple(map(_module_in, _checked_type(value.get("parts", []), list))),
        max_length=_checked_size(value.get("max_length")),
        head=_head_in(value.get("head")),
    )


def _head_in(value: Any) -> PickledHead | None:
    if value is None:
        return None
    texts = {name: _checked_type(value[name], str) for name in ("class_name", "dtype", "library", "reason")}
    return PickledHead(
        **texts,
        labels=_texts_in(value["labels"]),
        shape=_axes_in(value["shape"]),
        has_bias=_checked_type(value["has_bias"], bool),
    )


def _module_in(value: Any) -> SentenceModule:
    texts = {name: _checked_type(value[name], str) for name in ("name", "folder", "detail", "fault")}
    # Snapshots of before headscope 0.9 say nothing of these.
    later = {"unknown": "the snapshot is an older one, without its settings"} | value
    texts |= {
        name: _checked_type(later.get(name, ""), str) for name in ("file", "reads", "writes", "activation", "unknown")
    }
    weights = tuple(
        ModuleTensor(_checked_type(item["name"], str), _axes_in(item["shape"]), _checked_dtype(item["dtype"]))
        for item in _checked_type(value["weights"], list)
    )
    return SentenceModule(
        **texts,
        input_size=_checked_size(value["input_size"]),
        output_size=_checked_size(value["output_size"]),
        weights=weights,
        scores=_checked_type(value["scores"], bool),
        modes=_texts_in(value.get("modes", [])),
        has_bias=_checked_type(value.get("has_bias", True), bool),
        has_residual=_checked_type(value.get("has_residual", False), bool),
        dropout=float(_checked_type(value.get("dropout", 0.0), float)),
    )


def _texts_in(values: Any) -> tuple[str, ...]:
    return tuple(_checked_type(item, str) for item in _checked_type(values, list))


def _axes_in(values: Any) -> tuple[int, ...]:
    if not all(type(size) is int and 0 <= size < _SIZES for size in _checked_type(values, list)):
        raise ValueError("an axis is not a size")
    return tuple(values)


def _checked_dtype(value: Any) -> str:
    if value not in TORCH_DTYPES:
        raise ValueError(f"the dtype {value!r} is unknown")
    return str(value)


def _parse_snapshot(text: bytes, reference: str) -> dict[str, Any]:
    values = parse_object(text, reference, LARGEST_SNAPSHOT)
    if values.get("format") != FORMAT:
        raise Malformed(
            f"{reference} is a JSON file, but not a snapshot of headscope",
            "give a checkpoint folder, a weight file, or a file written by headscope snapshot",
        )
    if type(values.get("version")) is not int or values["version"] != VERSION:
        raise Malformed(
            f"{reference} is a snapshot of version {values.get('version')}, but this headscope reads version {VERSION}",
            "write it again with this headscope, or upgrade",
        )
    return values


def _checked_type(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"a {kind.__name__} was expected, found a {type(value).__name__}")
    return value


def _checked_size(value: Any) -> int | None:
    if value is not None and (type(value) is not int or value < 0):
        raise TypeError("a file size is not a number of bytes")
    return value


def _checked_optional_text(value: Any) -> str | None:
    return None if value is None else str(_checked_type(value, str))


def _read_shared_groups(groups: Any, keys: set[str]) -> Iterator[tuple[str, ...]]:
    for group in _checked_type(groups, list):
        if len(_checked_type(group, list)) < 2 or not all(isinstance(key, str) and key in keys for key in group):
            raise ValueError("a shared group is not a list of at least two tensors")
        yield tuple(group)


def _read_tensor_entries(entries: Any, files: set[str]) -> Iterator[TensorHeader]:
    seen: set[str] = set()
    for entry in _checked_type(entries, list):
        key, shape = _checked_type(entry["key"], str), _checked_type(entry["shape"], list)
        if key in seen:
            raise ValueError(f"the tensor {key!r} occurs twice")
        if not all(type(size) is int and 0 <= size < _SIZES for size in shape):
            raise ValueError(f"the shape of {key!r} is not a list of sizes")
        if entry["dtype"] not in TORCH_DTYPES or entry["file"] not in files:
            raise ValueError(f"the dtype or the file of {key!r} is unknown")
        seen.add(key)
        yield TensorHeader(key, _checked_type(entry["dtype"], str), tuple(shape), _checked_type(entry["file"], str))


def bundled_snapshots() -> tuple[str, ...]:
    """Lists the IDs of the checkpoints whose snapshots are installed with headscope, sorted."""
    names = (entry.name for entry in _bundled_folder().iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in names if name.endswith(".json")))


def _bundled_folder() -> Any:
    return resources.files("headscope.core.checkpoints") / "bundled"


def read_bundled(reference: str, reason: str) -> CheckpointManifest | None:
    """Reads the bundled snapshot of a checkpoint, with a notice that says why it was used; None if there is none."""
    name = reference.rpartition("/")[2] if reference in _OWNED else reference
    # The user's text becomes a part of a path below only if it is one of these names.
    if name not in bundled_snapshots():
        return None
    manifest = read_snapshot((_bundled_folder() / f"{name}.json").read_bytes(), reference)
    return replace(manifest, notices=(f"bundled snapshot, reconstructed from published facts ({reason})",))


_OWNED = {
    "google-bert/bert-base-uncased", "FacebookAI/roberta-base", "distilbert/distilbert-base-uncased",
    "distilbert/distilbert-base-uncased-finetuned-sst-2-english", "xlnet/xlnet-base-cased", "openai-community/gpt2",
}  # fmt: skip
"""IDs that bundled checkpoints have under their organizations; the old ID is the part behind the slash."""


def nearest_known(reference: str, cache_dir: str | None = None) -> str:
    """Finds the ID most like `reference` among those of the bundled snapshots and of the Hub's cache; "" for none.

    People leave out the end (`bert-base`), so a name that begins alike comes before one that only looks alike.
    """
    wanted = reference.rpartition("/")[2].lower()
    names = {name.rpartition("/")[2].lower(): name for name in (*cached_repositories(cache_dir), *bundled_snapshots())}
    longer = sorted((name for name in names if wanted and name.startswith(wanted)), key=len)
    near = longer[:1] or difflib.get_close_matches(wanted, names, n=1)
    return names[near[0]] if near else ""
