"""Origin of a checkpoint's unused keys: the family's other classes have them, or another configuration has."""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PreTrainedModel

from headscope.core.facts import TensorHeader, UnusedGroup
from headscope.core.facts.stored.unplaced import UnplacedReason, of_any_layer
from headscope.core.facts.stored.weights import DroppedGroup
from headscope.core.model.classes.catalog import siblings_with_heads
from headscope.core.model.classes.reduced_config import shallow_config, with_parts
from headscope.core.model.quiet import quiet
from headscope.core.recent import Recent
from headscope.core.upstream.torch import on_meta

_Shapes = Mapping[str, set[tuple[int, ...]]]
_BASE = "base model"


@dataclass(frozen=True, slots=True)
class _Owner:
    """Class of the family with its tensors, without the numbers of layers: a word on them, and the class's name.

    `computed` are the shapes of the buffers that it computes and doesn't save.
    """

    word: str
    name: str
    shapes: _Shapes
    computed: _Shapes

    def owns(self, key: str, shape: tuple[int, ...] | None) -> bool:
        """True if a key is one of this class's tensors; the first axis may be that of classes, tokens or positions."""
        held = self.shapes.get(of_any_layer(key), ())
        return any(shape is None or (len(own) == len(shape) and own[1:] == shape[1:]) for own in held)


def describe_unused(
    model: PreTrainedModel, unused: tuple[str, ...], headers: Iterable[TensorHeader] = ()
) -> tuple[UnusedGroup, ...]:
    """Groups the unused keys by why nothing takes them, in the order of the keys.

    First, the classes that would have used them: a key that a base model of the family owns is the base model's, though
    every class with a head has it too. Then what is computed again, and what only a training needs. All others are in a
    group with no description: no class of the family has them.
    """
    if not unused:
        return ()
    known = {header.key: header for header in headers}
    shapes = {key: known[key].shape if key in known else None for key in unused}
    shallow = shallow_config(model.config)
    owners = _owners_of(type(model), shallow)
    if not all(any(owner.owns(*item) for owner in owners) for item in shapes.items()):
        owners = (*owners, *_other_owners(type(model), shallow))
    own = {name: tuple(item.shape) for name, item in model.state_dict().items()}
    own |= {name.removeprefix(f"{model.base_model_prefix}."): shape for name, shape in own.items()}
    groups: dict[tuple[str, tuple[str, ...], UnplacedReason], list[str]] = {}
    described: tuple[str, tuple[str, ...], UnplacedReason]
    for key, shape in shapes.items():
        owner = next((owner for owner in owners if owner.owns(key, shape)), None)
        if owner is not None:
            reason = UnplacedReason.OTHER_TOWER if owner.word == _BASE else UnplacedReason.PRETRAINING_HEAD
            described = owner.word, (owner.name,), reason
        elif _is_old_buffer(key, known.get(key)) or any(of_any_layer(key) in item.computed for item in owners):
            described = "buffers that Transformers computes", (), UnplacedReason.OLDER_VERSION
        else:
            word = _describe_training_state(key, shape, own)
            described = word, (), UnplacedReason.TRAINING_STATE if word else UnplacedReason.UNKNOWN
        groups.setdefault(described, []).append(key)
    return tuple(UnusedGroup(tuple(keys), *described) for described, keys in groups.items())


_WHOLE = ("int64", "int32", "int16", "bool")
_OLD_BUFFER = re.compile(
    r"(^|\.)(masked_bias|position_ids|inv_freq|relative_(position_index|coords_table)|token_type_ids)$"
)
"""Buffers that earlier versions of Transformers saved: no class of today has the names of those that it dropped."""
_MASK = re.compile(r"(^|\.)(attn|attention|self_attn)\.bias$")
_STATE = re.compile(r"^(optimizer|optim|exp_avg(_sq)?|momentum_buffer|(lr_)?scheduler|(grad_)?scaler|_extra_state)$")
_LOSS = re.compile(r"^(\w+_)?(loss|criterion)(_\w+)?$|^(class_weights?|pos_weight)$")
_TWIN = re.compile(r"^(\w+_)?(ema|shadow|teacher|momentum|averaged)(_\w+)?$")


