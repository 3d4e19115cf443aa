"""Pickled state dicts, interpreted and never executed: names, shapes and dtypes, built by a small stack machine.

No name in a pickle is imported and nothing is called. What the machine does not know it refuses, by name.
"""

import pickletools
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any

from headscope.checkpoints.formats.dtypes import TORCH_STORAGES
from headscope.errors import HeadscopeError, Malformed

# Of a state dict, a tensor takes about 45 steps and 1.8 kB, so files of some 30,000 tensors are read. The limits keep a
# pickle that multiplies work within seconds, and within the memory that `docs/security.md` promises.
_MOST_OPERATIONS = 1_500_000
_MOST_BYTES = 75_000_000
_LONGEST_ARGUMENT = 65_536
_LONGEST_OF_ANY = 24_000_000
_WIDEST_INTEGER = 128
_LARGEST_SIZE = 2**63
_LARGEST_KEY = 2**20
_MOST_AXES = 64
_OBJECT, _SLOT, _ENTRY = 64, 8, 128
"""Bytes charged for an object, for a place in a tuple or list, and for an entry of a dictionary."""


class OverLimit(Malformed):
    """A pickle that takes more operations or memory than a state dict does."""


@dataclass(frozen=True, slots=True)
class Global:
    """A name that the pickle would import."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True, slots=True)
class Storage:
    """A reference to a block of data: its key, the dtype of its elements, how many there are."""

    key: str
    dtype: str
    count: int


@dataclass(frozen=True, slots=True)
class PickledTensor:
    """A tensor as a pickle describes it; `extent` elements of its storage, counted from the start, hold all of it."""

    storage: Storage
    shape: tuple[int, ...]
    dtype: str
    extent: int = 0


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


class _Mark:
    """The mark object of the pickle machine."""


_MARK = _Mark()


class _Hole:
    """Marks a place in the memo where nothing was written."""


_HOLE = _Hole()


@dataclass(slots=True)
class _Machine:
    """The state of a pickle machine, and what its operations have cost so far: steps and bytes of memory.

    Both are counted, never measured, so that the same file ends in the same way on every computer.
    """

    name: str
    names: set[str] | None = None
    """Names of other packages, collected where the pickle may hold any object; None where it may hold tensors only."""
    stack: list[Any] = field(default_factory=list)
    memo: list[Any] = field(default_factory=list)
    work: int = 0
    held: int = 0
    dialect: Dialect | None = None
    file: IO[bytes] | None = None

    def bad(self, what: str, kind: type[Malformed] = Malformed) -> Malformed:
        if self.names is not None:
            return kind(f"{self.name} holds a pickle that cannot be read: {what}", "check where the file is from")
        if self.dialect is not None:
            return kind(f"{self.name} is not {self.dialect.what}: {what}", "don't load it until you know why")
        return kind(f"{self.name} holds a pickle that is not a state dict: {what}", "save it as safetensors")

    def is_class(self, found: Any) -> bool:
        """Whether a name stands for a class of which an instance is described."""
        return self.dialect is not None and isinstance(found, Global) and self.dialect.is_class(found)

    def spend(self, work: int, held: int = 0) -> None:
        """Counts steps, and bytes that are held from now on. Raises OverLimit over a limit."""
        self.work += work
        self.held += held
        if self.work > _MOST_OPERATIONS:
            raise self.bad(f"it has more than {_MOST_OPERATIONS:,} operations", OverLimit)
        if self.held > _MOST_BYTES:
            raise self.bad(f"its values take more than {_MOST_BYTES:,} bytes of memory", OverLimit)

    def push(self, value: Any, held: int = _OBJECT) -> None:
        """A new value of that many bytes; `read_pickle` holds them against the limit after each operation."""
        self.held += held + _SLOT
        self.stack.append(value)

    def pop(self) -> Any:
        if not self.stack:
            raise self.bad("it takes a value from an empty stack")
        return self.stack.pop()

    def top(self) -> Any:
        if not self.stack:
            raise self.bad("it reads an empty stack")
        return self.stack[-1]

    def pop_to_mark(self) -> list[Any]:
        for at in range(len(self.stack) - 1, -1, -1):
            if self.stack[at] is _MARK:
                items = self.stack[at + 1 :]
                del self.stack[at:]
                return items
        raise self.bad("a mark is missing")

    def keep(self, at: int) -> None:
        """Writes the top of the stack into the memo.

        Writers number the memo from 0 or 1 without gaps. A number beyond the operations so far is refused, and so the
        memo is a list, whose time and memory no choice of numbers can raise.
        """
        if not 0 <= at <= self.work:
            raise self.bad("it writes to a memo number beyond its operations")
        gap = at - len(self.memo)
        if gap >= 0:
            self.spend(0, (gap + 1) * _SLOT)
            self.memo.extend([_HOLE] * (gap + 1))
        self.memo[at] = self.top()

    def recall(self, at: int) -> Any:
        found = self.memo[at] if 0 <= at < len(self.memo) else _HOLE
        if found is _HOLE:
            raise self.bad("it reads a memo that was never written")
        return found


class _Bounded:
    """The file of a pickle, for the readers of `pickletools`: an argument has at most that many bytes."""

    def __init__(self, file: IO[bytes], machine: _Machine) -> None:
        self._file = file
        self._machine = machine
        self._longest = _longest_value(machine)
        self._read = file.read

    def read(self, size: int) -> bytes:
        """That many bytes, or fewer at the end of the file."""
        if size > self._longest:
            raise self._machine.bad(f"a value of {size:,} bytes is over the limit of {self._longest:,}")
        return self._read(size)

    def readline(self) -> bytes:
        """A line with its end."""
        line = self._file.readline(_LONGEST_ARGUMENT + 1)
        if len(line) > _LONGEST_ARGUMENT:
            raise self._machine.bad(f"a line is over the limit of {_LONGEST_ARGUMENT:,} bytes")
        return line


def _longest_value(machine: _Machine) -> int:
    """The limit of one value: files of any objects hold files in turn (a tokenizer, say), state dicts do not."""
    if machine.dialect is not None:
        return machine.dialect.longest
    return _LONGEST_ARGUMENT if machine.names is None else _LONGEST_OF_ANY


def read_pickle(file: IO[bytes], name: str, names: set[str] | None = None, dialect: Dialect | None = None) -> Any:
    """The value of the pickle at the file's position, with tensors as `PickledTensor`; leaves the file after it.

    Raises Malformed for what would import or call anything that building a state dict does not need, and OverLimit for
    more operations or memory than a state dict takes. With `names`, objects of other packages become `Opaque` in the
    value, and what they would import is collected there; what Python's own library could do stays refused. A `dialect`
    allows other names.
    """
    return _run(_Machine(name, names, dialect=dialect, file=file), file)


def _run(machine: _Machine, file: IO[bytes]) -> Any:
    """The value that the operations in the file make, up to STOP."""
    read = file.read
    operations = _OPERATIONS if machine.names is None else _OF_ANY_OBJECT
    arguments = _Bounded(file, machine)
    while code := read(1):
        machine.work += 1
        if machine.work > _MOST_OPERATIONS or machine.held > _MOST_BYTES:
            machine.spend(0)
        if code == b".":
            return machine.pop()
        found = operations.get(code)
        if found is None:
            raise _unknown(machine, code, file.tell() - 1)
        argument, act = found
        act(machine, None if argument is None else _argument(argument, arguments, machine))
    raise machine.bad("it ends without STOP")


def _unknown(machine: _Machine, code: bytes, position: int) -> Malformed:
    name = _NAMES.get(code)
    if name is None:
        return machine.bad(f"it cannot be parsed (byte {code[0]} at {position} is not an operation)")
    return machine.bad(f"the operation {name} at byte {position} does not belong in one")


def _argument(reader: Callable[[Any], Any], file: _Bounded, machine: _Machine) -> Any:
    try:
        return reader(file)
    except HeadscopeError:
        raise
    except (ValueError, EOFError, UnicodeError, OverflowError) as err:
        raise machine.bad(f"it cannot be parsed ({err})") from err


def _push_argument(machine: _Machine, argument: Any) -> None:
    if isinstance(argument, int) and argument.bit_length() > _WIDEST_INTEGER:
        raise machine.bad(f"a number of {argument.bit_length():,} bits is over the limit of {_WIDEST_INTEGER}")
    machine.push(argument, sys.getsizeof(argument))


def _push(make: Callable[[], Any], held: int = 0) -> Callable[[_Machine, Any], None]:
    def act(machine: _Machine, argument: Any) -> None:
        machine.push(make(), held)

    return act


def _nothing(machine: _Machine, argument: Any) -> None:
    return


def _tuple_of(count: int) -> Callable[[_Machine, Any], None]:
    def act(machine: _Machine, argument: Any) -> None:
        stack = machine.stack
        if len(stack) < count:
            raise machine.bad("it takes a value from an empty stack")
        items = tuple(stack[-count:])
        del stack[-count:]
        machine.push(items, _OBJECT + count * _SLOT)

    return act


def _tuple_to_mark(machine: _Machine, argument: Any) -> None:
    items = machine.pop_to_mark()
    machine.push(tuple(items), _OBJECT + len(items) * _SLOT)


def _list_to_mark(machine: _Machine, argument: Any) -> None:
    items = machine.pop_to_mark()
    machine.push(items, _OBJECT + len(items) * _SLOT)


def _dict_to_mark(machine: _Machine, argument: Any) -> None:
    items = machine.pop_to_mark()
    machine.push({})
    _set_pairs(machine, items)


def _set_item(machine: _Machine, argument: Any) -> None:
    value, key = machine.pop(), machine.pop()
    _set_pairs(machine, [key, value])


def _set_items(machine: _Machine, argument: Any) -> None:
    _set_pairs(machine, machine.pop_to_mark())


def _set_pairs(machine: _Machine, items: list[Any]) -> None:
    target = machine.top()
    if isinstance(target, Opaque) and machine.names is not None:
        return
    if not isinstance(target, dict):
        raise machine.bad("it sets items of something that is not a dict")
    if len(items) % 2:
        raise machine.bad("a key has no value")
    for at in range(0, len(items), 2):
        _set_entry(machine, target, items[at], items[at + 1])


def _set_entry(machine: _Machine, target: dict[Any, Any], key: Any, value: Any) -> None:
    """One entry. Only texts and small numbers are keys: Python hashes larger numbers to values that can be chosen."""
    if type(key) is not str and not (type(key) is int and 0 <= key < _LARGEST_KEY):
        if machine.names is not None:  # an entry under an object, which nobody looks up here
            return
        raise machine.bad("a key is neither a text nor a small number")
    machine.spend(0, _ENTRY)
    target[key] = value


def _append(machine: _Machine, argument: Any) -> None:
    value = machine.pop()
    _extend(machine, [value])


def _appends(machine: _Machine, argument: Any) -> None:
    _extend(machine, machine.pop_to_mark())


def _extend(machine: _Machine, items: list[Any]) -> None:
    target = machine.top()
    if isinstance(target, list):
        machine.spend(0, 2 * len(items) * _SLOT)
        target.extend(items)
    elif not isinstance(target, Opaque):
        raise machine.bad("it appends to something that is not a list")


def _put(machine: _Machine, argument: Any) -> None:
    machine.keep(int(argument))


def _memoize(machine: _Machine, argument: Any) -> None:
    machine.keep(len(machine.memo))


def _get(machine: _Machine, argument: Any) -> None:
    machine.push(machine.recall(int(argument)), 0)


def _global(machine: _Machine, argument: Any) -> None:
    module, _, name = str(argument).partition(" ")
    machine.push(_allowed(machine, Global(module, name)))


def _stack_global(machine: _Machine, argument: Any) -> None:
    name, module = machine.pop(), machine.pop()
    if not (isinstance(name, str) and isinstance(module, str)):
        raise machine.bad("it imports something that is not a name")
    machine.push(_allowed(machine, Global(module, name)))


def _allowed(machine: _Machine, found: Global) -> Global:
    if machine.is_class(found) or found in _REBUILDERS or _storage_dtype(found) is not None or _is_dtype(found):
        return found
    if machine.names is not None and _is_of_a_package(found):
        machine.spend(0, _ENTRY)
        machine.names.add(str(found))
        return found
    raise machine.bad(f"it references {found}, which is not allowed (nothing was run)")


def _is_of_a_package(found: Global) -> bool:
    """Whether a name belongs to no module of Python's own, or to one of the few of which objects are kept in files."""
    root = _TODAY.get(found.module, found.module).partition(".")[0]
    name = f"{_TODAY.get(found.module, found.module)}.{found.name}"
    return (bool(root) and root not in sys.stdlib_module_names) or name in _PLAIN_OBJECTS


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


