"""What a model did when it was loaded and called as its user calls it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class RunScope:
    """What was run."""

    inputs: int
    """Inputs that were called one by one."""
    batches: int
    """Padded batches of several inputs."""
    calls: int
    """Calls of the model in all."""
    device: str
    """Where it ran."""


class RunStep(StrEnum):
    """What a run does: each input alone, one of them again, some with other words, a batch, a long text, a pipeline."""

    LOADING = "loading"
    SINGLE = "single"
    AGAIN = "again"
    CHANGED = "changed"
    BATCH = "batch"
    LONG = "long"
    PIPELINE = "pipeline"


class BatchCure(StrEnum):
    """What makes the scores of a padded batch those of single inputs."""

    NONE = ""
    ATTENTION_MASK = "attention_mask"
    PADDING_LEFT = "padding_side=left"
    PADDING_RIGHT = "padding_side=right"
    MASK_AND_LEFT = "attention_mask and padding_side=left"
    MASK_AND_RIGHT = "attention_mask and padding_side=right"


@dataclass(frozen=True, slots=True)
class RaisedError:
    """An error that a call raised, and on which input."""

    input: str
    """What was called: `text`, `pair`, `batch`, `long text`, `pipeline`, ..."""
    error: str
    """The class of the error and its message."""
    count: int = 1
    """How many such inputs raised it."""
    step: RunStep = RunStep.SINGLE
    """What the run did with it."""


@dataclass(frozen=True, slots=True)
class RunTrial:
    """What was observed when a model was called; None: not observed."""

    scope: RunScope
    """What was run."""
    noun: str = "text"
    """What one input is: a text, a pair (of texts), an image, a sound."""
    dtype: str = "float32"
    """The number format of the scores."""
    raised: tuple[RaisedError, ...] = ()
    """The errors, each once."""
    failed: int = 0
    """How many of the single inputs raised."""
    not_finite: int = 0
    """How many of the inputs that gave scores gave NaN or infinity."""
    all_alike: bool = False
    """Whether all inputs have the same scores, up to rounding."""
    ignores_middle: bool | None = None
    """Whether the scores stay when the tokens between the first and the last are replaced; an image or a sound, by
    noise."""
    batch_difference: float | None = None
    """The largest difference of a score in a padded batch from the same input alone."""
    batch_bound: float = 0.0
    """The difference that rounding explains."""
    side: str | None = None
    """The side on which the batch was padded."""
    batch_cure: BatchCure = BatchCure.NONE
    """What makes a batch equal; empty for nothing that was tried."""
    batch_error: str = ""
    """The error of a batch."""
    repeats_equal: bool | None = None
    """Whether two calls with the same input give the same scores."""
    unknown_tokens: float | None = None
    """The share of tokens that say nothing, in the kind of texts in which it is the smallest: unknown ones, and the
    most frequent one where the two are almost all."""
    fails_at_length: int | None = None
    """The number of tokens at which a text raises: the most that were tried."""
    length_error: str = ""
    """What it raises there."""
    longest: int | None = None
    """The tokens of the longest input that was tried."""
    begins_with_cls: bool | None = None
    """Whether the texts begin with the tokenizer's [CLS]; null where it has none."""
    in_train_mode: bool | None = None
    """Whether a model in memory was in train mode when it came; null for a checkpoint."""
    not_taken: tuple[str, ...] = ()
    """Inputs that the tokenizer gives and the model doesn't take."""
    keeps_sizes: bool = False
    """Whether the processor gives images of several sizes tensors of several shapes, which no batch can hold."""
    image_spread: float | None = None
    """How far apart the values of a channel are after the processor, in relation to the largest of the image (at least
    1), in the image where that is most; null for other inputs."""
    library: str = ""
    """The class of another library that was called as well, such as `CrossEncoder`; empty for none."""
    left_out: str = ""
    """What was not called, and why; empty for nothing."""

    @property
    def always_fails(self) -> bool:
        """True if no input has scores."""
        return self.failed == self.scope.inputs

    @property
    def batch_differs(self) -> bool:
        """True if a padded batch gives an input other scores than rounding explains."""
        return self.batch_difference is not None and self.batch_difference > self.batch_bound


@dataclass(frozen=True, slots=True)
class HeadTrial:
    """What the head did with its real values, run on random hidden states of ordinary and of large size.

    `why_not` says why it could not be tried, "" if it was. `fails` is how its forward fails, "" where it runs; `finite`
    says whether its scores are finite and below 1e30. `moves` says whether some input changes how the scores compare
    (a single score: whether it changes at all), and `winner` is the class that scores highest for every input, None
    where inputs change it; `bias` is that class's bias, `ahead` how far it is above the next largest. `stuck` are
    classes whose score no input changes, where it changes others. `unread` says which numbers were not read: those were
    made up. `bytes_read` and `requests` are what reading the others took.
    """

    why_not: str = ""
    fails: str = ""
    finite: bool = True
    moves: bool = True
    winner: int | None = None
    bias: float | None = None
    ahead: float = 0.0
    stuck: tuple[int, ...] = ()
    unread: tuple[str, ...] = ()
    bytes_read: int = 0
    requests: int = 0
