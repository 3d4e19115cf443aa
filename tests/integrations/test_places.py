"""The plugin for pytest, the pre-commit hook and the GitHub Action, each run for a passing and a failing model."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from tests import warm
from tests.families import FAMILIES
from tests.integrations.small import LABELS

ROOT = Path(__file__).parents[2]
SST2 = "distilbert-base-uncased-finetuned-sst-2-english"
PLUGIN = ("-p", "headscope.integrations.pytest", "-p", "no:cacheprovider", "-q")


def run(command: list[str], folder: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **settings}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def on_path(folder: Path) -> str:
    """A path of programs on which `headscope` is found."""
    return f"{warm.headscope_command(folder / 'bin').parent}:{os.environ['PATH']}"


def run_tests(folder: Path, body: str, python: list[str]) -> subprocess.CompletedProcess[str]:
    (folder / "test_models.py").write_text(body)
    return run([*python, "-m", "pytest", *PLUGIN, "test_models.py"], folder, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")


def test_the_fixture_passes_and_fails(tmp_path: Path) -> None:
    ran = run_tests(
        tmp_path,
        f"""
def test_served(check_head):
    assert check_head("{SST2}", offline=True).verdict == "passed"

def test_random(check_head):
    check_head("roberta-base", num_labels=3, offline=True)

def test_missing(check_head):
    check_head("./no-such-folder", offline=True)
""",
        warm.python(),
    )
    assert ran.returncode == 1
    assert "2 failed, 1 passed" in ran.stdout
    assert "headscope: " in ran.stdout
    assert "site-packages" not in ran.stdout
    assert not re.search(r"headscope/\w+/\w+", ran.stdout)
    assert "error HS102" in ran.stdout
    assert "Traceback" not in ran.stdout


def test_the_fixture_of_strict_loads_fails_a_test_whose_load_leaves_the_head_random(tmp_path: Path) -> None:
    FAMILIES["bert"].build("BertModel").save_pretrained(tmp_path / "base")
    body = """
import pytest
from transformers import AutoModelForSequenceClassification

def test_random(strict_loads):
    AutoModelForSequenceClassification.from_pretrained("base")

@pytest.mark.headscope_allow("classifier")
def test_allowed(strict_loads):
    AutoModelForSequenceClassification.from_pretrained("base")

def test_without():
    AutoModelForSequenceClassification.from_pretrained("base")
"""
    ran = run_tests(tmp_path, body, warm.python())
    assert "1 failed, 2 passed" in ran.stdout
    assert "HeadNotLoaded: base doesn't give classifier" in ran.stdout
    assert "PytestUnknownMarkWarning" not in ran.stdout


def test_the_plugin_imports_no_torch(tmp_path: Path) -> None:
    body = """
import sys

def test_light(check_head):
    assert not {"torch", "transformers"} & set(sys.modules)
