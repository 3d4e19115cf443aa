"""In which state a checkpoint was found, which tool left it so, and what repairs it."""

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

from headscope.errors import HeadscopeError, UsageError


class StateKind(StrEnum):
    """What a checkpoint is, where it is not what `save_pretrained` writes."""

    WRAPPED_KEYS = "wrapped_keys"
    PEFT_KEYS = "peft_keys"
    DEEPSPEED = "deepspeed"
    DISTRIBUTED = "distributed"
    MEGATRON = "megatron"
    LIGHTNING = "lightning"
    TRAINER_OUTPUT = "trainer_output"
    NO_CONFIG = "no_config"
    OTHER_FORMAT = "other_format"
    POINTER = "pointer"
    HALF_DOWNLOAD = "half_download"


STATE_RULES = {
    StateKind.WRAPPED_KEYS: "HS802",
    StateKind.PEFT_KEYS: "HS803",
    StateKind.DEEPSPEED: "HS804",
    StateKind.DISTRIBUTED: "HS805",
    StateKind.MEGATRON: "HS806",
    StateKind.LIGHTNING: "HS807",
    StateKind.TRAINER_OUTPUT: "HS808",
    StateKind.NO_CONFIG: "HS809",
    StateKind.OTHER_FORMAT: "HS810",
    StateKind.POINTER: "HS811",
    StateKind.HALF_DOWNLOAD: "HS812",
}
"""The rule that reports each state."""


class RepairAction(Protocol):
    """What a repair does: `headscope repair` carries it out, and `code` is the same for people to run."""

    def code(self) -> str:
        """Gives the code or command, to be run in the folder of the checkpoint."""
        ...

    def options(self) -> str:
        """Gives the options of `headscope repair` for it, except the checkpoint and the folder; "" for none."""
        ...


_OF_THIS_PROCESS = {"json": None, "transient": True}
"""The metadata of fields that are left out of JSON and of the cache."""


@dataclass(frozen=True, slots=True)
class Repair:
    """What repairs a checkpoint: one sentence, and the code or command that does it."""

    sentence: str
    """What the code does."""
    code: str
    """Code or a command, to be run in the folder of the checkpoint."""
    language: str = "python"
    """`python` or `sh`."""
    action: RepairAction | None = field(default=None, compare=False, repr=False, metadata=_OF_THIS_PROCESS)
    """What `headscope repair` does; null where it can't, and in what is read back from a file."""
    command: str = field(default="", metadata={"json": None})
    """How `headscope repair` is called for it; "" where it can't."""

    def __post_init__(self) -> None:
        """Keeps the command, which is stored, where the action isn't."""
        if self.action is not None:
            object.__setattr__(self, "command", f"headscope repair MODEL -o DIR{self.action.options()}")

    def advice(self) -> str:
        """Gives the sentence, after the command that does it if there is one."""
        return f"Run `{self.command}`, or do it yourself. {self.sentence}" if self.command else self.sentence

    def code_from(self, folder: str) -> str:
        """Gives the code to be run from elsewhere, if it is Python; as it is where the folder isn't known."""
        return f"import os\nos.chdir({folder!r})\n{self.code}" if folder and self.language == "python" else self.code

    def told(self) -> str:
        """Gives the advice with its code if that is one line; longer code is shown below it."""
        advice = self.advice()
        return f"{advice} `{self.code}`" if "\n" not in self.code else advice.removesuffix(":")


@dataclass(frozen=True, slots=True)
class PossibleModel:
    """One of the models that the files of a checkpoint may mean."""

    take: str
    """What `headscope repair --take` calls it: a prefix of keys, a place in a file, a file or a folder."""
    tensors: int | None
    """How many tensors it has; null where headscope can't read that."""
    fills: int | None = None
    """How many tensors of the class it fills; null where that is not known."""
    of_class: int | None = None
    """How many tensors the class has; null where that is not known."""
    left_out: tuple[str, ...] = ()
    """What its repair leaves out of the weights, by group with the number of tensors."""
    state: "CheckpointState | None" = field(default=None, compare=False, repr=False, metadata=_OF_THIS_PROCESS)
    """The state of the checkpoint if this one is meant."""
    headers: tuple[Any, ...] = field(default=(), compare=False, repr=False, metadata=_OF_THIS_PROCESS)
    """The tensors that its repair writes."""

    def is_called(self, name: str) -> bool:
        """True if a person means it by a name: the whole one, or the file or the place of `FILE:PLACE`."""
        return name.rstrip("./") in {part.rstrip("./") for part in (self.take, *self.take.split(":"))}

    def in_words(self) -> str:
        """Describes the candidate as evidence."""
        held = "" if self.tensors is None else f" ({self.tensors:,} {'tensor' if self.tensors == 1 else 'tensors'}"
        fills = "" if self.fills is None else f"; fills {self.fills:,} of {self.of_class:,} of the class"
        return f"{self.take!r}{held}{fills}{')' if held else ''}"


