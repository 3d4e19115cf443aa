"""Which head each inference engine runs for a checkpoint, and where that is known from."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from headscope.core.facts.plain import Derived, to_dict
from headscope.core.facts.report import SCHEMA_VERSION

STABILITY = "experimental"
"""What these classes say in JSON may change in a minor version."""


class EngineEvidence(StrEnum):
    """How a row is known. `ran`: the engine was run; `asked`: its own resolution was called; `cited`: its source was
    read, at the file and line in `source`."""

    RAN = "ran"
    ASKED = "asked"
    CITED = "cited"


class EngineVerdict(StrEnum):
    """What an engine does with the checkpoint's head, compared with Transformers.

    `same`: the same head and the same activation; `different`: a different head or activation;
    `no_scores`: the engine doesn't load the checkpoint, or has no head for it; `not_determined`: the facts don't say.
    """

    SAME = "same"
    DIFFERENT = "different"
    NO_SCORES = "no_scores"
    NOT_DETERMINED = "not_determined"


@dataclass(frozen=True, slots=True)
class EngineHead:
    """What one engine does with the head of the checkpoint."""

    engine: str
    """The engine, as `--engine` takes it."""
    title: str
    """The engine's own name."""
    version: str
    """The version that the facts were compared with: the installed or the requested one, otherwise the one read."""
    runs: bool | None
    """Whether it computes scores for this checkpoint; null if that is not known."""
    same_head: bool | None
    """Whether it computes the same logits from the same hidden states; null if that is not known."""
    formula: str
    """What it computes instead; empty for the same head."""
    activation: str | None
    """What it applies to the scores by default: `softmax`, `sigmoid`, `tanh` or `none`; null if that is not known."""
    same_activation: bool | None
    """Whether that is `own_activation`; null if either is not known."""
    logits: str
    """How to get logits."""
    positions: str
    """Where it pools, in words; empty where the source has no pooling."""
    reads_padding: bool
    """Whether it reads the last token even if that is the padding token."""
    drops: tuple[str, ...]
    """Layers, biases and settings of the checkpoint that it ignores."""
    dtype: str
    """Its default precision, in words."""
    float32_becomes: str
    """What it computes a float32 checkpoint in by default; empty if in float32, or if that depends on the device."""
    evidence: EngineEvidence | None
    """How this is known; null if it isn't."""
    source: str
    """The version or commit, file and line that were read; empty without evidence."""
    reason: str
    """What differs, why it doesn't run, or why it is not known."""
    notes: tuple[str, ...] = ()
    """What it does beside the head: truncation, segment IDs, labels, padding, precision."""
    not_looked_at: tuple[str, ...] = ()
    """What the facts on this engine don't cover."""
    own_activation: str = ""
    """What the checkpoint's own library applies: CrossEncoder for one that it saved, otherwise the pipeline."""
    is_constant: bool = False
    """Whether every text gets 1.0: a softmax of one score."""
    is_reference: bool = field(default=False, metadata={"json": None})
    """Whether it is the library that `own_activation` is read from, so that it can't but be the same."""

    @property
    def is_fault(self) -> bool:
        """True if it can't be used instead of Transformers, whatever function is applied afterwards."""
        return self.runs is False or self.same_head is False or self.is_constant

    @property
    def is_doubtful(self) -> bool:
        """True if some texts may get other scores by default: a fault where it runs, an activation, read padding."""
        return self.runs is not False and (self.is_fault or self.same_activation is False or self.reads_padding)

    @Derived
    def verdict(self) -> EngineVerdict:
        """Whether it runs the same head with the same function on the scores."""
        if self.runs is False:
            return EngineVerdict.NO_SCORES
        if self.same_head is False or self.same_activation is False or self.is_constant:
            return EngineVerdict.DIFFERENT
        is_known = self.runs and self.same_head and self.same_activation
        return EngineVerdict.SAME if is_known else EngineVerdict.NOT_DETERMINED


@dataclass(frozen=True, slots=True)
class EnginesReport:
    """What each engine does with the head of one checkpoint."""

    tool_version: str
    reference: str
    architecture: str
    """The class that `config.json` names, which engines choose by; empty if it names none."""
    model_class: str
    """The class of Transformers that the engines are compared with."""
    formula: str
    """What that class computes; empty if it could not be determined."""
    activation: str
    """What the checkpoint's own library applies to its scores."""
    engines: tuple[EngineHead, ...]
    """One entry for each engine."""
    is_one: bool = False
    """Whether one engine was named: then `no_scores` makes the verdict `different` too."""
    command: str = "engines"
    schema_version: str = SCHEMA_VERSION

    @Derived
    def verdict(self) -> EngineVerdict:
        """`same` if any engine, other than the checkpoint's own library, runs the same head with the same function,
        otherwise `different` if any differs. Where one engine was named, `no_scores` is `different` too."""
        found = [item.verdict for item in self.engines if self.is_one or not item.is_reference]
        if EngineVerdict.SAME in found:
            return EngineVerdict.SAME
        is_different = EngineVerdict.DIFFERENT in found or (self.is_one and EngineVerdict.NO_SCORES in found)
        return EngineVerdict.DIFFERENT if is_different else EngineVerdict.NOT_DETERMINED

    def to_dict(self) -> dict[str, Any]:
        """Gives the report as plain JSON values."""
        return to_dict(self)
