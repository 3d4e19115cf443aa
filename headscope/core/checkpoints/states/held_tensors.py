"""Every tensor in what a PyTorch file holds, by the dict, list or module that it is in, whatever contains that."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from headscope.core.checkpoints.formats.pickle.values import Opaque, PickledStorage, PickledTensor
from headscope.core.facts.counting import counted

InDict = tuple[Any, ...]
"""Where a value is in nested dicts, lists and objects."""
_MOST_LEVELS = 100
"""Deeper than that a place isn't named any more, and of modules in modules nothing is read."""
_MOST_MODULES = 100_000
_SHOWN, _SHAPES = 12, 3
_OF_MODULES = frozenset({"_parameters", "_modules"})
"""What every module of PyTorch pickles; any other call in a pickle is not a model, and headscope never advises loading
it.
"""
_NUMPY_RNG = (624,)
"""The shape of the state of numpy's Mersenne Twister."""


@dataclass(slots=True)
class TensorGroup:
    """Tensors directly in one value: `named` are a state dict's, `others` are arrays, or have no name."""

    named: dict[str, PickledTensor] = field(default_factory=dict)
    others: list[tuple[Any, Any]] = field(default_factory=list)


class Attribute(str):
    """Name of an attribute, or number of an argument: no code in a place leads there."""

    __slots__ = ()


def is_module(value: Any) -> bool:
    """True if a pickled object is a module of PyTorch."""
    return isinstance(value, Opaque) and isinstance(value.state, dict) and _OF_MODULES.issubset(value.state)


def parts_of(value: Any) -> list[tuple[Any, Any]]:
    """Lists what is directly in a value, by key, index or attribute; nothing for a number or a text."""
    if isinstance(value, Opaque):
        state = value.state.items() if isinstance(value.state, dict) else [("state", value.state)]
        inside = [*enumerate(value.arguments), *state]
        return [
            *((Attribute(key.made_by if isinstance(key, Opaque) else key), part) for key, part in inside),
            *value.items,
        ]
    return list(
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    )


def tensor_groups(value: Any) -> dict[InDict, TensorGroup]:
    """Groups all tensors and arrays in a value by the place of what they are in, without a training's own state.

    Its structure decides, never a name: what an optimizer keeps, and the states of random generators.
    """
    found: dict[InDict, TensorGroup] = {}
    seen, within = set[int](), set[int]()
    left: list[tuple[InDict, Any]] = [((), value)]
    while left:
        path, item = left.pop()
        # A pickle can hold one object at several places, or inside itself.
        if id(item) in seen or _is_array(item):
            continue
        seen.add(id(item))
        group, parts = TensorGroup(), parts_of(item)
        is_held, passed = id(item) in within, _keys_of_optimizer(item)
        if is_module(item):
            passed = {"_parameters", "_buffers"}
            if not is_held:
                modules = list(_limited_submodules(item))
                # The outermost module has the tensors of all modules inside, so these make no groups.
                within |= {id(module) for _, module in modules}
                group.named = {key: tensor for prefix, module in modules for key, tensor in _state_of(prefix, module)}
        parts = [(key, part) for key, part in parts if not (isinstance(key, str) and key in passed)]
        is_dict = isinstance(item, dict) or (isinstance(item, Opaque) and bool(item.items))
        for key, part in parts:
            if isinstance(part, PickledTensor) and isinstance(key, str) and is_dict:
                group.named[key] = part
            elif shape_of(part) is not None and not _is_random_state(part):
                group.others.append((key, part))
        if group.named or group.others:
            found[path] = group
        # Reversed for the stack, which gives the last part first.
        deeper = reversed(parts) if len(path) < _MOST_LEVELS else [(None, part) for _, part in reversed(parts)]
        left += [((*path, key) if len(path) < _MOST_LEVELS else path, part) for key, part in deeper]
    return found


def _keys_of_optimizer(value: Any) -> set[str]:
    """Gives the keys under which an optimizer keeps its state, a dict for each parameter; empty for other values."""
    held = value.state if isinstance(value, Opaque) else value
    if not isinstance(held, dict) or not isinstance(held.get("param_groups"), list):
        return set()
    is_own = isinstance(held.get("state"), dict | Opaque) and all(
        shape_of(i) is None for _, i in parts_of(held["state"])
    )
    return {"param_groups", "state"} if is_own else set()


def shape_of(value: Any) -> tuple[int, ...] | None:
    """Gives the shape of a tensor, of an array of numbers or of a storage; None for any other value."""
    if isinstance(value, PickledTensor):
        return value.shape
    if isinstance(value, PickledStorage):
        return (value.count,)
    return _describe_array(value)[0] if _is_array(value) else None


