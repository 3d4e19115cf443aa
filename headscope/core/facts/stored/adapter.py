"""What a PEFT adapter does to the head of its base model."""

from dataclasses import dataclass
from enum import StrEnum


class Carried(StrEnum):
    """How an adapter carries a parameter: whole (`saved`), or as a change of its module's output (`adapted`)."""

    SAVED = "saved"
    ADAPTED = "adapted"


class AdapterFaultKind(StrEnum):
    """What is wrong in an adapter, by what it leads to.

    `refused`, `shape` and `word_rows` (word embeddings of another number of tokens): PEFT raises an error;
    `scaling`: what the adapter adds is multiplied by 0, or by no finite number;
    `whole_numbers`: PEFT loads integers, without a scale, as weights; `missing`: PEFT initializes the tensor;
    `unexpected`: PEFT ignores the tensor.
    """

    REFUSED = "refused"
    SHAPE = "shape"
    WORD_ROWS = "word_rows"
    SCALING = "scaling"
    WHOLE_NUMBERS = "whole_numbers"
    MISSING = "missing"
    UNEXPECTED = "unexpected"

    @property
    def is_refused(self) -> bool:
        """True if `PeftModel.from_pretrained` raises an error."""
        return self in (AdapterFaultKind.REFUSED, AdapterFaultKind.SHAPE, AdapterFaultKind.WORD_ROWS)


@dataclass(frozen=True, slots=True, order=True)
class AdapterFault:
    """One setting or tensor of an adapter that does not fit: its name, what was found, what PEFT expects."""

    kind: AdapterFaultKind
    """`refused`, `shape` and `word_rows` make PEFT raise an error, `scaling` makes the adapter's output 0, infinite or
    NaN, `whole_numbers` are integers loaded as weights without a scale, PEFT initializes what is `missing` and ignores
    what is `unexpected`."""
    name: str
    """The tensor's key, or the class of PEFT's error."""
    found: str
    """What was found."""
    expected: str
    """What PEFT expects."""
    is_empty: bool = False
    """Whether the file stores the tensor without any element."""


@dataclass(frozen=True, slots=True)
class AdapterFacts:
    """An adapter as a report shows it."""

    reference: str
    """Where the adapter was found."""
    method: str
    """PEFT's name of the method, such as `LORA`."""
    task_type: str | None
    """PEFT's name of the task, such as `SEQ_CLS`; null where the adapter names none."""
    base: str
    """The reference of the base model that was examined."""
    tensors: int
    """How many tensors the adapter's file holds."""
    saved: tuple[str, ...] = ()
    """Parameters that the adapter's file holds whole."""
    adapted: tuple[str, ...] = ()
    """Modules of the head whose output the adapter changes."""
    not_carried: tuple[str, ...] = ()
    """Parameters behind the logits that neither base nor adapter gives: random at every load."""
    modules_to_save: tuple[str, ...] = ()
    """What the PEFT configuration would have to say for those to be saved."""
    promised: tuple[str, ...] = ()
    """Modules that PEFT expects in the adapter's file and that are not there: it raises a KeyError."""
    faults: tuple[AdapterFault, ...] = ()
    """Settings and tensors that do not fit the adapter's configuration or the base model."""
    base_revision: str | None = None
    """The requested or pinned revision of the base model; null if there is none."""
    base_commit: str | None = None
    """The commit at which the base model was read; null where it does not come from the Hub."""
    own_class: str = ""
    """The class of the model that the adapter belongs to if that isn't a classifier, such as `AutoModelForCausalLM`;
    empty otherwise."""
    virtual_tokens: int = 0
    """How many virtual tokens PEFT puts before each text, as inputs or as keys and values of each layer: they count
    against the length of a text."""
    load_options: tuple[str, ...] = ()
    """What the load of the base model needs for the adapter's whole tensors, such as `num_labels=5`; empty where its
    own sizes are theirs."""
    word_rows: int | None = None
    """The tokens whose word embeddings the adapter holds, where the base model has others; null otherwise."""

    @property
    def own_model(self) -> str:
        """Kind of model that the adapter is for, if not a classifier: `a language model (CAUSAL_LM)`; "" otherwise."""
        noun = "a language model" if "LM" in self.own_class else "a model without a classifier"
        return f"{noun} ({self.task_type or self.own_class})" if self.own_class else ""

    @property
    def is_refused(self) -> bool:
        """True if `PeftModel.from_pretrained` raises an error."""
        return bool(self.promised) or any(item.kind.is_refused for item in self.faults)

    @property
    def is_broken(self) -> bool:
        """True if the adapter does not do what was trained."""
        return bool(self.promised or self.not_carried or self.faults)


_WORDS = {
    AdapterFaultKind.REFUSED: "{found}",
    AdapterFaultKind.SHAPE: "{name} is {found}, but PEFT expects {expected}",
    AdapterFaultKind.WORD_ROWS: "{name} of the adapter are those of {found} tokens, the base model has {expected}",
    AdapterFaultKind.SCALING: "{name} is {found}, so what the adapter adds is not what was trained",
    AdapterFaultKind.WHOLE_NUMBERS: "{name} is stored as {found} without a scale, where the model has {expected}",
    AdapterFaultKind.MISSING: "the file doesn't fill {name} ({expected}), so PEFT initializes it",
    AdapterFaultKind.UNEXPECTED: "PEFT ignores {name} ({found}): with this configuration, it expects no such tensor",
}


def describe_fault(fault: AdapterFault) -> str:
    """Describes the fault in one clause."""
    return _WORDS[fault.kind].format(name=fault.name, found=fault.found, expected=fault.expected)
