"""Pickled state dicts, interpreted and never executed: names, shapes and dtypes, built by a small stack machine.

No name in a pickle is imported and nothing is called. What the machine does not know it refuses, by name.
"""

import pickletools
import sys
from collections.abc import Callable
from functools import partial
from typing import IO, Any

from headscope.core.checkpoints.formats.pickle.machine import (
    ENTRY,
    MARK,
    MOST_OPERATIONS,
    MOST_PICKLE_BYTES,
    OBJECT,
    SLOT,
    Machine,
)
from headscope.core.checkpoints.formats.pickle.rebuilders import REBUILDERS, is_size
from headscope.core.checkpoints.formats.pickle.values import (
    Dialect,
    Global,
    Instance,
    Opaque,
    PickledStorage,
    is_dtype,
    is_of_a_package,
    storage_dtype,
)
from headscope.errors import HeadscopeError

_LONGEST_ARGUMENT = 65_536
_LONGEST_OF_ANY = 24_000_000
_WIDEST_INTEGER = 128


class _BoundedFile:
    """File of a pickle for the readers of `pickletools`, with a limit for the bytes of an argument."""

    def __init__(self, file: IO[bytes], machine: Machine) -> None:
        self._file = file
        self._machine = machine
        # Files of any objects hold files in turn (a tokenizer, say), state dicts do not.
        self._longest = _LONGEST_ARGUMENT if machine.names is None else _LONGEST_OF_ANY
        if machine.dialect is not None:
            self._longest = machine.dialect.longest
        self._read = file.read

    def read(self, size: int) -> bytes:
        """Reads that many bytes, or fewer at the end of the file."""
        if size > self._longest:
            raise self._machine.bad(f"a value of {size:,} bytes is over the limit of {self._longest:,}")
        return self._read(size)

    def readline(self) -> bytes:
        """Reads a line with its end."""
        line = self._file.readline(_LONGEST_ARGUMENT + 1)
        if len(line) > _LONGEST_ARGUMENT:
            raise self._machine.bad(f"a line is over the limit of {_LONGEST_ARGUMENT:,} bytes")
        return line


def read_pickle(file: IO[bytes], name: str, names: set[str] | None = None, dialect: Dialect | None = None) -> Any:
    """Reads the value of the pickle at the file's position, with tensors as `PickledTensor`; leaves the file after it.

    Raises Malformed for what would import or call anything that building a state dict does not need, and OverLimit for
    more operations or memory than a state dict takes. With `names`, objects of other packages become `Opaque` in the
    value, and what they would import is collected there; what Python's own library could do stays refused. A `dialect`
    allows other names.
    """
    return _run_operations(Machine(name, names, dialect=dialect, file=file), file)


def _run_operations(machine: Machine, file: IO[bytes]) -> Any:
    """Runs the operations in the file up to STOP, and returns the value that they make."""
    read = file.read
    operations = _OPERATIONS if machine.names is None else _OF_ANY_OBJECT
    arguments = _BoundedFile(file, machine)
    while code := read(1):
        machine.work += 1
        # `spend` raises the error; comparing here saves a call for each of a million operations.
        if machine.work > MOST_OPERATIONS or machine.held > MOST_PICKLE_BYTES:
            machine.spend(0)
        if code == b".":  # STOP
            return machine.pop()
        found = operations.get(code)
        if found is None:
            name, position = _NAMES.get(code), file.tell() - 1
            if name is None:
                raise machine.bad(f"it cannot be parsed (byte {code[0]} at {position} is not an operation)")
            raise machine.bad(f"the operation {name} at byte {position} does not belong in one")
        argument, act = found
        act(machine, None if argument is None else _read_argument(argument, arguments, machine))
    raise machine.bad("it ends without STOP")


def _read_argument(reader: Callable[[Any], Any], file: _BoundedFile, machine: Machine) -> Any:
    try:
        return reader(file)
    except HeadscopeError:
        raise
    except (ValueError, EOFError, UnicodeError, OverflowError) as err:
        raise machine.bad(f"it cannot be parsed ({err})") from err


def _push_argument(machine: Machine, argument: Any) -> None:
    # Python's hash and text of a huge integer take time that its few bytes don't show.
    if isinstance(argument, int) and argument.bit_length() > _WIDEST_INTEGER:
        raise machine.bad(f"a number of {argument.bit_length():,} bits is over the limit of {_WIDEST_INTEGER}")
    machine.push(argument, sys.getsizeof(argument))


def _pusher_of(make: Callable[[], Any], held: int = 0) -> Callable[[Machine, Any], None]:
    def act(machine: Machine, argument: Any) -> None:
        machine.push(make(), held)

    return act


def _do_nothing(machine: Machine, argument: Any) -> None:
    return


