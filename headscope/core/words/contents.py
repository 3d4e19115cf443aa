"""Screen parts for files that are not traced: heads of exports, and tensors by their names."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from headscope.core.facts.counting import counted, list_of
from headscope.core.facts.export import ExportComparison, ExportHead, Fate, HeadBasis, WeightInventory
from headscope.core.words.console import STRONG, TONE, Tone
from headscope.core.words.lines import Paragraph
from headscope.core.words.safe import label, safe
from headscope.core.words.words import POOLING, axes_of, bytes_of, size_of

_MOST_STEPS = 40

BASIS = {
    HeadBasis.NAMES: "read from the names of tensors and settings, not traced",
    HeadBasis.GRAPH: "read from the graph in the file, not traced",
    HeadBasis.CONFIG: "read from the settings and the tensor headers; nothing was traced",
}


def head_lines(head: ExportHead) -> Iterator[tuple[str, Text]]:
    """Writes a head as lines, each with the word at its margin."""
    yield "head", label(BASIS[head.basis], "yellow")
    yield "", label(f"after {head.knowledge}")
    for word, values in (("inputs", head.inputs), ("outputs", head.outputs)):
        if values:
            each = (f"{value.name} {axes_of(value.shape)} {value.dtype}" for value in values)
            yield word, label(list_of(each, 12))
    kind = POOLING[head.pooling] if head.pooling is not None else "not determined"
    yield "pooling", label(f"{kind} ({head.pooling_rule})" if head.pooling_rule else kind)
    tensors = {item.key: item for item in head.tensors}
    for at, step in enumerate(head.steps[:_MOST_STEPS]):
        text = f"{step.operation} {step.detail}".strip()
        text += f" -> {axes_of(step.output_shape)}" if step.output_shape else ""
        used = (tensors[name] for name in step.tensors if name in tensors)
        words = [text, *(f"{item.key} {size_of(item.shape)} {item.dtype}" for item in used)]
        yield "" if at else "steps", label(", ".join(words))
    if len(head.steps) > _MOST_STEPS:
        yield "", label(f"and {len(head.steps) - _MOST_STEPS:,} more (--json lists all)")
    if head.classes is not None:
        yield "classes", label(f"{head.classes:,}")
    origin = f" (from {head.labels_from})" if head.labels_from else ""
    yield "labels", label(f"{list_of(head.labels, 20)}{origin}" if head.labels else "the file names none")
    for note in head.notes:
        yield "note", label(note)
    for gap in head.not_determined:
        yield "unknown", label(f"not determined: {gap.topic}: {gap.reason}", "yellow")


_MARGIN = 14
_FATES = {
    Fate.CARRIED: "green",
    Fate.TRANSFORMED: "cyan",
    Fate.CHANGED: "bold yellow",
    Fate.LOST: "bold red",
    Fate.UNKNOWN: "bold magenta",
}


def export_verdict(item: ExportComparison) -> Paragraph:
    """Writes the verdict on one export in one sentence."""
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
    """Lists each tensor and each aspect of the source's head, with its fate in the export."""
    contents = item.contents
    head = contents.head
    basis = f", {BASIS[head.basis]}" if head is not None else ""
    yield Paragraph(label(f"{item.reference}: {contents.format}, {contents.architecture}{basis}", STRONG))
    for tensor in item.tensors:
        said = f"{tensor.parameter} {size_of(tensor.shape)}"
        said += f" -> {tensor.name} {size_of(tensor.stored_shape)} {tensor.stored_dtype}" if tensor.name else ""
        yield _fate_paragraph(tensor.fate, f"{said}: {tensor.how}" if tensor.how else said)
    for aspect in item.aspects:
        same = aspect.source == aspect.export
        said = f"{aspect.what}: {aspect.source}" + ("" if same else f" -> {aspect.export}")
        yield _fate_paragraph(aspect.fate, f"{said} ({aspect.note})" if aspect.note else said)
    for note in head.notes if head is not None else ():
        yield Paragraph(label(note), Text("  note"), _MARGIN)
    for gap in item.not_determined:
        yield _fate_paragraph(Fate.UNKNOWN, f"{gap.topic}: {gap.reason}")


def _fate_paragraph(fate: Fate, body: str) -> Paragraph:
    return Paragraph(label(body), Text(f"  {fate.value}", _FATES[fate]), _MARGIN)


_MOST_TENSORS = 40


def contents_screen(contents: WeightInventory) -> RenderableType:
    """Shows the weights of a file: its number formats, and the tensors outside repeated blocks."""
    return Group(*(Paragraph(body, Text(name, STRONG), 12) for name, body in _contents_lines(contents)))


def _contents_lines(contents: WeightInventory) -> Iterator[tuple[str, Text]]:
    if contents.head is None:
        yield "unknown", label("not determined: the head path, and which weights a class would take", "yellow")
    read = f", {bytes_of(contents.bytes_read)} read"
    yield "checkpoint", label(f"{contents.reference}, {contents.format}, {contents.architecture}{read}")
    formats = ", ".join(f"{safe(item.dtype)} {item.tensors:,}" for item in contents.dtypes)
    total = f"{counted(contents.tensors, 'tensor')} of {contents.elements:,} numbers"
    yield "weights", label(f"{total}: {formats}" if formats else total if contents.tensors else "not read")
    if contents.head is not None:
        yield from head_lines(contents.head)
    own = {item.key for item in contents.head.tensors} if contents.head is not None else set()
    outside = tuple(item for item in contents.outside_blocks if item.key not in own)
    if outside:
        yield "other", Text("tensors outside repeated blocks:")
    for tensor in outside[:_MOST_TENSORS]:
        yield "", label(f"{tensor.key} {size_of(tensor.shape)} {tensor.dtype}")
    if len(outside) > _MOST_TENSORS:
        yield "", label(f"and {len(outside) - _MOST_TENSORS:,} more (--json lists all)")
    for setting in contents.settings if contents.head is None else ():  # the lines of a head have used them
        yield "setting", label(f"{setting.name}: {setting.value}")
