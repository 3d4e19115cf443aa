"""One whole examination, frozen; its fields are the JSON of `inspect`."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from headscope.facts.adapter import AdapterFacts
from headscope.facts.checkpoint import CheckpointFacts, Unavailable
from headscope.facts.environment import Environment
from headscope.facts.head import Head
from headscope.facts.health import HeadHealth
from headscope.facts.plain import to_dict
from headscope.facts.repaired import Repaired
from headscope.facts.tasks import Task
from headscope.facts.weights import ParameterStatus, WeightDiff

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
    severity: Severity
    title: str
    message: str
    remedy: str
    parameters: tuple[str, ...] = ()
    url: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """Parameters in elements: all, in the base model, in the head, and those of the head that reach the logits.

    `other_heads` counts those that only other scores of the same forward depend on.
    """

    total: int
    base: int
    head: int
    live_head: int
    other_heads: int = 0


@dataclass(frozen=True, slots=True)
class Quantisation:
    """How a checkpoint is quantized; `head_quantised` is None if that is unknown.

    `skipped` are the modules that its settings leave alone; `skips_head` says whether the classifier is among them,
    None where the settings name none (then Transformers chooses).
    """

    method: str
    bits: int | None
    head_quantised: bool | None
    skipped: tuple[str, ...] = ()
    skips_head: bool | None = None


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The model as the class and the configuration make it.

    `padding_side` is the side on which the family's tokenizer pads by default: `left`, `right`, or "" for no texts.
    `labels` is empty for a model that has no configuration to name them. `reads_problem_type` says whether the forward
    reads problem_type to choose its loss; None where the forward was not seen to compute one. `problem_type_implied`
    says that the configuration sets no problem type, and that `problem_type` is what one label means. `wrappers` are
    the classes of what a model in memory was wrapped in, outermost first.
    """

    class_name: str = field(metadata={"json": "class"})
    task: Task
    num_labels: int
    labels: tuple[str, ...]
    labels_are_placeholders: bool
    problem_type: str | None
    loss: str
    activation: str
    parameters: ParameterCounts
    dtype: str
    quantization: Quantisation | None = None
    padding_side: str = ""
    reads_problem_type: bool | None = None
    problem_type_implied: bool = False
    wrappers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """The facts of one examination; `notes` are sentences on what was observed. `to_dict()` is what `--json` prints.

    `profile` is what the findings are weighed for; None if no rule ran. `repaired` is what the checkpoint
    would give after a repair of its keys, None for one that needs none: every other field is about the checkpoint as
    `from_pretrained` loads it. `health` says whether the classifier was trained; None where nobody asked.
    """

    tool_version: str
    command: str
    environment: Environment
    checkpoint: CheckpointFacts
    model: ModelFacts
    weights: WeightDiff
    head: Head | None
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    not_determined: tuple[Unavailable, ...] = ()
    adapter: AdapterFacts | None = None
    profile: Profile | None = None
    repaired: Repaired | None = None
    health: HeadHealth | None = None
    schema_version: str = SCHEMA_VERSION

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON values: lists, dicts, strings, numbers."""
        return to_dict(self)


@dataclass(frozen=True, slots=True)
class Missing:
    """Names of the parameters and persistent buffers that the checkpoint did not give and that the logits depend on."""

    head: tuple[str, ...]
    elsewhere: tuple[str, ...]


def find_missing(report: Report) -> Missing:
    """The new and mismatched parameters in use; those beside every path to the logits don't count."""
    missing = (*report.weights.new, *(item.parameter for item in report.weights.mismatched))
    if report.head is None:
        return Missing((), missing)
    own = {item.name: item for item in report.head.tensors}
    ignored = tuple(name for name, item in own.items() if item.status is ParameterStatus.IGNORED)
    beside = set(report.head.not_live)
    counted = [name for name in (*missing, *ignored) if name not in beside]
    return Missing(
        tuple(name for name in counted if name in own and own[name].live),
        tuple(name for name in counted if name not in own and not _is_beside(name, report.head)),
    )


def _is_beside(name: str, head: Head) -> bool:
    return any(name.startswith(f"{module.path}.") for module in head.unused_modules)
