"""The project as a whole: its modules, its pins, its version, and what it says of itself."""

import importlib
import importlib.util
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
from conftest import slow_tests
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = {".py", ".md", ".toml", ".txt", ".json", ".yml", ".yaml", ".cfg", ""}
MACHINE_PATHS = re.compile(r"(?<![\w.~-])/(?:work|root)/")


@cache
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def requirements(*extras: str) -> list[Requirement]:
    metadata = project()["project"]
    listed = [
        *metadata["dependencies"],
        *(line for extra in extras for line in metadata["optional-dependencies"][extra]),
    ]
    return [Requirement(line) for line in listed]


@cache
def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    found = [Requirement(line) for line in (line.partition("#")[0].strip() for line in lines) if line]
    return {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in found}


def project_files() -> list[Path]:
    """Tracked files and those about to be; all files where there is no git."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listing.returncode:
        pytest.skip("no git checkout")
    return [path for name in listing.stdout.splitlines() if (path := ROOT / name).is_file()]


def modules() -> list[Path]:
    return sorted((ROOT / "headscope").rglob("*.py"))


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_says_in_its_first_line_what_it_knows(path: Path) -> None:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert re.match(r'"""\S.{8,}', first), "the first line is no docstring that says something"


def test_every_dependency_is_pinned_to_a_version_that_it_admits() -> None:
    for requirement in requirements("dev", "docs"):
        name = canonicalize_name(requirement.name)
        assert name in pins(), f"{name} is not in constraints.txt"
        assert requirement.specifier.contains(pins()[name]), f"{name} {pins()[name]} contradicts {requirement}"


def test_pins_are_exact_and_without_a_build_or_an_address() -> None:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pinned = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+( ;.*| #.*)?", line) for line in pinned)


def test_the_changelog_has_an_entry_for_the_version() -> None:
    version = project()["project"]["version"]
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_every_module_of_the_floors_is_named_in_contributing() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for layer in project()["tool"]["importlinter"]["contracts"][0]["layers"]:
        for name in re.split(r"\s*[|:]\s*", layer):
            assert f"`headscope/{name}" in text, f"{name} has no line in the table of floors"


def test_every_command_is_in_the_readme() -> None:
    app = importlib.import_module("headscope.cli.app")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in app._COMMANDS:
        assert f"| `headscope {name}" in text, f"{name} has no line in the table of commands"


def test_links_in_the_documentation_lead_somewhere() -> None:
    for page in (path for path in project_files() if path.suffix == ".md"):
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_no_file_names_the_machine_it_was_written_on() -> None:
    for path in project_files():
        if path.suffix in SUFFIXES and path != Path(__file__):
            text = path.read_text(encoding="utf-8", errors="replace")
            found = MACHINE_PATHS.search(text)
            assert not found, f"{path.relative_to(ROOT)} says {found and found.group()!r}"


def test_the_files_that_the_mutation_script_names_are_there() -> None:
    spec = importlib.util.spec_from_file_location("mutate", ROOT / "scripts" / "mutate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutate"] = module  # its dataclasses look themselves up there
    try:
        spec.loader.exec_module(module)
        assert "headscope/trace/proof/gradients.py" in module.chosen_files(())
    finally:
        del sys.modules["mutate"]


def test_the_slow_tests_are_there() -> None:
    gone = [name for name in slow_tests() if not _is_there(*name.partition("::")[::2])]
    assert gone == []


def _is_there(file: str, test: str) -> bool:
    path = ROOT / file
    return path.is_file() and (not test or f"def {test}(" in path.read_text(encoding="utf-8"))
