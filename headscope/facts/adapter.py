"""What a PEFT adapter does to the head of its base model."""

from dataclasses import dataclass
from enum import StrEnum


class Carried(StrEnum):
    """How an adapter carries a parameter: whole (`saved`), or as a change of its module's output (`adapted`)."""

    SAVED = "saved"
    ADAPTED = "adapted"


class AdapterFaultKind(StrEnum):
    """What is wrong in an adapter, by what it leads to.

    `refused` and `shape`: PEFT raises an error; `scaling`: what the adapter adds is not a finite number;
    `whole_numbers`: PEFT loads integers, without a scale, as weights; `missing`: PEFT initializes the tensor;
    `unexpected`: PEFT ignores the tensor.
    """

    REFUSED = "refused"
    SHAPE = "shape"
    SCALING = "scaling"
    WHOLE_NUMBERS = "whole_numbers"
    MISSING = "missing"
    UNEXPECTED = "unexpected"

    @property
    def is_refused(self) -> bool:
        """Whether `PeftModel.from_pretrained` raises an error."""
        return self in (AdapterFaultKind.REFUSED, AdapterFaultKind.SHAPE)


@dataclass(frozen=True, slots=True, order=True)
class AdapterFault:
    """One setting or tensor of an adapter that does not fit: its name, what was found, what PEFT expects.

    `is_empty`: a tensor without any element.
    """

    kind: AdapterFaultKind
    name: str
    found: str
    expected: str
    is_empty: bool = False


@dataclass(frozen=True, slots=True)
class AdapterFacts:
    """An adapter as a report shows it.

    `method` is PEFT's name (`LORA`); `base` the reference of the base model that was examined, at
    `base_revision` and `base_commit`; `saved` names the
    parameters that the adapter file holds whole; `adapted` the modules whose output it changes, those in the head
    only; `not_carried` the parameters that the logits depend on and that neither base nor adapter gives: they are
    random at every load. `modules_to_save` is what the PEFT configuration would have to say for them to be saved.
    `promised` are modules that PEFT expects in the file and that are not there: it raises a KeyError. `faults` are
    the settings and tensors that do not fit the configuration or the base model.
    """

    reference: str
    method: str
    task_type: str | None
    base: str
    tensors: int
    saved: tuple[str, ...] = ()
    adapted: tuple[str, ...] = ()
    not_carried: tuple[str, ...] = ()
    modules_to_save: tuple[str, ...] = ()
    promised: tuple[str, ...] = ()
    faults: tuple[AdapterFault, ...] = ()
    base_revision: str | None = None
    base_commit: str | None = None

    @property
    def is_refused(self) -> bool:
        """Whether `PeftModel.from_pretrained` raises an error."""
        return bool(self.promised) or any(item.kind.is_refused for item in self.faults)

    @property
    def is_broken(self) -> bool:
        """Whether the adapter does not do what was trained."""
        return bool(self.promised or self.not_carried or self.faults)


_WORDS = {
    AdapterFaultKind.REFUSED: "{found}",
    AdapterFaultKind.SHAPE: "{name} is {found}, but PEFT expects {expected}",
    AdapterFaultKind.SCALING: "{name} is {found}, so what the adapter adds is not a finite number",
    AdapterFaultKind.WHOLE_NUMBERS: "{name} is stored as {found} without a scale, where the model has {expected}",
    AdapterFaultKind.MISSING: "the file doesn't fill {name} ({expected}), so PEFT initializes it",
    AdapterFaultKind.UNEXPECTED: "PEFT ignores {name} ({found}): with this configuration, it expects no such tensor",
}


def describe_fault(fault: AdapterFault) -> str:
    """The fault in one clause."""
    return _WORDS[fault.kind].format(name=fault.name, found=fault.found, expected=fault.expected)
