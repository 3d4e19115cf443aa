"""The guide for coding agents: its commands run, and the fields that it names are in the schema."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from headscope.commands import COMMANDS
from headscope.errors import ExitCode
from headscope.shell import main
from tests.families import FAMILIES

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "packaging" / "skills" / "headscope" / "SKILL.md"
TEXT = PAGE.read_text(encoding="utf-8")
SCHEMA = json.loads((ROOT / "docs" / "schema" / "headscope-1.0.schema.json").read_text(encoding="utf-8"))
REAL = {"MODEL": "bert-base-uncased", "CLASS": "AlbertForSequenceClassification"}


def fields() -> list[tuple[str, str]]:
    """Every field in the table, with its document."""
    rows = re.findall(r"^\| `([\w-]+)` \| (.+?) \|", TEXT, re.MULTILINE)
    return [(document, path) for document, cell in rows for path in re.findall(r"`([^`]+)`", cell)]


def resolved(part: dict[str, Any]) -> dict[str, Any]:
    """The definition that a reference names, and of one that may be null the other."""
    while "$ref" in part or "anyOf" in part:
        if "$ref" in part:
            part = SCHEMA["$defs"][part["$ref"].rpartition("/")[2]]
        else:
            [part] = [item for item in part["anyOf"] if item.get("type") != "null"]
    return part


def field_of(document: str, path: str) -> dict[str, Any]:
    part = resolved(SCHEMA["$defs"][document])
    for name in path.split("."):
        part = resolved(part["properties"][name.removesuffix("[]")])
        if name.endswith("[]"):
            assert part["type"] == "array"
            part = resolved(part["items"])
    return part


def test_the_front_matter_names_the_folder_and_is_short_enough() -> None:
    front = yaml.safe_load(TEXT.split("---")[1])
    assert set(front) == {"name", "description"}
    assert front["name"] == PAGE.parent.name == "headscope"
    assert 100 < len(front["description"]) <= 1024


@pytest.mark.parametrize(("document", "path"), fields())
def test_a_field_in_the_table_is_in_the_schema(document: str, path: str) -> None:
    assert field_of(document, path)


def test_the_table_names_fields_of_every_document_it_should_and_a_wrong_one_is_noticed() -> None:
    assert {document for document, _ in fields()} == {
        "inspect", "diff-weights", "check", "engines", "compare", "heads", "error"
    }  # fmt: skip
    with pytest.raises(KeyError):
        field_of("inspect", "head.pooling.sort")


@pytest.mark.parametrize("kind", ["pooling.kind", "parameters[].status"])
def test_the_values_that_are_named_are_values_of_the_field(kind: str) -> None:
    [row] = [line for line in TEXT.splitlines() if f"`head.{kind}`" in line]
    named = re.findall(r"`(\w+)`", row.split("|")[3])
    assert len(named) > 3
    assert set(named) <= set(field_of("inspect", f"head.{kind}")["enum"])


def commands() -> list[str]:
    """Every command in the table of questions."""
    rows = re.findall(r"^\| [^`|]+\| `(headscope [^`]+)`", TEXT, re.MULTILINE)
    assert len(rows) == 9
    return rows


@pytest.mark.parametrize("command", commands())
def test_a_command_in_the_table_gives_a_document(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    real = dict(REAL)
    if "verify" in command:  # it loads weights, which a snapshot doesn't have
        FAMILIES["bert"].build("BertForSequenceClassification").save_pretrained(tmp_path)
        capsys.readouterr()
        real["MODEL"] = str(tmp_path)
    words = [real.get(word, word) for word in command.split()[1:]]
    offline = words if words[0] in ("heads", "explain", "env") else [*words, "--offline"]
    code = main(offline)
    document = json.loads(capsys.readouterr().out)
    assert document["command"] == words[0]
    assert code == (3 if words[0] == "engines" else 0), document  # engines choose by the class in config.json: none


def test_every_command_is_listed_with_options_that_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    rows = re.findall(r"^\| `headscope ([\w-]+)[^`]*` \|[^|]+\|([^|]*)\|([^|]*)\|$", TEXT, re.MULTILINE)
    assert [name for name, _, _ in rows] == list(COMMANDS)
    for name, line, fields in rows:
        main([name, "--help-all"])
        shown = capsys.readouterr().out
        for option in re.findall(r"`(-[\w-]+)", line + fields):
            assert option in shown, f"{name} {option}"
    assert [name for name, _, fields in rows if "brief" in fields] == ["inspect"]


def test_the_exit_codes_are_those_there_are() -> None:
    told = re.findall(r"\*\*(\d+)\*\*", TEXT)
    assert [int(code) for code in told] == [code.value for code in ExitCode]
