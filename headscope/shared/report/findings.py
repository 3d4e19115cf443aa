"""Findings on a screen: what is wrong, then what to do; a repair in a sentence and in code."""

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePath

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from headscope.core.facts import CheckpointKind, Finding, Repaired, Report, Severity
from headscope.core.facts.counting import counted
from headscope.core.facts.stored.checkpoint import WEIGHT_SUFFIXES, CheckpointFacts
from headscope.core.facts.stored.states import take_options
from headscope.core.facts.verdict import GRAVITY
from headscope.core.words.console import QUIET, SEVERITY, STRONG, TONE, Tone
from headscope.core.words.fold import few_keys
from headscope.core.words.lines import Paragraph, align
from headscope.core.words.safe import label, safe
from headscope.shared.topics import rule_name

ID_COLUMN = 12
_MOST_CHARACTERS = 480
"""Length of a message that names all it has to; a longer one lists what a repair or another setting explains."""


@dataclass(frozen=True)
class FindingLines:
    """A finding: the rule's ID and what is wrong, then what to do in a line below, the same at every width.

    A message longer than some lines is cut unless `whole` is set.
    """

    finding: Finding
    whole: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        severity = self.finding.severity
        yield Paragraph(_fact_of(self.finding, whole=self.whole), Text(severity.value, SEVERITY[severity]), ID_COLUMN)
        if self.finding.remedy:
            yield Paragraph(label(self.finding.remedy), Text(), ID_COLUMN)
        for line in code_of(self.finding):
            yield Paragraph(line, Text(), ID_COLUMN)


def note_line(notes: Iterable[Finding], *, remark: str) -> Paragraph:
    """Lists notes in one row by their rules: `HS102 head-new, HS202 placeholder-labels`; then a remark."""
    named = [f"{item.id} {rule_name(item.id)}".rstrip() for item in notes]
    word = Text("note" if len(named) == 1 else "notes", SEVERITY[Severity.NOTE])
    return Paragraph(label(", ".join(named) + (f" ({remark})" if remark else "")), word, ID_COLUMN)


def _fact_of(finding: Finding, *, whole: bool) -> Text:
    """Writes `HS202 The classes have no names. The 3 classes ...`; cuts a long message unless `whole`."""
    title = label(f"{finding.id} {finding.title}.", STRONG)
    message = finding.message
    if not whole and len(message) > _MOST_CHARACTERS:
        message = f"{message[:_MOST_CHARACTERS].rpartition(' ')[0]} ... (--details shows all of it)"
    return Text.assemble(title, " " if message else "", label(message), overflow="fold")


def repaired_sentence(repaired: Repaired) -> Text:
    """Says what would be loaded after the repair; `from_pretrained` itself does not repair."""
    weights = repaired.weights
    lacking = (*weights.new, *(item.parameter for item in weights.mismatched))
    total = weights.total + len(weights.tied) + len(weights.lost)
    text = label(f"read as if {repaired.change}; from_pretrained does not do this. ")
    text.append(f"Then {counted(weights.loaded, 'tensor')} of {total:,} would be loaded, ", STRONG)
    if lacking:
        text.append(f"new: {safe(few_keys(lacking))}", TONE[Tone.WARNING])
    else:
        text.append("none new", TONE[Tone.GOOD])
    if weights.lost:
        text.append(f"; lost, since the class has no place for it: {safe(few_keys(weights.lost))}", TONE[Tone.WARNING])
    elif weights.unused:
        text.append(f"; unused: {safe(few_keys(weights.unused))}")
    return text


def code_of(finding: Finding) -> Iterator[Text]:
    """Gives the lines of the code that does what a finding's remedy says; none if there is no code."""
    for line in finding.code.splitlines():
        text = label(f"    {line}".rstrip())
        text.no_wrap, text.overflow = True, "ignore"  # to be copied: never broken
        yield text


_MARGIN = 6


@dataclass(frozen=True)
class NextSteps:
    """Commands, each with its purpose if the width has room for every purpose."""

    steps: tuple[tuple[str, str], ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        full = align([[label(command), Text(f"# {purpose}", QUIET)] for command, purpose in self.steps])
        fits = all(line.cell_len <= options.max_width - _MARGIN for line in full)
        lines = full if fits else [label(command) for command, _ in self.steps]
        for number, line in enumerate(lines):
            yield Paragraph(line, Text("" if number else "next", STRONG), _MARGIN)


def next_of_inspect(report: Report, words: str, *, details: bool) -> tuple[tuple[str, str], ...]:
    """Suggests at most two commands to run after `headscope inspect WORDS`."""
    profile = report.profile.value if report.profile is not None else "training"
    steps = list(_repair_of(report.checkpoint, words))
    steps += [] if details else [(f"headscope inspect {words} --details", "all weights, the loss, the checkpoint")]
    # The gravest finding that is more than a note, since every untrained head has notes; weights come before names.
    serious = [item for item in report.findings if item.severity is not Severity.NOTE]
    serious = sorted(serious, key=lambda item: (-GRAVITY[item.severity], not item.parameters))[:1]
    steps += [(f"headscope explain {item.id}", "what it means, and what to do") for item in serious]
    if report.checkpoint.kind is CheckpointKind.CLASS:
        steps.append((f"headscope inspect MODEL --model-class {report.model.class_name}", "a checkpoint in this class"))
    else:
        steps.append((f"headscope check {words} --for {profile}", "every rule, and an exit code"))
    return tuple(steps[:2])


def _repair_of(checkpoint: CheckpointFacts, words: str) -> Iterator[tuple[str, str]]:
    """Gives the command that repairs a folder, if `headscope repair` knows what to do about all of its states.

    Nothing for a reference with the name of a weight file: `headscope repair` takes its folder.
    """
    actions = [state.repair.action if state.repair else None for state in checkpoint.states]
    several = [state.candidates for state in checkpoint.states if state.is_ambiguous]
    is_folder = checkpoint.kind is CheckpointKind.LOCAL and PurePath(checkpoint.reference).suffix not in WEIGHT_SUFFIXES
    if not actions or not is_folder or "--subfolder" in shlex.split(words):
        return
    command = f"headscope repair {shlex.quote(checkpoint.reference)} -o DIR"
    if several:
        for option in take_options(several[0], "\n").split("\n"):
            yield f"{command} {option}", "write a repaired copy of this one and prove it"
    elif None not in actions:
        options = dict.fromkeys(action.options() for action in actions if action is not None)
        yield f"{command}{''.join(options)}", "write a repaired copy and prove it"
