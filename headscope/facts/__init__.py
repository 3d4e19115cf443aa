"""Everything a report can say: frozen dataclasses of str, int, bool, enum and tuple. Read this first."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headscope.facts.heads.atlas import (
        AtlasHead as AtlasHead,
        AtlasParameter as AtlasParameter,
        HeadEntry as HeadEntry,
    )
    from headscope.facts.heads.head import (
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
    from headscope.facts.heads.tasks import Task as Task
    from headscope.facts.heads.tokens import HiddenSource as HiddenSource, Positions as Positions, Where as Where
    from headscope.facts.results.check import CheckResult as CheckResult, Ignored as Ignored, Verdict as Verdict
    from headscope.facts.results.comparison import (
        Comparison as Comparison,
        Difference as Difference,
        SameValues as SameValues,
    )
    from headscope.facts.results.environment import Environment as Environment
    from headscope.facts.results.forward import (
        ForwardReport as ForwardReport,
        LabelScore as LabelScore,
        Scored as Scored,
        SeenStage as SeenStage,
    )
    from headscope.facts.results.health import (
        HeadHealth as HeadHealth,
        HealthBasis as HealthBasis,
        HealthVerdict as HealthVerdict,
    )
    from headscope.facts.results.report import (
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
    from headscope.facts.stored.adapter import (
        AdapterFacts as AdapterFacts,
        AdapterFault as AdapterFault,
        AdapterFaultKind as AdapterFaultKind,
        Carried as Carried,
    )
    from headscope.facts.stored.checkpoint import (
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
    from headscope.facts.stored.sentence import (
        ModuleTensor as ModuleTensor,
        PickledHead as PickledHead,
        SentenceModule as SentenceModule,
        SentencePipeline as SentencePipeline,
    )
    from headscope.facts.stored.states import (
        CheckpointState as CheckpointState,
        Repair as Repair,
        StateKind as StateKind,
    )
    from headscope.facts.stored.weights import (
        Mismatch as Mismatch,
        ParameterOrigin as ParameterOrigin,
        ParameterStatus as ParameterStatus,
        Rename as Rename,
        Tie as Tie,
        UnusedGroup as UnusedGroup,
        WeightDiff as WeightDiff,
    )

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
            "CheckpointFacts CheckpointKind CheckpointManifest DecisionHead Gap GapTopic ScoreHead TensorHeader "
            "WeightFile WeightsFormat"
        ),
        "facts.stored.sentence": "ModuleTensor PickledHead SentenceModule SentencePipeline",
        "facts.stored.states": "CheckpointState Repair StateKind",
        "facts.stored.weights": "Mismatch ParameterOrigin ParameterStatus Rename Tie UnusedGroup WeightDiff",
    }
    _MODULE_OF = {name: f"headscope.{module}" for module, names in _NAMES_OF.items() for name in names.split()}
    __all__ = list(_MODULE_OF)

    def __getattr__(name: str) -> object:
        """A fact, imported on first use."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'headscope.facts' has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_MODULE_OF[name]), name)
