"""How many small faults the tests notice: mutants of a file, each run against the tests that execute its line.

`python -m scripts.house.mutate FILE ... [--count N] [--seed S]` samples N mutants of each file, in an order that the
seed decides, and prints how many were killed, with every survivor and its line. It exits with 1 where a file kills less
than the floor. Which tests execute a line is in a map that `--map` makes: one run of what `make test` runs, under
coverage.py, in three times its time. Each mutant runs in a fork of one warm process, so nothing heavy is imported
twice; the working tree is never written. A mutant that uses up its CPU time counts as killed: a test would have hung.

What it doesn't look at: tests that `make test` leaves out, but for those named like the file or a folder of it, and
those that `--tests` names; tests that see the line only in another process, since a fork has the mutant and its
children don't; and tests beyond `--seconds`, or for a survivor beyond six times as many. A share is therefore the least
that the suite kills.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
FLOOR = 85
"""Percent of the sampled mutants that the tests of each file must kill."""
_USAGE_ERROR = 4
LEAST = 0.15
"""Seconds that a test counts at least: its share of the imports and of what its file sets up, which no list has."""
MOST_CASES = 30
"""How many cases of one test a mutant is run against at first."""
AGAIN = 6
"""How many times longer are the tests that a survivor is run against, with all of their cases."""

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_BINARY: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
_TWINS = {"any": "all", "all": "any", "min": "max", "max": "min"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one file: the whole new source, and the lines of what differs."""

    file: str
    line: int
    last_line: int
    source: str
    diff: str


@dataclass(frozen=True, slots=True)
class Result:
    """What the tests made of a mutant: `killed`, `survived`, `timed out`, or `not executed` where no test runs it."""

    mutant: Mutant
    end: str
    tests: int
    """How many tests it was run against."""


def mutants_of(file: str) -> list[Mutant]:
    """Every mutant of a file that still compiles, in the order of its source."""
    source = (ROOT / file).read_text(encoding="utf-8")
    found: dict[str, Mutant] = {}
    for node, text in _changes(ast.parse(source)):
        changed = _replaced(source, node, text)
        try:
            same = ast.dump(ast.parse(changed)) == ast.dump(ast.parse(source))
        except SyntaxError:
            continue
        if not same:
            place: Any = node
            found.setdefault(changed, Mutant(file, place.lineno, place.end_lineno, changed, _diff(source, changed)))
    return list(found.values())


def _replaced(source: str, node: ast.AST, text: str) -> str:
    """The source with the text of one node exchanged; columns count bytes."""
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    place: Any = node
    first, last = place.lineno - 1, place.end_lineno - 1
    head: bytes = b"".join(lines[:first]) + lines[first][: place.col_offset]
    tail: bytes = lines[last][place.end_col_offset :] + b"".join(lines[last + 1 :])
    return (head + text.encode() + tail).decode()


def _diff(before: str, after: str) -> str:
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0))
    return "\n".join(lines[3:])


