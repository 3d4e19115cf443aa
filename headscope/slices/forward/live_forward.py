"""One forward pass of a model in memory: on its own device, with a caller's inputs or with dummies."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headscope.core.facts import Task
from headscope.core.source.live.module import Unwrapped, unwrap
from headscope.errors import UsageError

if TYPE_CHECKING:
    from torch import nn

    from headscope.core.trace.slice.observe import Observation

_SHARDED = "the parameters are sharded, so the pass shows shapes and no values"


def observe_live(
    module: nn.Module, task: Task, *, example_inputs: Any = None, output: str | None = None
) -> Observation:
    """Runs one forward pass of `module` and records it. Raises Unsupported if it fails or makes no scores."""
    from headscope.core.model.quiet import quiet
    from headscope.core.trace.batch.examples import named_examples
    from headscope.core.trace.slice.observe import observe_inputs, observe_module, probe_of_inputs
    from headscope.core.upstream.torch import uncompiled

    unwrapped = unwrap(module)
    model = unwrapped.module
    with quiet(), uncompiled(model):
        if example_inputs is not None and unwrapped.caller is not None:
            given = named_examples(model, example_inputs)
            observed = observe_inputs(model, given, unwrapped.caller)  # type: ignore[arg-type]
        elif example_inputs is not None:
            probe = probe_of_inputs(model, example_inputs)
            observed = observe_module(model, probe, invented=False, output=output)
        else:
            observed = _on_dummy_inputs(unwrapped, task, output)
    return replace(observed, notes=(*observed.notes, _SHARDED)) if unwrapped.is_sharded else observed


def _on_dummy_inputs(unwrapped: Unwrapped, task: Task, output: str | None) -> Observation:
    from transformers import PreTrainedModel

    from headscope.core.trace.batch.probe_batch import build_probe
    from headscope.core.trace.slice.observe import observe_module, observe_probe

    model, origin = unwrapped.module, unwrapped.origin
    if not isinstance(origin, PreTrainedModel):
        name = type(model).__name__
        raise UsageError(
            f"{name} is not a model of Transformers, so headscope doesn't know its inputs", "give example_inputs"
        )
    if isinstance(model, PreTrainedModel) and output is None:
        return observe_probe(model, task, unwrapped.caller)
    probe = replace(build_probe(origin, task), labels={})
    return observe_module(model, probe, invented=True, output=output)


def device_of(module: nn.Module) -> str:
    """Names the device of a model in memory: that of its first parameter; "meta" if it is sharded."""
    unwrapped = unwrap(module)
    found = next(iter(unwrapped.held.values()), None)
    return "meta" if found is None or unwrapped.is_sharded else str(found.device)


def runs_by_itself(module: nn.Module) -> bool:
    """True if headscope knows the inputs of a model in memory without example_inputs."""
    from transformers import PreTrainedModel

    unwrapped = unwrap(module)
    scorer = unwrapped.scorer
    return isinstance(unwrapped.module, PreTrainedModel) or (scorer is not None and scorer.labels is not None)
