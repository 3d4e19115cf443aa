"""Pickled state dicts, interpreted and never executed: names, shapes and dtypes, built by a small stack machine.

No name in a pickle is imported and nothing is called. What the machine does not know it refuses, by name.
"""

import pickletools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from headscope.checkpoints.dtypes import TORCH_STORAGES
from headscope.errors import Malformed

_MOST_OPERATIONS = 5_000_000
_MOST_AXES = 64


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


@dataclass(slots=True)
class Opaque:
    """A value that a state dict does not need: an ordered dict's attributes, backward hooks."""

    note: str = ""


class _Mark:
    """The mark object of the pickle machine."""


_MARK = _Mark()


@dataclass(slots=True)
class _Machine:
    name: str
    stack: list[Any] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)
    work: int = 0

    def bad(self, what: str) -> Malformed:
        return Malformed(f"{self.name} holds a pickle that is no state dict: {what}", "save it as safetensors")

    def spend(self, work: int) -> None:
        """Counts operations, and what an operation goes through. Raises Malformed over the limit."""
        self.work += work
        if self.work > _MOST_OPERATIONS:
            raise self.bad(f"it has more than {_MOST_OPERATIONS:,} operations")

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


def read_pickle(file: IO[bytes], name: str) -> Any:
    """The value of the pickle at the file's position, with tensors as `PickledTensor`; leaves the file after it.

    Raises Malformed for what would import or call anything that building a state dict does not need.
    """
    machine = _Machine(name)
    for opcode, argument, position in _operations(file, machine):
        machine.spend(1)
        if opcode.name == "STOP":
            return machine.pop()
        act = _ACTIONS.get(opcode.name)
        if act is None:
            raise machine.bad(f"the operation {opcode.name} at byte {position} does not belong in one")
        act(machine, argument)
    raise machine.bad("it ends without STOP")


def _operations(file: IO[bytes], machine: _Machine) -> Iterator[tuple[Any, Any, Any]]:
    try:
        yield from pickletools.genops(file)
    except (ValueError, EOFError, UnicodeError, OverflowError) as err:
        raise machine.bad(f"it cannot be parsed ({err})") from err


def _push_argument(machine: _Machine, argument: Any) -> None:
    machine.stack.append(argument)


def _push(make: Callable[[], Any]) -> Callable[[_Machine, Any], None]:
    def act(machine: _Machine, argument: Any) -> None:
        machine.stack.append(make())

    return act


def _nothing(machine: _Machine, argument: Any) -> None:
    return


def _tuple_of(count: int) -> Callable[[_Machine, Any], None]:
    def act(machine: _Machine, argument: Any) -> None:
        items = [machine.pop() for _ in range(count)]
        machine.stack.append(tuple(reversed(items)))

    return act


def _tuple_to_mark(machine: _Machine, argument: Any) -> None:
    machine.stack.append(tuple(machine.pop_to_mark()))


def _list_to_mark(machine: _Machine, argument: Any) -> None:
    machine.stack.append(machine.pop_to_mark())


def _dict_to_mark(machine: _Machine, argument: Any) -> None:
    items = machine.pop_to_mark()
    machine.stack.append({})
    _set_pairs(machine, items)


def _set_item(machine: _Machine, argument: Any) -> None:
    value, key = machine.pop(), machine.pop()
    _set_pairs(machine, [key, value])


def _set_items(machine: _Machine, argument: Any) -> None:
    _set_pairs(machine, machine.pop_to_mark())


def _set_pairs(machine: _Machine, items: list[Any]) -> None:
    target = machine.top()
    if not isinstance(target, dict):
        raise machine.bad("it sets items of something that is no dict")
    if len(items) % 2:
        raise machine.bad("a key has no value")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(key, str | int):  # hashing anything else may cost more than there is time
            raise machine.bad("a key is no simple value")
        target[key] = value


def _append(machine: _Machine, argument: Any) -> None:
    value = machine.pop()
    _extend(machine, [value])


def _appends(machine: _Machine, argument: Any) -> None:
    _extend(machine, machine.pop_to_mark())


def _extend(machine: _Machine, items: list[Any]) -> None:
    target = machine.top()
    if isinstance(target, list):
        target.extend(items)
    elif not isinstance(target, Opaque):
        raise machine.bad("it appends to something that is no list")


def _put(machine: _Machine, argument: Any) -> None:
    machine.memo[int(argument)] = machine.top()


def _memoize(machine: _Machine, argument: Any) -> None:
    machine.memo[len(machine.memo)] = machine.top()


def _get(machine: _Machine, argument: Any) -> None:
    if int(argument) not in machine.memo:
        raise machine.bad("it reads a memo that was never written")
    machine.stack.append(machine.memo[int(argument)])


def _global(machine: _Machine, argument: Any) -> None:
    module, _, name = str(argument).partition(" ")
    machine.stack.append(_allowed(machine, Global(module, name)))


