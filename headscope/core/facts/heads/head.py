"""The head path: the operations from the hidden states to the logits, and which tokens they read."""

from dataclasses import dataclass, field
from enum import StrEnum

from headscope.core.facts.heads.tokens import HiddenSource, Positions
from headscope.core.facts.plain import Derived
from headscope.core.facts.stored.adapter import Carried
from headscope.core.facts.stored.checkpoint import Gap
from headscope.core.facts.stored.weights import GIVEN_AT_LOAD, ParameterStatus
from headscope.errors import UsageError, did_you_mean

Shape = tuple[int | str, ...]
"""Axis sizes; the axes that vary carry names: `("batch", "sequence", 768)`."""

FORMULA_START = "logits = "
"""What a formula begins with."""

HIDDEN_STATES = -1
"""Where a stage's input comes from if no stage made it."""

MOST_RUN_AGAIN = 60_000_000
"""Numbers of a head's parameters and results up to which it is run again to prove its formula: half a gigabyte in
single precision, with as much again for gradients."""

AS_IT_IS = "as it is"
"""The name of the checkpoint's own head among the variants of it."""


class PoolingKind(StrEnum):
    """How the positions of the hidden states become what the classifier reads."""

    FIRST_TOKEN = "first_token"
    LAST_TOKEN = "last_token"
    LAST_NON_PAD_TOKEN = "last_non_pad_token"
    EOS_TOKEN = "eos_token"
    TOKEN_AT = "token_at"
    MEAN = "mean"
    MASKED_MEAN = "masked_mean"
    MAX = "max"
    WEIGHTED = "weighted"
    SPATIAL_MEAN = "spatial_mean"
    CONCAT = "concat"
    FLATTEN = "flatten"
    TOKEN_PAIR = "token_pair"
    NONE = "none"
    OTHER = "other"


def parse_pooling(name: str) -> PoolingKind:
    """Finds the pooling of a name; `-` and `_` are one. Raises UsageError with the nearest name for an unknown one."""
    spelled = str(name).strip().lower().replace("-", "_").replace(" ", "_")
    known = [kind.value for kind in PoolingKind]
    if spelled not in known:
        hint = did_you_mean(spelled, known, f"poolings: {', '.join(known)}")
        raise UsageError(f"no such pooling: {name}", hint)
    return PoolingKind(spelled)


@dataclass(frozen=True, slots=True, order=True)
class Evidence:
    """One observed operation: what ran, in which module, at which line of which source file ("" if none is known)."""

    operation: str
    """What ran, by PyTorch's name."""
    module: str
    """The module whose `forward` ran it; empty for the model itself."""
    file: str
    """The source file, beginning with its package."""
    line: int
    """The line in that file."""


@dataclass(frozen=True, slots=True, order=True)
class PoolingPart:
    """One thing that the head reads: how, at which positions, of which hidden states (several for a mix of layers)."""

    kind: PoolingKind
    """How the positions become one vector."""
    positions: Positions
    """Which positions of each row are read."""
    rule: str = ""
    """The rule in words."""
    sources: tuple[HiddenSource, ...] = ()
    """The hidden states that are read; several for a mix of layers."""


@dataclass(frozen=True, slots=True)
class Pooling:
    """Which tokens reach the logits, by which rule, seen where."""

    kind: PoolingKind
    """The kind, in one word that `headscope explain` knows."""
    tokens: tuple[str, ...]
    """The tokens that are read, by name where the family has one; the parts, for `concat`."""
    rule: str
    """The rule in words."""
    evidence: tuple[Evidence, ...]
    """The operations in which it was seen."""
    parts: tuple[PoolingPart, ...] = ()
    """The same as typed values: one entry for each thing that the head reads."""

    def __repr__(self) -> str:
        """Shows the kind and what is read: `dataclasses.asdict` shows the rule and where it was seen."""
        return f"<pooling: {self.kind}{': ' if self.tokens else ''}{', '.join(self.tokens)}>"


@dataclass(frozen=True, slots=True, order=True)
class TokenRow:
    """One row of a language-model head that is the weights of one score: the token's id, and its text if known."""

    id: int
    """The token's id, which is the number of its row."""
    token: str = ""
    """The token's text; empty where the checkpoint's tokenizer was not read."""


@dataclass(frozen=True, slots=True, order=True)
class TokenRows:
    """The rows of a language-model head that the scores are made of, in the order of the scores."""

    parameter: str
    """The matrix that they are rows of."""
    rows: tuple[TokenRow, ...]
    """One row for each score, in the order of the scores."""
    vocabulary: int
    """How many rows the matrix has."""


