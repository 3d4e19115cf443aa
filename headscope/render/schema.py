"""The published JSON Schemas, made from the facts themselves: of every document, and of the rows of `scan`.

`python -m headscope.render.schema` prints the first, and with the argument `scan` the second; `docs/schema/`
holds the published copies.
"""

import dataclasses
import inspect
import json
import re
import sys
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from headscope.facts import SCHEMA_VERSION, CheckpointState, ParameterOrigin, Report, Stage, Unavailable
from headscope.facts.atlas import HeadEntry
from headscope.facts.check import CheckResult
from headscope.facts.comparison import Comparison
from headscope.facts.environment import Surroundings
from headscope.facts.forward import ForwardReport, SeenStage
from headscope.facts.plain import json_name
from headscope.facts.probe import ProbeResult
from headscope.facts.scan import SCAN_SCHEMA, Cause, ScanRow, ScanSummary
from headscope.facts.verification import VerifyResult
from headscope.facts.weight_inventory import WeightInventory
from headscope.render.document import OF_THE_DIFF
from headscope.render.meanings import meaning

Schema = dict[str, Any]

_ID = f"urn:headscope:schema:{SCHEMA_VERSION}"
_PLAIN = {str: "string", int: "integer", bool: "boolean", float: "number", NoneType: "null"}


def build_schema() -> Schema:
    """The schema of all documents: one of `inspect`, `diff-weights`, `check`, `forward`,
    `heads`, `probe`, `snapshot`, `env`, or an error."""
    definitions: dict[str, Schema] = {}
    documents = {
        "inspect": _for_command(_object_of(Report, definitions), "inspect"),
        "diff-weights": _diff_weights(definitions),
        "check": _check(definitions),
        "check-several": _check_several(definitions),
        "compare": _for_command(_object_of(Comparison, definitions), "compare"),
        "verify": _for_command(_object_of(VerifyResult, definitions), "verify"),
        "verify-save": _for_command(_object_of(VerifyResult, definitions), "verify-save"),
        "forward": _forward(definitions),
        "heads": _heads(definitions),
        "probe": _for_command(_object_of(ProbeResult, definitions), "probe"),
        "scan": _scan(definitions),
        "explain": _explain(),
        "explain-list": _explain_list(),
        "snapshot": _snapshot(definitions),
        "env": _environment(definitions),
        "error": _error(definitions),
    }
    every = {**documents, **dict(sorted(definitions.items()))}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": _ID,
        "title": f"headscope documents, version {SCHEMA_VERSION}",
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name in documents],
        "$defs": {name: _with_meanings(name, schema) for name, schema in every.items()},
    }


def schema_text() -> str:
    """The schema as it is published."""
    return json.dumps(build_schema(), indent=2) + "\n"


def build_row_schema() -> Schema:
    """The schema of one row of `scan`: a flat object that always has every column."""
    row = _with_meanings(ScanRow.__name__, _object_of(ScanRow, {}))
    row["properties"]["schema_version"]["const"] = SCAN_SCHEMA
    row["properties"]["not_determined"]["anyOf"] = [{"enum": [cause.value for cause in Cause]}, {"type": "null"}]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:headscope:schema:scan:{SCAN_SCHEMA}",
        "title": f"A row of headscope scan, version {SCAN_SCHEMA}",
        **row,
        "additionalProperties": False,
    }


def row_schema_text() -> str:
    """The schema of a row as it is published."""
    return json.dumps(build_row_schema(), indent=2) + "\n"


def _with_meanings(owner: str, schema: Schema) -> Schema:
    """`schema` with what each of its fields means; an object without a name is known by the field that holds it."""
    if "properties" not in schema:
        return schema | ({"items": _with_meanings(owner, schema["items"])} if "items" in schema else {})
    properties = {
        name: _with_meanings(f"{owner}.{name}", field) | {"description": meaning(owner, name)}
        for name, field in schema["properties"].items()
    }
    return schema | {"properties": properties}


def _object(properties: dict[str, Schema], description: str, optional: frozenset[str] = frozenset()) -> Schema:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "description": description, "properties": properties, "required": required}


def _object_of(fact: type, definitions: dict[str, Schema]) -> Schema:
    """A dataclass of facts as an object; the facts it is made of go to `definitions`."""
    hints = get_type_hints(fact)
    named = ((json_name(field), hints[field.name]) for field in dataclasses.fields(fact))
    properties = {name: _schema_of(hint, definitions) for name, hint in named if name is not None}
    said = inspect.cleandoc(fact.__doc__ or "").split("\n\n")[0]  # the rest is on the fields, as `meanings` are
    return _object(properties, re.sub(r"\bNone\b", "null", " ".join(said.split())))


def _schema_of(hint: Any, definitions: dict[str, Schema]) -> Schema:
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    origin = get_origin(hint)
    if origin is tuple:
        return {"type": "array", "items": _schema_of(get_args(hint)[0], definitions)}
    if origin in (Union, UnionType):
        return {"anyOf": [_schema_of(option, definitions) for option in get_args(hint)]}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [member.value for member in hint]}
    return _reference(hint, definitions)


def _reference(fact: type, definitions: dict[str, Schema]) -> Schema:
    if not dataclasses.is_dataclass(fact):
        raise TypeError(f"not a fact: {fact}")
    if fact.__name__ not in definitions:
        definitions[fact.__name__] = {}
        definitions[fact.__name__] = _object_of(fact, definitions)
    return {"$ref": f"#/$defs/{fact.__name__}"}


