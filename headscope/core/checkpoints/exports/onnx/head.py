"""An ONNX file as a checkpoint: the head in its graph, from the scores back to the encoder, and its labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from headscope.core.checkpoints.exports.onnx.graph import OnnxGraph, OnnxNode, read_onnx_graph, require_onnx
from headscope.core.checkpoints.exports.onnx.pooling import SILENT, TOKENS, Pools
from headscope.core.checkpoints.exports.onnx.walk import (
    ELEMENTWISE,
    NAMES,
    QUANTIZED,
    OnnxWeight,
    Walk,
    composite_of,
    storage_of,
)
from headscope.core.checkpoints.formats.bytes import ByteSource
from headscope.core.checkpoints.formats.config_file import LARGEST_JSON, parse_object
from headscope.core.facts import Gap, GapTopic, PoolingKind, Shape, TensorHeader
from headscope.core.facts.counting import counted
from headscope.core.facts.export import (
    ExportHead,
    ExportStep,
    ExportValue,
    HeadBasis,
    Inventoried,
    Setting,
    Storage,
    WeightInventory,
    contents_of,
)
from headscope.errors import HeadscopeError

KNOWLEDGE = "the nodes of the graph, from the scores back to the last normalization; nothing was run"
_SCORES = "logits"
_LONGEST_HEAD = 400
_SHAPING = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Expand"})
_NORMS = frozenset({
    "LayerNormalization", "RMSNormalization", "SkipLayerNormalization", "SimplifiedLayerNormalization",
    "SkipSimplifiedLayerNormalization", "EmbedLayerNormalization",
})  # fmt: skip
_SUBGRAPHS = frozenset({"If", "Loop", "Scan"})
_ADDING = frozenset({"Add", "Mul"})


def head_of_graph(graph: OnnxGraph) -> ExportHead:
    """Finds the head that leads to the scores of a graph."""
    named = [item for item in graph.outputs if item.name == _SCORES]
    # A single output holds the scores whatever its name is.
    scores = named[0] if named else (graph.outputs[0] if len(graph.outputs) == 1 else None)
    if scores is not None:
        found = _HeadWalk(Walk(graph), scores).head()
    else:
        listed = ", ".join(item.name for item in graph.outputs[:10]) or "none"
        gap = Gap(GapTopic.HEAD, f"no output is named {_SCORES}, and there is more than one or none: {listed}")
        found = ExportHead(HeadBasis.GRAPH, None, "", (), (), None, (), KNOWLEDGE, not_determined=(gap,))
    if graph.is_partial:
        found = replace(found, not_determined=(*found.not_determined, Gap("graph", graph.is_partial)))
    return replace(found, labels=graph.labels, inputs=graph.inputs, outputs=graph.outputs)


@dataclass(frozen=True, slots=True)
class _MetStep:
    """A step as it was met on the way back; true `is_affine` says that it only scales or shifts by a stored vector."""

    step: ExportStep
    is_affine: bool = False


class _HeadWalk:
    """A walk back from the scores, with the steps that it has met."""

    def __init__(self, walk: Walk, scores: ExportValue) -> None:
        self._walk = walk
        self._pools = Pools(walk)
        self._scores = scores
        self._value = scores.name
        self._steps: list[_MetStep] = []
        self._tensors: dict[str, TensorHeader] = {}
        self._notes: list[str] = []
        self._pooling: PoolingKind | None = None
        self._rule = ""
        self._is_pooled = False
        self._divided_by = ""

    def head(self) -> ExportHead:
        """Describes the head, as far as the way back is clear."""
        reason = self._walk_back()
        per_token = not self._is_pooled and len(self._scores.shape) >= TOKENS
        # Scores with three axes that nothing pooled are one row for each token.
        kind = PoolingKind.NONE if per_token and not reason else self._pooling
        rule = "one row of scores for each position" if kind is PoolingKind.NONE else self._rule
        steps = tuple(item.step for item in reversed(self._steps))
        used = [name for step in steps for name in step.tensors]
        classes = self._scores.shape[-1] if self._scores.shape else None
        return ExportHead(
            basis=HeadBasis.GRAPH,
            pooling=kind,
            pooling_rule=rule,
            steps=steps,
            tensors=tuple(self._tensors[name] for name in dict.fromkeys(used)),
            classes=classes if isinstance(classes, int) else None,
            labels=(),
            knowledge=KNOWLEDGE,
            notes=tuple(self._notes),
            not_determined=tuple(self._find_gaps(reason, kind)),
        )

    def _find_gaps(self, reason: str, kind: PoolingKind | None) -> Iterable[Gap]:
        if reason:
            yield Gap(GapTopic.HEAD, reason)
        elif kind is None:
            yield Gap(GapTopic.POOLING, self._rule or "the token axis does not disappear on the way to the scores")

    def _walk_back(self) -> str:
        """Walks back to the hidden states; returns why it stopped before, or ""."""
        for _ in range(_LONGEST_HEAD):
            node = self._walk.maker(self._value)
            if node is None:
                return f"the way back from {self._scores.name} ends at {self._value}, which no node makes"
            # The hidden states are normalized, and still have their token axis.
            if node.operation in _NORMS and (self._is_pooled or self._has_tokens()):
                self._notes.append(f"the hidden states are {self._value}, the output of {node.operation}")
                return ""
            reason = self._pass_node(node)
            if reason or reason is None:
                return reason or ""
        return f"the way back is longer than {_LONGEST_HEAD} nodes"

    def _pass_node(self, node: OnnxNode) -> str | None:
        """Goes back by one node. Returns why the way is not clear, "" to go on, and None at the hidden states."""
        features = self._walk.features(node)
        sources = (found for name in node.inputs if (found := self._walk.maker(name)) is not None)
        hidden = next((found for found in sources if found.operation in _SUBGRAPHS), None)
        if hidden is not None:
            return f"an input of {node.operation} comes from {hidden.operation}, whose subgraph is not read"
        if not features:
            return f"{node.operation} joins no value that the model computed"
        if len(features) > 1:
            return self._pass_junction(node)
        self._pass_single_input(node, features[0])
        return ""

    def _has_tokens(self) -> bool:
        """True if the scores are for each position, and the value still has that axis."""
        shape = self._walk.shape(self._value)
        return len(self._scores.shape) >= TOKENS and shape is not None and len(shape) >= TOKENS

    def _pass_single_input(self, node: OnnxNode, data: str) -> None:
        """Goes back by a node with one input that the model computed."""
        pooling = None if self._is_pooled else self._pools.read(node, data, self._divided_by)
        if pooling is not None:
            self._pooling, self._rule = pooling
            self._is_pooled = True
        elif self._is_mask(node):
            if node.operation == "Div":
                self._divided_by = next(name for name in node.inputs if name != data)
        elif node.operation not in SILENT | _SHAPING:
            self._record_operation(node)
        self._value = data

    def _is_mask(self, node: OnnxNode) -> bool:
        """True if the other input of a product or quotient comes from an input of the graph and from no weight."""
        others = [name for name in node.inputs if not self._walk.is_feature(name)]
        return node.operation in {"Mul", "Div", "Where"} and any(self._walk.reads(name) for name in others)

    def _record_operation(self, node: OnnxNode) -> None:
        """Adds a step for a node."""
        used = list(self._walk.weights([node]))
        name = NAMES.get(node.operation, node.operation.lower())
        is_affine = node.operation in _ADDING and len(used) <= 1
        if name == "linear" and not any(len(item.tensor.shape) > 1 for item in used):
            # Without a matrix it is not a layer.
            name = node.operation.lower()
        if name == "linear":
            self._record_linear(used, storage_of(node, used))
        else:
            step = ExportStep(name, self._keep_tensors(used), output_shape=self._value_shape())
            self._steps.append(_MetStep(step, is_affine))

    def _record_linear(self, used: Iterable[OnnxWeight], storage: tuple[Storage, ...]) -> None:
        """Adds a linear layer; a bias that was met before joins it."""
        tensors, shape = self._keep_tensors(used), self._value_shape()
        if self._steps and self._steps[-1].is_affine and self._steps[-1].step.operation == "add":
            bias = self._steps.pop().step
            tensors, shape = (*tensors, *bias.tensors), bias.output_shape
        self._steps.append(_MetStep(ExportStep("linear", tensors, ", ".join(storage), shape, storage)))

    def _keep_tensors(self, weights: Iterable[OnnxWeight]) -> tuple[str, ...]:
        """Adds stored tensors to the head's, and returns their names."""
        kept = []
        for item in weights:
            self._tensors.setdefault(item.tensor.key, item.tensor)
            kept.append(item.tensor.key)
        return tuple(dict.fromkeys(kept))

    def _value_shape(self) -> Shape:
        return self._walk.shape(self._value) or ()

    def _pass_junction(self, node: OnnxNode) -> str | None:
        """Goes back by a node that joins several computed values: a function of one of them, or the end of the encoder.

        Returns why the way back is not clear, "" to go on, and None at the hidden states.
        """
        meeting = self._walk.meeting(node, ELEMENTWISE)
        composite = "" if meeting is None else composite_of(meeting, self._walk)
        before_pooling = self._is_pooled or self._has_tokens()
        if meeting is not None and composite.endswith("_norm"):
            affine = self._take_affine_steps()
            if before_pooling:
                value = node.outputs[0] if node.outputs else self._value
                self._notes.append(f"the hidden states are {value}, normalized in single steps")
                return None
            self._record_composite(composite, tuple(name for step in affine for name in step.tensors))
        elif meeting is not None and composite == "linear":
            matrices = [item for item in self._walk.weights(meeting.nodes) if len(item.tensor.shape) > 1]
            self._record_linear(matrices, QUANTIZED)
        elif meeting is not None and composite:
            self._record_composite(composite)
        elif before_pooling:
            self._notes.append(f"the hidden states are {self._value}, where {node.operation} joins two branches")
            return None
        else:
            return f"{node.operation} joins several values that the model computed, at {self._value}"
        self._value = meeting.value
        return ""

    def _record_composite(self, name: str, tensors: tuple[str, ...] = ()) -> None:
        self._steps.append(_MetStep(ExportStep(name, tensors, "in single steps", self._value_shape())))

    def _take_affine_steps(self) -> list[ExportStep]:
        """Takes off the steps met last that only scale or shift by a stored vector: those of a normalization."""
        found = []
        while self._steps and self._steps[-1].is_affine:
            found.append(self._steps.pop().step)
        return found


