"""The manifest of a checkpoint, from a storage that reads its files."""

from dataclasses import replace

from headscope.checkpoints.adapter import ADAPTER_CONFIG
from headscope.checkpoints.config_file import canonical_text, parse_object
from headscope.checkpoints.sentence import read_sentence_pipeline
from headscope.checkpoints.weights import Storage, Weights, read_adapter_weights, read_weight_file, read_weights
from headscope.facts import CheckpointKind, CheckpointManifest

CONFIG = "config.json"


def manifest_of(
    storage: Storage, name: str, kind: CheckpointKind, reference: str = "", variant: str | None = None
) -> CheckpointManifest:
    """The manifest of what `storage` holds; `name` is that of its configuration, and an adapter's makes it an adapter.

    `kind` is what a checkpoint in this storage is.
    """
    content = storage.read_text(name)
    if name == ADAPTER_CONFIG:
        manifest = _assembled(reference, CheckpointKind.ADAPTER, content, name, read_adapter_weights(storage))
    else:
        weights = read_weights(storage, parse_object(content, name), variant)
        manifest = _assembled(reference, kind, content, name, weights)
    return replace(manifest, sentence=read_sentence_pipeline(storage))


def manifest_of_file(storage: Storage, name: str, reference: str) -> CheckpointManifest:
    """The manifest of one local weight file and the config.json beside it."""
    content = storage.read_text(CONFIG)
    return _assembled(reference, CheckpointKind.LOCAL, content, CONFIG, read_weight_file(storage, name))


def _assembled(reference: str, kind: CheckpointKind, content: bytes, name: str, weights: Weights) -> CheckpointManifest:
    return CheckpointManifest(
        reference=reference,
        kind=kind,
        format=weights.format,
        config_text=canonical_text(parse_object(content, name)),
        tensors=weights.tensors,
        files=weights.files,
        bytes_read=weights.bytes_read + len(content),
        shared=weights.shared,
        notices=weights.notices,
        gaps=weights.gaps,
    )
