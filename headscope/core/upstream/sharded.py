"""PyTorch's FSDP and DeepSpeed's ZeRO: models that hold only parts of their parameters. Neither is imported."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from headscope.core.upstream.accelerate import OF_HOOKS, is_hooked, is_prepared
from headscope.core.upstream.python import descends_from
from headscope.core.upstream.torch import inside_checkpointed, parameters_of
from headscope.errors import moved

_PACKAGE = "torch"
_HOOKS_OF = ("torch.distributed", "deepspeed")


@dataclass(frozen=True, slots=True)
class WholeCopy:
    """Model on the meta device with parameters of their whole shapes, and by their IDs those that they stand for.

    `held` are those that the process trains: shards, or one flat parameter for several.
    """

    module: nn.Module
    held: dict[int, nn.Parameter]


def inside_fsdp(module: nn.Module) -> nn.Module | None:
    """Gives the module that a FullyShardedDataParallel wraps; None for no such wrapper."""
    if not descends_from(module, "torch", "FullyShardedDataParallel"):
        return None
    found: Any = module.module
    return found if isinstance(found, nn.Module) else None


def is_fully_sharded(module: nn.Module) -> bool:
    """True if `fully_shard` was called on a module: it then has a separate class, below the model's."""
    return descends_from(module, "torch", "FSDPModule")


def is_sharded(module: nn.Module) -> bool:
    """True if a parameter of `module` is a part of a larger one."""
    parts = list(module.modules())
    if any(inside_fsdp(part) is not None or is_fully_sharded(part) for part in parts):
        return True
    # ZeRO notes the whole shape on each parameter; FSDP2 makes each a DTensor.
    return any(hasattr(item, "ds_shape") or descends_from(item, "torch", "DTensor") for item in module.parameters())


def whole_copy(module: nn.Module, root: nn.Module) -> WholeCopy:
    """Copies `module` without its sharding to the meta device; `root` is the outermost wrapper. No communication."""
    copier = _Copier(dict(_flat_pieces(root)))
    return WholeCopy(copier.copy(module), copier.held)


def without_hooks(module: nn.Module) -> nn.Module:
    """Copies an offloaded model with the forwards of its classes; it shares the parameters and buffers."""
    return _Copier({}, shares=True).copy(module)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Parameter inside a flat one: its shape, the flat parameter, and the parameter that it shares."""

    shape: tuple[int, ...]
    flat: nn.Parameter
    shares: tuple[int, str] | None = None


def _flat_pieces(root: nn.Module) -> Iterator[tuple[tuple[int, str], _Piece]]:
    """Yields every parameter that an FSDP module flattened, by the module's ID and its name there."""
    for part in root.modules():
        if inside_fsdp(part) is None:
            continue
        try:
            handle: Any = part._handle
            flat = None if handle is None else handle.flat_param
            if flat is None:
                continue
            for info, shape in zip(flat._param_infos, flat._shapes, strict=True):
                yield (id(info.module), info.param_name), _Piece(tuple(shape), flat)
            for info in flat._shared_param_infos:
                prime = (id(info.prim_module), info.prim_param_name)
                yield (id(info.module), info.param_name), _Piece((), flat, prime)
        except AttributeError as err:
            raise moved(_PACKAGE, f"FullyShardedDataParallel keeps no flat parameter ({err})") from err


@dataclass(slots=True)
class _Copier:
    """Copies modules one by one: a deep copy would copy process groups, and FSDP forbids it.

    `shares`: the copy has the parameters of the original.
    """

    pieces: dict[tuple[int, str], _Piece]
    shares: bool = False
    modules: dict[int, nn.Module] = field(default_factory=dict)
    parameters: dict[Any, nn.Parameter] = field(default_factory=dict)
    held: dict[int, nn.Parameter] = field(default_factory=dict)

    def copy(self, module: nn.Module) -> nn.Module:
        while (inner := inside_fsdp(module) or inside_checkpointed(module)) is not None:
            module = inner
        if id(module) not in self.modules:
            cls = plain_class(module)
            self.modules[id(module)] = made = cls.__new__(cls)
            self._fill_copy(made, module)
        return self.modules[id(module)]

    def _fill_copy(self, made: nn.Module, module: nn.Module) -> None:
        flat = [name for at, name in self.pieces if at == id(module)]
        own = {name: _copy_attribute(value) for name, value in vars(module).items() if name not in flat}
        if is_prepared(module):  # its forward is bound to the module that was prepared
            own.pop("forward", None)
        if is_hooked(module):
            own = {name: value for name, value in own.items() if name not in OF_HOOKS}
        vars(made).update(own)
        flats = {id(piece.flat) for piece in self.pieces.values()}
        registered = {name: item for name, item in parameters_of(module).items() if id(item) not in flats}
        # The order of the class: flattened parameters are no longer registered, and a bias comes after its weight.
        names = dict.fromkeys([*(name for name in flat if name not in registered), *registered])
        made._parameters = {name: self._copy_parameter(module, name, registered.get(name)) for name in names}
        made._modules = {name: None if child is None else self.copy(child) for name, child in module._modules.items()}

    def _copy_parameter(self, module: nn.Module, name: str, held: nn.Parameter | None) -> nn.Parameter | None:
        piece = self.pieces.get((id(module), name))
        if piece is None:
            return held if held is None or self.shares else self._empty_parameter(id(held), held, _whole_shape(held))
        key = piece.shares or (id(module), name)
        shape = self.pieces[key].shape if piece.shares else piece.shape
        return self._empty_parameter(key, held if held is not None else piece.flat, shape)

    def _empty_parameter(self, key: Any, held: nn.Parameter, shape: tuple[int, ...]) -> nn.Parameter:
        if key not in self.parameters:
            empty = torch.empty(shape, dtype=held.dtype, device="meta")
            self.parameters[key] = made = nn.Parameter(empty, requires_grad=held.requires_grad)
            self.held[id(made)] = held
        return self.parameters[key]


def _whole_shape(parameter: nn.Parameter) -> tuple[int, ...]:
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def plain_class(module: nn.Module) -> type[nn.Module]:
    """Gives the class that a module had before `fully_shard`. Raises Unsupported if its name doesn't show it."""
    cls = type(module)
    if not is_fully_sharded(module):
        return cls
    # The class that fully_shard makes has two bases: its own, then the model's.
    found = next(
        (base for base in cls.__bases__ if base.__name__ != "FSDPModule" and issubclass(base, nn.Module)), None
    )
    if found is None:
        raise moved(_PACKAGE, f"fully_shard makes {cls.__name__} of other classes than FSDPModule and the model's")
    return found


def _copy_attribute(value: Any) -> Any:
    """Copies an attribute: hooks of the sharding are left out, other dictionaries and lists are copied."""
    if isinstance(value, OrderedDict):
        copied = OrderedDict[Any, Any]()
        for name, item in value.items():
            origin = str(getattr(item, "__module__", None) or type(item).__module__)
            if not callable(item) or isinstance(item, nn.Module) or not origin.startswith(_HOOKS_OF):
                copied[name] = item
        return copied
    return type(value)(value) if type(value) in {dict, list, set} else value
