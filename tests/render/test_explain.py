"""Topics: all that a report can name is explained, and what stands in a topic is true of the program."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from typer.main import get_command

import headscope
from headscope.checks import RULES
from headscope.cli import main
from headscope.cli.app import app
from headscope.errors import UsageError
from headscope.facts import ParameterStatus, PoolingKind, Profile
from headscope.facts.results.check import Verdict
from headscope.render.parts.explain import Topic, find_topic, topics
from scripts.write_rules import rules_page

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs/schema/headscope-1.0.schema.json").read_text())
_TOPICS = pytest.mark.parametrize("topic", topics(), ids=lambda topic: topic.id)


@pytest.mark.parametrize("identifier", RULES)
def test_every_rule_has_a_topic_under_its_id_and_its_name(identifier: str) -> None:
    rule = RULES[identifier]
    assert find_topic(identifier) is find_topic(rule.name)
    assert find_topic(identifier).title == rule.title


def test_no_topic_is_of_a_rule_that_does_not_exist() -> None:
    assert {topic.id for topic in topics() if topic.group == "rules"} == set(RULES)


@pytest.mark.parametrize("name", [*PoolingKind, *ParameterStatus, *Profile, Verdict.NOT_DETERMINED])
def test_every_word_of_a_report_has_a_topic(name: str) -> None:
    assert find_topic(name).text


def test_ids_are_told_apart() -> None:
    names = [known.lower().replace("-", " ") for topic in topics() for known in (topic.id, *topic.names)]
    assert len(set(names)) == len(names)


@_TOPICS
def test_code_compiles(topic: Topic) -> None:
    for code in re.findall(r"```py(?:thon)?\n(.*?)```", topic.text, re.DOTALL):
        compile(code, topic.id, "exec")


@_TOPICS
def test_commands_exist_with_their_options(topic: Topic) -> None:
    for line in re.findall(r"`headscope ([^`]+)`", topic.text):
        name, *words = shlex.split(line)
        command = get_command(app).commands[name]  # type: ignore[attr-defined]
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("-")} <= known, line


@pytest.mark.parametrize("width", ["60", "80", "200"])
@_TOPICS
def test_nothing_is_cut(
    topic: Topic, width: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    assert main(["explain", topic.id]) == 0
    shown = capsys.readouterr().out
    text = re.sub(r"```\w*|\*\*|`", "", topic.text)
    assert "".join(shown.split()).endswith("".join(text.split()))


def test_json_is_as_published(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["explain", "HS102", "--json"], ["explain", "--json"]):
        assert main(arguments) == 0
        jsonschema.validate(json.loads(capsys.readouterr().out), SCHEMA)


@pytest.mark.parametrize(("wrong", "near"), [("HS99", "HS"), ("frist-token", "first_token"), ("logit", "logits")])
def test_an_unknown_topic_is_refused_with_the_nearest(
    wrong: str, near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", wrong]) == 2
    assert near in capsys.readouterr().err


def test_several_words_are_one_topic(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "CLS", "token"]) == 0
    assert "The CLS token" in capsys.readouterr().out


def test_the_page_of_rules_is_as_the_topics_say() -> None:
    assert (ROOT / "docs/rules.md").read_text(encoding="utf-8") == rules_page()


def test_it_needs_no_torch() -> None:
    code = (
        "import sys; from headscope.cli import main; main(['explain', 'HS102']);"
        "sys.exit(sum(name in sys.modules for name in ('torch', 'transformers', 'huggingface_hub')))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_a_pooling_is_found_as_people_say_it() -> None:
    assert find_topic("mean pooling").id == "mean"
    assert find_topic("max-pooling").id == "max"


def test_no_topic_of_the_list_says_its_own_name_twice() -> None:
    assert [topic.id for topic in topics() if topic.title == topic.id] == []


def test_python_gets_the_topics_that_the_terminal_shows() -> None:
    found = headscope.explain("HS102", "first_token")
    assert [topic.id for topic in found] == ["HS102", "first_token"]
    assert repr(found) == "<headscope explain: HS102, first_token>"
    assert "first_token" in str(found)
    assert len(headscope.explain()) == len(topics())
    with pytest.raises(UsageError, match="no such topic"):
        headscope.explain("HS999")
