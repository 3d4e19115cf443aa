"""Keys that Transformers' own loader pairs with a model in memory, from headers alone."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from functools import cached_property
from typing import TYPE_CHECKING

from headscope.core.facts import CheckpointManifest
from headscope.core.facts.stored.unplaced import Unplaced
from headscope.core.facts.stored.weights import modern_name
from headscope.core.source.live.live_facts import task_of
from headscope.core.source.live.live_tensors import is_of_transformers, tensors_of
from headscope.core.upstream.peft import plain_name

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

    from headscope.core.model.loading.loader import Loaded


class LoaderPairs:
    """Keys that the loader pairs with the parameters of a model's class; none if the loader isn't needed.

    If the names and shapes of a model and of a checkpoint are the same, nothing is loaded. An adapter changes weights,
    which no name shows.
    """

    def __init__(self, module: nn.Module, manifest: CheckpointManifest) -> None:
        self._module = module
        self._loaded: Loaded | None = None
        if is_of_transformers(module):
            state = {plain_name(name): tuple(item.shape) for name, item in module.state_dict(keep_vars=True).items()}
            if manifest.adapter is not None or state != {header.key: header.shape for header in manifest.tensors}:
                self._loaded = _loaded_headers(module, manifest)
        self.origins = {item.name: item for item in self._loaded.diff.parameters} if self._loaded else {}

    def skeleton(self) -> PreTrainedModel | None:
        """Builds the model without values; None if its modules are not those that its class makes."""
        from headscope.core.model.tensors.held import fresh_skeleton, has_kinds_of

        if not is_of_transformers(self._module):
            return None
        # The skeleton only saves a run: without it the model itself is traced.
        with suppress(Exception):  # whatever a foreign constructor raises
            fresh = self._loaded.model if self._loaded else fresh_skeleton(self._module)  # type: ignore[arg-type]
            return _with_dtypes_of(self._module, fresh) if has_kinds_of(self._module, fresh) else None
        return None

    @property
    def unplaced(self) -> tuple[Unplaced, ...]:
        """Stored tensors that the class has no place for, each with the reason; none if nothing was loaded."""
        return self._loaded.diff.unplaced if self._loaded else ()

    @cached_property
    def without_place(self) -> Mapping[str, frozenset[str]]:
        """Stored tensors of parameters that the class has and this model lacks, with the names of these."""
        own = {plain_name(item.name) for item in tensors_of(self._module)}
        found: dict[str, frozenset[str]] = {}
        for item in self.origins.values():
            for key in item.checkpoint_keys if item.name not in own else ():
                found[key] = found.get(key, frozenset()) | {item.name}
        return found

    def is_ignored(self, key: str) -> bool:
        """True if the loader leaves a tensor out on purpose, as an old buffer or a second name of one tensor."""
        if self._loaded is None or key in self.without_place:
            return False
        return key not in self._loaded.diff.unused and modern_name(key) not in self._loaded.diff.unused


def _loaded_headers(module: nn.Module, manifest: CheckpointManifest) -> Loaded:
    from headscope.core.model.classes.model_request import Choice
    from headscope.core.model.loading.adapters import with_adapter
    from headscope.core.model.loading.loader import load_skeleton
    from headscope.core.source.reading.unseen_settings import without_idle_tensors

    cls, config = type(module), deepcopy(module.config)
    choice = Choice(cls, task_of(module, None), config)  # type: ignore[arg-type]
    loaded = without_idle_tensors(load_skeleton(choice, manifest), choice)
    return with_adapter(loaded, manifest.adapter) if manifest.adapter else loaded


def _with_dtypes_of(module: nn.Module, skeleton: PreTrainedModel) -> PreTrainedModel:
    """Casts a skeleton's tensors to the dtypes of a model, which a loader may have cast."""
    held = {item.name: item.tensor.dtype for item in tensors_of(module)}
    for item in tensors_of(skeleton):
        if item.name in held and item.tensor.is_floating_point():
            item.tensor.data = item.tensor.data.to(held[item.name])
    return skeleton
