"""A model that is run and left as it was: modes, buffers, attributes, configurations."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards `model` is as before.

    It restores every submodule's mode and attributes, the dictionaries and lists among them (hooks: Transformers adds
    its own in a first run), the values of its buffers (running statistics, counters), and the fields of its
    configurations. Parameters are not copied: no forward is expected to write them.
    """
    parts = list(model.modules())
    tables = [_Table(table, dict(table)) for part in parts for table in _tables_of(part)]
    rows = [_Row(held, list(held)) for part in parts for held in vars(part).values() if isinstance(held, list)]
    tables += [_Table(vars(config), dict(vars(config))) for config in configurations(model)]
    values = [_Value(tensor, tensor.detach().clone()) for tensor in _plain_tensors(parts)]
    modes = [(part, part.training) for part in parts]
    for part in parts:
        part.training = False  # not part.train(False): a custom class may do more than that
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
        for table in tables:
            table.restore()
        for row in rows:
            row.restore()
        for value in values:
            value.restore()


def configurations(model: nn.Module) -> tuple[PreTrainedConfig, ...]:
    """Every configuration of Transformers that a module of `model` holds, those inside others included."""
    found: dict[int, PreTrainedConfig] = {}
    waiting = [value for part in model.modules() for value in vars(part).values()]
    while waiting:
        value = waiting.pop()
        if isinstance(value, PreTrainedConfig) and id(value) not in found:
            found[id(value)] = value
            waiting += vars(value).values()
    return tuple(found.values())


@dataclass(frozen=True, slots=True)
class _Table:
    """The attributes of an object, and what they were."""

    held: dict[Any, Any]
    before: dict[Any, Any]

    def restore(self) -> None:
        if not self.before:  # most hooks: there are ten tables of them in a module
            self.held.clear()
            return
        if self.held.keys() != self.before.keys():
            for name in self.held.keys() - self.before.keys():
                del self.held[name]
        for name, value in self.before.items():
            if name not in self.held or self.held[name] is not value:
                self.held[name] = value


@dataclass(frozen=True, slots=True)
class _Row:
    """A list that a module holds, and what it held."""

    held: list[Any]
    before: list[Any]

    def restore(self) -> None:
        self.held[:] = self.before


@dataclass(frozen=True, slots=True)
class _Value:
    """A tensor, and a copy of what it held."""

    held: torch.Tensor
    before: torch.Tensor

    def restore(self) -> None:
        with torch.no_grad():
            if self.held.shape != self.before.shape:
                self.held.resize_(self.before.shape)
            if not torch.equal(self.held, self.before):
                self.held.copy_(self.before)


def _tables_of(part: nn.Module) -> Iterator[dict[Any, Any]]:
    """The attributes of a module, and each dictionary among them: parameters, buffers, submodules, hooks, caches."""
    own = vars(part)
    yield own
    yield from (value for value in own.values() if isinstance(value, dict))


def _plain_tensors(parts: list[nn.Module]) -> tuple[torch.Tensor, ...]:
    """Buffers and other tensors that modules hold and that are not parameters; those on meta have no values."""
    held = (value for part in parts for table in _tables_of(part) for value in table.values())
    tensors = (value for value in held if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter))
    return tuple({id(tensor): tensor for tensor in tensors if not tensor.is_meta}.values())
