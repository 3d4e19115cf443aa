"""Autocast on the meta device, which PyTorch refuses: off for the thread that runs shapes only, refused in others."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import get_ident
from typing import Any
from unittest.mock import patch

import torch

_METHODS = ("__init__", "__enter__", "__exit__")


@contextmanager
def autocast_on_meta() -> Iterator[None]:
    """Inside, and in this thread, autocast on the meta device does nothing and is not enabled.

    Rotary embeddings of early Transformers 5 ask for it. The class `torch.autocast` stays the same object, and for
    other threads and devices it does what it did. Not for two threads at once.
    """
    own, real_is_enabled = get_ident(), torch.is_autocast_enabled

    def is_autocast_enabled(*args: Any) -> bool:
        return False if args == ("meta",) and get_ident() == own else real_is_enabled(*args)

    with ExitStack() as patches:
        patches.enter_context(patch.object(torch, "is_autocast_enabled", is_autocast_enabled))
        for name in _METHODS:
            method = _only_off_meta(getattr(torch.autocast, name), own)
            patches.enter_context(patch.object(torch.autocast, name, method))
        yield


def _only_off_meta(method: Callable[..., Any], own: int) -> Callable[..., Any]:
    """A method of an autocast that does nothing for one on the meta device in the thread `own`."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if method.__name__ == "__init__":
            device = args[0] if args else kwargs.get("device_type")
            self.is_idle = device == "meta" and get_ident() == own
        if not getattr(self, "is_idle", False):
            return method(self, *args, **kwargs)
        return self if method.__name__ == "__enter__" else None

    return call