def _for_command(schema: Schema, command: str) -> Schema:
    schema["properties"]["command"] = {"const": command}
    schema["properties"]["schema_version"] = {"const": SCHEMA_VERSION}
    return schema


def _diff_weights(definitions: dict[str, Schema]) -> Schema:
    """As `inspect`, less the head; `weights.parameters` is there with `--all`."""
    whole = _object_of(Report, definitions)["properties"]
    weights = dict(definitions["WeightDiff"])
    listed = {"type": "array", "items": _reference(ParameterOrigin, definitions)}
    weights["properties"] = {**weights["properties"], "parameters": listed}
    properties = {name: whole[name] for name in OF_THE_DIFF} | {"weights": weights}
    return _for_command(_object(properties, "Every parameter's status against the checkpoint."), "diff-weights")


def _opened(command: str, properties: dict[str, Schema], description: str) -> Schema:
    opening = {"schema_version": {}, "tool_version": {"type": "string"}, "command": {}}
    return _for_command(_object({**opening, **properties}, description), command)


def _snapshot(definitions: dict[str, Schema]) -> Schema:
    texts = {name: {"type": "string"} for name in ("output", "reference")}
    numbers = {name: {"type": "integer"} for name in ("tensors", "bytes_read", "bytes_total", "requests")}
    commit: Schema = {"commit": {"anyOf": [{"type": "string"}, {"type": "null"}]}}
    gaps: dict[str, Schema] = {"not_determined": {"type": "array", "items": _reference(Unavailable, definitions)}}
    return _opened("snapshot", {**texts, **commit, **numbers, **gaps}, "What was written, and where.")


def _forward(definitions: dict[str, Schema]) -> Schema:
    """Each stage is that of `inspect` with the shape and the statistics that were seen."""
    seen = _object_of(SeenStage, definitions)["properties"]
    stage = dict(_object_of(Stage, definitions)["properties"]) | {name: seen[name] for name in ("shape", "statistics")}
    named = _object({"name": {"type": "string"}, "shape": seen["shape"]}, "One input tensor.")
    properties = _object_of(ForwardReport, definitions)["properties"] | {
        "stages": {"type": "array", "items": _object(stage, "A stage as it ran.")},
        "inputs": {"type": "array", "items": named},
    }
    del definitions[SeenStage.__name__]  # its fields are in the stages themselves
    return _for_command(_object(properties, "What a forward pass showed."), "forward")


def _check(definitions: dict[str, Schema]) -> Schema:
    """The result; beside it the fields of `inspect`, where the checkpoint could be read."""
    result = _object_of(CheckResult, definitions)
    facts = _object_of(Report, definitions)["properties"]
    optional = frozenset(facts) - frozenset(result["properties"])
    return _for_command(_object(facts | result["properties"], result["description"], optional), "check")


def _check_several(definitions: dict[str, Schema]) -> Schema:
    entries: Schema = {"results": {"type": "array", "items": {"$ref": "#/$defs/check"}}}
    return _opened("check", entries, "The results of several models.")


def _scan(definitions: dict[str, Schema]) -> Schema:
    parts = _object_of(ScanSummary, definitions)
    return _opened("scan", parts["properties"], parts["description"])


def _heads(definitions: dict[str, Schema]) -> Schema:
    entries = {"heads": {"type": "array", "items": _reference(HeadEntry, definitions)}}
    return _opened("heads", entries, "The atlas: classification classes of the installed Transformers.")


_TOPIC: dict[str, Schema] = {
    "topic": {"type": "string"},
    "names": {"type": "array", "items": {"type": "string"}},
    "group": {"type": "string"},
    "title": {"type": "string"},
    "severities": {
        "type": ["object", "null"],
        "additionalProperties": {"type": "array", "items": {"enum": ["error", "warning", "note"]}},
    },
}


def _explain() -> Schema:
    return _opened("explain", _TOPIC | {"text": {"type": "string"}}, "One topic in plain words, as Markdown.")


def _explain_list() -> Schema:
    topic = _object(_TOPIC | {"text": {"type": "string"}}, "A topic; `text` if requested.", frozenset({"text"}))
    return _opened("explain", {"topics": {"type": "array", "items": topic}}, "The list of topics, or several of them.")


def _environment(definitions: dict[str, Schema]) -> Schema:
    parts = _object_of(Surroundings, definitions)
    return _opened("env", parts["properties"], parts["description"])


def _error(definitions: dict[str, Schema]) -> Schema:
    texts: dict[str, Schema] = {name: {"type": "string"} for name in ("code", "message", "hint")}
    error = _object(texts, "A stable code, what was found and expected, and what to do next (may be empty).")
    contents = _reference(WeightInventory, definitions)
    state = _reference(CheckpointState, definitions)
    properties = {"schema_version": {"const": SCHEMA_VERSION}, "error": error, "contents": contents, "state": state}
    return _object(
        properties,
        "A command that failed; `contents` where the weight files were read nevertheless, `state` where that of the "
        "checkpoint is the cause.",
        frozenset({"contents", "state"}),
    )


if __name__ == "__main__":
    sys.stdout.write(row_schema_text() if sys.argv[1:] == ["scan"] else schema_text())
