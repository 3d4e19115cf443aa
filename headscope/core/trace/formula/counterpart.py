"""Counterpart of a head in another run: its operations and tensors by those of the first, and a formula carried
over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, assert_never

import torch

from headscope.core.trace.formula.expression import (
    Applied,
    Arithmetic,
    Cut,
    Expression,
    Hidden,
    Joined,
    Number,
    Pick,
    Pooled,
    Rows,
    Side,
    with_operands,
)
from headscope.core.trace.formula.side_values import LAYOUT
from headscope.core.trace.record.base import base_module
from headscope.core.trace.record.execution import Execution
from headscope.core.trace.record.recorder import Operation
from headscope.core.trace.replay.replay import mask_kind
from headscope.core.trace.slice.axes import TokenAxes
from headscope.core.trace.slice.head_slice import HeadSlice, same_head
from headscope.core.trace.slice.stages import is_silent, place_of, single_step


class Differs(Exception):
    """Raised if another run goes through other code, or reads other things, than the first; says how."""


@dataclass(frozen=True, slots=True)
class Counterpart:
    """A head in two runs. `pairs` holds each tensor of the first and that of the other, by the id of the first."""

    one: Execution
    head: HeadSlice
    pairs: dict[int, tuple[torch.Tensor, torch.Tensor]]
    operations: dict[int, Operation]

    @property
    def other(self) -> Execution:
        """Other run, which `head` is from."""
        return self.head.execution

    def of(self, value: Any) -> Any:
        """Returns the other run's tensor for one of the first; anything but a tensor is the same in both."""
        return self.pairs[id(value)][1] if isinstance(value, torch.Tensor) else value

    def axes(self, axes: TokenAxes) -> TokenAxes:
        """Returns the token axes of the other run, which are where those of the first are, whatever their sizes."""
        known = {id(other): axes.of(one) for one, other in self.pairs.values()}
        return TokenAxes(set(), {id(item): known[id(item)] for item in self.head.hidden}, known)

    def carried(self, node: Expression, *, numbers_only: bool) -> Expression:
        """Rewrites the tree of a formula over the tensors of the other run. Raises Differs if its text isn't true
        there.
        """
        memo: dict[int, Expression] = {}

        def carry(inner: Expression) -> Expression:
            if id(inner) not in memo:
                memo[id(inner)] = with_operands(self._node_there(inner, numbers_only), carry)
            return memo[id(inner)]

        try:
            return carry(node)
        except KeyError:
            raise Differs("reads other values beside the hidden states") from None

    def _node_there(self, node: Expression, numbers_only: bool) -> Expression:  # noqa: PLR0911 - one for each kind
        """Returns a node over the tensors of the other run, still on operands over those of the first."""
        match node:
            case Number():
                # A number that is named after an axis is the size of that axis in the other run.
                size = self.other.probe.axis_sizes().get(node.axis)
                return node if numbers_only or size is None else replace(node, value=float(size))
            case Side():
                tensor, made = self.of(node.tensor), self.one.graph.maker(node.tensor)
                if made is not None and made.index not in self.operations:
                    raise KeyError(made.index)  # it is made in another way there
                if node.mask is not None and mask_kind(tensor, self.other) is not node.mask:
                    raise Differs("reads a mask that does not keep exactly the positions that are not padding")
                return replace(node, tensor=tensor)
            case Arithmetic():
                return replace(node, recorded=(self.of(node.recorded[0]), self.of(node.recorded[1])))
            case Joined():
                return replace(node, recorded=tuple(map(self.of, node.recorded)))
            case Applied():
                # A copy may be made in only one of the two runs.
                found = (
                    self.operations.get(item.index) if _is_copy(item) else self.operations[item.index]
                    for item in node.step.operations
                )
                step = replace(node.step, operations=tuple(item for item in found if item))
                if (node.text or node.rest) and len(step.operations) == 1 and step.name not in LAYOUT:
                    self._check_numbers(node.step.last, step.last)
                inputs = tuple((self.of(tensor), inner) for tensor, inner in node.inputs)
                return replace(node, step=step, inputs=inputs, output=self.of(node.output))
            case Rows():
                return replace(node, weight=self.of(node.weight), bias=self.of(node.bias))
            case Hidden() | Pick() | Cut() | Pooled():
                return node
        assert_never(node)

    def _check_numbers(self, one: Operation, other: Operation) -> None:
        """Raises Differs if the numbers that a formula shows for an operation are others there."""
        named, sizes = self.one.probe.axis_sizes(), self.other.probe.axis_sizes()
        here, there = (list(_numbers_in_value((*item.args, *item.kwargs.values()))) for item in (one, other))
        if len(here) != len(there) or not all(
            left == right or any(left == size and right == sizes.get(name) for name, size in named.items())
            for left, right in zip(here, there, strict=True)
        ):
            raise Differs(f"reads other values at {place_of(other)}")


