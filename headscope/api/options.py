"""The options of the use cases as people write them in Python, read as the command line reads them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from functools import wraps
from inspect import Parameter, signature
from os import PathLike, fspath
from typing import Any, Literal, ParamSpec, TypeVar

from headscope.checks import Ignore, Selection, select
from headscope.errors import HeadscopeError, UsageError, did_you_mean
from headscope.examination.request import Request
from headscope.facts.location import HubOptions, Location
from headscope.upstream.python import check_folder, fault_of_process

ProfileName = Literal["training", "inference"]
"""The values of `facts.Profile`."""
SeverityName = Literal["error", "warning", "note"]
"""The values of `facts.Severity`."""
DrawingName = Literal["text", "mermaid", "dot", "svg", "html"]
"""The formats of a picture."""
DeviceName = Literal[
    "meta", "cpu", "mps", "cuda", "cuda:0", "cuda:1", "cuda:2", "cuda:3", "cuda:4", "cuda:5", "cuda:6", "cuda:7"
]
"""The devices of `forward` that a type checker accepts; PyTorch may know others."""

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_OF_MODULES = ("example_inputs", "labels", "task", "output", "loaded_from", "loading_info", "offline")
_OF_TRAINING = ("optimizer",)
_OF_INSPECTION = ("verify", "health")
_OF_WEIGHTS = ("labels", "task", "loaded_from", "loading_info", "offline")
_KNOWN = {
    "inspect": (*_OF_MODULES, *_OF_INSPECTION),
    "check": (*_OF_MODULES, *_OF_TRAINING),
    "diff_weights": _OF_WEIGHTS,
    "forward": _OF_MODULES,
}
"""The options that each use case has for a model in memory."""


def refuses_unknown(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """`function`, with a UsageError that names the nearest option where Python would raise a bare TypeError."""
    parameters = signature(function).parameters.values()
    known = [item.name for item in parameters if item.kind is not Parameter.VAR_POSITIONAL]

    @wraps(function)
    def call(*values: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        _check_names(options, known)
        with _sound_process():
            return function(*values, **options)

    return call


@contextmanager
def _sound_process() -> Iterator[None]:
    """Inside, tensors are made where PyTorch makes them by default, and what the process lacks is a HeadscopeError."""
    check_folder()
    torch = sys.modules.get("torch")
    device = nullcontext() if torch is None or torch.get_default_device().type == "cpu" else torch.device("cpu")
    try:
        with device:
            yield
    except HeadscopeError:
        raise
    except Exception as err:
        fault = fault_of_process(err)
        if fault is None:
            raise
        raise fault from err


def given_options(arguments: Mapping[str, Any], *others: str) -> dict[str, Any]:
    """The options that a caller gave, from the `locals()` of a use case in its first line, without its other arguments.

    Every option defaults to None or False, so these count as not given. The readers below then notice an option for a
    checkpoint beside a model in memory, and the other way round, although one signature has both.
    """
    return {
        name: value
        for name, value in arguments.items()
        if name not in others and value is not None and value is not False
    }


def request_options(given: dict[str, Any], known: Sequence[str]) -> dict[str, Any]:
    """The options for a checkpoint. Raises UsageError for one that there is not, or an invalid value."""
    for name in given:
        if name in (*_OF_MODULES, *_OF_TRAINING) and name not in known:
            raise UsageError(f"{name} is an option for a model in memory, not for a checkpoint", "leave it out")
    _check_names(given, known)
    return _read(given)


def module_options(given: dict[str, Any], use_case: str) -> dict[str, Any]:
    """The options of a use case for a model in memory. Raises UsageError for one that does not apply there."""
    known = _KNOWN[use_case]
    for name in given:
        if name in _OF_CHECKPOINTS:
            raise UsageError(
                f"{name} doesn't apply to a model in memory: {_OF_CHECKPOINTS[name]}",
                f"options: {', '.join(known)}",
            )
    _check_names(given, known)
    return _read(given)


_IT_LIES = "it is not read from a place"
_OF_CHECKPOINTS = {
    "num_labels": "it has the classes that it has",
    "model_class": "it has a class already",
    "tokens": "it gives the scores that its forward returns",
    "revision": _IT_LIES,
    "subfolder": _IT_LIES,
    "variant": _IT_LIES,
    "cache_dir": _IT_LIES,
    "token": _IT_LIES,
    "timeout": _IT_LIES,
    "cache": "its report is not cached",
    "no_numbers": "its numbers are in memory already",
    "adapter": "give the model with its adapter",
    "trust_remote_code": "its code runs already",
}


def _check_names(given: dict[str, Any], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known, f"options: {', '.join(known)}")
            raise UsageError(f"no such option: {name}", hint)


def _read(given: dict[str, Any]) -> dict[str, Any]:
    return {name: _READERS[name](name, value) if name in _READERS else value for name, value in given.items()}


def read_labels(given: Any) -> tuple[str, ...]:
    """Names of classes in order: several, or one text `A,B,C`. Raises UsageError for anything else."""
    if given is None:
        return ()
    names = read_names(given, "labels")
    if not all(names):
        raise UsageError(f"labels {given!r} has an empty name", "write the names as A,B,C")
    if len(set(names)) < len(names):
        raise UsageError(f"labels {given!r} names a class twice", "give every class a different name")
    return names


def read_names(given: Any, option: str) -> tuple[str, ...]:
    """Several texts, or one text `A,B,C` that lists them. Raises UsageError for anything else."""
    if isinstance(given, str):
        return tuple(name.strip() for name in given.split(","))
    names = tuple(given) if isinstance(given, Iterable) and not isinstance(given, dict | bytes) else None
    if names is None or not all(isinstance(name, str) for name in names):
        raise UsageError(f"{option} must be names, not {given!r}", f'write {option}=("A", "B") or {option}="A,B"')
    return names


def read_selection(
    rules: str | Iterable[str] = (),
    ignore: str | Iterable[str | Ignore] = (),
    fail_on: str = "error",
    *,
    command: str = "check",
) -> Selection:
    """The rules of a command that its options select. Raises UsageError."""
    listed = read_names(ignore, "ignore") if isinstance(ignore, str) else tuple(ignore)
    ignores = tuple(item if isinstance(item, Ignore) else Ignore(item) for item in listed)
    return select(read_names(rules, "rules"), ignores, fail_on, command=command)


def read_count(given: Any) -> int | None:
    """A number of classes, or its digits. Raises UsageError for anything else."""
    if given is None or type(given) is int:
        return given
    if isinstance(given, str) and given.strip().isascii() and given.strip().isdigit() and len(given) <= _MOST_DIGITS:
        return int(given)
    raise UsageError(f"num_labels must be a whole number, not {given!r}", "write num_labels=3")


_MOST_DIGITS = 9


def read_path(given: Any, option: str) -> str | None:
    """A path or a Hub ID as text. Raises UsageError for anything else."""
    if given is None or isinstance(given, str | PathLike):
        return None if given is None else fspath(given)
    raise UsageError(f"{option} must be a path, not {given!r}", f'write {option}="..."')


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "labels": lambda name, value: read_labels(value),
    "num_labels": lambda name, value: read_count(value),
    "tokens": lambda name, value: () if value is None else read_names(value, name),
    "cache_dir": lambda name, value: read_path(value, name),
    "adapter": lambda name, value: read_path(value, name),
    "loaded_from": lambda name, value: read_path(value, name),
}
"""How the values of some options are read; the others are taken as they are."""


def make_request(reference: Any, options: dict[str, Any]) -> Request:
    """The request that the arguments of a use case make. Raises UsageError for invalid arguments."""
    if not isinstance(reference, str | PathLike):
        raise UsageError(
            f"{type(reference).__name__} is not a checkpoint", "give a Hub ID, a path, or a model in memory (nn.Module)"
        )
    given = request_options(options, _OF_REQUESTS)
    hub = HubOptions(**_taken(given, HubOptions))
    location = Location(str(reference), **_taken(given, Location), hub=hub)
    return Request(location, **given)


_FIELDS_OF: dict[type, list[str]] = {
    kind: [item.name for item in fields(kind)] for kind in (Location, HubOptions, Request)
}
_NO_OPTIONS = {"reference", "commit", "names", "hub", "location", "budget", "memory"}
_OF_REQUESTS = [name for names in _FIELDS_OF.values() for name in names if name not in _NO_OPTIONS]


def _taken(given: dict[str, Any], kind: type) -> dict[str, Any]:
    """The options that are fields of `kind`, out of `given`."""
    return {name: given.pop(name) for name in _FIELDS_OF[kind] if name in given}
