"""The screen of `edit`: the classes before and after, where each row comes from, what holds, and the proof."""

import shlex
from collections.abc import Iterator
from typing import assert_never

from rich.console import Group, RenderableType
from rich.text import Text

from headscope.facts.counting import counted, list_of
from headscope.facts.results.edit import EditedField, EditedLabel, EditReport, EditVerdict, LabelOrigin
from headscope.render.text.console import STRONG, TONE, Tone
from headscope.render.text.lines import Paragraph
from headscope.render.text.safe import label, safe

_MARGIN = 14
_MOST_ROWS = 24
_TONES = {EditVerdict.PROVEN: Tone.GOOD, EditVerdict.PLANNED: Tone.NOTE, EditVerdict.REFUSED: Tone.ERROR}
_ORIGINS = {
    LabelOrigin.KEPT: "kept",
    LabelOrigin.COPIED: "new, copied from {}",
    LabelOrigin.ZERO: "new, zeros",
    LabelOrigin.MEAN: "new, the mean of all rows",
    LabelOrigin.RANDOM: "new, random",
    LabelOrigin.MERGED: "merged from {}",
}


def edit_verdict(report: EditReport) -> RenderableType:
    """One sentence: all that `-q` shows."""
    return Paragraph(label(_sentence(report), TONE[_TONES[report.verdict]]))


def _sentence(report: EditReport) -> str:
    match report.verdict:
        case EditVerdict.PROVEN:
            return f"Proven: {_what(report)}; {report.output} is written"
        case EditVerdict.PLANNED:
            return f"Dry run: {_what(report)}; nothing was written or proven"
        case EditVerdict.REFUSED:
            return f"Refused, nothing was written: {report.proof.reason or 'the change could not be proven'}"
    assert_never(report.verdict)


def _what(report: EditReport) -> str:
    if not report.labels:
        return f"{counted(len(report.settings), 'field')} of config.json changed"
    before, after = len(report.labels_before), len(report.labels)
    return f"{counted(after, 'class', 'classes')}{f', {before} before' if before != after else ', as many as before'}"


def edit_screen(report: EditReport) -> RenderableType:
    """The whole result."""
    lines = [Paragraph(label(text), label(name, STRONG), _MARGIN) for name, text in _facts(report) if text]
    return Group(edit_verdict(report), Text(), *lines)


def _facts(report: EditReport) -> Iterator[tuple[str, str]]:
    yield "checkpoint", f"{report.source}: {report.model_class}"
    yield from zip(("classes", *[""] * _MOST_ROWS), _classes(report), strict=False)
    for at, tensor in enumerate(report.tensors):
        yield (
            "" if at else "tensors",
            f"{tensor.name} {list(tensor.shape_before)} -> {list(tensor.shape_after)}, {tensor.dtype}",
        )
    if report.settings:
        yield (
            "config.json",
            "; ".join(f"{item.name}: {item.before or 'absent'} -> {item.after}" for item in _told(report)),
        )
    for sentence in report.exact:
        yield "exact", sentence
    for sentence in report.approximate:
        yield "not exact", sentence
    if not report.is_dry_run:
        yield "proof", _proof(report)
    if report.left_out:
        files = list_of(report.left_out, 4)
        yield "left out", f"{files}: what else holds weights would still hold the old head"
    if report.verdict is EditVerdict.PROVEN:
        yield "next", f"headscope check {shlex.quote(report.output)}"


def _told(report: EditReport) -> list[EditedField]:
    """The changed fields that the classes above don't show."""
    shown = ("id2label", "label2id") if report.labels else ()
    return [item for item in report.settings if item.name not in shown]


def _classes(report: EditReport) -> Iterator[str]:
    """A line for each class; of many, for those that are not where they were."""
    labels = list(enumerate(report.labels))
    if len(labels) > _MOST_ROWS:
        labels = [(at, item) for at, item in labels if item.source != at or item.name != item.name_before]
        hidden = len(report.labels) - len(labels[: _MOST_ROWS - 1])
        labels = labels[: _MOST_ROWS - 1]
    else:
        hidden = 0
    width = max((len(safe(item.name)) for _, item in labels), default=0)
    for at, item in labels:
        yield f"{at:>3}  {safe(item.name):<{min(width, 30)}}  {_origin(item, at, report)}"
    if hidden:
        yield f"and {hidden:,} more"
    dropped = _dropped(report)
    if dropped:
        yield f"left out: {list_of(dropped, 8)}"


def _dropped(report: EditReport) -> list[str]:
    used = {item.source for item in report.labels} | {place for item in report.labels for place in item.merged}
    return [] if not report.labels else [name for at, name in enumerate(report.labels_before) if at not in used]


def _origin(item: EditedLabel, at: int, report: EditReport) -> str:
    names = [report.labels_before[place] for place in item.merged] or [item.name_before]
    words = _ORIGINS[item.origin].format(list_of(names, 4))
    if item.origin is LabelOrigin.KEPT:
        words += f", was {item.name_before}" if item.name != item.name_before else ""
        words += f", was number {item.source}" if item.source != at else ""
    return f"{words}, logit {item.shift:+.4g}" if item.shift else words


def _proof(report: EditReport) -> str:
    proof = report.proof
    parts = {
        "the loader finds what it found before": proof.loads,
        "kept rows are equal byte by byte": proof.kept_rows_equal,
        "all other tensors are equal byte by byte": proof.base_unchanged,
    }
    found = [f"{words}: {'yes' if holds else 'no'}" for words, holds in parts.items() if holds is not None]
    if proof.scores_equal is not None and proof.max_difference is not None and report.labels:
        among = f", {counted(proof.texts, 'text')} among them" if proof.texts else ""
        where = f"{counted(proof.inputs, 'input')}{among}"
        found.append(
            f"scores differ from the promised ones by at most {proof.max_difference:.2g} on {where} (rounding explains "
            f"{proof.tolerance:.2g})"
        )
    if proof.not_proven:
        found.append(f"nothing is promised of {list_of(proof.not_proven, 4)}")
    return "; ".join(found) or proof.reason
