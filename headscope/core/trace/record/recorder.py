"""Graph of what a forward ran: every user-level operation with its operands, module and source line."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from threading import get_ident
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as nn_module
from torch.overrides import TorchFunctionMode

from headscope.core.trace.record.memory import TensorMemory
from headscope.core.trace.record.trees import tensors_in
from headscope.core.upstream.torch import name_of_overload, places_of_arguments, tree_map, usual_names, version_of

_TORCH_DIRECTORY = str(Path(torch.__file__).parent)
_OWN_DIRECTORY = str(Path(__file__).parents[1])
CALLER = str(Path(__file__).with_name("execution.py"))
"""The file that calls a model's forward."""
_PLUMBING = ("/transformers/activations.py", "/transformers/pytorch_utils.py", "/transformers/integrations/")
DROPOUTS = {"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"}
_WRITES = {
    "__setitem__", "__iadd__", "__isub__", "__imul__", "__idiv__", "__itruediv__", "__ifloordiv__", "__imod__",
    "__ipow__", "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__",
}  # fmt: skip

_BY_SHAPE = {
    "full_like", "zeros_like", "ones_like", "empty_like", "rand_like", "randn_like", "new_full", "new_zeros",
    "new_ones", "new_empty",
}  # fmt: skip
"""Functions whose result depends on the shape of their tensor and not on its values: no path leads through them."""

_SHAPED_LIKE = {"expand_as", "view_as", "reshape_as", "type_as"}
"""Functions that take only the shape or the number format of their second tensor."""

BRANCHES = {"__bool__", "is_nonzero", "equal", "allclose", "__contains__"}
"""Functions that give a truth value, which a forward asks for to choose what it does next."""
EXITS = {"numpy", "__array__", "tolist", "item", "__float__", "__int__", "__complex__", "__dlpack__", *BRANCHES}
"""Functions that give the values of a tensor as something else than a tensor."""


@dataclass(slots=True, eq=False)
class Operation:
    """One executed call of a PyTorch function.

    `inputs` are its tensor operands. Every tensor has one value, and at most one operation that made it: what is
    written in place has a new tensor among the outputs, and the one before is in `writes`. Outputs begin with those, in
    the order of `writes`.
    `modules` is the stack of modules whose forward was running, outermost first; `call` numbers the innermost
    module's call, so that two calls of one module can be told apart.
    """

    index: int
    function: Any
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]
    modules: tuple[nn.Module, ...]
    call: int
    file: str
    line: int
    writes: tuple[torch.Tensor, ...] = ()

    def argument(self, at: int, name: str) -> Any:
        """Returns the argument that a call has at a place or by its name; None without one."""
        return self.args[at] if len(self.args) > at else self.kwargs.get(name)


def run_again(operation: Operation, known: Callable[[Any], Any]) -> tuple[torch.Tensor, ...]:
    """Calls an operation again, with `known` instead of each of its arguments, and returns its outputs.

    What it writes in place is a copy. The outputs begin with the written tensors, as those of the operation do.
    """
    overwritten = {id(tensor) for tensor in operation.writes}
    copies: dict[int, torch.Tensor] = {}

    def given(value: Any) -> Any:
        if id(value) in overwritten and id(value) not in copies:
            copies[id(value)] = known(value).clone()
        return copies[id(value)] if id(value) in overwritten else known(value)

    result = operation.function(*tree_map(given, operation.args), **tree_map(given, operation.kwargs))
    changed = tuple(copies[id(tensor)] for tensor in operation.writes)
    return (*changed, *(leaf for leaf in tensors_in(result) if not _is_among(leaf, changed)))


@dataclass(frozen=True, slots=True)
class Guess:
    """Place where the forward decides on a value that a shape-only run does not have.

    `is_branch` is False where the value was only written into a real tensor; `before` is the index of the operation
    that came next.
    """

    modules: tuple[nn.Module, ...]
    file: str
    line: int
    is_branch: bool = True
    before: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Exit:
    """Call that hands the values of a tensor out of PyTorch, where the graph can't follow them."""

    tensor: torch.Tensor
    name: str
    modules: tuple[nn.Module, ...]
    file: str
    line: int