ONNX_SUFFIX = ".onnx"
_CONFIG = "config.json"
_COUNTING = ("int32", "int64", "bool")
"""Formats of indices and shapes, which are not weights."""


def refuse_onnx(names: Iterable[str], opened: Callable[[str], ByteSource]) -> None:
    """Raises Inventoried, with the head that the first graph shows, if there are ONNX files."""
    names = tuple(names)
    # The shortest name first: exporters add words to it for quantized and optimized copies.
    found = sorted((name for name in names if name.lower().endswith(ONNX_SUFFIX)), key=lambda name: (len(name), name))
    if not found:
        return
    require_onnx(found[0])
    contents = _with_labels_beside(read_onnx(opened(found[0])), set(names), opened)
    more = f"; {counted(len(found) - 1, 'other ONNX file')} not read" if len(found) > 1 else ""
    raise Inventoried(
        f"{found[0]} is an ONNX file: its head is read from the graph and not traced{more}",
        f"run `headscope compare SOURCE {found[0]}` with the checkpoint it was exported from",
        contents,
    )


def _with_labels_beside(
    contents: WeightInventory, names: set[str], opened: Callable[[str], ByteSource]
) -> WeightInventory:
    """Adds the labels of the config.json beside the file, if the graph names none."""
    head = contents.head
    if head is None or head.labels or _CONFIG not in names:
        return contents
    labels, reason = _labels_in(opened(_CONFIG))
    if labels and head.classes is not None and len(labels) != head.classes:
        reason = f"{_CONFIG} names {len(labels):,}, and the graph gives {head.classes:,} scores"
    if reason:
        gap = Gap("labels", reason)
        return replace(contents, head=replace(head, not_determined=(*head.not_determined, gap)))
    return replace(contents, head=replace(head, labels=labels, labels_from=_CONFIG)) if labels else contents


def _labels_in(source: ByteSource) -> tuple[tuple[str, ...], str]:
    """Reads the labels that a configuration gives the numbers 0, 1, 2 and so on, and why there are none."""
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
    """Reads the contents of an ONNX file.

    Raises Malformed if it is not one, Unsupported if the onnx package is not installed.
    """
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
