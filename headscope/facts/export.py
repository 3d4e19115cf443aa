"""The head of an exported classifier (GGUF, ONNX): read from the file, and not traced."""

from dataclasses import dataclass
from enum import StrEnum

from headscope.facts.checkpoint import TensorHeader, Unavailable
from headscope.facts.head import PoolingKind, Shape


class HeadBasis(StrEnum):
    """What an exported head was read from: the names of tensors and settings, or the nodes of a graph."""

    NAMES = "names"
    GRAPH = "graph"


@dataclass(frozen=True, slots=True, order=True)
class ExportValue:
    """An input or an output of an exported graph; axes that vary carry names."""

    name: str
    dtype: str
    shape: Shape = ()


@dataclass(frozen=True, slots=True)
class ExportStep:
    """One operation of an exported head, by PyTorch's name, with the stored tensors that it uses."""

    operation: str
    tensors: tuple[str, ...] = ()
    detail: str = ""
    output_shape: Shape = ()


@dataclass(frozen=True, slots=True)
class ExportHead:
    """What turns the hidden states of an exported model into scores.

    `pooling` is None where it could not be determined, and `pooling_rule` says it in words. `tensors` are the stored
    tensors of the head, in the order of `steps`, which end with the scores. `classes` is the number of scores, None
    where it is not known; `labels` is empty where the file names none. `knowledge` says where the reading comes from.
    """

    basis: HeadBasis
    pooling: PoolingKind | None
    pooling_rule: str
    steps: tuple[ExportStep, ...]
    tensors: tuple[TensorHeader, ...]
    classes: int | None
    labels: tuple[str, ...]
    knowledge: str
    inputs: tuple[ExportValue, ...] = ()
    outputs: tuple[ExportValue, ...] = ()
    notes: tuple[str, ...] = ()
    not_determined: tuple[Unavailable, ...] = ()