def _changes(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Nodes with another text for each; annotations, decorators, docstrings and f-strings are left alone."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield from _changes_of(node)
        waiting.extend(reversed(list(_children(node))))


def _children(node: ast.AST) -> Iterator[ast.AST]:
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list", "type_params"} or isinstance(node, ast.JoinedStr):
            continue
        items = value if isinstance(value, list) else [value]
        yield from (item for item in items if isinstance(item, ast.AST) and not _is_for_types(item))


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _changes_of(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:  # noqa: PLR0912 - one line for each kind of node
    match node:
        case ast.Compare(left=left, ops=[one], comparators=[right]):
            yield node, f"({ast.unparse(ast.Compare(left, [_COMPARISONS[type(one)]()], [right]))})"
            yield from ((item, '"XX"') for item in (left, right) if _is_text(item))
        case ast.BoolOp(op=sign, values=values):
            other = ast.Or() if isinstance(sign, ast.And) else ast.And()
            yield node, f"({ast.unparse(ast.BoolOp(other, values))})"
            for at in range(len(values)):
                rest = [*values[:at], *values[at + 1 :]]
                yield node, f"({ast.unparse(ast.BoolOp(sign, rest) if len(rest) > 1 else rest[0])})"
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _BINARY:
            yield node, f"({ast.unparse(ast.BinOp(left, _BINARY[type(sign)](), right))})"
        case ast.AugAssign(target=target, op=sign, value=value) if type(sign) in _BINARY:
            yield node, ast.unparse(ast.AugAssign(target, _BINARY[type(sign)](), value))
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            yield node, f"({ast.unparse(inner)})"
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            yield node, f"({ast.unparse(inner)})"
        case ast.Constant(value=bool(value)):
            yield node, str(not value)
        case ast.Constant(value=int(value)):
            yield node, str(value + 1)
        case ast.Set(elts=items) | ast.Dict(keys=items):
            yield from ((item, '"XX"') for item in items if item is not None and _is_text(item))
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.match_case(guard=ast.expr() as test):
            yield test, f"(not ({ast.unparse(test)}))"
        case ast.comprehension(ifs=tests):
            yield from ((test, "True") for test in tests)
        case ast.For(iter=values):
            yield values, "()"
        # Nearly all who ask for truth take None for False.
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and not value.value):
            yield node, "return None"
        case ast.Expr(value=ast.Call()) | ast.Raise():
            yield node, "pass"
        case ast.Continue() | ast.Break():
            yield node, "break" if isinstance(node, ast.Continue) else "continue"
        case ast.Call(func=ast.Name(id=name) as called) if name in _TWINS:
            yield called, _TWINS[name]


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


class _Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives one module another source."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant
        self.module = ".".join(Path(mutant.file).with_suffix("").parts).removesuffix(".__init__")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The mutated module, and no other."""
        if fullname != self.module:
            return None
        file = ROOT / self.mutant.file
        inside = [str(file.parent)] if file.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(fullname, file, loader=self, submodule_search_locations=inside)

    def exec_module(self, module: ModuleType) -> None:
        """Runs the mutated source under the file's own name."""
        exec(compile(self.mutant.source, str(ROOT / self.mutant.file), "exec"), module.__dict__)


class TestsOfLines:
    """Which tests execute a line, by the map that `--map` made: those in folders and files of its name first."""

    def __init__(self) -> None:
        from coverage import CoverageData  # only this script needs it

        from tests.selection import read_times

        self._data = CoverageData()
        self._data.read()
        self._made = Path(self._data.data_filename()).stat().st_mtime if self._data.measured_files() else 0
        self._times = read_times()
        self.now = _collect_tests()
        ran = {context.rpartition("|")[0] for context in self._data.measured_contexts()}
        self._left_out = {test.partition("[")[0] for test in self.now if test not in ran}

    def of(self, mutant: Mutant, seconds: float, most_cases: int = MOST_CASES) -> list[str]:
        """The tests that execute a mutant's lines; those that execute any of its file, where an import runs them."""
        contexts = self._contexts(mutant.file)
        own = [contexts[line] for line in range(mutant.line, mutant.last_line + 1) if contexts.get(line)]
        found = _tests_in(own)
        if not found and own:  # the import of the module executes the line: a constant
            found = _tests_in(contexts.values())
        names = Path(mutant.file).with_suffix("").parts
        # Of a test, `make test` leaves out some cases or all, which may execute the line too.
        near = {test for test in self._left_out if not _words_of(test).isdisjoint(names[1:])}
        ranked = self._ranked(found, near - found, set(names[1:]))
        chosen, left = list[str](), seconds
        for _, case, cost, test in ranked:
            if case < most_cases and (not chosen or cost <= left):
                chosen.append(test)
                left -= cost
        return chosen

    @cache  # noqa: B019 - there is one of these
    def _contexts(self, file: str) -> dict[int, list[str]]:
        name = next((name for name in self._data.measured_files() if name.endswith(file)), None)
        if name is None or (ROOT / file).stat().st_mtime > self._made:
            raise SystemExit(f"the map has no {file}, or an older one: python -m scripts.house.mutate --map")
        by_line: dict[int, list[str]] = self._data.contexts_by_lineno(name)
        return by_line

    def _ranked(self, found: set[str], near: set[str], names: set[str]) -> list[tuple[int, int, float, str]]:
        """The nearest first, a first case of each test, then a second one; with the number of the case and its cost."""
        cases, ranked = Counter[str](), []
        tests = (test for test in self.now if test.partition("[")[0] in found | near)
        for test in sorted(tests, key=lambda item: (self._cost(item), item)):
            name = test.partition("[")[0]
            others = len(names - _words_of(name)) + (name in near)
            ranked.append((others, cases[name], self._cost(test), test))
            cases[name] += 1
        return sorted(ranked)

    def _cost(self, test: str) -> float:
        cost = self._times.get(test.partition("[")[0])
        return max(LEAST, cost.seconds / max(1, cost.cases) if cost else 0)


def _words_of(test: str) -> set[str]:
    """The folders of a test and what its file is named after."""
    return set(test.partition("::")[0].replace("test_", "").removesuffix(".py").split("/"))


def _tests_in(contexts: Iterable[Sequence[str]]) -> set[str]:
    """The tests, without cases, that contexts name: `file::test[case]|when`; other processes have no `|`."""
    found = {name.rpartition("|")[0] for names in contexts for name in names if "|" in name and "::" in name}
    return {name.partition("[")[0] for name in found}


def _collect_tests() -> set[str]:
    """The tests that there are now: the map may name others, at which pytest would stop."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests"]
    shown = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return {line for line in shown.splitlines() if "::" in line}


class _FirstFailure:
    """Writes the name of the first test that fails."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Of the first one: pytest stops there."""
        if report.failed:
            os.write(self.file.fileno(), report.nodeid.encode())


def _run_tests(mutant: Mutant | None, tests: Sequence[str], seconds: float) -> tuple[str, str]:
    """How a fork that runs the tests ends, and the first test that failed."""
    with tempfile.TemporaryFile() as report:
        child = os.fork()
        if not child:
            _run_and_exit(mutant, tests, seconds, report)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with contextlib.suppress(ProcessLookupError):  # what the tests have started and left
            os.killpg(child, signal.SIGKILL)
        report.seek(0)
        failed = report.read().decode()
    if code in (-signal.SIGXCPU, -signal.SIGKILL, -signal.SIGALRM):
        return "timed out", failed
    if code == _USAGE_ERROR:
        raise SystemExit(f"pytest does not take {' '.join(tests)}")
    return ("survived" if code == 0 else "killed"), failed


def _run_and_exit(mutant: Mutant | None, tests: Sequence[str], seconds: float, report: IO[bytes]) -> None:
    """Never returns."""
    code = 99
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 2))
        signal.alarm(int(20 * seconds))  # asleep, not at work
        if mutant is not None:
            sys.meta_path.insert(0, _Mutated(mutant))
        import pytest

        options = ["-x", "-q", "-p", "no:cacheprovider", "--no-header"]
        code = int(pytest.main([*options, *tests], plugins=[_FirstFailure(report)]))
    finally:
        os._exit(code)


