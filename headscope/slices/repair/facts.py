"""A repaired copy of a checkpoint: the states that were repaired, what was written, and the proof."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from headscope.core.facts.plain import Derived, to_dict
from headscope.core.facts.report import SCHEMA_VERSION
from headscope.core.facts.stored.states import CheckpointState

STABILITY = "experimental"
"""What these classes say in JSON may change in a minor version."""


class RepairVerdict(StrEnum):
    """`proven`: written, and every proof held; `incomplete`: so too, but the class has parameters without stored
    weights, or trained tensors are lost; `planned`: a dry run; `refused`: not written, a proof failed or the source
    contradicts itself; `not_determined`: not written, several models may be meant; `clean`: there is nothing to repair,
    and nothing was written."""

    PROVEN = "proven"
    INCOMPLETE = "incomplete"
    PLANNED = "planned"
    REFUSED = "refused"
    NOT_DETERMINED = "not_determined"
    CLEAN = "clean"


@dataclass(frozen=True, slots=True)
class RepairProof:
    """What separate processes found when they read the source and the result from disk; null: not looked at."""

    loads: bool | None = None
    """Whether Transformers' loader takes tensors of the result, none of another shape, and all that a report on the
    source promises; a configuration that was written has to take every tensor and leave no parameter without one. What
    a load lacks otherwise is in `new` and `unused`."""
    tensors_equal: bool | None = None
    """Whether every tensor is that of the source, byte by byte, under the change of names; null for merged adapters
    alone."""
    compared: int = 0
    """Tensors that were compared."""
    read_by_libraries: int = 0
    """Of these, how many PyTorch or safetensors read from the source too; the others only headscope reads without
    running code."""
    files_equal: bool | None = None
    """Whether the files that the repair takes over are equal byte by byte."""
    scores_equal: bool | None = None
    """Whether a merged model gives the scores of the model with its adapter; null where nothing is merged."""
    max_difference: float | None = None
    """The largest difference of these scores."""
    new: tuple[str, ...] = ()
    """Parameters of the class without stored weights: the source has none under their names either."""
    unused: tuple[str, ...] = ()
    """Tensors of the result that the class doesn't take."""
    lost: tuple[str, ...] = ()
    """Of the unused, trained tensors that no other class of the family takes: a layer of one's own, say."""
    reason: str = ""
    """What failed; empty if nothing did."""

    @property
    def holds(self) -> bool:
        """True if something was looked at and nothing failed."""
        parts = (self.loads, self.tensors_equal, self.files_equal, self.scores_equal)
        return not self.reason and False not in parts and any(part is not None for part in parts)


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What `repair` did to a checkpoint, or would do."""

    tool_version: str
    source: str
    """The checkpoint, as it was named."""
    output: str
    """The folder that was written, as it was named."""
    model_class: str
    """The class of Transformers that loads the result; empty before the proof where no configuration names it."""
    states: tuple[CheckpointState, ...]
    """The states that were repaired, in order."""
    given: tuple[str, ...]
    """Settings that the checkpoint doesn't hold and that were given for the repair."""
    assumed: tuple[str, ...]
    """Settings of a written configuration that no shape tells and nobody gave, with the class's defaults."""
    left_out: tuple[str, ...]
    """Files of the source whose content the repair wrote in another form, or that only its training needs."""
    proof: RepairProof
    """What was proven."""
    taken: tuple[str, ...] = ()
    """The names of the models that were taken where several may be meant."""
    not_taken: tuple[str, ...] = ()
    """What the repair leaves out of the weights: other models and tensors, by group with their number."""
    kept_weights: tuple[str, ...] = ()
    """Other weight files of the source, which the repair copies as they are and doesn't look into."""
    is_dry_run: bool = False
    """Whether nothing was to be written."""
    command: str = "repair"
    schema_version: str = SCHEMA_VERSION

    @Derived
    def verdict(self) -> RepairVerdict:
        """Whether the result was written and proven."""
        if not self.states:
            return RepairVerdict.CLEAN
        if any(state.is_ambiguous for state in self.states):
            return RepairVerdict.NOT_DETERMINED
        if self.is_dry_run and not self.proof.reason:
            return RepairVerdict.PLANNED
        if not self.proof.holds:
            return RepairVerdict.REFUSED
        is_whole = not (self.proof.new or self.proof.lost or (self.not_taken and not self.taken))
        return RepairVerdict.PROVEN if is_whole else RepairVerdict.INCOMPLETE

    def to_dict(self) -> dict[str, Any]:
        """Gives the report as plain JSON values."""
        return to_dict(self)
