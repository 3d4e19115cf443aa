"""The lines of a screen that show the head of an exported model."""

from collections.abc import Iterator

from rich.text import Text

from headscope.facts import TensorHeader
from headscope.facts.counting import list_of
from headscope.facts.exports.export import ExportHead, ExportStep, ExportValue, HeadBasis
from headscope.render.text.safe import label
from headscope.render.text.words import POOLING, axes_of, size_of

_MOST_LABELS = 20
_MOST_STEPS = 40
_MOST_VALUES = 12

BASIS = {
    HeadBasis.NAMES: "read from the names of tensors and settings, not traced",
    HeadBasis.GRAPH: "read from the graph in the file, not traced",
    HeadBasis.CONFIG: "read from the settings and the tensor headers; nothing was traced",
}


def head_lines(head: ExportHead) -> Iterator[tuple[str, Text]]:
    """Each line with the word at its margin."""
    yield "head", label(BASIS[head.basis], "yellow")
    yield "", label(f"after {head.knowledge}")
    for word, values in (("inputs", head.inputs), ("outputs", head.outputs)):
        if values:
            yield word, label(list_of(map(value_of, values), _MOST_VALUES))
    kind = POOLING[head.pooling] if head.pooling is not None else "not determined"
    yield "pooling", label(f"{kind} ({head.pooling_rule})" if head.pooling_rule else kind)
    tensors = {item.key: item for item in head.tensors}
    for at, step in enumerate(head.steps[:_MOST_STEPS]):
        yield "" if at else "steps", label(_step(step, tensors))
    if len(head.steps) > _MOST_STEPS:
        yield "", label(f"and {len(head.steps) - _MOST_STEPS:,} more (--json lists all)")
    if head.classes is not None:
        yield "classes", label(f"{head.classes:,}")
    yield "labels", label(_labels(head))
    for note in head.notes:
        yield "note", label(note)
    for gap in head.not_determined:
        yield "unknown", label(f"not determined: {gap.what}: {gap.reason}", "yellow")


def _labels(head: ExportHead) -> str:
    """The labels, and the file that names them where it is not the one of the head."""
    if not head.labels:
        return "the file names none"
    origin = f" (from {head.labels_from})" if head.labels_from else ""
    return f"{list_of(head.labels, _MOST_LABELS)}{origin}"


def value_of(value: ExportValue) -> str:
    """An input or output: `logits [batch, 2] float32`."""
    return f"{value.name} {axes_of(value.shape)} {value.dtype}"


def _step(step: ExportStep, tensors: dict[str, TensorHeader]) -> str:
    """`linear -> [batch, 2], cls.output.weight 2x768 F32, cls.output.bias 2 F32`."""
    text = f"{step.operation} {step.detail}".strip()
    text += f" -> {axes_of(step.output_shape)}" if step.output_shape else ""
    used = (tensors[name] for name in step.tensors if name in tensors)
    return ", ".join([text, *(f"{item.key} {size_of(item.shape)} {item.dtype}" for item in used)])
