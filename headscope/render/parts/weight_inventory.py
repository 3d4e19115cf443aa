"""The screen of what a checkpoint's weight files hold, where its head was not traced."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from headscope.facts.counting import counted
from headscope.facts.exports.weight_inventory import WeightInventory
from headscope.render.parts.export import head_lines
from headscope.render.text.lines import Paragraph
from headscope.render.text.palette import STRONG
from headscope.render.text.safe import label, safe
from headscope.render.text.words import bytes_of, size_of

_MARGIN = 12
_MOST_TENSORS = 40


def contents_screen(contents: WeightInventory) -> RenderableType:
    """The weight side: the file, its number formats, and the tensors outside repeated blocks."""
    return Group(*(Paragraph(body, Text(name, STRONG), _MARGIN) for name, body in _lines(contents)))


def _lines(contents: WeightInventory) -> Iterator[tuple[str, Text]]:
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
    for setting in contents.settings if contents.head is None else ():  # the head says them
        yield "setting", label(f"{setting.name}: {setting.value}")
