"""The one exception tree: what went wrong, what to do next, and the exit code it ends a command with."""

from collections.abc import Iterable
from enum import IntEnum
from typing import Any


class ExitCode(IntEnum):
    """Exit codes of every command."""

    OK = 0
    FINDINGS = 1
    USAGE = 2
    UNDETERMINED = 3
    INTERRUPTED = 130


class HeadscopeError(Exception):
    """A failure that a person can act on: a sentence, a hint, and a stable code for scripts.

    `message` says what was found and what was expected; `hint` says what to do next. Both may quote
    hostile text: whoever shows them escapes it. `state` is the `facts.states.CheckpointState` in which the checkpoint
    was found, where that is the cause. `reference` is what was named as MODEL, where that is known: `MODEL` in a hint
    means it.
    """

    code = "error"
    exit_code = ExitCode.UNDETERMINED
    state: object | None = None
    reference: str = ""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the error with its fields."""
        # Workers raise errors, and pickle would call the class with `args`, which a subclass may not take.
        return type(self).__new__, (type(self), self.message), vars(self)


class DeprecatedName(FutureWarning):
    """A name that still works, and that a later version removes. The command line shows it as one line on stderr."""


class UnfinishedOutput(UserWarning):
    """A folder that a killed run left beside an output. The command line shows it as one line on stderr."""


def warn_deprecated(name: str, replacement: str, removal: str, *, depth: int = 3) -> None:
    """Warns that a name goes with version `removal`; `depth` is that of the caller's caller, as in `warnings.warn`."""
    import warnings

    text = f"{name} is deprecated and will be removed in headscope {removal}: use {replacement}"
    warnings.warn(text, DeprecatedName, stacklevel=depth)


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """Makes the hint for an unknown name: the nearest known name, or `otherwise`."""
    from difflib import get_close_matches

    names = list(known)
    near = [one for one in names if one.lower() == name.lower()] or get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else otherwise


def first_line(err: BaseException) -> str:
    """Gives the first line of an error's message, or the name of its class."""
    return (str(err).strip().splitlines() or [type(err).__name__])[0]


class UsageError(HeadscopeError):
    """The request itself cannot be carried out: an unknown class, a label count of zero."""

    code = "usage"
    exit_code = ExitCode.USAGE


class NotFound(HeadscopeError):
    """Nothing by that name: no such folder, file, repository, revision, or no weights in it."""

    code = "not_found"


class WithoutConfig(NotFound):
    """Weights without the config.json that says what they are of; `tensors` are the headers of the weights."""

    def __init__(self, message: str, hint: str, tensors: tuple[object, ...]) -> None:
        super().__init__(message, hint)
        self.tensors = tensors


class Gated(HeadscopeError):
    """The Hub refuses: the repository is gated or private, or the token does not reach it."""

    code = "gated"


class Offline(HeadscopeError):
    """In offline mode, neither the cache nor a bundled snapshot has the checkpoint."""

    code = "offline"


class NetworkError(HeadscopeError):
    """The Hub could not be reached, or it broke off."""

    code = "network"


class Malformed(HeadscopeError):
    """A file is not what its name says: broken header, broken JSON, an unsafe path in an index."""

    code = "malformed"


class Unsupported(HeadscopeError):
    """Well-formed, and nothing headscope can read or examine."""

    code = "unsupported"


class CheckFailed(HeadscopeError):
    """The rules of a check failed, or could not be decided, where that stops a run."""

    code = "check_failed"
    exit_code = ExitCode.FINDINGS


def moved(package: str, what: str) -> Unsupported:
    """Makes the error to raise if `what` is missing or different in the installed version of `package`."""
    from importlib import metadata

    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        version = "(version unknown)"
    return Unsupported(
        f"headscope does not support {package} {version}: {what}",
        f"update headscope, or install a tested version of {package} (see the docs, Supported versions)",
    )


class HeadNotLoaded(HeadscopeError):
    """Inside `headscope.strict()`, a load gave the head no weights; `parameters` are those that it didn't give."""

    code = "head_not_loaded"
    exit_code = ExitCode.FINDINGS

    def __init__(self, message: str, hint: str = "", parameters: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint)
        self.parameters = parameters

    def __str__(self) -> str:
        """Shows the hint too: this error is raised where Transformers is called, and no command shows it."""
        return f"{self.message}\n{self.hint}"


class LoadNotJudged(UserWarning):
    """Inside `headscope.strict()`, a load of which headscope can't tell whether the scores depend on what it lacks."""
