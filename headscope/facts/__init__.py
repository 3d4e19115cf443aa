"""Everything a report can say: frozen dataclasses of str, int, bool, enum and tuple. Read this first."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headscope.facts.heads.atlas import AtlasHead, AtlasParameter, HeadEntry
    from headscope.facts.heads.head import (
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
        TokenRow,
        TokenRows,
        UnusedModule,
        Verification,
    )
    from headscope.facts.heads.tasks import Task
    from headscope.facts.heads.tokens import HiddenSource, Positions, Where
    from headscope.facts.results.check import CheckResult, Ignored, Verdict
    from headscope.facts.results.comparison import Comparison, Difference, SameValues
    from headscope.facts.results.environment import Environment
    from headscope.facts.results.forward import ForwardReport, LabelScore, Scored, SeenStage
    from headscope.facts.results.health import HeadHealth, HealthBasis, HealthVerdict
    from headscope.facts.results.report import (
        SCHEMA_VERSION,
        Finding,
        ModelFacts,
        ParameterCounts,
        Profile,
        Quantization,
        Repaired,
        Report,
        Severity,
    )
    from headscope.facts.stored.adapter import AdapterFacts, AdapterFault, AdapterFaultKind, Carried
    from headscope.facts.stored.checkpoint import (
        CheckpointFacts,
        CheckpointKind,
        CheckpointManifest,
        Gap,
        GapTopic,
        ScoreHead,
        TensorHeader,
        WeightFile,
        WeightsFormat,
    )
    from headscope.facts.stored.sentence import ModuleTensor, PickledHead, SentenceModule, SentencePipeline
    from headscope.facts.stored.states import CheckpointState, Repair, StateKind
    from headscope.facts.stored.weights import (
        Mismatch,
        ParameterOrigin,
        ParameterStatus,
        Rename,
        Tie,
        UnusedGroup,
        WeightDiff,
    )

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
    "Gap",
    "GapTopic",
    "Head",
    "HeadEntry",
    "HeadHealth",
    "HeadParameter",
    "HeadTrace",
    "HealthBasis",
    "HealthVerdict",
    "HiddenSource",
    "Ignored",
    "LabelScore",
    "Mismatch",
    "ModelFacts",
    "ModuleTensor",
    "PaddingEffect",
    "ParameterCounts",
    "ParameterOrigin",
    "ParameterStatus",
    "PickledHead",
    "Pooling",
    "PoolingKind",
    "PoolingPart",
    "Positions",
    "Profile",
    "Quantization",
    "Rename",
    "Repair",
    "Repaired",
    "Report",
    "SameValues",
    "ScoreHead",
    "Scored",
    "SeenStage",
    "SentenceModule",
    "SentencePipeline",
    "Severity",
    "Shape",
    "Stage",
    "StateKind",
    "Task",
    "TensorHeader",
    "TensorKind",
    "Tie",
    "TokenRow",
    "TokenRows",
    "UnusedGroup",
    "UnusedModule",
    "Verdict",
    "Verification",
    "WeightDiff",
    "WeightFile",
    "WeightsFormat",
    "Where",
]

if not TYPE_CHECKING:  # as in headscope.api: a command imports only the facts that it needs
    _NAMES_OF = {
        "facts.heads.atlas": "AtlasHead AtlasParameter HeadEntry",
        "facts.heads.head": (
            "Evidence Head HeadParameter HeadTrace PaddingEffect Pooling PoolingKind PoolingPart Shape Stage "
            "TensorKind TokenRow TokenRows UnusedModule Verification"
        ),
        "facts.heads.tasks": "Task",
        "facts.heads.tokens": "HiddenSource Positions Where",
        "facts.results.check": "CheckResult Ignored Verdict",
        "facts.results.comparison": "Comparison Difference SameValues",
        "facts.results.environment": "Environment",
        "facts.results.forward": "ForwardReport LabelScore Scored SeenStage",
        "facts.results.health": "HeadHealth HealthBasis HealthVerdict",
        "facts.results.report": (
            "SCHEMA_VERSION Finding ModelFacts ParameterCounts Profile Quantization Repaired Report Severity"
        ),
        "facts.stored.adapter": "AdapterFacts AdapterFault AdapterFaultKind Carried",
        "facts.stored.checkpoint": (
            "CheckpointFacts CheckpointKind CheckpointManifest Gap GapTopic ScoreHead TensorHeader WeightFile "
            "WeightsFormat"
        ),
        "facts.stored.sentence": "ModuleTensor PickledHead SentenceModule SentencePipeline",
        "facts.stored.states": "CheckpointState Repair StateKind",
        "facts.stored.weights": "Mismatch ParameterOrigin ParameterStatus Rename Tie UnusedGroup WeightDiff",
    }
    _MODULE_OF = {name: f"headscope.{module}" for module, names in _NAMES_OF.items() for name in names.split()}

    def __getattr__(name: str) -> object:
        """A fact, imported on first use."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'headscope.facts' has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_MODULE_OF[name]), name)
