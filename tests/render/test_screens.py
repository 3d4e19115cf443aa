"""Whole screens against golden files, and what holds for every screen at every width."""

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from reports import REPORTS, bert, gpt2, hostile, roberta
from rich.console import Console, RenderableType

from headscope.facts import (
    Finding,
    HeadHealth,
    HealthBasis,
    HealthVerdict,
    Repaired,
    Report,
    Severity,
    WeightsFormat,
)
from headscope.facts.health import BiasStatistics, MatrixStatistics, Spectrum
from headscope.render.console import WIDE, open_console, plain_text
from headscope.render.diff import diff_screen
from headscope.render.inspect import inspect_screen, inspect_verdict
from headscope.render.verdict import verdict_screen

COLUMNS, ROWS = 80, 45
GOLDEN = Path(__file__).parent / "golden"


def every_weight(report: Report) -> RenderableType:
    return diff_screen(as_diff(report), every=True)


def only_differences(report: Report) -> RenderableType:
    return diff_screen(as_diff(report))


def as_diff(report: Report) -> Report:
    return replace(report, command="diff-weights", head=None)


SCREENS: dict[str, Callable[[Report], RenderableType]] = {
    "inspect": inspect_screen,
    "diff": only_differences,
    "diff-all": every_weight,
}


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("screen", SCREENS)
def test_a_screen_is_as_its_golden_file(
    screen: str, name: str, width: int, same_as_golden: Callable[[Path, str], bool]
) -> None:
    text = plain_text(SCREENS[screen](REPORTS[name]()), width)
    assert same_as_golden(GOLDEN / f"{screen}-{name}-{width}.txt", text)


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120, 200, WIDE])
@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("screen", SCREENS)
def test_no_line_is_too_long_ends_in_spaces_or_is_cut(screen: str, name: str, width: int) -> None:
    text = plain_text(SCREENS[screen](REPORTS[name]()), width)
    for line in text.splitlines():
        assert len(line) <= width
        assert line == line.rstrip()
    assert "…" not in text


@pytest.mark.parametrize("width", [40, 80, 120, 200, WIDE])
def test_every_parameter_of_the_head_is_named_whole(width: int) -> None:
    report = roberta()
    text = plain_text(inspect_screen(report), width)
    assert report.head is not None
    for parameter in report.head.parameters:
        assert parameter.name in text


def test_a_status_is_a_word_beside_its_colour() -> None:
    text = plain_text(inspect_screen(bert()), 80)
    assert "loaded  bert.pooler.dense.weight" in text
    assert "new  classifier.weight" in text


def wrapped() -> Report:
    """BERT saved from inside DDP: all that it holds is unused, and the repair would give it."""
    code = "for file in ['pytorch_model.bin']:\n    state = torch.load(file, map_location='cpu', weights_only=True)"
    error = Finding("HS802", Severity.ERROR, "A wrapper's names", "All keys begin with 'module.'.", "Run:", code=code)
    report = bert()
    repaired = Repaired(("HS802",), "the prefix 'module.' were stripped", replace(report.weights, unused=("a.b",)))
    return replace(report, findings=(error,), repaired=repaired)


def trained() -> Report:
    """A classifier that training has moved far, by its statistics."""
    weight = MatrixStatistics(
        name="classifier.out_proj.weight", dtype="float32", classes=3, features=768, spread=0.0231, mean=-0.0004,
        largest=0.0812, kurtosis=2.9, shape_z=-0.9, initial_spread=0.02, spread_z=9.8, scheme="normal(0.02)",
        scheme_z=9.8, mean_row=0.412, mean_row_expected=0.577, mean_row_z=-11.4, cosine=-0.245, cosine_least=-0.5,
        rows_z=1.2, columns_z=0.4, spectrum=Spectrum((0.83, 0.74, 0.45), 2.7, 5.1), draw="normal", draw_z=0.3,
        draw_share=0.0,
    )  # fmt: skip
    bias = BiasStatistics("classifier.out_proj.bias", 0, 3, 0.0042, 0.0031, False)
    reasons = (
        "classifier.out_proj.bias is up to 0.0042, where it began at zero",
        "its spread 0.0231 is far from the class's own initialization (0.02)",
        "the mean row is 11.4 standard deviations from a fresh draw",
    )
    health = HeadHealth(
        HealthVerdict.TRAINED, 0.987, HealthBasis.STATISTICS, reasons, weight.name, 0.001, 0.012, 0.987, True, weight,
        bias, 9228,
    )  # fmt: skip
    return replace(roberta(), health=health)


