"""Writes the JSON Schemas of docs/schema/ from the facts, or `--check`s them: of documents, a scan's rows, cards.

The meaning of a field is the string below it in its dataclass. Every field is `stable`, or `experimental` where the
`STABILITY` of its module is: a minor version may change it.
"""

import ast
import dataclasses
import inspect
import json
import re
import sys
import textwrap
from enum import Enum
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from headscope.checks.facts import CheckResult
from headscope.copies.facts import EditReport
from headscope.core.facts.environment import Surroundings
from headscope.core.facts.export import WeightInventory
from headscope.core.facts.heads.atlas import HeadEntry
from headscope.core.facts.plain import derived_names, json_name
from headscope.core.facts.seen import SeenStage
from headscope.core.facts.stored.disk_usage import DiskUsage
from headscope.core.facts.verdict import Verdict
from headscope.facts import SCHEMA_VERSION, CheckpointState, Gap, ParameterOrigin, Report, Stage
from headscope.shared.loaded.facts import VerifyResult
from headscope.shared.report.documents import OF_THE_DIFF, Summary
from headscope.shared.serving.card.facts import CARD_FORMAT, CARD_VERSION, Card
from headscope.shared.serving.engine_facts import EnginesReport
from headscope.shared.serving.served_facts import ServedReport
from headscope.slices.compare.facts import Comparison
from headscope.slices.fleet.facts import SCAN_SCHEMA, Cause, ScanRow, ScanSummary
from headscope.slices.forward.facts import ForwardReport
from headscope.slices.probe.facts.result import ProbeResult
from headscope.slices.repair.facts import RepairReport
from scripts.generated import write_or_compare

Schema = dict[str, Any]

_ID = f"urn:headscope:schema:{SCHEMA_VERSION}"
_FOLDER = Path(__file__).resolve().parents[2] / "docs" / "schema"
_EXPERIMENTAL = "experimental"
_FRAME = {
    "schema_version": "The version of the schema that the document follows.",
    "tool_version": "The version of headscope that wrote the document.",
    "command": "The command that wrote the document.",
    "environment": "Versions of everything whose behavior the document depends on.",
    "checkpoint": "Where the facts came from and how much was read for them.",
    "model": "The class that was built, and its classes, loss and sizes.",
    "not_determined": "What could not be determined, each with its reason: never to be read as fine.",
    "notes": "Sentences on what was observed beside the fields.",
    "reference": "What was named on the command line.",
}
"""The meaning of fields that many documents have, for facts that give no other."""
_PLAIN = {str: "string", int: "integer", bool: "boolean", float: "number", NoneType: "null"}


def build_schema() -> Schema:
    """The schema of all documents: one of `inspect`, `diff-weights`, `check`, `forward`,
    `heads`, `probe`, `snapshot`, `env`, `cache`, or an error."""
    definitions: dict[str, Schema] = {}
    documents = {
        "inspect": _inspect(definitions),
        "diff-weights": _diff_weights(definitions),
        "check": _check(definitions),
        "compare": _for_command(_object_of(Comparison, definitions), "compare"),
        "edit": _for_command(_object_of(EditReport, definitions), "edit"),
        "repair": _for_command(_object_of(RepairReport, definitions), "repair"),
        "engines": _for_command(_object_of(EnginesReport, definitions), "engines"),
        "verify": _for_command(_object_of(VerifyResult, definitions), "verify"),
        "verify-save": _for_command(_object_of(VerifyResult, definitions), "verify-save"),
        "verify-served": _for_command(_object_of(ServedReport, definitions), "verify-served"),
        "forward": _forward(definitions),
        "heads": _heads(definitions),
        "probe": _for_command(_object_of(ProbeResult, definitions), "probe"),
        "scan": _opened_fact("scan", ScanSummary, definitions),
        "explain": _explain(),
        "explain-list": _explain_list(),
        "snapshot": _snapshot(definitions),
        "env": _opened_fact("env", Surroundings, definitions),
        "cache": _opened_fact("cache", DiskUsage, definitions),
        "error": _error(definitions),
    }
    every = {**documents, **dict(sorted(definitions.items()))}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": _ID,
        "title": f"headscope documents, version {SCHEMA_VERSION}",
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name in documents],
        "$defs": every,
    }


