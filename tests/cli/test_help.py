"""What `--help` shows: groups by purpose, the right placeholders, no types of flags, and examples that parse."""

import shlex

import pytest
from typer.main import get_command

from headscope.cli import main
from headscope.cli.app import _COMMANDS, app
from headscope.errors import ExitCode

COMMANDS = get_command(app).commands  # type: ignore[attr-defined]


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words, "--help"]) == ExitCode.OK
    return capsys.readouterr().out


def test_commands_stand_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys)
    groups = list(dict.fromkeys(entry.group for entry in _COMMANDS.values()))
    places = [text.index(group) for group in groups]
    assert places == sorted(places)
    assert len(groups) > 2


@pytest.mark.parametrize("name", ["", *_COMMANDS])
def test_no_flag_and_no_argument_shows_a_type(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, *([name] if name else []))
    for type_of in ("<bool>", "<str>", "<list", "{MODEL"):
        assert type_of not in text


@pytest.mark.parametrize(
    ("name", "kinds"),
    [("inspect", {"adapter", "snapshot"}), ("check", set()), ("verify", {"adapter"}), ("probe", set())],
)
def test_only_what_a_command_takes_is_offered_as_a_model(
    name: str, kinds: set[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    model = next(line for line in shown(capsys, name).splitlines() if "MODEL" in line and "  " in line.strip())
    assert {kind for kind in ("adapter", "snapshot") if kind in model} == kinds


@pytest.mark.parametrize(
    ("name", "usage"),
    [
        ("inspect", "headscope inspect [OPTIONS] MODEL "),
        ("compare", "headscope compare [OPTIONS] MODEL... "),
        ("heads", "headscope heads [OPTIONS] [PATTERN] "),
        ("explain", "headscope explain [OPTIONS] [TOPIC...] "),
    ],
)
def test_the_usage_says_what_may_be_repeated_or_left_out(
    name: str, usage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert usage in shown(capsys, name)


@pytest.mark.parametrize("name", _COMMANDS)
def test_the_examples_stand_in_the_help_and_parse(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    text = shown(capsys, name)
    assert _COMMANDS[name].examples
    for example in _COMMANDS[name].examples:
        assert example in text
        program, command, *words = shlex.split(example)
        assert (program, command) == ("headscope", name)
        COMMANDS[name].make_context(name, words)


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version_has_a_short_option(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([option]) == ExitCode.OK
    assert capsys.readouterr().out.startswith("headscope ")


def test_an_example_that_does_not_parse_would_fail() -> None:
    with pytest.raises(Exception, match="No such option"):
        COMMANDS["inspect"].make_context("inspect", ["roberta-base", "--no-such-option"])
