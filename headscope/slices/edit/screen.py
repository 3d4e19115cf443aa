"""Screen of `edit`: the classes before and after, where each row comes from, what holds, and the proof."""

import shlex
from collections.abc import Iterator
from typing import assert_never

from rich.console import Group, RenderableType
from rich.text import Text

from headscope.copies.facts import (
    AdapterMerge,
    EditedField,
    EditedLabel,
    EditFit,
    EditReport,
    EditVerdict,
    FitGain,
    FitMetric,
    HeadFold,
    LabelOrigin,
)
from headscope.core.facts.counting import counted, list_of
from headscope.core.model.classes.labels import are_placeholders
from headscope.core.words.console import STRONG, TONE, Tone, plain_text
from headscope.core.words.lines import Paragraph
from headscope.core.words.safe import label, safe

_MARGIN = 14
_MOST_ROWS = 24
_MOST_LEFT = 8
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
    """Shows one sentence, which is all that `-q` shows."""
    return Paragraph(label(_verdict_sentence(report), TONE[_TONES[report.verdict]]))


def _verdict_sentence(report: EditReport) -> str:
    match report.verdict:
        case EditVerdict.PROVEN:
            gains = {FitGain.BETTER: "better", FitGain.WORSE: "worse", FitGain.NONE: "no better"}
            gain = f", {gains[report.fit.gain]} on held-out texts" if report.fit is not None else ""
            return f"Proven: {_change_words(report)}{gain}; {report.output} is written"
        case EditVerdict.PLANNED:
            return f"Dry run: {_change_words(report)}; nothing was written or proven"
        case EditVerdict.REFUSED:
            return f"Refused, nothing was written: {report.proof.reason or 'the change could not be proven'}"
    assert_never(report.verdict)


def _change_words(report: EditReport) -> str:
    if report.head_from:
        return (
            f"the adapter has the head of {report.head_from}, {counted(len(report.labels_before), 'class', 'classes')}"
        )
    if report.fold is not None and not report.labels:
        return f"the head of {report.fold.class_before} is folded into {report.model_class}"
    if report.merge is not None and not report.labels and not report.settings:
        return f"the adapter is merged, {counted(len(report.labels_before), 'class', 'classes')}"
    if not report.labels:
        return f"{counted(len(report.settings), 'field')} of config.json changed"
    before, after = len(report.labels_before), len(report.labels)
    return f"{counted(after, 'class', 'classes')}{f', {before} before' if before != after else ', as many as before'}"


def shown_screen(report: EditReport) -> RenderableType:
    """Shows the whole result."""
    lines = [Paragraph(label(text), label(name, STRONG), _MARGIN) for name, text in _fact_rows(report) if text]
    return Group(edit_verdict(report), Text(), *lines)


def _fact_rows(report: EditReport) -> Iterator[tuple[str, str]]:
    edited_as = report.model_class if report.fold is None else ""  # a fold has lines on both classes
    yield "checkpoint", f"{report.source}: {edited_as}" if edited_as else report.source
    if report.merge is not None:
        yield "adapter", _merge_words(report.merge)
    if report.merge is not None and not report.labels:
        yield from _merged_classes(report)
    if report.fold is not None:
        yield from _fold_rows(report.fold)
    yield from zip(("classes", *[""] * _MOST_ROWS), _class_lines(report), strict=False)
    for at, tensor in enumerate(report.tensors):
        formats = " -> ".join(dict.fromkeys((tensor.dtype, tensor.dtype_after)))
        shapes = " -> ".join(dict.fromkeys(str(list(shape)) for shape in (tensor.shape_before, tensor.shape_after)))
        yield "" if at else "tensors", f"{tensor.name} {shapes}, {formats}"
    if report.settings:
        yield (
            "config.json",
            "; ".join(f"{item.name}: {item.before or 'absent'} -> {item.after}" for item in _other_fields(report)),
        )
    for sentence in report.exact:
        yield "exact", sentence
    for sentence in report.approximate:
        yield "not exact", sentence
    if report.fit is not None:
        yield from zip(("fit", *[""] * _MOST_ROWS), _fit_lines(report.fit), strict=False)
    if not report.is_dry_run:
        yield "proof", _proof_words(report) if report.fold is None or report.labels else ""
    if report.left_out:
        files = list_of(report.left_out, _MOST_LEFT)
        yield "left out", f"{files}: not copied, as they may contain the old head or aren't part of a model"
    if report.backup:
        new, old = shlex.quote(report.output), shlex.quote(report.backup)
        yield "backup", f"{report.backup} is the checkpoint as it was; to go back: rm -r {new} && mv {old} {new}"
    if report.verdict is EditVerdict.PROVEN:
        yield "next", f"headscope check {shlex.quote(report.output)}"


def _fold_rows(fold: HeadFold) -> Iterator[tuple[str, str]]:
    """Shows both formulas, where each parameter comes from, and what the library did beside them."""
    yield "fold", f"{fold.class_before}: {fold.formula_before}"
    yield "", f"becomes {fold.formula}"
    for at, item in enumerate(fold.parameters):
        made = list_of(item.sources, _MOST_LEFT) or "a constant"
        how = "" if item.is_copied or not item.sources else "computed from "
        yield "" if at else "parameters", f"{item.name} = {how}{made}"
    for setting in fold.settings:
        yield "config.json", f"{setting.name}: {setting.before} -> {setting.after}"
    for at, sentence in enumerate(fold.to_do):
        yield "" if at else "to do", sentence
    if fold.max_difference is not None and fold.tolerance is not None:
        yield (
            "proof",
            f"scores of {fold.proven_with} and of the result differ by at most {fold.max_difference:.2g} on "
            f"{counted(fold.inputs, 'text or pair', 'texts and pairs')} (rounding explains {fold.tolerance:.2g}); all "
            "other tensors are equal byte by byte",
        )