def _is_old_buffer(key: str, header: TensorHeader | None) -> bool:
    """True if a tensor is a buffer of an earlier version, or whole numbers: indices and counts, computed again."""
    if header is None:
        return _OLD_BUFFER.search(key) is not None
    is_mask = len(header.shape) == 4 and header.shape[:2] == (1, 1) and _MASK.search(key) is not None
    return header.dtype in _WHOLE or is_mask or _OLD_BUFFER.search(key) is not None


def _describe_training_state(key: str, shape: tuple[int, ...] | None, own: Mapping[str, tuple[int, ...]]) -> str:
    """Names the kind of a tensor of a training's state; "" for any other."""
    parts = key.split(".")
    if any(map(_STATE.search, parts)):
        return "state of an optimizer"
    if shape is not None and len(shape) < 2 and any(map(_LOSS.search, parts)):
        return "weights of a loss"
    # A copy that training keeps (EMA, teacher) has the name and shape of the model's own tensor behind its prefix.
    starts = [at + 1 for at, part in enumerate(parts) if _TWIN.search(part)]
    ends = [".".join(parts[at:]) for start in starts for at in range(start, start + 3)]
    return "copy of the model that training keeps" if any(own.get(end) == shape is not None for end in ends) else ""


_KNOWN = Recent(most=8)
"""Owners by class and configuration: one examination loads a checkpoint several times, under other keys, as other
classes."""


def _owners_of(cls: type[PreTrainedModel], shallow: Any) -> tuple[_Owner, ...]:
    """Finds what the other classes of the family own at a configuration, once for each."""
    try:
        key = cls, shallow.to_json_string(use_diff=False)
    except Exception:  # a configuration may hold what no JSON can
        return tuple(_find_owners(cls, shallow))
    found: tuple[_Owner, ...] | None = _KNOWN.get(key)
    if found is None:
        found = tuple(_find_owners(cls, shallow))
        _KNOWN.keep(key, found)
    return found


def _find_owners(cls: type[PreTrainedModel], shallow: Any) -> Iterator[_Owner]:
    """Yields the base models of the family's classes, then those classes, which own what their base model does not."""
    siblings = siblings_with_heads(str(shallow.model_type)) or [
        pair for part in with_parts(shallow) for pair in siblings_with_heads(str(part.model_type))
    ]  # a class around a model of another family, such as a decision model, has those of that one
    named = [pair for pair in siblings if pair[0] != cls.__name__]
    built = [(word, relative) for name, word in named for relative in _build_relative(name, shallow)]
    for word, relative in built:
        if word == _BASE or relative.base_model is not relative:
            yield _owner_of_model(_BASE, relative.base_model, f"{relative.base_model_prefix}.")
    for word, relative in built:
        yield _owner_of_model(word, relative)


def _other_owners(cls: type[PreTrainedModel], shallow: Any) -> Iterator[_Owner]:
    """Yields the classes that no mapping of heads names: those of the family's modeling files, and their parts."""
    mapped = siblings_with_heads(str(shallow.model_type))
    known = {cls.__name__, *(name for name, _ in mapped)}
    relatives = [*cls.__mro__, *(getattr(transformers, name, cls) for name, _ in mapped)]
    files = {item.__module__ for item in relatives if item.__module__.startswith("transformers.models.")}
    for file in sorted(files):
        for name, item in vars(sys.modules[file]).items():
            is_class = isinstance(item, type) and issubclass(item, PreTrainedModel) and item.__module__ == file
            for relative in _build_relative(name, shallow, item) if is_class and name not in known else ():
                yield _owner_of_model(_BASE if relative.base_model is relative else f"head of {name}", relative)


def _owner_of_model(word: str, model: nn.Module, prefix: str = "") -> _Owner:
    """Collects a class's tensors as it saves them and, for a base model, with the `prefix` that other classes add."""
    saved, computed = _shapes_of(model.state_dict().items()), _shapes_of(model.named_buffers())
    computed = {name: shapes for name, shapes in computed.items() if name not in saved}
    both = [{f"{prefix}{name}": shapes for name, shapes in some.items()} for some in (saved, computed)]
    return _Owner(word, type(model).__name__, both[0] | saved, both[1] | computed)


def _shapes_of(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, set[tuple[int, ...]]]:
    """Collects the shapes by name, without the numbers of layers: members of a sequence may be of several kinds."""
    found: dict[str, set[tuple[int, ...]]] = {}
    for name, item in tensors:
        found.setdefault(of_any_layer(name), set()).add(tuple(item.shape))
    return found


