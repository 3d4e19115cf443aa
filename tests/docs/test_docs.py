"""What the documentation shows is run: Python examples here, console blocks by `scripts/pages/write_questions.py`."""

import ast
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from headscope.commands import COMMANDS
from headscope.errors import ExitCode
from headscope.shell.app import build_application
from tests import warm

ROOT = Path(__file__).resolve().parent.parent.parent
SKILL = ROOT / "packaging" / "skills" / "headscope" / "SKILL.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", SKILL, *sorted((ROOT / "docs").rglob("*.md"))]
WRITTEN = [ROOT / "README.md", SKILL, *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(page: Path, language: str) -> list[str]:
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [body for name, body in found if name == language]


def examples() -> list[pytest.param]:
    return [
        pytest.param(code, id=f"{page.relative_to(ROOT)}-{number}")
        for page in PAGES
        for number, code in enumerate(blocks(page, "python"), 1)
    ]


def told_value(expression: ast.Expr, lines: list[str]) -> object:
    """The literal in the comment after an expression, on its last line or alone on the next; else NotImplemented."""
    after = lines[expression.end_lineno - 1].encode()[expression.end_col_offset :].decode().strip()
    beneath = lines[expression.end_lineno] if expression.end_lineno < len(lines) else ""
    comment = after or beneath
    try:
        return ast.literal_eval(comment.removeprefix("#").strip()) if comment.startswith("#") else NotImplemented
    except (SyntaxError, ValueError):
        return NotImplemented


def checked(code: str) -> str:
    """`code` in which every expression must have the value told; a tuple that ends in `...` tells its beginning."""
    lines = code.splitlines()
    sentence = []
    for node in ast.parse(code).body:
        source = ast.get_source_segment(code, node) or ""
        value = told_value(node, lines) if isinstance(node, ast.Expr) else NotImplemented
        if value is NotImplemented:
            sentence.append(source)
        elif isinstance(value, tuple) and value[-1:] == (...,):
            sentence.append(f"_is({source.join('()')}[:{len(value) - 1}], {value[:-1]!r})")
        else:
            sentence.append(f"_is({source.join('()')}, {value!r})")
    return "\n".join(["def _is(found, told):", "    assert found == told, found", "", *sentence])


@pytest.mark.parametrize("code", examples())
def test_a_python_example_gives_what_its_comments_say(code: str, tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    surroundings = os.environ | warm.offline() | {"PYTHONPATH": path}
    ran = subprocess.run(
        [*warm.python(environment=surroundings, anew=True), "-c", checked(code)],
        capture_output=True, text=True, check=False, cwd=tmp_path, env=surroundings,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr


def test_a_wrong_comment_is_noticed() -> None:
    with pytest.raises(AssertionError):
        exec(checked("1 + 1  # 3"), {})
    with pytest.raises(AssertionError):
        exec(checked("(1, 2, 3)  # (1, 3, ...)"), {})
    exec(checked("1 + 1  # 2\n(1, 2, 3)\n# (1, 2, ...)\n1 + 1  # the sum"), {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_with_a_prompt_stands_where_the_script_runs_it(page: Path) -> None:
    prompts = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("$ ")]
    console = [line for body in blocks(page, "console") for line in body.splitlines() if line.startswith("$ ")]
    assert prompts == console
    assert all(line.startswith("$ headscope ") for line in console)
    assert all(body.startswith("$ ") for body in blocks(page, "console"))
    assert page in WRITTEN or not console


def test_no_shown_command_fails() -> None:
    shown = "\n".join(body for page in WRITTEN for body in blocks(page, "console"))
    assert not re.search(r"^(error|hint): |^Traceback", shown, re.MULTILINE)


def test_every_documented_command_exists() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"(?:^\$ |`)headscope ([a-z][a-z-]*)", text, re.MULTILINE):
            assert name in COMMANDS, f"{page.relative_to(ROOT)} speaks of headscope {name}"


def test_every_option_in_a_recipe_exists() -> None:
    commands = build_application().commands  # type: ignore[attr-defined]
    seen = 0
    for page in PAGES:
        bodies = [body for language in ("sh", "yaml") for body in blocks(page, language)]
        for name, rest in re.findall(r"headscope ([a-z][a-z-]*)(.*)", "\n".join(bodies)):
            known = {option for item in commands[name].params for option in item.opts} if name in commands else set()
            used = re.findall(r"(?<!\S)(--?[a-z][a-z-]*)", rest) if known else []
            seen += bool(known)
            assert set(used) <= known, f"{page.name}: headscope {name}{rest}"
    assert seen >= 5


def shell_examples() -> list[pytest.param]:
    """Every `sh` block with a `text` block right below it, which is what its last command prints."""
    pair = re.compile(r"^```sh\n(.*?)^```\n\n```text\n(.*?)^```", re.DOTALL | re.MULTILINE)
    return [
        pytest.param(*found, id=f"{page.name}-{number}")
        for page in PAGES
        for number, found in enumerate(pair.findall(page.read_text(encoding="utf-8")), 1)
    ]


@pytest.mark.parametrize(("commands", "sentence"), shell_examples())
def test_a_shell_example_prints_what_stands_below_it(commands: str, sentence: str, tmp_path: Path) -> None:
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    surroundings = os.environ | warm.offline()
    command = warm.headscope_command(tmp_path / "bin", surroundings)
    surroundings |= {"PYTHONPATH": str(ROOT), "PATH": f"{command.parent}:{os.environ['PATH']}"}
    ran = subprocess.run(
        ["bash", "-c", commands], cwd=tmp_path, env=surroundings, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == sentence


def test_there_are_three_examples_of_each_kind_for_the_json() -> None:
    page = ROOT / "docs" / "json.md"
    assert sum("json.md" in str(item.id) for item in shell_examples()) == len(blocks(page, "python")) == 3


def test_the_exit_codes_that_are_documented_are_those_there_are() -> None:
    sentence = re.findall(r"^\| (\d+) \|", (ROOT / "docs" / "cli.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert [int(code) for code in sentence] == [code.value for code in ExitCode]


@pytest.mark.parametrize("page", [path for path in PAGES if path.parent.name == "docs"], ids=lambda path: path.name)
def test_every_page_is_in_the_contents(page: Path) -> None:
    assert f'= "{page.name}" }}' in (ROOT / "zensical.toml").read_text(encoding="utf-8")