def _storage_dtype(found: Any) -> str | None:
    if isinstance(found, Global) and found.module in {"torch", "torch.cuda", "torch.storage"}:
        return TORCH_STORAGES.get(found.name)
    return None


def _is_dtype(found: Any) -> bool:
    return isinstance(found, Global) and found.module == "torch" and found.name in _DTYPES


def _persistent(machine: _Machine, argument: Any) -> None:
    reference = machine.pop()
    match reference:
        case ("storage", Global() as kind, str() as key, str(), int() as count, *_):
            dtype = _storage_dtype(kind)
            if dtype is not None and _is_size(count):
                machine.push(Storage(key, dtype, count))
                return
    raise machine.bad("it refers to data in an unknown way")


def _reduce(machine: _Machine, argument: Any) -> None:
    arguments, function = machine.pop(), machine.pop()
    if machine.names is not None and (isinstance(function, Opaque) or str(function) in machine.names):
        machine.push(Opaque(str(function)))
        return
    if machine.is_class(function) and isinstance(arguments, tuple):
        machine.push(Instance(function, arguments))
        return
    rebuild = _REBUILDERS.get(function) if isinstance(function, Global) else None
    if rebuild is None or not isinstance(arguments, tuple):
        called = str(function) if isinstance(function, Global) else f"a {type(function).__name__}"
        raise machine.bad(f"it calls {called}, which is not allowed (nothing was run)")
    machine.spend(len(arguments))
    machine.push(rebuild(machine, arguments))