def _tuple_of(count: int) -> Callable[[Machine, Any], None]:
    def act(machine: Machine, argument: Any) -> None:
        stack = machine.stack
        if len(stack) < count:
            raise machine.bad("it takes a value from an empty stack")
        items = tuple(stack[-count:])
        del stack[-count:]
        machine.push(items, OBJECT + count * SLOT)

    return act


def _collector_of(make: Callable[[list[Any]], Any]) -> Callable[[Machine, Any], None]:
    def act(machine: Machine, argument: Any) -> None:
        items = machine.pop_to_mark()
        machine.push(make(items), OBJECT + len(items) * SLOT)

    return act


def _dict_to_mark(machine: Machine, argument: Any) -> None:
    items = machine.pop_to_mark()
    machine.push({})
    _set_pairs(machine, items)


def _set_item(machine: Machine, argument: Any) -> None:
    value, key = machine.pop(), machine.pop()
    _set_pairs(machine, [key, value])


def _set_pairs(machine: Machine, items: list[Any]) -> None:
    target = machine.top()
    is_opaque = isinstance(target, Opaque) and machine.names is not None
    if not is_opaque and not isinstance(target, dict):
        raise machine.bad("it sets items of something that is not a dict")
    if len(items) % 2:
        raise machine.bad("a key has no value")
    if is_opaque:
        _put_into(machine, target, list(zip(items[::2], items[1::2], strict=True)))
        return
    for at in range(0, len(items), 2):
        machine.set_entry(target, items[at], items[at + 1])


def _append_items(machine: Machine, items: list[Any]) -> None:
    target = machine.top()
    if isinstance(target, list):
        machine.spend(0, 2 * len(items) * SLOT)
        target.extend(items)
    elif isinstance(target, Opaque):
        _put_into(machine, target, list(enumerate(items, len(target.items))))
    else:
        raise machine.bad("it appends to something that is not a list")


def _put_into(machine: Machine, target: Opaque, items: list[tuple[Any, Any]]) -> None:
    machine.spend(0, len(items) * (OBJECT + 2 * SLOT))
    target.items.extend((machine.key_of(key), item) for key, item in items)


def _add_items(machine: Machine, argument: Any) -> None:
    items, target = machine.pop_to_mark(), machine.top()
    if isinstance(target, Opaque):
        _put_into(machine, target, list(enumerate(items, len(target.items))))


def _write_memo(machine: Machine, argument: Any) -> None:
    machine.keep(int(argument))


def _read_memo(machine: Machine, argument: Any) -> None:
    machine.push(machine.recall(int(argument)), 0)


def _push_global(machine: Machine, argument: Any) -> None:
    module, _, name = str(argument).partition(" ")
    machine.push(_checked_global(machine, Global(module, name)))


def _stack_global(machine: Machine, argument: Any) -> None:
    name, module = machine.pop(), machine.pop()
    if not (isinstance(name, str) and isinstance(module, str)):
        raise machine.bad("it imports something that is not a name")
    machine.push(_checked_global(machine, Global(module, name)))


def _checked_global(machine: Machine, found: Global) -> Global:
    if machine.is_class(found) or found in REBUILDERS or storage_dtype(found) is not None or is_dtype(found):
        return found
    if machine.names is not None and is_of_a_package(found):
        machine.spend(0, ENTRY)
        machine.names.add(str(found))
        return found
    raise machine.bad(f"it references {found}, which is not allowed (nothing was run)")


def _push_storage(machine: Machine, argument: Any) -> None:
    reference = machine.pop()
    match reference:
        # What torch.save writes for a storage: its class, its key, its device and the count of its elements.
        case ("storage", Global() as kind, str() as key, str(), int() as count, *_):
            dtype = storage_dtype(kind)
            if dtype is not None and is_size(count):
                machine.push(PickledStorage(key, dtype, count))
                return
    raise machine.bad("it refers to data in an unknown way")


def _call_rebuilder(machine: Machine, argument: Any) -> None:
    arguments, function = machine.pop(), machine.pop()
    if machine.names is not None and (isinstance(function, Opaque) or str(function) in machine.names):
        machine.push(Opaque(str(function), arguments=arguments if isinstance(arguments, tuple) else ()))
        return
    if machine.is_class(function) and isinstance(arguments, tuple):
        machine.push(Instance(function, arguments))
        return
    rebuild = REBUILDERS.get(function) if isinstance(function, Global) else None
    if rebuild is None or not isinstance(arguments, tuple):
        called = str(function) if isinstance(function, Global) else f"a {type(function).__name__}"
        raise machine.bad(f"it calls {called}, which is not allowed (nothing was run)")
    machine.spend(len(arguments))
    machine.push(rebuild(machine, arguments))


