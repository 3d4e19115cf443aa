"""An ONNX file as a checkpoint: the head in its graph, and the labels in it or in the file beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from headscope.checkpoints.formats.bytes import ByteSource
from headscope.checkpoints.formats.config_file import LARGEST_JSON, parse_object
from headscope.checkpoints.formats.onnx.graph import read_onnx_graph, require_onnx
from headscope.checkpoints.formats.onnx.head import head_of_graph
from headscope.errors import HeadscopeError, Unsupported
from headscope.facts import Unavailable
from headscope.facts.counting import counted
from headscope.facts.exports.weight_inventory import Setting, WeightInventory, contents_of

SUFFIX = ".onnx"
_CONFIG = "config.json"
_COUNTING = ("int32", "int64", "bool")
"""Formats of indices and shapes, which are not weights."""


def refuse_onnx(names: Iterable[str], opened: Callable[[str], ByteSource]) -> None:
    """Raises Unsupported, with the head that the first graph shows, where there are ONNX files."""
    names = tuple(names)
    found = sorted((name for name in names if name.lower().endswith(SUFFIX)), key=lambda name: (len(name), name))
    if not found:
        return
    require_onnx(found[0])
    contents = _with_labels_beside(read_onnx(opened(found[0])), set(names), opened)
    more = f"; {counted(len(found) - 1, 'other ONNX file')} not read" if len(found) > 1 else ""
    raise Unsupported(
        f"{found[0]} is an ONNX file: its head is read from the graph and not traced{more}",
        f"run `headscope compare SOURCE {found[0]}` with the checkpoint it was exported from",
        contents,
    )


def _with_labels_beside(
    contents: WeightInventory, names: set[str], opened: Callable[[str], ByteSource]
) -> WeightInventory:
    """The contents with the labels of the config.json beside the file, where the graph names none."""
    head = contents.head
    if head is None or head.labels or _CONFIG not in names:
        return contents
    labels, reason = _labels_in(opened(_CONFIG))
    if labels and head.classes is not None and len(labels) != head.classes:
        reason = f"{_CONFIG} names {len(labels):,}, and the graph gives {head.classes:,} scores"
    if reason:
        gap = Unavailable("labels", reason)
        return replace(contents, head=replace(head, not_determined=(*head.not_determined, gap)))
    return replace(contents, head=replace(head, labels=labels, labels_from=_CONFIG)) if labels else contents


def _labels_in(source: ByteSource) -> tuple[tuple[str, ...], str]:
    """The labels that a configuration gives the numbers 0, 1, 2 and so on, and why there are none."""
    if source.size > LARGEST_JSON:
        return (), f"{_CONFIG} has {source.size:,} bytes, over the limit of {LARGEST_JSON:,}"
    try:
        config = parse_object(source.read_at(0, source.size), _CONFIG)
    except HeadscopeError as err:
        return (), err.message
    found = config.get("id2label")
    if found is None:
        return (), ""
    keys = [str(at) for at in range(len(found))] if isinstance(found, dict) else []
    if not keys or set(keys) != set(found) or not all(isinstance(item, str) for item in found.values()):
        return (), f"id2label in {_CONFIG} does not give each of the numbers from 0 a name"
    return tuple(found[key] for key in keys), ""


def read_onnx(source: ByteSource) -> WeightInventory:
    """The contents of an ONNX file. Raises Malformed for none, Unsupported where the onnx package is not installed."""
    graph = read_onnx_graph(source)
    return contents_of(
        source.name,
        f"opset {graph.opset}" if graph.opset else "no opset",
        tuple(item for item in graph.tensors.values() if item.shape and not item.dtype.startswith(_COUNTING)),
        format_name="onnx",
        bytes_read=source.bytes_read,
        settings=(Setting("labels", ", ".join(graph.labels)),) if graph.labels else (),
        head=head_of_graph(graph),
    )
