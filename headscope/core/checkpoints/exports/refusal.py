"""Files that a classifier was exported to: GGUF and ONNX. Their heads are read and not traced, so they are refused."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headscope.core.checkpoints.formats.bytes import ByteSource


def refuse_exports(names: Iterable[str], opened: Callable[[str], "ByteSource"]) -> None:
    """Raises Inventoried, with the head that the first export shows, where there are GGUF or ONNX files."""
    listed = tuple(names)
    if not any(name.lower().endswith((".gguf", ".onnx")) for name in listed):
        return
    # Imported here: their readers are only needed where such a file is.
    from headscope.core.checkpoints.exports.gguf.file import refuse_gguf
    from headscope.core.checkpoints.exports.onnx.head import refuse_onnx

    refuse_gguf(listed, opened)
    refuse_onnx(listed, opened)
