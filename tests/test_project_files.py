"""Files beside the code: they say of the project what pyproject.toml says, and what they name is there."""

import fnmatch
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
CONDA_NAMES = {"torch": "pytorch", "huggingface-hub": "huggingface_hub"}
"""Packages that conda-forge calls otherwise."""


@cache
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile: name and arguments, lines that go on joined."""
    text = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", read("Dockerfile"), flags=re.MULTILINE))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def copied() -> list[str]:
    """What the image's first stage takes from the checkout."""
    plain = (rest.split()[:-1] for name, rest in instructions() if name == "COPY" and not rest.startswith("--from"))
    return [name.removeprefix("./") for names in plain for name in names]


# ---- the image


def test_the_image_runs_as_a_user_who_is_not_root() -> None:
    [user] = [rest for name, rest in instructions() if name == "USER"]
    assert user.split(":")[0].isdecimal()
    assert user.split(":")[0] != "0"
    after = [name for name, _ in instructions()][[name for name, _ in instructions()].index("USER") :]
    assert "RUN" not in after


def test_the_image_has_a_python_that_is_supported_and_takes_the_tested_versions() -> None:
    bases = {rest.split()[0] for name, rest in instructions() if name == "FROM"}
    [version] = {match[1] for match in (re.fullmatch(r"python:(3\.\d+)-slim", base) for base in bases) if match}
    assert f"Programming Language :: Python :: {version}" in project()["classifiers"]
    installs = [rest for name, rest in instructions() if name == "RUN" and "pip install" in rest]
    assert installs
    assert all("-c constraints.txt" in rest and "--no-cache-dir" in rest for rest in installs)


def test_the_image_gets_what_it_copies_and_nothing_else() -> None:
    lines = [line for line in read(".dockerignore").splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    assert sorted(line[1:] for line in lines if line.startswith("!")) == sorted(copied())
    assert any(fnmatch.fnmatch("headscope/__pycache__", line) for line in lines[1:])
    assert all((ROOT / name).exists() for name in copied())


def test_what_the_image_copies_is_enough_to_build_the_package(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in copied():
        place = ROOT / name
        shutil.copytree(place, source / name) if place.is_dir() else shutil.copy(place, source)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(source)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert len(list(tmp_path.glob("headscope-*.whl"))) == 1


def test_the_image_s_recipe_passes_its_linter() -> None:
    linter = Path(sys.executable).with_name("hadolint")
    if not linter.exists():
        pytest.skip("hadolint is not installed")
    ran = subprocess.run([str(linter), str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


# ---- conda


def test_the_conda_recipe_needs_what_the_project_needs() -> None:
    recipe = yaml.safe_load(read("recipe/recipe.yaml"))
    wanted = set()
    for line in project()["dependencies"]:
        name, specifier = Requirement(line).name, line.removeprefix(Requirement(line).name)
        wanted.add(f"{CONDA_NAMES.get(name, name)} {specifier}")
    assert set(recipe["requirements"]["run"]) == wanted | {"python >=${{ python_min }}"}
    backend = tomllib.loads(read("pyproject.toml"))["build-system"]["requires"]
    assert {line.replace(" ", "") for line in recipe["requirements"]["host"]} >= set(backend)


def test_the_conda_recipe_says_what_pyproject_says() -> None:
    recipe = yaml.safe_load(read("recipe/recipe.yaml"))
    assert recipe["context"]["version"] == project()["version"]
    assert f">={recipe['context']['python_min']}" == project()["requires-python"]
    assert recipe["about"]["license"] == project()["license"]
    assert recipe["about"]["summary"] == project()["description"]
    scripts = [f"{name} = {target}" for name, target in project()["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == scripts


# ---- what people and services read


def test_the_citation_says_what_pyproject_says() -> None:
    cited = yaml.safe_load(read("CITATION.cff"))
    assert {"cff-version", "message", "authors", "title"} <= set(cited)
    assert cited["title"] == project()["name"]
    assert cited["version"] == project()["version"]
    assert cited["license"] == project()["license"]
    assert [item["name"] for item in cited["authors"]] == [item["name"] for item in project()["authors"]]
    assert cited["keywords"] == project()["keywords"]


@pytest.mark.parametrize("path", [path for path in TEMPLATES if path.name != "config.yml"], ids=lambda path: path.stem)
def test_a_template_is_a_form_with_unique_fields(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= set(form)
    fields = [item for item in form["body"] if item["type"] != "markdown"]
    assert len({item["id"] for item in fields}) == len(fields) > 0
    assert all(item["attributes"]["label"] for item in fields)
    assert any(item.get("validations", {}).get("required") for item in fields)


@pytest.mark.parametrize("name", ["bug", "wrong_head"])
def test_a_report_of_a_fault_brings_the_output_of_env(name: str) -> None:
    form = yaml.safe_load(read(f".github/ISSUE_TEMPLATE/{name}.yml"))
    [field] = [item for item in form["body"] if item.get("id") == "env"]
    assert "`headscope env`" in field["attributes"]["label"]
    assert field["validations"]["required"] is True


def test_templates_and_policies_name_commands_and_options_that_exist() -> None:
    from typer.main import get_command

    from headscope.cli.app import app

    commands = get_command(app).commands  # type: ignore[attr-defined]
    texts = [path.read_text(encoding="utf-8") for path in (*TEMPLATES, ROOT / "SECURITY.md", ROOT / "Dockerfile")]
    seen = re.findall(r"headscope ([a-z][a-z-]+)((?: --[a-z-]+| [A-Z]+| \S+/\S*)*)", "\n".join(texts))
    named = [(name, rest) for name, rest in seen if name in commands]
    assert {name for name, _ in named} >= {"env", "inspect", "snapshot", "check"}
    for name, rest in named:
        options = {option for item in commands[name].params for option in item.opts}
        assert set(re.findall(r"--[a-z-]+", rest)) <= options


def test_the_checklist_names_every_file_that_holds_the_version() -> None:
    page = read("docs/releasing.md")
    for name in ("pyproject.toml", "CITATION.cff", "recipe/recipe.yaml", "hf-extension/pyproject.toml", "CHANGELOG.md"):
        assert f"`{name}`" in page
        assert project()["version"] in read(name)