def _numbers_in_value(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list):
        for item in value:
            yield from _numbers_in_value(item)
    elif isinstance(value, slice):
        yield from (value.start, value.stop, value.step)
    elif isinstance(value, int | float):
        yield value


def find_counterpart(head: HeadSlice, other: Execution) -> Counterpart:
    """Finds a head in another run, operation by operation, from the scores back to the hidden states.

    Raises Differs where the other run goes through other operations, modules or lines.
    """
    pairs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    operations: dict[int, Operation] = {}
    one = head.execution
    waiting = list(zip(one.logits, other.logits, strict=False))
    hidden = {id(tensor) for tensor in head.hidden}
    while waiting:
        left, right = waiting.pop()
        found, there = one.graph.maker(left), other.graph.maker(right)
        # A copy into one piece of memory is only made where there are several.
        if there and _is_copy(there) and not (found and _is_copy(found)):
            waiting.append((left, there.inputs[0]))
        elif id(left) in hidden or (found and found.index in operations):
            known = pairs[id(left)][1] if id(left) in hidden & pairs.keys() else right
            if known is not right or (found and operations.get(found.index, there) is not there):
                raise Differs(_other_code(there))
            pairs[id(left)] = left, right
        elif _identity_of(one, left, found) == _identity_of(other, right, there) and _is_same_output(
            left, found, right, there
        ):
            pairs[id(left)] = left, right
            if found and there:
                operations[found.index] = there
                for item, twin in zip(found.outputs, there.outputs, strict=False):
                    pairs.setdefault(id(item), (item, twin))
                waiting += zip(found.inputs, there.inputs, strict=True)
        elif found and _is_copy(found):
            pairs[id(left)] = left, right
            waiting.append((found.inputs[0], right))
        # How a mask is made may differ: its values decide. What is made from hidden states or weights may not.
        elif id(left) in head.derived or left.is_meta or found is None or there is None:
            raise Differs(_other_code(there or found))
        else:
            pairs[id(left)] = left, right
    if not hidden <= pairs.keys():
        raise Differs("runs other code")
    same = same_head(head, other, tuple(pairs[id(tensor)][1] for tensor in head.hidden), base_module(other.model))
    return Counterpart(one, same, pairs, operations)


def _is_copy(made: Operation) -> bool:
    return is_silent(single_step(made)) and len(made.inputs) == 1


def _is_same_output(left: torch.Tensor, one: Operation | None, right: torch.Tensor, other: Operation | None) -> bool:
    """True if two tensors are the same output of their operations, counted from the first or from the last."""
    if not (one and other):
        return True
    here, there = ([item is tensor for item in made.outputs] for tensor, made in ((left, one), (right, other)))
    return here.index(True) == there.index(True) or here[::-1].index(True) == there[::-1].index(True)


def _other_code(made: Operation | None) -> str:
    return f"runs other code ({place_of(made)})" if made else "reads other values"


def _identity_of(run: Execution, tensor: torch.Tensor, made: Operation | None) -> tuple[Any, ...]:
    """Returns what must be the same in two runs: name, place and module of an operation, the name of a leaf."""
    if made is not None:
        return made.name, made.file, made.line, run.names.path(made), len(made.inputs)
    inputs = {id(value): name for name, value in run.probe.inputs.items()}
    known = (names.get(id(tensor)) for names in (run.names.parameters, run.names.buffers, inputs))
    return tuple(name for name in known if name)