_MOST_NAMED = 8


def take_options(candidates: Sequence[PossibleModel], also: str = " or ") -> str:
    """Writes the options of `headscope repair` that name each of the candidates."""
    options = [f"--take {shlex.quote(item.take)}" for item in candidates[:_MOST_NAMED]]
    return also.join(options) + (" ..." if len(candidates) > _MOST_NAMED else "")


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """A state in which a checkpoint was found."""

    kind: StateKind
    """The state, in one word."""
    tool: str
    """What wrote the checkpoint; empty if that is not known."""
    sentence: str
    """What is wrong."""
    evidence: tuple[str, ...]
    """What headscope saw."""
    repair: Repair | None = None
    """What repairs the checkpoint; null if nothing on this machine can, or if the files don't say what is meant."""
    remedy: str = ""
    """What to do where there is no repair, if that is known."""
    rule: str = ""
    """The rule that reports it."""
    candidates: tuple[PossibleModel, ...] = ()
    """The models that may be meant, empty where only one is there; if there is a repair, it takes the first one."""

    @property
    def is_ambiguous(self) -> bool:
        """True if several models may be meant, and nothing tells which one."""
        return self.repair is None and len(self.candidates) > 1

    def seen(self) -> str:
        """Writes the evidence as a sentence; "" for none."""
        named = [item.in_words() for item in self.candidates[:_MOST_NAMED]]
        named += [f"{len(self.candidates) - _MOST_NAMED:,} more"] if len(self.candidates) > _MOST_NAMED else []
        evidence = [*self.evidence, f"it may mean {' or '.join(named)}"] if self.is_ambiguous else self.evidence
        return f"Seen: {'; '.join(evidence)}." if evidence else ""

    def taking(self, names: Iterable[str]) -> "CheckpointState":
        """Gives the state after a person's choice: the names leave fewer candidates; a single one gives its own state.

        Raises UsageError for the name of a candidate that another name has left out.
        """
        left = self.candidates
        for name in names:
            exact = tuple(item for item in left if item.take == name)
            found = exact or tuple(item for item in left if item.is_called(name))
            if not found and any(item.is_called(name) for item in self.candidates):
                raise UsageError(f"--take {name} and {left[0].take} are two models", "name one of them")
            left = found or left
        return self if left == self.candidates else self.among(left)

    def among(self, left: tuple[PossibleModel, ...]) -> "CheckpointState":
        """Narrows the state to these candidates; a single one gives its own state, and the others stay possible."""
        if len(left) != 1 or left[0].state is None:
            return replace(self, repair=None, candidates=left)
        return replace(left[0].state, candidates=(*left, *(item for item in self.candidates if item not in left)))

    def __post_init__(self) -> None:
        object.__setattr__(self, "rule", STATE_RULES[self.kind])
        if self.is_ambiguous and self.candidates[0].state is not None:
            first, others = take_options(self.candidates[:1]), take_options(self.candidates[1:])
            folder = first.removeprefix("--take ")
            remedy = f"Name the one that you mean, as in `headscope repair MODEL -o DIR {first}` (or {others})."
            if self.kind is StateKind.TRAINER_OUTPUT:
                remedy = (
                    f"Name the one that you mean, as in `headscope inspect MODEL --subfolder {folder}`. All of them: "
                )
                remedy += f"`headscope scan --folder MODEL`. A copy of one: `headscope repair MODEL -o DIR {first}`."
            object.__setattr__(self, "remedy", remedy)


_NAMES_MODEL = re.compile(r"(`headscope (?:check|edit|inspect|repair|scan --folder)) MODEL\b")


def with_model(text: str, reference: str) -> str:
    """Names the checkpoint in the commands of a text, so that they can be copied; as it is without a reference."""
    return _NAMES_MODEL.sub(lambda found: f"{found[1]} {shlex.quote(reference)}", text) if reference else text


def error_line(err: HeadscopeError, code: str = "") -> str:
    """Writes an error and its hint in one line; `code` comes first."""
    message, hint = f"{code}: {err.message}" if code else err.message, whole_hint(err)
    return f"{message}{' ' if message.endswith('.') else '; '}{hint}" if hint else message


def whole_hint(err: HeadscopeError) -> str:
    """Gives the hint of an error; for a checkpoint that can be repaired, the advice, with its code if that is short."""
    repair = err.state.repair if isinstance(err.state, CheckpointState) else None
    return err.hint if repair is None else repair.told()