def build_row_schema() -> Schema:
    """The schema of one row of `scan`: a flat object that always has every column."""
    row = _object_of(ScanRow, {})
    row["properties"]["schema_version"]["const"] = SCAN_SCHEMA
    row["properties"]["not_determined"]["anyOf"] = [{"enum": [cause.value for cause in Cause]}, {"type": "null"}]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:headscope:schema:scan:{SCAN_SCHEMA}",
        "title": f"A row of headscope scan, version {SCAN_SCHEMA}",
        **row,
        "additionalProperties": False,
    }


def build_card_schema() -> Schema:
    """The schema of a card."""
    definitions: dict[str, Schema] = {}
    card = _object_of(Card, definitions)
    card["properties"]["format"]["const"], card["properties"]["version"]["const"] = CARD_FORMAT, CARD_VERSION
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:headscope:schema:card:{CARD_VERSION}",
        "title": f"A card of headscope, version {CARD_VERSION}",
        **card,
        "$defs": dict(sorted(definitions.items())),
    }


def main(arguments: list[str]) -> int:
    """Writes the schemas, or says whether they are as they would be written."""
    schemas = {
        "headscope-1.0.schema.json": build_schema(),
        "headscope-scan-1.0.schema.json": build_row_schema(),
        f"headscope-card-{CARD_VERSION}.schema.json": build_card_schema(),
    }
    pages = {_FOLDER / name: json.dumps(schema, indent=2) + "\n" for name, schema in schemas.items()}
    return max(write_or_compare(page, text, arguments) for page, text in pages.items())


@cache
def _sentences(fact: type) -> dict[str, str]:
    """What the fields of a dataclass mean: the string under each, as editors show it."""
    body = ast.parse(textwrap.dedent(inspect.getsource(fact))).body[0].body  # type: ignore[attr-defined]
    found = {}
    for field, said in pairwise(body):
        match field, said:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = inspect.cleandoc(text).replace("\n", " ")
    return found


def _meaning(fact: type, name: str, key: str) -> str:
    """What a field of a dataclass means. Raises TypeError where nothing says it."""
    said = _sentences(fact).get(name) or _FRAME.get(key)
    if said is None:
        raise TypeError(f"nothing says what {name} of {fact.__name__} means: write a string under the field")
    return said


def _object(properties: dict[str, Schema], description: str, optional: frozenset[str] = frozenset()) -> Schema:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "description": description, "properties": properties, "required": required}


def _object_of(fact: type, definitions: dict[str, Schema]) -> Schema:
    """A dataclass of facts as an object; the facts it is made of go to `definitions`."""
    hints = get_type_hints(fact)
    named = ((json_name(field), field.name) for field in dataclasses.fields(fact))
    properties = {
        key: _schema_of(hints[name], definitions) | _said(_meaning(fact, name, key), _stability(fact, hints[name]))
        for key, name in named
        if key is not None
    }
    for name in derived_names(fact):
        getter: Any = getattr(fact, name).fget
        meaning = " ".join(inspect.cleandoc(getter.__doc__).split())
        properties[name] = _schema_of(get_type_hints(getter)["return"], definitions) | _said(meaning)
    said = inspect.cleandoc(fact.__doc__ or "").split("\n\n")[0]
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


def _said(description: str, stability: str = "stable") -> Schema:
    return {"description": description, "x-stability": stability}


