"""Configurations with many labels: made, and copied, without a copy of the labels."""

from typing import Any

from transformers import PreTrainedConfig

from headscope.facts.stored.checkpoint import LABEL_MAPS

_MANY = 1_000
"""Labels from which copies of a configuration cost more than its class."""


class _SharedMap(dict[Any, Any]):
    """A map of labels that every copy of a configuration shares: nobody changes its entries."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "_SharedMap":
        return self


def build_config(config_class: Any, values: dict[str, Any]) -> Any:
    """The configuration with these values, as `from_dict` makes it; its copies share the maps of many labels."""
    names = values.get("id2label")
    reads_itself = any("from_dict" in vars(base) for base in config_class.__mro__ if base is not PreTrainedConfig)
    if not isinstance(names, dict) or len(names) <= _MANY or reads_itself:
        return config_class.from_dict(dict(values))
    rest = {name: value for name, value in values.items() if name not in {*LABEL_MAPS, "num_labels"}}
    config = config_class.from_dict(rest)  # it formats the whole configuration for its log, even when that is off
    config.id2label = {int(key): name for key, name in names.items()}
    config.label2id = values.get("label2id")
    return config


def share_labels(config: Any) -> None:
    """Lets the copies of a configuration share its maps of many labels."""
    for name in LABEL_MAPS:
        value = getattr(config, name, None)
        if type(value) is dict and len(value) > _MANY:
            setattr(config, name, _SharedMap(value))
