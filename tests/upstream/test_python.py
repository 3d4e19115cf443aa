"""CPython's parser, in several threads."""

import ast
import textwrap
from concurrent.futures import ThreadPoolExecutor
from inspect import getsource

import pytest

from headscope.upstream.python import parse


def test_a_source_that_is_fine_is_parsed_although_a_thread_disturbs_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = ast.parse, []

    def disturbed(source: str) -> ast.Module:
        calls.append(source)
        if len(calls) < 3:
            raise SystemError("AST constructor recursion depth mismatch (before=42, after=37)")
        return real(source)

    monkeypatch.setattr(ast, "parse", disturbed)
    assert isinstance(parse("x = 1"), ast.Module)
    assert len(calls) == 3


def test_eight_threads_parse_alike() -> None:
    source = getsource(textwrap)
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: ast.dump(parse(source)), range(64)))
    assert found == {ast.dump(ast.parse(source))}


def test_a_source_with_a_mistake_is_refused_as_by_python() -> None:
    with pytest.raises(SyntaxError):
        parse("x = (")
