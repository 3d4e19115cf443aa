"""Whole screens against golden files, and what holds for every screen at every width."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from reports import REPORTS, a_head, as_diff, bert, gpt2, hostile, roberta, with_head, with_model
from rich.console import Group, RenderableType

from headscope.checks.screen import finding_lines
from headscope.core.facts.health import BiasStatistics, MatrixStatistics, Spectrum
from headscope.core.words.console import plain_text
from headscope.core.words.lines import WIDE
from headscope.facts import (
    Carried,
    CheckpointKind,
    Finding,
    Gap,
    HeadHealth,
    HealthBasis,
    HealthVerdict,
    ParameterStatus,
    PoolingKind,
    PoolingPart,
    Positions,
    Rename,
    Repaired,
    Report,
    Severity,
    WeightsFormat,
    Where,
)
from headscope.shared.report.documents import inspect_markdown
from headscope.shared.report.verdict import verdict_screen
from headscope.slices.inspect.diff_screen import diff_screen, name_change
from headscope.slices.inspect.screen import inspect_screen, inspect_verdict
from tests.render.screens.report_screens import COLUMNS, ROWS, SCREENS, detailed, only_differences, short

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", ["roberta", "hostile"])
def test_markdown_is_as_its_golden_file(name: str, same_as_golden: Callable[[Path, str], bool]) -> None:
    assert same_as_golden(GOLDEN / f"inspect-{name}.md", inspect_markdown(REPORTS[name]()))


def test_nothing_in_a_report_formats_markdown_or_names_anybody() -> None:
    text = inspect_markdown(hostile())
    assert not re.search(r"(?<!\\)[<>]|@(?!&#8203;)", re.sub(r"`[^`\n]*`", "", text))
    assert "\x1b" not in text
    assert all(row.count("|") - row.count("\\|") in {3, 5} for row in text.splitlines() if row.startswith("|"))


@pytest.mark.parametrize("width", [40, 80, 120, 200, WIDE])
def test_every_parameter_of_the_head_is_named_whole(width: int) -> None:
    report = roberta()
    text = plain_text(detailed(report), width)
    for parameter in report.head.parameters:
        assert parameter.name in text


@pytest.mark.parametrize("screen", SCREENS)
def test_notices_and_gaps_have_the_same_words_on_all_screens(screen: str) -> None:
    report = bert()
    told = replace(report.checkpoint, notices=("a snapshot",))
    open_report = replace(report, checkpoint=told, not_determined=(Gap("pooling", "why"), Gap("formula", "why")))
    lines = plain_text(SCREENS[screen](open_report), WIDE).splitlines()
    assert "notice      a snapshot" in lines
    assert "unknown     pooling, formula: why" in lines


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


Screen = Callable[[Report], RenderableType]
DRAWN: dict[str, tuple[Screen, Report]] = {
    **{f"{screen}-{name}": (SCREENS[screen], REPORTS[name]()) for screen in SCREENS for name in REPORTS},
    "inspect-health-trained": (short, trained()),
    "inspect-health-fresh": (short, fresh()),
    "inspect-wrapped": (short, wrapped()),
}
WHOLE = {name: shown for name, shown in DRAWN.items() if name != "inspect-wrapped"}
"""Code to copy is as wide as it is."""


@pytest.mark.parametrize("name", DRAWN)
def test_a_screen_is_as_its_golden_file(name: str, same_as_golden: Callable[[Path, str], bool]) -> None:
    screen, report = DRAWN[name]
    assert same_as_golden(GOLDEN / f"{name}.txt", plain_text(screen(report), COLUMNS))


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120, 200, WIDE])
@pytest.mark.parametrize(("screen", "report"), WHOLE.values(), ids=WHOLE)
def test_no_line_is_too_long_ends_in_spaces_or_is_cut(screen: Screen, report: Report, width: int) -> None:
    text = plain_text(screen(report), width)
    for line in text.splitlines():
        assert len(line) <= width
        assert line == line.rstrip()
    assert "…" not in text


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120])
@pytest.mark.parametrize(("screen", "report"), WHOLE.values(), ids=WHOLE)
def test_a_narrow_screen_says_all_that_a_wide_one_says(screen: Screen, report: Report, width: int) -> None:
    wide, narrow = (plain_text(screen(report), columns) for columns in (WIDE, width))
    unbroken = re.sub(r"\W", "", narrow)
    lines = {str(stage.line) for stage in report.head.stages} if report.head is not None else set()
    assert {word for word in re.findall(r"\w+", wide) if word not in unbroken} <= {*PURPOSES.split(), *lines}


PURPOSES = "what it means and what to do all weights the loss the checkpoint every rule and an exit code"
"""What the commands at the end are for, which only a wide screen has room to say, as the lines of the source."""


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
        "error HS401 Made for something else. It scores tokens.",
        "Train it.",
    ]


def test_the_quiet_screen_names_the_verdict_on_the_numbers_that_was_asked_for() -> None:
    _, *rest = plain_text(inspect_verdict(trained()), WIDE).splitlines()
    assert [line.split()[:2] for line in rest] == [["health", "Trained"]]


def test_a_checkpoint_without_weights_is_told_in_words() -> None:
    report = bert()
    bare = replace(report.checkpoint, format=WeightsFormat.NONE, tensors=0, bytes_total=0, reference="a folder")
    text = plain_text(detailed(replace(report, checkpoint=bare)), WIDE)
    [line] = [line for line in text.splitlines() if line.startswith("checkpoint")]
    assert "weight files" in line
    assert "none" not in line
    assert "0 tensors" not in line


@pytest.mark.parametrize("report", [roberta, bert, gpt2])
def test_the_answer_takes_at_most_20_lines(report: Callable[[], Report]) -> None:
    assert len(plain_text(short(report()), COLUMNS).splitlines()) <= ROWS


def with_labels(*names: str, placeholders: bool = False) -> Report:
    return with_model(bert(), labels=names, num_labels=len(names), labels_are_placeholders=placeholders)


@pytest.mark.parametrize("width", [80, 200])
def test_the_names_of_many_classes_take_two_lines_at_most(width: int) -> None:
    long = with_labels(*(f"a class with a long name, number {number}" for number in range(84)))
    lines = plain_text(short(long), width).splitlines()
    [at] = [number for number, line in enumerate(lines) if line.startswith("labels")]
    assert lines[at].startswith("labels      84: a class with a long name, number 0")
    assert "(--json lists all)" in " ".join(" ".join(lines[at : at + 2]).split())
    assert "number 11 and 72 more" in " ".join(plain_text(detailed(long), WIDE).split())


def test_of_placeholders_three_are_shown() -> None:
    text = plain_text(short(with_labels(*(f"LABEL_{number}" for number in range(7)), placeholders=True)), COLUMNS)
    assert re.search(r"\b7 placeholders.* LABEL_0, LABEL_1, LABEL_2 and 4 more\n", text)


def test_one_name_is_shown_however_long() -> None:
    text = plain_text(short(with_labels("x" * 90, "y")), COLUMNS)
    assert "x" * 68 in text
    assert "and 1 more" in text


@pytest.mark.parametrize(("details", "is_shown"), [(False, False), (True, True)])
def test_where_every_token_is_scored_the_row_of_tokens_is_a_detail(details: bool, is_shown: bool) -> None:
    report = with_head(roberta(), pooling=replace(a_head(roberta()).pooling, kind=PoolingKind.NONE))
    text = plain_text(inspect_screen(report, details=details), 80)
    assert ("\ntokens" in text) == is_shown


def test_the_token_of_the_first_position_is_named_by_the_row_of_tokens() -> None:
    part = PoolingPart(PoolingKind.FIRST_TOKEN, Positions(Where.INDEX, 0, token="<s>"), "first, where <s> is")
    found = with_head(roberta(), pooling=replace(a_head(roberta()).pooling, rule=part.rule, parts=(part,)))
    rows = "pooling     first token (index 0), even if it is padding\ntokens      \N{BLACK UP-POINTING TRIANGLE}<s>"
    assert rows in plain_text(short(found), 80)
    assert "first token: first, where <s> is" in plain_text(detailed(found), 80)


def test_what_an_adapter_gives_has_room_in_80_columns() -> None:
    loaded = {"adapter": Carried.SAVED, "status": ParameterStatus.LOADED}
    given = with_head(bert(), parameters=tuple(replace(item, **loaded) for item in a_head(bert()).parameters))
    text = plain_text(short(given), 80)
    assert "bert.pooler.dense       [batch, 768]  590,592 adapter  :461\n" in text


def test_a_mismatch_is_told_with_the_error_that_it_raises() -> None:
    said = "from_pretrained raises an error because of the mismatched shapes"
    mismatch = REPORTS["distilbert-mismatch"]()
    live = replace(mismatch, checkpoint=replace(mismatch.checkpoint, kind=CheckpointKind.MEMORY))
    texts = [plain_text(only_differences(report), 200) for report in (mismatch, live, bert())]
    assert [said in text for text in texts] == [True, False, False]


def with_findings(*severities: Severity) -> Report:
    """BERT with findings of rules that have a name, from HS101."""
    found = (
        Finding(f"HS{101 + number}", severity, f"Title {number}", f"Message {number}.", "Do it.")
        for number, severity in enumerate(severities)
    )
    return replace(bert(), findings=tuple(found))


def test_notes_take_one_row_and_name_their_rules() -> None:
    text = plain_text(short(with_findings(Severity.NOTE, Severity.NOTE, Severity.NOTE)), COLUMNS)
    assert "notes       HS101 base-weights-missing, HS102 head-new, HS103 head-partly-new\n" in text
    assert "note        HS101 base-weights-missing\n" in plain_text(short(with_findings(Severity.NOTE)), COLUMNS)


@pytest.mark.parametrize("severity", [Severity.ERROR, Severity.WARNING])
def test_what_is_more_than_a_note_is_never_folded(severity: Severity) -> None:
    text = plain_text(short(with_findings(Severity.NOTE, severity, severity)), COLUMNS)
    for number in (1, 2):
        assert f"{severity.value:12}HS{101 + number} Title {number}. Message {number}.\n{'':12}Do it.\n" in text
    assert "Title 0" not in text


def test_details_have_every_note_whole() -> None:
    text = plain_text(detailed(with_findings(Severity.NOTE, Severity.NOTE)), COLUMNS)
    assert f"HS101 Title 0. Message 0.\n{'':12}Do it." in text
    assert f"HS102 Title 1. Message 1.\n{'':12}Do it." in text


def test_only_details_show_a_very_long_message_to_its_end() -> None:
    report = with_findings(Severity.ERROR)
    long = replace(report.findings[0], message=" ".join(f"name.{number}" for number in range(200)))
    report = replace(report, findings=(long,))
    assert "name.199" in plain_text(detailed(report), COLUMNS)
    for width in (40, COLUMNS, WIDE):
        text = "".join(plain_text(short(report), width).split())
        assert "name.30" in text
        assert "name.199" not in text
        assert "--detailsshowsallofit" in text


@pytest.mark.parametrize("severity", Severity)
def test_two_commands_lead_on(severity: Severity) -> None:
    text = plain_text(short(with_findings(severity)), COLUMNS)
    commands = [line.split()[-5:] for line in text[text.index("\nnext") :].strip().splitlines()]
    assert len(commands) == 2
    assert ("explain" in commands[1]) == (severity is not Severity.NOTE)


def test_the_screen_says_nothing_twice() -> None:
    for details in (False, True):
        text = plain_text(inspect_screen(roberta(), details=details), WIDE)
        assert text.count("position 0 of") == 1
        assert text.count("newly") <= 1


def test_a_long_head_shows_its_ends_and_says_how_much_it_leaves_out() -> None:
    stages = tuple(replace(a_head(roberta()).stages[2], index=number) for number in range(40))
    text = plain_text(short(with_head(roberta(), stages=stages)), 120)
    assert len([line for line in text.splitlines() if "classifier.dense" in line]) == 12
    assert "not shown: linear x28" in text


def test_renames_of_one_kind_take_one_line() -> None:
    text = plain_text(diff_screen(as_diff(bert())), 120)
    [line] = [line for line in text.splitlines() if line.startswith("renamed")]
    assert "*.LayerNorm.{weight,bias}" in line
    assert "24 tensors" in line
    assert line.endswith("from *.LayerNorm.{gamma,beta}")


@pytest.mark.parametrize(
    ("ours", "theirs", "change"),
    [
        ("a.b.0.LayerNorm.bias", ("a.b.0.LayerNorm.beta",), ("*.LayerNorm.bias", "*.LayerNorm.beta")),
        ("x.q.weight", ("x.query.weight",), ("x.q.weight", "x.query.weight")),
        ("a.0.q", ("a.0.k",), None),
        ("q.weight", ("k.weight",), None),
        ("a.qkv", ("a.q", "a.k"), None),
    ],
)
def test_a_change_of_a_name_leaves_out_the_layers_before_it(
    ours: str, theirs: tuple[str, ...], change: tuple[str, str] | None
) -> None:
    assert name_change(Rename(ours, theirs)) == change


def test_a_model_without_classes_ends_in_an_embedding() -> None:
    report = with_model(roberta(), num_labels=0, labels=(), loss="none", activation="none")
    for details in (False, True):
        text = plain_text(inspect_screen(report, details=details), WIDE)
        assert "└── embedding [batch" in text and "logits" not in text and "\nloss " not in text


def test_a_remedy_of_two_findings_is_shown_once() -> None:
    found = with_findings(Severity.ERROR, Severity.ERROR)
    lines = plain_text(Group(*finding_lines(found)), WIDE)  # type: ignore[arg-type]  a report has findings too
    assert len({item.remedy for item in found.findings}) == 1
    assert lines.count(found.findings[0].remedy) == 1 and lines.count("error") == 2
