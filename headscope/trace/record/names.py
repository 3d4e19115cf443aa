"""The names of what a model holds, by identity, and the buffers that a checkpoint stores beside the parameters."""

from collections.abc import Iterator

import torch
from torch import nn

from headscope.trace.record.recorder import Operation
from headscope.upstream.torch import buffers_of, is_persistent


def persistent_buffers(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The names and tensors of all buffers that `state_dict` holds, shared ones under each of their names."""
    # Duplicates too: a checkpoint stores a shared buffer under each of its names.
    for path, module in model.named_modules(remove_duplicate=False):
        for name, buffer in buffers_of(module).items():
            if buffer is not None and is_persistent(module, name):
                yield (f"{path}.{name}" if path else name), buffer


def names_of_buffers(model: nn.Module) -> dict[int, str]:
    """The first name of each persistent buffer, by the tensor's id."""
    names: dict[int, str] = {}
    for name, buffer in persistent_buffers(model):
        names.setdefault(id(buffer), name)
    return names


class ModelNames:
    """Full names of a model's modules, parameters and persistent buffers, by identity."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = {id(module): name for name, module in model.named_modules()}
        self.parameters: dict[int, str] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            self.parameters.setdefault(id(parameter), name)
        self.buffers = names_of_buffers(model)

    def path(self, operation: Operation) -> str:
        """The path of the innermost registered module that ran `operation`; "" is the model itself."""
        return next((self.modules[id(item)] for item in reversed(operation.modules) if id(item) in self.modules), "")