def _stability(fact: type, hint: Any = None) -> str:
    """Whether a field with this type may change in a minor version: because of its fact, or of the facts it holds."""
    inner = get_args(hint) or ((hint,) if isinstance(hint, type) else ())
    held = (part for part in inner if isinstance(part, type) and dataclasses.is_dataclass(part))
    own = (getattr(sys.modules[part.__module__], "STABILITY", "stable") for part in (fact, *held))
    return _EXPERIMENTAL if _EXPERIMENTAL in own else "stable"


def _reference(fact: type, definitions: dict[str, Schema]) -> Schema:
    if not dataclasses.is_dataclass(fact):
        raise TypeError(f"not a fact: {fact}")
    if fact.__name__ not in definitions:
        definitions[fact.__name__] = {}
        definitions[fact.__name__] = _object_of(fact, definitions)
    return {"$ref": f"#/$defs/{fact.__name__}"}


def _for_command(schema: Schema, command: str) -> Schema:
    constants = {"command": command, "schema_version": SCHEMA_VERSION}
    schema["properties"] |= {name: {"const": value} | _said(_FRAME[name]) for name, value in constants.items()}
    return schema


def _inspect(definitions: dict[str, Schema]) -> Schema:
    """The report in a few lines, the whole report, and its verdict as a sentence."""
    whole = _object_of(Report, definitions)
    first = {"summary": _reference(Summary, definitions) | _said("The report in a few lines.")}
    headline = {"headline": _text("The verdict as a sentence.")}
    return _for_command(_object(first | whole["properties"] | headline, whole["description"]), "inspect")


def _diff_weights(definitions: dict[str, Schema]) -> Schema:
    """As `inspect`, less the head; `weights.parameters` is there with `--all`."""
    whole = _object_of(Report, definitions)["properties"]
    weights = dict(definitions["WeightDiff"])
    listed = {"type": "array", "items": _reference(ParameterOrigin, definitions)}
    listed |= _said("Every parameter with its status, the loaded ones too; only with `--all`.")
    weights["properties"] = {**weights["properties"], "parameters": listed}
    weights |= _said(whole["weights"]["description"])
    properties = {name: whole[name] for name in OF_THE_DIFF} | {"weights": weights}
    return _for_command(_object(properties, "Every parameter's status against the checkpoint."), "diff-weights")


def _opened(command: str, properties: dict[str, Schema], description: str) -> Schema:
    opening = {"schema_version": {}, "tool_version": {"type": "string"} | _said(_FRAME["tool_version"]), "command": {}}
    return _for_command(_object({**opening, **properties}, description), command)


def _snapshot(definitions: dict[str, Schema]) -> Schema:
    properties = {
        "output": _text("The file that was written, as typed."),
        "reference": _text(_FRAME["reference"]),
        "commit": {"anyOf": [{"type": "string"}, {"type": "null"}]}
        | _said("The commit of the repository; null where there is none."),
        "tensors": _number("How many tensors the snapshot describes."),
        "bytes_read": _number("Bytes that were read to make it."),
        "bytes_total": _number("Bytes of all weight files whose size is known."),
        "requests": _number("Requests to the Hub, redirects and repetitions among them."),
        "not_determined": _list(_reference(Gap, definitions), _FRAME["not_determined"]),
    }
    return _opened("snapshot", properties, "What was written, and where.")


def _text(meaning: str) -> Schema:
    return {"type": "string"} | _said(meaning)


def _number(meaning: str) -> Schema:
    return {"type": "integer"} | _said(meaning)


def _list(items: Schema, meaning: str, stability: str = "stable") -> Schema:
    return {"type": "array", "items": items} | _said(meaning, stability)


def _forward(definitions: dict[str, Schema]) -> Schema:
    """Each stage is that of `inspect` with the shape and the statistics that were seen."""
    seen = _object_of(SeenStage, definitions)["properties"]
    stage = dict(_object_of(Stage, definitions)["properties"]) | {name: seen[name] for name in ("shape", "statistics")}
    shape = seen["shape"] | _said("The sizes of its axes.")
    named = _object({"name": _text("The argument of `forward`."), "shape": shape}, "One input tensor.")
    properties = _object_of(ForwardReport, definitions)["properties"]
    properties["stages"] |= {"type": "array", "items": _object(stage, "A stage as it ran.")}
    properties["inputs"] |= {"type": "array", "items": named}
    del definitions[SeenStage.__name__]  # its fields are in the stages themselves
    return _for_command(_object(properties, "What a forward pass showed."), "forward")


