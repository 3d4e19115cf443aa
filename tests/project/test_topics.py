"""Topics of `explain`: all that a report can name has one, and the text of each is true of the program."""

import ast
import re
import shlex
from pathlib import Path

from headscope.checks.rules import every_rule
from headscope.core.facts.verdict import Verdict
from headscope.core.words.console import plain_text
from headscope.facts import ParameterStatus, PoolingKind, Profile, Severity, Task
from headscope.shared.loaded.facts import TensorStatus
from headscope.shared.topics import GROUPS, find_topics, topics
from headscope.shell.app import build_application
from headscope.slices.lookup.explained_screen import topic_screen

RULES = every_rule()

ROOT = Path(__file__).parents[2]


def test_every_rule_has_a_topic_under_its_id_and_its_name() -> None:
    assert {topic.id for topic in topics() if topic.group == "rules"} == set(RULES)
    for identifier, rule in RULES.items():
        topic = find_topics((identifier,))[0]
        assert topic is find_topics((rule.name,))[0]
        assert topic.title == rule.title


def words_at_the_margin() -> set[str]:
    """Collects the words that the code yields with a text."""
    files = [
        file
        for file in (ROOT / "headscope").rglob("*.py")
        if "screen" in file.as_posix() or {"report", "words", "diagram"} & {*file.parts}
    ]
    assert len(files) > 40
    found = (node.value for file in files for node in ast.walk(ast.parse(file.read_text())) if is_yield(node))
    said = {name.value for pair in found for name in pair.elts[:1] if isinstance(name, ast.Constant)}
    return {word for word in said if isinstance(word, str) and word}


def is_yield(node: ast.AST) -> bool:
    return isinstance(node, ast.Yield) and isinstance(node.value, ast.Tuple)


WORDS = (
    *(*PoolingKind, *ParameterStatus, *Profile, *Verdict, *TensorStatus, *Severity, *Task),
    *GROUPS,
    *("logistic regression", "CLS", "[CLS]", "labels:", "base model", "next", "rules", "skipped", "data", "hidden"),
)


def test_every_word_of_a_screen_has_a_topic() -> None:
    for name in {*map(str, WORDS), *words_at_the_margin()} - {"ideas", "terms", "words"}:
        assert find_topics((name,))[0].text


def test_ids_are_told_apart() -> None:
    names = [known.lower().replace("-", " ") for topic in topics() for known in (topic.id, *topic.names)]
    assert len(set(names)) == len(names)


def test_code_compiles() -> None:
    codes = [
        (topic.id, code) for topic in topics() for code in re.findall(r"```py(?:thon)?\n(.*?)```", topic.text, re.S)
    ]
    assert len(codes) > 15
    for name, code in codes:
        compile(code, name, "exec")


def test_commands_exist_with_their_options() -> None:
    commands = build_application().commands  # type: ignore[attr-defined]
    lines = [line for topic in topics() for line in re.findall(r"`headscope ([^`]+)`", topic.text)]
    assert len(lines) > 50
    for line in lines:
        name, *words = shlex.split(line)
        known = {option for parameter in commands[name].params for option in parameter.opts}
        assert {word for word in words if word.startswith("-")} <= known, line


def test_nothing_is_cut() -> None:
    for topic in topics():
        text = re.sub(r"```\w*|\*\*|`", "", topic.text)
        for width in (60, 80, 200):
            shown = plain_text(topic_screen(topic), width)
            assert "".join(shown.split()).endswith("".join(text.split())), f"{topic.id} at {width} columns"
