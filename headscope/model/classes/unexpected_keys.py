"""What the unused keys of a checkpoint were: the family's other classes have them, or another configuration has."""

from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import transformers
from transformers import PreTrainedModel

from headscope.facts import TensorHeader, UnusedGroup
from headscope.facts.stored.weights import DroppedGroup, of_any_layer
from headscope.model.classes.catalog import siblings_with_heads
from headscope.model.classes.reduced_config import shallow_config, with_parts
from headscope.model.quiet import quiet
from headscope.recent import Recent
from headscope.upstream.torch import on_meta


@dataclass(frozen=True, slots=True)
class _Owner:
    """A class of the family with the state-dict keys that are its own: a word on them, and the class's name.

    `any_layer` says that the keys of one layer stand for those of all: the classes are built with few layers.
    """

    word: str
    name: str
    keys: frozenset[str]
    any_layer: bool = False

    def owns(self, key: str) -> bool:
        """Whether `key` is one of this class's tensors."""
        return (of_any_layer(key) if self.any_layer else key) in self.keys


def describe_unused(model: PreTrainedModel, unused: tuple[str, ...]) -> tuple[UnusedGroup, ...]:
    """The unused keys grouped by the classes that would have used them, in the order of the keys.

    A key that a base model of the family owns is the base model's, though every class with a head has it too. A key
    that no class of the family owns is in a group with no description.
    """
    if not unused:
        return ()
    owners = _owners_of(type(model), shallow_config(model.config))
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for key in unused:
        owner = next((owner for owner in owners if owner.owns(key)), None)
        described = (owner.word, (owner.name,)) if owner else ("", ())
        groups.setdefault(described, []).append(key)
    return tuple(UnusedGroup(tuple(keys), word, classes) for (word, classes), keys in groups.items())


_KNOWN = Recent(most=8)
"""Owners by class and configuration: one examination loads a checkpoint several times, under other keys, as other
classes."""


def _owners_of(cls: type[PreTrainedModel], shallow: Any) -> tuple[_Owner, ...]:
    """What the other classes of the family own at a configuration, found once."""
    try:
        key = cls, shallow.to_json_string(use_diff=False)
    except Exception:  # a configuration may hold what no JSON can
        return tuple(_owners(cls, shallow))
    found: tuple[_Owner, ...] | None = _KNOWN.get(key)
    if found is None:
        found = tuple(_owners(cls, shallow))
        _KNOWN.keep(key, found)
    return found


def _owners(cls: type[PreTrainedModel], shallow: Any) -> Iterator[_Owner]:
    """The base models of the family's classes, then those classes, which own what their base model does not."""
    siblings = [
        (name, word, _built(name, shallow))
        for name, word in siblings_with_heads(str(shallow.model_type))
        if name != cls.__name__
    ]
    built = [(name, word, relative) for name, word, relative in siblings if relative is not None]
    for _, _, relative in built:
        if relative.base_model is not relative:
            yield _Owner("base model", type(relative.base_model).__name__, _keys_of_base(relative), any_layer=True)
    for name, word, relative in built:
        yield _Owner(word, name, frozenset(relative.state_dict()))


def _keys_of_base(relative: PreTrainedModel) -> frozenset[str]:
    """The keys of its base model: as a class with a head saves them, and as the base model itself does."""
    own = tuple(relative.base_model.state_dict())
    return frozenset(map(of_any_layer, (*own, *(f"{relative.base_model_prefix}.{key}" for key in own))))


def _built(name: str, config: Any) -> PreTrainedModel | None:
    """A class built on the meta device; None where it cannot be built."""
    try:
        with quiet(), on_meta():
            made: PreTrainedModel = getattr(transformers, name)(deepcopy(config))
            return made
    except Exception:  # a relative that cannot be built from this configuration owns nothing that we can name
        return None


def find_dropped(
    model: PreTrainedModel, groups: Iterable[UnusedGroup], headers: Iterable[TensorHeader]
) -> tuple[DroppedGroup, ...]:
    """The unused keys inside the model, though no class of the family takes them under this configuration.

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
    settings = _settings_of(type(model), shallow_config(model.config), wanted)
    by_setting: dict[str, list[str]] = {}
    for key in keys:
        if key in found or of_any_layer(key) in settings:
            by_setting.setdefault(settings.get(of_any_layer(key), ""), []).append(key)
    return tuple(DroppedGroup(tuple(keys), setting) for setting, keys in sorted(by_setting.items()))


class _Inside:
    """The modules and tensors of a model, for telling whether a key that it does not take belongs in it."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._modules = {name for name, _ in model.named_modules()}
        self._prefix = model.base_model_prefix if model.base_model is not model else ""
        self._kinds = {of_any_layer(name) for name in model.state_dict()}
        self._computed = {of_any_layer(name) for name, _ in model.named_buffers()} - self._kinds

    def has_place_for(self, key: str, *, is_spare: bool) -> bool:
        """Whether a key is that of another layer, or (if no class takes it) of a module of the base model."""
        name = key if key.partition(".")[0] in self._modules else f"{self._prefix}.{key}".lstrip(".")
        if of_any_layer(name) in self._computed:
            return False
        return of_any_layer(name) in self._kinds or (is_spare and self._is_in_base(name, is_named=name == key))

    def _is_in_base(self, name: str, *, is_named: bool) -> bool:
        """Whether the nearest module above a tensor is a part of the base model.

        Right below the base model a tensor counts if its key names that (`is_named`): any other module may have it.
        """
        owner = name.rpartition(".")[0]
        if owner == self._prefix:
            return is_named
        while owner not in self._modules:
            owner = owner.rpartition(".")[0]
        return owner != self._prefix and (f"{owner}." if owner else "").startswith(f"{self._prefix}.".lstrip("."))


def _settings_of(cls: type[PreTrainedModel], shallow: Any, wanted: set[str]) -> dict[str, str]:
    """By key, with the numbers of layers left out: the switch of the configuration under which the class has it."""
    found: dict[str, str] = {}
    wanted = wanted - _kinds_of(cls, shallow) if wanted else wanted  # a further layer has the tensors of another
    for part in with_parts(shallow) if wanted else ():
        for name, value in list(vars(part).items()):
            if type(value) is bool and not name.startswith("_") and not wanted <= found.keys():
                setattr(part, name, not value)
                found |= {key: name for key in wanted & _kinds_of(cls, shallow) if key not in found}
                setattr(part, name, value)
    return found


def _kinds_of(cls: type[PreTrainedModel], shallow: Any) -> set[str]:
    """The keys of a class at a configuration, and those of its base model alone, without the numbers of layers."""
    made = _built(cls.__name__, shallow)
    names = {of_any_layer(key) for key in made.state_dict()} if made is not None else set()
    return names | {key.removeprefix(f"{cls.base_model_prefix}.") for key in names}