@dataclass(slots=True, eq=False)
class Graph:
    """All operations of one forward, in execution order; `returned` holds what each module returned last.

    `stale` are the indices of the operations that read memory which was written through another tensor: what they read
    is not what was recorded.
    """

    operations: list[Operation] = field(default_factory=list)
    # By the id of a tensor: `==` on tensors compares their values. The operations hold every tensor, because the id of
    # one that was freed would be given to another.
    producers: dict[int, int] = field(default_factory=dict)
    executed: set[nn.Module] = field(default_factory=set)
    guesses: list[Guess] = field(default_factory=list)
    exits: list[Exit] = field(default_factory=list)
    returned: dict[nn.Module, Any] = field(default_factory=dict)
    memory: TensorMemory = field(default_factory=TensorMemory)
    stale: set[int] = field(default_factory=set)

    def producer(self, tensor: torch.Tensor) -> int:
        """Returns the index of the operation that made `tensor`; -1 for a leaf."""
        return self.producers.get(id(tensor), -1)

    def maker(self, tensor: torch.Tensor) -> Operation | None:
        """Returns the operation that made `tensor`; None for a leaf."""
        index = self.producers.get(id(tensor))
        return None if index is None else self.operations[index]

    def before(
        self, *tensors: torch.Tensor, through: Callable[[torch.Tensor], bool] = lambda tensor: True
    ) -> Iterator[Operation]:
        """Yields the operations that made these tensors, and all that they depend on, each once.

        `through` decides for each operand whether the walk goes on through it.
        """
        waiting, seen = list(tensors), set[int]()
        while waiting:
            made = self.maker(waiting.pop())
            if made is not None and made.index not in seen:
                seen.add(made.index)
                yield made
                waiting += filter(through, made.inputs)

    def behind(self, *tensors: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yields these tensors, and all that are read to make them."""
        yield from tensors
        for operation in self.before(*tensors):
            yield from operation.inputs

    def after(self, tensor: torch.Tensor) -> set[int]:
        """Returns the indices of the operations whose result depends on `tensor`."""
        found: set[int] = set()
        for operation in self.operations[self.producer(tensor) + 1 :]:
            if any(item is tensor or self.producer(item) in found for item in operation.inputs):
                found.add(operation.index)
        return found


class Recorder(TorchFunctionMode):
    """Records every PyTorch function that user code calls in this thread, and passes it on."""

    def __init__(self) -> None:
        super().__init__()
        self.graph = Graph()
        self._modules: list[nn.Module] = []
        self._calls: list[int] = [0]
        self._count = 0
        self._thread = get_ident()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        func, args, kwargs = _in_one_form(func, args, kwargs or {})
        name = name_of(func)
        # PyTorch gives an iterator here, in which no tensor can be seen: what the loop takes out would have no maker.
        if name == "__iter__" and args[0].dim():
            return iter(self.__torch_function__(torch.Tensor.unbind, types, (args[0], 0)))
        memory = self.graph.memory
        operands = tensors_in((args, {**kwargs, "out": None}) if kwargs else args)
        is_stale = name not in _BY_SHAPE and self._reads_stale(name, args, operands)
        targets = _written_targets(name, args, kwargs)
        for tensor in targets:
            memory.keep_value(tensor)
        # A name doesn't show every write: `relu(x, inplace=True)` and the running statistics of a batch norm are seen
        # only by PyTorch's own count of writes.
        versions = [version_of(tensor) for tensor in operands]
        given = memory.renewed(args), memory.renewed({key: item for key, item in kwargs.items() if key != "out"})
        result = func(*args, **kwargs)
        if name in EXITS and operands:
            kept = memory.newest(operands[0])
            self.graph.exits.append(Exit(kept, name, tuple(self._modules), *_user_line(sys._getframe(1))))
        bumped = [item for item, before in zip(operands, versions, strict=True) if version_of(item) != before]
        made = tensors_in(result) if isinstance(result, torch.Tensor | tuple | list) else []
        replacement = _whole_replacement(name, args)
        # `out[:] = value` leaves nothing of what `out` held, so no path may lead back through it: it is a copy of
        # `value`.
        if replacement is not None:
            func, name, given = torch.clone, "clone", ((memory.newest(replacement),), {})
        if targets and (kwargs.get("out") is not None or replacement is not None):
            self._append_operation(func, name, *given, tuple(map(memory.write, targets)), (), is_stale=is_stale)
            return result
        written = _find_written(name, targets, operands, bumped, made)
        if isinstance(result, torch.Tensor) and not written and _is_among(result, operands):
            # In evaluation mode a dropout returns its input, the same object. Without a tensor that stands for its
            # result it would be missing among the stages.
            if name not in DROPOUTS:
                return result
            result = torch.ops.aten.alias(result)
            made = [result]
        before = tuple(memory.newest(tensor) for tensor in written)
        # A tensor that is returned as it was, in a list or as `view._base`, has its maker already.
        new = [item for item in made if not _is_among(item, operands) and id(item) not in self.graph.producers]
        outputs = (*map(memory.write, written), *new)
        if outputs:
            self._append_operation(func, name, *given, outputs, before, is_stale=is_stale)
        return result

    def _reads_stale(self, name: str, args: tuple[Any, ...], operands: list[torch.Tensor]) -> bool:
        """True if an operand was written through another tensor since it was recorded."""
        memory = self.graph.memory
        stale = [tensor for tensor in operands if memory.is_stale(tensor)]
        for tensor in operands:
            memory.note(tensor)
        # `x[:, 0] += 1` writes the view first, and then assigns it to the place where it is already. Nothing is lost.
        if name == "__setitem__" and stale and all(tensor is args[0] for tensor in stale):
            return not memory.is_written_back(*args[:3])
        return bool(stale)

    def _append_operation(  # noqa: PLR0917 - an operation is made from that many facts
        self,
        func: Any,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        outputs: tuple[torch.Tensor, ...],
        writes: tuple[torch.Tensor, ...],
        *,
        is_stale: bool,
    ) -> None:
        producers = self.graph.producers
        given = [] if name in _BY_SHAPE else tensors_in(args[:1] if name in _SHAPED_LIKE else (args, kwargs))
        inputs, index = tuple(given), len(self.graph.operations)
        # Two frames up is the caller of __torch_function__; what lies between belongs to the recorder.
        file, line = _user_line(sys._getframe(2))
        stack = tuple(self._modules)
        self.graph.operations.append(
            Operation(index, func, name, args, kwargs, inputs, outputs, stack, self._calls[-1], file, line, writes)
        )
        if is_stale:
            self.graph.stale.add(index)
        for output in outputs:
            producers[id(output)] = index
            self.graph.memory.note(output)

    def finish(self, scores: tuple[torch.Tensor, ...]) -> None:
        """Notes which of the scores were written through another tensor after they were made."""
        self.graph.stale.update(self.graph.producer(score) for score in scores if self.graph.memory.is_stale(score))

    def note_guess(self, is_branch: bool) -> None:
        """Records where the forward branches on a value that does not exist here, or writes it into a real tensor."""
        place = _user_line(sys._getframe(1))
        self.graph.guesses.append(Guess(tuple(self._modules), *place, is_branch, len(self.graph.operations)))

    def enter_module(self, module: nn.Module, args: Any) -> None:
        """Hook: `module`'s forward begins. Another thread may run the same module: that is not recorded."""
        if get_ident() != self._thread:
            return
        self._modules.append(module)
        self._count += 1
        self._calls.append(self._count)
        self.graph.executed.add(module)

    def leave_module(self, module: nn.Module, args: Any, output: Any) -> None:
        """Hook: `module`'s forward has ended, or failed."""
        if get_ident() != self._thread:
            return
        self.graph.returned[module] = self.graph.memory.renewed_output(output)
        self._modules.pop()
        self._calls.pop()


@contextmanager
def recording() -> Iterator[Recorder]:
    """Records what this thread runs inside; the module hooks are gone afterwards.

    The hooks are those of the whole process, because a forward may make modules that no model has registered
    (`ACT2FN[config.hidden_act](x)`); calls of other threads pass through them unseen.
    """
    recorder = Recorder()
    entered = nn_module.register_module_forward_pre_hook(recorder.enter_module)
    # `always_call`: a forward may catch what one of its modules raises and go on, and the stack must shrink then too.
    left = nn_module.register_module_forward_hook(recorder.leave_module, always_call=True)
    try:
        with recorder:
            yield recorder
    finally:
        entered.remove()
        left.remove()


def name_of(func: Any) -> str:
    """Returns PyTorch's name of a function: `mul`, `add_`, `__getitem__`; for `tensor.real` the attribute's name,
    and `data_` for `tensor.data = ...`.
    """
    overload = name_of_overload(func)
    if overload is not None:
        return overload
    name = str(getattr(func, "__name__", ""))
    attribute = getattr(getattr(func, "__self__", None), "__name__", "")
    if name == "__set__" and attribute == "data":
        return "data_"
    return attribute if name == "__get__" and attribute else name


def _in_one_form(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Gives a call in one form, however it is written.

    Moves what is given by name to its place where that is a tensor, the other operand or the first argument; what stays
    is in the order of its places.
    """
    if func is torch.Tensor.where:  # it alone takes the condition second
        func, kwargs = torch.where, dict(kwargs)
        args = (*(args[1:2] or (kwargs.pop("condition"),)), args[0], *args[2:])
    if not kwargs:
        return func, args, {}
    kwargs, places = usual_names(func, kwargs), places_of_arguments(func)
    while not args or "other" in kwargs or any(isinstance(item, torch.Tensor) for item in kwargs.values()):
        name = next((name for name in kwargs if places.get(name) == len(args)), None)
        if name is None:
            break
        args = (*args, kwargs.pop(name))
    return func, args, kwargs


def _written_targets(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Lists what a function writes into: its `out`, or the first tensor (list of tensors) of a function in place."""
    if kwargs.get("out") is not None:
        return tensors_in(kwargs["out"])
    is_write = name in _WRITES or (name.endswith("_") and not name.startswith("__")) or kwargs.get("inplace") is True
    if not is_write:
        return []
    if args and isinstance(args[0], list | tuple):
        return tensors_in(args[0])
    return tensors_in((args, kwargs))[:1]


def _whole_replacement(name: str, args: tuple[Any, ...]) -> torch.Tensor | None:
    """Returns the tensor that a write puts instead of the whole target: `out[:] = value`; None if something is left."""
    if name == "__setitem__":
        target, item, value = args
        items = item if isinstance(item, tuple) else (item,)
        if not all(part is Ellipsis or (isinstance(part, slice) and part == slice(None)) for part in items):
            return None
    elif name in {"copy_", "data_"} and len(args) > 1:
        target, value = args[:2]
    else:
        return None
    is_same = isinstance(value, torch.Tensor) and value.shape == target.shape and value.dtype == target.dtype
    return value if is_same else None


def _find_written(
    name: str,
    targets: list[torch.Tensor],
    operands: list[torch.Tensor],
    bumped: list[torch.Tensor],
    made: list[torch.Tensor],
) -> list[torch.Tensor]:
    """Lists the operands that were written, each once. An operand that is one of several results counts as written."""
    # A function with `inplace=True` may not write in evaluation mode (dropout): there, PyTorch's count of writes
    # decides.
    is_certain = name in _WRITES or name.endswith("_")
    found = [tensor for tensor in targets if is_certain or _is_among(tensor, bumped)]
    returned = [item for item in made if _is_among(item, operands) and (len(made) > 1 or _is_among(item, bumped))]
    return list({id(tensor): tensor for tensor in (*found, *returned)}.values())


def _is_among(tensor: torch.Tensor, tensors: list[torch.Tensor] | tuple[torch.Tensor, ...]) -> bool:
    return any(tensor is item for item in tensors)


@cache  # asked for several frames of each of thousands of calls, always about the same few files
def is_plumbing(filename: str) -> bool:
    """True if a file is not model code: PyTorch, headscope's recorder, or generic helpers."""
    return filename.startswith((_TORCH_DIRECTORY, _OWN_DIRECTORY)) or any(part in filename for part in _PLUMBING)


def _user_line(frame: FrameType | None) -> tuple[str, int]:
    """Finds file and line of the innermost frame that is model code: neither PyTorch nor generic helpers.

    Returns ("", 0) if headscope's own call of the forward comes first: the frames outside it run no model.
    """
    while frame is not None:
        filename = frame.f_code.co_filename
        if filename == CALLER:
            break
        # Code without a file was made by a library (`<string>`), unless it was typed into `<stdin>` or `python -c`.
        is_typed = filename.startswith("<") and frame.f_globals.get("__name__") == "__main__"
        if is_typed or not (filename.startswith("<") or is_plumbing(filename)):
            return filename, frame.f_lineno
        frame = frame.f_back
    return "", 0
