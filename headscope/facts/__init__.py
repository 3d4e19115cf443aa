"""Everything a report can say: frozen dataclasses of str, int, bool, enum and tuple. Read this first."""

from headscope.facts.adapter import AdapterFacts, AdapterFault, AdapterFaultKind, Carried
from headscope.facts.atlas import AtlasHead, AtlasParameter, HeadEntry
from headscope.facts.check import CheckResult, Ignored, Verdict
from headscope.facts.checkpoint import (
    CheckpointFacts,
    CheckpointKind,
    CheckpointManifest,
    SentencePipeline,
    TensorHeader,
    Unavailable,
    WeightFile,
    WeightsFormat,
)
from headscope.facts.comparison import Comparison, Difference, SameValues
from headscope.facts.environment import Environment
from headscope.facts.forward import ForwardReport, LabelScore, Scored, SeenStage
from headscope.facts.head import (
    Evidence,
    Head,
    HeadParameter,
    HeadTrace,
    PaddingEffect,
    Pooling,
    PoolingKind,
    PoolingPart,
    Shape,
    Stage,
    TensorKind,
    UnusedModule,
    Verification,
)
from headscope.facts.repaired import Repaired
from headscope.facts.report import (
    SCHEMA_VERSION,
    Finding,
    ModelFacts,
    ParameterCounts,
    Profile,
    Quantisation,
    Report,
    Severity,
)
from headscope.facts.states import CheckpointState, Repair, StateKind
from headscope.facts.tasks import Task
from headscope.facts.tokens import HiddenSource, Positions, Where
from headscope.facts.weights import Mismatch, ParameterOrigin, ParameterStatus, Rename, Tie, UnusedGroup, WeightDiff

__all__ = [
    "SCHEMA_VERSION",
    "AdapterFacts",
    "AdapterFault",
    "AdapterFaultKind",
    "AtlasHead",
    "AtlasParameter",
    "Carried",
    "CheckResult",
    "CheckpointFacts",
    "CheckpointKind",
    "CheckpointManifest",
    "CheckpointState",
    "Comparison",
    "Difference",
    "Environment",
    "Evidence",
    "Finding",
    "ForwardReport",
    "Head",
    "HeadEntry",
    "HeadParameter",
    "HeadTrace",
    "HiddenSource",
    "Ignored",
    "LabelScore",
    "Mismatch",
    "ModelFacts",
    "PaddingEffect",
    "ParameterCounts",
    "ParameterOrigin",
    "ParameterStatus",
    "Pooling",
    "PoolingKind",
    "PoolingPart",
    "Positions",
    "Profile",
    "Quantisation",
    "Rename",
    "Repair",
    "Repaired",
    "Report",
    "SameValues",
    "Scored",
    "SeenStage",
    "SentencePipeline",
    "Severity",
    "Shape",
    "Stage",
    "StateKind",
    "Task",
    "TensorHeader",
    "TensorKind",
    "Tie",
    "Unavailable",
    "UnusedGroup",
    "UnusedModule",
    "Verdict",
    "Verification",
    "WeightDiff",
    "WeightFile",
    "WeightsFormat",
    "Where",
]
