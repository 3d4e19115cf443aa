"""The public API: what it exports, its signatures, its docstrings, its types, and what importing it costs."""

import doctest
import enum
import importlib
import inspect
import re
import subprocess
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from os import PathLike
from pathlib import Path
from pkgutil import iter_modules, walk_packages
from typing import Any, Literal, get_args, get_overloads

import numpy as np
import pytest
import torch

import headscope
from headscope import errors, facts
from headscope.api import DeviceName, DrawingName, ProfileName, SeverityName
from headscope.shell.options.calls import full_signature, use_case
from headscope.shell.values import READ_OPTIONS
from headscope.slices.diagram.formats import PAINTERS
from tests import typing_example
from tests.families import FAMILIES

ROOT = Path(__file__).resolve().parents[2]
MISTAKES = ROOT / "tests" / "typing_mistakes.py"
FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: getattr(headscope, name)
    for name in headscope.__all__
    if isinstance(getattr(headscope, name), types.FunctionType)
}
WITH_OPTIONS = sorted(FUNCTIONS.keys() - {"environment", "explain"})
EXPECTED = re.compile(r"  # E: (?P<code>\S+) (?P<word>\S+)$")
FOUND = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+): error: (?P<message>.*)  \[(?P<code>[\w-]+)\]$")


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)


