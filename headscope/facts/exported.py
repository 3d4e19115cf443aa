"""What an export carries of the head that it was made from."""

from dataclasses import dataclass
from enum import StrEnum

from headscope.facts.checkpoint import Unavailable
from headscope.facts.weight_inventory import WeightInventory


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
    shape: tuple[int, ...]
    fate: Fate
    name: str = ""
    stored_shape: tuple[int, ...] = ()
    stored_dtype: str = ""
    how: str = ""


@dataclass(frozen=True, slots=True, order=True)
class AspectFate:
    """One thing beside the tensors, with its value in the source and in the export: labels, pooling, operations."""

    what: str
    fate: Fate
    source: str
    export: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class ExportComparison:
    """An export beside the checkpoint that it was made from, which is the first of the reports.

    Names and shapes are compared, not numbers.
    """

    reference: str
    contents: WeightInventory
    tensors: tuple[TensorFate, ...]
    aspects: tuple[AspectFate, ...]
    not_determined: tuple[Unavailable, ...] = ()

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
