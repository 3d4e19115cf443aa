"""What the unused keys of a checkpoint were: found by looking for the key in the family's other classes."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import transformers
from transformers import PreTrainedModel

from headscope.facts import UnusedGroup
from headscope.facts.keys import of_any_layer
from headscope.model.catalogue import siblings_with_heads
from headscope.model.quiet import quiet
from headscope.model.reduced_config import shallow_config
from headscope.recent import Recent
from headscope.upstream.torch import on_meta

_BASE = "base model"


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
            yield _Owner(_BASE, type(relative.base_model).__name__, _keys_of_base(relative), any_layer=True)
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
