"""Parameters of a classifier's head that the usual pretraining checkpoint of a family already has."""

from contextlib import suppress
from itertools import chain
from typing import Any

import transformers
from transformers import PreTrainedModel

from headscope.core.model.classes.reduced_config import shallow_config
from headscope.core.model.quiet import quiet
from headscope.core.upstream.torch import on_meta
from headscope.core.upstream.transformers import classes_by_type, load_on_meta

_PRETRAINING = (
    "AutoModelForPreTraining",
    "AutoModelForMaskedLM",
    "AutoModelForCausalLM",
    "AutoModel",
)


def inherit(cls: type[PreTrainedModel], config: Any, wanted: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """Gives the family's pretraining class, and which of the `wanted` parameters a `cls` loaded from it has new.

    Its checkpoint is the state dict of the pretraining class at the same configuration, on the meta device, and the
    answer is that of Transformers' own loader.
    """
    for name in _pretraining_classes_of(str(config.model_type), cls.__name__):
        try:
            return name, _missing_of_wanted(cls, config, name, wanted)
        except Exception:  # a relative that this configuration does not build brings nothing that we can name
            continue
    return None, ()


def _missing_of_wanted(cls: type[PreTrainedModel], config: Any, name: str, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Gives the `wanted` parameters that a checkpoint of class `name` lacks."""
    # One layer is enough where it has all the `wanted` parameters: which key a parameter takes is in its name.
    with suppress(Exception):  # whatever a constructor raises: a pattern of layers that must be whole
        missing, names = _load_from_sibling(cls, shallow_config(config), name)
        if names.issuperset(wanted):
            return tuple(parameter for parameter in wanted if parameter in missing)
    missing, _ = _load_from_sibling(cls, config, name)
    return tuple(parameter for parameter in wanted if parameter in missing)


def _load_from_sibling(cls: type[PreTrainedModel], config: Any, name: str) -> tuple[frozenset[str], frozenset[str]]:
    """Loads a `cls` from a checkpoint of class `name`; gives the missing parameters, and all its names."""
    with quiet():
        with on_meta():
            state = dict(getattr(transformers, name)(config).state_dict())
        model, info = load_on_meta(cls, config, state)
    return info.missing, frozenset(dict(model.named_parameters(remove_duplicate=False)))


def _pretraining_classes_of(model_type: str, other_than: str) -> list[str]:
    """Lists the classes of the family that its pretraining checkpoints are saved from, the likeliest first."""
    first = (classes_by_type(auto).get(model_type, ())[:1] for auto in _PRETRAINING)
    names = dict.fromkeys(chain.from_iterable(first))
    return [name for name in names if name != other_than and hasattr(transformers, name)]