def test_importing_it_imports_no_torch_and_no_transformers() -> None:
    code = """
import sys, headscope
heavy = {"torch", "transformers", "accelerate", "peft"}
print(sorted(heavy & set(sys.modules)), headscope.errors.NotFound.__name__, "headscope.api" in sys.modules)
for name in set(headscope.__all__) - {"HeadscopeCallback"}:
    getattr(headscope, name)
print(sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["[] NotFound False", "[]"], done.stderr


def test_it_exports_the_types_of_its_results() -> None:
    results = {str(inspect.signature(function).return_annotation) for function in FUNCTIONS.values()}
    assert results <= {
        *headscope.__all__,
        *facts.__all__,
        "str",
        "Iterator[ScanRow]",
        "dict[str, list[Any]]",
        "list[dict[str, Any]]",
    }
    assert dir(headscope) == sorted(headscope.__all__)
    assert headscope.errors is errors
    assert headscope.facts is facts


def test_a_name_that_there_is_not_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="inspekt"):
        _ = headscope.inspekt  # type: ignore[attr-defined]


def test_no_function_hides_the_module_that_has_its_name() -> None:
    packages = [headscope, *(__import__(found.name, fromlist=["_"]) for found in walk_packages(
        headscope.__path__, "headscope.") if found.ispkg)]  # fmt: skip
    assert len(packages) > 8
    for package in packages:
        for found in iter_modules(package.__path__):
            if found.name != "__main__":
                __import__(f"{package.__name__}.{found.name}")
                assert isinstance(getattr(package, found.name), types.ModuleType), f"{package.__name__}.{found.name}"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_parameter_is_explicit_and_has_a_type(name: str) -> None:
    for item in parameters(FUNCTIONS[name]).values():
        assert item.kind is not inspect.Parameter.VAR_KEYWORD, item.name
        assert item.annotation is not inspect.Parameter.empty, item.name
        assert item.annotation != "Any" or item.name == "example_inputs", item.name


@pytest.mark.parametrize("name", ["inspect", "check"])
def test_the_overloads_are_the_implementation_in_two_parts(name: str) -> None:
    function = FUNCTIONS[name]
    overloads = get_overloads(inspect.unwrap(function))
    whole, parts = parameters(function), [dict(full_signature(item).parameters) for item in overloads]
    assert [part.pop("reference").annotation for part in parts] == ["str | PathLike[str]", "nn.Module"]
    assert whole.pop("reference").annotation == "str | PathLike[str] | nn.Module"
    for part in parts:
        for item in part.values():
            assert item == whole[item.name]
    assert set().union(*parts) == set(whole)


@pytest.mark.parametrize("name", WITH_OPTIONS)
def test_an_option_that_there_is_not_is_refused_in_a_sentence(name: str) -> None:
    function = FUNCTIONS[name]
    with pytest.raises(errors.UsageError, match=r": color$") as raised:
        function(color="red")
    assert raised.value.hint == f"options: {', '.join(item for item in parameters(function) if item != 'references')}"
    last = list(parameters(function))[-1]
    with pytest.raises(errors.UsageError, match=f": {last}e$") as raised:
        function(**{f"{last}e": 1})
    assert raised.value.hint.endswith(f" {last}?")


WRONG: list[object] = [object(), b"x", {1: 2}, [object()], slice(3)]
"""No argument takes one of these."""
READ_BY_USE_CASES = {"reference", "references", "model", "optimizer", "example_inputs", "batch", "ignore", "fail_on"}


@pytest.mark.parametrize("name", WITH_OPTIONS)
def test_an_argument_of_another_type_is_a_usage_error(name: str) -> None:
    function, checked = FUNCTIONS[name], 0
    for argument in parameters(function).values():
        # These are read by the use cases; what a batch holds is anything.
        if argument.name in READ_OPTIONS | READ_BY_USE_CASES:
            continue
        for value in WRONG:
            with pytest.raises(errors.UsageError, match=rf"^{argument.name} must be .*, not {type(value).__name__}\b"):
                function(**{argument.name: value})
            checked += 1
    assert checked >= len(WRONG), checked


class Count(enum.IntEnum):
    THREE = 3


class Name(str, enum.Enum):  # noqa: UP042  # the str() of a StrEnum is its value
    ROBERTA = "roberta-base"


class Place:
    def __fspath__(self) -> str:
        return "roberta-base"


class Unspeakable:
    def __repr__(self) -> str:
        raise ValueError("no repr")


def take(
    *,
    number: float = 1.0,
    count: int | None = None,
    flag: bool | None = None,
    path: str | PathLike[str] | None = None,
    texts: str | Iterable[str] = (),
    groups: Mapping[str, Iterable[str]] | None = None,
    numbers: Mapping[str, float] | None = None,
    device: DeviceName | str = "cpu",
    dtype: Literal["float32", "bfloat16"] | None = None,
) -> dict[str, object]:
    """Gives what a use case gets."""
    return locals()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"number": np.float32(0.5)}, 0.5),
        ({"number": torch.tensor([0.5])}, 0.5),
        ({"number": Fraction(1, 2)}, 0.5),
        ({"numbers": {"A": np.float32(0.5)}}, {"A": 0.5}),
        ({"count": np.int64(3)}, 3),
        ({"count": Count.THREE}, 3),
        ({"flag": np.bool_(True)}, True),
        ({"path": Place()}, "roberta-base"),
        ({"path": Name.ROBERTA}, "roberta-base"),
        ({"texts": (item for item in ("a", "b"))}, ("a", "b")),
        ({"groups": {"A": iter("ab")}}, {"A": ("a", "b")}),
        ({"device": torch.device("cuda:1")}, "cuda:1"),
        ({"dtype": torch.bfloat16}, "bfloat16"),
    ],
)
def test_a_legal_value_of_another_class_is_read(given: dict[str, Any], expected: object) -> None:
    read = use_case(take)(**given)[next(iter(given))]
    assert (type(read), read) == (type(expected), expected)


@pytest.mark.parametrize(
    "given",
    [
        {"number": 10**400},
        {"number": Unspeakable()},
        {"number": np.bool_(True)},
        {"numbers": {"A": 10**5000}},
        {"count": np.float32(3)},
        {"flag": np.int64(1)},
        {"path": "a\0b"},
        {"path": "a\ud800"},
        {"texts": "a\ud800"},
        {"texts": iter(["a", None])},
        {"texts": range(3)},
        {"texts": torch.zeros(2)},
        {"texts": np.array("a")},
        {"groups": {"A": iter(["a", 3])}},
        {"dtype": "fp16"},
        {"dtype": torch.float16},
    ],
)
def test_a_value_that_cannot_be_meant_is_a_usage_error(given: dict[str, Any]) -> None:
    with pytest.raises(errors.UsageError, match=next(iter(given))):
        use_case(take)(**given)


@pytest.mark.parametrize("name", ["verify_card", "verify_served"])
def test_an_unknown_name_is_refused_with_those_that_there_are(name: str) -> None:
    with pytest.raises(errors.UsageError, match=r"^no such dtype: 'fp16'$") as raised:
        FUNCTIONS[name]("no-such", "http://localhost:1", dtype="fp16")
    assert raised.value.hint == "dtypes: float32, float16, bfloat16"


def test_references_counts_and_timeouts_are_read_as_the_types_of_other_options() -> None:
    for reference in (Place(), Name.ROBERTA):
        for count in (np.int64(3), Count.THREE):
            report = headscope.inspect(reference, num_labels=count, offline=True)  # type: ignore[arg-type]
            assert (report.checkpoint.reference, len(report.model.labels)) == ("roberta-base", 3)
    for given in ({"timeout": float("nan")}, {"labels": np.array("a")}, {"task": Unspeakable()}):
        with pytest.raises(errors.UsageError, match=next(iter(given))):
            headscope.inspect("roberta-base", offline=True, **given)  # type: ignore[call-overload]


def test_what_is_not_an_optimizer_is_refused() -> None:
    module = torch.nn.Linear(2, 2)
    schedule = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(module.parameters(), 0.1), 1)
    with pytest.raises(errors.UsageError, match=r"^a StepLR is not an optimizer$"):
        headscope.check(module, optimizer=schedule)  # type: ignore[call-overload]


@pytest.mark.parametrize("name", ["check", "verify", "scan"])
@pytest.mark.parametrize(
    "given", [{"ignore": 3}, {"ignore": {"a": 1}}, {"ignore": [3]}, {"fail_on": 3}, {"fail_on": []}]
)
def test_rules_and_severities_of_another_type_are_a_usage_error(name: str, given: dict[str, Any]) -> None:
    with pytest.raises(errors.UsageError, match=r"ignore must be rules|no such severity"):
        list(FUNCTIONS[name](["no-such"] if name == "scan" else "no-such", offline=True, **given))


def test_the_error_of_a_type_says_what_was_expected_and_where_it_stands() -> None:
    with pytest.raises(errors.UsageError, match=r"^engine must be str \| None, not list \['vllm'\]$") as raised:
        headscope.engines("no-such-checkpoint", engine=["vllm"])  # type: ignore[arg-type]
    assert raised.value.hint == "help(headscope.engines) lists the options and their types"
    with pytest.raises(errors.UsageError, match=r"^pattern must be str, not int 3$"):
        headscope.heads(3)  # type: ignore[arg-type]
    with pytest.raises(errors.UsageError, match=r"^topics must be str, not int 3$"):
        headscope.explain("HS101", 3)  # type: ignore[arg-type]


def test_what_is_not_given_is_still_python_s_error() -> None:
    with pytest.raises(TypeError, match="'reference'"):
        headscope.inspect()  # type: ignore[call-overload]


def test_the_wrapper_keeps_the_function() -> None:
    def ask(*names: str, loud: bool = False) -> tuple[tuple[str, ...], bool]:
        """Asks."""
        return names, loud

    wrapped = use_case(ask)
    assert wrapped("a", "b", loud=True) == (("a", "b"), True)
    assert (wrapped.__name__, wrapped.__doc__, inspect.signature(wrapped)) == ("ask", "Asks.", inspect.signature(ask))


def test_the_literals_are_the_values_of_the_facts() -> None:
    assert set(get_args(ProfileName)) == set(facts.Profile)
    assert set(get_args(SeverityName)) == set(facts.Severity)
    assert set(get_args(DrawingName)) == set(PAINTERS)


@pytest.mark.parametrize("name", get_args(DeviceName))
def test_pytorch_knows_every_device(name: str) -> None:
    assert str(torch.device(name)) == name


def sections(text: str) -> dict[str, str]:
    """A docstring in Google style by the titles of its sections."""
    parts = re.split(r"^(Args|Returns|Raises|Example):\n", text, flags=re.MULTILINE)
    return dict(zip(["", *parts[1::2]], [parts[0], *parts[2::2]], strict=True))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_docstring_describes_every_argument_result_and_error(name: str) -> None:
    function = FUNCTIONS[name]
    found = sections(inspect.getdoc(function) or "")
    assert found[""].splitlines()[0].endswith(".")
    described = re.findall(r"^    \*?(\w+): \S", found.get("Args", ""), flags=re.MULTILINE)
    assert described == list(parameters(function))
    assert found["Returns"].strip()
    assert ">>>" in found["Example"]
    raised = re.findall(r"^    (\w+): \S", found.get("Raises", ""), flags=re.MULTILINE)
    assert bool(raised) == (name != "environment")
    assert all(issubclass(getattr(errors, item), errors.HeadscopeError) for item in raised)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_example_of_a_docstring_gives_what_it_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (test,) = doctest.DocTestFinder(recurse=False).find(FUNCTIONS[name], name, globs={})
    assert test.examples
    assert not any(doctest.SKIP in item.options for item in test.examples)
    said: list[str] = []
    assert doctest.DocTestRunner().run(test, out=said.append).failed == 0, "".join(said)


def found_by_mypy() -> Iterator[tuple[str, int, str, str]]:
    """The errors of mypy in the example and in the mistakes: file, line, code, message."""
    files = ["tests/typing_example.py", "tests/typing_mistakes.py"]
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--no-pretty", "--hide-error-context", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    for line in done.stdout.splitlines():
        if ": note: " not in line:
            match = FOUND.match(line)
            assert match, line
            yield Path(match["file"]).name, int(match["line"]), match["code"], match["message"]


def test_mypy_accepts_the_example_and_finds_every_mistake() -> None:
    pytest.importorskip("mypy")
    expected = {
        number: (match["code"], match["word"])
        for number, line in enumerate(MISTAKES.read_text(encoding="utf-8").splitlines(), 1)
        if (match := EXPECTED.search(line))
    }
    assert len(expected) > 20
    found = {}
    for file, line, code, message in found_by_mypy():
        assert file == MISTAKES.name, f"{file}:{line}: {message}"
        assert line in expected, f"{file}:{line}: {message}"
        word = expected[line][1]
        found[line] = (code, word if word in message else message)
    assert found == expected


def small_bert() -> Any:
    return FAMILIES["bert"].build("BertForSequenceClassification")


def test_the_typed_example_runs(tmp_path: Path) -> None:
    module = small_bert()
    assert typing_example.formula_of(module).startswith("logits = classifier(")
    assert {item.id for item in typing_example.failures("roberta-base", "inference", "error")} == {"HS102"}
    for parameter in module.classifier.parameters():
        parameter.requires_grad = False
    assert "HS601" in typing_example.frozen_weights(module)
    assert "classifier.out_proj.weight" in typing_example.tables("roberta-base")
    said = typing_example.everything_else(tmp_path)
    assert said[0] == str(tmp_path / "roberta.json")
    assert said[-1].startswith("<svg")
    names = ("a", "b", "c")
    assert len(typing_example.new_weights(tmp_path / "roberta.json", names)) == len(["dense", "out_proj"]) * 2
    assert "no-such-folder" in typing_example.sentence(str(tmp_path / "no-such-folder"))


def test_the_page_of_the_api_is_what_the_code_says(monkeypatch: pytest.MonkeyPatch) -> None:
    page = importlib.import_module("scripts.pages.api_page")
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert set(page.FUNCTIONS) == set(FUNCTIONS)
    assert text.partition("<!-- below: scripts/pages/write_reference.py -->")[2].strip() == page.api_reference().strip()
    for name, function in FUNCTIONS.items():
        assert f"### headscope.{name}\n" in text
        for item in parameters(function):
            assert f"| `{item}` | `" in text


def test_labels_from_an_iterator_reach_every_model() -> None:
    names = ("no", "perhaps", "yes")
    result = headscope.compare("bert-base-uncased", "roberta-base", labels=iter(names), offline=True)
    assert [report.model.labels for report in result.reports] == [names, names]


@pytest.mark.parametrize("format", PAINTERS)
def test_a_diagram_takes_what_inspect_takes(format: DrawingName) -> None:
    report = headscope.inspect("roberta-base", num_labels=3, offline=True)
    drawn = headscope.diagram(report, format)
    assert headscope.diagram("roberta-base", format, num_labels=3, offline=True) == drawn
    assert "BertForSequenceClassification" in headscope.diagram("BertForSequenceClassification", format)
    assert "classifier" in headscope.diagram(small_bert(), format)
    with pytest.raises(errors.UsageError, match="not for a report"):
        headscope.diagram(report, format, num_labels=3)  # type: ignore[call-overload]


def test_a_place_may_be_a_path(tmp_path: Path) -> None:
    report = headscope.inspect("roberta-base", cache_dir=tmp_path, offline=True)
    assert report == headscope.inspect("roberta-base", cache_dir=str(tmp_path), offline=True)
    with pytest.raises(errors.UsageError, match="cache_dir must be a path, not 3"):
        headscope.inspect("roberta-base", cache_dir=3)  # type: ignore[call-overload]
