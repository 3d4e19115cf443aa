"""Files that are read and not traced: the head of an export, what it carries of its source, the tensors by type."""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from math import prod

from headscope.core.facts.heads.head import PoolingKind, Shape
from headscope.core.facts.stored.checkpoint import Gap, TensorHeader
from headscope.errors import Unsupported

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
    not_determined: tuple[Gap, ...] = ()
    """What could not be determined, and why."""
    labels_from: str = ""
    """The file beside that names the labels; empty for the file of the head itself."""


@dataclass(frozen=True, slots=True, order=True)
class DtypeCount:
    """How many tensors are stored in one number format."""

    dtype: str
    """The number format."""
    tensors: int
    """How many tensors are stored in it."""


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """One setting that the file itself carries, as text."""

    name: str
    """The setting's name in the file."""
    value: str
    """Its value, as text."""


@dataclass(frozen=True, slots=True)
class WeightInventory:
    """The weight side of a checkpoint whose head was not inspected.

    Shapes are in PyTorch's order.
    """

    reference: str
    format: str
    """The format of the files: `safetensors`, `torch`, `gguf` or `onnx`."""
    architecture: str
    """The architecture that the files or the configuration name, or that they name none."""
    files: tuple[str, ...]
    """The weight files."""
    tensors: int
    """How many tensors they hold."""
    elements: int
    """How many numbers those hold, not bytes."""
    bytes_read: int
    """Bytes that were read of them."""
    dtypes: tuple[DtypeCount, ...]
    """How many tensors are stored in each number format."""
    outside_blocks: tuple[TensorHeader, ...]
    """Tensors that belong to no repeated block: embeddings, last norms, heads."""
    settings: tuple[Setting, ...] = ()
    """Settings in the file itself that speak of pooling and classes."""
    head: ExportHead | None = None
    """The head of an exported model (GGUF, ONNX); null where the files say nothing about it."""


class Inventoried(Unsupported):
    """A place that can't be examined as a checkpoint; `contents` is what its weight files hold."""

    def __init__(self, message: str, hint: str, contents: WeightInventory) -> None:
        super().__init__(message, hint)
        self.contents = contents


def contents_of(
    reference: str,
    architecture: str,
    tensors: tuple[TensorHeader, ...],
    *,
    format_name: str,
    bytes_read: int,
    settings: tuple[Setting, ...] = (),
    head: ExportHead | None = None,
) -> WeightInventory:
    """Adds up tensors to the contents of a checkpoint."""
    counts = Counter(tensor.dtype for tensor in tensors)
    blocks = Counter(map(_block_of, tensors))
    return WeightInventory(
        reference=reference,
        format=format_name,
        architecture=architecture,
        files=tuple(sorted({tensor.file for tensor in tensors if tensor.file})),
        tensors=len(tensors),
        elements=sum(prod(tensor.shape) for tensor in tensors),
        bytes_read=bytes_read,
        dtypes=tuple(DtypeCount(name, counts[name]) for name in sorted(counts)),
        outside_blocks=tuple(sorted(tensor for tensor in tensors if blocks[_block_of(tensor)] == 1)),
        settings=settings,
        head=head,
    )


def _block_of(tensor: TensorHeader) -> tuple[str, tuple[int, ...]]:
    """Gives the key with every number left open, and the shape: tensors of repeated blocks have both in common."""
    parts = tensor.key.split(".")
    return ".".join("#" if part.isascii() and part.isdigit() else part for part in parts), tensor.shape


class Fate(StrEnum):
    """What became of a tensor or of the labels.

    `carried`: there, in the same shape and order. `transformed`: there, but stored in another way (transposed,
    quantized). `changed`: other labels, or another order. `lost`: not there. `unknown`: could not be determined.
    """

    CARRIED = "carried"
    TRANSFORMED = "transformed"
    CHANGED = "changed"
    LOST = "lost"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, order=True)
class TensorFate:
    """One tensor of the source's head in the export: under which name and shape, and how it was recognized."""

    parameter: str
    """The tensor's name in the source."""
    shape: tuple[int, ...]
    """Its shape in the source."""
    fate: Fate
    """`carried`, `transformed` (transposed or quantized) or `lost`; `unknown` where it was not determined."""
    name: str = ""
    """Its name in the export; empty where it was lost."""
    stored_shape: tuple[int, ...] = ()
    """Its shape in the export."""
    stored_dtype: str = ""
    """Its number format in the export."""
    how: str = ""
    """How it was recognized, and how it was transformed."""


@dataclass(frozen=True, slots=True, order=True)
class AspectFate:
    """One thing beside the tensors, with its value in the source and in the export: labels, pooling, operations."""

    what: str
    """`classes`, `labels`, `pooling` or `operations`."""
    fate: Fate
    """`carried`, `changed` or `lost`; `unknown` where it was not determined."""
    source: str
    """Its value in the source, as text."""
    export: str
    """Its value in the export, as text."""
    note: str = ""
    """A remark; may be empty."""


@dataclass(frozen=True, slots=True)
class ExportComparison:
    """An export beside the checkpoint that it was made from, which is the first of the reports.

    Names and shapes are compared, not numbers.
    """

    reference: str
    """The export, as typed."""
    contents: WeightInventory
    """What the export holds, and the head that was read from it."""
    tensors: tuple[TensorFate, ...]
    """Each live tensor of the source's head, and what became of it."""
    aspects: tuple[AspectFate, ...]
    """Classes, labels, pooling and operations, and what became of them."""
    not_determined: tuple[Gap, ...] = ()
    """What could not be compared, and why."""

    @property
    def is_determined(self) -> bool:
        """True if everything could be compared."""
        return not self.not_determined and Fate.UNKNOWN not in self._all_fates

    @property
    def differs(self) -> bool:
        """True if anything of the head was lost or changed."""
        return not self._all_fates.isdisjoint({Fate.LOST, Fate.CHANGED})

    @property
    def _all_fates(self) -> frozenset[Fate]:
        return frozenset(item.fate for item in self.tensors) | frozenset(item.fate for item in self.aspects)
