"""The manifest of a repository, from a storage that reads it."""

from headscope.checkpoints.adapter import ADAPTER_CONFIG
from headscope.checkpoints.config_file import canonical_text, parse_object
from headscope.checkpoints.sentence import read_sentence_pipeline
from headscope.checkpoints.weights import Storage, read_adapter_weights, read_weights
from headscope.facts import CheckpointKind, CheckpointManifest


def manifest_of(storage: Storage, name: str, variant: str | None) -> CheckpointManifest:
    """The manifest of what `storage` holds, without its own name; `name` is that of its configuration."""
    content = storage.read_text(name)
    config = parse_object(content, name)
    weights = read_adapter_weights(storage) if name == ADAPTER_CONFIG else read_weights(storage, config, variant)
    return CheckpointManifest(
        reference="",
        kind=CheckpointKind.ADAPTER if name == ADAPTER_CONFIG else CheckpointKind.HUB,
        format=weights.format,
        config_text=canonical_text(config),
        tensors=weights.tensors,
        files=weights.files,
        bytes_read=weights.bytes_read + len(content),
        shared=weights.shared,
        notices=weights.notices,
        gaps=weights.gaps,
        sentence=read_sentence_pipeline(storage),
    )
