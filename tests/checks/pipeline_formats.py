"""The structure that readers of SARIF 2.1.0 and JUnit require, as far as headscope writes it."""

from typing import Any
from xml.etree import ElementTree

import jsonschema

_TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string", "minLength": 1}}}
_LEVEL = {"enum": ["none", "note", "warning", "error"]}
_URI = {"type": "string", "pattern": r"^[A-Za-z0-9\-._~/@%:]+$"}
_LOCATION = {
    "type": "object",
    "required": ["physicalLocation"],
    "properties": {
        "physicalLocation": {
            "type": "object",
            "required": ["artifactLocation"],
            "properties": {"artifactLocation": {"required": ["uri"], "properties": {"uri": _URI}}},
        },
        "logicalLocations": {"type": "array", "items": {"required": ["fullyQualifiedName", "kind"]}},
    },
    "additionalProperties": False,
}
_RESULT = {
    "type": "object",
    "required": ["message", "ruleId", "level", "locations"],
    "properties": {
        "ruleId": {"type": "string"},
        "level": _LEVEL,
        "message": _TEXT,
        "locations": {"type": "array", "items": _LOCATION},
        "partialFingerprints": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "additionalProperties": False,
}
_RUN = {
    "type": "object",
    "required": ["tool", "results"],
    "properties": {
        "tool": {
            "type": "object",
            "required": ["driver"],
            "properties": {
                "driver": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {
                        "name": {"type": "string"},
                        "semanticVersion": {"type": "string"},
                        "rules": {
                            "type": "array",
                            "uniqueItems": True,
                            "items": {"type": "object", "required": ["id"], "properties": {"shortDescription": _TEXT}},
                        },
                    },
                }
            },
        },
        "results": {"type": "array", "items": _RESULT},
        "invocations": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["executionSuccessful"],
                "properties": {
                    "executionSuccessful": {"type": "boolean"},
                    "toolExecutionNotifications": {
                        "type": "array",
                        "items": {"type": "object", "required": ["message"], "properties": {"message": _TEXT}},
                    },
                },
            },
        },
    },
    "additionalProperties": False,
}
SARIF: dict[str, Any] = {
    "type": "object",
    "required": ["version", "runs"],
    "properties": {
        "$schema": {"type": "string"},
        "version": {"const": "2.1.0"},
        "runs": {"type": "array", "items": _RUN},
    },
    "additionalProperties": False,
}
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
