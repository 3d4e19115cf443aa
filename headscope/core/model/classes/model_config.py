"""The configuration that a class is built with; copies share the maps of many labels."""

from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from headscope.core.facts.stored.checkpoint import LABEL_MAPS
from headscope.core.model.classes.defaults import diagnose_by_leaving_out
from headscope.core.model.classes.reduced_config import DEPTHS, with_parts
from headscope.core.model.quiet import quiet
from headscope.core.upstream.transformers import config_classes
from headscope.errors import HeadscopeError, Malformed

# A skeleton holds no values, and still a module for each layer: a configuration with a billion of them, or of labels
# with their names, would fill the memory before anything can be said of it.
_MOST_LAYERS = 2000
_MOST_LABELS = 1_000_000

_MANY = 1_000
"""Labels from which copies of a configuration cost more than its class."""


class _SharedMap(dict[Any, Any]):
    """Map of labels that every copy of a configuration shares: nobody changes its entries."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "_SharedMap":
        return self


def build_config(config_class: Any, values: dict[str, Any]) -> Any:
    """Builds a configuration as `from_dict` does; its copies share the maps of many labels."""
    names = values.get("id2label")
    reads_itself = any("from_dict" in vars(base) for base in config_class.__mro__ if base is not PreTrainedConfig)
    # A class with its own `from_dict` may read the label maps in another way.
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


def config_source(
    cls: type[PreTrainedModel], model_type: str, values: dict[str, Any]
) -> tuple[Any, dict[str, Any], tuple[str, ...]]:
    """Finds the configuration class that `cls.from_pretrained` would use, and what it would read of `config.json`.

    The third result is what Transformers warns of: a class of another family takes its own configuration class
    (`PreTrainedConfig.from_pretrained`).
    """
    config_class: Any = config_classes()[model_type]
    own_class: Any = getattr(cls, "config_class", None)
    if own_class is None or issubclass(config_class, own_class):
        declared = values.get("model_type")
        other = isinstance(declared, str) and declared != model_type
        return config_class, values, (_published_warning(str(declared), model_type),) if other else ()
    part = values.get(getattr(own_class, "base_config_key", "") or "")
    read = part if isinstance(part, dict) else values
    if "model_type" not in read or read["model_type"] == own_class.model_type:
        return own_class, read, ()
    nested = [
        item for item in read.values() if isinstance(item, dict) and item.get("model_type") == own_class.model_type
    ]
    if nested:
        return own_class, nested[-1], ()
    return own_class, read, (_published_warning(str(read["model_type"]), own_class.model_type),)


def _published_warning(found: str, wanted: str) -> str:
    """Writes what `from_pretrained` warns of: source transformers/configuration_utils.py."""
    return (
        f"from_pretrained warns: You are using a model of type `{found}` to instantiate a model of type `{wanted}`. "
        "This may be expected if the checkpoint shares a part of the architecture, but it is not supported otherwise"
    )


def build_checked_config(
    config_class: Any, values: dict[str, Any], num_labels: int | None, labels: tuple[str, ...]
) -> Any:
    """Builds the configuration with these values, and with the requested number or names of classes.

    Raises Malformed for values that Transformers rejects, and for sizes that no model has.
    """
    if labels:  # whatever the maps are, they give no names and no count
        values = {name: value for name, value in values.items() if name not in {*LABEL_MAPS, "num_labels"}}
    elif num_labels is None:
        _check_own_labels(values)
    try:
        with quiet():
            config = build_config(config_class, values)
            if labels:
                config.id2label = dict(enumerate(labels))
                config.label2id = {name: index for index, name in enumerate(labels)}
            elif num_labels is not None:
                config.num_labels = num_labels
            share_labels(config)
    except HeadscopeError:
        raise
    except Exception as err:
        more = diagnose_by_leaving_out(config_class, values)
        raise Malformed(
            f"config.json doesn't describe a valid {config_class.__name__}: {first_lines(err)}{more}",
            "correct config.json",
        ) from err
    check_sizes(config)
    return config


def _check_own_labels(values: dict[str, Any]) -> None:
    """Raises Malformed for labels that Transformers would misread: `true` for one class, an object for a name."""
    count, names = values.get("num_labels"), values.get("id2label")
    if count is not None and (type(count) is not int or count < 0):
        raise Malformed(
            f"num_labels in config.json is {str(count)[:80]!r}, not a number",
            "correct num_labels, or give --num-labels",
        )
    listed = len(names) if isinstance(names, dict) else 0
    if max(count or 0, listed) > _MOST_LABELS:
        raise Malformed(
            f"config.json describes {max(count or 0, listed):,} labels, over the limit of {_MOST_LABELS:,}",
            "correct config.json, or give --num-labels",
        )
    if isinstance(names, dict) and not {str, int, float, bool}.issuperset(map(type, names.values())):
        raise Malformed(
            "id2label in config.json holds a name that is not a string", "correct id2label, or give --labels"
        )


def check_sizes(config: Any) -> None:
    """Raises Malformed for sizes that no model has: they would take minutes to build and mean a broken file."""
    labels = config.num_labels
    if labels is not None and labels < 1:
        raise Malformed(f"config.json describes {labels} labels", "correct id2label, or give --num-labels")
    for part in with_parts(config):
        for name in DEPTHS:
            depth = getattr(part, name, None)
            if isinstance(depth, int) and depth > _MOST_LAYERS:
                raise Malformed(f"config.json asks for {depth:,} layers ({name})", f"correct {name}")


def first_lines(err: BaseException) -> str:
    """Gives the first line of an error's message, and the second after a colon; without a message, its class."""
    lines = [line.strip() for line in str(err).strip().splitlines()]
    if not lines:
        return type(err).__name__
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
