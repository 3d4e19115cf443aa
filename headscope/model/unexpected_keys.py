"""What the unused keys of a checkpoint were: the family's other classes are asked which of them owns the key."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from headscope.facts import UnusedGroup
from headscope.model.catalogue import siblings_with_heads
from headscope.model.quiet import quiet
from headscope.model.reduced_config import shallow_config


def describe_unused(model: PreTrainedModel, unused: tuple[str, ...]) -> tuple[UnusedGroup, ...]:
    """The unused keys grouped by the classes that would have used them, in the order of the keys.

    A key that no class of the family owns stands in a group with no description.
    """
    if not unused:
        return ()
    owners = list(_owners(model))
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for key in unused:
        words = [(word, name) for word, name, keys in owners if key in keys]
        description = words[0][0] if words else ""
        classes = tuple(name for _, name in words)
        groups.setdefault((description, classes[:1]), []).append(key)
    return tuple(UnusedGroup(tuple(keys), word, classes) for (word, classes), keys in groups.items())


def _owners(model: PreTrainedModel) -> Iterator[tuple[str, str, frozenset[str]]]:
    shallow = shallow_config(model.config)
    for name, word in siblings_with_heads(str(model.config.model_type)):
        if name != type(model).__name__:
            keys = _keys_of(name, shallow)
            if keys:
                yield word, name, keys


def _keys_of(name: str, config: Any) -> frozenset[str]:
    """The state-dict keys of a class built on the meta device; none where it cannot be built."""
    try:
        with quiet(), torch.device("meta"):
            return frozenset(getattr(transformers, name)(deepcopy(config)).state_dict())
    except Exception:  # a relative that cannot be built from this configuration owns nothing that we can name
        return frozenset()
