"""Restores a model after a run: modes, buffers, attributes, configurations."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Puts `model` into evaluation mode inside; restores it afterwards.

    It restores every submodule's mode and attributes, the dictionaries and lists among them (hooks: Transformers adds
    its own in a first run), the values of its buffers (running statistics, counters), and the fields of its
    configurations. Parameters are not copied: no forward is expected to write them.
    """
    parts = list(model.modules())
    held = [*_attribute_tables(parts), *(vars(config) for config in configurations(model))]
    tables = [(table, dict(table)) for table in held]
    rows = [(row, list(row)) for part in parts for row in vars(part).values() if isinstance(row, list)]
    values = [(tensor, tensor.detach().clone()) for tensor in _plain_tensors(held)]
    modes = [(part, part.training) for part in parts]
    for part in parts:
        part.training = False  # not part.train(False): a custom class may do more than that
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
        for table, before in tables:
            _restore_table(table, before)
        for row, items in rows:
            # In place: other objects may hold the same list.
            row[:] = items
        for tensor, value in values:
            _restore_values(tensor, value)


def configurations(model: nn.Module) -> tuple[PreTrainedConfig, ...]:
    """Lists every configuration of Transformers that a module of `model` holds, those inside others included."""
    found: dict[int, PreTrainedConfig] = {}
    waiting = [value for part in model.modules() for value in vars(part).values()]
    while waiting:
        value = waiting.pop()
        if isinstance(value, PreTrainedConfig) and id(value) not in found:
            found[id(value)] = value
            waiting += vars(value).values()
    return tuple(found.values())


def _restore_table(table: dict[Any, Any], before: dict[Any, Any]) -> None:
    """Puts the attributes of an object back, or what a dictionary among them held: parameters, submodules, hooks."""
    if not before:  # most hooks: there are ten tables of them in a module
        table.clear()
        return
    for name in table.keys() - before.keys():
        del table[name]
    for name, value in before.items():
        if name not in table or table[name] is not value:
            table[name] = value


@torch.no_grad()
def _restore_values(tensor: torch.Tensor, before: torch.Tensor) -> None:
    # `copy_` needs the same shape, and a forward may resize a buffer.
    if tensor.shape != before.shape:
        tensor.resize_(before.shape)
    if not torch.equal(tensor, before):
        tensor.copy_(before)


def tensors_beside_parameters(model: nn.Module) -> tuple[torch.Tensor, ...]:
    """Lists the buffers and other tensors that the modules of `model` hold, except those on meta."""
    return _plain_tensors(_attribute_tables(model.modules()))


def _attribute_tables(parts: Iterable[nn.Module]) -> list[dict[Any, Any]]:
    """Lists the attributes of modules, and the dictionaries among them: parameters, buffers, hooks."""
    own = [vars(part) for part in parts]
    return own + [value for table in own for value in table.values() if isinstance(value, dict)]


def _plain_tensors(tables: list[dict[Any, Any]]) -> tuple[torch.Tensor, ...]:
    """Lists the tensors that are not parameters, each once; those on meta have no values and are left out."""
    held = (value for table in tables for value in table.values())
    tensors = (value for value in held if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter))
    return tuple({id(tensor): tensor for tensor in tensors if not tensor.is_meta}.values())