def _build(machine: _Machine, argument: Any) -> None:
    """Attributes of an object (an ordered dict's `_metadata`): taken off, and kept where the object is described."""
    state, target = machine.pop(), machine.top()
    if isinstance(target, Opaque) and machine.names is not None:
        target.state = state
    if isinstance(target, Instance) and machine.dialect is not None and machine.file is not None:
        target.state = state
        machine.dialect.after(machine.file, target, partial(_read_inside, machine, machine.file))


def _read_inside(machine: _Machine, file: IO[bytes], name: str, dialect: Dialect) -> Any:
    """The value of a pickle that is inside another: its work and its memory are those of the outer one too."""
    inner = _Machine(name, dialect=dialect, file=file, work=machine.work, held=machine.held)
    value = _run(inner, file)
    machine.work, machine.held = inner.work, inner.held
    return value


def _new_object(machine: _Machine, argument: Any) -> None:
    arguments, kind = machine.pop(), machine.pop()
    if not machine.is_class(kind) or not isinstance(arguments, tuple):
        raise machine.bad(f"it would make {'an object of ' + str(kind) if isinstance(kind, Global) else 'an object'}")
    machine.push(Instance(kind, arguments))


def _new_opaque(machine: _Machine, argument: Any) -> None:
    arguments, kind = machine.pop(), machine.pop()
    if not isinstance(kind, Global) or not isinstance(arguments, tuple):
        raise machine.bad("an object is made from something that is not a class")
    machine.push(Opaque(str(kind)), 2 * _OBJECT)


