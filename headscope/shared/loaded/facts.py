"""What a loaded model holds, held against the stored bytes of its checkpoint."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from headscope.core.facts.plain import to_dict
from headscope.core.facts.report import SCHEMA_VERSION, Finding
from headscope.core.facts.stored.checkpoint import Gap
from headscope.core.facts.stored.unplaced import Unplaced
from headscope.core.facts.trial import HeadTrial
from headscope.core.facts.verdict import Ignored, Verdict


class TensorStatus(StrEnum):
    """What a tensor of a loaded model is, compared with the stored values.

    `equal`: bit by bit (NaN equals NaN); `cast`: after rounding to the model's dtype; `merged`: the stored weight plus
    what an adapter adds; `tied`: another parameter's tensor, which was compared; `transformed`: equal after
    Transformers' own conversion of several stored tensors; `computed`: a buffer that is stored nowhere and that the
    class computes again alike; `different`: other values; `random`: the checkpoint holds nothing for it; `dropped`:
    only the checkpoint has it; `placeholder`: zeros throughout, NaN, or no element at all; `renamed`: a save holds its
    numbers under a name that the loader does not find; `base`: an adapter leaves it to the base checkpoint, which holds
    it; `unknown`: it could not be compared.
    """

    EQUAL = "equal"
    CAST = "cast"
    MERGED = "merged"
    TIED = "tied"
    TRANSFORMED = "transformed"
    COMPUTED = "computed"
    BASE = "base"
    DIFFERENT = "different"
    RANDOM = "random"
    DROPPED = "dropped"
    PLACEHOLDER = "placeholder"
    RENAMED = "renamed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Scope:
    """How much of a model was compared: `compared` of its `tensors`, by their names."""

    tensors: int = 0
    """Number of the model's parameters and buffers, by their names."""
    compared: int = 0
    """How many of them were compared."""
    head_only: bool = False
    """Whether only the values of the head were compared."""
    adapter_only: bool = False
    """Whether it is the save of an adapter, which leaves the rest to its base checkpoint."""


@dataclass(frozen=True, slots=True)
class ScoreComparison:
    """The scores of a model in memory beside those of a fresh load, on the same random inputs."""

    inputs: int = 0
    """On how many inputs both gave scores."""
    differing: int = 0
    """On how many of them the scores differ by more than rounding explains."""
    largest: float | None = None
    """The largest difference of a score; null where nothing was compared, or one of two scores isn't finite."""
    bound: float = 0.0
    """The difference that rounding explains."""
    live_error: str = ""
    """What the model in memory raises."""
    fresh_error: str = ""
    """What the fresh load, or a call of it, raises."""
    repeats_equal: bool = True
    """Whether two calls of the model in memory with one input agree."""
    in_train_mode: bool = False
    """Whether the model in memory was in train mode; its scores were compared in eval mode."""
    reason: str = ""
    """Why scores were not compared."""


@dataclass(frozen=True, slots=True)
class TensorCheck:
    """One tensor of the model, or of the checkpoint alone (`dropped`)."""

    name: str
    """The name of the tensor in the model; for `dropped`, its key in the checkpoint."""
    status: TensorStatus
    """What the tensor is, compared with the stored values."""
    shape: tuple[int, ...]
    """Its shape in the model."""
    dtype: str
    """Its dtype in the model."""
    max_error: float | None = None
    """The largest difference of two numbers at one place; null where none were compared."""
    keys: tuple[str, ...] = ()
    """The stored tensors that it was compared with."""
    is_head: bool = False
    """Whether it belongs to the head."""
    is_live: bool = True
    """Whether the scores depend on it, as far as is known."""
    is_buffer: bool = False
    """Whether it is a buffer."""
    reason: str = ""
    """Why the status is `unknown`, or what was found beside it."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What the rules on a loaded model look at.

    `tensors` are those that were compared, and those that only the checkpoint holds. `trial` is what the head does with
    its values, None where it was not tried. `scores` are those of the model beside a fresh load's, None where nobody
    asked for them. `unplaced` are the tensors that the class has no place for, with the reason.
    """

    reference: str
    class_name: str
    tensors: tuple[TensorCheck, ...]
    trial: HeadTrial | None = None
    scores: ScoreComparison | None = None
    unplaced: tuple[Unplaced, ...] = ()

    def of(self, *statuses: TensorStatus, head: bool | None = None) -> Iterator[TensorCheck]:
        """Gives the tensors of some statuses; `head` asks for those of the head, or for the others."""
        return (item for item in self.tensors if item.status in statuses and head in (None, item.is_head))

    @property
    def outside(self) -> str:
        """Words to follow a count of tensors that belong to no head."""
        return " outside the head" if any(item.is_head for item in self.tensors) else ""


