"""The head that each engine runs for an examined checkpoint, by the cited facts."""

from __future__ import annotations

from pathlib import Path

from headscope.core.facts import CheckpointKind
from headscope.core.source.checkpoint import Checkpoint
from headscope.errors import HeadscopeError
from headscope.shared.serving.engine_facts import EnginesReport
from headscope.shared.serving.judging import judge_engines


def engines_for(checkpoint: Checkpoint, engine: str | None) -> EnginesReport:
    """Judges what the engines, or the named one, do with the head of an examined checkpoint."""
    limit, tokenizer = _why_not_covered(checkpoint), _tokenizer_class(checkpoint)
    return judge_engines(checkpoint.report, checkpoint.manifest, engine, limit, tokenizer)


def _tokenizer_class(checkpoint: Checkpoint) -> str | None:
    """Gives the class that the tokenizer's settings name; "" where they name none, None where they can't be read."""
    from headscope.core.checkpoints.checkpoint_files import read_tokenizer_settings

    if checkpoint.manifest.kind is CheckpointKind.SNAPSHOT:
        return None
    try:
        settings = [read_tokenizer_settings(place.sidecar) or {} for place in checkpoint.stored_files]
    except HeadscopeError:
        return None
    named = next((item["tokenizer_class"] for item in settings if "tokenizer_class" in item), "")
    return named if isinstance(named, str) else None


def _why_not_covered(checkpoint: Checkpoint) -> str:
    """Gives the reason why the facts don't cover the named place; "" if they do."""
    # Engines load whole folders and repositories.
    location, is_snapshot = checkpoint.request.location, checkpoint.manifest.kind is CheckpointKind.SNAPSHOT
    if location.subfolder or location.variant:
        return "the facts don't cover subfolders and variants"
    if not is_snapshot and Path(location.reference).is_file():
        return "one weight file was named, and engines load folders"
    return ""
