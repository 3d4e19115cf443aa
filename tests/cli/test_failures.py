"""What a failure says to do next: the commands and the code that it prints do it, run from where they were read."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
import transformers

from tests.checks.tokens.tokenized import tokenizer
from tests.cli.command import Cli
from tests.families import FAMILIES


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder below the working directory with a classifier of the classes neg, neu and pos, named `./a model`."""
    bert, names = FAMILIES["bert"], {0: "neg", 1: "neu", 2: "pos"}
    bert.build(bert.classifier, id2label=names, label2id={name: at for at, name in names.items()}).save_pretrained(
        tmp_path / "a model"
    )
    monkeypatch.chdir(tmp_path)
    return Path("a model")


def test_the_code_for_weights_alone_works_where_it_is_read(saved: Path, cli: Cli) -> None:
    (saved / "config.json").unlink()
    _, said = cli("inspect", "./a model", "--offline", code=3)
    assert "`headscope repair './a model' -o DIR" in said
    there = Path.cwd()
    exec("\n".join(line[4:] for line in said.splitlines() if line.startswith("    ")), {})
    written = there / saved / "config.json"
    assert written.is_file() and [item.name for item in there.iterdir()] == ["a model"]
    _, notes = transformers.BertForSequenceClassification.from_pretrained(written.parent, output_loading_info=True)
    assert not any(notes.values())


def test_a_tokenizer_alone_is_named(tmp_path: Path, cli: Cli) -> None:
    tokenizer("bert").save_pretrained(tmp_path / "tokens")
    assert "it holds a tokenizer, but no config.json" in cli("inspect", tmp_path / "tokens", code=3).err


def test_the_hint_for_a_folder_of_checkpoints_names_commands_that_run(saved: Path, cli: Cli) -> None:
    for name in ("one", "two"):
        shutil.copytree(saved, name)
    for command in ("inspect", "check"):
        said = cli(command, ".", "--offline", code=3)
        found = [shlex.split(words)[1:] for words in re.findall(r"`(headscope [^`]*)`", said.err + said.out)]
        assert found[:2] == [["inspect", ".", "--subfolder", "a model"], ["scan", "--folder", "."]]
        cli(*found[0], "-q")
        assert found[2][:4] == ["repair", ".", "-o", "DIR"]


@pytest.mark.parametrize("typed", ["./a mode", "./a-model/"])
def test_the_nearest_folder_is_named(typed: str, saved: Path, cli: Cli) -> None:
    assert "did you mean ./a model?" in cli("check", typed, code=3).err
    for other in ("./elsewhere/a model", "./something"):
        assert "did you mean" not in cli("check", other, code=3).err
    saved.rename("bert3")
    assert "did you mean bert3?" in cli("check", "bert33", "--offline", code=3).err


def test_an_option_that_takes_one_value_is_to_be_repeated(saved: Path, cli: Cli) -> None:
    command = ["edit", str(saved), "-o", "DIR"]
    for words in (["--rename", "neg=negative", "pos=it is positive"], ["--add", "x", "y"]):
        (again,) = re.findall(r"`([^`]*)`", cli(*command, *words, code=2).err)
        cli(*command[:-1], words[0].strip("-"), *shlex.split(again))
    told = cli("forward", saved, "--text", "good film", "bad film", code=2).err
    assert "`--text 'good film' --text 'bad film'`" in told
    for words in (["--rename", "neg=negative,pos=positive"], ["--drop", "neg,pos"]):
        assert "repeat the option for each class" in cli(*command, *words, code=2).err
    assert "headscope compare" in cli("inspect", "--num-labels", "2", saved, "other", code=2).err


def test_a_format_that_a_command_lacks_is_no_json(saved: Path, cli: Cli) -> None:
    assert cli("check", saved, "--format", "brief", code=2).out == ""
    assert cli("inspect", "./missing", "--format", "brief", code=3).out.startswith("{")
