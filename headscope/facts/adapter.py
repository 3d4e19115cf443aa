"""What a PEFT adapter does to the head of its base model."""

from dataclasses import dataclass
from enum import StrEnum


class Carried(StrEnum):
    """How an adapter carries a parameter: whole (`saved`), or as a change of its module's output (`adapted`)."""

    SAVED = "saved"
    ADAPTED = "adapted"


@dataclass(frozen=True, slots=True)
class AdapterFacts:
    """An adapter as a report shows it.

    `method` is PEFT's name (`LORA`); `base` the reference of the base model that was examined; `saved` names the
    parameters that the adapter file holds whole; `adapted` the modules whose output it changes, those in the head
    only; `not_carried` the parameters that the logits depend on and that neither base nor adapter gives: they are
    random at every load. `modules_to_save` is what the PEFT configuration would have to say for them to be saved.
    `promised` are modules that PEFT expects in the file and that are not there: it raises a KeyError.
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
