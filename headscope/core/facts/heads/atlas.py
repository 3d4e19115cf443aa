"""The atlas: what is known of a classification class without any checkpoint."""

from dataclasses import dataclass, field

from headscope.core.facts.heads.head import Pooling, Shape, Stage, UnusedModule, Verification
from headscope.core.facts.heads.tasks import Task


@dataclass(frozen=True, slots=True, order=True)
class AtlasParameter:
    """A parameter or a persistent buffer of a head at the default configuration."""

    name: str
    """The parameter's name in the model."""
    shape: tuple[int, ...]
    """The sizes of its axes at the default configuration."""
    count: int
    """How many numbers it holds."""
    live: bool
    """Whether the logits depend on it."""


@dataclass(frozen=True, slots=True)
class AtlasHead:
    """The head of a class at its default configuration; `buffers` are such as the statistics of a BatchNorm."""

    modules: tuple[str, ...]
    """The modules that belong to the head."""
    pooling: Pooling
    """Which positions of the hidden states the classifier reads."""
    stages: tuple[Stage, ...]
    """The operations from the hidden states to the logits, in the order in which they run."""
    parameters: tuple[AtlasParameter, ...]
    """The parameters of the head."""
    formula: str
    """The head as one line."""
    loss: str
    """The loss that ran on labels, by PyTorch's name."""
    hidden_shape: Shape
    """The shape of the hidden states that the head reads."""
    unused_modules: tuple[UnusedModule, ...] = ()
    """Modules of the class that are beside the path to the logits."""
    buffers: tuple[AtlasParameter, ...] = ()
    """The persistent buffers of the head, such as the statistics of a BatchNorm."""
    verification: Verification | None = None
    """What the gradients of the head say of the pooling; null where none were taken."""


@dataclass(frozen=True, slots=True)
class HeadEntry:
    """One classification class of the installed Transformers."""

    class_name: str = field(metadata={"json": "class"})
    """The class of Transformers."""
    task: Task
    """Its task."""
    model_type: str
    """Its family, as configurations name it."""
    traced: bool
    """Whether its head could be traced."""
    by: str | None = None
    """`shapes` (no weights), `reduced` (a smaller model with real weights), or null where it was not traced."""
    reason: str = ""
    """Why it was not traced, or not by shapes; otherwise empty."""
    pretraining_class: str | None = None
    """The family's usual pretraining class; null where there is none."""
    new_from_pretraining: tuple[str, ...] = ()
    """Parameters of the head that a checkpoint of that class does not bring."""
    depends_on: tuple[str, ...] = ()
    """Configuration fields that the head reads."""
    filled: tuple[str, ...] = ()
    """Configuration fields that the default leaves open and that were set to trace it."""
    head: AtlasHead | None = None
    """The head at the default configuration; null where it was not traced."""


@dataclass(frozen=True, slots=True)
class ClassSource:
    """Where a package defines a class: the file below the folder of packages, and the line of the class."""

    name: str
    file: str
    line: int
    docstring: str = ""
    forward: str = ""
    """The source of its `forward`; empty for a class without one."""
