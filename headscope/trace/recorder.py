"""The graph of what a forward ran: every user-level operation with its operands, module and source line."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import get_ident
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as nn_module
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

_TORCH_DIRECTORY = str(Path(torch.__file__).parent)
_OWN_DIRECTORY = str(Path(__file__).parent)
_CALLER = str(Path(__file__).with_name("execution.py"))
"""The file that calls a model's forward."""
_PLUMBING = ("/transformers/activations.py", "/transformers/pytorch_utils.py", "/transformers/integrations/")
_DROPOUTS = {"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"}
_WRITES = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__"}


_BY_SHAPE = {
    "full_like", "zeros_like", "ones_like", "empty_like", "rand_like", "randn_like", "new_full", "new_zeros",
    "new_ones", "new_empty",
}  # fmt: skip
"""Functions whose result depends on the shape of their tensor and not on its values: no path leads through them."""


@dataclass(slots=True, eq=False)
class Operation:
    """One executed call of a PyTorch function.

    `inputs` are its tensor operands with the index of the operation that made each (-1: a leaf).
    `modules` is the stack of modules whose forward was running, outermost first; `call` numbers the innermost
    module's call, so that two calls of one module can be told apart.
    """

    index: int
    function: Any
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: tuple[tuple[torch.Tensor, int], ...]
    outputs: tuple[torch.Tensor, ...]
    modules: tuple[nn.Module, ...]
    call: int
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Guess:
    """A decision of the forward on a value that a shape-only run does not have: where it was taken."""

    modules: tuple[nn.Module, ...]
    file: str
    line: int


@dataclass(slots=True, eq=False)
class Graph:
    """All operations of one forward, in execution order; `returned` holds what each module returned last."""

    operations: list[Operation] = field(default_factory=list)
    producers: dict[int, int] = field(default_factory=dict)
    executed: set[nn.Module] = field(default_factory=set)
    guesses: list[Guess] = field(default_factory=list)
    returned: dict[nn.Module, Any] = field(default_factory=dict)

    def producer(self, tensor: torch.Tensor) -> int:
        """The index of the operation that made `tensor` last, or -1."""
        return self.producers.get(id(tensor), -1)


class Recorder(TorchFunctionMode):
    """Writes down every PyTorch function that user code calls in this thread, and passes it on."""

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
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in _WRITES or (name.endswith("_") and not name.startswith("__")):
            self._record(func, name, args, kwargs, _first_tensor(args, kwargs))
            return result
        if isinstance(result, torch.Tensor):
            if _returns_operand(result, args, kwargs):
                if name not in _DROPOUTS:
                    return result
                result = torch.ops.aten.alias(result)
            self._record(func, name, args, kwargs, (result,))
        elif isinstance(result, tuple | list):
            outputs = tuple(leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))
            if outputs:
                self._record(func, name, args, kwargs, outputs)
        return result

    def _record(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: tuple[torch.Tensor, ...]
    ) -> None:
        producers = self.graph.producers
        given = () if name in _BY_SHAPE else tree_leaves((args, kwargs))
        operands = tuple((leaf, producers.get(id(leaf), -1)) for leaf in given if isinstance(leaf, torch.Tensor))
        index = len(self.graph.operations)
        file, line = _user_line(sys._getframe(2))
        operation = Operation(
            index, func, name, args, kwargs, operands, outputs, tuple(self._modules), self._calls[-1], file, line
        )
        self.graph.operations.append(operation)
        for output in outputs:
            producers[id(output)] = index

    def note_guess(self) -> None:
        """Remembers where the forward branches on a value that does not exist here."""
        self.graph.guesses.append(Guess(tuple(self._modules), *_user_line(sys._getframe(1))))

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
        self.graph.returned[module] = output
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
    left = nn_module.register_module_forward_hook(recorder.leave_module, always_call=True)
    try:
        with recorder:
            yield recorder
    finally:
        entered.remove()
        left.remove()


def _first_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """What an in-place function writes into: its first tensor."""
    found = next((leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)), None)
    return () if found is None else (found,)


def _returns_operand(result: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(result is operand for operand in args) or any(result is operand for operand in kwargs.values())


_plumbing_cache: dict[str, bool] = {}


def _is_plumbing(filename: str) -> bool:
    known = _plumbing_cache.get(filename)
    if known is None:
        known = filename.startswith((_TORCH_DIRECTORY, _OWN_DIRECTORY)) or any(part in filename for part in _PLUMBING)
        _plumbing_cache[filename] = known
    return known


def _user_line(frame: FrameType | None) -> tuple[str, int]:
    """File and line of the innermost frame that is model code: neither PyTorch nor generic helpers.

    ("", 0) where headscope's own call of the forward is reached first: the frames outside it run no model.
    """
    while frame is not None:
        filename = frame.f_code.co_filename
        if filename == _CALLER:
            break
        if not (_is_generated(frame) if filename.startswith("<") else _is_plumbing(filename)):
            return filename, frame.f_lineno
        frame = frame.f_back
    return "", 0


def _is_generated(frame: FrameType) -> bool:
    """Whether code without a file was made by a library (`<string>`), and not typed into `<stdin>` or `python -c`."""
    return frame.f_globals.get("__name__") != "__main__"
