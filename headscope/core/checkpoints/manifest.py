"""The manifest of a checkpoint, from a storage that reads its files."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headscope.core.checkpoints.contents.adapter import ADAPTER_CONFIG
from headscope.core.checkpoints.contents.sentence import read_sentence_pipeline
from headscope.core.checkpoints.contents.weights import (
    FileStorage,
    StoredWeights,
    read_adapter_weights,
    read_weight_file,
    read_weights,
)
from headscope.core.checkpoints.formats.config_file import parse_object
from headscope.core.facts import CheckpointKind, CheckpointManifest, Gap, WeightFile, WeightsFormat
from headscope.core.facts.stored.checkpoint import CONFIG

if TYPE_CHECKING:
    from headscope.core.checkpoints.states.place import Found


def manifest_of(
    storage: FileStorage, name: str, kind: CheckpointKind, reference: str = "", variant: str | None = None
) -> CheckpointManifest:
    """Reads the manifest of what `storage` holds; `name` is its configuration file.

    The manifest is of that `kind` unless the file is adapter_config.json, which makes it an adapter's.
    """
    content = storage.read_text(name)
    config = parse_object(content, name)
    if name == ADAPTER_CONFIG:
        kind, weights = CheckpointKind.ADAPTER, read_adapter_weights(storage)
    else:
        weights = read_weights(storage, config, variant)
    manifest = manifest_of_weights(reference, kind, config, len(content), weights)
    return replace(manifest, sentence=read_sentence_pipeline(storage, config))


def manifest_of_file(storage: FileStorage, name: str, reference: str) -> CheckpointManifest:
    """Reads the manifest of one local weight file and the config.json beside it."""
    content = storage.read_text(CONFIG)
    config = parse_object(content, CONFIG)
    return manifest_of_weights(reference, CheckpointKind.LOCAL, config, len(content), read_weight_file(storage, name))


def manifest_of_weights(
    reference: str, kind: CheckpointKind, config: dict[str, Any], config_bytes: int, weights: StoredWeights
) -> CheckpointManifest:
    """Builds the manifest of weights that were read; their configuration took `config_bytes` bytes."""
    return CheckpointManifest(
        reference=reference,
        kind=kind,
        format=weights.format,
        config=config,
        tensors=weights.tensors,
        files=weights.files,
        bytes_read=weights.bytes_read + config_bytes,
        shared=weights.shared,
        notices=weights.notices,
        gaps=weights.gaps,
        unread=weights.unread,
    )


def bare_manifest(storage: FileStorage, reference: str, kind: CheckpointKind, gap: Gap) -> CheckpointManifest:
    """Builds the manifest of a checkpoint without weights that can be loaded; `gap` says why."""
    content = storage.read_text(CONFIG)
    config = parse_object(content, CONFIG)
    return manifest_of_weights(reference, kind, config, len(content), StoredWeights(WeightsFormat.NONE, gaps=(gap,)))


def in_state(manifest: CheckpointManifest, found: "Found") -> CheckpointManifest:
    """Adds the state in which the files were found to the manifest, and what their repair would give."""
    repaired = None
    if found.tensors is not None:
        # The repair writes all tensors into one file, wherever they are now.
        tensors = tuple(replace(tensor, file=found.file) for tensor in found.tensors)
        files = (WeightFile(found.file),)
        repaired = replace(manifest, format=WeightsFormat.SAFETENSORS, tensors=tensors, files=files, gaps=())
    return replace(manifest, states=(found.state,), repaired=repaired)
