"""The graph of an ONNX file as plain values: nodes, shapes, stored tensors and labels, read with the onnx package."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from math import prod
from typing import Any

from headscope.checkpoints.formats.bytes import ByteSource
from headscope.checkpoints.formats.onnx.lean import LeanModel, lean_model
from headscope.errors import Malformed, Unsupported
from headscope.facts import Shape, TensorHeader
from headscope.facts.exports.export import ExportValue

_LARGEST_INFERENCE = 4_000_000
_MOST_LABELS = 1000
_LONGEST_LABEL = 256
_LABEL_KEYS = ("id2label", "labels", "label_names", "class_names", "classes", "names")
_INT32, _INT64 = 6, 7
_WIDTHS = {_INT32: 4, _INT64: 8}


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """One operation of a graph; `attributes` are its numbers and texts."""

    operation: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OnnxGraph:
    """A graph without weights: `ints` are the numbers of small integer constants, `shapes` all that are known."""

    nodes: tuple[OnnxNode, ...]
    inputs: tuple[ExportValue, ...]
    outputs: tuple[ExportValue, ...]
    tensors: Mapping[str, TensorHeader]
    ints: Mapping[str, tuple[int, ...]]
    shapes: Mapping[str, Shape]
    labels: tuple[str, ...]
    opset: str
    is_partial: str = ""


def require_onnx(name: str) -> None:
    """Raises Unsupported where the onnx package is not installed."""
    if find_spec("onnx") is None:
        raise Unsupported(
            f"{name} is an ONNX file, and headscope needs the onnx package to read it",
            "run `pip install 'headscope[onnx]'`, or inspect the checkpoint it was exported from",
        )


def read_onnx_graph(source: ByteSource) -> OnnxGraph:
    """The graph of an ONNX file, read without its weights. Raises Malformed, or Unsupported without the package."""
    require_onnx(source.name)
    lean = lean_model(source)
    import onnx
    from google.protobuf.message import DecodeError

    model = onnx.ModelProto()
    try:
        model.ParseFromString(lean.data)
        if not model.HasField("graph"):
            raise Malformed(f"{source.name} is not a valid ONNX file: it holds no graph", "export it again")
        return _graph(_with_shapes(model, lean), lean, source.name)
    except (DecodeError, UnicodeDecodeError) as err:
        raise Malformed(f"{source.name} is not a valid ONNX file: {_first_line(err)}", "export it again") from err


def _with_shapes(model: Any, lean: LeanModel) -> Any:
    """The model with the shapes of its values, where the file lacks them and they are cheap to infer."""
    if len(model.graph.value_info) >= lean.nodes // 2 or len(lean.data) > _LARGEST_INFERENCE:
        return model
    from onnx import shape_inference

    try:
        return shape_inference.infer_shapes(model)
    except Exception:  # whatever the inference of another project raises: shapes stay unknown, and the walk reports it
        return model


def _graph(model: Any, lean: LeanModel, file: str) -> OnnxGraph:
    graph = model.graph
    names = _dtype_names()
    constants = dict(_constants(graph))
    tensors = {
        name: TensorHeader(name, names.get(item.data_type, str(item.data_type)), tuple(item.dims), file)
        for name, item in constants.items()
    }
    inputs = tuple(_value(item, names) for item in graph.input if _decoded(item.name) not in tensors)
    outputs = tuple(_value(item, names) for item in graph.output)
    shapes: dict[str, Shape] = {name: item.shape for name, item in tensors.items()}
    shapes |= {
        _decoded(item.name): _shape(item) for item in graph.value_info if item.type.tensor_type.HasField("shape")
    }
    shapes |= {item.name: item.shape for item in (*inputs, *outputs) if item.shape}
    return OnnxGraph(
        nodes=tuple(_node(item) for item in graph.node),
        inputs=inputs,
        outputs=outputs,
        tensors=tensors,
        ints={name: found for name, item in constants.items() if (found := _ints(item)) is not None},
        shapes=shapes,
        labels=_labels({_decoded(item.key): _decoded(item.value) for item in model.metadata_props}),
        opset=", ".join(map(_opset, model.opset_import[:20])),
        is_partial="it has model-local functions" if lean.has_functions else "",
    )


def _opset(item: Any) -> str:
    return f"{_decoded(item.domain) or 'ai.onnx'} {item.version}"


def _constants(graph: Any) -> Iterator[tuple[str, Any]]:
    """The stored tensors by name: initializers, and the values of Constant nodes."""
    for item in graph.initializer:
        yield _decoded(item.name), item
    for node in graph.node:
        if node.op_type == "Constant" and node.output:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield _decoded(node.output[0]), attribute.t


def _node(item: Any) -> OnnxNode:
    attributes = {_decoded(attribute.name): _attribute(attribute) for attribute in item.attribute}
    inputs, outputs = tuple(map(_decoded, item.input)), tuple(map(_decoded, item.output))
    return OnnxNode(_decoded(item.op_type), _decoded(item.domain), inputs, outputs, attributes)


def _decoded(name: str | bytes) -> str:
    """A name, which protobuf gives as bytes where it is not UTF-8."""
    return name if isinstance(name, str) else name.decode("utf-8", "backslashreplace")


def _attribute(item: Any) -> Any:
    """Numbers and texts; None for the rest."""
    if item.HasField("i"):
        return item.i
    if item.ints:
        return tuple(item.ints)
    if item.HasField("s"):
        return item.s.decode("utf-8", "replace")
    return item.f if item.HasField("f") else None


def _value(item: Any, names: Mapping[int, str]) -> ExportValue:
    kind = item.type.tensor_type.elem_type
    return ExportValue(_decoded(item.name), names.get(kind, str(kind)), _shape(item))


def _shape(item: Any) -> Shape:
    return tuple(
        axis.dim_value if axis.HasField("dim_value") else _axis_name(_decoded(axis.dim_param))
        for axis in item.type.tensor_type.shape.dim
    )


def _axis_name(name: str) -> str:
    """The name of an axis that varies; the inference numbers those that it has no name for."""
    return "?" if not name or name.startswith("unk__") else name


def _ints(item: Any) -> tuple[int, ...] | None:
    """The numbers of a small integer tensor; None for any other."""
    width = _WIDTHS.get(item.data_type)
    if width is None:
        return None
    raw = item.raw_data
    stored = tuple(item.int64_data if item.data_type == _INT64 else item.int32_data)
    if raw and len(raw) % width == 0:
        stored = tuple(int.from_bytes(raw[at : at + width], "little", signed=True) for at in range(0, len(raw), width))
    return stored if len(stored) == prod(item.dims) else None


def _dtype_names() -> dict[int, str]:
    """PyTorch's names of ONNX's number formats."""
    import onnx

    renamed = {"FLOAT": "float32", "DOUBLE": "float64"}
    return {number: renamed.get(name, name.lower()) for name, number in onnx.TensorProto.DataType.items()}


def _labels(metadata: Mapping[str, str]) -> tuple[str, ...]:
    """The class names in the metadata: a JSON list, or an object from ids to names."""
    for key in _LABEL_KEYS:
        text = metadata.get(key, "")
        if not text:
            continue
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            continue
        names = _in_order(found) if isinstance(found, dict) else found
        if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
            return tuple(name[:_LONGEST_LABEL] for name in names[:_MOST_LABELS])
    return ()


def _in_order(found: Mapping[str, Any]) -> list[Any]:
    """The names by id; nothing where an id is not a number."""
    if not all(key.isascii() and key.isdigit() and len(key) < 10 for key in found):
        return []
    return [found[key] for key in sorted(found, key=int)]


def _first_line(err: Exception) -> str:
    return next(iter(str(err).splitlines()), type(err).__name__)[:200]


def names_of(values: Iterable[ExportValue]) -> tuple[str, ...]:
    """The names of inputs or outputs."""
    return tuple(item.name for item in values)
