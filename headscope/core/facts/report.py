"""One whole examination, frozen; its fields are the JSON of `inspect`."""

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from headscope.core.facts.environment import Environment
from headscope.core.facts.heads.head import Head, HeadParameter
from headscope.core.facts.heads.tasks import Task
from headscope.core.facts.health import HeadHealth
from headscope.core.facts.plain import Derived, to_dict
from headscope.core.facts.stored.adapter import AdapterFacts
from headscope.core.facts.stored.checkpoint import CheckpointFacts, CheckpointKind, Gap, GapTopic
from headscope.core.facts.stored.unplaced import Unplaced
from headscope.core.facts.stored.weights import ParameterStatus, WeightDiff


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


SCHEMA_VERSION = "1.0"


class Severity(StrEnum):
    """How much a finding matters."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Profile(StrEnum):
    """What the model will be used for next."""

    TRAINING = "training"
    INFERENCE = "inference"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth knowing: a rule's id, a sentence, and what to do; `code` does it, where code can."""

    id: str
    """The rule's id, such as `HS102`; ids are never used again."""
    severity: Severity
    """How much it matters for the profile."""
    title: str
    """What it is, in a few words."""
    message: str
    """What was found in this checkpoint."""
    remedy: str
    """What to do."""
    parameters: tuple[str, ...] = ()
    """The parameters that it is about; may be empty."""
    url: str = ""
    """Where the rule is explained."""
    code: str = ""
    """Code or a command that does it; may be empty."""


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """Parameters in elements: all, in the base model, in the head, and those of the head that reach the logits."""

    total: int
    """All parameters, in elements."""
    base: int
    """Those outside the head."""
    head: int
    """Those of the head."""
    live_head: int
    """Those of the head that the logits depend on."""
    other_heads: int = 0
    """Those that only other scores of the same forward depend on."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """How a checkpoint is quantized; `head_quantized` is None if that is unknown."""

    method: str
    """The method, as the configuration names it."""
    bits: int | None
    """Bits of a weight; null where the settings do not say."""
    head_quantized: bool | None
    """Whether the head is packed too; null if that is unknown."""
    skipped: tuple[str, ...] = ()
    """Modules that the settings leave alone."""
    skips_head: bool | None = None
    """Whether the classifier is among those; null where the settings name none."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The model as the class and the configuration make it."""

    class_name: str = field(metadata={"json": "class"})
    """The class of Transformers that was built."""
    task: Task
    """The task it was built for."""
    num_labels: int
    """How many classes it scores."""
    labels: tuple[str, ...]
    """Their names, in the order of the scores."""
    labels_are_placeholders: bool
    """Whether those are `LABEL_0`, `LABEL_1`, ... because nobody named them."""
    problem_type: str | None
    """The kind of problem, as configured or as one label with MSELoss implies; otherwise null."""
    loss: str
    """The loss that applies to these labels, by PyTorch's name, or `not determined`."""
    activation: str
    """What makes scores probabilities: `softmax`, `sigmoid`, `none`, another, or `not determined`."""
    parameters: ParameterCounts
    """How many parameters there are, and where."""
    dtype: str
    """The number format of the parameters."""
    quantization: Quantization | None = None
    """How the checkpoint is quantized; null where it is not."""
    padding_side: str = ""
    """The side on which the family's tokenizer pads by default; empty for other inputs than texts."""
    reads_problem_type: bool | None = None
    """Whether the forward reads problem_type; null if it was not seen to compute a loss."""
    problem_type_implied: bool = False
    """Whether the config sets no problem_type, and problem_type is what one label means."""
    wrappers: tuple[str, ...] = ()
    """Classes that a model in memory was wrapped in, outermost first, such as `OptimizedModule`."""
    saved_class: str | None = None
    """The class that config.json names; null if it is the class shown, or none is named."""
    is_saved_by_own_code: bool = False
    """Whether Transformers has no class of that name: what the saved class computes is not determined."""


