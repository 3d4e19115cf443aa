"""What a checkpoint would give after its repair."""

from dataclasses import dataclass

from headscope.facts.head import HeadParameter
from headscope.facts.weights import WeightDiff


@dataclass(frozen=True, slots=True)
class Repaired:
    """What the checkpoint would give after the repair, read in memory; `from_pretrained` does not do this.

    `rules` are the rules whose repair was applied, `change` says what it was. `weights` is the loader's result for the
    repaired keys, `head` the parameters of the head with their status then.
    """

    rules: tuple[str, ...]
    change: str
    weights: WeightDiff
    head: tuple[HeadParameter, ...] = ()
