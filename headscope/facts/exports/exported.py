"""What an export carries of the head that it was made from."""

from dataclasses import dataclass
from enum import StrEnum

from headscope.facts.exports.weight_inventory import WeightInventory
from headscope.facts.stored.checkpoint import Unavailable

STABILITY = "experimental"
"""What these classes say in JSON may change in a minor version."""


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
    not_determined: tuple[Unavailable, ...] = ()
    """What could not be compared, and why."""

    @property
    def is_determined(self) -> bool:
        """Whether everything could be compared."""
        return not self.not_determined and Fate.UNKNOWN not in self._fates

    @property
    def differs(self) -> bool:
        """Whether anything of the head was lost or changed."""
        return not self._fates.isdisjoint({Fate.LOST, Fate.CHANGED})

    @property
    def _fates(self) -> frozenset[Fate]:
        return frozenset(item.fate for item in self.tensors) | frozenset(item.fate for item in self.aspects)
