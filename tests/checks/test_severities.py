"""The table of severities is what the rules find: read off their code, severity by severity and both ways."""

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from headscope.checks import RULES
from headscope.checks.rule import Rule, rule
from headscope.facts import Profile, Severity
from headscope.facts.severities import GRAVITY, severities_of
from headscope.render.explain import find_topic, rules_page

Found = set[tuple[Profile, Severity]]


@cache
def _functions(module: str) -> dict[str, ast.FunctionDef]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {item.name: item for item in tree.body if isinstance(item, ast.FunctionDef)}


def _reached(function: str, module: str) -> Iterator[ast.FunctionDef]:
    """A function and those of its module that it names, and so on."""
    known, waiting = set[str](), [function]
    while waiting:
        name = waiting.pop()
        if name in known or name not in _functions(module):
            continue
        known.add(name)
        yield _functions(module)[name]
        waiting += [item.id for item in ast.walk(_functions(module)[name]) if isinstance(item, ast.Name)]


def _severities_in(node: ast.AST, profiles: tuple[Profile, ...] = tuple(Profile)) -> Iterator[tuple[Profile, Severity]]:
    """The severities that code names, each for the profiles that it is for; what a gap may hide is no finding."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id == "NotKnown":
            return
        if node.func.id == "at":
            for part in node.keywords:
                yield from _severities_in(part.value, (Profile(str(part.arg)),))
            return
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Severity":
        yield from ((profile, Severity[node.attr]) for profile in profiles)
    for child in ast.iter_child_nodes(node):
        yield from _severities_in(child, profiles)


def _in_code(asked: Rule) -> tuple[Found, bool]:
    """What the code of a rule names, and whether it looks at the profile in another way than through `at`."""
    judge: Any = asked.judge
    functions = list(_reached(judge.__name__, judge.__module__))
    found = {item for function in functions for part in function.body for item in _severities_in(part)}
    attributes = (item.attr for function in functions for item in ast.walk(function) if isinstance(item, ast.Attribute))
    return found, "profile" in attributes


@pytest.mark.parametrize("identifier", RULES)
def test_the_table_declares_what_the_code_names_and_nothing_else(identifier: str) -> None:
    found, looks_at_profile = _in_code(RULES[identifier])
    declared = {(profile, item) for profile in Profile for item in RULES[identifier].severities.of(profile)}
    assert found
    assert declared <= found
    if looks_at_profile:  # what it leaves out for one profile, it finds for the other
        assert {severity for _, severity in declared} == {severity for _, severity in found}
    else:
        assert declared == found


@pytest.mark.parametrize("identifier", RULES)
def test_the_gravest_comes_first(identifier: str) -> None:
    for profile in Profile:
        found = severities_of(identifier).of(profile)
        assert sorted(found, key=lambda item: -GRAVITY[item]) == list(found)
        assert len(set(found)) == len(found)


def test_a_severity_that_is_not_declared_is_refused() -> None:
    assert RULES["HS106"].find(Severity.WARNING, "a", "b").severity is Severity.WARNING
    with pytest.raises(ValueError, match="HS106 finds a severity"):
        RULES["HS106"].find(Severity.ERROR, "a", "b")
    rule("HS999", "of-a-test", "A rule of a test")(lambda this, subject: ())
    try:
        assert RULES["HS999"].severities.inference == (Severity.ERROR,)
    finally:
        del RULES["HS999"]


def test_the_page_and_the_topics_show_the_table() -> None:
    page = rules_page()
    for identifier, asked in RULES.items():
        assert find_topic(identifier).severities == asked.severities
        named = [" or ".join(asked.severities.of(profile)) or "nothing" for profile in Profile]
        assert f"| [{identifier}](#{identifier.lower()}) | {asked.title} | {' | '.join(named)} |" in page
