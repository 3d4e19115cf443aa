"""Random numbers with separate generators: what headscope draws never moves those of the process."""

from contextlib import nullcontext
from functools import cache
from typing import Any

import torch

from headscope.core.trace.record.trees import tensors_in
from headscope.core.upstream.torch import TorchDispatchMode, argument_names, overloads


class OwnRandomness(TorchDispatchMode):  # type: ignore[no-untyped-call]  # upstream has no annotations
    """Lets random operators of this thread draw from generators that start at `seed`.

    Saving and restoring the state of the process's generators would take numbers away from other threads.
    """

    supports_higher_order_operators = True

    def __init__(self, seed: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # upstream has no annotations
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}
        self._states: dict[torch.device, torch.Tensor] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the operator `func`; if it is random, with a generator of headscope."""
        if not _is_random(func) or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        named = kwargs.get("device")
        devices = (tensor.device for tensor in tensors_in((args, kwargs)))
        device = next(devices, torch.device("cpu")) if named is None else torch.device(named)
        if device.type == "meta" or _draws_nothing(func, args, kwargs):
            return func(*args, **kwargs)
        overload = _overload_with_generator(func)
        # A generator of our own: the state of the process belongs to the caller, whose training must draw the same
        # numbers with and without an inspection in between.
        if overload is not None:
            if device not in self._generators:
                self._generators[device] = torch.Generator(device).manual_seed(self._seed)
            return overload(*args, **kwargs, generator=self._generators[device])
        return self._draw_from_the_process(func, args, kwargs, device)

    def _draw_from_the_process(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], device: Any) -> Any:
        """Runs one of the few operators that take no generator (a dropout fused into attention)."""
        module: Any = torch if device.type == "cpu" else torch.get_device_module(device)
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            # These draw from the generator of the process: its state is put back right after.
            before = module.get_rng_state()
            if device in self._states:  # go on: the same values for each draw would hide a dropout that is always on
                module.set_rng_state(self._states[device])
            elif device.type == "cpu":
                torch.default_generator.manual_seed(self._seed)  # torch.manual_seed would seed all devices
            else:
                module.manual_seed(self._seed)
            try:
                return func(*args, **kwargs)
            finally:
                self._states[device] = module.get_rng_state()
                module.set_rng_state(before)


@cache
def _is_random(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())


def _draws_nothing(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """True if an operator draws nothing: attention without dropout, a dropout that is not training."""
    values = argument_names(func)
    values |= dict(zip(list(values), args, strict=False)) | kwargs
    rates = [value for name, value in values.items() if "dropout" in name and isinstance(value, float | int)]
    return values.get("train") is False or (bool(rates) and not any(rates))


def _overload_with_generator(func: Any) -> Any:
    """Returns the overload of a random operator that takes a generator beside the same arguments; None without one."""
    for overload in overloads(func, "*", "*_generator", "generator"):
        taken = argument_names(overload).keys()
        if "generator" in taken and argument_names(func).keys() <= taken:
            return overload
    return None
