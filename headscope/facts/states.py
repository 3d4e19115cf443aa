"""In which state a checkpoint was found, which tool left it so, and what repairs it."""

from dataclasses import dataclass
from enum import StrEnum


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


RULES = {
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


@dataclass(frozen=True, slots=True)
class Repair:
    """What repairs a checkpoint: one sentence, and the code or command that does it.

    `language` is `python` or `sh`. The code runs in the folder that holds the checkpoint.
    """

    sentence: str
    code: str
    language: str = "python"


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """A state in which a checkpoint was found.

    `tool` is what wrote it, "" if that is not known. `sentence` says what is wrong, `evidence` what headscope saw, and
    `rule` is the rule that reports it. `repair` is None if nothing on this machine can repair it.
    """

    kind: StateKind
    tool: str
    sentence: str
    evidence: tuple[str, ...]
    repair: Repair | None = None
    rule: str = ""

    def seen(self) -> str:
        """The evidence as a sentence; "" for none."""
        return f"Seen: {'; '.join(self.evidence)}." if self.evidence else ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rule", RULES[self.kind])
