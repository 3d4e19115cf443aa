"""What the shell offers: the right words, nothing hostile, and without the libraries that take long to import."""

import subprocess
import sys
from pathlib import Path

import pytest

from headscope.checks.rules import every_rule
from headscope.core.checkpoints.snapshot import bundled_snapshots
from headscope.core.facts.heads.tasks import OTHER_NAMES
from headscope.core.source.storage.shipped import CLASSES, shipped
from headscope.core.upstream.hub import client_cache, repositories_in
from headscope.facts import PoolingKind, Severity, Task
from headscope.shared.topics import topics
from headscope.shell import completion
from headscope.shell.app import build_application
from tests.cli.test_cli_process import HEAVY, imported_packages, run

RULES = every_rule()

BERT = [f"BertFor{task}" for task in ("MultipleChoice", "NextSentencePrediction", "QuestionAnswering",
                                      "SequenceClassification", "TokenClassification")]  # fmt: skip
LINES = (
    "headscope inspect ",
    "headscope inspect Bert",
    "headscope check ",
    "headscope heads Bert",
    "headscope heads --pooling m",
    "headscope explain f",
    "headscope check x --select HS1",
    "headscope check x --for i",
    "headscope inspect x --model-class Bert",
    "headscope inspect --ta",
    "headscope inspect --task t",
)