def _merged_classes(report: EditReport) -> Iterator[tuple[str, str]]:
    """Lists the classes of an adapter that was merged without another change."""
    yield "classes", list_of(report.labels_before, _MOST_ROWS)
    if are_placeholders(report.labels_before):
        yield (
            "",
            "an adapter holds no names of classes: give them with --labels A,B,... in this call, or later: headscope "
            f"edit {shlex.quote(report.output)} -o DIR --labels A,B,...",
        )


def _fit_lines(fit: EditFit) -> Iterator[str]:
    """Says what was fitted, then a line for each figure."""
    if fit.temperature is not None:
        yield f"temperature {fit.temperature:.4g}"
    if fit.thresholds:
        yield "thresholds " + list_of((f"{item.label} {item.probability:.3g}" for item in fit.thresholds), 8)
    if fit.not_fitted:
        yield f"{list_of(fit.not_fitted, 8)}: too few texts have or lack the class, so 0.5 stays"
    rest = [f"{counted(fit.skipped, 'row')} without a label"] if fit.skipped else []
    rest += [f"{counted(fit.truncated, 'text')} cut to the model's length"] if fit.truncated else []
    yield (
        f"fitted to {counted(fit.fitting_texts, 'text')}; on {fit.held_out_texts:,} others (95% intervals, "
        f"{fit.resamples:,} resamples, {fit.bins} bins){''.join(f'; {item}' for item in rest)}:"
    )
    for item in fit.figures:
        name = f"{_METRICS[item.metric]}{f' of {item.label}' if item.label else ''}"
        change = item.change
        yield (
            f"{name} {item.before.value:.4f} -> {item.after.value:.4f} "
            f"({change.value:+.4f}, {change.low:+.4f} to {change.high:+.4f})"
        )


_METRICS = {
    FitMetric.NLL: "negative log likelihood",
    FitMetric.ECE: "expected calibration error",
    FitMetric.F1: "F1",
    FitMetric.MACRO_F1: "macro F1",
}


def _merge_words(merge: AdapterMerge) -> str:
    return (
        f"{merge.method}, merged into {merge.base}{f', with {list_of(merge.saved, 4)}' if merge.saved else ''}; scores "
        f"differ from those with the adapter beside it by at most {merge.max_difference:.2g} on "
        f"{counted(merge.inputs, 'input')} (rounding explains {merge.tolerance:.2g})"
    )


def _other_fields(report: EditReport) -> list[EditedField]:
    """Gives the changed fields that the list of classes doesn't show."""
    shown = ("id2label", "label2id") if report.labels else ()
    return [item for item in report.settings if item.name not in shown]


def _class_lines(report: EditReport) -> Iterator[str]:
    """Writes a line for each class; of many, only for those whose place or name changed."""
    labels = list(enumerate(report.labels))
    if len(labels) > _MOST_ROWS:
        labels = [(at, item) for at, item in labels if item.source != at or item.name != item.name_before]
        labels = labels[: _MOST_ROWS - 1]
    hidden = len(report.labels) - len(labels)
    width = max((len(safe(item.name)) for _, item in labels), default=0)
    for at, item in labels:
        yield f"{at:>3}  {safe(item.name):<{min(width, 30)}}  {_origin_words(item, at, report)}"
    if hidden:
        yield f"and {hidden:,} more"
    # A class that was merged into another is not left out: its row is a part of the new one.
    used = {item.source for item in report.labels} | {place for item in report.labels for place in item.merged}
    dropped = [name for at, name in enumerate(report.labels_before) if at not in used]
    if report.labels and dropped:
        yield f"left out: {list_of(dropped, 8)}"


def _origin_words(item: EditedLabel, at: int, report: EditReport) -> str:
    names = [report.labels_before[place] for place in item.merged] or [item.name_before]
    words = _ORIGINS[item.origin].format(list_of(names, 4))
    if item.origin is LabelOrigin.KEPT:
        words += f", was {item.name_before}" if item.name != item.name_before else ""
        words += f", was number {item.source}" if item.source != at else ""
    return f"{words}, logit {item.shift:+.4g}" if item.shift else words


def _proof_words(report: EditReport) -> str:
    proof = report.proof
    parts = {
        "the same keys load as before": proof.loads,
        (
            "kept rows are equal, rounded to the other number format"
            if any(item.dtype != item.dtype_after for item in report.tensors)
            else "kept rows are equal byte by byte"
        ): proof.kept_rows_equal if report.tensors else None,
        (
            f"all {'other ' if report.tensors else ''}tensors are equal byte by byte"
            if report.labels or report.merge is None
            else "all tensors are those that PEFT merges"
        ): proof.base_unchanged,
    }
    found = [f"{words}: {'yes' if holds else 'no'}" for words, holds in parts.items() if holds is not None]
    if proof.scores_equal and report.labels and not proof.inputs:
        found.append("only names in config.json changed, so the scores are the same")
    elif proof.scores_equal is not None and proof.max_difference is not None and report.labels:
        among = f", {counted(proof.texts, 'text')} among them" if proof.texts else ""
        where = f"{counted(proof.inputs, 'input')}{among}"
        found.append(
            f"scores differ from the promised ones by at most {proof.max_difference:.2g} on {where} (rounding allows "
            f"{proof.tolerance:.2g})"
        )
    if proof.not_proven:
        found.append(f"nothing is promised of {list_of(proof.not_proven, 4)}")
    return "; ".join(found)


def shown_line(result: EditReport) -> str:
    """Writes a result in one line."""
    return f"edit of {safe(result.source)}: {plain_text(edit_verdict(result)).strip()}"
