"""Decisions that a forward takes on the sizes of its inputs, recorded while it runs.

A forward gets its sizes as integers that know how they follow from the batch and the length, and that note what they
are compared with. If a size or a value leaves as a plain number (`len(h)`, `int(mask.sum())`), the integers in the code
that gets it are noted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from headscope.core.trace.batch.probe_batch import ProbeBatch
from headscope.core.trace.record.recorder import CALLER, EXITS, is_plumbing, name_of

MOST = 2048
"""Numbers beyond this are not the lengths of texts that headscope tries."""
_COMPARISONS = frozenset(
    {"isin", *(f"{name}{end}" for name in ("eq", "ne", "lt", "le", "gt", "ge") for end in ("", "_"))}
    | {f"__{name}__" for name in ("eq", "ne", "lt", "le", "gt", "ge", "contains")}
)
_FEW = 16
"""A tensor of at most that many whole numbers is a list of tokens that others are compared with."""
Decision = Callable[[int, int], Any]
"""What follows from the batch and the length: a size, or the truth of a comparison."""

Place = tuple[CodeType, int]
"""Where a comparison is made: its code, and how far into it."""


class SizeBranches(TorchFunctionMode):
    """Notes the comparisons of sizes outside `base`, and the numbers in code that gets a size or a value as a number.

    `batches` are the numbers that a number of rows may be compared with, `lengths` those for positions, and `tokens`
    those that whole numbers of the inputs are compared with.
    """

    def __init__(self, probe: ProbeBatch, base: nn.Module | None) -> None:
        super().__init__()
        self.decisions: list[tuple[Place, Decision]] = []
        self.batches: set[int] = set()
        self.lengths: set[int] = set()
        self.tokens: set[int] = set()
        self._codes: set[CodeType] = set()
        self._base, self._at = base, (probe.batch, probe.length)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._note_code(sys._getframe(1))
        name = name_of(func)
        if name == "__getitem__":  # before it fails: a forward may catch that
            parts = args[1] if isinstance(args[1], tuple) else (args[1],)
            numbers = {part for part in parts if type(part) is int and 1 < part <= MOST} - self.lengths
            if numbers and not self._is_inside(sys._getframe(1)):
                self.lengths |= numbers
        if name in _COMPARISONS and not self._is_inside(sys._getframe(1)):
            self._note_tokens(args)
        result = func(*args, **(kwargs or {}))
        if name in {"shape", "size"}:
            return torch.Size(map(self._as_size, result)) if isinstance(result, tuple) else self._as_size(result)
        if name == "__len__" and isinstance(size := self._as_size(result), _Size):
            self.note_read(size.measure, sys._getframe(1))
        elif name in EXITS and not args[0].is_floating_point():
            self.note_read(lambda batch, length: length, sys._getframe(1))
        return result

    def _note_code(self, frame: FrameType) -> None:
        """Notes the numbers in code outside the base model: the end of a loop, the size of a piece."""
        found = next((item for item in _frames_of_forward(frame) if not is_plumbing(item.f_code.co_filename)), None)
        if found is not None and found.f_code not in self._codes:
            self._codes.add(found.f_code)
            if not self._is_inside(found):
                self.lengths.update(
                    item for item in _code_constants(found.f_code) if type(item) is int and 1 < item <= MOST
                )

    def _note_tokens(self, args: tuple[Any, ...]) -> None:
        """Notes the plain numbers beside an integer tensor, and their neighbors."""
        whole = [item for item in args if isinstance(item, torch.Tensor) and not item.is_meta]
        whole = [item for item in whole if not item.is_floating_point()]
        few = [
            number for item in whole if item.dim() < 2 and item.numel() <= _FEW for number in item.flatten().tolist()
        ]
        if any(item.dim() for item in whole):
            numbers = (item for item in (*args, *few) if type(item) is int)
            self.tokens.update(at + more for at in numbers for more in (-1, 0, 1) if at + more >= 0)

    def _as_size(self, size: int) -> int:
        if size == self._at[0]:
            return _make_size(size, lambda batch, length: batch, self)
        return _make_size(size, lambda batch, length: length, self) if size and size == self._at[1] else size

    def note_decision(self, decision: Decision, frame: FrameType) -> None:
        """Notes a comparison that the code of a frame makes, unless it is plumbing or in the base model."""
        if not is_plumbing(frame.f_code.co_filename) and not self._is_inside(frame):
            self.decisions.append(((frame.f_code, frame.f_lasti), decision))

    def note_read(self, measure: Decision, frame: FrameType) -> None:
        """Notes the numbers of the code, from a frame on, that gets what is measured as a plain number."""
        if self._is_inside(frame):
            return
        own = (found for found in _frames_of_forward(frame) if not is_plumbing(found.f_code.co_filename))
        numbers = {item for found in own for item in _whole_numbers(found) if 1 < item <= MOST}
        # Which of the two a number follows from shows when one of them changes by 1.
        batch, length = self._at
        if measure(batch + 1, length) != measure(batch, length):
            self.batches |= numbers
        if measure(batch, length + 1) != measure(batch, length):
            self.lengths |= numbers

    def _is_inside(self, frame: FrameType) -> bool:
        return self._base is not None and any(
            found.f_locals.get("self") is self._base for found in _frames_of_forward(frame)
        )


def _frames_of_forward(frame: FrameType | None) -> Iterator[FrameType]:
    """Yields a frame and those that called it, up to the call of the forward."""
    while frame is not None and frame.f_code.co_filename != CALLER:
        yield frame
        frame = frame.f_back


def _whole_numbers(frame: FrameType) -> Iterator[int]:
    """Yields the integers that the code of a frame can name: its own, and those of its variables and attributes."""
    names, held = frame.f_code.co_names, frame.f_locals.get("self")
    owners = [item for item in (held, getattr(held, "config", None)) if item is not None]
    values = [*_code_constants(frame.f_code), *frame.f_locals.values(), *map(frame.f_globals.get, names)]
    values += [getattr(owner, name, None) for owner in owners for name in names]
    yield from (value for value in values if type(value) is int)


def _code_constants(code: CodeType) -> Iterator[Any]:
    for value in code.co_consts:
        yield from (
            value
            if isinstance(value, tuple | frozenset)
            else _code_constants(value)
            if isinstance(value, CodeType)
            else (value,)
        )


class _Size(int):
    """Integer that knows how it follows from the batch and the length."""

    measure: Decision
    seen_by: SizeBranches


def _make_size(value: int, measure: Decision, seen_by: SizeBranches) -> _Size:
    made = _Size(value)
    made.measure, made.seen_by = measure, seen_by
    return made


def _size_method(name: str, *, compares: bool) -> Callable[..., Any]:
    """Makes the method of `_Size` for an operator of `int`: the result knows how it follows, too, or is noted."""
    plain = getattr(int, name)

    def method(self: _Size, *others: Any) -> Any:
        result = plain(self, *others)

        def measure(batch: int, length: int) -> Any:
            given = (item.measure(batch, length) if isinstance(item, _Size) else item for item in (self, *others))
            return plain(*given)

        # A fraction or a plain number: what it is compared with is not seen.
        if name in {"__int__", "__hash__"} or result is NotImplemented or not isinstance(result, int):
            self.seen_by.note_read(self.measure, sys._getframe(1))
            return result
        if not compares:
            return _make_size(result, measure, self.seen_by)
        self.seen_by.note_decision(measure, sys._getframe(1))
        return result

    return method


# Python looks operators up on the class, so each must be set there: `__getattr__` would not see them.
for _name in ("lt", "le", "gt", "ge", "eq", "ne", "bool"):
    setattr(_Size, f"__{_name}__", _size_method(f"__{_name}__", compares=True))
for _name in ("add", "sub", "mul", "floordiv", "mod", "divmod", "truediv", "pow", "and", "rshift", "lshift"):
    setattr(_Size, f"__{_name}__", _size_method(f"__{_name}__", compares=False))
    setattr(_Size, f"__r{_name}__", _size_method(f"__r{_name}__", compares=False))
for _name in ("neg", "int", "float", "hash"):
    setattr(_Size, f"__{_name}__", _size_method(f"__{_name}__", compares=False))
