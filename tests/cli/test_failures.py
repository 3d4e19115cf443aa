"""What a failure says to do next: the commands and the code that it prints do it, run from where they were read."""

import re
import shlex
from pathlib import Path

import pytest
import transformers

from headscope.shell import main
from tests.checks.tokens.tokenized import tokenizer
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


def test_the_code_for_weights_alone_works_where_it_is_read(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (saved / "config.json").unlink()
    assert main(["inspect", "./a model", "--offline"]) == 3
    said = capsys.readouterr().err
    assert "`headscope repair './a model' -o DIR" in said
    there = Path.cwd()
    exec("\n".join(line[4:] for line in said.splitlines() if line.startswith("    ")), {})
    written = there / saved / "config.json"
    assert written.is_file() and [item.name for item in there.iterdir()] == ["a model"]
    _, notes = transformers.BertForSequenceClassification.from_pretrained(written.parent, output_loading_info=True)
    assert not any(notes.values())


def test_a_tokenizer_alone_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer("bert").save_pretrained(tmp_path / "tokens")
    assert main(["inspect", str(tmp_path / "tokens")]) == 3
    assert "it holds a tokenizer, but no config.json" in capsys.readouterr().err


def test_the_hint_for_a_folder_of_checkpoints_names_commands_that_run(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        (Path(name)).mkdir()
        for file in saved.iterdir():
            (Path(name) / file.name).write_bytes(file.read_bytes())
    for command in ("inspect", "check"):
        assert main([command, ".", "--offline"]) == 3
        said = capsys.readouterr()
        found = [shlex.split(words)[1:] for words in re.findall(r"`(headscope [^`]*)`", said.err + said.out)]
        assert found[:2] == [["inspect", ".", "--subfolder", "a model"], ["scan", "--folder", "."]]
        assert main([*found[0], "-q"]) == 0
        assert found[2][:4] == ["repair", ".", "-o", "DIR"]
        capsys.readouterr()


@pytest.mark.parametrize("typed", ["./a mode", "./a-model/"])
def test_the_nearest_folder_is_named(typed: str, saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", typed]) == 3
    assert "did you mean ./a model?" in capsys.readouterr().err
    assert main(["check", "./elsewhere/a model"]) == 3
    assert main(["check", "./something"]) == 3
    assert "did you mean" not in capsys.readouterr().err
    saved.rename("bert3")
    assert main(["check", "bert33", "--offline"]) == 3
    assert "did you mean bert3?" in capsys.readouterr().err


def test_an_option_that_takes_one_value_is_to_be_repeated(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["edit", str(saved), "-o", "DIR"]
    for words in (["--rename", "neg=negative", "pos=it is positive"], ["--add", "x", "y"]):
        assert main([*command, *words]) == 2
        (again,) = re.findall(r"`([^`]*)`", capsys.readouterr().err)
        assert main([*command[:-1], words[0].strip("-"), *shlex.split(again)]) == 0
        capsys.readouterr()
    assert main(["forward", str(saved), "--text", "good film", "bad film"]) == 2
    assert "`--text 'good film' --text 'bad film'`" in capsys.readouterr().err
    for words in (["--rename", "neg=negative,pos=positive"], ["--drop", "neg,pos"]):
        assert main([*command, *words]) == 2
        assert "repeat the option for each class" in capsys.readouterr().err
    assert main(["inspect", "--num-labels", "2", str(saved), "other"]) == 2
    assert "headscope compare" in capsys.readouterr().err


def test_a_format_that_a_command_lacks_is_no_json(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(saved), "--format", "brief"]) == 2
    assert capsys.readouterr().out == ""
    assert main(["inspect", "./missing", "--format", "brief"]) == 3
    assert capsys.readouterr().out.startswith("{")
