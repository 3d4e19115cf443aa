"""The JSON documents of the commands: deterministic text, safe in any terminal and any encoding."""

import json
from typing import Any

from headscope.core.facts import SCHEMA_VERSION, CheckpointManifest
from headscope.core.facts.environment import tool_version
from headscope.core.facts.export import Inventoried
from headscope.core.facts.plain import to_dict, to_json_value
from headscope.core.facts.stored.states import whole_hint
from headscope.errors import HeadscopeError

Document = dict[str, Any]


def json_text(document: Document) -> str:
    """Writes `document` as indented JSON in ASCII: all else is escaped, control characters and surrogates too."""
    return json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False) + "\n"


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