class LoadVerdict(StrEnum):
    """Whether the checkpoint gives every weight that the logits depend on."""

    COMPLETE = "complete"
    INCOMPLETE = "incomplete"
    BROKEN = "broken"
    NOT_DETERMINED = "not_determined"
    NOT_COMPARED = "not_compared"


@dataclass(frozen=True, slots=True)
class Report:
    """The facts of one examination; `notes` are sentences on what was observed. `to_dict()` is what `--json` prints.

    `to_dict()` is what `--json` prints.
    """

    tool_version: str
    command: str
    environment: Environment
    checkpoint: CheckpointFacts
    model: ModelFacts
    weights: WeightDiff
    """Which parameters the checkpoint gives, and which it does not."""
    head: Head | None
    """The path from the hidden states to the logits; null where it could not be traced."""
    findings: tuple[Finding, ...] = ()
    """What the rules found, as in `check`; empty where `profile` is null."""
    notes: tuple[str, ...] = ()
    not_determined: tuple[Gap, ...] = ()
    adapter: AdapterFacts | None = None
    """The PEFT adapter on top of the checkpoint; null where there is none."""
    profile: Profile | None = None
    """What the findings are weighed for; null if no rule ran."""
    repaired: Repaired | None = None
    """What the checkpoint would give after its repair, which `from_pretrained` does not do; null if none is needed or
    its keys can't be read. All other fields show what `from_pretrained` really loads."""
    health: HeadHealth | None = None
    """Whether the classifier was ever trained; null without `--health`."""
    is_shipped: bool = False
    """Whether the structure is one whose facts headscope ships, so that nothing was traced."""
    schema_version: str = SCHEMA_VERSION

    def to_dict(self) -> dict[str, Any]:
        """Gives the report as plain JSON values: lists, dicts, strings, numbers."""
        return to_dict(self)

    @Derived
    def unplaced(self) -> tuple[Unplaced, ...]:
        """Every tensor of the checkpoint that nothing in the model takes, by its reason and its module."""
        return self.weights.unplaced

    @property
    def unknown(self) -> tuple[str, ...]:
        """Parameters of unknown status, because not all of the checkpoint could be read."""
        return tuple(item.name for item in self.weights.parameters if item.status is ParameterStatus.UNKNOWN)

    @property
    def needs_repair(self) -> bool:
        """True if `from_pretrained` doesn't load the checkpoint as it is, even if no repair is known."""
        return self.repaired is not None or any(state.is_ambiguous for state in self.checkpoint.states)

    @property
    def shows_chain(self) -> bool:
        """True if the head that is shown is a chain of sentence-transformers' modules."""
        pipeline = self.checkpoint.sentence_transformers
        is_stored = self.checkpoint.kind is not CheckpointKind.MEMORY
        return (
            pipeline is not None
            and is_stored
            and bool(pipeline.chain)
            and pipeline.chain_class == self.model.class_name
        )

    @property
    def is_compared(self) -> bool:
        """True if a checkpoint was read, or a model in memory was compared with what its load gave."""
        is_live = self.checkpoint.kind is CheckpointKind.MEMORY
        return bool(self.checkpoint.tensors) or (is_live and len(self.unknown) < len(self.weights.parameters))

    @Derived
    def verdict(self) -> LoadVerdict:
        """Whether the checkpoint gives every weight that the logits depend on, by keys and shapes. `broken`: what was
        saved can't be used as it is (other shapes, a base model with gaps, a broken adapter); `incomplete`: parts are
        newly initialized; `not_determined`: some of it could not be read, tensors find no place, or a class that
        Transformers lacks was saved; `not_compared`: there was no checkpoint. It says nothing about the numbers: see
        `check`."""
        if self.head is not None and not self.is_compared:
            is_without = self.checkpoint.kind in (CheckpointKind.CLASS, CheckpointKind.MEMORY)
            is_known = is_without and not any(gap.topic == GapTopic.CHECKPOINT for gap in self.not_determined)
            return LoadVerdict.NOT_COMPARED if is_known else LoadVerdict.NOT_DETERMINED
        missing = find_missing(self)
        if (
            (self.adapter is not None and self.adapter.is_broken)
            or self.weights.mismatched
            or (self.head is not None and missing.elsewhere)
        ):
            return LoadVerdict.BROKEN
        if missing.head or missing.elsewhere:
            return LoadVerdict.INCOMPLETE
        is_open = self.not_determined or self.unknown or find_without_place(self) or self.model.is_saved_by_own_code
        return LoadVerdict.NOT_DETERMINED if is_open else LoadVerdict.COMPLETE


