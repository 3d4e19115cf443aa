"""What the weight files of a checkpoint hold, where no class can be built that says what it is for."""

from collections import Counter
from dataclasses import dataclass
from math import prod

from headscope.facts.checkpoint import TensorHeader
from headscope.facts.export import ExportHead


@dataclass(frozen=True, slots=True, order=True)
class DtypeCount:
    """How many tensors are stored in one number format."""

    dtype: str
    tensors: int


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """One setting that the file itself carries, as text."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class WeightInventory:
    """The weight side of a checkpoint whose head was not inspected.

    `format` is that of the files (`safetensors`, `torch`, `gguf`), `elements` counts numbers, not bytes; shapes are in
    PyTorch's order. `outside_blocks` are the tensors that belong to no block which repeats in one shape (`layers.0.`,
    `layers.1.`): embeddings, last norms, heads. `settings` are those of the file that speak of pooling and classes.
    `head` is the head of an exported model, None where the files say nothing about it.
    """

    reference: str
    format: str
    architecture: str
    files: tuple[str, ...]
    tensors: int
    elements: int
    bytes_read: int
    dtypes: tuple[DtypeCount, ...]
    outside_blocks: tuple[TensorHeader, ...]
    settings: tuple[Setting, ...] = ()
    head: ExportHead | None = None


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