def completed(line: str, *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    words = len(f"{line}.".split())
    completing = {"_HEADSCOPE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(words - 1)}
    return run(flags=flags, **completing, **variables)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the Hub's client, and a working folder without files."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in ("models--me--robust", "models--gpt2-own", "datasets--me--rows", "version.txt"):
        (tmp_path / "hub" / name).mkdir(parents=True)
    return tmp_path / "hub"


def offered(command: str, word: str, parameter: str = "model", **given: str) -> list[str]:
    """What is offered for the word of an argument or an option."""
    [found] = (item for item in build_application().commands[command].params if item.name == parameter)  # type: ignore[attr-defined]
    context = build_application().commands[command].make_context(command, [], resilient_parsing=True)  # type: ignore[attr-defined]
    context.params.update(given)
    return [item.value for item in found.shell_complete(context, word)]


@pytest.mark.parametrize("line", LINES)
def test_completion_imports_no_heavy_library(line: str, hub: Path) -> None:
    ended = completed(line, "-X", "importtime")
    imported = imported_packages(ended)
    assert "headscope" in imported
    assert imported.isdisjoint({*HEAVY, "rich"})
    assert ended.stdout.strip()


@pytest.mark.parametrize("command", ["inspect", "diagram", "forward", "check", "verify", "probe", "snapshot"])
def test_a_model_is_a_bundled_or_a_cached_checkpoint(command: str, hub: Path) -> None:
    name = "models" if command == "check" else "model"
    assert offered(command, "", name) == sorted((*bundled_snapshots(), "me/robust", "gpt2-own"))
    assert offered(command, "gpt2", name) == ["gpt2", "gpt2-own"]
    assert offered(command, "me/", name) == ["me/robust"]


def test_the_checkpoint_to_compare_with_is_completed_too(hub: Path) -> None:
    assert offered("verify", "gpt2", "against") == ["gpt2", "gpt2-own"]


@pytest.mark.parametrize("command", ["compare", "scan"])
def test_every_model_of_several_is_completed(command: str, hub: Path) -> None:
    line = f"headscope {command} bert-base-uncased gpt2"
    assert completed(line).stdout.split() == ["gpt2", "gpt2-own"]


@pytest.mark.parametrize(
    ("command", "parameter", "classes"),
    [
        ("inspect", "model", BERT),
        ("diagram", "model", BERT),
        ("forward", "model", BERT),
        ("compare", "models", BERT),
        ("heads", "pattern", BERT),
        ("explain", "topic", BERT),
        ("inspect", "model_class", BERT),
        ("check", "models", []),
        ("verify", "model", []),
        ("scan", "models", []),
    ],
)
def test_classes_are_offered_where_a_class_is_taken(
    command: str, parameter: str, classes: list[str], hub: Path
) -> None:
    assert offered(command, "BertFor", parameter) == classes


def test_the_classes_and_model_types_are_those_that_are_shipped() -> None:
    known = shipped(CLASSES)
    assert completion.complete_class("") == sorted(known)
    assert completion.complete_pattern("") == sorted({*known, *known.values()})
    assert completion.complete_pattern("distil") == ["distilbert"]


def test_damaged_facts_offer_no_class(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(completion, "_PACKAGE", tmp_path)
    assert completion.complete_class("Bert") == []


def test_the_client_cache_that_is_typed_is_read(hub: Path, tmp_path: Path) -> None:
    (tmp_path / "other" / "models--you--own").mkdir(parents=True)
    assert offered("inspect", "y", cache_dir=str(tmp_path / "other")) == ["you/own"]
    assert completed(f"headscope inspect --cache-dir {tmp_path / 'other'} you").stdout.split() == ["you/own"]


def test_files_here_are_offered_beside_an_id_and_a_path_is_left_to_the_shell(hub: Path) -> None:
    for name in ("robots", "gpt3"):
        Path(name).mkdir()
    assert offered("inspect", "ro") == ["roberta-base", "robots"]
    for path in ("./ro", "/", "~/", "gpt3"):
        assert offered("inspect", path) == []


def test_no_hostile_name_reaches_the_shell(hub: Path) -> None:
    for name in (
        "models--a\x1b[2J",
        "models--a\nb",
        "models--a$(touch x)",
        "models--a--b--c",
        "models---rf",
        "models--",
    ):
        (hub / name).mkdir()
    for name in ("gpt2\x1b[2J", "gpt2 x", "gpt2;id", "gpt2`id`"):
        Path(name).mkdir()
    assert offered("inspect", "a") == []
    assert offered("inspect", "-") == []
    assert offered("inspect", "gpt2") == ["gpt2", "gpt2-own"]


@pytest.mark.parametrize(("command", "own"), [("check", "check"), ("scan", "check"), ("verify", "verify")])
@pytest.mark.parametrize("parameter", ["select", "ignore"])
def test_the_rules_are_those_of_the_command(command: str, own: str, parameter: str) -> None:
    expected = sorted(rule.id for rule in RULES.values() if rule.command == own)
    assert sorted(offered(command, "HS", parameter)) == expected


def test_the_last_rule_of_a_list_is_completed_and_none_is_offered_twice() -> None:
    assert offered("check", "HS101,HS10", "select")[:2] == ["HS101,HS102", "HS101,HS103"]
    assert offered("check", "head-new,HS102", "select") == []
    assert offered("check", "head-new,head-p", "ignore") == ["head-new,head-partly-new"]


def test_poolings_topics_tasks_profiles_and_severities_are_known() -> None:
    assert offered("heads", "", "pooling") == sorted(PoolingKind)
    assert set(offered("explain", "", "topic")) == {topic.id for topic in topics()}
    assert offered("explain", "HS102", "topic") == ["HS102"]
    assert offered("inspect", "", "task") == [*Task, *OTHER_NAMES]
    assert offered("inspect", "image", "task") == ["image-classification"]
    assert offered("check", "", "profile") == ["training", "inference"]
    assert offered("check", "", "fail_on") == offered("verify", "", "fail_on") == list(Severity)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"HF_HOME": "/a"},
        {"HF_HOME": "~/a"},
        {"HF_HOME": "$HOME/a", "HF_HUB_CACHE": "~/b"},
        {"HUGGINGFACE_HUB_CACHE": "/c"},
        {"HUGGINGFACE_HUB_CACHE": "/c", "HF_HUB_CACHE": "$HOME/d"},
        {"XDG_CACHE_HOME": "/x"},
        {"XDG_CACHE_HOME": "~/x", "HF_HOME": "/h"},
    ],
)
def test_the_clients_cache_is_where_the_client_has_it(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    code = "from huggingface_hub import constants; print(constants.HF_HUB_CACHE)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert str(client_cache(None)) == ran.stdout.strip()
    assert client_cache("/named") == Path("/named")
    assert repositories_in(Path("/none")) == ()
