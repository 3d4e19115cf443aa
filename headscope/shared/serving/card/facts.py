"""What a card says: inputs, the scores that the checkpoint gives for them, and those that known other heads give."""

from dataclasses import dataclass

from headscope.core.facts.environment import Environment
from headscope.core.facts.stored.checkpoint import Gap

CARD_FORMAT = "headscope-card"
CARD_VERSION = 1
LARGEST_CARD = 50_000_000
"""Bytes."""
PRECISIONS = ("float32", "float16", "bfloat16")
IN_SINGLE = ("float64", "eager", "padded")
"""The runs of a card that show what single precision loses."""
STABILITY = "experimental"
"""What these classes say in JSON may change in a minor version."""

CardRows = tuple[tuple[float, ...], ...]
"""A row for each input and a column for each class."""


@dataclass(frozen=True, slots=True)
class CardFile:
    """A weight file of the checkpoint."""

    name: str
    """Its name inside the checkpoint."""
    sha256: str
    """The SHA-256 of its bytes, which is also what the Hub shows for it."""


@dataclass(frozen=True, slots=True)
class CardInput:
    """A text or a pair of texts, and what the checkpoint's tokenizer makes of it."""

    text: str
    """The text, or the first one of a pair."""
    text_pair: str | None
    """The second text of a pair; null for a text alone."""
    input_ids: tuple[int, ...]
    """The token IDs, with the padding of its batch."""
    attention_mask: tuple[int, ...]
    """1 for each token, 0 for padding."""
    token_type_ids: tuple[int, ...] | None
    """The segment of each token; null if the model takes none."""
    batch: int | None
    """The number of the padded batch that it is in; null if it is alone."""
    is_truncated: bool
    """Whether the text is longer than the tokenizer's limit."""


@dataclass(frozen=True, slots=True)
class CardTolerance:
    """How far scores may be off in a precision, as measured on the checkpoint's own model."""

    precision: str
    """`float32`, `float16` or `bfloat16`."""
    logits: float | None
    """The largest difference of a logit that may be rounding; null if it was not measured."""
    scores: float | None
    """The same for the scores; null if it was not measured."""


@dataclass(frozen=True, slots=True)
class CardRun:
    """Logits of the checkpoint's own model when it was run in another way."""

    name: str
    """`float64`, `float16` or `bfloat16`; in float32 `eager`, without fused attention, or `padded`, in batches."""
    logits: CardRows
    """The logits, a row for each input."""


@dataclass(frozen=True, slots=True)
class CardAlternative:
    """Logits that the checkpoint gives when its head, its inputs or its attention mask are changed."""

    name: str
    """What was changed, such as `without dense and tanh`."""
    formula: str
    """The changed expression of the head; empty if it has none."""
    is_sum: bool
    """Whether the expression is a sum or a difference."""
    logits: CardRows
    """The logits, a row for each input."""


@dataclass(frozen=True, slots=True)
class Card:
    """Scores of a checkpoint for fixed inputs, and what is needed to compare others with them."""

    format: str
    """Always `headscope-card`."""
    version: int
    """The version of the format."""
    tool_version: str
    """The version of headscope that wrote the card."""
    environment: Environment
    """The versions that computed the scores."""
    checkpoint: str
    """The Hub ID; empty for a checkpoint that was a folder."""
    commit: str | None
    """The commit of the repository; null where there is none."""
    weights: tuple[CardFile, ...]
    """The weight files."""
    model_class: str
    """The class of Transformers that computed the scores."""
    formula: str | None
    """What that class computes, proven; null if it could not be determined."""
    activation: str
    """What belongs on the logits: `softmax`, `sigmoid`, `none` or `not_determined`."""
    labels: tuple[str, ...]
    """The names of the classes, in the order of the logits."""
    most_tokens: int | None
    """The tokenizer's limit, to which texts are truncated; null if it has none."""
    padding_side: str | None
    """The side on which the batches are padded; null if no input is padded."""
    inputs: tuple[CardInput, ...]
    """The inputs; all rows of this card are in their order."""
    logits: CardRows
    """The logits of the checkpoint in float32 on a CPU, each input alone."""
    scores: CardRows | None
    """The activation of the logits; null if the activation could not be determined."""
    tolerances: tuple[CardTolerance, ...]
    """How far an engine may be off in each precision."""
    runs: tuple[CardRun, ...]
    """The logits that the tolerances were measured on."""
    alternatives: tuple[CardAlternative, ...]
    """What known faults of engines would give, computed with the checkpoint; no two give the same."""
    alternatives_left_out: int
    """How many were left out, to keep the card small."""
    not_determined: tuple[Gap, ...]
    """What the card doesn't have, each with its reason."""
