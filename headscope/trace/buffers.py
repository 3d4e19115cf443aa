"""The persistent buffers of a model: tensors that a checkpoint stores beside the parameters, such as running means."""

from collections.abc import Iterator

import torch
from torch import nn

from headscope.upstream.torch import buffers_of, is_persistent


def persistent_buffers(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The names and tensors of all buffers that `state_dict` holds, shared ones under each of their names."""
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