"""
    assert run_tests(tmp_path, body, [sys.executable]).returncode == 0


def test_the_hook_names_a_command_that_exists(tmp_path: Path) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert {"id", "name", "entry", "language", "files"} <= set(hook)
    command = [*warm.python(), "-m", *hook["entry"].split(), SST2, "--for", "inference", "--offline", "-q"]
    assert run(command, tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("inputs", "code", "sentence"),
    [
        ({"MODELS": SST2}, 0, "passed"),
        ({"MODELS": f"{SST2}\nroberta-base"}, 1, "HS102"),
        ({"MODELS": "roberta-base", "PROFILE": "training"}, 0, "passed"),
        ({"MODELS": "$(touch${IFS}stolen) `touch stolen` ;touch stolen"}, 3, "not determined"),
    ],
    ids=["passes", "fails", "training", "injection"],
)
def test_the_action_checks_and_tells(inputs: dict[str, str], code: int, sentence: str, tmp_path: Path) -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    step = next(step for step in action["runs"]["steps"] if step["name"] == "Check")
    assert "${{" not in step["run"]
    settings = {
        "PATH": on_path(tmp_path), "PROFILE": "inference", "FAIL_ON": "error", "ARGUMENTS": "--offline",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
    }  # fmt: skip
    ran = run(["bash", "-e", "-c", step["run"]], tmp_path, **(settings | inputs))
    assert ran.returncode == code, ran.stderr
    assert sentence in (tmp_path / "summary.md").read_text()
    assert all(line.startswith("::") for line in ran.stdout.splitlines())
    assert not (tmp_path / "stolen").exists()


def _recipe(name: str) -> dict[str, Any]:
    """The YAML of a recipe that holds this word."""
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    found: dict[str, Any] = next(
        yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.S) if name in block
    )
    return found


@pytest.mark.parametrize(("model", "code", "sentence"), [(SST2, 0, "Passed"), ("gpt2", 1, "error HS301")])
def test_the_recipe_for_pre_commit_passes_and_fails(tmp_path: Path, model: str, code: int, sentence: str) -> None:
    pytest.importorskip("pre_commit", reason="pre-commit is not installed")
    settings = _recipe("repo: local")
    hook = settings["repos"][0]["hooks"][0]
    command = hook["entry"].replace("headscope", f"{shlex.join(warm.python())} -m headscope", 1)
    hook["entry"] = command.replace("models/sentiment", f"{model} --offline")
    (tmp_path / ".pre-commit-config.yaml").write_text(yaml.safe_dump(settings))
    (tmp_path / "models" / "sentiment").mkdir(parents=True)
    (tmp_path / "models" / "sentiment" / "config.json").write_text("{}")
    _git(tmp_path, "init", "-q")
    _git(tmp_path, "add", "-A")
    command = [sys.executable, "-m", "pre_commit", "run", "--all-files"]
    ran = run(command, tmp_path, PRE_COMMIT_HOME=str(tmp_path / "home"), COLUMNS="200")
    assert ran.returncode == code, ran.stdout + ran.stderr
    assert all(word in ran.stdout for word in sentence.split()), ran.stdout


def test_the_recipe_for_github_gives_inputs_that_the_action_has() -> None:
    steps = _recipe("uses: ./tools/headscope")["steps"]
    inputs = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))["inputs"]
    given = steps[-1]["with"]
    assert given.keys() <= inputs.keys()
    assert {name for name, item in inputs.items() if item.get("required")} <= given.keys()


def test_no_page_names_an_address_at_which_headscope_is_not_published() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        assert "OWNER/headscope" not in page.read_text(encoding="utf-8"), page.name


def _hook_repository(folder: Path) -> str:
    """A repository with the hook as it is here, and its commit."""
    folder.mkdir()
    (folder / ".pre-commit-hooks.yaml").write_bytes((ROOT / ".pre-commit-hooks.yaml").read_bytes())
    _git(folder, "init", "-q")
    _git(folder, "add", "-A")
    _git(folder, "-c", "user.name=Test", "-c", "user.email=test@example.org", "commit", "-qm", "Hook")
    return _git(folder, "rev-parse", "HEAD").strip()


def _git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(("name", "code"), [("BertForSequenceClassification", 0), ("BertModel", 1)])
def test_the_published_hook_passes_and_stops_a_commit(tmp_path: Path, name: str, code: int) -> None:
    pytest.importorskip("pre_commit", reason="pre-commit is not installed")
    settings = _recipe("rev: ")
    settings["repos"][0] |= {"repo": str(tmp_path / "hook"), "rev": _hook_repository(tmp_path / "hook")}
    settings["repos"][0]["hooks"][0]["language"] = "system"
    project = tmp_path / "project"
    FAMILIES["bert"].build(name, **LABELS).save_pretrained(project / "models" / "sentiment")
    (project / ".pre-commit-config.yaml").write_text(yaml.safe_dump(settings))
    _git(project, "init", "-q")
    _git(project, "add", "-A")
    ran = run(
        [sys.executable, "-m", "pre_commit", "run"], project, PATH=on_path(tmp_path), COLUMNS="120",
        PRE_COMMIT_HOME=str(tmp_path / "home"), HEADSCOPE_NO_RUN="",
    )  # fmt: skip
    assert ran.returncode == code, ran.stdout + ran.stderr
    recipes = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    shown = recipes.partition("```text\n")[2].partition("```")[0]  # what a stopped commit prints
    assert (shown.strip() if code else "Passed") in ran.stdout


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("models/a/config.json", True),
        ("config.json", True),
        ("models/a/model.safetensors", True),
        ("models/a/model.safetensors.index.json", True),
        ("pytorch_model.bin", True),
        ("adapter/adapter_config.json", True),
        ("models/a/README.md", False),
        ("tsconfig.json", False),
        ("tool/config.json5", False),
    ],
)
def test_the_hook_is_asked_where_a_model_changes(path: str, asked: bool) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert bool(re.search(hook["files"], path)) == asked


@pytest.mark.parametrize(("model", "code"), [(SST2, 3), ("gpt2", 1)])  # a snapshot can't be run
def test_the_recipe_for_gitlab_writes_its_report(tmp_path: Path, model: str, code: int) -> None:
    (line,) = _recipe("junit")["heads"]["script"]
    words = line.replace("models/sentiment models/topics", f"{model} {SST2}").split()[1:]
    assert run([*warm.python(), "-m", "headscope", *words, "--offline"], tmp_path).returncode == code
    report = ElementTree.parse(tmp_path / "heads.xml").getroot()
    assert (report.find(".//failure") is not None) == (code == 1)
