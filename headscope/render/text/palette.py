"""Colors: each goes with a word that says the same, for readers who don't see it."""

from enum import StrEnum

from headscope.facts import ParameterStatus, Severity
from headscope.facts.results.check import Verdict


class Tone(StrEnum):
    """How a sentence is meant."""

    GOOD = "good"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


TONE = {Tone.GOOD: "bold green", Tone.NOTE: "bold cyan", Tone.WARNING: "bold yellow", Tone.ERROR: "bold red"}

STATUS = {
    ParameterStatus.LOADED: "green",
    ParameterStatus.NEW: "bold yellow",
    ParameterStatus.MISMATCHED: "bold red",
    ParameterStatus.TIED: "cyan",
    ParameterStatus.IGNORED: "yellow",
    ParameterStatus.UNKNOWN: "bold magenta",
    ParameterStatus.CHANGED: "bold cyan",
}

SEVERITY = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.NOTE: "bold cyan"}

VERDICT = {
    Verdict.PASSED: TONE[Tone.GOOD],
    Verdict.FAILED: TONE[Tone.ERROR],
    Verdict.NOT_DETERMINED: TONE[Tone.WARNING],
}

QUIET = "dim"
STRONG = "bold"
OPERATION = "bold"
MODULE = "cyan"
POOLING = "bold magenta"
