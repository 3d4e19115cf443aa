"""Screen of `repair`: the states, what was given, what was left out, and the proof."""

import shlex
from collections.abc import Iterator
from typing import assert_never

from rich.console import Group, RenderableType
from rich.text import Text

from headscope.core.facts.counting import counted, list_of, verb
from headscope.core.facts.stored.states import take_options
from headscope.core.words.console import STRONG, TONE, Tone, plain_text
from headscope.core.words.lines import Paragraph
from headscope.core.words.safe import label, safe
from headscope.slices.repair.facts import RepairReport, RepairVerdict

_MARGIN = 14
_SHOWN, _MOST_ASSUMED = 6, 30
_TONES = {
    RepairVerdict.PROVEN: Tone.GOOD,
    RepairVerdict.INCOMPLETE: Tone.WARNING,
    RepairVerdict.PLANNED: Tone.NOTE,
    RepairVerdict.REFUSED: Tone.ERROR,
    RepairVerdict.NOT_DETERMINED: Tone.WARNING,
    RepairVerdict.CLEAN: Tone.GOOD,
}


def repair_verdict(report: RepairReport) -> RenderableType:
    """Shows one sentence, which is all that `-q` shows."""
    return Paragraph(label(_verdict_sentence(report), TONE[_TONES[report.verdict]]))


def _verdict_sentence(report: RepairReport) -> str:
    rules = " and ".join(dict.fromkeys(state.rule for state in report.states))
    match report.verdict:
        case RepairVerdict.PROVEN:
            return f"Proven: {rules} repaired; {report.output} is written"
        case RepairVerdict.INCOMPLETE:
            return f"Not whole: {rules} repaired, but {_lacking_words(report)}; {report.output} is written"
        case RepairVerdict.PLANNED:
            return f"Dry run: {rules} would be repaired; nothing was written or proven"
        case RepairVerdict.REFUSED:
            return f"Refused, nothing was written: {report.proof.reason or 'the repair could not be proven'}"
        case RepairVerdict.NOT_DETERMINED:
            models = report.states[-1].candidates
            return f"Not determined, nothing was written: {len(models)} models may be meant; {take_options(models)}"
        case RepairVerdict.CLEAN:
            return "Nothing to repair: the checkpoint is in none of the states HS802 to HS812; nothing was written"
    assert_never(report.verdict)


def _lacking_words(report: RepairReport) -> str:
    """Says what a load of the result lacks."""
    new, lost, left = report.proof.new, report.proof.lost, () if report.taken else report.not_taken
    parts = [
        f"{list_of(new, _SHOWN)} {verb(len(new), 'has', 'have')} no stored weights" if new else "",
        f"the class has no place for {list_of(lost, _SHOWN)}" if lost else "",
        f"{list_of(left, _SHOWN)} {verb(len(left))} left out" if left else "",
    ]
    return " and ".join(filter(None, parts))


def shown_screen(report: RepairReport) -> RenderableType:
    """Shows the whole result."""
    lines = [Paragraph(label(text), label(name, STRONG), _MARGIN) for name, text in _fact_rows(report) if text]
    return Group(repair_verdict(report), Text(), *lines)


def _fact_rows(report: RepairReport) -> Iterator[tuple[str, str]]:
    yield "checkpoint", f"{report.source}{f': {report.model_class}' if report.model_class else ''}"
    for state in report.states:
        yield state.rule, f"{state.sentence} {state.seen()}".strip()
    if report.given:
        yield "given", list_of(report.given, _SHOWN)
    if report.assumed:
        yield "assumed", f"{list_of(report.assumed, _MOST_ASSUMED)}: defaults of the class, which no shape tells"
    if report.not_taken:
        yield "left out", list_of(report.not_taken, _MOST_ASSUMED)
    if report.proof.unused:
        yield "unused", list_of(report.proof.unused, _SHOWN)
    if report.kept_weights:
        yield "not read", f"{list_of(report.kept_weights, _SHOWN)}: other weight files, which stay as they are"
    if report.left_out:
        yield (
            "left out",
            f"{list_of(report.left_out, _SHOWN)}: the weights are in another form now, or for training only",
        )
    if report.states and not report.is_dry_run and report.verdict is not RepairVerdict.NOT_DETERMINED:
        yield "proof", "; ".join(_proof_lines(report)) or report.proof.reason
    if report.verdict is RepairVerdict.NOT_DETERMINED:
        first = f"{shlex.quote(report.source)} -o {shlex.quote(report.output)}"
        for at, option in enumerate(take_options(report.states[-1].candidates, "\n").split("\n")):
            yield "" if at else "next", f"headscope repair {first} {option}"
    if report.verdict in (RepairVerdict.PROVEN, RepairVerdict.INCOMPLETE):
        yield "next", f"headscope check {shlex.quote(report.output)}"


def _proof_lines(report: RepairReport) -> Iterator[str]:
    proof = report.proof
    if proof.loads is not None:
        yield f"the keys load as the repair promises: {_yes_or_no(proof.loads)}"
    if proof.tensors_equal is not None:
        read = f", {proof.read_by_libraries:,} of them also as PyTorch or safetensors read the source"
        yield f"{counted(proof.compared, 'tensor')} equal byte by byte{read}: {_yes_or_no(proof.tensors_equal)}"
    if proof.files_equal is not None:
        yield f"files equal byte by byte: {_yes_or_no(proof.files_equal)}"
    if proof.scores_equal is not None:
        within = f", within {proof.max_difference:.2g}" if proof.max_difference is not None else ""
        yield f"the merged model gives the scores of before{within}: {_yes_or_no(proof.scores_equal)}"


def _yes_or_no(holds: bool) -> str:
    return "yes" if holds else "no"


def shown_line(result: RepairReport) -> str:
    """Writes a result in one line."""
    return f"repair of {safe(result.source)}: {plain_text(repair_verdict(result)).strip()}"
