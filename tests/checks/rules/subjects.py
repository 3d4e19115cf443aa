"""Subjects of the rules, written by hand: a healthy checkpoint, and each way in which a rule finds it broken."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from headscope.checks.facts import Subject, TensorValues
from headscope.checks.rules import every_rule
from headscope.core.facts.built import BuiltFacts, ConfigFacts
from headscope.core.facts.health import HeadHealth, HealthBasis, HealthVerdict
from headscope.core.facts.stored.tokenizer import AffectedTexts, IdEffect, TokenId, TokenizerFacts
from headscope.core.facts.trial import HeadTrial, RunScope, RunTrial
from headscope.facts import (
    AdapterFacts,
    AdapterFault,
    AdapterFaultKind,
    CheckpointFacts,
    CheckpointKind,
    CheckpointState,
    Finding,
    Head,
    HeadParameter,
    Mismatch,
    ModelFacts,
    PaddingEffect,
    ParameterCounts,
    ParameterOrigin,
    ParameterStatus,
    Pooling,
    PoolingKind,
    Profile,
    Quantization,
    Repair,
    Repaired,
    Report,
    Severity,
    Stage,
    StateKind,
    Task,
    TensorHeader,
    TensorKind,
    Verification,
    WeightDiff,
    WeightsFormat,
)
from headscope.shared.labeled.facts import DataClass, DataFacts, Fit, LabelKind, Order, Predictions
from tests.reports import ENVIRONMENT

RULES = every_rule()

LOADED, NEW, MISMATCHED = ParameterStatus.LOADED, ParameterStatus.NEW, ParameterStatus.MISMATCHED
IGNORED, UNKNOWN = ParameterStatus.IGNORED, ParameterStatus.UNKNOWN
TRAINING, INFERENCE = Profile.TRAINING, Profile.INFERENCE
ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE
NAMED = (("0", "no"), ("1", "maybe"), ("2", "yes"))
INVERSE = (("no", "0"), ("maybe", "1"), ("yes", "2"))

DENSE, CLASSIFIER, BIAS = "pooler.dense.weight", "classifier.weight", "classifier.bias"
SHAPES = {DENSE: (8, 8), CLASSIFIER: (3, 8), BIAS: (3,)}


def parameter(name: str, status: ParameterStatus = LOADED, **changes: Any) -> HeadParameter:
    shape = changes.pop("shape", SHAPES.get(name, (8,)))
    made = HeadParameter(name, shape, "float32", prod(shape), status, True, (name,))
    return replace(made, **changes)


def stage(operation: str, *names: str) -> Stage:
    return Stage(0, operation, "", "Linear", False, (), ("batch", 3), names, "", 1)


def head(*parameters: HeadParameter, kind: PoolingKind = PoolingKind.FIRST_TOKEN, **changes: Any) -> Head:
    given = parameters or (parameter(DENSE), parameter(CLASSIFIER), parameter(BIAS))
    stages = (stage("select"), stage("linear", DENSE), stage("linear", CLASSIFIER, BIAS), stage("alias"))
    made = Head(("pooler", "classifier"), Pooling(kind, (), "", ()), stages, given, "")
    return replace(made, **changes)


def model(**changes: Any) -> ModelFacts:
    made = ModelFacts("Some", Task.SEQUENCE_CLASSIFICATION, 3, ("no", "maybe", "yes"), False, None, "CrossEntropyLoss",
                      "softmax", ParameterCounts(100, 60, 40, 40), "float32")  # fmt: skip
    return replace(made, **changes)


def origin(name: str, in_base: bool = True, **changes: Any) -> ParameterOrigin:
    return replace(ParameterOrigin(name, (8,), "float32", 8, LOADED, (name,), in_base), **changes)


def weights(**changes: Any) -> WeightDiff:
    return replace(WeightDiff(3, (), (), (), (), ()), **changes)


def checkpoint(**changes: Any) -> CheckpointFacts:
    made = CheckpointFacts("org/model", CheckpointKind.LOCAL, None, None, WeightsFormat.SAFETENSORS,
                           ("model.safetensors",), 3, 1, 2, ("SomeModel",), "some")  # fmt: skip
    return replace(made, **changes)


def subject(profile: Profile = TRAINING, **changes: Any) -> Subject:
    """A healthy checkpoint with changes: those named like parts of a report go there, others into the subject."""
    parts: dict[str, Any] = {"checkpoint": checkpoint(), "model": model(), "weights": weights(), "head": head()}
    parts |= {name: changes.pop(name) for name in (*parts, "adapter", "not_determined") if name in changes}
    report = Report("0.1.0", "check", ENVIRONMENT, **parts)
    config = changes.pop("config", ConfigFacts(3, NAMED, INVERSE))
    changes.setdefault("run", RAN)
    return Subject(report, profile, config, changes.pop("built", BuiltFacts(3, 100, 0, (2,))), **changes)


RAN = RunTrial(
    RunScope(14, 1, 22, "cpu"), batch_difference=1e-6, batch_bound=1e-3, side="right", ignores_middle=False,
    repeats_equal=True, unknown_tokens=0.1, longest=512, begins_with_cls=True,
)  # fmt: skip
"""A run in which everything was as it should be."""


def findings(identifier: str, about: Subject) -> list[Finding]:
    """What a rule finds; whatever it is, the table of severities declares it for the profile."""
    found = list(RULES[identifier].judge(RULES[identifier], about))
    if RULES[identifier].command == "check":
        assert {item.severity for item in found} <= set(RULES[identifier].severities.of(about.profile))
    return found


def severities(identifier: str, **changes: Any) -> tuple[list[Severity], list[Severity]]:
    """What a rule finds for training and for inference."""
    both = (findings(identifier, subject(profile, **changes)) for profile in (TRAINING, INFERENCE))
    one, other = ([item.severity for item in found] for found in both)
    return one, other


OF_CHECK = sorted(identifier for identifier, rule in RULES.items() if rule.command == "check")
SILENT: tuple[list[Severity], list[Severity]] = ([], [])


DATA = DataFacts(
    "rows.parquet", "parquet", None, 30, ("label",), ("text",), LabelKind.INTEGERS,
    tuple(DataClass(str(number), 10, number, Fit.ID) for number in range(3)), ("no", "maybe", "yes"),
    predictions=Predictions(30, "cpu", Order.SAME),
)  # fmt: skip


BASE = tuple(origin(f"base.layer.{number}") for number in range(4))
OUTSIDE = tuple(item.name for item in BASE)


def missing(count: int, *unused: str, extra: tuple[ParameterOrigin, ...] = (), **changes: Any) -> Subject:
    diff = weights(new=OUTSIDE[:count], unused=unused, parameters=(*BASE, *extra), **changes)
    return subject(weights=diff)


WRAPPED = tuple(f"module.{name}" for name in OUTSIDE)
STATE = CheckpointState(
    StateKind.WRAPPED_KEYS,
    "a tool",
    "They are wrapped.",
    ("all 4 keys begin with 'module.'",),
    Repair("Unwrap:", "x = 1"),
)


def wrapped(*still_new: str) -> Subject:
    """A checkpoint whose keys a repair makes those of the model, but for some."""
    before = missing(4, *WRAPPED)
    diff = weights(new=still_new, parameters=BASE)
    report = replace(
        before.report, checkpoint=checkpoint(states=(STATE,)), repaired=Repaired(("HS802",), "unwrapped", diff)
    )
    return replace(before, report=report)


EMPTY = Mismatch("base.layer.0", (0,), (8,))


def adapter(**changes: Any) -> AdapterFacts:
    return replace(AdapterFacts("org/adapter", "LORA", "SEQ_CLS", "org/model", 2), **changes)


SOFTMAXED = head(stages=(replace(stage("softmax"), detail="dim=-1", file="own/model.py", line=12),))
SIGMOID = head(stages=(stage("sigmoid"),))
ALL_NEW = head(parameter(CLASSIFIER, NEW), parameter(BIAS, NEW))
STATISTICS = (parameter("bn.running_mean", NEW, kind=TensorKind.BUFFER),)
NEW_CLASSIFIER = head(parameter(DENSE), parameter(CLASSIFIER, NEW), parameter(BIAS, NEW))
NEW_DENSE = head(parameter(DENSE, NEW), parameter(CLASSIFIER), parameter(BIAS))


OTHER_SHAPE = head(parameter(DENSE, MISMATCHED, checkpoint_shape=(9, 8)), parameter(CLASSIFIER))
IDLE = {"head": head(not_live=("idle.weight",)), "weights": weights(mismatched=(Mismatch("idle.weight", (9,), (8,)),))}


def leftovers(*tensors: TensorHeader, **changes: Any) -> WeightDiff:
    return weights(unused=tuple(item.key for item in tensors), unused_tensors=tensors, **changes)


FOUND = TensorHeader("head.out.weight", "float32", (3, 8))


def fault(kind: AdapterFaultKind, name: str = "x") -> AdapterFault:
    return AdapterFault(kind, name, "found", "expected")


TWO = parameter(CLASSIFIER, MISMATCHED, checkpoint_shape=(2, 8))


TWO_NAMES = (("0", "a"), ("1", "b"))
CONTRADICTIONS = (
    ConfigFacts(None, (("1", "a"), ("2", "b"))),
    ConfigFacts(None, (("0", "a"), ("1", "a"))),
    ConfigFacts(None, TWO_NAMES, (("a", "1"), ("b", "1"))),
    ConfigFacts(None, TWO_NAMES, (("a", "0"), ("b", "1"), ("c", "2"))),
    ConfigFacts(None, TWO_NAMES, (("a", "0"),)),
)


LAST_REAL, EOS = PoolingKind.LAST_NON_PAD_TOKEN, PoolingKind.EOS_TOKEN


RIGHT, LEFT = TokenizerFacts("right", "<pad>", "</s>"), TokenizerFacts("left", "<pad>", "</s>")


def measured(*effects: PaddingEffect) -> Head:
    return head(verification=Verification(True, "", (), effects))


LANGUAGE = BuiltFacts(3, 100, 0, kind="language model")


def quantized(**changes: Any) -> ModelFacts:
    return model(quantization=replace(Quantization("bitsandbytes", 4, False), **changes))


def values(name: str, **changes: Any) -> TensorValues:
    return replace(TensorValues(name, 1000), **changes)


HEALTHY = HeadTrial()


TRIALS = (
    (HeadTrial(fails="dtypes differ"), ([ERROR], [ERROR])),
    (HeadTrial(finite=False), ([ERROR], [ERROR])),
    (HeadTrial(moves=False), ([WARNING], [ERROR])),
    (HeadTrial(winner=2), ([WARNING], [ERROR])),
    (HeadTrial(winner=0), ([WARNING], [ERROR])),
    (HeadTrial(stuck=(0, 2)), ([WARNING], [WARNING])),
)


def health(verdict: HealthVerdict = HealthVerdict.FRESH, **changes: Any) -> HeadHealth:
    basis = HealthBasis.STATISTICS
    return replace(HeadHealth(verdict, 0.97, basis, ("its bias is zero", "its spread fits"), CLASSIFIER), **changes)


PAD = TokenId("pad", "<pad>", 6, "tokenizer.json", True)
CONFIGURED = BuiltFacts(3, 100, 5, token_ids=(("pad", 5),), embedding_rows=100)


def tokenized(*tokens: TokenId, **more: Any) -> dict[str, Any]:
    return {"tokenizer": TokenizerFacts("right", "<pad>", None, tokens, **more), "built": CONFIGURED}


def with_effect(reach: AffectedTexts) -> Subject:
    effect = IdEffect("pad", 5, "config.json", reach, "in a batch get other scores")
    return subject(**tokenized(PAD, effects=(effect,)))


TOO_LONG = tokenized(max_length=513, too_long="IndexError") | {"built": replace(CONFIGURED, positions=512)}


MEMORY = checkpoint(kind=CheckpointKind.MEMORY)
ZEROS = TensorValues(BIAS, 3, zeros=3)


CHANGED_WEIGHTS = weights(
    parameters=tuple(
        origin(name, name != CLASSIFIER, status=ParameterStatus.CHANGED) for name in (CLASSIFIER, "base.x")
    )
)
TRAINED_SINCE = subject(
    INFERENCE, head=head(parameter(CLASSIFIER, ParameterStatus.CHANGED), parameter(BIAS)), checkpoint=MEMORY,
    weights=CHANGED_WEIGHTS,
)  # fmt: skip