def fresh() -> Report:
    """A classifier that the checkpoint lacks."""
    reason = "the checkpoint lacks classifier.weight, so every load initializes it"
    return replace(
        bert(), health=HeadHealth(HealthVerdict.FRESH, 1.0, HealthBasis.STATUS, (reason,), "classifier.weight")
    )


@pytest.mark.parametrize("width", [80, 200])
def test_a_repair_is_as_its_golden_file(width: int, same_as_golden: Callable[[Path, str], bool]) -> None:
    assert same_as_golden(GOLDEN / f"inspect-wrapped-{width}.txt", plain_text(inspect_screen(wrapped()), width))


HEALTH = {"trained": trained, "fresh": fresh}


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("name", HEALTH)
def test_health_is_as_its_golden_file(name: str, width: int, same_as_golden: Callable[[Path, str], bool]) -> None:
    text = plain_text(inspect_screen(HEALTH[name]()), width)
    assert same_as_golden(GOLDEN / f"inspect-health-{name}-{width}.txt", text)
    assert all(len(line) <= width for line in text.splitlines())


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_the_code_of_a_repair_can_be_copied_from_every_width(width: int) -> None:
    report = wrapped()
    lines = plain_text(inspect_screen(report), width).splitlines()
    for line in report.findings[0].code.splitlines():
        assert f"    {line}" in lines


def test_the_quiet_screen_is_the_verdict_and_the_errors() -> None:
    error = Finding("HS401", Severity.ERROR, "Made for something else", "It scores tokens.", "Train it.")
    warning = Finding("HS202", Severity.WARNING, "Placeholder labels", "They are LABEL_0.", "Name them.")
    report = replace(bert(), findings=(error, warning))
    verdict, *rest = plain_text(inspect_verdict(report), WIDE).splitlines()
    assert verdict == plain_text(verdict_screen(report), WIDE).strip()
    assert [" ".join(line.split()) for line in rest] == [
        "error HS401 Made for something else: It scores tokens. Train it."
    ]


def test_a_checkpoint_without_weights_is_told_in_words() -> None:
    report = bert()
    bare = replace(report.checkpoint, format=WeightsFormat.NONE, tensors=0, bytes_total=0, reference="a folder")
    text = plain_text(inspect_screen(replace(report, checkpoint=bare)), WIDE)
    [line] = [line for line in text.splitlines() if line.startswith("checkpoint")]
    assert line.endswith("no weight files")
    assert "none" not in line
    assert "0 tensors" not in line


def test_the_roberta_screen_fits_one_terminal() -> None:
    assert len(plain_text(inspect_screen(roberta()), 80).splitlines()) <= ROWS


@pytest.mark.parametrize("screen", SCREENS)
def test_hostile_names_reach_no_terminal(screen: str) -> None:
    text = plain_text(SCREENS[screen](hostile()), 120)
    assert all(char.isprintable() or char == "\n" for char in text)


def test_markup_in_names_is_shown_as_it_is() -> None:
    text = plain_text(inspect_screen(hostile()), 200)
    assert "[red]a[/0]" in text
    assert "[link=http://x]e" in text
    assert ":smile:" in text


def test_guides_are_ascii_where_the_stream_is_not_utf_8() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    open_console(stream).print(inspect_screen(gpt2()))
    stream.flush()
    shown = stream.buffer.getvalue().decode("ascii")
    assert "+-- linear" in shown
    assert "`-- logits" in shown


def test_lines_stay_whole_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    stream = io.StringIO()
    open_console(stream).print(inspect_screen(roberta()))
    [stage] = [line for line in stream.getvalue().splitlines() if "linear" in line and "out_proj" in line]
    assert stage.endswith("classifier.out_proj.weight 3x768 new, classifier.out_proj.bias 3 new")


def test_columns_sets_the_width_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    stream = io.StringIO()
    open_console(stream).print(inspect_screen(roberta()))
    assert max(map(len, stream.getvalue().splitlines())) <= COLUMNS


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    stream = io.StringIO()
    open_console(stream).print(inspect_screen(roberta()))
    assert "\x1b[33m" not in stream.getvalue()
    assert "\x1b[1;33m" not in stream.getvalue()


def test_a_screen_has_colours_on_a_terminal() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=80, no_color=False)
    with console.capture() as capture:
        console.print(inspect_screen(roberta()))
    assert "\x1b[1;33mnew" in capture.get()
