"""The names of what a model holds, by identity."""

from torch import nn

from headscope.trace.buffers import names_of_buffers
from headscope.trace.recorder import Operation


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
