"""What the weight files of a checkpoint hold, where no class can be built that says what it is for."""

from collections import Counter
from dataclasses import dataclass
from math import prod

from headscope.facts.exports.export import ExportHead
from headscope.facts.stored.checkpoint import TensorHeader

STABILITY = "experimental"
"""What these classes say in JSON may change in a minor version."""


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
    """The contents that tensors add up to."""
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
    """The key with every number left open, and the shape: what the tensors of repeated blocks have in common."""
    parts = tensor.key.split(".")
    return ".".join("#" if part.isascii() and part.isdigit() else part for part in parts), tensor.shape
