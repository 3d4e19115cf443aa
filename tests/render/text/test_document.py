"""JSON documents: deterministic, in ASCII, and valid against the published schema."""

import json
from dataclasses import dataclass, replace
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from reports import ENVIRONMENT, REPORTS, as_diff, bert, hostile

from headscope.core.facts.environment import OtherPackages, Settings, Surroundings
from headscope.core.facts.stored.disk_usage import DiskUsage, EntryKind, ShippedStore
from headscope.core.facts.verdict import Verdict
from headscope.core.words.document import Document, error_document, json_text, snapshot_document
from headscope.errors import NotFound
from headscope.facts import (
    CheckpointKind,
    CheckpointManifest,
    Finding,
    Gap,
    Report,
    Severity,
    TensorHeader,
    WeightFile,
    WeightsFormat,
)
from headscope.shared.report.documents import diff_document, inspect_document
from headscope.slices.fleet.facts import ScanRow, Tally
from headscope.slices.fleet.screen import scan_document
from headscope.slices.lookup.cache_screen import cache_document
from headscope.slices.lookup.env_screen import environment_document
from scripts.pages.write_schema import _object_of, build_row_schema, build_schema, main

SETTINGS = Settings("Linux", "/home/me/.cache/huggingface", "https://huggingface.co", False, "/cache", True)
MANIFEST = CheckpointManifest(
    "bert", CheckpointKind.HUB, WeightsFormat.SAFETENSORS, {},
    (TensorHeader("w", "float32", (2,)),), (WeightFile("model.safetensors", 100),),
)  # fmt: skip
USAGE = DiskUsage(
    "/cache", True, False, 3, 700, (EntryKind("reports", 2, 668), EntryKind("key", 1, 32)), 300, 100_000_000,
    ShippedStore("/facts.zip", 379, 1_260_937), (Gap("downloads", "elsewhere"),), (Gap("cache", "no"),),
)  # fmt: skip


def with_everything() -> Report:
    finding = Finding("HS101", Severity.WARNING, "New head", "It is new.", "Train it.", ("classifier.weight",), "")
    return replace(bert(), findings=(finding,), notes=("note",), not_determined=(Gap("loss", "why"),))


def scanned() -> Tally:
    """Two rows, counted."""
    tally = Tally()
    for row in (
        ScanRow("a", Verdict.FAILED, class_name="B", pooling_kind="mean", findings=("HS102", "HS0"), seconds=1_000.0),
        ScanRow("b", Verdict.NOT_DETERMINED, not_determined="crash"),
    ):
        tally.add(row.to_dict())
    return tally


DOCUMENTS: dict[str, Document] = {
    **{f"inspect {name}": inspect_document(make()) for name, make in REPORTS.items()},
    **{f"diff {name}": diff_document(as_diff(make())) for name, make in REPORTS.items()},
    "inspect with everything": inspect_document(with_everything()),
    "inspect without a head": inspect_document(replace(bert(), head=None)),
    "diff, every weight": diff_document(as_diff(bert()), every=True),
    "error": error_document(NotFound("no such thing: \ud800", "look elsewhere")),
    "env": environment_document(Surroundings(ENVIRONMENT, SETTINGS, OtherPackages(*["1.0"] * 6))),
    "cache": cache_document(USAGE),
    "snapshot": snapshot_document(MANIFEST, "bert.json"),
    "scan": scan_document(scanned().summary(written=1, skipped=0, seconds=1.0, rules={"HS102": ("head-new", "New")})),
}


def closed(schema: Any) -> Any:
    """The schema with no room for properties that it does not name."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    extra = {"additionalProperties": False} if schema.get("type") == "object" else {}
    return {name: closed(value) for name, value in schema.items()} | extra


def test_the_published_schemas_are_what_the_facts_say() -> None:
    assert main(["--check"]) == 0, "run: python -m scripts.generate schema"


def test_every_field_has_a_meaning_and_a_stability() -> None:
    marks: dict[str, set[str]] = {}

    def walk(owner: str, schema: Any) -> None:
        for name, field in schema.get("properties", {}).items():
            assert field["description"], (owner, name)
            marks.setdefault(owner, set()).add(field["x-stability"])
            walk(f"{owner}.{name}", field.get("items", field))

    for owner, schema in (*build_schema()["$defs"].items(), ("ScanRow", build_row_schema())):
        walk(owner, schema)
    assert marks["HeadHealth"] == marks["ExportHead"] == marks["Candidate"] == {"experimental"}
    assert marks["WeightDiff"] == marks["Pooling"] == marks["ScanRow"] == {"stable"}
    assert marks["inspect"] == {"stable", "experimental"}


def test_a_field_without_a_meaning_is_refused() -> None:
    with pytest.raises(TypeError, match="number of Unsaid"):
        _object_of(Unsaid, {})


@dataclass
class Unsaid:
    """A fact whose field has no sentence."""

    number: int


@pytest.mark.parametrize("build", [build_schema, build_row_schema])
def test_the_schema_is_a_schema(build: Any) -> None:
    jsonschema.Draft202012Validator.check_schema(build())


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_comes_back_from_its_text_is_valid_and_holds_nothing_unannounced(name: str) -> None:
    read = json.loads(json_text(DOCUMENTS[name]))
    assert read == DOCUMENTS[name]
    jsonschema.Draft202012Validator(closed(build_schema())).validate(read)


def test_json_is_ascii_even_with_hostile_labels() -> None:
    text = json_text(inspect_document(hostile()))
    assert text.isascii()
    assert all(char.isprintable() or char == "\n" for char in text)


def test_the_diff_lists_every_parameter_only_if_asked() -> None:
    report = as_diff(bert())
    assert "parameters" not in diff_document(report)["weights"]
    listed = diff_document(report, every=True)["weights"]["parameters"]
    assert [item["name"] for item in listed] == [item.name for item in report.weights.parameters]


def test_a_wrong_document_is_refused() -> None:
    document = inspect_document(bert()) | {"schema_version": "9"}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(build_schema()).validate(document)


def test_parts_of_a_report_show_themselves_in_a_line() -> None:
    report = REPORTS["roberta"]()
    assert repr(report.weights) == "<weights: 197 loaded, 4 new, 5 unused, 24 renamed>"
    assert repr(report.head.pooling) == "<pooling: first_token: <s>>"
    assert all(len(repr(make().weights)) < 100 for make in REPORTS.values())