def _check(definitions: dict[str, Schema]) -> Schema:
    """One entry for each model, and the verdict on all of them."""
    definitions["check-result"] = _check_result(definitions)
    entries = _list({"$ref": "#/$defs/check-result"}, "One result for each model, in the order given.")
    verdict = _schema_of(Verdict, definitions) | _said("`failed` if any model failed, `passed` if all passed.")
    return _opened("check", {"verdict": verdict, "results": entries}, "What the rules say of each model.")


def _check_result(definitions: dict[str, Schema]) -> Schema:
    """The result; beside it the fields of `inspect`, where the checkpoint could be read."""
    result = _object_of(CheckResult, definitions)
    facts = _object_of(Report, definitions)["properties"]
    optional = frozenset(facts) - frozenset(result["properties"])
    return _for_command(_object(facts | result["properties"], result["description"], optional), "check")


def _opened_fact(command: str, fact: type, definitions: dict[str, Schema]) -> Schema:
    parts = _object_of(fact, definitions)
    return _opened(command, parts["properties"], parts["description"])


def _heads(definitions: dict[str, Schema]) -> Schema:
    entries = {"heads": _list(_reference(HeadEntry, definitions), "One entry for each class, sorted.")}
    return _opened("heads", entries, "The atlas: classification classes of the installed Transformers.")


_TOPIC: dict[str, Schema] = {
    "topic": _text("The topic's id, such as `HS102` or `first_token`."),
    "names": _list({"type": "string"}, "Other names under which `explain` knows it."),
    "group": _text("What it belongs to: `rules`, `pooling`, `operations`, `ideas`, `words` or `classes`."),
    "title": _text("What it is, in a few words."),
    "severities": {
        "type": ["object", "null"],
        "additionalProperties": {"type": "array", "items": {"enum": ["error", "warning", "note"]}},
        **_said("What a rule finds for `training` and for `inference`, the gravest first; null for other topics."),
    },
}
_EXPLANATION: dict[str, Schema] = {"text": _text("The explanation, as Markdown.")}


def _explain() -> Schema:
    return _opened("explain", _TOPIC | _EXPLANATION, "One topic in plain words, as Markdown.")


def _explain_list() -> Schema:
    topic = _object(_TOPIC | _EXPLANATION, "A topic; `text` if requested.", frozenset(_EXPLANATION))
    topics = _list(topic, "All topics, without their texts.")
    return _opened("explain", {"topics": topics}, "The list of topics, or several of them.")


def _error(definitions: dict[str, Schema]) -> Schema:
    texts = {
        "code": _text(
            "A stable word for scripts, such as `not_found`, `gated`, `offline`, `network`, `malformed`, `usage`."
        ),
        "message": _text("What was found, and what was expected."),
        "hint": _text("What to do next; may be empty."),
    }
    error = _object(texts, "A stable code, what was found and expected, and what to do next (may be empty).")
    properties = {
        "schema_version": {"const": SCHEMA_VERSION} | _said(_FRAME["schema_version"]),
        "error": error | _said("What went wrong."),
        "contents": _reference(WeightInventory, definitions)
        | _said("What the weight files hold, where they were read nevertheless."),
        "state": _reference(CheckpointState, definitions)
        | _said("In which state the checkpoint was found, where that is the cause."),
    }
    return _object(
        properties,
        "A command that failed; `contents` where the weight files were read nevertheless, `state` where that of the "
        "checkpoint is the cause.",
        frozenset({"contents", "state"}),
    )
