"""The way back through an ONNX graph: what a value depends on, which tensor is its weight, where branches meet."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from headscope.core.checkpoints.exports.onnx.graph import OnnxGraph, OnnxNode
from headscope.core.facts import Shape, TensorHeader
from headscope.core.facts.export import Storage

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


def storage_of(node: OnnxNode, weights: Iterable[OnnxWeight]) -> tuple[Storage, ...]:
    """Tells how a linear layer's matrix is stored: PyTorch stores outputs by inputs, MatMul takes the other way."""
    matrices = [item for item in weights if len(item.tensor.shape) > 1]
    by_outputs = bool(node.attributes.get("transB", 0))
    found = {
        Storage.QUANTIZED: any(item.is_dequantized for item in matrices),
        Storage.TRANSPOSED: any(item.is_transposed == by_outputs for item in matrices),
    }
    return tuple(storage for storage, is_so in found.items() if is_so)


def composite_of(meeting: Meeting, walk: Walk) -> str:
    """Names the function that single steps make up, by the operations that it cannot do without; "" for none."""
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


_SHAPE_ONLY = frozenset({"Shape", "Size"})
_REARRANGING = frozenset({"Transpose", "Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "DequantizeLinear"})
_LONGEST_BRANCH = 64
_LONGEST_CHAIN = 8
_MOST_INPUTS = 62
"""Inputs that are told apart; those beyond count as one."""


@dataclass(frozen=True, slots=True)
class OnnxWeight:
    """A stored tensor that a node uses, and what the graph does to it first."""

    tensor: TensorHeader
    is_transposed: bool = False
    is_dequantized: bool = False


@dataclass(frozen=True, slots=True)
class Meeting:
    """The value from which all branches of a join begin, and the nodes between."""

    value: str
    nodes: tuple[OnnxNode, ...]


class Walk:
    """A graph with its values' origins. A node whose inputs come later in the file counts as depending on nothing."""

    def __init__(self, graph: OnnxGraph) -> None:
        self.graph = graph
        self._makers: dict[str, int] = {}
        self._inputs = tuple(item.name for item in graph.inputs)
        # A bit for each input: joining sets of names at every node would take too long in large graphs.
        self._reads = {name: 1 << min(at, _MOST_INPUTS) for at, name in enumerate(self._inputs)}
        self._features: set[str] = set()
        self._ints = dict(graph.ints)
        for at, node in enumerate(graph.nodes):
            reads = 0
            for name in node.inputs if node.operation not in _SHAPE_ONLY else ():
                reads |= self._reads.get(name, 0)
            weighs = bool(reads) and any(self._is_matrix(name) for name in node.inputs)
            is_feature = weighs or any(name in self._features for name in node.inputs)
            for name in node.outputs:
                self._makers.setdefault(name, at)
                self._reads.setdefault(name, reads)
                if is_feature and reads:
                    self._features.add(name)
            self._note_ints(node)

    def maker(self, value: str) -> OnnxNode | None:
        """Gives the node that makes a value; None for an input or a stored tensor."""
        at = self._makers.get(value)
        return None if at is None else self.graph.nodes[at]

    def reads(self, value: str) -> tuple[str, ...]:
        """Lists the inputs of the graph whose numbers a value depends on."""
        mask = self._reads.get(value, 0)
        return tuple(sorted(name for at, name in enumerate(self._inputs[:_MOST_INPUTS]) if mask >> at & 1))

    def features(self, node: OnnxNode) -> tuple[str, ...]:
        """Lists a node's inputs that carry what the model computed: they depend on an input through a weight matrix."""
        return tuple(dict.fromkeys(name for name in node.inputs if name in self._features))

    def is_feature(self, value: str) -> bool:
        """True if a value carries what the model computed."""
        return value in self._features

    def ints(self, value: str) -> tuple[int, ...] | None:
        """Gives the numbers of a small integer constant, even behind a node that only rearranges it."""
        found: str | None = value
        for _ in range(_LONGEST_CHAIN):
            if found is None or found in self._ints:
                break
            node = self.maker(found)
            found = node.inputs[0] if node is not None and node.operation in _REARRANGING and node.inputs else None
        return None if found is None else self._ints.get(found)

    def shape(self, value: str) -> Shape | None:
        """Gives the shape of a value; None if it is not known."""
        return self.graph.shapes.get(value)

    def weight(self, value: str) -> OnnxWeight | None:
        """Finds the stored tensor behind a value, if the graph only rearranges or dequantizes it."""
        transposed = dequantized = False
        for _ in range(_LONGEST_CHAIN):
            tensor = self.graph.tensors.get(value)
            if tensor is not None:
                return OnnxWeight(tensor, transposed, dequantized)
            node = self.maker(value)
            if node is None or node.operation not in _REARRANGING or not node.inputs:
                return None
            transposed ^= node.operation == "Transpose"
            dequantized |= node.operation == "DequantizeLinear"
            value = node.inputs[0]
        return None

    def weights(self, nodes: Iterable[OnnxNode]) -> Iterator[OnnxWeight]:
        """Gives the stored vectors and matrices that nodes use, without single numbers."""
        for node in nodes:
            for name in node.inputs:
                found = None if name in self._features else self.weight(name)
                if found is not None and found.tensor.shape not in ((), (1,)) and name not in self._ints:
                    yield found

    def meeting(self, node: OnnxNode, allowed: frozenset[str]) -> Meeting | None:
        """Finds where the branches that a node joins begin, if only `allowed` operations lie between; None if not."""
        # By the place of its maker, the last first: a value is met only after everything that is made from it.
        heap = sorted((-self._makers[name], name) for name in self.features(node) if name in self._makers)
        if len(heap) != len(self.features(node)):
            return None
        seen = {name for _, name in heap}
        between = [node]
        while len(seen) > 1 and len(between) < _LONGEST_BRANCH:
            at = heap[0][0]
            while heap and heap[0][0] == at:
                seen.discard(heapq.heappop(heap)[1])
            maker = self.graph.nodes[-at]
            if maker.operation not in allowed:
                return None
            between.append(maker)
            for name in self.features(maker):
                if name not in seen and name in self._makers:
                    seen.add(name)
                    heapq.heappush(heap, (-self._makers[name], name))
        return Meeting(next(iter(seen)), tuple(between)) if len(seen) == 1 else None

    def _is_matrix(self, name: str) -> bool:
        found = self.weight(name) if name in self.graph.tensors or name in self._makers else None
        if found is None or len(found.tensor.shape) < 2:
            return False
        dtype = found.tensor.dtype
        return dtype.startswith(("float", "bfloat")) or found.is_dequantized or dtype in {"int8", "uint8"}

    def _note_ints(self, node: OnnxNode) -> None:
        """Keeps the numbers that a Constant node holds as attributes."""
        if node.operation != "Constant" or not node.outputs:
            return
        for name in ("value_int", "value_ints"):
            found = node.attributes.get(name)
            if isinstance(found, int):
                self._ints[node.outputs[0]] = (found,)
            elif isinstance(found, tuple):
                self._ints[node.outputs[0]] = found


_PLACING = frozenset({"Concat", "Unsqueeze", "Add", "Cast", "Reshape", "Expand", "Squeeze"})
_AROUND = frozenset({"Cast", "Identity", "Unsqueeze", "Expand"})


def last_match(walk: Walk, indices: str) -> tuple[str, int] | None:
    """Finds the input and the number if indices are the last position of each row that differs from the number.

    Transformers writes it as `argmax(arange * (input_ids != pad))`; None for any other computation.
    """
    picked = _skip_operations(walk, indices, _PLACING)
    if picked is None or picked.operation != "ArgMax" or picked.attributes.get("select_last_index", 0) != 0:
        return None
    product = _skip_operations(walk, picked.inputs[0], _AROUND)
    if product is None or product.operation != "Mul":
        return None
    sides = [_skip_operations(walk, name, _AROUND) for name in product.inputs]
    names = [side.operation if side is not None else "" for side in sides]
    if sorted(names) != ["Not", "Range"]:
        return None
    negated = next(side for side in sides if side is not None and side.operation == "Not")
    equal = _skip_operations(walk, negated.inputs[0], _AROUND)
    if equal is None or equal.operation != "Equal" or len(equal.inputs) < 2:
        return None
    given = [name for name in equal.inputs if walk.ints(name) is None]
    numbers = [found for name in equal.inputs if (found := walk.ints(name)) is not None]
    if len(given) != 1 or len(numbers) != 1 or len(numbers[0]) != 1 or (given[0],) != walk.reads(given[0]):
        return None
    return given[0], numbers[0][0]


def _skip_operations(walk: Walk, value: str, passed: frozenset[str]) -> OnnxNode | None:
    """Finds the first node behind a value that is not one of those passed; only one way may depend on the inputs."""
    for _ in range(_LONGEST_BRANCH):
        node = walk.maker(value)
        if node is None or node.operation not in passed:
            return node
        dynamic = [name for name in node.inputs if walk.reads(name)]
        if len(dynamic) != 1:
            return None
        value = dynamic[0]
    return None
