"""Snapshots: a checkpoint's configuration and tensor headers in one small JSON file, without weights."""

import dataclasses
import difflib
import json
from collections.abc import Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from headscope.checkpoints.formats.config_file import parse_object
from headscope.checkpoints.formats.dtypes import TORCH_DTYPES
from headscope.errors import Malformed, Unsupported, UsageError
from headscope.facts import (
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
from headscope.outputs import write_over
from headscope.upstream.hub import cached_repositories
from headscope.upstream.python import FULL, write_hint

FORMAT = "headscope-snapshot"
VERSION = 1
LARGEST_SNAPSHOT = 30_000_000
_SIZES = 2**63


def snapshot_text(manifest: CheckpointManifest, provenance: str = "") -> str:
    """A manifest as the text of a snapshot: JSON, one tensor a line, the same for the same checkpoint."""
    head = {
        "format": FORMAT,
        "version": VERSION,
        "reference": manifest.reference,
        "provenance": provenance or _provenance(manifest),
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
    tensors = [json.dumps(_tensor_entry(tensor)) for tensor in manifest.tensors]
    return "{\n" + ",\n".join(lines) + ',\n"tensors": [\n' + ",\n".join(tensors) + "\n]\n}\n"


def _provenance(manifest: CheckpointManifest) -> str:
    """Where the facts are from; a snapshot of a snapshot says what the first one said."""
    source = () if manifest.kind is CheckpointKind.SNAPSHOT else (f"read from {manifest.kind.value}",)
    return "; ".join((*source, *manifest.notices))


def _tensor_entry(tensor: TensorHeader) -> dict[str, Any]:
    return {"key": tensor.key, "dtype": tensor.dtype, "shape": list(tensor.shape), "file": tensor.file}


def write_snapshot(manifest: CheckpointManifest, path: str | Path, provenance: str = "") -> None:
    """Writes a snapshot atomically. Raises UsageError where it cannot be written, Unsupported on a full disk."""
    target = Path(path)
    try:
        write_over(target, snapshot_text(manifest, provenance), "output", [Path(manifest.reference)])
    except OSError as err:
        if err.errno in FULL:
            raise Unsupported(f"{target} cannot be written: {err.strerror}", write_hint(err)) from err
        raise UsageError(f"{target} cannot be written: {err.strerror}", write_hint(err)) from err


def read_snapshot(text: bytes, reference: str) -> CheckpointManifest:
    """The manifest in the text of a snapshot. Raises Malformed where it is none."""
    return _from_values(_parse(text, reference), reference, len(text))


def _from_values(values: dict[str, Any], reference: str, size: int) -> CheckpointManifest:
    try:
        files = tuple(WeightFile(_expect(file["name"], str), _size(file["size"])) for file in values["files"])
        tensors = tuple(_tensors(values["tensors"], {"", *(file.name for file in files)}))
        return CheckpointManifest(
            reference=reference,
            kind=CheckpointKind.SNAPSHOT,
            format=WeightsFormat(values["weights_format"]),
            parsed_config=_expect(values["config"], dict),
            tensors=tensors,
            files=files,
            revision=_optional_text(values["revision"]),
            commit=_optional_text(values["commit"]),
            bytes_read=size,
            shared=tuple(_shared(values["shared"], {tensor.key for tensor in tensors})),
            notices=(f"snapshot of {_expect(values['reference'], str)} ({_expect(values['provenance'], str)})",),
            gaps=tuple(
                Gap(_expect(gap["what"], str), _expect(gap["reason"], str)) for gap in _expect(values["gaps"], list)
            ),
            base=_expect(values.get("base", ""), str),
            base_revision=_optional_text(values.get("base_revision")),
            base_commit=_optional_text(values.get("base_commit")),
            adapter=_adapter_in(values),
            sentence=_sentence_in(values.get("sentence")),
        )
    except (KeyError, TypeError, ValueError) as err:
        raise Malformed(
            f"{reference} is not a complete snapshot: {type(err).__name__} {err}",
            "write it again with headscope snapshot",
        ) from err


def _adapter_in(values: dict[str, Any]) -> CheckpointManifest | None:
    if values.get("adapter") is None:
        return None
    adapter = _expect(values["adapter"], dict)
    if "adapter" in adapter:
        raise ValueError("an adapter holds an adapter")
    return _from_values(adapter, _expect(adapter["reference"], str), 0)


def _sentence_in(value: Any) -> SentencePipeline | None:
    if value is None:
        return None
    texts = {name: tuple(_expect(item, str) for item in _expect(value[name], list)) for name in ("modules", "pooling")}
    ids = _expect(value.get("token_ids", []), list)
    if not all(type(item) is int and item >= 0 for item in ids):
        raise TypeError("the tokens of a reranker are not ids")
    return SentencePipeline(
        **texts,
        reason=_expect(value["reason"], str),
        classifier=_expect(value["classifier"], str),
        library_class=_expect(value.get("library_class", ""), str),
        activation=_expect(value.get("activation", ""), str),
        token_ids=tuple(ids),
        parts=tuple(map(_module_in, _expect(value.get("parts", []), list))),
        max_length=_size(value.get("max_length")),
        head=_head_in(value.get("head")),
    )


def _head_in(value: Any) -> PickledHead | None:
    if value is None:
        return None
    texts = {name: _expect(value[name], str) for name in ("class_name", "dtype", "library", "reason")}
    return PickledHead(
        **texts,
        labels=tuple(_expect(item, str) for item in _expect(value["labels"], list)),
        shape=tuple(map(_axis, _expect(value["shape"], list))),
        has_bias=_expect(value["has_bias"], bool),
    )


def _module_in(value: Any) -> SentenceModule:
    texts = {name: _expect(value[name], str) for name in ("name", "folder", "detail", "fault")}
    # Snapshots of before headscope 0.9 say nothing of these.
    later = {"unknown": "the snapshot is an older one, without its settings"} | value
    texts |= {name: _expect(later.get(name, ""), str) for name in ("file", "reads", "writes", "activation", "unknown")}
    weights = tuple(
        ModuleTensor(_expect(item["name"], str), tuple(map(_axis, _expect(item["shape"], list))), _dtype(item["dtype"]))
        for item in _expect(value["weights"], list)
    )
    return SentenceModule(
        **texts,
        input_size=_size(value["input_size"]),
        output_size=_size(value["output_size"]),
        weights=weights,
        scores=_expect(value["scores"], bool),
        modes=tuple(_expect(item, str) for item in _expect(value.get("modes", []), list)),
        has_bias=_expect(value.get("has_bias", True), bool),
        has_residual=_expect(value.get("has_residual", False), bool),
        dropout=float(_expect(value.get("dropout", 0.0), float)),
    )


def _axis(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _SIZES:
        raise ValueError("an axis is not a size")
    return value


def _dtype(value: Any) -> str:
    if value not in TORCH_DTYPES:
        raise ValueError(f"the dtype {value!r} is unknown")
    return str(value)


def _parse(text: bytes, reference: str) -> dict[str, Any]:
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


def _expect(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"a {kind.__name__} was expected, found a {type(value).__name__}")
    return value


def _size(value: Any) -> int | None:
    if value is not None and (type(value) is not int or value < 0):
        raise TypeError("a file size is not a number of bytes")
    return value


def _optional_text(value: Any) -> str | None:
    return None if value is None else str(_expect(value, str))


def _shared(groups: Any, keys: set[str]) -> Iterator[tuple[str, ...]]:
    for group in _expect(groups, list):
        if len(_expect(group, list)) < 2 or not all(isinstance(key, str) and key in keys for key in group):
            raise ValueError("a shared group is not a list of at least two tensors")
        yield tuple(group)


def _tensors(entries: Any, files: set[str]) -> Iterator[TensorHeader]:
    seen: set[str] = set()
    for entry in _expect(entries, list):
        key, shape = _expect(entry["key"], str), _expect(entry["shape"], list)
        if key in seen:
            raise ValueError(f"the tensor {key!r} occurs twice")
        if not all(type(size) is int and 0 <= size < _SIZES for size in shape):
            raise ValueError(f"the shape of {key!r} is not a list of sizes")
        if entry["dtype"] not in TORCH_DTYPES or entry["file"] not in files:
            raise ValueError(f"the dtype or the file of {key!r} is unknown")
        seen.add(key)
        yield TensorHeader(key, _expect(entry["dtype"], str), tuple(shape), _expect(entry["file"], str))


def bundled_snapshots() -> tuple[str, ...]:
    """The ids of the checkpoints whose snapshots come with headscope, sorted."""
    names = (entry.name for entry in _bundle().iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in names if name.endswith(".json")))


def _bundle() -> Any:
    return resources.files("headscope.checkpoints") / "bundled"


def read_bundled(reference: str, reason: str) -> CheckpointManifest | None:
    """The bundled snapshot of a checkpoint, with a notice that says why it was used; None where there is none."""
    name = reference.rpartition("/")[2] if reference in _alias_ids() else reference
    if name not in bundled_snapshots():
        return None
    manifest = read_snapshot((_bundle() / f"{name}.json").read_bytes(), reference)
    return replace(manifest, notices=(f"bundled snapshot, reconstructed from published facts ({reason})",))


def _alias_ids() -> dict[str, str]:
    """The ids under organizations that the bundled checkpoints moved to."""
    owners = {
        "google-bert/bert-base-uncased", "FacebookAI/roberta-base", "distilbert/distilbert-base-uncased",
        "distilbert/distilbert-base-uncased-finetuned-sst-2-english", "xlnet/xlnet-base-cased", "openai-community/gpt2",
    }  # fmt: skip
    return {owner: owner.rpartition("/")[2] for owner in owners}


def nearest_known(reference: str, cache_dir: str | None = None) -> str:
    """The ID most like `reference` among those of the bundled snapshots and of the Hub's cache, or "".

    People leave out the end (`bert-base`), so a name that begins alike comes before one that only looks alike.
    """
    wanted = reference.rpartition("/")[2].lower()
    names = {name.rpartition("/")[2].lower(): name for name in (*cached_repositories(cache_dir), *bundled_snapshots())}
    longer = sorted((name for name in names if wanted and name.startswith(wanted)), key=len)
    near = longer[:1] or difflib.get_close_matches(wanted, names, n=1)
    return names[near[0]] if near else ""
