"""Running a model without its compiled code, which cannot be recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


@contextmanager
def uncompiled(module: nn.Module) -> Iterator[None]:
    """Runs `module` without compiled code, which cannot be recorded; restores it afterwards."""
    from headscope.core.upstream.torch import compiled_calls, set_compiled_call

    compiled = compiled_calls(module)
    try:
        for part in compiled:
            set_compiled_call(part, None)
        with _run_eagerly():
            yield
    finally:
        for part, call in compiled.items():
            set_compiled_call(part, call)


def _run_eagerly() -> Any:
    """Makes parts wrapped by torch.compile run as they were written."""
    import sys

    import torch

    if "torch._dynamo" not in sys.modules:  # then nothing was compiled, and the import takes seconds
        return nullcontext()
    return torch.compiler.set_stance("force_eager")
