"""Everything a report can say: frozen dataclasses of str, int, bool, enum and tuple. Read this first."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headscope.core.facts.environment import Environment as Environment
    from headscope.core.facts.heads.atlas import (
        AtlasHead as AtlasHead,
        AtlasParameter as AtlasParameter,
        HeadEntry as HeadEntry,
    )
    from headscope.core.facts.heads.head import (
        Evidence as Evidence,
        Head as Head,
        HeadParameter as HeadParameter,
        HeadTrace as HeadTrace,
        PaddingEffect as PaddingEffect,
        Pooling as Pooling,
        PoolingKind as PoolingKind,
        PoolingPart as PoolingPart,
        Shape as Shape,
        Stage as Stage,
        TensorKind as TensorKind,
        TokenRow as TokenRow,
        TokenRows as TokenRows,
        UnusedModule as UnusedModule,
        Verification as Verification,
    )
    from headscope.core.facts.heads.tasks import Task as Task
    from headscope.core.facts.heads.tokens import HiddenSource as HiddenSource, Positions as Positions, Where as Where
    from headscope.core.facts.health import (
        HeadHealth as HeadHealth,
        HealthBasis as HealthBasis,
        HealthVerdict as HealthVerdict,
    )
    from headscope.core.facts.report import (
        SCHEMA_VERSION as SCHEMA_VERSION,
        Finding as Finding,
        ModelFacts as ModelFacts,
        ParameterCounts as ParameterCounts,
        Profile as Profile,
        Quantization as Quantization,
        Repaired as Repaired,
        Report as Report,
        Severity as Severity,
    )
    from headscope.core.facts.seen import SeenStage as SeenStage
    from headscope.core.facts.stored.adapter import (
        AdapterFacts as AdapterFacts,
        AdapterFault as AdapterFault,
        AdapterFaultKind as AdapterFaultKind,
        Carried as Carried,
    )
    from headscope.core.facts.stored.checkpoint import (
        CheckpointFacts as CheckpointFacts,
        CheckpointKind as CheckpointKind,
        CheckpointManifest as CheckpointManifest,
        DecisionHead as DecisionHead,
        Gap as Gap,
        GapTopic as GapTopic,
        ScoreHead as ScoreHead,
        TensorHeader as TensorHeader,
        WeightFile as WeightFile,
        WeightsFormat as WeightsFormat,
    )
    from headscope.core.facts.stored.sentence import (
        ModuleTensor as ModuleTensor,
        PickledHead as PickledHead,
        SentenceModule as SentenceModule,
        SentencePipeline as SentencePipeline,
    )
    from headscope.core.facts.stored.states import (
        CheckpointState as CheckpointState,
        Repair as Repair,
        StateKind as StateKind,
    )
    from headscope.core.facts.stored.weights import (
        Mismatch as Mismatch,
        ParameterOrigin as ParameterOrigin,
        ParameterStatus as ParameterStatus,
        Rename as Rename,
        Tie as Tie,
        UnusedGroup as UnusedGroup,
        WeightDiff as WeightDiff,
    )
    from headscope.core.facts.verdict import Ignored as Ignored, Verdict as Verdict

if not TYPE_CHECKING:  # as in headscope.api: a command imports only the facts that it needs
    _NAMES_OF = {
        "heads.atlas": "AtlasHead AtlasParameter HeadEntry",
        "heads.head": (
            "Evidence Head HeadParameter HeadTrace PaddingEffect Pooling PoolingKind PoolingPart Shape Stage "
            "TensorKind TokenRow TokenRows UnusedModule Verification"
        ),
        "heads.tasks": "Task",
        "heads.tokens": "HiddenSource Positions Where",
        "verdict": "Ignored Verdict",
        "environment": "Environment",
        "seen": "SeenStage",
        "health": "HeadHealth HealthBasis HealthVerdict",
        "report": ("SCHEMA_VERSION Finding ModelFacts ParameterCounts Profile Quantization Repaired Report Severity"),
        "stored.adapter": "AdapterFacts AdapterFault AdapterFaultKind Carried",
        "stored.checkpoint": (
            "CheckpointFacts CheckpointKind CheckpointManifest DecisionHead Gap GapTopic ScoreHead TensorHeader "
            "WeightFile WeightsFormat"
        ),
        "stored.sentence": "ModuleTensor PickledHead SentenceModule SentencePipeline",
        "stored.states": "CheckpointState Repair StateKind",
        "stored.weights": "Mismatch ParameterOrigin ParameterStatus Rename Tie UnusedGroup WeightDiff",
    }
    _MODULE_OF = {
        name: f"headscope.core.facts.{module}" for module, names in _NAMES_OF.items() for name in names.split()
    }
    __all__ = list(_MODULE_OF)

    def __getattr__(name: str) -> object:
        """A fact, imported on first use."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'headscope.core.facts' has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_MODULE_OF[name]), name)
