"""The table of severities is what the rules find: read off their code, severity by severity and both ways."""

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from headscope.checks.rules import every_rule
from headscope.checks.rules.rule import Rule, rule
from headscope.core.facts.verdict import GRAVITY
from headscope.facts import Profile, Severity
from headscope.shared.topics import find_topics
from headscope.slices.lookup.explained_screen import declared_severities
from scripts.pages.write_rules import rules_page

RULES = every_rule()

Found = set[tuple[Profile, Severity]]


@cache
def _defined(module: str) -> dict[str, ast.stmt]:
    """The functions and constants of a module by name."""
    found: dict[str, ast.stmt] = {}
    for item in ast.parse(inspect.getsource(sys.modules[module])).body:
        targets = item.targets if isinstance(item, ast.Assign) else ()
        found |= {target.id: item for target in targets if isinstance(target, ast.Name)}
        if isinstance(item, ast.FunctionDef):
            found[item.name] = item
    return found


def _reached(function: str, module: str) -> Iterator[ast.stmt]:
    """What a function and all that it names in its module do, without decorators and signatures."""
    known, waiting = set[str](), [function]
    while waiting:
        name = waiting.pop()
        found = _defined(module).get(name)
        if name in known or found is None:
            continue
        known.add(name)
        yield from found.body if isinstance(found, ast.FunctionDef) else [found]
        waiting += [item.id for item in ast.walk(found) if isinstance(item, ast.Name)]


def _severities_in(node: ast.AST, profiles: tuple[Profile, ...] = tuple(Profile)) -> Iterator[tuple[Profile, Severity]]:
    """The severities that code names, each for the profiles that it is for; what a gap may hide is no finding."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id == "NotKnown":
            return
        if node.func.id == "severity_at":
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
    parts = list(_reached(judge.__name__, judge.__module__))
    found = {item for part in parts for item in _severities_in(part)}
    return found, any(isinstance(item, ast.Attribute) and item.attr == "profile" for p in parts for item in ast.walk(p))


def test_the_table_declares_what_the_code_names_and_nothing_else() -> None:
    for identifier, asked in RULES.items():
        found, looks_at_profile = _in_code(asked)
        declared = {(profile, item) for profile in Profile for item in asked.severities.of(profile)}
        assert found, identifier
        assert declared <= found, identifier
        if looks_at_profile:  # what it leaves out for one profile, it finds for the other
            assert {severity for _, severity in declared} == {severity for _, severity in found}, identifier
        else:
            assert declared == found, identifier


def test_the_gravest_comes_first() -> None:
    for asked in RULES.values():
        for profile in Profile:
            found = asked.severities.of(profile)
            assert sorted(set(found), key=lambda item: -GRAVITY[item]) == list(found)


def test_a_severity_that_is_not_declared_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert RULES["HS106"].find(Severity.WARNING, "a", "b").severity is Severity.WARNING
    with pytest.raises(ValueError, match="HS106 finds a severity"):
        RULES["HS106"].find(Severity.ERROR, "a", "b")
    monkeypatch.setattr("headscope.checks.rules.rule._RULES", {})
    rule("HS999", "of-a-test", "A rule of a test")(lambda this, subject: ())
    assert every_rule.__wrapped__()["HS999"].severities.inference == (Severity.ERROR,)


def test_the_page_and_the_topics_show_the_table() -> None:
    page = rules_page()
    for identifier, asked in RULES.items():
        assert declared_severities(find_topics((identifier,))[0]) == asked.severities
        named = [" or ".join(asked.severities.of(profile)) or "nothing" for profile in Profile]
        assert f"| [{identifier}](#{identifier.lower()}) | {asked.name} | {asked.title} | {' | '.join(named)} |" in page