def _new_object_with_names(machine: _Machine, argument: Any) -> None:
    machine.pop()
    _new_opaque(machine, argument)


def _frozen_set(machine: _Machine, argument: Any) -> None:
    machine.pop_to_mark()
    machine.push(Opaque("builtins.frozenset"))


def _rebuild_dict(machine: _Machine, arguments: tuple[Any, ...]) -> Any:
    match arguments:
        case ():
            return {}
        case (list() as pairs,):
            machine.spend(len(pairs))
            found: dict[Any, Any] = {}
            for pair in pairs:
                if not isinstance(pair, list | tuple) or len(pair) != len("kv"):
                    break
                _set_entry(machine, found, pair[0], pair[1])
            else:
                return found
    raise machine.bad("an ordered dict is made from something that is not a list of pairs")


def _rebuild_tensor(machine: _Machine, arguments: tuple[Any, ...]) -> PickledTensor:
    match arguments:
        case (Storage() as storage, int() as offset, tuple() as shape, tuple() as strides, *_) if len(shape) == len(
            strides
        ) <= _MOST_AXES and all(map(_is_size, (offset, *shape, *strides))):
            return PickledTensor(storage, shape, storage.dtype, _extent(offset, shape, strides))
    raise machine.bad("a tensor is made from something that is not a storage and a shape")


