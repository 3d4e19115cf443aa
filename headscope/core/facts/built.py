"""The configuration: as config.json has it, and as Transformers builds it."""

from dataclasses import dataclass

from headscope.core.facts.heads.tasks import Task
from headscope.core.facts.health import InitialSpread


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
