"""Settings of a configuration that change the scores of a class and leave no trace in its keys and shapes."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from headscope.model.classes.proposals import Proposal

_MOST_NUMBERS = (3_000_000, 12_000_000)
"""A small model shows as well as a large one that a setting counts, and is built once for each value."""


def settings_without_shape(proposal: Proposal) -> dict[str, Any]:
    """The settings that change the scores of a proposed class and not its shapes, with the values it would have.

    Each setting of the configuration is varied on a small model with the same stored numbers. What can't be varied so
    (a name that only the model's code knows, a nested configuration) is not among them. Empty where no small model of
    the class can be run.
    """
    from headscope.model.classes.proposals import config_of

    config = config_of(proposal)
    small = _Small.of(proposal, config)
    if small is None:
        return {}
    told = {name for name, _ in proposal.fields}
    values = {name: value for name, value in config.to_dict().items() if name not in told}
    return {
        name: value
        for name, value in values.items()
        if hasattr(small.config, name) and any(small.changes(name, other) for other in _others(value))
    }


class _Small:
    """A small model of a proposed class, the inputs that it is run on and its scores."""

    def __init__(self, cls: Any, config: Any, inputs: Any, scores: torch.Tensor) -> None:
        self.config = config
        self._cls, self._inputs, self._scores = cls, inputs, scores

    @classmethod
    def of(cls, proposal: Proposal, config: Any) -> _Small | None:
        """The small model of a proposal; None where none can be run."""
        import transformers

        from headscope.model.classes.catalogue import task_of_class
        from headscope.model.classes.proposals import build_with_named_numbers, count_of_numbers
        from headscope.model.classes.reduced_config import fitting_config
        from headscope.trace.batch.probe_batch import build_probe

        proposed, task = getattr(transformers, proposal.class_name), task_of_class(proposal.class_name)
        try:
            found = (fitting_config(config, partial(count_of_numbers, proposed), most) for most in _MOST_NUMBERS)
            small = next((item for item in found if item is not None), None)
            if task is None or small is None:
                return None
            model = build_with_named_numbers(proposed, small)
            inputs = build_probe(model, task).inputs
            scores = _scores(model, inputs)
            return cls(proposed, small, inputs, scores) if scores.isfinite().all() else None
        except Exception:  # whatever foreign code raises on dummy inputs: then nothing can be varied
            return None

    def changes(self, name: str, value: Any) -> bool:
        """Whether another value of a setting gives the same shapes and other scores."""
        import torch

        from headscope.model.classes.proposals import build_with_named_numbers, shapes_of_class

        changed = deepcopy(self.config)
        try:
            setattr(changed, name, value)
            if shapes_of_class(self._cls, changed) != shapes_of_class(self._cls, self.config):
                return False
            scores = _scores(build_with_named_numbers(self._cls, changed), self._inputs)
        except Exception:  # a value that the class refuses
            return False
        return scores.shape != self._scores.shape or not torch.allclose(scores, self._scores, rtol=1e-5, atol=1e-6)


def _scores(model: Any, inputs: Any) -> torch.Tensor:
    from headscope.model.quiet import quiet
    from headscope.trace.record.execution import run_unrecorded

    with quiet():
        found: torch.Tensor = run_unrecorded(model, inputs).logits
    return found


def _others(value: Any) -> Iterator[Any]:
    """Other values of a setting: large steps, so that an epsilon or the base of a rotation shows in the scores."""
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
        case dict():
            for key, item in value.items():
                yield from ({**value, key: other} for other in _others(item))
        case [int() | float(), *_]:
            yield [2 * item for item in value]
        case None:
            yield from (1, 0.5)
