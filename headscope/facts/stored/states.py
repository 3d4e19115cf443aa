"""In which state a checkpoint was found, which tool left it so, and what repairs it."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from headscope.errors import HeadscopeError


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
        """The code or command, to be run in the folder of the checkpoint."""
        ...

    def options(self) -> str:
        """What `headscope repair` has to be given for it beside the checkpoint and the folder; "" for nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Repair:
    """What repairs a checkpoint: one sentence, and the code or command that does it."""

    sentence: str
    """What the code does."""
    code: str
    """Code or a command, to be run in the folder of the checkpoint."""
    language: str = "python"
    """`python` or `sh`."""
    action: RepairAction | None = field(
        default=None, compare=False, repr=False, metadata={"json": None, "transient": True}
    )
    """What `headscope repair` does; null where it can't, and in what is read back from a file."""
    command: str = field(default="", metadata={"json": None})
    """How `headscope repair` is called for it; "" where it can't."""

    def __post_init__(self) -> None:
        """Keeps the command, which is stored, where the action isn't."""
        if self.action is not None:
            object.__setattr__(self, "command", f"headscope repair MODEL -o DIR{self.action.options()}")

    def advice(self) -> str:
        """The sentence, after the command that does it where there is one."""
        return f"Run `{self.command}`, or do it yourself. {self.sentence}" if self.command else self.sentence

    def told(self) -> str:
        """The advice with its code where that is one line; longer code is shown below it."""
        advice = self.advice()
        return f"{advice} `{self.code}`" if "\n" not in self.code else advice.removesuffix(":")


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

    def seen(self) -> str:
        """The evidence as a sentence; "" for none."""
        return f"Seen: {'; '.join(self.evidence)}." if self.evidence else ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rule", STATE_RULES[self.kind])


def error_line(err: HeadscopeError, code: str = "") -> str:
    """What an error says and what to do, in one line; `code` comes first."""
    message, hint = f"{code}: {err.message}" if code else err.message, whole_hint(err)
    return f"{message}{' ' if message.endswith('.') else '; '}{hint}" if hint else message


def whole_hint(err: HeadscopeError) -> str:
    """The hint of an error; what repairs the checkpoint ends in the code that does it, where that is short."""
    repair = err.state.repair if isinstance(err.state, CheckpointState) else None
    return err.hint if repair is None else repair.told()