@dataclass(frozen=True, slots=True, order=True)
class PaddingEffect:
    """Whether padding a short text on one side (with its mask) changes its scores; None where it was not measured.

    Measured on a small model of the same class and configuration with random weights.
    """

    side: str
    """The side that was padded: `right` or `left`."""
    changes: bool | None
    """Whether the scores of a short text change; null where that was not measured."""
    difference: float | None = None
    """The largest change of a score over the largest score; null where it was not measured, as in shipped facts."""
    reason: str = ""
    """Why it was not measured; otherwise empty."""


@dataclass(frozen=True, slots=True)
class Verification:
    """Whether gradients of the head on random hidden states agree with the pooling that was traced."""

    agrees: bool | None
    """Whether the gradients agree with the pooling; null where nothing could be compared."""
    told: str
    """What the gradients say, in words."""
    positions: tuple[tuple[int, ...], ...]
    """For each row of the probe batch the positions that move the scores."""
    padding: tuple[PaddingEffect, ...] = ()
    """What padding does to the scores; empty without `--prove`."""
    formula: str = ""
    """`equal` where the formula gives the head's scores on random hidden states, otherwise `withheld`."""
    formula_reason: str = ""
    """Why the formula was withheld."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One executed operation of the head path."""

    index: int
    """Its place in the order of execution, from 0."""
    operation: str
    """What ran, by PyTorch's name: `linear`, `select`, `tanh`."""
    module: str
    """The module whose `forward` ran it; empty for the model itself."""
    module_class: str
    """That module's class."""
    functional: bool
    """Whether it is not a module: a bare `torch.tanh`, `hidden[:, 0]`."""
    input_shapes: tuple[Shape, ...]
    """The shapes of its inputs."""
    output_shape: Shape
    """The shape of its result."""
    parameters: tuple[str, ...]
    """The parameters that it uses, by their full names."""
    file: str
    """The source file, beginning with its package."""
    line: int
    """The line in that file."""
    detail: str = ""
    """A short reading of its arguments (`[:, 0]`, `p=0.1`); may be empty."""
    inputs: tuple[int, ...] = ()
    """For each input the stage that made it, -1 for the hidden states; empty where that is not known."""
    buffers: tuple[str, ...] = ()
    """The persistent buffers that it uses, by their full names."""


@dataclass(frozen=True, slots=True, order=True)
class UnusedModule:
    """A registered module that is beside the head path: never executed, or executed without reaching the logits."""

    path: str
    """The module."""
    module_class: str
    """Its class."""
    executed: bool
    """Whether it ran, without reaching the logits; false where it never ran."""


@dataclass(frozen=True, slots=True)
class HeadTrace:
    """What running the model's own `forward` showed of its head; without any checkpoint.

    `live` are the names of all parameters and persistent buffers on a path to the logits; `parameters` and `buffers`
    are those of the head. `hidden_shape` is the shape of the hidden states that the head reads. `loss` is PyTorch's
    name of the loss that ran on labels, `config_fields` are the configuration fields that the head's source reads.
    `notes` are sentences on what was observed (a forward that needs a pad token). `not_determined` says what could not
    be determined. `other_parameters` are those that only the scores of other heads depend on. `reads_problem_type` says
    whether the forward reads that field of the configuration for its loss; None where it was not seen to compute one.
    `token_rows` are the few rows of a larger matrix that the scores are made of, None for scores of a whole matrix.
    `features` is what the linear layer at the end of the formula reads, "" where it doesn't end in one.
    `virtual_tokens` counts the positions that an adapter puts before those of each text.
    """

    modules: tuple[str, ...]
    pooling: Pooling
    stages: tuple[Stage, ...]
    formula: str
    parameters: tuple[str, ...]
    live: tuple[str, ...]
    base_module: str
    hidden_shape: Shape
    loss: str = ""
    verification: Verification | None = None
    config_fields: tuple[str, ...] = ()
    unused_modules: tuple[UnusedModule, ...] = ()
    notes: tuple[str, ...] = ()
    not_determined: tuple[Gap, ...] = ()
    other_parameters: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    reads_problem_type: bool | None = None
    token_rows: TokenRows | None = None
    features: str = ""
    virtual_tokens: int = 0


class TensorKind(StrEnum):
    """What a stored tensor is to PyTorch: training changes a parameter, a forward may change a buffer."""

    PARAMETER = "parameter"
    BUFFER = "buffer"


