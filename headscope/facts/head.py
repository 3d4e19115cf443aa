"""The head path: the operations from the hidden states to the logits, and which tokens they read."""

from dataclasses import dataclass, field
from enum import StrEnum

from headscope.facts.adapter import Carried
from headscope.facts.checkpoint import Unavailable
from headscope.facts.tokens import HiddenSource, Positions
from headscope.facts.weights import ParameterStatus

Shape = tuple[int | str, ...]
"""Axis sizes; the axes that vary carry names: `("batch", "sequence", 768)`."""

HIDDEN_STATES = -1
"""Where a stage's input comes from if no stage made it."""


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


@dataclass(frozen=True, slots=True, order=True)
class Evidence:
    """One observed operation: what ran, in which module, at which line of which source file ("" if none is known)."""

    operation: str
    module: str
    file: str
    line: int


@dataclass(frozen=True, slots=True, order=True)
class PoolingPart:
    """One thing that the head reads: how, at which positions, of which hidden states (several for a mix of layers)."""

    kind: PoolingKind
    positions: Positions
    rule: str = ""
    sources: tuple[HiddenSource, ...] = ()


@dataclass(frozen=True, slots=True)
class Pooling:
    """Which tokens reach the logits, by which rule, seen where.

    `parts` say the same as typed values, one for each thing that the head reads; `tokens` and `rule` are their words.
    """

    kind: PoolingKind
    tokens: tuple[str, ...]
    rule: str
    evidence: tuple[Evidence, ...]
    parts: tuple[PoolingPart, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class TokenRow:
    """One row of a language-model head that is the weights of one score: the token's id, and its text if known."""

    id: int
    token: str = ""


@dataclass(frozen=True, slots=True, order=True)
class TokenRows:
    """The rows of a language-model head that the scores are made of, in the order of the scores.

    `parameter` is the matrix that they are rows of, `vocabulary` the number of its rows.
    """

    parameter: str
    rows: tuple[TokenRow, ...]
    vocabulary: int


@dataclass(frozen=True, slots=True, order=True)
class PaddingEffect:
    """Whether padding a short text on one side (with its mask) changes its scores; None where it was not measured.

    Measured on a small model of the same class and configuration with random weights; `difference` is the largest
    change of a score relative to the largest score.
    """

    side: str
    changes: bool | None
    difference: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Verification:
    """Whether gradients of the head on random hidden states agree with the pooling that was traced.

    `agrees` is None where nothing could be compared; `positions` are those that move the scores, for each row of
    the probe batch (rows without, with right and with left padding). `formula` says whether the formula, evaluated on
    random hidden states, equals the head: `equal`, or `withheld` with the reason in `formula_reason`.
    """

    agrees: bool | None
    told: str
    positions: tuple[tuple[int, ...], ...]
    padding: tuple[PaddingEffect, ...] = ()
    formula: str = ""
    formula_reason: str = ""


@dataclass(frozen=True, slots=True)
class Stage:
    """One executed operation of the head path.

    `module` is the module whose `forward` ran it ("" is the model itself); `functional` says that it is
    not a module (a bare `torch.tanh`, `hidden[:, 0]`); `parameters` and `buffers` are full names; `detail` is a
    short reading of its arguments (`[:, 0]`, `p=0.1`). `inputs` says of each of `input_shapes` which stage made
    it: its index, or HIDDEN_STATES; empty where that is not known.
    """

    index: int
    operation: str
    module: str
    module_class: str
    functional: bool
    input_shapes: tuple[Shape, ...]
    output_shape: Shape
    parameters: tuple[str, ...]
    file: str
    line: int
    detail: str = ""
    inputs: tuple[int, ...] = ()
    buffers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class UnusedModule:
    """A registered module that is beside the head path: never executed, or executed without reaching the logits."""

    path: str
    module_class: str
    executed: bool


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
    not_determined: tuple[Unavailable, ...] = ()
    other_parameters: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    reads_problem_type: bool | None = None
    token_rows: TokenRows | None = None


class TensorKind(StrEnum):
    """What a stored tensor is to PyTorch: training changes a parameter, a forward may change a buffer."""

    PARAMETER = "parameter"
    BUFFER = "buffer"


@dataclass(frozen=True, slots=True, order=True)
class HeadParameter:
    """One parameter or persistent buffer of the head, with what the checkpoint did for it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    count: int
    status: ParameterStatus
    live: bool
    checkpoint_keys: tuple[str, ...]
    checkpoint_shape: tuple[int, ...] | None = None
    adapter: Carried | None = None
    quantised: str | None = None
    kind: TensorKind = TensorKind.PARAMETER


@dataclass(frozen=True, slots=True)
class Head:
    """The head of one model with one checkpoint.

    `buffers` are its persistent buffers, such as the statistics of a BatchNorm; `not_live` names all parameters and
    persistent buffers of the model with no path to the logits. `token_rows` are the rows of a language-model head that
    the scores are made of; None for scores of a whole matrix.
    """

    modules: tuple[str, ...]
    pooling: Pooling
    stages: tuple[Stage, ...]
    parameters: tuple[HeadParameter, ...]
    formula: str
    hidden_shape: Shape = ()
    unused_modules: tuple[UnusedModule, ...] = field(default=())
    verification: Verification | None = None
    not_live: tuple[str, ...] = field(default=(), metadata={"json": None})
    buffers: tuple[HeadParameter, ...] = ()
    token_rows: TokenRows | None = None

    @property
    def tensors(self) -> tuple[HeadParameter, ...]:
        """Everything that a checkpoint has to give the head: its parameters, then its buffers."""
        return (*self.parameters, *self.buffers)


def classifier_weight(head: Head) -> HeadParameter | None:
    """The weight that makes the class scores: the matrix of the last stage that has one; None without parameters."""
    live = {item.name: item for item in head.parameters if item.live}
    stages = [stage for stage in head.stages if any(name in live for name in stage.parameters)]
    owned = [live[name] for stage in stages[-1:] for name in stage.parameters if name in live]
    return max(owned, key=lambda item: len(item.shape), default=None)
