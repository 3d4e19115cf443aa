"""What the usual pretraining checkpoint of a family brings of a classifier's head."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import transformers
from transformers import PreTrainedModel

from headscope.model.classes.reduced_config import shallow_config
from headscope.model.quiet import quiet
from headscope.upstream.torch import on_meta
from headscope.upstream.transformers import classes_by_type, load_on_meta

_PRETRAINING = (
    "MODEL_FOR_PRETRAINING_MAPPING_NAMES",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_MAPPING_NAMES",
)


@dataclass(frozen=True, slots=True)
class Inheritance:
    """The pretraining class of a family, and the classifier's parameters that its checkpoints lack."""

    pretraining_class: str | None
    new: tuple[str, ...]


def inherit(cls: type[PreTrainedModel], config: Any, wanted: tuple[str, ...]) -> Inheritance:
    """Which of the `wanted` parameters of `cls` would be new when loaded from the family's pretraining checkpoint.

    The checkpoint is the state dict of the pretraining class at the same configuration, on the meta device, and the
    answer is that of Transformers' own loader.
    """
    for name in pretraining_classes_of(str(config.model_type), cls.__name__):
        try:
            return Inheritance(name, _missing(cls, config, name, wanted))
        except Exception:  # a relative that this configuration does not build brings nothing that we can name
            continue
    return Inheritance(None, ())


def _missing(cls: type[PreTrainedModel], config: Any, name: str, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """With one layer where that has all the `wanted` parameters: which key a parameter takes is in its name."""
    with suppress(Exception):  # whatever a constructor raises: a pattern of layers that must be whole
        missing, names = _loaded(cls, shallow_config(config), name)
        if names.issuperset(wanted):
            return tuple(parameter for parameter in wanted if parameter in missing)
    missing, _ = _loaded(cls, config, name)
    return tuple(parameter for parameter in wanted if parameter in missing)


def _loaded(cls: type[PreTrainedModel], config: Any, name: str) -> tuple[frozenset[str], frozenset[str]]:
    """The parameters that are missing when a `cls` is loaded from a checkpoint of class `name`, and all its names."""
    with quiet():
        with on_meta():
            state = dict(getattr(transformers, name)(config).state_dict())
        model, info = load_on_meta(cls, config, state)
    return info.missing, frozenset(dict(model.named_parameters(remove_duplicate=False)))


def pretraining_classes_of(model_type: str, other_than: str) -> tuple[str, ...]:
    """The classes of the family that its pretraining checkpoints are saved from, the likeliest first."""
    found: dict[str, None] = {}
    for mapping in _PRETRAINING:
        name = next(iter(classes_by_type(mapping).get(model_type, ())), None)
        if name and name != other_than and hasattr(transformers, name):
            found[name] = None
    return tuple(found)
