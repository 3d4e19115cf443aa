"""The class that a head is folded into: built on the meta device with the checkpoint's configuration, and traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from transformers.activations import ACT2FN

from headscope.copies.facts import FoldedParameter, FoldKind
from headscope.core.facts import Task
from headscope.core.facts.counting import few_of
from headscope.core.model.classes.catalog import class_for
from headscope.core.model.classes.model_request import Choice, class_by_name
from headscope.core.model.quiet import quiet
from headscope.core.trace.layers import LayeredHead, LayerKind, is_same_function, module_as_layer, read_layers
from headscope.errors import HeadscopeError, Unsupported, UsageError, first_line
from headscope.slices.edit.folding.arithmetic import DoesNotFold, Values, fill_class
from headscope.slices.edit.folding.source import FoldSource, build_on_meta

OWN_CLASS = "auto"
_POOLINGS = ("cls", "mean", "first", "last", "max")
"""Values of settings that choose a pooling; the trace says what each does."""
_MOST_CHANGES = 3


@dataclass(frozen=True, slots=True, eq=False)
class FoldTarget:
    """What a head is folded into: its class and formula, and the parameters that the head gives.

    `settings` are the fields of the configuration that were changed for it, and `kept` the parameters that stay.
    `write` writes the model into a folder; it gets more fields of the configuration.
    """

    kind: FoldKind
    name: str
    formula: str
    parameters: tuple[FoldedParameter, ...]
    kept: tuple[str, ...]
    write: Callable[[Path, Mapping[str, Any]], None]
    settings: Mapping[str, Any] = field(default_factory=dict)
    exact: Values = field(default_factory=dict)
    """The parameters that are computed, in single precision: before they are rounded to the stored format."""


def class_to_fold_into(name: str, choice: Choice) -> Any:
    """Finds the class of Transformers that is meant.

    Raises UsageError for one of another family or task, DoesNotFold if the family has no class for sequences.
    """
    family = str(choice.config.model_type)
    own = class_for(family, Task.SEQUENCE_CLASSIFICATION)
    if own is None:
        raise DoesNotFold(f"{family} has no class for sequence classification in Transformers")
    if name in (OWN_CLASS, own.name):
        return class_by_name(own.name)
    cls: Any = class_by_name(name)  # raises for an unknown name, and names the nearest
    config_class, hint = getattr(cls, "config_class", None), f"its class is {own.name}: --as {OWN_CLASS}"
    if config_class is None or not isinstance(choice.config, config_class):
        raise UsageError(f"{name} is not a class of the checkpoint's family, {family}", hint)
    raise UsageError(f"{name} is not the class that AutoModelForSequenceClassification loads for {family}", hint)


def find_target(cls: Any, choice: Choice, source: FoldSource, values: Values) -> FoldTarget:
    """Finds the configuration with which a class computes what the head `source` does.

    `values` are the source's tensors. Tries the settings that the class's head reads. Raises DoesNotFold with the part
    of the head that has no place in the class.
    """
    plain = _config_with(choice.config, {
        "num_labels": len(source.labels),
        "id2label": dict(enumerate(source.labels)),
        "label2id": {name: at for at, name in enumerate(source.labels)},
    })  # fmt: skip
    vars(plain).pop("auto_map", None)  # it names classes in code of the checkpoint
    failed: DoesNotFold | None = None
    waiting: Iterator[Mapping[str, Any]] = iter([{}])
    while (settings := next(waiting, None)) is not None:
        try:
            config = _config_with(plain, settings)
            model = build_on_meta(cls, config)
            head = read_layers(model, Task.SEQUENCE_CLASSIFICATION)
            if not settings:
                waiting = _other_settings(plain, head, source.head)
            shapes = {name: item.shape for name, item in model.state_dict().items()}
            filled = fill_class(source.head, values, head, shapes, cls.__name__)
            own = {item.name for item in filled}
            kept = tuple(key for key in shapes if key not in own)
            missing = [key for key in kept if key not in values or values[key].shape != shapes[key]]
            if missing:
                raise DoesNotFold(f"{cls.__name__} has {few_of(missing)}, which nothing in the checkpoint gives")
            dtype = next((values[name].dtype for name in kept if values[name].is_floating_point()), torch.float32)
            exact = {item.name: computed.float() for item, computed in filled.items()}
            state = {name: values[name] for name in kept} | {name: item.to(dtype) for name, item in exact.items()}
            is_rounded = {item: bool((computed != state[item.name]).any()) for item, computed in filled.items()}
            parameters = tuple(replace(item, is_copied=item.is_copied and not is_rounded[item]) for item in filled)
            write = partial(_write_class, cls, _config_with(config, {"dtype": dtype}), state)
            return FoldTarget(FoldKind.CLASS, cls.__name__, head.formula, parameters, kept, write, settings, exact)
        except DoesNotFold as err:
            failed = err if failed is None or err.depth > failed.depth else failed
        except HeadscopeError:
            if failed is None:  # other settings may be impossible
                raise
    assert failed is not None  # it ended without a target
    raise failed


def _config_with(config: Any, settings: Mapping[str, Any]) -> Any:
    """Copies a configuration with other settings. Raises Unsupported for a value that its class rejects."""
    found = deepcopy(config)
    try:
        for name, value in settings.items():
            setattr(found, name, value)
    except Exception as err:  # strict configurations raise errors of huggingface_hub
        raise Unsupported(f"the configuration takes no other value: {first_line(err)}", "") from err
    return found


def _other_settings(config: Any, head: LayeredHead, source: LayeredHead) -> Iterator[Mapping[str, Any]]:
    """Yields other values of the settings that the class's head reads, one setting first, then several."""
    choices = [
        (name, value) for name in head.config_fields for value in _other_values(getattr(config, name, None), source)
    ]
    for count in range(1, _MOST_CHANGES + 1):
        for changes in combinations(choices, count):
            if len(dict(changes)) == count:
                yield dict(changes)


def _other_values(value: Any, source: LayeredHead) -> Iterator[Any]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, str) and value in ACT2FN:
        functions = [layer for layer in source.layers if layer.kind is LayerKind.FUNCTION]
        names = (
            name for layer in functions for name in ACT2FN
            if name != value and is_same_function(layer, module_as_layer(ACT2FN[name], layer.width))
        )  # fmt: skip
        yield from list(dict.fromkeys(names))[:1]
    elif isinstance(value, str) and value in _POOLINGS:
        yield from (name for name in _POOLINGS if name != value)


def _write_class(cls: Any, config: Any, state: Values, place: Path, fields: Mapping[str, Any]) -> None:
    """Writes a class with its parameters."""
    model = build_on_meta(cls, _config_with(config, fields))
    with quiet():
        model.load_state_dict(state, assign=True)
        model.save_pretrained(place)