def _stack_global(machine: _Machine, argument: Any) -> None:
    name, module = machine.pop(), machine.pop()
    if not (isinstance(name, str) and isinstance(module, str)):
        raise machine.bad("it imports something that is no name")
    machine.stack.append(_allowed(machine, Global(module, name)))


def _allowed(machine: _Machine, found: Global) -> Global:
    if found in _REBUILDERS or _storage_dtype(found) is not None or _is_dtype(found):
        return found
    raise machine.bad(f"it would import {found}, which was not done")


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
            if dtype is not None:
                machine.stack.append(Storage(key, dtype, count))
                return
    raise machine.bad("it refers to data in a way that is not known")


def _reduce(machine: _Machine, argument: Any) -> None:
    arguments, function = machine.pop(), machine.pop()
    rebuild = _REBUILDERS.get(function) if isinstance(function, Global) else None
    if rebuild is None or not isinstance(arguments, tuple):
        called = str(function) if isinstance(function, Global) else f"a {type(function).__name__}"
        raise machine.bad(f"it would call {called}, which was not done")
    machine.stack.append(rebuild(machine, arguments))


def _build(machine: _Machine, argument: Any) -> None:
    """Attributes of an object (an ordered dict's `_metadata`): taken off and left out."""
    machine.pop()
    machine.top()


def _rebuild_dict(machine: _Machine, arguments: tuple[Any, ...]) -> Any:
    machine.spend(sum(len(item) for item in arguments if isinstance(item, list)))
    match arguments:
        case ():
            return {}
        case (list() as pairs,) if all(isinstance(pair, list | tuple) and len(pair) == len("kv") for pair in pairs):
            return {pair[0]: pair[1] for pair in pairs if isinstance(pair[0], str | int)}
    raise machine.bad("an ordered dict is made from something that is no list of pairs")


def _rebuild_tensor(machine: _Machine, arguments: tuple[Any, ...]) -> PickledTensor:
    match arguments:
        case (Storage() as storage, int() as offset, tuple() as shape, tuple() as strides, *_) if len(shape) == len(
            strides
        ) <= _MOST_AXES and all(map(_is_size, (offset, *shape, *strides))):
            return PickledTensor(storage, shape, storage.dtype, _extent(offset, shape, strides))
    raise machine.bad("a tensor is made from something that is no storage and shape")


def _extent(offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """How many elements of a storage a view needs; none where it is empty."""
    if 0 in shape:
        return 0
    return offset + 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def _rebuild_tensor_v3(machine: _Machine, arguments: tuple[Any, ...]) -> PickledTensor:
    """Like `_rebuild_tensor_v2` with the dtype as the sixth argument: storages without a dtype of their own."""
    tensor = _rebuild_tensor(machine, arguments)
    dtype = next((item for item in arguments[4:] if _is_dtype(item)), None)
    return tensor if dtype is None else PickledTensor(tensor.storage, tensor.shape, dtype.name, tensor.extent)


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 0


def _rebuild_parameter(machine: _Machine, arguments: tuple[Any, ...]) -> Any:
    if not arguments or not isinstance(arguments[0], PickledTensor):
        raise machine.bad("a parameter is made from something that is no tensor")
    return arguments[0]


def _rebuild_from_type(machine: _Machine, arguments: tuple[Any, ...]) -> Any:
    match arguments:
        case (Global() as function, _, tuple() as inner, _) if function in _REBUILDERS:
            return _REBUILDERS[function](machine, inner)
    raise machine.bad("a tensor subclass is made in a way that is not known")


def _rebuild_size(machine: _Machine, arguments: tuple[Any, ...]) -> Any:
    match arguments:
        case (tuple() | list() as sizes,):
            return tuple(sizes)
    raise machine.bad("a size is made from something that is no tuple")


def _rebuild_opaque(machine: _Machine, arguments: tuple[Any, ...]) -> Any:
    return Opaque()


_DTYPES = {
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32",
    "uint64", "bool", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
}  # fmt: skip

_REBUILDERS: dict[Global, Callable[[_Machine, tuple[Any, ...]], Any]] = {
    Global("collections", "OrderedDict"): _rebuild_dict,
    Global("torch._utils", "_rebuild_tensor"): _rebuild_tensor,
    Global("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    Global("torch._utils", "_rebuild_tensor_v3"): _rebuild_tensor_v3,
    Global("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    Global("torch._utils", "_rebuild_parameter_with_state"): _rebuild_parameter,
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
    "EMPTY_DICT": _push(dict),
    "EMPTY_LIST": _push(list),
    "EMPTY_TUPLE": _push(tuple),
    "EMPTY_SET": _push(Opaque),
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
    "POP": lambda machine, argument: _nothing(machine, machine.pop()),
} | dict.fromkeys(
    (
        "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
        "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES",
    ),
    _push_argument,
)  # fmt: skip
