"""The examination of a model in memory: any module, untouched, with its own example inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headscope.api.environment import environment
from headscope.api.examination import Examination, join_head, unless_contradicted
from headscope.errors import UsageError
from headscope.facts import (
    CheckpointFacts,
    CheckpointKind,
    HeadTrace,
    ModelFacts,
    ParameterCounts,
    ParameterOrigin,
    ParameterStatus,
    Task,
    WeightDiff,
    WeightsFormat,
)
from headscope.facts.version import tool_version

if TYPE_CHECKING:
    from torch import nn

    from headscope.trace.probe import Probe


def inspect_module(
    module: nn.Module,
    *,
    example_inputs: Any = None,
    labels: tuple[str, ...] = (),
    task: str | None = None,
    verify: bool = False,
) -> Examination:
    """The examination of `module` as it is: mode, hooks, gradients, random state and device stay untouched.

    `example_inputs` is what its `forward` takes (a mapping, a tensor, or several in order); a model of Transformers
    needs none. Raises Unsupported where the forward fails or gives no scores.
    """  # fmt: skip
    inner = unwrapped(module)
    proven = _trace(inner, example_inputs, _task_of(inner, task))
    trace = proven if verify else unless_contradicted(proven)
    diff = _nothing_loaded(inner, trace)
    head = join_head(trace, diff)
    names = labels or _labels_of(inner, trace)
    sizes = sum(parameter.numel() for parameter in inner.parameters())
    own = sum(item.count for item in head.parameters)
    return Examination(
        tool_version=tool_version(),
        command="inspect",
        environment=environment(),
        checkpoint=_in_memory(module),
        model=ModelFacts(
            class_name=type(inner).__name__,
            task=_task_of(inner, task),
            num_labels=len(names),
            labels=tuple(names),
            labels_are_placeholders=all(name.startswith("LABEL_") for name in names),
            problem_type=getattr(getattr(inner, "config", None), "problem_type", None),
            loss=trace.loss or "not determined",
            activation="none",
            parameters=ParameterCounts(
                sizes, sizes - own, own, sum(item.count for item in head.parameters if item.live)
            ),
            dtype=str(next(inner.parameters()).dtype).removeprefix("torch."),
        ),
        weights=diff,
        head=head,
        notes=trace.notes,
        not_determined=trace.not_determined,
    )


def unwrapped(module: nn.Module) -> nn.Module:
    """The model inside PEFT's wrapper, adapters and all; any other module as it is."""
    unwrap = getattr(module, "get_base_model", None)
    inner: nn.Module = unwrap() if callable(unwrap) else module
    return inner


def _task_of(module: nn.Module, task: str | None) -> Task:
    from headscope.model.catalogue import task_of_class

    if task is not None:
        try:
            return Task(task.replace("_", "-"))
        except ValueError as err:
            raise UsageError(f"no such task: {task}", "tasks: " + ", ".join(item.value for item in Task)) from err
    return task_of_class(type(module).__name__) or Task.SEQUENCE_CLASSIFICATION


def _trace(module: nn.Module, example_inputs: Any, task: Task) -> HeadTrace:
    from headscope.trace import TokenNames
    from headscope.trace.base import base_module
    from headscope.trace.execution import run_forward
    from headscope.trace.head import read_head

    probe = _probe(module, example_inputs, task)
    execution = run_forward(module, probe, hint="give example_inputs that its forward takes")
    return read_head(execution, base_module(module), TokenNames(), verify=True)


def _probe(module: nn.Module, example_inputs: Any, task: Task) -> Probe:
    from dataclasses import replace

    from transformers import PreTrainedModel

    from headscope.trace.examples import probe_from_examples
    from headscope.trace.probe import build_probe

    if example_inputs is not None:
        return probe_from_examples(module, example_inputs)
    if isinstance(module, PreTrainedModel):
        return replace(build_probe(module, task), labels={})
    raise UsageError(
        f"{type(module).__name__} is no model of Transformers, so its inputs are not known", "give example_inputs"
    )


def _in_memory(module: nn.Module) -> CheckpointFacts:
    return CheckpointFacts(
        reference=type(module).__name__,
        kind=CheckpointKind.MEMORY,
        revision=None,
        commit=None,
        format=WeightsFormat.NONE,
        files=(),
        tensors=0,
        bytes_read=0,
        bytes_total=0,
        architectures=(),
        model_type=getattr(getattr(module, "config", None), "model_type", None),
    )


def _nothing_loaded(module: nn.Module, trace: HeadTrace) -> WeightDiff:
    """The parameters with no word on where their values came from: a module does not know."""
    prefix = f"{trace.base_module}." if trace.base_module else ""
    return WeightDiff(
        loaded=0,
        new=(),
        mismatched=(),
        unused=(),
        tied=(),
        renamed=(),
        parameters=tuple(
            ParameterOrigin(
                name=name,
                shape=tuple(parameter.shape),
                dtype=str(parameter.dtype).removeprefix("torch."),
                count=parameter.numel(),
                status=ParameterStatus.UNKNOWN,
                checkpoint_keys=(),
                in_base=bool(prefix) and name.startswith(prefix),
            )
            for name, parameter in module.named_parameters(remove_duplicate=False)
        ),
    )


def _labels_of(module: nn.Module, trace: HeadTrace) -> tuple[str, ...]:
    config = getattr(module, "config", None)
    if getattr(config, "id2label", None):
        from headscope.model.labels import read_labels

        return read_labels(config)
    last = trace.stages[-1].output_shape if trace.stages else ()
    count = last[-1] if last and isinstance(last[-1], int) else 0
    return tuple(f"LABEL_{number}" for number in range(count))
