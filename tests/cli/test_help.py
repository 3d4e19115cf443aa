"""What `--help` shows: groups by purpose, the right placeholders, no types of flags, and examples that parse."""

import inspect
import shlex

import pytest

import headscope
from headscope.commands import COMMANDS as ENTRIES
from headscope.errors import ExitCode
from headscope.shell.app import build_application
from headscope.shell.options.checkpoint import AdapterOption, PlaceOptions, ReportCacheOption
from headscope.shell.parameters import options_of_command, typed_options
from tests.cli.command import Cli

COMMANDS = build_application().commands  # type: ignore[attr-defined]


TERMINAL_ONLY = {
    "adapter", "against", "all", "author", "baseline", "cache", "card", "clear", "collection", "details", "every",
    "executor", "exit_code", "filters", "folder", "format", "json", "limit", "listed", "only_new", "output", "quiet",
    "resume", "search", "strict", "summary", "url", "write_baseline", "write_card",
}  # fmt: skip
"""Options without one of a use case behind them."""
WHERE = [item.flags[0] for group in (PlaceOptions, AdapterOption, ReportCacheOption) for item in typed_options(group)]


@pytest.mark.parametrize("name", ENTRIES)
def test_the_help_of_a_command_fits_on_a_screen(name: str, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = cli(name, "--help").out.splitlines()
    assert len(lines) <= 45
    assert max(map(len, lines)) <= 80
    assert sum("--help-all" in line and "Show all options." in line for line in lines) == 1
    assert "Example" in lines[5] or "Example" in lines[6]


@pytest.mark.parametrize("name", ENTRIES)
def test_help_all_shows_every_option_and_help_only_the_main_ones(
    name: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    short, whole = (set(cli(name, option).out.split()) for option in ("--help", "--help-all"))
    every = {names[-1] for item in COMMANDS[name].params if (names := item.opts)[0].startswith("-")}
    assert every <= whole
    beyond = {item.flags[-1] for item in options_of_command(ENTRIES[name].run) if not item.option.is_main}
    assert not beyond & short
    assert not set(WHERE) & short


def test_the_options_on_where_a_checkpoint_comes_from_are_nine() -> None:
    assert len(WHERE) == 9
    assert set(WHERE) <= {flag for item in COMMANDS["inspect"].params for flag in item.opts}


def test_every_option_is_declared_by_a_use_case_or_is_of_the_command_line_alone() -> None:
    alone = set()
    for name, entry in ENTRIES.items():
        text = " ".join((inspect.getdoc(getattr(headscope, name.replace("-", "_"), None)) or "").split())
        others = (headscope.verify_served, headscope.verify_card) if name == "verify" else ()
        served = " ".join(" ".join((inspect.getdoc(other) or "").split()) for other in others)
        for item in options_of_command(entry.run):
            if f" {item.name}: {item.option.meaning}" not in text + served:
                alone.add(item.name)
    assert alone == TERMINAL_ONLY


def test_an_option_that_only_help_all_shows_is_suggested_and_completed(cli: Cli) -> None:
    cli("inspect", "--help")
    assert "--revision" in cli("inspect", "x", "--revison", "main", code=ExitCode.USAGE).err
    context = COMMANDS["inspect"].make_context("inspect", [], resilient_parsing=True)
    assert {item.value for item in COMMANDS["inspect"].shell_complete(context, "--")} >= {*WHERE, "--help-all"}


def test_commands_stand_in_groups(cli: Cli) -> None:
    text = cli("--help").out
    groups = list(dict.fromkeys(entry.group for entry in ENTRIES.values()))
    places = [text.index(group) for group in groups]
    assert places == sorted(places)
    assert len(groups) > 2


@pytest.mark.parametrize("name", ["", *ENTRIES])
def test_no_flag_and_no_argument_shows_a_type(name: str, cli: Cli) -> None:
    text = cli(*name.split(), "--help").out
    for type_of in ("<bool>", "<str>", "<list", "{MODEL"):
        assert type_of not in text


@pytest.mark.parametrize(
    ("name", "kinds"),
    [("inspect", {"adapter", "snapshot"}), ("check", set()), ("verify", {"adapter"}), ("probe", set())],
)
def test_only_what_a_command_takes_is_offered_as_a_model(
    name: str, kinds: set[str], monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    model = next(line for line in cli(name, "--help").out.splitlines() if "MODEL" in line and "  " in line.strip())
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
def test_the_usage_says_what_may_be_repeated_or_left_out(name: str, usage: str, cli: Cli) -> None:
    assert usage in cli(name, "--help").out


@pytest.mark.parametrize("name", ENTRIES)
def test_the_examples_stand_in_the_help_and_parse(name: str, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    text = cli(name, "--help").out
    assert ENTRIES[name].examples
    for example in ENTRIES[name].examples:
        assert example in text
        program, command, *words = shlex.split(example)
        assert (program, command) == ("headscope", name)
        COMMANDS[name].make_context(name, words)


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version_has_a_short_option(option: str, cli: Cli) -> None:
    assert cli(option).out.startswith("headscope ")


def test_an_example_that_does_not_parse_would_fail() -> None:
    with pytest.raises(Exception, match="No such option"):
        COMMANDS["inspect"].make_context("inspect", ["roberta-base", "--no-such-option"])
