"""Facts that a model in memory holds itself: its parameters, its labels, its configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headscope.core.facts import (
    CheckpointFacts,
    CheckpointKind,
    Head,
    HeadTrace,
    ModelFacts,
    ParameterOrigin,
    ParameterStatus,
    Task,
    WeightDiff,
    WeightsFormat,
)
from headscope.core.facts.heads.tasks import TEXT_TASKS, Loss, activation_for, parse_task
from headscope.core.source.reading.assembly import parameter_counts, problem_type_of
from headscope.core.upstream.peft import plain_name
from headscope.errors import UsageError

if TYPE_CHECKING:
    from torch import nn

    from headscope.core.source.live.module import Unwrapped
    from headscope.core.source.live.scorers import Scorer


_PER_CLASS = (
    Task.SEQUENCE_CLASSIFICATION,
    Task.TOKEN_CLASSIFICATION,
    Task.IMAGE_CLASSIFICATION,
    Task.AUDIO_CLASSIFICATION,
    Task.VIDEO_CLASSIFICATION,
)
"""The tasks whose scores have one entry per class."""


def embeddings_of(module: nn.Module, origin: nn.Module) -> frozenset[str]:
    """Names the parameters of `module` that `resize_token_embeddings` of `origin`, a part of it, changes."""
    layers = []
    for name in ("get_input_embeddings", "get_output_embeddings"):
        try:
            layers.append(getattr(origin, name)())
        except (AttributeError, NotImplementedError):
            continue
    # By identity, as the names of embeddings differ from family to family, and tied ones have two.
    own = {id(item) for layer in layers if layer is not None for item in layer.parameters()}
    named = module.named_parameters(remove_duplicate=False)
    return frozenset(plain_name(name) for name, item in named if id(item) in own)


def task_of(module: nn.Module, task: str | None) -> Task:
    """Gives the task that a caller names, or that of the model's class: by its bases, its name, and its tensors.

    Raises UsageError for an unknown task.
    """
    from headscope.core.model.classes.catalog import task_of_bases, task_of_own_class

    if task is not None:
        return parse_task(task)
    cls = type(module)
    names = (name for name, _ in module.named_parameters())
    return task_of_bases(cls) or task_of_own_class(cls.__name__, names) or Task.SEQUENCE_CLASSIFICATION


def facts_in_memory(module: nn.Module) -> CheckpointFacts:
    """Builds the facts that replace those of a checkpoint: nothing was read."""
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


def nothing_loaded(module: nn.Module, trace: HeadTrace) -> WeightDiff:
    """Lists parameters and persistent buffers as of unknown origin, which a module itself doesn't know."""
    from headscope.core.trace.record.base import persistent_buffers

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
                shape=tuple(tensor.shape),
                dtype=str(tensor.dtype).removeprefix("torch."),
                count=tensor.numel(),
                status=ParameterStatus.UNKNOWN,
                checkpoint_keys=(),
                in_base=bool(prefix) and name.startswith(prefix),
                is_buffer=is_buffer,
            )
            for is_buffer, held in (
                (False, module.named_parameters(remove_duplicate=False)),
                (True, persistent_buffers(module)),
            )
            for name, tensor in held
        ),
    )


def live_model_facts(
    unwrapped: Unwrapped, task: Task, names: tuple[str, ...], trace: HeadTrace, *, diff: WeightDiff, head: Head
) -> ModelFacts:
    """Builds the facts on a model in memory; what no configuration says is not determined.

    A library that has its own function for the scores computes its loss outside the forward.
    """
    from headscope.core.model.classes.labels import are_placeholders

    module, scorer = unwrapped.module, unwrapped.scorer
    is_foreign = bool(unwrapped.activation) or (scorer is not None and scorer.labels is not None)
    if is_foreign:
        trace = replace(trace, loss="none", reads_problem_type=None)
    count = scorer.count if scorer is not None and scorer.count is not None else len(names) or _score_count(trace)
    problem = None if is_foreign else getattr(getattr(module, "config", None), "problem_type", None)
    others = set(trace.other_parameters) - set(trace.parameters)
    size_of_others = sum(item.count for item in diff.parameters if item.name in others)
    return ModelFacts(
        class_name=type(module).__name__,
        task=task,
        num_labels=count,
        labels=names,
        labels_are_placeholders=are_placeholders(names),
        **problem_type_of(problem, trace, count),
        loss=trace.loss or Loss.NOT_DETERMINED.value,
        activation=unwrapped.activation or activation_for(trace.loss),
        parameters=parameter_counts(
            sum(item.numel() for item in module.parameters()), head, diff.parameters, size_of_others
        ),
        dtype=str(next(module.parameters()).dtype).removeprefix("torch."),
        padding_side=(scorer.padding_side if scorer else "") or _padding_side(unwrapped.origin, task),
        reads_problem_type=trace.reads_problem_type,
        wrappers=unwrapped.wrappers,
    )


def _score_count(trace: HeadTrace) -> int:
    """Gives the size of the last axis of the scores; 0 if it varies."""
    last = trace.stages[-1].output_shape if trace.stages else ()
    return last[-1] if last and isinstance(last[-1], int) else 0


def _padding_side(module: nn.Module, task: Task) -> str:
    """Gives the side on which the family's tokenizer pads; "" for a model of no family, or of no texts."""
    from headscope.core.model.tokenizers import padding_side_of

    family = getattr(getattr(module, "config", None), "model_type", "")
    return padding_side_of(str(family)) if family and task in TEXT_TASKS else ""


def labels_of(
    module: nn.Module, trace: HeadTrace, task: Task, given: tuple[str, ...], scorer: Scorer | None = None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Lists the class names in the order of the scores, and notes on them; no names without a configuration.

    Raises UsageError for another number of names.
    """
    from headscope.core.model.classes.labels import labels_in, placeholders

    count = (_score_count(trace) or None) if task in _PER_CLASS else None
    if given:
        if count is not None and len(given) != count:
            raise UsageError(f"{len(given)} labels were given, but the model has {count} scores", "name every class")
        return given, ()
    if scorer is not None and scorer.labels is not None:
        return scorer.labels, ()
    config = getattr(module, "config", None)
    named = labels_in(config) if getattr(config, "id2label", None) else ()
    if not named or count in (None, len(named)):
        return named, ()
    sentence = f"the configuration names {len(named)} classes, but the model has {count} scores"
    return placeholders(_score_count(trace)), (sentence,)
