"""CPython."""

import ast
from threading import Lock

_ONE_AT_A_TIME = Lock()
_ATTEMPTS = 5


def parse(source: str) -> ast.Module:
    """`ast.parse`, in a process whose other threads parse too. Raises SyntaxError, as that does.

    Up to CPython 3.12 the depth of nesting is counted for the process, not for the thread: with two threads at it, one
    may end with `SystemError: AST constructor recursion depth mismatch`, about a source that is fine
    (github.com/python/cpython/issues/106905). Other libraries parse without this lock, so several attempts are made.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            with _ONE_AT_A_TIME:
                return ast.parse(source)
        except SystemError:
            continue
    return ast.parse(source)


def descends_from(value: object, package: str, name: str) -> bool:
    """Whether `value` is of a class called `name` in `package`, or of a class made from it; nothing is imported."""
    return any(cls.__name__ == name and cls.__module__.split(".")[0] == package for cls in type(value).__mro__)
