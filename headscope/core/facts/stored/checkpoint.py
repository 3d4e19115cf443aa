"""What a checkpoint is made of: files, tensor headers, configuration; no weights."""

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from headscope.core.facts.counting import few_of
from headscope.core.facts.stored.sentence import SentencePipeline
from headscope.core.facts.stored.states import CheckpointState

LABEL_MAPS = frozenset({"id2label", "label2id"})
"""The fields of a configuration that may hold a million entries."""

Shapes = Mapping[str, tuple[int, ...]]
"""The sizes of the axes of tensors by their names."""


class CheckpointKind(StrEnum):
    """Where the facts of a checkpoint were read."""

    HUB = "hub"
    LOCAL = "local"
    SNAPSHOT = "snapshot"
    ADAPTER = "adapter"
    MEMORY = "memory"
    CLASS = "class"


class WeightsFormat(StrEnum):
    """How the weights are stored."""

    SAFETENSORS = "safetensors"
    TORCH = "torch"
    NONE = "none"


CONFIG = "config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".onnx")
"""The suffixes of what may be given as a single weight file."""
WRITTEN_HEAD = ("classifier.py", "classifier.safetensors")
"""The files that `headscope probe --write-head` writes where the class can't hold the classifier."""


class GapTopic(StrEnum):
    """What a gap is on, where a screen or a rule depends on it; any other text may be the topic of a gap too."""

    HEAD = "head"
    HEAD_PATH = "head path"
    WITHOUT_PADDING = "head path without padding"
    SINGLE_TOKEN = "head path of a single token"
    OTHER_INPUTS = "head path on other inputs"
    POOLING = "pooling"
    LONG_TEXTS = "pooling of long texts"
    TOKEN_ROWS = "token rows"
    CHECKPOINT = "checkpoint"
    ADAPTER_FIT = "adapter fit"


@dataclass(frozen=True, slots=True, order=True)
class Gap:
    """Something that could not be determined, and why."""

    topic: str = field(metadata={"json": "what"})
    """What could not be determined, or does not apply."""
    reason: str
    """Why."""
    rule: str = field(default="", metadata={"json": None, "stored": False})
    """The ID of the rule that lacks it; empty where no rule is concerned."""


@dataclass(frozen=True, slots=True, order=True)
class TensorHeader:
    """One tensor of a checkpoint as its file's header describes it."""

    key: str
    """The tensor's name in the file."""
    dtype: str
    """Its number format, by PyTorch's name."""
    shape: tuple[int, ...]
    """The sizes of its axes, in elements as stored."""
    file: str = ""
    """The file that holds it."""
    data: tuple[int, int] | None = field(
        default=None, compare=False, repr=False, metadata={"json": None, "stored": False}
    )
    """Where its values are in a safetensors file: their first byte, and the byte after the last."""

    @property
    def key_in_file(self) -> str:
        """Its name in its file: a module of sentence-transformers, in its own folder, doesn't repeat the folder."""
        folder = self.file.rpartition("/")[0]
        return self.key.removeprefix(f"{folder}.") if folder else self.key


@dataclass(frozen=True, slots=True, order=True)
class WeightFile:
    """One weight file: its name inside the checkpoint, and its size in bytes (None where unknown)."""

    name: str
    size: int | None = None


@dataclass(frozen=True, slots=True, order=True)
class ScoreHead:
    """A head that another library saved beside the model, and that no class of Transformers loads.

    `lm_head` is one where it has fewer rows than the vocabulary has tokens: those of a few answers.
    """

    name: str
    """The prefix of its tensors."""
    scores: int
    """How many scores its last matrix makes."""
    weight: str
    """That matrix."""
    tensors: tuple[str, ...]
    """All its tensors, by their keys."""
    input_size: int | None = None
    """The size of the hidden states that it reads, where it is one linear layer; null where no file says what it
    computes."""
    has_bias: bool = False
    """Whether that layer adds a bias."""
    file: str = ""
    """Its own weight file; empty where it is among the model's weights."""


DECISION_CLASS = "JevForDecision"
"""The class of Transformers that decision models have."""


@dataclass(frozen=True, slots=True)
class DecisionHead:
    """What the files of a decision model say of its head, whose rows are the options of types of questions."""

    offsets: tuple[tuple[str, int], ...]
    """Types of questions, each with the row of its first option."""
    rows: int
    """How many rows the head has."""
    labels: tuple[str, ...]
    """What each row scores."""
    softcap: float | None
    """The soft cap of the scores; null for none."""
    temperatures: tuple[tuple[str, float], ...]
    """The temperature by which the scores of a type of questions are divided; 1 for a type without one."""
    faults: tuple[str, ...] = ()
    """How the files contradict each other, or what Transformers does with them."""
    adapter: str = ""
    """The folder of an adapter that Transformers' pipeline puts on the model; empty without one."""
    files: Mapping[str, Any] = field(default_factory=dict, compare=False, metadata={"json": None, "stored": False})
    """The files beside a language model, parsed, by their names; empty where `config.json` is the decision model's."""


