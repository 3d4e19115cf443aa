"""The JSON documents of the commands: deterministic text, safe in any terminal and any encoding."""

import json
from collections.abc import Sequence
from typing import Any

from headscope.errors import HeadscopeError
from headscope.facts import SCHEMA_VERSION, CheckpointManifest, Report
from headscope.facts.exports.export import Inventoried
from headscope.facts.plain import to_dict, to_json_value
from headscope.facts.results.check import CheckResult, verdict_on_all
from headscope.facts.results.environment import Surroundings, tool_version
from headscope.facts.results.scan import ScanSummary
from headscope.facts.stored.disk_usage import DiskUsage
from headscope.facts.stored.states import whole_hint

Document = dict[str, Any]

OF_THE_DIFF = (
    "schema_version",
    "tool_version",
    "command",
    "environment",
    "checkpoint",
    "model",
    "weights",
    "unplaced",
    "notes",
    "not_determined",
    "repaired",
)
"""Fields of a report that `diff-weights` has: all but the head and the findings."""


def json_text(document: Document) -> str:
    """Writes `document` as indented JSON in ASCII: all else is escaped, control characters and surrogates too."""
    return json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def diff_document(report: Report, *, every: bool = False) -> Document:
    """Builds the document of `diff-weights`; with `every`, `weights.parameters` lists the loaded ones too."""
    whole = report.to_dict()
    document = {name: whole[name] for name in OF_THE_DIFF}
    if every:
        document["weights"]["parameters"] = to_json_value(report.weights.parameters)
    return document


def snapshot_document(manifest: CheckpointManifest, output: str) -> Document:
    """Builds the document of `snapshot`: what was written, and where."""
    return {
        **opening("snapshot"),
        "output": output,
        "reference": manifest.reference,
        "commit": manifest.commit,
        "tensors": len(manifest.tensors),
        "bytes_read": manifest.bytes_read,
        "bytes_total": manifest.bytes_total,
        "requests": manifest.requests,
        "not_determined": to_json_value(manifest.gaps),
    }


def check_document(results: Sequence[CheckResult]) -> Document:
    """Builds the document of `check`: the verdict on all models, and for each its result and the facts it judges."""
    verdict = verdict_on_all(result.verdict for result in results)
    each = [{**(to_dict(result.report) if result.report is not None else {}), **result.to_dict()} for result in results]
    return {**opening("check"), "verdict": verdict.value, "results": each}


def scan_document(found: ScanSummary) -> Document:
    """Builds the document of `scan`: counts over the table."""
    return {**opening("scan"), **found.to_dict()}


def environment_document(surroundings: Surroundings) -> Document:
    """Builds the document of `env`."""
    return {**opening("env"), **to_dict(surroundings)}


def cache_document(usage: DiskUsage) -> Document:
    """Builds the document of `cache`."""
    return {**opening("cache"), **to_dict(usage)}


def error_document(error: HeadscopeError) -> Document:
    """Builds the document of any command that failed."""
    document: Document = {
        "schema_version": SCHEMA_VERSION,
        "error": {"code": error.code, "message": error.message, "hint": whole_hint(error)},
    }
    beside = {"contents": error.contents if isinstance(error, Inventoried) else None, "state": error.state}
    return document | {name: to_dict(fact) for name, fact in beside.items() if fact is not None}


def opening(command: str) -> Document:
    """Gives the fields that every document begins with."""
    return {"schema_version": SCHEMA_VERSION, "tool_version": tool_version(), "command": command}
