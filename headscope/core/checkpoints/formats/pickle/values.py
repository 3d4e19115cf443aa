"""The values that a pickle describes: names, tensors and objects, none of which is imported or made."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Any

from headscope.core.checkpoints.formats.dtypes import TORCH_STORAGES


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
    `offset` is its first element in the storage in any case, and `strides` are the steps along its axes.
    """

    storage: PickledStorage
    shape: tuple[int, ...]
    dtype: str
    extent: int = 0
    begin: int | None = None
    offset: int = 0
    strides: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class Opaque:
    """A value that a state dict does not need: an ordered dict's attributes, backward hooks.

    In a pickle of a training run it stands for any object: `made_by` is the name that would make it, `state` its
    attributes, `arguments` what it would be made from, `items` what is put into it, by key or in order. Nothing was
    made.
    """

    made_by: str = ""
    state: Any = field(default=None, repr=False)
    arguments: tuple[Any, ...] = field(default=(), repr=False)
    items: list[tuple[Any, Any]] = field(default_factory=list, repr=False)


@dataclass(slots=True)
class Instance:
    """An object that the pickle would make of a class: the arguments and the state it is given. It is never made."""

    kind: Global
    arguments: tuple[Any, ...] = ()
    state: Any = None


@dataclass(frozen=True, slots=True)
class Dialect:
    """Rules for a pickle of another kind than a state dict: `is_class` allows an `Instance`, and nothing is called.

    `after` gets each instance once its state is known: it may read data that is between the operations from the file,
    and a pickle there with the function that it is given, which counts towards the same limits. `longest` is the limit
    of one value in bytes.
    """

    is_class: Callable[[Global], bool]
    after: Callable[[IO[bytes], Instance, Callable[[str, "Dialect"], Any]], None]
    what: str
    longest: int


_TODAY = {"__builtin__": "builtins", "copy_reg": "copyreg", "commands": "subprocess", "cPickle": "pickle"}
"""Modules that pickles of protocol 2 name as Python 2 did."""
_PLAIN_OBJECTS = {
    "_codecs.encode", "_io.BytesIO", "argparse.Namespace", "builtins.bytearray", "builtins.complex", "builtins.dict",
    "builtins.frozenset", "builtins.list", "builtins.object", "builtins.set", "builtins.slice", "builtins.tuple",
    "collections.Counter", "collections.defaultdict", "collections.deque", "copyreg._reconstructor", "datetime.date",
    "datetime.datetime", "datetime.timedelta", "datetime.timezone", "decimal.Decimal", "fractions.Fraction",
    "types.SimpleNamespace", "uuid.UUID",
    # Python 3.13 names the classes of paths by another module.
    *(f"{module}.{name}" for module in ("pathlib", "pathlib._local")
      for name in ("Path", "PosixPath", "PurePath", "PurePosixPath", "PureWindowsPath", "WindowsPath")),
}  # fmt: skip
_DTYPES = {
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32",
    "uint64", "bool", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
}  # fmt: skip


def is_of_a_package(found: Global) -> bool:
    """True if a name belongs to no module of Python's own, or to one of the few whose objects are kept in files."""
    root = _TODAY.get(found.module, found.module).partition(".")[0]
    name = f"{_TODAY.get(found.module, found.module)}.{found.name}"
    return (bool(root) and root not in sys.stdlib_module_names) or name in _PLAIN_OBJECTS


def storage_dtype(found: Any) -> str | None:
    """Gives the dtype of the elements of a storage class of PyTorch; None for any other value."""
    if isinstance(found, Global) and found.module in {"torch", "torch.cuda", "torch.storage"}:
        return TORCH_STORAGES.get(found.name)
    return None


def is_dtype(found: Any) -> bool:
    """True if a value is the name of a dtype of PyTorch."""
    return isinstance(found, Global) and found.module == "torch" and found.name in _DTYPES