def _extent(offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """How many elements of a storage a view needs; none where it is empty."""
    if 0 in shape:
        return 0
    return offset + 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def _rebuild_tensor_v3(machine: _Machine, arguments: tuple[Any, ...]) -> PickledTensor:
    """Like `_rebuild_tensor_v2` with the dtype as the sixth argument: storages without a dtype."""
    tensor = _rebuild_tensor(machine, arguments)
    dtype = next((item for item in arguments[4:] if _is_dtype(item)), None)
    return tensor if dtype is None else PickledTensor(tensor.storage, tensor.shape, dtype.name, tensor.extent)


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < _LARGEST_SIZE


def _rebuild_parameter(machine: _Machine, arguments: tuple[Any, ...]) -> Any:
    if not arguments or not isinstance(arguments[0], PickledTensor):
        raise machine.bad("a parameter is made from something that is not a tensor")
    return arguments[0]


def _rebuild_from_type(machine: _Machine, arguments: tuple[Any, ...]) -> Any:
    match arguments:
        case (Global() as function, _, tuple() as inner, _) if function in _TENSOR_REBUILDERS:
            machine.spend(len(inner))
            return _TENSOR_REBUILDERS[function](machine, inner)
    raise machine.bad("a tensor subclass is made in an unknown way")


def _rebuild_size(machine: _Machine, arguments: tuple[Any, ...]) -> Any:
    match arguments:
        case (tuple() | list() as sizes,):
            machine.spend(len(sizes), len(sizes) * _SLOT)
            return tuple(sizes)
    raise machine.bad("a size is made from something that is not a tuple")


def _rebuild_opaque(machine: _Machine, arguments: tuple[Any, ...]) -> Any:
    return Opaque()


_DTYPES = {
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32",
    "uint64", "bool", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
}  # fmt: skip

_TENSOR_REBUILDERS: dict[Global, Callable[[_Machine, tuple[Any, ...]], Any]] = {
    Global("torch._utils", "_rebuild_tensor"): _rebuild_tensor,
    Global("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    Global("torch._utils", "_rebuild_tensor_v3"): _rebuild_tensor_v3,
    Global("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    Global("torch._utils", "_rebuild_parameter_with_state"): _rebuild_parameter,
}

_REBUILDERS: dict[Global, Callable[[_Machine, tuple[Any, ...]], Any]] = _TENSOR_REBUILDERS | {
    Global("collections", "OrderedDict"): _rebuild_dict,
    Global("torch._tensor", "_rebuild_from_type_v2"): _rebuild_from_type,
    Global("torch", "Size"): _rebuild_size,
    Global("torch", "Tensor"): _rebuild_opaque,
    Global("torch.nn.parameter", "Parameter"): _rebuild_opaque,
}

_ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": _nothing,
    "FRAME": _nothing,
    "MARK": _push(lambda: _MARK),
    "NONE": _push(lambda: None),
    "NEWTRUE": _push(lambda: True),
    "NEWFALSE": _push(lambda: False),
    "EMPTY_DICT": _push(dict, _OBJECT),
    "EMPTY_LIST": _push(list, _OBJECT),
    "EMPTY_TUPLE": _push(tuple),
    "EMPTY_SET": _push(Opaque, _OBJECT),
    "ADDITEMS": lambda machine, argument: _nothing(machine, machine.pop_to_mark()),
    "TUPLE": _tuple_to_mark,
    "TUPLE1": _tuple_of(1),
    "TUPLE2": _tuple_of(2),
    "TUPLE3": _tuple_of(3),
    "LIST": _list_to_mark,
    "DICT": _dict_to_mark,
    "SETITEM": _set_item,
    "SETITEMS": _set_items,
    "APPEND": _append,
    "APPENDS": _appends,
    "PUT": _put,
    "BINPUT": _put,
    "LONG_BINPUT": _put,
    "MEMOIZE": _memoize,
    "GET": _get,
    "BINGET": _get,
    "LONG_BINGET": _get,
    "GLOBAL": _global,
    "STACK_GLOBAL": _stack_global,
    "BINPERSID": _persistent,
    "REDUCE": _reduce,
    "BUILD": _build,
    "NEWOBJ": _new_object,
    "POP": lambda machine, argument: _nothing(machine, machine.pop()),
} | dict.fromkeys(
    (
        "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
        "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES",
    ),
    _push_argument,
)  # fmt: skip

_NAMES = {opcode.code.encode("latin-1"): opcode.name for opcode in pickletools.opcodes}

_OPERATIONS: dict[bytes, tuple[Callable[[Any], Any] | None, Callable[[_Machine, Any], None]]] = {
    opcode.code.encode("latin-1"): (opcode.arg.reader if opcode.arg is not None else None, _ACTIONS[opcode.name])
    for opcode in pickletools.opcodes
    if opcode.name in _ACTIONS
}

_OF_ANY_OBJECT = _OPERATIONS | {
    opcode.code.encode("latin-1"): (None, act)
    for opcode in pickletools.opcodes
    for name, act in (("NEWOBJ", _new_opaque), ("NEWOBJ_EX", _new_object_with_names), ("FROZENSET", _frozen_set))
    if opcode.name == name
}
"""What is read beside where a pickle may hold any object."""
