"""Screens in streams of all kinds: encodings, pipes, colors, links, hostile names."""

import io
from dataclasses import replace

import pytest
from reports import gpt2, hostile, roberta
from rich.console import Console, RenderableType

from headscope.core.words.console import plain_text
from headscope.shared.report.head.stages import source_url
from headscope.slices.inspect.screen import inspect_screen
from tests.render.screens.report_screens import COLUMNS, SCREENS, detailed, printed, short


@pytest.mark.parametrize("screen", SCREENS)
def test_hostile_names_reach_no_terminal(screen: str) -> None:
    text = plain_text(SCREENS[screen](hostile()), 120)
    assert all(char.isprintable() or char == "\n" for char in text)


def test_markup_in_names_is_shown_as_it_is() -> None:
    text = plain_text(detailed(hostile()), 200)
    assert "[red]a[/0]" in text
    assert "[link=http://x]e" in text
    assert ":smile:" in text


def test_guides_are_ascii_where_the_stream_is_not_utf_8() -> None:
    shown = printed(inspect_screen(gpt2()), "latin-1").decode("ascii")
    assert "+-- linear" in shown
    assert "`-- logits" in shown


def test_lines_stay_whole_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    shown = printed(detailed(roberta()), "utf-8").decode()
    [stage] = [line for line in shown.splitlines() if "linear" in line and "out_proj" in line]
    assert stage.endswith("classifier.out_proj.weight 3x768 new, classifier.out_proj.bias 3 new")


def test_columns_sets_the_width_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    assert max(map(len, printed(inspect_screen(roberta()), "utf-8").decode().splitlines())) <= COLUMNS


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown = printed(inspect_screen(roberta()), "utf-8")
    assert b"\x1b[33m" not in shown and b"\x1b[1;33m" not in shown


def on_terminal(screen: RenderableType) -> str:
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=80, no_color=False)
    with console.capture() as capture:
        console.print(screen)
    return capture.get()


def test_a_screen_has_colors_on_a_terminal() -> None:
    assert "\x1b[1;33mnew" in on_terminal(detailed(roberta()))


def test_sources_are_links_on_terminals_and_not_in_text() -> None:
    version = replace(roberta().environment, transformers="5.14.1")
    report = replace(roberta(), environment=version)
    url = "https://github.com/huggingface/transformers/blob/v5.14.1/src/transformers/models/roberta/modeling_roberta.py"
    assert f"{url}#L1155" in on_terminal(short(report))
    assert url not in plain_text(short(report))


@pytest.mark.parametrize(
    ("file", "version"),
    [
        ("/home/me/modeling_mine.py", "5.14.1"), ("transformers/x.py", "5.15.0.dev0"), ("", "5.14.1"),
        ('transformers/x"><script>.py', "5.14.1"), ("transformers/\x1b.py", "5.14.1"),
    ],
)  # fmt: skip
def test_code_that_no_release_holds_gets_no_link(file: str, version: str) -> None:
    assert source_url(file, 7, version) == ""


def test_the_strip_is_ascii_where_the_stream_is() -> None:
    assert b"^<s>  1  2" in printed(short(roberta()), "ascii")
