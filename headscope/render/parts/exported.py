"""The part of the screen of `compare` that shows what an export carries of its source's head."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from headscope.facts.counting import counted
from headscope.facts.exports.exported import ExportComparison, Fate
from headscope.render.parts.export import BASIS
from headscope.render.text.lines import Paragraph
from headscope.render.text.palette import STRONG, TONE, Tone
from headscope.render.text.safe import label
from headscope.render.text.words import size_of

_MARGIN = 14
_FATES = {
    Fate.CARRIED: "green",
    Fate.TRANSFORMED: "cyan",
    Fate.CHANGED: "bold yellow",
    Fate.LOST: "bold red",
    Fate.UNKNOWN: "bold magenta",
}


def export_verdict(item: ExportComparison) -> Paragraph:
    """One sentence on one export."""
    if not item.is_determined:
        return Paragraph(label(f"Not determined: all that {item.reference} carries of the head", TONE[Tone.WARNING]))
    lost = sum(tensor.fate is Fate.LOST for tensor in item.tensors)
    total = counted(len(item.tensors), "head tensor")
    if not item.differs:
        sentence = f"{item.reference} carries the head: all {total} by name and shape (numbers not compared)"
        return Paragraph(label(sentence, TONE[Tone.NOTE]))
    clauses = [f"{lost} of {total} lost"] if lost else []
    clauses += [
        f"{aspect.what} {aspect.fate.value}" for aspect in item.aspects if aspect.fate in (Fate.LOST, Fate.CHANGED)
    ]
    return Paragraph(label(f"{item.reference} differs from its source: {', '.join(clauses)}", TONE[Tone.WARNING]))


def export_lines(item: ExportComparison) -> Iterator[RenderableType]:
    """Each tensor of the source's head and each aspect, with what became of it."""
    contents = item.contents
    head = contents.head
    basis = f", {BASIS[head.basis]}" if head is not None else ""
    yield Paragraph(label(f"{item.reference}: {contents.format}, {contents.architecture}{basis}", STRONG))
    for tensor in item.tensors:
        said = f"{tensor.parameter} {size_of(tensor.shape)}"
        said += f" -> {tensor.name} {size_of(tensor.stored_shape)} {tensor.stored_dtype}" if tensor.name else ""
        yield _line(tensor.fate, f"{said}: {tensor.how}" if tensor.how else said)
    for aspect in item.aspects:
        same = aspect.source == aspect.export
        said = f"{aspect.what}: {aspect.source}" + ("" if same else f" -> {aspect.export}")
        yield _line(aspect.fate, f"{said} ({aspect.note})" if aspect.note else said)
    for note in head.notes if head is not None else ():
        yield Paragraph(label(note), Text("  note"), _MARGIN)
    for gap in item.not_determined:
        yield _line(Fate.UNKNOWN, f"{gap.what}: {gap.reason}")


def _line(fate: Fate, body: str) -> Paragraph:
    return Paragraph(label(body), Text(f"  {fate.value}", _FATES[fate]), _MARGIN)
