"""The screen of what a checkpoint's weight files hold, where its head was not inspected."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from headscope.facts.counting import counted
from headscope.facts.weight_inventory import WeightInventory
from headscope.render.lines import Paragraph
from headscope.render.palette import STRONG
from headscope.render.safe import label, safe
from headscope.render.words import bytes_of, size_of

_MARGIN = 12
_MOST_TENSORS = 40


def contents_screen(contents: WeightInventory) -> RenderableType:
    """The weight side: the file, its number formats, and the tensors outside of the blocks that repeat."""
    return Group(*(Paragraph(body, Text(name, STRONG), _MARGIN) for name, body in _lines(contents)))


def _lines(contents: WeightInventory) -> Iterator[tuple[str, Text]]:
    yield "unknown", label("not determined: the head path, and which weights a class would take", "yellow")
    read = f", {bytes_of(contents.bytes_read)} read"
    yield "checkpoint", label(f"{contents.reference}, {contents.format}, {contents.architecture}{read}")
    formats = ", ".join(f"{safe(item.dtype)} {item.tensors:,}" for item in contents.dtypes)
    total = f"{counted(contents.tensors, 'tensor')} of {contents.elements:,} numbers"
    yield "weights", label(f"{total}: {formats}" if formats else total)
    outside = contents.outside_blocks
    if outside:
        yield "outside", label("of the blocks that repeat, where embeddings, last norms and heads are:")
    for tensor in outside[:_MOST_TENSORS]:
        yield "", label(f"{tensor.key} {size_of(tensor.shape)} {tensor.dtype}")
    if len(outside) > _MOST_TENSORS:
        yield "", label(f"and {len(outside) - _MOST_TENSORS:,} more (--json lists all)")
    for setting in contents.settings:
        yield "setting", label(f"{setting.name}: {setting.value}")
