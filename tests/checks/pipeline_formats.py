"""SARIF 2.1.0 and JUnit as their readers require them, as far as headscope writes them; its own schema of JSON."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/schema/headscope-1.0.schema.json").read_text())


def _object(required: str = "", *, closed: bool = False, **properties: Any) -> dict[str, Any]:
    """The schema of an object: the names that it must have, whether it may have others, and what some of them hold."""
    return {
        "type": "object", "required": required.split(), "properties": properties, "additionalProperties": not closed,
    }  # fmt: skip


def _list(of: Any, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": of} | more


_STRING: Any = {"type": "string"}
_TEXT = _object("text", text={"type": "string", "minLength": 1})
_URI = {"type": "string", "pattern": r"^[A-Za-z0-9\-._~/@%:]+$"}
_LOCATION = _object(
    "physicalLocation",
    closed=True,
    physicalLocation=_object("artifactLocation", artifactLocation=_object("uri", uri=_URI)),
    logicalLocations=_list(_object("fullyQualifiedName kind")),
)
_RESULT = _object(
    "message ruleId level locations",
    closed=True,
    ruleId=_STRING,
    level={"enum": ["none", "note", "warning", "error"]},
    message=_TEXT,
    locations=_list(_LOCATION),
    partialFingerprints={"type": "object", "additionalProperties": _STRING},
)
_RULES = _list(_object("id", shortDescription=_TEXT), uniqueItems=True)
_INVOCATION = _object(
    "executionSuccessful",
    executionSuccessful={"type": "boolean"},
    toolExecutionNotifications=_list(_object("message", message=_TEXT)),
)
_RUN = _object(
    "tool results",
    closed=True,
    tool=_object("driver", driver=_object("name", name=_STRING, semanticVersion=_STRING, rules=_RULES)),
    results=_list(_RESULT),
    invocations=_list(_INVOCATION),
)
SARIF = _object("version runs", closed=True, **{"$schema": _STRING}, version={"const": "2.1.0"}, runs=_list(_RUN))
"""The parts of the OASIS schema of SARIF 2.1.0 that headscope uses, with nothing beside them."""


def validate_sarif(document: Any) -> None:
    """Raises where a document is not SARIF 2.1.0."""
    jsonschema.validate(document, SARIF)
    for run in document["runs"]:
        known = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
        assert {result["ruleId"] for result in run["results"]} <= known


def validate_junit(text: str) -> None:
    """Raises where a text is not what readers of JUnit take: counts that add up, outcomes in their places."""
    root = ElementTree.fromstring(text)
    assert root.tag == "testsuites"
    for suite in root:
        assert suite.tag == "testsuite"
        assert suite.get("name")
        counts = {name: int(suite.get(name, "")) for name in ("tests", "failures", "errors", "skipped")}
        cases = list(suite)
        assert {case.tag for case in cases} <= {"testcase"}
        assert all(case.get("name") and case.get("classname") for case in cases)
        assert counts["tests"] == len(cases)
        for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert counts[name] == sum(case.find(tag) is not None for case in cases), name
        for case in cases:
            order = [item.tag for item in case]
            assert order == sorted(order, key=["skipped", "error", "failure", "system-out"].index)
            assert len([tag for tag in order if tag != "system-out"]) <= 1
