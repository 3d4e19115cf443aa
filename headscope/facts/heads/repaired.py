"""What a checkpoint would give after its repair."""

from dataclasses import dataclass

from headscope.facts.heads.head import HeadParameter
from headscope.facts.stored.weights import WeightDiff


@dataclass(frozen=True, slots=True)
class Repaired:
    """What the checkpoint would give after the repair, read in memory; `from_pretrained` does not do this."""

    rules: tuple[str, ...]
    """The rules whose repair was applied in memory."""
    change: str
    """What the repair changes."""
    weights: WeightDiff
    """What the loader does with the repaired checkpoint."""
    head: tuple[HeadParameter, ...] = ()
    """The parameters of the head with their status then; empty without a trace."""
