"""CPython's parser in several threads, and what helps where the system refuses to write."""

import ast
import errno
import os
import textwrap
from concurrent.futures import ThreadPoolExecutor
from inspect import getsource

import pytest

from headscope.core.upstream.python import FULL, parse, write_hint


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


HINTS = {
    errno.ENOSPC: "space",
    errno.EDQUOT: "quota",
    errno.EFBIG: "space",
    errno.EIO: "check the disk",
    errno.EACCES: "permission",
    errno.EPERM: "permission",
    errno.EROFS: "read-only",
    errno.ENOTEMPTY: "new folder",
    errno.ENAMETOOLONG: "shorter name",
    errno.ENODEV: "write elsewhere",
}


@pytest.mark.parametrize("number", HINTS)
def test_the_hint_fits_the_reason_of_the_system(number: int) -> None:
    hint = write_hint(OSError(number, os.strerror(number)))
    assert HINTS[number] in hint
    assert ("space" in hint) is (number in (errno.ENOSPC, errno.EFBIG))
    assert number in HINTS or number not in FULL