class Standstill(StrEnum):
    """Why training left a tensor as it was, as far as `requires_grad` and the optimizer show."""

    FROZEN = "requires_grad is False"
    LEFT_OUT = "it is not in the optimizer"
    NO_RATE = "its learning rate was 0"
    NO_GRADIENT = "no gradient reached it"
    ZERO_GRADIENT = "its gradient was zero in every step"
    TOO_SMALL = "its updates were too small to change a number of its dtype"
    UNKNOWN = "the optimizer does not show why"


@dataclass(frozen=True, slots=True)
class HeadMove:
    """A tensor of the head between the start and the end of a training.

    The norms are Euclidean. `still` says why training did not change it, None where it did. `is_new`: the numbers at
    the start were random, because the load did not give them. `is_matrix`: it has more than one axis.
    """

    name: str
    norm_before: float
    norm_after: float
    still: Standstill | None = None
    is_new: bool = False
    is_matrix: bool = True


@dataclass(frozen=True, slots=True)
class SavedModel:
    """What the rules on a save look at: the tensors of a live model, compared with what a save wrote.

    `reference` is the folder or file of the save, `steps_behind` how many steps the training went on after it.
    `modules_to_save` is the setting under which PEFT would save the lost head. `labels` are the named classes of the
    live model, () where it names none; `saved_labels` those in the saved config.json, None without such a file.
    `missing_shards` are files that the index names, `hollow` stored tensors without elements. `settings` says where the
    saved settings of an adapter are others than the live ones. `moves` is what training did to the head, () where that
    was not watched. `fields` says where the saved configuration is another one than the live one, `unfilled` are the
    parameters that a load of the save makes random, `scores` those of the live model beside a load in a fresh process.
    """

    reference: str
    class_name: str
    tensors: tuple[TensorCheck, ...] = ()
    is_adapter: bool = False
    modules_to_save: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    saved_labels: tuple[str, ...] | None = None
    missing_shards: tuple[str, ...] = ()
    hollow: tuple[str, ...] = ()
    steps_behind: int = 0
    settings: tuple[str, ...] = ()
    moves: tuple[HeadMove, ...] = ()
    fields: tuple[str, ...] = ()
    unfilled: tuple[str, ...] = ()
    scores: ScoreComparison | None = None

    def of(self, *statuses: TensorStatus, head: bool | None = None) -> Iterator[TensorCheck]:
        """Gives the tensors of some statuses; `head` asks for those of the head, or for the others."""
        return (item for item in self.tensors if item.status in statuses and head in (None, item.is_head))


@dataclass(frozen=True, slots=True)
class ModelComparison:
    """What the rules look at, sentences on how it was compared, what stayed open, the stored bytes read, the scope."""

    subject: LoadedModel | SavedModel
    notes: tuple[str, ...] = ()
    gaps: tuple[Gap, ...] = ()
    bytes_read: int = 0
    scope: Scope = Scope()
    saved_class: str | None = None


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """The result of `verify` and `verify_save`; its fields are the JSON of the command."""

    tool_version: str
    command: str
    reference: str
    loader: str
    """What loaded the model: a loader of `--with`, or `memory`."""
    model: str
    """The class of the loaded model."""
    verdict: Verdict
    """`failed`: a finding reaches `--fail-on`; `not_determined`: a tensor could not be compared; or `passed`."""
    tensors: tuple[TensorCheck, ...]
    """Every tensor that was compared, and those that only the checkpoint holds."""
    findings: tuple[Finding, ...]
    """What the rules of `verify` found, less what is ignored."""
    ignored: tuple[Ignored, ...] = ()
    """Findings that were ignored, each with the reason given for it."""
    notes: tuple[str, ...] = ()
    not_determined: tuple[Gap, ...] = ()
    rules: tuple[str, ...] = ()
    """The IDs of the rules that ran."""
    scope: Scope = Scope()
    """How much of the model was compared."""
    bytes_read: int = 0
    """The stored bytes that were read for the comparison."""
    scores: ScoreComparison | None = None
    """The scores of the model beside those of a fresh load; null where nothing called the model."""
    unplaced: tuple[Unplaced, ...] = ()
    """Every tensor of the checkpoint that the class of the model has no place for, by its reason and its module."""
    saved_class: str | None = None
    """The class that the checkpoint's configuration names; null if it is that of the model, or none is named."""
    schema_version: str = field(default=SCHEMA_VERSION)

    def to_dict(self) -> dict[str, Any]:
        """Gives the result as plain JSON values."""
        return to_dict(self)
