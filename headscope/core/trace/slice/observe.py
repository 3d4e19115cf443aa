"""Observations of one forward with its inputs as given: the stages of its head with the tensors that were really
there.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from headscope.core.facts import Shape, Task
from headscope.core.facts.seen import SeenStage, Statistics
from headscope.core.trace.batch.examples import named_examples
from headscope.core.trace.batch.inputs import ProbeRow, Sizes
from headscope.core.trace.batch.probe_batch import ProbeBatch, build_probe, pass_on, passed_probe
from headscope.core.trace.record.base import base_module
from headscope.core.trace.record.execution import Execution, is_shape_only, run_forward, run_on_probe
from headscope.core.trace.slice.head_slice import HeadSlice, locate_head
from headscope.core.trace.slice.stages import build_stages, is_silent, read_steps
from headscope.core.upstream.optional.peft_prompts import PromptCaller
from headscope.errors import Unsupported


@dataclass(frozen=True, slots=True)
class Observation:
    """Record of one forward. `logits` are the first score tensor's values, None on the meta device.

    `invented` says that the inputs were made up: their values mean nothing.
    """

    inputs: tuple[tuple[str, Shape], ...]
    invented: bool
    hidden_shape: Shape
    stages: tuple[SeenStage, ...]
    logits_shape: Shape
    logits: torch.Tensor | None
    notes: tuple[str, ...]


def observe_probe(model: PreTrainedModel, task: Task, caller: PromptCaller | None = None) -> Observation:
    """Observes the stages of `model` on dummy inputs: shapes by names on the meta device, in numbers with real
    weights.

    With `caller`, PEFT's model around this one, the inputs are what that passes to it.
    """
    hint = "its stages cannot be shown; the weight status does not depend on it"
    build = partial(build_probe, model) if caller is None else partial(passed_probe, caller)
    with nullcontext() if caller is None else caller.taking_calls():
        execution = run_on_probe(model, partial(build, task, with_labels=False), hint=hint)
    return _observe_head(execution, named=is_shape_only(model), invented=True)


def observe_inputs(
    model: PreTrainedModel, inputs: Mapping[str, Any], caller: PromptCaller | None = None
) -> Observation:
    """Observes the stages of `model` on real inputs, with shapes in numbers and statistics of every result.

    Raises UsageError without tensors, Unsupported where the forward fails or no head is found on the way to the scores.
    """
    probe = probe_of_inputs(model, inputs)
    if caller is not None and caller.ahead:
        # PEFT passes other inputs to the model inside.
        more = caller.ahead
        rows = tuple(ProbeRow(row.first, row.last + more, row.eos + more) for row in probe.rows)
        sizes = replace(probe.sizes, length=probe.length + more)
        probe = pass_on(caller, replace(probe, sizes=sizes, rows=rows))
    hint = "check that the inputs are of the kind that the model takes"
    with nullcontext() if caller is None else caller.taking_calls():
        return _observe_head(run_forward(model, probe, hint=hint, lend=False), named=False, invented=False)


def observe_module(model: nn.Module, probe: ProbeBatch, *, invented: bool, output: str | None = None) -> Observation:
    """Observes the stages of any module on a probe; `invented` says that its inputs were made up."""
    hint = "give example_inputs that its forward takes"
    execution = run_forward(model, probe, hint=hint, lend=invented, output=output)
    return _observe_head(execution, named=invented and is_shape_only(model), invented=invented)


def probe_of_inputs(model: nn.Module, examples: Any) -> ProbeBatch:
    """Wraps a caller's inputs, with floats in the dtype of the weights. Raises UsageError without tensors."""
    given, dtype = named_examples(model, examples), next(model.parameters()).dtype
    for name, value in given.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            given[name] = value.to(dtype)
    return ProbeBatch(given, {}, *_input_sizes(given))


def _input_sizes(inputs: dict[str, Any]) -> tuple[Sizes, tuple[ProbeRow, ...]]:
    # Only token ids have a known layout: [batch, tokens], or [batch, choices, tokens]. Other inputs have a batch axis
    # only.
    ids = inputs.get("input_ids")
    if not isinstance(ids, torch.Tensor):
        first = next(value for value in inputs.values() if isinstance(value, torch.Tensor))
        return Sizes(first.shape[0], 0), ()
    choices = ids.shape[1] if ids.dim() > 2 else 1
    length = ids.shape[-1]
    return Sizes(ids.shape[0], length, choices), (ProbeRow(0, length - 1, length - 1),) * (ids.shape[0] * choices)


def _observe_head(execution: Execution, *, named: bool, invented: bool) -> Observation:
    head = locate_head(execution, base_module(execution.model))
    if not head.operations:
        raise Unsupported(
            f"no head was found between the hidden states and the scores of {type(execution.model).__name__}", ""
        )
    shape: Callable[[torch.Size], Shape] = execution.probe.shape if named else tuple
    named_inputs = execution.probe.inputs.items()
    return Observation(
        inputs=tuple((name, shape(value.shape)) for name, value in named_inputs if isinstance(value, torch.Tensor)),
        invented=invented,
        hidden_shape=shape(head.hidden[0].shape) if head.hidden else (),
        stages=_measured_stages(head, named=named),
        logits_shape=shape(execution.logits[0].shape),
        logits=None if execution.logits[0].is_meta else execution.logits[0].detach().float().cpu(),
        notes=execution.notes,
    )


def _measured_stages(head: HeadSlice, *, named: bool) -> tuple[SeenStage, ...]:
    steps = read_steps(head)
    stages = build_stages(head, steps)
    results = [step.last.outputs[0] for step in steps if not is_silent(step)]
    return tuple(
        SeenStage(stage, stage.output_shape if named else tuple(result.shape), measure(result))
        for stage, result in zip(stages, results, strict=True)
    )


def measure(tensor: torch.Tensor) -> Statistics | None:
    """Measures minimum, mean, maximum and standard deviation of the finite values; None on the meta device."""
    if tensor.is_meta or not tensor.is_floating_point():
        return None
    values = tensor.detach().float()
    finite = values[values.isfinite()]
    nan, inf = int(values.isnan().sum()), int(values.isinf().sum())
    if not finite.numel():
        return Statistics(None, None, None, None, nan, inf)
    spread = float(finite.std(unbiased=False))
    return Statistics(float(finite.min()), float(finite.mean()), float(finite.max()), spread, nan, inf)
