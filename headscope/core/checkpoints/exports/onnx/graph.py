"""The graph of an ONNX file as plain values: nodes, shapes, stored tensors and labels, read with the onnx package."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from math import prod
from typing import Any

from headscope.core.checkpoints.exports.onnx.lean import LeanModel, lean_model
from headscope.core.checkpoints.formats.bytes import ByteSource
from headscope.core.facts import Shape, TensorHeader
from headscope.core.facts.export import ExportValue
from headscope.errors import Malformed, Unsupported

_LARGEST_INFERENCE = 4_000_000
_MOST_LABELS = 1000
_LONGEST_LABEL = 256
_LABEL_KEYS = ("id2label", "labels", "label_names", "class_names", "classes", "names")
_INT32, _INT64 = 6, 7
_WIDTHS = {_INT32: 4, _INT64: 8}


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """An operation of a graph; `attributes` are its numbers and texts."""

    operation: str
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
    """Raises Unsupported if the onnx package is not installed."""
    if find_spec("onnx") is None:
        raise Unsupported(
            f"{name} is an ONNX file, and headscope needs the onnx package to read it",
            "run `pip install 'headscope[onnx]'`, or inspect the checkpoint it was exported from",
        )


def read_onnx_graph(source: ByteSource) -> OnnxGraph:
    """Reads the graph of an ONNX file without its weights. Raises Malformed, or Unsupported without the package."""
    require_onnx(source.name)
    lean = lean_model(source)
    # Imported late: the package is optional, and only its parser of the small copy is needed.
    import onnx
    from google.protobuf.message import DecodeError

    model = onnx.ModelProto()
    try:
        model.ParseFromString(lean.data)
        if not model.HasField("graph"):
            raise Malformed(f"{source.name} is not a valid ONNX file: it holds no graph", "export it again")
        return _build_graph(_with_shapes(model, lean), lean, source.name)
    except (DecodeError, UnicodeDecodeError) as err:
        line = next(iter(str(err).splitlines()), type(err).__name__)[:200]
        raise Malformed(f"{source.name} is not a valid ONNX file: {line}", "export it again") from err


def _with_shapes(model: Any, lean: LeanModel) -> Any:
    """Infers the shapes of the model's values, if the file lacks them and they are cheap to infer."""
    if len(model.graph.value_info) >= lean.nodes // 2 or len(lean.data) > _LARGEST_INFERENCE:
        return model
    from onnx import shape_inference

    try:
        return shape_inference.infer_shapes(model)
    except Exception:  # whatever the inference of another project raises: shapes stay unknown, and the walk reports it
        return model


def _build_graph(model: Any, lean: LeanModel, file: str) -> OnnxGraph:
    import onnx

    graph = model.graph
    # PyTorch's names of ONNX's number formats.
    renamed = {"FLOAT": "float32", "DOUBLE": "float64"}
    names = {number: renamed.get(name, name.lower()) for name, number in onnx.TensorProto.DataType.items()}
    constants = dict(_stored_constants(graph))
    tensors = {
        name: TensorHeader(name, names.get(item.data_type, str(item.data_type)), tuple(item.dims), file)
        for name, item in constants.items()
    }
    inputs = tuple(_read_value_info(item, names) for item in graph.input if _decode_name(item.name) not in tensors)
    outputs = tuple(_read_value_info(item, names) for item in graph.output)
    shapes: dict[str, Shape] = {name: item.shape for name, item in tensors.items()}
    shapes |= {
        _decode_name(item.name): _read_shape(item)
        for item in graph.value_info
        if item.type.tensor_type.HasField("shape")
    }
    # What the exporter declared wins over what was inferred.
    shapes |= {item.name: item.shape for item in (*inputs, *outputs) if item.shape}
    return OnnxGraph(
        nodes=tuple(
            OnnxNode(
                _decode_name(item.op_type),
                tuple(map(_decode_name, item.input)),
                tuple(map(_decode_name, item.output)),
                {_decode_name(attribute.name): _read_attribute(attribute) for attribute in item.attribute},
            )
            for item in graph.node
        ),
        inputs=inputs,
        outputs=outputs,
        tensors=tensors,
        ints={name: found for name, item in constants.items() if (found := _read_integers(item)) is not None},
        shapes=shapes,
        labels=_labels_in_metadata({_decode_name(item.key): _decode_name(item.value) for item in model.metadata_props}),
        opset=", ".join(f"{_decode_name(item.domain) or 'ai.onnx'} {item.version}" for item in model.opset_import[:20]),
        is_partial="it has model-local functions" if lean.has_functions else "",
    )


def _stored_constants(graph: Any) -> Iterator[tuple[str, Any]]:
    """Gives the stored tensors by name: initializers, and the values of Constant nodes."""
    for item in graph.initializer:
        yield _decode_name(item.name), item
    for node in graph.node:
        if node.op_type == "Constant" and node.output:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield _decode_name(node.output[0]), attribute.t


def _decode_name(name: str | bytes) -> str:
    """Decodes a name, which protobuf gives as bytes if it is not UTF-8."""
    return name if isinstance(name, str) else name.decode("utf-8", "backslashreplace")


def _read_attribute(item: Any) -> Any:
    """Reads an attribute's numbers or text; None for the rest."""
    if item.HasField("i"):
        return item.i
    if item.ints:
        return tuple(item.ints)
    if item.HasField("s"):
        return item.s.decode("utf-8", "replace")
    return item.f if item.HasField("f") else None


def _read_value_info(item: Any, names: Mapping[int, str]) -> ExportValue:
    kind = item.type.tensor_type.elem_type
    return ExportValue(_decode_name(item.name), names.get(kind, str(kind)), _read_shape(item))


def _read_shape(item: Any) -> Shape:
    shape = list[int | str]()
    for axis in item.type.tensor_type.shape.dim:
        name = _decode_name(axis.dim_param)
        # An axis that varies has a name, but the inference only numbers some.
        varying = "?" if not name or name.startswith("unk__") else name
        shape.append(axis.dim_value if axis.HasField("dim_value") else varying)
    return tuple(shape)


def _read_integers(item: Any) -> tuple[int, ...] | None:
    """Reads the numbers of a small integer tensor; None for any other."""
    width = _WIDTHS.get(item.data_type)
    if width is None:
        return None
    raw = item.raw_data
    # A tensor has its values either here or in raw_data.
    stored = tuple(item.int64_data if item.data_type == _INT64 else item.int32_data)
    if raw and len(raw) % width == 0:
        stored = tuple(int.from_bytes(raw[at : at + width], "little", signed=True) for at in range(0, len(raw), width))
    return stored if len(stored) == prod(item.dims) else None


def _labels_in_metadata(metadata: Mapping[str, str]) -> tuple[str, ...]:
    """Reads the class names from the metadata: a JSON list, or an object from IDs to names."""
    for key in _LABEL_KEYS:
        text = metadata.get(key, "")
        if not text:
            continue
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            are_ids = all(key.isascii() and key.isdigit() and len(key) < 10 for key in found)
            found = [found[key] for key in sorted(found, key=int)] if are_ids else []
        if isinstance(found, list) and found and all(isinstance(name, str) for name in found):
            return tuple(name[:_LONGEST_LABEL] for name in found[:_MOST_LABELS])
    return ()
