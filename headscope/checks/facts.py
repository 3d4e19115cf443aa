"""What a check starts from and what it comes to."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headscope.core.facts.built import BuiltFacts, ConfigFacts
from headscope.core.facts.health import HeadHealth
from headscope.core.facts.plain import to_dict
from headscope.core.facts.report import SCHEMA_VERSION, Finding, Profile, Report
from headscope.core.facts.stored.checkpoint import Gap
from headscope.core.facts.stored.tokenizer import TokenizerFacts
from headscope.core.facts.trial import HeadTrial, RunScope, RunTrial
from headscope.core.facts.verdict import Ignored, Verdict
from headscope.shared.labeled.facts import DataFacts

if TYPE_CHECKING:
    from headscope.shared.serving.engine_facts import EngineHead


@dataclass(frozen=True, slots=True)
class TensorValues:
    """What the values of a tensor are once the loader has cast them to the model's dtype.

    `whole` names the dtype that the checkpoint stores it in where that holds whole numbers only; "" for floats.
    """

    name: str
    count: int
    nan: int = 0
    inf: int = 0
    zeros: int = 0
    whole: str = ""


@dataclass(frozen=True, slots=True)
class BaseNumbers:
    """What the numbers outside the head are, as the loader gives them: all of `tensors` were read.

    `broken` hold NaN or infinity, `zeros` are zeros only: matrices, and vectors such as the scales of a norm, without
    which a small random model of the class gives all inputs the same scores. `whole` are those that the checkpoint
    stores as whole numbers without a scale, each with its dtype there.
    """

    tensors: int
    broken: tuple[str, ...] = ()
    zeros: tuple[str, ...] = ()
    whole: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class LiveFacts:
    """A model in memory on its way into training: which parameters that the scores depend on will not be trained.

    `not_optimized` is None where no optimizer was given. `modules_to_save` is the setting under which PEFT, where it
    wraps the model, trains the frozen ones. `resized` are the embeddings with another number of rows than in the
    checkpoint.
    """

    frozen: tuple[str, ...]
    not_optimized: tuple[str, ...] | None = None
    modules_to_save: tuple[str, ...] = ()
    resized: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RuleEvidence:
    """What the rules look at beside the report; see `Subject` for the fields."""

    tokenizer: TokenizerFacts | None
    values: tuple[TensorValues, ...] | None
    unknown: tuple[Gap, ...]
    inapplicable: tuple[Gap, ...]
    health: HeadHealth | None = None
    trial: HeadTrial | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """Everything a rule may look at.

    `tokenizer`, `values` and `live` are None where there are none; then `unknown` (it should have been there and could
    not be read) or `inapplicable` (the checkpoint is of a kind that has none) names it with a reason.
    `numbers` is what the numbers outside the head are, None where they were not read.
    `wanted_num_labels` and `wanted_labels` are what the user asked for. `data` are the labels of the user's own data;
    without them the rules that need them are skipped. `health` is what the numbers of the classifier show and `trial`
    what the head does with them, None where they were not read. `engine` is what an inference engine does that
    the user named; without one, the rules that need it are skipped. `run` is what the model did when it was called,
    None where it wasn't; then `run_reason` says why. `is_chosen` says that nobody named the profile.
    `folder` is the folder of a whole checkpoint whose files a user may change, "" for any other place.
    """

    report: Report
    profile: Profile
    config: ConfigFacts
    built: BuiltFacts
    tokenizer: TokenizerFacts | None = None
    values: tuple[TensorValues, ...] | None = None
    live: LiveFacts | None = None
    wanted_num_labels: int | None = None
    wanted_labels: tuple[str, ...] = ()
    unknown: tuple[Gap, ...] = ()
    inapplicable: tuple[Gap, ...] = ()
    data: DataFacts | None = None
    health: HeadHealth | None = None
    trial: HeadTrial | None = None
    numbers: BaseNumbers | None = None
    engine: "EngineHead | None" = None
    run: RunTrial | None = None
    run_reason: str = ""
    is_chosen: bool = False
    folder: str = ""


@dataclass(frozen=True, slots=True)
class CheckScope:
    """What a verdict rests on beside keys, shapes and settings."""

    run: RunScope | None
    """The calls of the model; null where it was not run."""
    run_reason: str
    """Why the model was not run; empty where it was."""
    values: tuple[str, ...]
    """Whose values were read: `head`, `base`."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What the rules say of one model; its fields are the JSON of `check`."""

    tool_version: str
    command: str
    reference: str
    profile: Profile
    """What the findings are weighed for."""
    verdict: Verdict
    """`failed`: a finding reaches `--fail-on`; `not_determined`: one might; or `passed`."""
    findings: tuple[Finding, ...]
    """What the rules found, less what is ignored."""
    ignored: tuple[Ignored, ...]
    """Findings that were ignored, each with the reason given for it."""
    not_determined: tuple[Gap, ...]
    not_applicable: tuple[Gap, ...]
    """The rules that were skipped, each with the reason: this kind of checkpoint gives them nothing to look at."""
    rules: tuple[str, ...]
    """The IDs of the rules that ran."""
    not_read: tuple[str, ...] = ()
    """What of the checkpoint the verdict says nothing about, because it was not read."""
    notices: tuple[str, ...] = ()
    """Sentences a reader must see, such as that a bundled snapshot stood in for the Hub."""
    report: Report | None = field(default=None, metadata={"json": None})
    data: DataFacts | None = None
    """The labeled data that the classes were compared with; null without `--data`."""
    profile_reason: str = ""
    """Why this profile; empty where it was named."""
    scope: CheckScope = CheckScope(None, "", ())
    """What the verdict rests on beside keys, shapes and settings."""
    trial: RunTrial | None = None
    """What the model did when it was called; null where it was not run."""
    schema_version: str = SCHEMA_VERSION

    @property
    def asked(self) -> tuple[str, ...]:
        """Rules that had something to look at; `rules` names all that were selected."""
        without = {gap.rule for gap in self.not_applicable}
        return tuple(name for name in self.rules if name not in without)

    def to_dict(self) -> dict[str, Any]:
        """Gives the result as plain JSON values."""
        return to_dict(self)
