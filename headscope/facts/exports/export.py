"""The head of an export (GGUF, ONNX) or of another library's model: read from the files, and not traced."""

from dataclasses import dataclass
from enum import StrEnum

from headscope.facts.heads.head import PoolingKind, Shape
from headscope.facts.stored.checkpoint import TensorHeader, Unavailable

STABILITY = "experimental"
"""What these classes say in JSON may change in a minor version."""


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
    """Its name in the graph."""
    dtype: str
    """The number format."""
    shape: Shape = ()
    """The sizes of its axes; those that vary carry names."""


class Storage(StrEnum):
    """How an export stores the matrix of a step, if not as PyTorch does."""

    QUANTIZED = "quantized"
    TRANSPOSED = "transposed"


@dataclass(frozen=True, slots=True)
class ExportStep:
    """One operation of an exported head, by PyTorch's name, with the stored tensors that it uses."""

    operation: str
    """What runs, by PyTorch's name."""
    tensors: tuple[str, ...] = ()
    """The stored tensors that it uses."""
    detail: str = ""
    """A short reading of its arguments."""
    output_shape: Shape = ()
    """The shape of its result; empty where it is not known."""
    storage: tuple[Storage, ...] = ()
    """How its matrix is stored, if not as in PyTorch: `quantized`, `transposed`."""


@dataclass(frozen=True, slots=True)
class ExportHead:
    """What turns the hidden states of an exported model, or of another library's, into scores."""

    basis: HeadBasis
    """What it was read from: `names` of tensors and settings, the nodes of a `graph`, or the `config` of another
    library; never a trace."""
    pooling: PoolingKind | None
    """Which positions of the hidden states the classifier reads; null where that was not determined."""
    pooling_rule: str
    """The pooling in words."""
    steps: tuple[ExportStep, ...]
    """The operations from the pooling to the scores, in the order in which they run."""
    tensors: tuple[TensorHeader, ...]
    """The stored tensors of the head, in the order of the steps that use them."""
    classes: int | None
    """How many scores there are; null where that is not known."""
    labels: tuple[str, ...]
    """The class names; empty where no file names them."""
    knowledge: str
    """Where the reading comes from."""
    inputs: tuple[ExportValue, ...] = ()
    """What the graph takes; empty for a format without a graph."""
    outputs: tuple[ExportValue, ...] = ()
    """What the graph gives; empty for a format without a graph."""
    notes: tuple[str, ...] = ()
    """Sentences on what was observed."""
    not_determined: tuple[Unavailable, ...] = ()
    """What could not be determined, and why."""
    labels_from: str = ""
    """The file beside that names the labels; empty for the file of the head itself."""
