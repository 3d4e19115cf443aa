"""The names that a pickle may hold, and what they stand for; none is imported."""

import sys
from typing import Any

from headscope.checkpoints.formats.dtypes import TORCH_STORAGES
from headscope.checkpoints.formats.pickle.values import Global

_TODAY = {"__builtin__": "builtins", "copy_reg": "copyreg", "commands": "subprocess", "cPickle": "pickle"}
"""Modules that pickles of protocol 2 name as Python 2 did."""
_PLAIN_OBJECTS = {
    "_codecs.encode", "_io.BytesIO", "argparse.Namespace", "builtins.bytearray", "builtins.complex", "builtins.dict",
    "builtins.frozenset", "builtins.list", "builtins.object", "builtins.set", "builtins.slice", "builtins.tuple",
    "collections.Counter", "collections.defaultdict", "collections.deque", "copyreg._reconstructor", "datetime.date",
    "datetime.datetime", "datetime.timedelta", "datetime.timezone", "decimal.Decimal", "fractions.Fraction",
    "pathlib.Path", "pathlib.PosixPath", "pathlib.PurePosixPath", "pathlib.WindowsPath", "types.SimpleNamespace",
    "uuid.UUID",
}  # fmt: skip
_DTYPES = {
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32",
    "uint64", "bool", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
}  # fmt: skip


def is_of_a_package(found: Global) -> bool:
    """Whether a name belongs to no module of Python's own, or to one of the few of which objects are kept in files."""
    root = _TODAY.get(found.module, found.module).partition(".")[0]
    name = f"{_TODAY.get(found.module, found.module)}.{found.name}"
    return (bool(root) and root not in sys.stdlib_module_names) or name in _PLAIN_OBJECTS


def storage_dtype(found: Any) -> str | None:
    """The dtype of the elements of a storage class of PyTorch; None for any other value."""
    if isinstance(found, Global) and found.module in {"torch", "torch.cuda", "torch.storage"}:
        return TORCH_STORAGES.get(found.name)
    return None


def is_dtype(found: Any) -> bool:
    """Whether a value is the name of a dtype of PyTorch."""
    return isinstance(found, Global) and found.module == "torch" and found.name in _DTYPES
