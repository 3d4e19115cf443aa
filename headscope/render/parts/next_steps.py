"""The commands that lead on from a screen."""

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from headscope.facts import Finding, Report, Severity
from headscope.render.text.console import QUIET, STRONG
from headscope.render.text.lines import Paragraph, align
from headscope.render.text.safe import label

_MARGIN = 6
_MOST = 2


@dataclass(frozen=True)
class NextSteps:
    """Commands, each with what it is for where the width has room for all of that."""

    steps: tuple[tuple[str, str], ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        full = align([[label(command), Text(f"# {purpose}", QUIET)] for command, purpose in self.steps])
        fits = all(line.cell_len <= options.max_width - _MARGIN for line in full)
        lines = full if fits else [label(command) for command, _ in self.steps]
        for number, line in enumerate(lines):
            yield Paragraph(line, Text("" if number else "next", STRONG), _MARGIN)


def next_of_inspect(report: Report, words: str, *, details: bool) -> tuple[tuple[str, str], ...]:
    """What to run after `headscope inspect WORDS`."""
    profile = report.profile.value if report.profile is not None else "training"
    steps = [] if details else [(f"headscope inspect {words} --details", "all weights, the loss, the checkpoint")]
    steps += [(f"headscope explain {item.id}", "what it means, and what to do") for item in _gravest(report)]
    steps.append((f"headscope check {words} --for {profile}", "every rule, and an exit code"))
    return tuple(steps[:_MOST])


def _gravest(report: Report) -> tuple[Finding, ...]:
    """The first finding that is more than a note: notes say what every untrained head has."""
    return tuple(item for item in report.findings if item.severity is not Severity.NOTE)[:1]
