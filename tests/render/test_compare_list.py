"""The list of `compare`: every model has a sign and a line, however many there are."""

from dataclasses import replace

from reports import roberta

from headscope.facts import Report
from headscope.facts.comparison import Comparison
from headscope.render.compare import compare_screen
from headscope.render.console import plain_text


def numbered(at: int) -> Report:
    report = roberta()
    return replace(report, checkpoint=replace(report.checkpoint, reference=f"model-{at}"))


def test_models_beyond_the_alphabet_are_listed_by_number() -> None:
    comparison = Comparison("0", "compare", tuple(map(numbered, range(1, 31))), ())
    lines = plain_text(compare_screen(comparison), 80).splitlines()
    assert [line.split() for line in lines if "model-" in line] == [
        *([sign, f"model-{at}"] for at, sign in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZ", 1)),
        *([str(at), f"model-{at}"] for at in range(27, 31)),
    ]