def _build_relative(name: str, config: Any, cls: Any = None) -> tuple[PreTrainedModel, ...]:
    """Builds a class on the meta device, with the part of the configuration that is its own; () where it can't be."""
    try:
        wanted = cls or getattr(transformers, name)
        own = next((part for part in with_parts(config) if isinstance(part, wanted.config_class)), config)
        with quiet(), on_meta():
            return (wanted(deepcopy(own)),)
    except Exception:  # a relative that cannot be built from this configuration owns nothing that we can name
        return ()


def find_dropped(
    model: PreTrainedModel, groups: Iterable[UnusedGroup], headers: Iterable[TensorHeader]
) -> tuple[DroppedGroup, ...]:
    """Finds the unused keys inside the model, though no class of the family takes them under this configuration.

    A pooler that a class leaves out is the base model's under the same configuration, so the class decides that the
    scores don't need it. A bias that `attention_bias` switches off, or a layer beyond the last, belongs to no class:
    the checkpoint was saved with another configuration. Buffers that are computed again are left out.
    """
    inside = _Inside(model)
    described = {key: bool(group.description) for group in groups for key in group.keys}
    whole = {header.key for header in headers if "float" not in header.dtype}
    keys = [key for key in sorted(described) if key not in whole]
    found = {key for key in keys if inside.has_place_for(key, is_spare=not described[key])}
    wanted = {of_any_layer(key) for key in keys if key in found or not described[key]}
    settings = _switches_for_keys(type(model), shallow_config(model.config), wanted)
    by_setting: dict[str, list[str]] = {}
    for key in keys:
        if key in found or of_any_layer(key) in settings:
            by_setting.setdefault(settings.get(of_any_layer(key), ""), []).append(key)
    return tuple(DroppedGroup(tuple(keys), setting) for setting, keys in sorted(by_setting.items()))


class _Inside:
    """Modules and tensors of a model, for telling whether a key that it does not take belongs in it."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._modules = {name for name, _ in model.named_modules()}
        self._prefix = model.base_model_prefix if model.base_model is not model else ""
        self._kinds = {of_any_layer(name) for name in model.state_dict()}
        self._computed = {of_any_layer(name) for name, _ in model.named_buffers()} - self._kinds

    def has_place_for(self, key: str, *, is_spare: bool) -> bool:
        """True if a key is that of another layer, or (if no class takes it) of a module of the base model."""
        name = key if key.partition(".")[0] in self._modules else f"{self._prefix}.{key}".lstrip(".")
        if of_any_layer(name) in self._computed:
            return False
        return of_any_layer(name) in self._kinds or (is_spare and self._is_in_base(name, is_named=name == key))

    def _is_in_base(self, name: str, *, is_named: bool) -> bool:
        """True if the nearest module above a tensor is a part of the base model.

        Right below the base model a tensor counts if its key names that (`is_named`): any other module may have it.
        """
        owner = name.rpartition(".")[0]
        if owner == self._prefix:
            return is_named
        while owner not in self._modules:
            owner = owner.rpartition(".")[0]
        return owner != self._prefix and (f"{owner}." if owner else "").startswith(f"{self._prefix}.".lstrip("."))


def _switches_for_keys(cls: type[PreTrainedModel], shallow: Any, wanted: set[str]) -> dict[str, str]:
    """Maps each key, with layer numbers left out, to the switch of the configuration under which the class has it."""
    found: dict[str, str] = {}
    wanted = (
        wanted - _keys_of_any_layer(cls, shallow) if wanted else wanted
    )  # a further layer has the tensors of another
    for part in with_parts(shallow) if wanted else ():
        for name, value in list(vars(part).items()):
            if type(value) is bool and not name.startswith("_") and not wanted <= found.keys():
                # Each switch is tried alone and set back, on a shallow copy: building the class then is cheap.
                setattr(part, name, not value)
                found |= {key: name for key in wanted & _keys_of_any_layer(cls, shallow) if key not in found}
                setattr(part, name, value)
    return found


def _keys_of_any_layer(cls: type[PreTrainedModel], shallow: Any) -> set[str]:
    """Gives the keys of a class at a configuration, and those of its base model alone, without the layers' numbers."""
    names = {of_any_layer(key) for made in _build_relative(cls.__name__, shallow, cls) for key in made.state_dict()}
    return names | {key.removeprefix(f"{cls.base_model_prefix}.") for key in names}