@dataclass(frozen=True, slots=True, order=True)
class HeadParameter:
    """One parameter or persistent buffer of the head, with what the checkpoint did for it."""

    name: str
    """The name in the model."""
    shape: tuple[int, ...]
    """The sizes of its axes in the model."""
    dtype: str
    """Its number format."""
    count: int
    """How many numbers it holds."""
    status: ParameterStatus
    """What loading the checkpoint does to it."""
    live: bool
    """Whether the logits depend on it."""
    checkpoint_keys: tuple[str, ...]
    """The tensors of the checkpoint that fill it; empty where none does."""
    checkpoint_shape: tuple[int, ...] | None = None
    """Its shape in the checkpoint if that differs; otherwise null."""
    adapter: Carried | None = None
    """How a PEFT adapter carries it: whole (`saved`) or as a change (`adapted`); null where it does not."""
    quantized: str | None = None
    """The number format that it is packed in; null where it is not."""
    kind: TensorKind = TensorKind.PARAMETER
    """`parameter`, or `buffer` for a stored tensor that training does not update, such as a running mean."""


class HeadStatus(StrEnum):
    """What the checkpoint gave of the parameters and buffers that the logits depend on."""

    LOADED = "loaded"
    NEW = "new"
    PARTLY_NEW = "partly_new"
    CHANGED = "changed"
    UNKNOWN = "unknown"
    NO_PARAMETERS = "no_parameters"


@dataclass(frozen=True, slots=True)
class Head:
    """The head of one model with one checkpoint.

    `not_live` names all parameters and persistent buffers of the model with no path to the logits.
    """

    modules: tuple[str, ...]
    """The modules that belong to the head."""
    pooling: Pooling
    """Which positions of the hidden states the classifier reads."""
    stages: tuple[Stage, ...]
    """The operations from the hidden states to the logits, in the order in which they run."""
    parameters: tuple[HeadParameter, ...]
    """The parameters of the head, with what the checkpoint gave for them."""
    formula: str
    """The head as one line."""
    hidden_shape: Shape = ()
    """The shape of the hidden states that the head reads."""
    unused_modules: tuple[UnusedModule, ...] = field(default=())
    """Modules that are registered and are beside the path to the logits."""
    verification: Verification | None = None
    """What the gradients of the head say of the pooling; null where none were taken."""
    not_live: tuple[str, ...] = field(default=(), metadata={"json": None})
    buffers: tuple[HeadParameter, ...] = ()
    """The persistent buffers of the head, such as BatchNorm statistics, with what the checkpoint gave."""
    token_rows: TokenRows | None = None
    """The rows of a language-model head that the scores are made of; null for a whole matrix."""
    features: str = field(default="", metadata={"json": None})
    """What the linear layer at the end of the formula reads, as the formula writes it; empty without such a layer."""
    virtual_tokens: int = 0
    """How many positions of the hidden states are virtual tokens, which an adapter puts before those of each text."""

    @property
    def expression(self) -> str:
        """Formula of the logits, without their name: `classifier(h[CLS])`; empty without a formula."""
        return self.formula[len(FORMULA_START) :]

    @property
    def tensors(self) -> tuple[HeadParameter, ...]:
        """Everything that a checkpoint has to give the head: its parameters, then its buffers."""
        return (*self.parameters, *self.buffers)

    @property
    def matrices(self) -> tuple[HeadParameter, ...]:
        """The weights of layers that the scores depend on, which a quantization packs or leaves out."""
        return tuple(item for item in self.parameters if item.live and len(item.shape) > 1)

    @Derived
    def status(self) -> HeadStatus:
        """What the checkpoint gave of what the logits depend on: all (`loaded`), nothing (`new`: every part is newly
        initialized), or a part (`partly_new`). `changed`: a model in memory holds other values than its load gave."""
        live = [item.status for item in self.tensors if item.live]
        lost = [status for status in live if status not in GIVEN_AT_LOAD]
        if not lost:
            return HeadStatus.LOADED if live else HeadStatus.NO_PARAMETERS
        if ParameterStatus.UNKNOWN in lost:
            return HeadStatus.UNKNOWN
        fresh = [status for status in lost if status is not ParameterStatus.CHANGED]
        if not fresh:
            return HeadStatus.CHANGED
        return HeadStatus.NEW if len(fresh) == len(live) else HeadStatus.PARTLY_NEW


def classifier_weight(head: Head) -> HeadParameter | None:
    """Finds the weight of the class scores: the matrix of the last stage that has one; None without parameters."""
    live = {item.name: item for item in head.parameters if item.live}
    stages = [stage for stage in head.stages if any(name in live for name in stage.parameters)]
    owned = [live[name] for stage in stages[-1:] for name in stage.parameters if name in live]
    return max(owned, key=lambda item: len(item.shape), default=None)
