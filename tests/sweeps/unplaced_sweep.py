"""Every pretraining class of every family, read as that family's classifiers: no tensor of it may be without a reason.

`python -m tests.sweeps.unplaced_sweep [FAMILY ...]` prints the tensors that no class of the family is found to own.
"""

import sys
import warnings
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import transformers

from headscope.core.model.classes.catalog import classes_of_family
from headscope.core.model.classes.defaults import default_values
from headscope.core.model.classes.model_request import Choice
from headscope.core.model.classes.reduced_config import shallow_config
from headscope.core.model.loading.loader import load_skeleton
from headscope.core.model.quiet import quiet
from headscope.core.upstream.torch import on_meta
from headscope.core.upstream.transformers import auto_tables, config_classes
from headscope.facts import CheckpointKind, CheckpointManifest, TensorHeader, WeightsFormat


def saved_classes(family: str) -> dict[str, tuple[TensorHeader, ...]]:
    """The tensors that each class which an auto class maps would save, with two layers."""
    names = {name for table in auto_tables().values() for name in table.get(family, ())}
    config = shallow_config(config_classes()[family](**default_values(family)[0]), 2)
    return {name: tensors for name in sorted(names) if (tensors := _tensors_of(name, config))}


def _tensors_of(name: str, config: Any) -> tuple[TensorHeader, ...]:
    cls = getattr(transformers, name, None)
    parts = [config, *(value for value in vars(config).values() if isinstance(value, transformers.PreTrainedConfig))]
    try:
        own = next((part for part in parts if isinstance(part, cls.config_class)), config)
        with quiet(), on_meta():
            state = cls(own).state_dict()
    except Exception:  # a class that its family's defaults don't build, or that lacks a package
        return ()
    return tuple(
        TensorHeader(key, "float32", tuple(item.shape), file="model.safetensors")
        for key, item in state.items()
        if item.is_floating_point()
    )


def unplaced_of(family: str) -> Iterator[str]:
    """A line for each class that is saved, class that is built, and module that finds no place."""
    saved = saved_classes(family)
    config = shallow_config(config_classes()[family](**default_values(family)[0]), 2)
    for target in classes_of_family(family):
        for name, tensors in saved.items():
            manifest = CheckpointManifest(
                reference=family, kind=CheckpointKind.LOCAL, format=WeightsFormat.SAFETENSORS,
                config={}, tensors=tensors, files=(),
            )  # fmt: skip
            try:
                loaded = load_skeleton(
                    Choice(getattr(transformers, target.name), target.task, deepcopy(config)), manifest
                )
            except Exception as err:
                yield f"{family}: {name} as {target.name}: {type(err).__name__}: {str(err)[:150]}"
                continue
            if loaded.diff.loaded:
                for item in loaded.diff.without_place:
                    yield f"{family}: {name} as {target.name}: {item.name} ({len(item.tensors)}) {item.what}"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for family in sys.argv[1:] or [name for name in config_classes() if classes_of_family(name)]:
        try:
            lines = list(unplaced_of(family))
        except Exception as err:
            lines = [f"{family}: {type(err).__name__}: {str(err)[:200]}"]
        print(*lines, sep="\n", flush=True) if lines else print(f"{family}: fine", flush=True)
