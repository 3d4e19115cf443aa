"""The head of an export (GGUF, ONNX) or of another library's model: read from the files, and not traced."""

from dataclasses import dataclass
from enum import StrEnum

from headscope.facts.checkpoint import TensorHeader, Unavailable
from headscope.facts.head import PoolingKind, Shape


class HeadBasis(StrEnum):
    """What a head that was not traced was read from.

    `names`: the names of tensors and settings. `graph`: the nodes of a graph. `config`: the settings that another
    library keeps of its model, and the headers of the tensors.
    """

    NAMES = "names"
    GRAPH = "graph"
    CONFIG = "config"


@dataclass(frozen=True, slots=True, order=True)
class ExportValue:
    """An input or an output of an exported graph; axes that vary carry names."""

    name: str
    dtype: str
    shape: Shape = ()


class Storage(StrEnum):
    """How an export stores the matrix of a step, if not as PyTorch does."""

    QUANTIZED = "quantized"
    TRANSPOSED = "transposed"


@dataclass(frozen=True, slots=True)
class ExportStep:
    """One operation of an exported head, by PyTorch's name, with the stored tensors that it uses.

    `detail` is for people; `storage` is how the matrix among the tensors is stored.
    """

    operation: str
    tensors: tuple[str, ...] = ()
    detail: str = ""
    output_shape: Shape = ()
    storage: tuple[Storage, ...] = ()


@dataclass(frozen=True, slots=True)
class ExportHead:
    """What turns the hidden states of an exported model, or of another library's, into scores.

    `pooling` is None where it could not be determined, and `pooling_rule` says it in words. `tensors` are the stored
    tensors of the head, in the order of `steps`, which end with the scores. `classes` is the number of scores, None
    where it is not known; `labels` is empty where no file names them, and `labels_from` is the file that names them, ""
    for the file of the head itself. `knowledge` says where the reading comes from.
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
    labels_from: str = ""
