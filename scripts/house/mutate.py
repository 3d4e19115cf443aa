"""How many small faults the tests notice: mutants of a file, each run against the tests that cover it.

`python -m scripts.house.mutate [FILE ...] [--count N] [--seed S]` samples N mutants of each file, in an order
that the seed decides, and prints how many were killed, with every survivor and its line. It exits with 1 where a file
that has a floor kills less. Each mutant runs in a fork of one warm process, so nothing heavy is imported twice; the
working tree is never written. A mutant that uses up its CPU time counts as killed: a test would have hung.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FLOOR = 85
"""Percent of the sampled mutants that the tests must kill in `checks/`, `trial/` and the files of `_FLOORED`."""
_TRACE = (
    "tests/trace/replay/test_indexing.py", "tests/trace/slice/test_head_slice.py", "tests/trace/slice/test_axes.py",
    "tests/trace/replay/test_replay.py", "tests/trace/replay/test_running_again.py",
    "tests/trace/proof/test_verify.py", "tests/trace/proof/test_verify_step_by_step.py",
    "tests/trace/formula/test_formula.py", "tests/trace/pooling/test_pooling.py",
    "tests/trace/pooling/test_pooling_operations.py", "tests/trace/proof/test_agreement.py",
    "tests/trace/pooling/test_chosen_positions.py", "tests/trace/formula/test_computed_weights.py",
    "tests/trace/proof/test_parts_proven.py", "tests/trace/proof/test_branches.py", "tests/trace/proof/test_cuts.py",
    "tests/trace/replay/test_changed_inputs.py", "tests/trace/pooling/test_taken_back.py",
    "tests/trace/pooling/test_windows.py", "tests/trace/proof/test_branching_heads.py",
    "tests/trace/proof/test_other_inputs.py", "tests/trace/record/test_random_choices.py",
    "tests/trace/record/test_values_that_leave_torch.py",
)  # fmt: skip
_CHECKS = (
    "tests/checks/rules/test_rules_of_weights.py", "tests/checks/rules/test_rules_of_configuration.py",
    "tests/checks/rules/test_rules_of_numbers.py", "tests/checks/rules/test_rules_of_runs.py",
    "tests/checks/rules/test_judgment.py",
    "tests/checks/rules/test_rule_texts.py",
)  # fmt: skip
_MODEL = (
    "tests/model/test_model_request.py", "tests/model/test_tokenizers.py", "tests/model/test_remote_code.py",
    "tests/model/loading/test_loading_against_transformers.py",
    "tests/model/loading/test_adapter_shapes_against_peft.py", "tests/model/loading/test_adapters_against_peft.py",
    "tests/model/loading/test_quantized.py", "tests/model/test_across_families.py", "tests/checks/test_rules.py",
)  # fmt: skip
_OF_TOKENIZERS = ("tests/checks/tokens/test_tokenizer_facts.py", "tests/checks/tokens/test_tokenizer_vocabularies.py")
_OF_HEADS = ("tests/checks/numbers/test_head_trials.py",)
_OF_HEALTH = (
    "tests/model/tensors/test_head_health.py", "tests/model/tensors/test_head_statistics.py",
    "tests/model/tensors/test_head_judgment.py", "tests/checks/rules/test_rules_of_numbers.py",
)  # fmt: skip
_OF_TENSORS = (
    "tests/verification/test_single_tensors.py::test_one_tensor_against_the_one_that_is_stored",
    "tests/verification/test_single_tensors.py::test_one_tensor_that_cannot_be_compared",
    "tests/verification/test_single_tensors.py::test_one_packed_tensor_is_compared_where_the_model_holds_it_packed",
    "tests/verification/test_single_tensors.py::test_one_tensor_whose_file_is_gone_or_beside_a_pickle_is_unknown",
    "tests/verification/test_single_tensors.py::test_one_tensor_that_the_loader_makes_of_several",
    "tests/verification/test_single_tensors.py::test_one_tensor_that_follows_from_an_adapter",
    "tests/verification/test_single_tensors.py::test_one_weight_against_what_peft_merges",
    "tests/verification/test_single_tensors.py::test_one_merge_that_is_not_finite_is_none",
    "tests/verification/test_single_tensors.py::test_one_buffer_against_the_one_that_the_class_computes",
    "tests/verification/test_single_tensors.py::test_one_buffer_of_whole_numbers_against_the_one_that_the_class_computes",
)  # fmt: skip
_OF_BASES = (
    "tests/checks/numbers/test_base_numbers.py",
    "tests/verification/test_single_tensors.py::test_numbers_of_a_base_model_in_memory",
)  # fmt: skip
_OF_UNUSED = (
    "tests/model/test_unexpected_keys.py",
    "tests/verification/test_single_tensors.py::test_unused_keys_are_those_of_the_classes_that_have_them",
    "tests/verification/test_single_tensors.py::test_dropped_keys_are_those_of_other_layers_and_of_a_switch",
)  # fmt: skip
_STATES = (
    "tests/states/test_wrapped_keys.py", "tests/states/test_states_of_files.py", "tests/states/test_half_downloads.py",
    "tests/states/test_peft_keys.py", "tests/states/test_no_config.py",
)  # fmt: skip
_CHECKPOINTS = (
    "tests/checkpoints/formats/test_safetensors_header.py", "tests/checkpoints/formats/test_torch_file.py",
    "tests/checkpoints/test_local.py", "tests/checkpoints/test_snapshot.py", "tests/checkpoints/formats/test_gguf.py",
    "tests/checkpoints/formats/test_gguf_head.py", "tests/checkpoints/test_sentence.py",
    "tests/checkpoints/hub/test_hub.py", "tests/checkpoints/test_foreign.py", "tests/checkpoints/hub/test_ranges.py",
)  # fmt: skip
_FLOORED = (
    "pooling", "collapse", "picks", "head_slice", "indexing", "replay", "gradients", "changed_inputs", "counterpart",
    "other_inputs", "size_branches", "tokenizer_file", "live_trial", "trial_process",
)  # fmt: skip
_ROOMS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (  # folder, files (all where none is named), tests
    ("headscope/core/trace", ("replay",), (*_OF_HEADS, *_TRACE)),
    (
        "headscope/core/trace",
        (*_FLOORED, "agreement", "formula", "side_values", "simplification", "evaluate", "axes"),
        _TRACE,
    ),
    ("headscope/checks/rules", ("trial",), ("tests/checks/test_observing.py", *_CHECKS)),
    ("headscope/checks", (), _CHECKS),
    ("headscope/core/source/health", (), _CHECKS),
    ("headscope/core/source", ("tokenizer",), _OF_TOKENIZERS),
    ("headscope/shared/trial", ("head_trial",), _OF_HEADS),
    ("headscope/shared/trial", ("observing", "encoded"), ("tests/checks/test_observing.py",)),
    ("headscope/shared/trial", ("inputs",), ("tests/checks/test_inputs_of_runs.py",)),
    ("headscope/shared/trial", ("opening", "deciding"), ("tests/checks/test_opening.py",)),
    ("headscope/shared/trial", ("live_trial",), ("tests/checks/test_runs_in_memory.py",)),
    ("headscope/shared/loaded", ("scores",), ("tests/checks/test_runs_in_memory.py",)),
    ("headscope/checks", ("trial_process",), ("tests/checks/test_runs_in_memory.py",)),
    ("headscope/shared/loaded", ("tensor_checks",), _OF_TENSORS),
    ("headscope/checks/evidence", ("base_numbers",), _OF_BASES),
    ("headscope/core/model", ("unexpected_keys",), _OF_UNUSED),
    ("headscope/core/model", ("head_statistics",), _OF_HEALTH),
    ("headscope/core/model", (), _MODEL),
    ("headscope/core/checkpoints", ("tokenizer_file",), (*_OF_TOKENIZERS, "tests/model/test_tokenizers.py")),
    ("headscope/core/checkpoints/states", (), _STATES),
    ("headscope/core/checkpoints", (), _CHECKPOINTS),
)

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
    """One change of one file: the whole new source, and the line where it differs."""

    file: str
    line: int
    source: str
    diff: str


@dataclass(frozen=True, slots=True)
class Result:
    """What the tests made of a mutant: `killed`, `survived` or `timed out`."""

    mutant: Mutant
    end: str


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
            found.setdefault(changed, Mutant(file, place.lineno, changed, _diff(source, changed)))
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
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
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


def _start(mutant: Mutant | None, tests: Sequence[str], seconds: float, report: int | None = None) -> int:
    """The process id of a fork that runs the tests and ends with the exit code of pytest."""
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2) if report is None else (0,):
            os.dup2(nothing, stream)
        if seconds:
            resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 2))
        if mutant is not None:
            sys.meta_path.insert(0, _Mutated(mutant))
        import pytest

        options = ["-x", "-q", "-p", "no:cacheprovider", "--no-header"]
        code = int(pytest.main([*options, *tests]))
        if report is not None:
            os.write(report, "\n".join(sys.modules).encode())
    finally:
        os._exit(code)


def _warm(tests: Sequence[str]) -> float:
    """Imports what the tests import, headscope aside, and gives the CPU seconds that they take without a fault."""
    reading, writing = os.pipe()
    child = _start(None, tests, 0, writing)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        names = pipe.read().split("\n")
    _, status, _ = os.wait4(child, 0)
    if os.waitstatus_to_exitcode(status):
        raise SystemExit("the tests fail without a mutant")
    own = ("headscope", "tests", "families", "conftest", "hub", "reports", "saving", "_pytest", "pytest", "test_")
    for name in names:
        if name not in sys.modules and not name.startswith(own):
            try:
                importlib.import_module(name)
            except BaseException:  # a module that was made at run time
                continue
    child = _start(None, tests, 0)
    _, _, usage = os.wait4(child, 0)
    return usage.ru_utime + usage.ru_stime


def run_mutants(mutants: Sequence[Mutant], tests: Sequence[str], jobs: int) -> list[Result]:
    """The end of each mutant, `jobs` at a time."""
    usual = _warm(tests)
    limit = 2 * usual + 10
    print(f"  {len(tests)} test files, {usual:.1f} s of CPU each time", file=sys.stderr)
    broken = Mutant(mutants[0].file, 1, "raise ImportError", "")
    if _end(os.waitstatus_to_exitcode(os.waitpid(_start(broken, tests, limit), 0)[1])) != "killed":
        raise SystemExit(f"the tests do not import {mutants[0].file}")
    waiting, running, results = list(mutants), dict[int, tuple[Mutant, float]](), list[Result]()
    while waiting or running:
        while waiting and len(running) < jobs:
            mutant = waiting.pop(0)
            running[_start(mutant, tests, limit)] = (mutant, time.monotonic())
        child, status = os.waitpid(-1, os.WNOHANG)
        if child in running:
            mutant, _ = running.pop(child)
            results.append(Result(mutant, _end(os.waitstatus_to_exitcode(status))))
            print(
                "." if results[-1].end == "killed" else results[-1].end[0].upper(), end="", file=sys.stderr, flush=True
            )
            continue
        for process, (_, since) in running.items():
            if time.monotonic() - since > 20 * limit:  # asleep, not at work
                os.killpg(process, signal.SIGXCPU)
        time.sleep(0.05)
    print(file=sys.stderr)
    if os.waitstatus_to_exitcode(os.waitpid(_start(None, tests, limit), 0)[1]):
        raise SystemExit("the tests fail without a mutant: the working tree was changed during the run")
    return sorted(results, key=lambda item: (item.mutant.line, item.mutant.diff))


def _end(code: int) -> str:
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return "timed out"
    return "survived" if code == 0 else "killed"


def chosen_files(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The files to mutate, each with its tests; all of them where none is named."""
    found: dict[str, tuple[str, ...]] = {}
    for folder, only, tests in _ROOMS:
        files = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*.py"))
        for file in files:
            if (not only or Path(file).stem in only) and Path(file).name != "__init__.py":
                found.setdefault(file, tests)
    gone = [test for _, _, tests in _ROOMS for test in tests if not (ROOT / test.partition("::")[0]).is_file()]
    gone += [name for name in _FLOORED if not any(Path(file).stem == name for file in found)]
    if gone:
        raise SystemExit(f"not there any more: {', '.join(gone)}")
    unknown = set(names) - set(found)
    if unknown:
        raise SystemExit(f"no tests are named for {', '.join(sorted(unknown))}")
    return {file: found[file] for file in found if not names or file in names}