def run_mutant(mutant: Mutant, lines: TestsOfLines, more: Sequence[str], seconds: float) -> Result:
    """The end of a mutant; one that survives is run against the other tests that execute it too."""
    tests = [*more, *lines.of(mutant, seconds)]
    first = _run_against(mutant, tests, seconds)
    if first.end != "survived":
        return first
    others = [test for test in lines.of(mutant, AGAIN * seconds, len(lines.now)) if test not in tests]
    second = _run_against(mutant, others, AGAIN * seconds)
    return replace(second if second.tests else first, tests=first.tests + second.tests)


def _run_against(mutant: Mutant, tests: list[str], seconds: float) -> Result:
    """The end of a mutant; a test that fails without it too says nothing, and is left out."""
    while tests:
        end, failed = _run_tests(mutant, tests, 2 * seconds + 30)
        if end != "killed" or not failed or _passes(failed):
            return Result(mutant, end, len(tests))
        if failed not in tests:  # of a file that was named as a whole
            raise SystemExit(f"it fails without a mutant: {failed}")
        tests = [test for test in tests if test != failed]
    return Result(mutant, "not executed", 0)


@cache
def _passes(test: str) -> bool:
    return _run_tests(None, [test], 600)[0] == "survived"


def _make_map() -> int:
    """Runs what `make test` runs under coverage.py, with each test as a context."""
    if importlib.util.find_spec("pytest_cov") is None:
        raise SystemExit("the map is made by pytest-cov: pip install pytest-cov")
    given = os.environ.get("PYTEST_ADDOPTS", "")
    options = os.environ | {"PYTEST_ADDOPTS": f"{given} --cov --cov-context=test --cov-report="}
    return subprocess.run(["make", "test"], cwd=ROOT, env=options, check=False).returncode


def main() -> int:
    """Prints the table and the survivors; 1 where the floor is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="files of headscope/, from the project's root")
    parser.add_argument("--map", action="store_true", help="make the map of which tests execute a line")
    parser.add_argument("--count", type=int, default=30, help="mutants of each file")
    parser.add_argument("--seed", type=int, default=10)
    parser.add_argument("--tests", nargs="*", default=[], help="more tests, such as new ones, which the map lacks")
    parser.add_argument("--seconds", type=float, default=20, help="of tests that a mutant is run against")
    options = parser.parse_args()
    if options.map:
        return _make_map()
    if not options.files:
        parser.error("name the files to mutate, or --map")
    os.chdir(ROOT)
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # else pytest imports headscope, a plugin, past the mutants
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    import peft  # noqa: F401  # and Transformers and PyTorch with it: forks don't import them again

    lines = TestsOfLines()
    results = []
    for file in options.files:
        found = mutants_of(file)
        for mutant in random.Random(f"{options.seed}:{file}").sample(found, min(options.count, len(found))):
            results.append(run_mutant(mutant, lines, options.tests, options.seconds))
            print(results[-1].end[0], end="", file=sys.stderr, flush=True)
    return _print_results(sorted(results, key=lambda item: (item.mutant.file, item.mutant.line)))


def _print_results(results: Sequence[Result]) -> int:
    missed = False
    print(f"\n{'file':50} mutants  killed survived timed out not executed  share")
    for file in sorted({item.mutant.file for item in results}):
        ends = Counter(item.end for item in results if item.mutant.file == file)
        share = 100 * (ends["killed"] + ends["timed out"]) / ends.total()
        missed |= share < FLOOR
        counts = f"{ends.total():7} {ends['killed']:7} {ends['survived']:8} {ends['timed out']:9}"
        row = f"{file:50} {counts} {ends['not executed']:12} {share:5.0f}%"
        print(row + (" (below the floor)" if share < FLOOR else ""))
    for item in results:
        if item.end in ("survived", "not executed"):
            print(f"\n{item.mutant.file}:{item.mutant.line} {item.end}, {item.tests} tests\n{item.mutant.diff}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
