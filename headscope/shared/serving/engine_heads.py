"""The head that each engine runs for an examined checkpoint, by the cited facts."""

from __future__ import annotations

from pathlib import Path

from headscope.core.facts import CheckpointKind
from headscope.core.source.checkpoint import Checkpoint
from headscope.shared.serving.engine_facts import EnginesReport
from headscope.shared.serving.judging import judge_engines


def engines_for(checkpoint: Checkpoint, engine: str | None) -> EnginesReport:
    """Judges what the engines, or the named one, do with the head of an examined checkpoint."""
    return judge_engines(checkpoint.report, checkpoint.manifest, engine, _why_not_covered(checkpoint))


def _why_not_covered(checkpoint: Checkpoint) -> str:
    """Gives the reason why the facts don't cover the named place; "" if they do."""
    # Engines load whole folders and repositories.
    location, is_snapshot = checkpoint.request.location, checkpoint.manifest.kind is CheckpointKind.SNAPSHOT
    if location.subfolder or location.variant:
        return "the facts don't cover subfolders and variants"
    if not is_snapshot and Path(location.reference).is_file():
        return "one weight file was named, and engines load folders"
    return ""