def _describe_array(value: Any) -> tuple[Any, str]:
    """Gives the shape of a pickled array of numpy and its kind of numbers; None and "" for another value."""
    if not isinstance(value, Opaque) or not value.made_by.startswith("numpy."):
        return None, ""
    shape, dtype = None, None
    if value.made_by.endswith("._reconstruct") and isinstance(value.state, tuple) and len(value.state) > 2:
        shape, dtype = value.state[1:3]
    elif value.made_by.endswith("._frombuffer") and len(value.arguments) > 2:
        dtype, shape = value.arguments[1:3]
    kind = dtype.arguments[0] if isinstance(dtype, Opaque) and dtype.arguments else ""
    return shape, kind if isinstance(kind, str) else ""


def _is_array(value: Any) -> bool:
    shape, kind = _describe_array(value)
    return isinstance(shape, tuple) and kind[:1] not in {"", "U", "S", "O", "M", "m"}


def _is_random_state(value: Any) -> bool:
    # PyTorch keeps the state of its generators as a vector of bytes.
    is_of_torch = isinstance(value, PickledTensor) and value.dtype == "uint8" and len(value.shape) == 1
    return is_of_torch or _describe_array(value) == (_NUMPY_RNG, "u4")


def module_state(module: Any) -> dict[str, PickledTensor]:
    """Builds the state dict of a pickled module: its parameters, and its buffers but for those that aren't saved."""
    modules = _limited_submodules(module) if is_module(module) else ()
    return {key: item for prefix, inner in modules for key, item in _state_of(prefix, inner)}


def _limited_submodules(module: Opaque) -> Iterator[tuple[str, Opaque]]:
    return islice(_modules_below(module, "", _MOST_LEVELS), _MOST_MODULES)


def _modules_below(module: Opaque, prefix: str, levels: int) -> Iterator[tuple[str, Opaque]]:
    yield prefix, module
    for name, inner in named_entries(module.state.get("_modules")) if levels else ():
        if is_module(inner):
            yield from _modules_below(inner, f"{prefix}{name}.", levels - 1)


def _state_of(prefix: str, module: Opaque) -> Iterator[tuple[str, PickledTensor]]:
    passing = module.state.get("_non_persistent_buffers_set")
    held = [item for _, item in parts_of(passing)]
    left_out = strings_in(held) | {name for item in held for name in strings_in(item)}
    for group in ("_parameters", "_buffers"):
        for name, item in named_entries(module.state.get(group)):
            if isinstance(item, PickledTensor) and not (group == "_buffers" and name in left_out):
                yield f"{prefix}{name}", item


def named_entries(value: Any) -> list[tuple[str, Any]]:
    """Gives the entries of a dict whose keys are texts; none for another value."""
    return [(key, item) for key, item in value.items() if isinstance(key, str)] if isinstance(value, dict) else []


def strings_in(value: Any) -> set[str]:
    """Gives the texts in a collection; empty for anything else."""
    items = value if isinstance(value, list | tuple | set | frozenset | dict) else ()
    return {item for item in items if isinstance(item, str)}


def state_at(value: Any, path: Sequence[Any]) -> dict[str, PickledTensor]:
    """Gives the state dict at a place in a value, or that of a module there; empty if there is none."""
    value = value_at(value, path)
    entries = [(key, item) for key, item in parts_of(value) if isinstance(key, str) and isinstance(item, PickledTensor)]
    return module_state(value) or dict(entries)


def value_at(value: Any, path: Sequence[Any]) -> Any:
    """Gives what is at a place in a value; None if nothing is there."""
    for part in path:
        value = dict(parts_of(value)).get(part)
    return value


def groups_but(groups: Mapping[InDict, TensorGroup], *kept: InDict) -> tuple[str, ...]:
    """Describes what a saved value holds beside the state dicts at some places: each group with its number and shapes.

    A second name of a tensor that is kept isn't left out.
    """
    held = {item for path in kept if path in groups for item in groups[path].named.values()}
    others: dict[InDict, list[tuple[int, ...]]] = {}
    for path, group in groups.items():
        for key, item in (*(() if path in kept else group.named.items()), *group.others):
            if item not in held:
                others.setdefault(path or (key,), []).append(shape_of(item) or ())
    return groups_in_words(others)


def groups_in_words(groups: Mapping[InDict, Sequence[tuple[int, ...]]]) -> tuple[str, ...]:
    """Describes groups of tensors by their places: the number of each, and the shapes of a few; many are joined."""
    found: dict[InDict, list[tuple[int, ...]]] = {}
    for path, shapes in groups.items():
        found.setdefault(path[:1] if len(groups) > _SHOWN else path, []).extend(shapes)
    words = []
    for path, shapes in found.items():
        few = shapes if len(shapes) <= _SHAPES else ()
        tensors = ", ".join((counted(len(shapes), "tensor"), *(str(list(shape)) for shape in few)))
        words.append(f"{place_as_name(path) or 'the top'} ({tensors})")
    return tuple(words)


def place_as_name(path: Iterable[Any]) -> str:
    """Names the place of a value in nested dicts as a person does: `state.model`."""
    return ".".join(f"<{part.made_by}>" if isinstance(part, Opaque) else str(part) for part in path)