def _set_state(machine: Machine, argument: Any) -> None:
    """Takes an object's attributes (an ordered dict's `_metadata`) off the stack; a described object keeps them."""
    state, target = machine.pop(), machine.top()
    if isinstance(target, Opaque) and machine.names is not None:
        target.state = state
    if isinstance(target, Instance) and machine.dialect is not None and machine.file is not None:
        target.state = state
        machine.dialect.after(machine.file, target, partial(_read_inside, machine, machine.file))


def _read_inside(machine: Machine, file: IO[bytes], name: str, dialect: Dialect) -> Any:
    """Reads a pickle inside another: its work and its memory count for the outer one too."""
    inner = Machine(name, dialect=dialect, file=file, work=machine.work, held=machine.held)
    value = _run_operations(inner, file)
    machine.work, machine.held = inner.work, inner.held
    return value


def _new_object(machine: Machine, argument: Any) -> None:
    arguments, kind = machine.pop(), machine.pop()
    if not machine.is_class(kind) or not isinstance(arguments, tuple):
        raise machine.bad(f"it would make {'an object of ' + str(kind) if isinstance(kind, Global) else 'an object'}")
    machine.push(Instance(kind, arguments))


def _new_opaque(machine: Machine, argument: Any) -> None:
    arguments, kind = machine.pop(), machine.pop()
    if not isinstance(kind, Global) or not isinstance(arguments, tuple):
        raise machine.bad("an object is made from something that is not a class")
    machine.push(Opaque(str(kind), arguments=arguments), 2 * OBJECT)


def _new_object_with_names(machine: Machine, argument: Any) -> None:
    named = machine.pop()
    _new_opaque(machine, argument)
    machine.top().state = named


_ACTIONS: dict[str, Callable[[Machine, Any], None]] = {
    "PROTO": _do_nothing,
    "FRAME": _do_nothing,
    "MARK": _pusher_of(lambda: MARK),
    "NONE": _pusher_of(lambda: None),
    "NEWTRUE": _pusher_of(lambda: True),
    "NEWFALSE": _pusher_of(lambda: False),
    "EMPTY_DICT": _pusher_of(dict, OBJECT),
    "EMPTY_LIST": _pusher_of(list, OBJECT),
    "EMPTY_TUPLE": _pusher_of(tuple),
    "EMPTY_SET": _pusher_of(Opaque, OBJECT),
    "ADDITEMS": _add_items,
    "TUPLE": _collector_of(tuple),
    "TUPLE1": _tuple_of(1),
    "TUPLE2": _tuple_of(2),
    "TUPLE3": _tuple_of(3),
    "LIST": _collector_of(list),
    "DICT": _dict_to_mark,
    "SETITEM": _set_item,
    "SETITEMS": lambda machine, argument: _set_pairs(machine, machine.pop_to_mark()),
    "APPEND": lambda machine, argument: _append_items(machine, [machine.pop()]),
    "APPENDS": lambda machine, argument: _append_items(machine, machine.pop_to_mark()),
    "PUT": _write_memo,
    "BINPUT": _write_memo,
    "LONG_BINPUT": _write_memo,
    "MEMOIZE": lambda machine, argument: machine.keep(len(machine.memo)),
    "GET": _read_memo,
    "BINGET": _read_memo,
    "LONG_BINGET": _read_memo,
    "GLOBAL": _push_global,
    "STACK_GLOBAL": _stack_global,
    "BINPERSID": _push_storage,
    "REDUCE": _call_rebuilder,
    "BUILD": _set_state,
    "NEWOBJ": _new_object,
    "POP": lambda machine, argument: _do_nothing(machine, machine.pop()),
} | dict.fromkeys(
    (
        "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
        "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES",
    ),
    _push_argument,
)  # fmt: skip
_NAMES = {opcode.code.encode("latin-1"): opcode.name for opcode in pickletools.opcodes}
_OPERATIONS: dict[bytes, tuple[Callable[[Any], Any] | None, Callable[[Machine, Any], None]]] = {
    opcode.code.encode("latin-1"): (opcode.arg.reader if opcode.arg is not None else None, _ACTIONS[opcode.name])
    for opcode in pickletools.opcodes
    if opcode.name in _ACTIONS
}
_OF_ANY_OBJECT = _OPERATIONS | {
    opcode.code.encode("latin-1"): (None, act)
    for opcode in pickletools.opcodes
    for name, act in (
        ("NEWOBJ", _new_opaque),
        ("NEWOBJ_EX", _new_object_with_names),
        ("FROZENSET", _collector_of(lambda items: Opaque("builtins.frozenset", arguments=tuple(items)))),
    )
    if opcode.name == name
}
"""What is read beside where a pickle may hold any object."""
