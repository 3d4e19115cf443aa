"""The atlas: what is known of a classification class without any checkpoint."""

from dataclasses import dataclass, field

from headscope.facts.head import Pooling, Shape, Stage, UnusedModule, Verification
from headscope.facts.tasks import Task


@dataclass(frozen=True, slots=True, order=True)
class AtlasParameter:
    """A parameter or a persistent buffer of a head at the default configuration."""

    name: str
    shape: tuple[int, ...]
    count: int
    live: bool


@dataclass(frozen=True, slots=True)
class AtlasHead:
    """The head of a class at its default configuration; `buffers` are such as the statistics of a BatchNorm."""

    modules: tuple[str, ...]
    pooling: Pooling
    stages: tuple[Stage, ...]
    parameters: tuple[AtlasParameter, ...]
    formula: str
    loss: str
    hidden_shape: Shape
    unused_modules: tuple[UnusedModule, ...] = ()
    buffers: tuple[AtlasParameter, ...] = ()
    verification: Verification | None = None


@dataclass(frozen=True, slots=True)
class HeadEntry:
    """One classification class of the installed Transformers.

    `by` is how it was traced: `shapes` (no weights), `reduced` (a smaller model with real weights), or None.
    `new_from_pretraining` are the head's parameters that a checkpoint of `pretraining_class`, the family's usual
    pretraining class, does not bring. `depends_on` are the configuration fields that the head reads; `filled` those
    that the default configuration leaves open and that were set to trace it.
    """

    class_name: str = field(metadata={"json": "class"})
    task: Task
    model_type: str
    traced: bool
    by: str | None = None
    reason: str = ""
    pretraining_class: str | None = None
    new_from_pretraining: tuple[str, ...] = ()
    depends_on: tuple[str, ...] = ()
    filled: tuple[str, ...] = ()
    head: AtlasHead | None = None