def own_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Copies a configuration for somebody who may change it; the maps of labels are shared, which nobody changes."""
    return {name: value if name in LABEL_MAPS else deepcopy(value) for name, value in config.items()}


@dataclass(frozen=True, slots=True)
class CheckpointManifest:
    """Everything read of a checkpoint: its configuration and every tensor's key, shape, dtype and file.

    `config` is `config.json`, in the order of its names; nobody changes it (see `own_config`). `shared` groups the keys
    whose tensors use one storage (PyTorch files only). `notices` are sentences a reader must see (a bundled snapshot
    stood in for the Hub). `gaps` name what could not be read (a missing shard). With a PEFT adapter the
    manifest is that of the base model: `adapter` is the adapter's own; `base`, `base_revision` and `base_commit` say
    where the base model was read, while `reference`, `revision` and `commit` are the adapter's.
    `sentence` is what sentence-transformers puts after the model, None for other checkpoints; `decision` is the head
    of a decision model. `requests` counts those to the Hub, redirects and repetitions among them. `states` are those
    in which its files were found; `repaired` is the manifest that their repair would give, None where there is nothing
    to repair or its keys cannot be read. `lacks_tokenizer` says that a folder on this machine holds an adapter and no
    tokenizer's settings; it is false where that isn't known. `unread` are shards beside a single file that is read.
    """

    reference: str
    kind: CheckpointKind
    format: WeightsFormat
    config: Mapping[str, Any]
    tensors: tuple[TensorHeader, ...]
    files: tuple[WeightFile, ...]
    revision: str | None = None
    commit: str | None = None
    bytes_read: int = 0
    shared: tuple[tuple[str, ...], ...] = ()
    notices: tuple[str, ...] = ()
    gaps: tuple[Gap, ...] = ()
    adapter: "CheckpointManifest | None" = None
    base: str = ""
    base_revision: str | None = None
    base_commit: str | None = None
    sentence: SentencePipeline | None = None
    requests: int = 0
    states: tuple[CheckpointState, ...] = ()
    repaired: "CheckpointManifest | None" = None
    decision: DecisionHead | None = None
    lacks_tokenizer: bool = False
    unread: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # In one order, whatever the file's: what is made of it, a digest among them, follows the order.
        object.__setattr__(self, "config", dict(sorted(self.config.items())))

    @property
    def bytes_total(self) -> int:
        """Bytes of all weight files whose size is known."""
        return sum(file.size or 0 for file in self.files)


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """The checkpoint as a report shows it; `states` are those in which it was found, none for a clean one."""

    reference: str
    kind: CheckpointKind
    """Where the facts were read."""
    revision: str | None
    """The requested branch, tag or commit; null if there was none."""
    commit: str | None
    """The commit of the repository; null where there is none."""
    format: WeightsFormat
    """How the weights are stored."""
    files: tuple[str, ...]
    """The weight files, by their names in the checkpoint."""
    tensors: int
    """How many tensors the weight files hold."""
    bytes_read: int
    """Bytes that were read of the checkpoint."""
    bytes_total: int
    """Bytes of all weight files whose size is known."""
    architectures: tuple[str, ...]
    """The classes that the configuration names."""
    model_type: str | None
    """The family, as the configuration names it; null where it names none."""
    notices: tuple[str, ...] = field(default=())
    """Sentences a reader must see, such as that a bundled snapshot stood in for the Hub."""
    sentence_transformers: SentencePipeline | None = None
    """What sentence-transformers puts after the model; null for other checkpoints."""
    requests: int = 0
    """Requests to the Hub, redirects and repetitions among them."""
    states: tuple[CheckpointState, ...] = ()
    """In which states the checkpoint was found; empty for what `save_pretrained` writes."""
    score_heads: tuple[ScoreHead, ...] = ()
    """Heads that other libraries saved beside the model, such as TRL's `v_head`."""
    decision: DecisionHead | None = None
    """The head of a decision model; null for other checkpoints."""
    unread: tuple[str, ...] = ()
    """Shards that `from_pretrained` leaves out, because a single weight file is beside them."""


def architectures_in(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Reads the classes that a configuration names, in order; what isn't a name is left out."""
    named = config.get("architectures")
    return tuple(name for name in named if isinstance(name, str)) if isinstance(named, list) else ()


def merged_gaps(gaps: Iterable[Gap]) -> Iterator[Gap]:
    """Gaps of one reason as one gap, whose topic names a few of theirs."""
    topics: dict[str, list[str]] = {}
    for gap in gaps:
        topics.setdefault(gap.reason, []).append(gap.topic)
    return (Gap(few_of(concerned), reason) for reason, concerned in topics.items())


def told_gaps(gaps: Iterable[Gap]) -> Iterator[str]:
    """Each reason once, behind what it concerns: `HS103 head-partly-new, HS105 unused-weights-new: no head path`."""
    return (f"{gap.topic}: {gap.reason}" for gap in merged_gaps(gaps))