@dataclass(frozen=True, slots=True)
class Missing:
    """Names of the parameters and persistent buffers that the checkpoint did not give and that the logits depend on."""

    head: tuple[str, ...]
    elsewhere: tuple[str, ...]


def find_missing(report: Report) -> Missing:
    """Finds the new and mismatched parameters in use; those beside every path to the logits don't count."""
    missing = (*report.weights.new, *(item.parameter for item in report.weights.mismatched))
    if report.head is None:
        return Missing((), missing)
    own = {item.name: item for item in report.head.tensors}
    ignored = tuple(name for name, item in own.items() if item.status is ParameterStatus.IGNORED)
    beside = set(report.head.not_live)
    unused = tuple(f"{module.path}." for module in report.head.unused_modules)
    counted = [name for name in (*missing, *ignored) if name not in beside]
    return Missing(
        tuple(name for name in counted if name in own and own[name].live),
        tuple(name for name in counted if name not in own and not name.startswith(unused)),
    )


_MANY = 0.5


def names_mismatch(report: Report) -> bool:
    """True if half of the base model or more is new: then the names differ, and not just some tensors are missing."""
    base = sum(1 for item in report.weights.parameters if item.in_base and not item.is_buffer)
    return report.head is not None and len(find_missing(report).elsewhere) >= _MANY * max(base, 1)


def find_without_place(report: Report) -> tuple[Unplaced, ...]:
    """Finds what of the checkpoint finds no place, after its repair if it needs one.

    Heads and faults of an adapter that are named elsewhere are left out. Empty where the names of the checkpoint are
    not those of the model.
    """
    weights = report.repaired.weights if report.repaired is not None else report.weights
    named = {key for head in report.checkpoint.score_heads for key in head.tensors}
    named |= {fault.name for fault in report.adapter.faults} if report.adapter is not None else set()
    if report.repaired is None and names_mismatch(report):
        return ()
    chain = report.checkpoint.sentence_transformers
    # Each module of a chain has its own file: a module that headscope doesn't know is a gap of the head's path.
    folders = tuple(f"{part.folder}." for part in chain.parts if part.folder) if chain is not None else ()
    found = (item for item in weights.without_place if not named.issuperset(item.tensors))
    return tuple(item for item in found if not all(key.startswith(folders) for key in item.tensors))


_SCORING = re.compile(
    r"Classif|Regress|Reward|Value(?=[A-Z]|$)|Scor(e|er|ing)(?=[A-Z]|$)|Rerank|Rank(er|ing)|NER|Ner(?=[A-Z]|$)|CRF"
)
"""What a class that scores is called, in the capitals of class names: not `Trainer`, nor `LowRank`."""


def holds_other_head(report: Report) -> bool:
    """True if a checkpoint holds a head that scores, and the class that is shown has a new one in its place."""
    if report.head is None or not find_missing(report).head:
        return False
    unused = set(report.weights.unused)
    if any(unused.intersection(head.tensors) for head in report.checkpoint.score_heads):
        return True
    named = report.model.saved_class if report.model.is_saved_by_own_code else None
    return bool(named and _SCORING.search(named)) and bool(find_without_place(report))
