"""What a caller hands over as a model in memory: unwrapped where that is meant, refused in one sentence where not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from headscope.errors import Unsupported, UsageError

if TYPE_CHECKING:
    from torch import nn


_WRAPPERS = ("DataParallel", "DistributedDataParallel")
_QUANTISED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torch.nn.quantized")
_ORIGINAL = "give the Python module that it was made from"


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """The model itself."""

    module: nn.Module


def is_in_memory(reference: Any) -> TypeGuard[nn.Module]:
    """Whether `reference` is meant as a model in memory: a module, a class of modules, an exported program."""
    return callable(getattr(reference, "named_parameters", None))


def unwrap(reference: Any) -> Unwrapped:
    """The model inside torch.compile, DataParallel and PEFT, adapters and all.

    Raises UsageError or Unsupported for what has no `forward` in Python or no weights to examine.
    """
    from torch import nn

    if isinstance(reference, type):
        raise UsageError(
            f"{reference.__name__} is a class, not a model", f"give an instance, or a checkpoint with {_AS_CLASS}"
        )
    found = reference
    while (inner := _inside(found)) is not None:
        found = inner
    if not isinstance(found, nn.Module):
        raise Unsupported(f"{_named(found)} has no forward in Python whose operations can be recorded", _ORIGINAL)
    _check(found)
    return Unwrapped(found)


_AS_CLASS = "model_class=..."


def _inside(wrapper: Any) -> Any:
    """What a wrapper wraps; None for no wrapper."""
    from torch import nn

    from headscope.upstream.torch import inside_compiled

    if not isinstance(wrapper, nn.Module):
        return None
    module: Any = wrapper
    original = inside_compiled(module)
    if original is not None:
        return original
    if type(module).__name__ in _WRAPPERS and isinstance(getattr(module, "module", None), nn.Module):
        return module.module
    if _is_adapter(module):
        return module.get_base_model()
    return _inside_cross_encoder(module)


def _inside_cross_encoder(module: Any) -> Any:
    """The classifier of a CrossEncoder that has no module after it; None for anything else."""
    is_encoder = type(module).__name__ == "CrossEncoder" and type(module).__module__.startswith("sentence_transformers")
    parts = list(module.children()) if is_encoder else []
    inner = getattr(parts[0], "model", None) if len(parts) == 1 else None
    return inner if callable(getattr(inner, "forward", None)) else None


def _is_adapter(module: Any) -> bool:
    return callable(getattr(module, "get_base_model", None))


def _check(module: nn.Module) -> None:
    import torch
    from torch.nn.parameter import is_lazy

    name = _named(module)
    if isinstance(module, torch.jit.ScriptModule):
        raise Unsupported(f"{name} is TorchScript, whose operations cannot be recorded", _ORIGINAL)
    packed = next((part for part in module.modules() if type(part).__module__.startswith(_QUANTISED)), None)
    if packed is not None:
        raise Unsupported(
            f"{name} holds quantised layers ({_named(packed)}) whose weights are packed and not parameters",
            "give the model before it is quantised",
        )
    if any(is_lazy(item) for item in (*module.parameters(), *module.buffers())):
        raise UsageError(f"{name} holds lazy parameters that have no shape yet", "run one forward pass first")
    if next(module.parameters(), None) is None:
        raise Unsupported(f"{name} has no parameters, so there is no head to examine", "give a model with weights")


def _named(value: Any) -> str:
    return str(getattr(value, "original_name", None) or type(value).__name__)


@contextmanager
def uncompiled(module: nn.Module) -> Iterator[None]:
    """No compiled code inside, which cannot be recorded; `module` is restored afterwards."""
    from headscope.upstream.torch import compiled_calls, set_compiled_call

    compiled = compiled_calls(module)
    try:
        for part in compiled:
            set_compiled_call(part, None)
        with _eagerly():
            yield
    finally:
        for part, call in compiled.items():
            set_compiled_call(part, call)


def _eagerly() -> Any:
    """Parts wrapped by torch.compile run as they were written."""
    import sys

    import torch

    if "torch._dynamo" not in sys.modules:  # then nothing was compiled, and the import takes seconds
        return nullcontext()
    return torch.compiler.set_stance("force_eager")
