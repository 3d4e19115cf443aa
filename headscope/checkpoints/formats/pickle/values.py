"""What a pickle describes: names, tensors and objects, none of which is imported or made."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any


@dataclass(frozen=True, slots=True)
class Global:
    """A name that the pickle would import."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True, slots=True)
class PickledStorage:
    """A reference to a block of data: its key, the dtype of its elements, how many there are."""

    key: str
    dtype: str
    count: int


@dataclass(frozen=True, slots=True)
class PickledTensor:
    """A tensor as a pickle describes it; `extent` elements of its storage, counted from the start, hold all of it.

    `begin` is its first element in the storage, where all of its elements follow in order; None where they don't.
    """

    storage: PickledStorage
    shape: tuple[int, ...]
    dtype: str
    extent: int = 0
    begin: int | None = None


@dataclass(slots=True, eq=False)
class Opaque:
    """A value that a state dict does not need: an ordered dict's attributes, backward hooks.

    In a pickle of a training run it stands for any object: `made_by` is the name that would make it, `state` its
    attributes. Nothing was made.
    """

    made_by: str = ""
    state: Any = None


@dataclass(slots=True)
class Instance:
    """An object that the pickle would make of a class: the arguments and the state it is given. It is never made."""

    kind: Global
    arguments: tuple[Any, ...] = ()
    state: Any = None


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a pickle of another kind than a state dict may name: `is_class` makes an `Instance`, and nothing is called.

    `after` gets each instance once its state is known: it may read data that is between the operations from the
    file, and a pickle there with the function that it is given, which counts towards the same limits. `longest` is the
    limit of one value in bytes.
    """

    is_class: Callable[[Global], bool]
    after: Callable[[IO[bytes], Instance, Callable[[str, "Dialect"], Any]], None]
    what: str
    longest: int
