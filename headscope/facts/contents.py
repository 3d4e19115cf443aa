"""What the weight files of a checkpoint hold, where no class can be built that says what it is for."""

from dataclasses import dataclass

from headscope.facts.checkpoint import TensorHeader


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
class Contents:
    """The weight side of a checkpoint whose head was not inspected.

    `format` is that of the files (`safetensors`, `torch`, `gguf`), `elements` counts numbers, not bytes; shapes are in
    PyTorch's order. `outside_blocks` are the tensors that belong to no numbered block (`layers.3.`): embeddings,
    last norms, and every head. `settings` are those of the file that speak of pooling and classes.
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


def contents_of(
    reference: str,
    architecture: str,
    tensors: tuple[TensorHeader, ...],
    *,
    format_name: str,
    bytes_read: int,
    settings: tuple[Setting, ...] = (),
) -> Contents:
    """The contents that tensors add up to."""
    counts: dict[str, int] = {}
    for tensor in tensors:
        counts[tensor.dtype] = counts.get(tensor.dtype, 0) + 1
    return Contents(
        reference=reference,
        format=format_name,
        architecture=architecture,
        files=tuple(sorted({tensor.file for tensor in tensors if tensor.file})),
        tensors=len(tensors),
        elements=sum(_elements(tensor.shape) for tensor in tensors),
        bytes_read=bytes_read,
        dtypes=tuple(DtypeCount(name, counts[name]) for name in sorted(counts)),
        outside_blocks=tuple(tensor for tensor in tensors if not _is_in_block(tensor.key)),
        settings=settings,
    )


def _elements(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def _is_in_block(key: str) -> bool:
    return any(part.isascii() and part.isdigit() for part in key.split("."))
