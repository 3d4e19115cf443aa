"""The declaration of an option: what it means, its default, and how it is written on the command line."""

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, ForwardRef, Literal, NamedTuple, Union, get_args, get_origin


class Writes(Enum):
    """Marks an option whose value is a place that a command writes to; the command line checks it first."""

    FILE = "file"
    UPDATE = "update"  # a file that the command may read too
    FOLDER = "folder"  # new, empty, or headscope's own: what writes it checks this


@dataclass(frozen=True, slots=True)
class Option:
    """Declares an option, in the `Annotated` of its type: one sentence for docstrings, docs/api.md and `--help`."""

    meaning: str
    default: Any = None
    """Default in Python; None is False for a bool."""
    _: KW_ONLY
    in_python: str = ""
    """Clause that only Python needs."""
    in_terminal: str = ""
    """Clause that only the command line needs."""
    metavar: str | None = None
    """Placeholder of the value in `--help`."""
    flags: str = ""
    """Names on the command line (default: that in Python, with hyphens)."""
    negated: str = ""
    """Meaning of the flag `--no-NAME`, which the command line has instead of a flag that is on there."""
    panel: str | None = None
    """Title of the group in `--help-all`."""
    is_main: bool = False
    """True if `--help` shows it, and not only `--help-all`."""
    is_repeatable: bool = False
    """True if it may be given several times on the command line."""
    typed: Any = None
    """Type on the command line, where it doesn't follow from that in Python."""
    typed_default: Any = ...
    """Default on the command line, where it is another one than in Python."""
    least: int | None = None
    """Smallest number that the command line takes."""
    variable: str | None = None
    """Environment variable that replaces it."""
    completes: str = ""
    """What the shell completes: the rest of the name of a function in `shell/completion.py`."""
    reads: str = ""
    """How the command line reads the value: a key in `shell/parameters.py`, or `module:function` of another one."""
    writes: Writes | None = None


class Declared(NamedTuple):
    """An option of a `TypedDict`: its type, what is declared, and its default in Python."""

    kind: Any
    option: Option
    default: Any


def declared_in(options: type) -> dict[str, Declared]:
    """Gives the options that a `TypedDict` declares, by name."""
    return {name: read_declaration(hint) for name, hint in options.__annotations__.items()}


def read_declaration(annotation: Any) -> Declared:
    """Reads `Annotated[type, Option(...)]`."""
    kind, option = annotation.__origin__, annotation.__metadata__[0]
    return Declared(kind, option, False if kind is bool and option.default is None else option.default)


def with_defaults(kind: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """Gives every option of a `TypedDict`: the given value, otherwise its default."""
    return {name: options.get(name, declared.default) for name, declared in declared_in(kind).items()}


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

_NAMED = {ProfileName: "ProfileName", DeviceName: "DeviceName"}
"""Types of options that are shown by their public names."""


def type_text(kind: Any) -> str:
    """Writes a type as people write it, such as `str | Iterable[str] | None`."""
    if isinstance(kind, str | ForwardRef):
        return kind if isinstance(kind, str) else kind.__forward_arg__
    origin, parts = get_origin(kind), get_args(kind)
    if kind in _NAMED or kind is NoneType:
        return _NAMED.get(kind, "None")
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, parts))}]"
    if origin in (Union, UnionType):
        return " | ".join(map(type_text, parts))
    name = str((origin or kind).__name__)
    return f"{name}[{', '.join(map(type_text, parts))}]" if parts else name


def is_of_kind(value: Any, kind: Any) -> bool:
    """Says whether a value has the type of an option; a text has that of any `Literal`, see `choices_of`.

    The items of an iterator stay unread. A type that is given by its name alone accepts everything.
    """
    origin, parts = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, UnionType):
        return any(is_of_kind(value, part) for part in parts)
    if origin is Iterable:
        items = value if isinstance(value, list | tuple | set | frozenset) else ()
        is_listed = isinstance(value, Iterable) and not isinstance(value, Mapping | bytes)
        return is_listed and all(is_of_kind(item, part) for item in items for part in parts)
    if origin is Mapping and isinstance(value, Mapping):
        return all(is_of_kind(one, part) for item in value.items() for one, part in zip(item, parts, strict=True))
    if origin is bool and value is None:  # left out
        return True
    kinds = {Literal: str, int: Integral, float: Real}  # NumPy's numbers too, and not True
    plain = kinds.get(origin, origin)
    if plain in (Integral, Real) and (isinstance(value, bool) or _is_beyond_float(value, plain)):
        return False
    return plain is Any or not isinstance(plain, type) or isinstance(value, plain)


def _is_beyond_float(value: Any, kind: type) -> bool:
    """Says whether a number of kind `Real` is too large for a float."""
    if kind is Real and isinstance(value, Real):
        try:
            float(value)
        except OverflowError:
            return True
    return False


def choices_of(kind: Any) -> tuple[str, ...]:
    """Gives the values that an option takes, () where it takes others too, as the devices of PyTorch."""
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return next((get_args(one) for one in parts if get_origin(one) is Literal and one != DeviceName), ())


Names = str | Iterable[str]
"""Names of classes: several, or one text `"A,B,C"`."""
