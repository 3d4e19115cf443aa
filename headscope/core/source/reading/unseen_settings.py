"""Settings of a configuration, tried on small models: which of them change the scores, and which only add tensors."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from headscope.core.facts import Task, UnusedGroup
from headscope.core.facts.stored.unplaced import UnplacedReason, of_any_layer
from headscope.core.facts.stored.weights import DroppedGroup

if TYPE_CHECKING:
    import torch

    from headscope.core.model.classes.model_request import Choice
    from headscope.core.model.classes.proposals import Proposal
    from headscope.core.model.loading.loader import Loaded

_COMPARED = re.compile(r"""[!=]= ["'](\w+)["']""")
_MOST_NUMBERS = (3_000_000, 12_000_000)
"""A small model shows as well as a large one that a setting counts, and is built once for each value."""


def settings_without_shape(proposal: Proposal) -> dict[str, Any] | None:
    """Finds the settings that change the scores of a proposed class but not its shapes, with the values it would have.

    Each setting of the configuration is varied on a small model with the same stored values. What can't be varied this
    way (a name that only the model's code knows, a nested configuration) is left out. None if no small model of the
    class can be run.
    """
    import transformers

    from headscope.core.model.classes.catalog import task_of_class
    from headscope.core.model.classes.proposals import config_of

    config, task = config_of(proposal), task_of_class(proposal.class_name)
    small = None if task is None else _Small.of(getattr(transformers, proposal.class_name), config, task)
    if small is None:
        return None
    inferred = {name for name, _ in proposal.fields}
    values = {name: value for name, value in config.to_dict().items() if name not in inferred}
    # A setting that is a text has no other values to try but the words that the model's source compares with.
    source = inspect.getsource(inspect.getmodule(small.model_class) or small.model_class)
    words = tuple(dict.fromkeys(_COMPARED.findall(source)))
    padding = {"pad_token_id": None} if small.needs_padding else {}
    return padding | {
        name: value
        for name, value in values.items()
        if hasattr(small.config, name) and any(small.changes(name, other) for other in _other_values(value, words))
    }


def without_idle_tensors(loaded: Loaded, choice: Choice) -> Loaded:
    """Takes the dropped groups that the scores don't need, such as a mask token for pretraining, out of a load.

    They are zeroed in a small model whose setting takes them: if its scores stay the same, the group is idle. A group
    without a setting stays, and so does one whose small model can't be run.
    """
    idle = tuple(group for group in loaded.diff.dropped if _is_idle(group, choice))
    if not idle:
        return loaded
    keys = {key for group in idle for key in group.keys}
    rest = [(group, tuple(key for key in group.keys if key not in keys)) for group in loaded.diff.unused_groups]
    groups = tuple(replace(group, keys=left) for group, left in rest if left)
    reason = UnplacedReason.PRETRAINING_HEAD
    known = tuple(
        UnusedGroup(group.keys, f"weights that {group.setting} adds and no score needs", (), reason) for group in idle
    )
    needed = tuple(group for group in loaded.diff.dropped if group not in idle)
    return replace(loaded, diff=replace(loaded.diff, dropped=needed, unused_groups=(*groups, *known)))


def _is_idle(group: DroppedGroup, choice: Choice) -> bool:
    from headscope.core.model.classes.reduced_config import with_parts

    config = deepcopy(choice.config)
    part = next((part for part in with_parts(config) if hasattr(part, group.setting)), None) if group.setting else None
    if part is None:
        return False
    setattr(part, group.setting, not getattr(part, group.setting))
    small = _Small.of(choice.cls, config, choice.task)
    return small is not None and not small.needs({of_any_layer(key) for key in group.keys})


class _Small:
    """A small model of a class, the inputs that it is run on and its scores.

    `needs_padding` tells that the class refuses a batch without a pad token, and has none by default.
    """

    def __init__(self, model_class: Any, config: Any, inputs: Any, scores: torch.Tensor, needs_padding: bool) -> None:
        self.model_class, self.config, self.needs_padding = model_class, config, needs_padding
        self._inputs, self._scores = inputs, scores

    @cached_property
    def _own_shapes(self) -> Any:
        from headscope.core.model.classes.proposals import shapes_of_class

        return shapes_of_class(self.model_class, self.config)

    @classmethod
    def of(cls, model_class: Any, config: Any, task: Task) -> _Small | None:
        """Builds the small model of a class at a configuration; None if none can be run."""
        from headscope.core.model.classes.proposals import build_with_named_numbers, count_of_numbers
        from headscope.core.model.classes.reduced_config import fitting_config
        from headscope.core.trace.batch.probe_batch import build_probe
        from headscope.core.upstream.transformers import text_config_of

        try:
            found = (fitting_config(config, partial(count_of_numbers, model_class), most) for most in _MOST_NUMBERS)
            small = next((item for item in found if item is not None), None)
            if small is None:
                return None
            model = build_with_named_numbers(model_class, small)
            inputs = build_probe(model, task).inputs
            needs_padding = False
            try:
                scores = _compute_scores(model, inputs)
            except Exception:  # some classes refuse a batch of several texts while no pad token is set
                needs_padding = True
                text_config_of(small).pad_token_id = 1
                scores = _compute_scores(model, inputs)
            return cls(model_class, small, inputs, scores, needs_padding) if scores.isfinite().all() else None
        except Exception:  # whatever foreign code raises on dummy inputs: then nothing can be varied
            return None

    def changes(self, name: str, value: Any) -> bool:
        """True if another value of a setting gives the same shapes and other scores."""
        from headscope.core.model.classes.proposals import build_with_named_numbers, shapes_of_class

        changed = deepcopy(self.config)
        try:
            setattr(changed, name, value)
            if shapes_of_class(self.model_class, changed) != self._own_shapes:
                return False
            scores = _compute_scores(build_with_named_numbers(self.model_class, changed), self._inputs)
        except Exception:  # a value that the class refuses
            return False
        return not self._is_same(scores)

    def needs(self, kinds: set[str]) -> bool:
        """True if the scores change without the tensors of these names, with the numbers of layers left out."""
        from headscope.core.model.classes.proposals import build_with_named_numbers

        model = build_with_named_numbers(self.model_class, self.config)
        prefix = f"{model.base_model_prefix}."
        zeroed = 0
        for name, item in model.state_dict().items():
            if kinds & {of_any_layer(name), of_any_layer(name).removeprefix(prefix)}:
                item.zero_()
                zeroed += 1
        # If no tensor of these names was found, nothing was tried, and the tensors count as needed.
        return not zeroed or not self._is_same(_compute_scores(model, self._inputs))

    def _is_same(self, scores: torch.Tensor) -> bool:
        import torch

        return scores.shape == self._scores.shape and torch.allclose(scores, self._scores, rtol=1e-5, atol=1e-6)


def _compute_scores(model: Any, inputs: Any) -> torch.Tensor:
    from headscope.core.model.quiet import quiet
    from headscope.core.trace.record.execution import run_unrecorded

    with quiet():
        found: torch.Tensor = run_unrecorded(model, inputs).logits
    return found


def _other_values(value: Any, words: Sequence[str] = ()) -> Iterator[Any]:
    """Gives other values of a setting: large steps, so that an epsilon or a rotation's base shows in the scores."""
    from transformers.activations import ACT2FN

    match value:
        case bool():
            yield not value
        case int():
            yield from {2 * value, value + 1, max(value // 2, 1)} - {value}
        case float():
            yield from {3 * value + 0.5, value / 2} - {value}
        case str() if value in ACT2FN:
            yield from ("relu", "tanh")
        case str():
            yield from words
        case dict():
            for key, item in value.items():
                yield from ({**value, key: other} for other in _other_values(item))
        case [int() | float(), *_]:
            yield [2 * item for item in value]
        case None:
            yield from (1, 0.5, "tanh", *words)
