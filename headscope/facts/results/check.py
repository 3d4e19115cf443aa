"""What a check starts from and what it comes to."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from headscope.facts.heads.tasks import Task
from headscope.facts.plain import to_dict
from headscope.facts.results.engines import EngineHead
from headscope.facts.results.health import HeadHealth, InitialSpread
from headscope.facts.results.labeled import DataFacts
from headscope.facts.results.report import SCHEMA_VERSION, Finding, Profile, Report, Severity
from headscope.facts.stored.checkpoint import Gap
from headscope.facts.stored.tokenizer import TokenizerFacts
from headscope.facts.trial import RunScope, RunTrial

GRAVITY = {Severity.NOTE: 0, Severity.WARNING: 1, Severity.ERROR: 2}
"""Severities in their order."""


@dataclass(frozen=True, slots=True)
class Severities:
    """The severities of a rule's findings by profile, the gravest first; none where the rule finds nothing."""

    training: tuple[Severity, ...]
    inference: tuple[Severity, ...]

    def of(self, profile: Profile) -> tuple[Severity, ...]:
        """Gives the severities for a profile."""
        return self.training if profile is Profile.TRAINING else self.inference


_OTHERS = {
    "error note | error": "HS101",
    "note | error warning": "HS502 HS526",
    "note | error warning note": "HS401",
    "warning | error warning": "HS203 HS524",
    "warning | error": "HS111 HS112 HS523 HS529 HS901 HS903",
    "warning note | error warning": "HS102 HS103",
    "error note | error note": "HS104 HS304 HS715",
    "note | note": "HS007 HS011 HS105 HS110 HS309",
    "warning | warning": "HS005 HS106 HS108 HS305 HS403 HS716",
    "error warning | error warning": "HS004 HS006 HS109 HS204 HS307 HS501 HS521 HS525 HS528 HS706 HS713 HS718 HS719",
    "error warning note | error warning": "HS201",
    "error warning note | error warning note": "HS306",
    "note | warning": "HS010 HS202 HS406 HS902 HS904 HS905",
    "error warning | error": "HS504",
    "warning | note": "HS002 HS008 HS205 HS206",
    "error warning | warning": "HS402",
    "error | warning": "HS404",
    "error note |": "HS601",
    "error |": "HS602",
    "note |": "HS113",
    "error | error warning": "HS001",
}
"""Training | inference, with the rules that find so: every rule that finds more or other than errors."""


def severities_of(rule: str) -> Severities:
    """Gives the severities that a rule may find, by its id: errors if the table says nothing else."""
    found = next((found for found, rules in _OTHERS.items() if rule in rules.split()), "error | error")
    training, _, inference = found.partition("|")
    return Severities(tuple(map(Severity, training.split())), tuple(map(Severity, inference.split())))


class Verdict(StrEnum):
    """What a check comes to."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_DETERMINED = "not_determined"


@dataclass(frozen=True, slots=True)
class ConfigFacts:
    """What `config.json` itself says, before Transformers fills in defaults; None and () where it says nothing.

    `id2label` and `label2id` keep their entries as written: pairs of key and value as text. `ids_as_text` are the names
    to which `label2id` gives a text instead of a number.
    """

    num_labels: int | None = None
    id2label: tuple[tuple[str, str], ...] = ()
    label2id: tuple[tuple[str, str], ...] = ()
    problem_type: str | None = None
    has_auto_map: bool = False
    is_decoder: bool = False
    ids_as_text: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BuiltFacts:
    """What the configuration is once Transformers has built it. Ids are token ids.

    `padding_side` is where the family's tokenizers pad by default. `kind` is a word for what the
    checkpoint was made for where that is not a classifier: `language model`, `base model`,
    `sentence embedder`, `sparse encoder`.
    `trained_for` is the task of the class that its configuration names, None where it names no classification class.
    `initial` is what the class's own initialization gives the classifier, None where that is not known.
    `token_ids` are the ids of special tokens by role (`pad`, `eos`, ...), `embedding_rows` the rows of the word
    embeddings, and `positions` is how many the configuration names, None where there are none.
    """

    num_labels: int
    vocab_size: int | None = None
    pad_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    initializer_range: float | None = None
    padding_side: str = "right"
    kind: str | None = None
    trained_for: Task | None = None
    initial: InitialSpread | None = None
    token_ids: tuple[tuple[str, int], ...] = ()
    embedding_rows: int | None = None
    positions: int | None = None


@dataclass(frozen=True, slots=True)
class TensorValues:
    """What the numbers of a tensor are once the loader has cast them to the model's dtype.

    `whole` names the dtype that the checkpoint stores it in where that holds whole numbers only; "" for floats.
    """

    name: str
    count: int
    nan: int = 0
    inf: int = 0
    zeros: int = 0
    whole: str = ""


@dataclass(frozen=True, slots=True)
class HeadTrial:
    """What the head did with its real numbers, run on random hidden states of ordinary and of large size.

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
    engine: EngineHead | None = None
    run: RunTrial | None = None
    run_reason: str = ""
    is_chosen: bool = False


def verdict_on_all(verdicts: Iterable[Verdict]) -> Verdict:
    """Joins the verdicts on several models: failed before not determined, and passed only if all of them did."""
    found = set(verdicts)
    order = (Verdict.FAILED, Verdict.NOT_DETERMINED)
    return next((verdict for verdict in order if verdict in found), Verdict.PASSED)


@dataclass(frozen=True, slots=True)
class Ignored:
    """A finding that the user chose to ignore, and why."""

    finding: Finding
    """What was found."""
    reason: str
    """Why it is ignored, as the settings or the baseline say."""


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
