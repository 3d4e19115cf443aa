"""The findings of an examination: what the rules say of it that need no more than was read for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope.checks.facts import Subject
from headscope.checks.rules import Selection, judge, rules_on_reports
from headscope.checks.rules.judgment import with_folder
from headscope.core.facts import CheckpointKind, Finding, Gap, Profile, Report
from headscope.core.facts.built import BuiltFacts
from headscope.core.facts.report import holds_other_head
from headscope.core.facts.stored.weights import NEW_AT_LOAD
from headscope.core.outputs import is_in_hub_cache
from headscope.core.source.reading.configuration import config_facts

if TYPE_CHECKING:
    from headscope.core.source.checkpoint import Checkpoint
    from headscope.core.source.request import Request


_UNREAD = "`headscope check` reads it"
UNREAD_TOKENIZER = Gap("tokenizer", _UNREAD)
UNREAD_NUMBERS = Gap("base values", _UNREAD)
"""For what reads no more of a checkpoint than its head."""


def with_findings(checkpoint: Checkpoint) -> Report:
    """Adds the findings to the report, for what the model can be used for next: `likely_profile`."""
    report = checkpoint.report
    if report.checkpoint.kind is CheckpointKind.CLASS:
        return report  # the rules are on checkpoints
    profile = likely_profile(report)
    found = findings_of(report, profile, checkpoint.manifest.config, checkpoint.built, checkpoint.request)
    # Code that cures it takes several lines, which `check` has room for: here the commands alone name the checkpoint.
    folder = _own_folder(checkpoint)
    named = tuple(with_folder(finding, folder) for finding in found)
    return replace(report, findings=named, profile=profile)


def findings_of(
    report: Report, profile: Profile, config: Mapping[str, Any], built: BuiltFacts, request: Request | None = None
) -> tuple[Finding, ...]:
    """Runs the rules that need no more than the report and its configuration."""
    return judge(_subject_of(report, profile, config, built, request), Selection(rules_on_reports())).findings


def subject_of_checkpoint(checkpoint: Checkpoint, profile: Profile) -> Subject:
    """Builds the subject of the rules from what was read to examine a checkpoint."""
    subject = _subject_of(checkpoint.report, profile, checkpoint.manifest.config, checkpoint.built, checkpoint.request)
    return replace(subject, folder=_own_folder(checkpoint))


def _subject_of(
    report: Report, profile: Profile, config: Mapping[str, Any], built: BuiltFacts, request: Request | None
) -> Subject:
    return Subject(
        report=report,
        profile=profile,
        config=config_facts(config),
        built=built,
        wanted_num_labels=request.num_labels if request else None,
        wanted_labels=request.labels if request else (),
        # Only `check` reads these, so rules on them are skipped and don't count as passed.
        inapplicable=(UNREAD_TOKENIZER, Gap("values", _UNREAD), UNREAD_NUMBERS),
    )


def _own_folder(checkpoint: Checkpoint) -> str:
    """Gives the folder of a whole checkpoint on this machine that isn't the Hub's cache; "" for any other place."""
    location = checkpoint.request.location
    folder = Path(location.reference)
    is_whole = checkpoint.manifest.kind is CheckpointKind.LOCAL and not location.subfolder and not location.variant
    return str(folder) if is_whole and folder.is_dir() and not is_in_hub_cache(folder) else ""


def likely_profile(report: Report) -> Profile:
    """Chooses training if a weight that the scores depend on is not the checkpoint's, otherwise inference.

    A checkpoint with a head that the class doesn't load counts as inference: it was trained for that head.
    """
    live = (item for item in report.head.tensors if item.live) if report.head else ()
    is_new = any(item.status in NEW_AT_LOAD for item in live) and not holds_other_head(report)
    return Profile.TRAINING if is_new else Profile.INFERENCE
