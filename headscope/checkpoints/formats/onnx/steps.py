"""The names of the operations in an ONNX head, and how its steps are stored."""

from __future__ import annotations

from collections.abc import Iterable

from headscope.checkpoints.formats.onnx.graph import OnnxNode
from headscope.checkpoints.formats.onnx.walk import Meeting, OnnxWeight, Walk
from headscope.facts import Shape
from headscope.facts.exports.export import ExportStep, Storage

NAMES = {
    "Gemm": "linear", "MatMul": "linear", "FusedMatMul": "linear", "FusedGemm": "linear", "Tanh": "tanh",
    "Relu": "relu",
    "Gelu": "gelu", "FastGelu": "gelu", "BiasGelu": "gelu", "QuickGelu": "quick_gelu", "Sigmoid": "sigmoid",
    "Softmax": "softmax", "LogSoftmax": "log_softmax", "LeakyRelu": "leaky_relu", "Elu": "elu", "Selu": "selu",
    "HardSwish": "hardswish", "Softplus": "softplus", "LayerNormalization": "layer_norm",
    "RMSNormalization": "rms_norm", "BatchNormalization": "batch_norm", "Conv": "conv", "Mul": "mul", "Add": "add",
    "Div": "div", "Sub": "sub",
}  # fmt: skip
"""PyTorch's names; other operations keep theirs, in small letters."""
ELEMENTWISE = frozenset({
    "Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Reciprocal", "Erf", "Tanh", "Sigmoid", "Exp", "Log", "Softplus", "Neg",
    "Cast", "Identity", "ReduceMean", "Abs", "Clip", "MatMulInteger", "DynamicQuantizeLinear",
})  # fmt: skip
QUANTIZED = (Storage.QUANTIZED, Storage.TRANSPOSED)
"""How MatMulInteger takes a matrix: as integers, inputs by outputs."""


def stored_step(name: str, tensors: tuple[str, ...], storage: tuple[Storage, ...], shape: Shape) -> ExportStep:
    """A step with the words for how its matrix is stored."""
    return ExportStep(name, tensors, ", ".join(storage), shape, storage)


def storage_of(node: OnnxNode, weights: Iterable[OnnxWeight]) -> tuple[Storage, ...]:
    """How the matrix of a linear layer is stored: PyTorch stores outputs by inputs, MatMul takes the other way."""
    matrices = [item for item in weights if len(item.tensor.shape) > 1]
    by_outputs = bool(node.attributes.get("transB", 0))
    found = {
        Storage.QUANTIZED: any(item.is_dequantized for item in matrices),
        Storage.TRANSPOSED: any(item.is_transposed == by_outputs for item in matrices),
    }
    return tuple(storage for storage, is_so in found.items() if is_so)


def composite_of(meeting: Meeting, walk: Walk) -> str:
    """The function that single steps make up, by the operations that it cannot do without."""
    names = {node.operation for node in meeting.nodes}
    if "ReduceMean" in names:
        is_last = all(_reduces_last_axis(node, walk) for node in meeting.nodes if node.operation == "ReduceMean")
        if not is_last or not names & {"Sqrt", "Pow", "Reciprocal"}:
            return ""
        return "layer_norm" if "Sub" in names else "rms_norm"
    for sign, name in (("MatMulInteger", "linear"), ("Erf", "gelu"), ("Sigmoid", "silu"), ("Softplus", "mish")):
        if sign in names:
            return name
    return "gelu" if "Tanh" in names and names & {"Pow", "Mul"} else ""


def _reduces_last_axis(node: OnnxNode, walk: Walk) -> bool:
    axes = node.attributes.get("axes")
    if axes is None and len(node.inputs) > 1:
        axes = walk.ints(node.inputs[1])
    shape = walk.shape(node.inputs[0]) if node.inputs else None
    return axes in ((-1,), (len(shape) - 1,) if shape else (-1,))