def main() -> int:
    """Prints the table and the survivors; 1 where a floor is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--tests", nargs="*", help="other tests than the usual ones")
    options = parser.parse_args()
    os.chdir(ROOT)
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # else pytest imports headscope, a plugin, past the mutants
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    by_tests: dict[tuple[str, ...], list[Mutant]] = {}
    for file, tests in chosen_files(options.files).items():
        found = mutants_of(file)
        sample = random.Random(f"{options.seed}:{file}").sample(found, min(options.count, len(found)))
        by_tests.setdefault(tuple(options.tests or tests), []).extend(sample)
    results = [item for tests, sample in by_tests.items() for item in run_mutants(sample, tests, options.jobs)]
    return _print(results)


def _print(results: Sequence[Result]) -> int:
    missed = False
    print(f"{'file':44} {'mutants':>7} {'killed':>7} {'survived':>8} {'timed out':>9} {'share':>6}")
    for file in sorted({item.mutant.file for item in results}):
        ends = [item.end for item in results if item.mutant.file == file]
        share = 100 * (len(ends) - ends.count("survived")) / len(ends)
        has_floor = _has_floor(file)
        missed |= has_floor and share < FLOOR
        row = f"{len(ends):7} {ends.count('killed'):7} {ends.count('survived'):8} {ends.count('timed out'):9}"
        print(f"{file:44} {row} {share:5.0f}%{' (below the floor)' if has_floor and share < FLOOR else ''}")
    for item in results:
        if item.end == "survived":
            print(f"\n{item.mutant.file}:{item.mutant.line}\n{item.mutant.diff}")
    return int(missed)


def _has_floor(file: str) -> bool:
    return not {"checks", "trial"}.isdisjoint(Path(file).parts) or Path(file).stem in _FLOORED


if __name__ == "__main__":
    sys.exit(main())
