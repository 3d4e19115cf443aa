"""What each engine does with a checkpoint's head, from the facts on it; what they don't cover is not determined."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from headscope.errors import UsageError
from headscope.facts import CheckpointManifest, Report
from headscope.facts.results.engines import EngineEvidence, EngineHead, EnginesReport
from headscope.facts.results.environment import package_version, tool_version
from headscope.serving.cited import EngineFacts, Served, engine_names, facts_on, first_that_fits

_UNKNOWN = "not determined"


def judge_engines(report: Report, manifest: CheckpointManifest, engine: str | None = None) -> EnginesReport:
    """What the engines, or one of them (`NAME` or `NAME@VERSION`), do with the head of a checkpoint.

    Raises UsageError for an unknown engine or an invalid version.
    """
    served = _served(report, manifest)
    name, _, version = (engine or "").partition("@")
    names = engine_names() if engine is None else (name,)
    return EnginesReport(
        tool_version=tool_version(),
        reference=report.checkpoint.reference,
        architecture=served.architecture,
        model_class=report.model.class_name,
        formula=report.head.formula if report.head is not None else "",
        activation=report.model.activation,
        engines=tuple(_judged(facts_on(item), served, report, version) for item in names),
        is_one=engine is not None,
    )


def _served(report: Report, manifest: CheckpointManifest) -> Served:
    sentence = manifest.sentence
    files = {"modules.json"} if sentence is not None and sentence.modules else set()
    files |= {"1_Pooling/config.json"} if sentence is not None and sentence.pooling else set()
    named = report.checkpoint.architectures
    module = sentence.activation if sentence is not None else ""
    return Served(named[0] if named else "", manifest.config, report.model.num_labels, frozenset(files), module)


def _judged(facts: EngineFacts, served: Served, report: Report, requested: str) -> EngineHead:
    version = requested or _installed(facts) or facts.read_at
    row, reason = first_that_fits(facts.heads, served)
    if not _is_covered(facts, version):
        row, reason = None, f"the facts are on {facts.versions}, not on {version}"
    elif report.adapter is not None:
        row, reason = None, "the facts don't cover PEFT adapters"
    elif report.model.quantization is not None:
        row, reason = None, "the facts don't cover quantized checkpoints"
    elif served.architecture and served.architecture != report.model.class_name:
        row, reason = None, f"config.json names {served.architecture}, and engines choose by that"
    given = {"reason": reason} if row is None else row
    score, _ = first_that_fits(facts.scores, served) if given.get("runs") else (None, "")
    return _told(facts, version, given, score["activation"] if score is not None else None, report)


def _told(
    facts: EngineFacts, version: str, given: Mapping[str, Any], activation: str | None, report: Report
) -> EngineHead:
    """The entry of an engine; `given` is a row of its facts, or why there is none."""
    is_open = activation is None or report.model.activation == _UNKNOWN
    return EngineHead(
        engine=facts.engine,
        title=facts.title,
        version=version,
        runs=given.get("runs"),
        same_head=given.get("same_head"),
        formula=given.get("formula", ""),
        activation=activation,
        same_activation=None if is_open else activation == report.model.activation,
        logits=facts.logits,
        positions=given.get("positions", ""),
        reads_padding=given.get("reads_padding", False),
        drops=tuple(given.get("drops", ())),
        dtype=facts.dtype,
        float32_becomes=facts.float32_becomes,
        evidence=EngineEvidence.CITED if "file" in given else None,
        source=facts.source_of(given) if "file" in given else "",
        reason=given.get("reason", ""),
        notes=tuple(note["says"] for note in facts.notes) if given.get("runs") else (),
        not_looked_at=facts.not_looked_at,
    )


def _installed(facts: EngineFacts) -> str:
    """The version that is installed beside headscope; "" for none, and for what isn't a Python package."""
    is_python = facts.package and ":" not in facts.package
    return (package_version(facts.package) or "") if is_python else ""


def _is_covered(facts: EngineFacts, version: str) -> bool:
    """Whether the facts hold for a version. Raises UsageError for one that is invalid."""
    if version == facts.read_at:
        return True
    try:
        return Version(version) in SpecifierSet(facts.versions)
    except InvalidVersion as err:
        raise UsageError(f"{version!r} is not a version", f"write --engine {facts.engine}@{facts.read_at}") from err
