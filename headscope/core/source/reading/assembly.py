"""Manifest, class, weight diff and head trace, joined into one report."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headscope.core.facts import (
    CheckpointFacts,
    CheckpointKind,
    CheckpointManifest,
    Gap,
    Head,
    HeadParameter,
    HeadTrace,
    ModelFacts,
    ParameterCounts,
    ParameterOrigin,
    Quantization,
    Repaired,
    Report,
    SentencePipeline,
    TensorKind,
    WeightDiff,
    WeightsFormat,
)
from headscope.core.facts.environment import tool_version
from headscope.core.facts.heads.tasks import TEXT_TASKS, Activation, Loss, activation_for
from headscope.core.source.environment import environment
from headscope.core.source.reading.tracing import Traced

if TYPE_CHECKING:
    from headscope.core.model.classes.model_request import Choice
    from headscope.core.model.loading.loader import Loaded
    from headscope.core.source.reading.diagnosis import Diagnosis

_SHAPES_DIFFER = "shapes differ: from_pretrained raises unless it is given ignore_mismatched_sizes=True"


def assemble(  # noqa: PLR0917 - each is what one step came to
    command: str, manifest: CheckpointManifest, choice: Choice, loaded: Loaded, traced: Traced, diagnosis: Diagnosis
) -> Report:
    """Joins what was read, built, loaded and traced into a report, with the notes and the gaps of each step."""
    from headscope.core.model.loading.adapters import adapter_facts

    adapter, gaps = manifest.adapter, manifest.gaps
    if manifest.kind is not CheckpointKind.CLASS and manifest.format is WeightsFormat.NONE and not gaps:
        gaps = (Gap("weights", "the checkpoint holds no weight file"),)
    head = join_head(traced.trace, loaded.diff) if traced.trace else None
    return Report(
        tool_version=tool_version(),
        command=command,
        environment=environment(),
        checkpoint=replace(checkpoint_facts(manifest), states=diagnosis.states),
        model=with_saved_class(_model_facts(choice, loaded, traced.trace, head), manifest),
        weights=loaded.diff,
        head=head,
        notes=(
            *choice.notes,
            *((_SHAPES_DIFFER,) if loaded.diff.mismatched else ()),
            *loaded.notes,
            *(traced.trace.notes if traced.trace else ()),
        ),
        not_determined=(
            *gaps,
            # Unpacking quantized weights may add gaps to those of the manifest, which the diff repeats.
            *(gap for gap in loaded.diff.gaps if gap not in manifest.gaps),
            *traced.gaps,
            *(traced.trace.not_determined if traced.trace else ()),
        ),
        adapter=None if adapter is None else adapter_facts(loaded, adapter, manifest, head),
        repaired=_facts_after_repair(diagnosis, traced.trace),
    )


def without_head(report: Report) -> Report:
    """Returns a report without its head: what only a trace can show becomes "not determined"."""
    model, whole = report.model, report.model.parameters
    own = sum(item.count for item in report.weights.parameters if not (item.in_base or item.is_buffer))
    return replace(
        report,
        head=None,
        model=replace(
            model,
            problem_type=None if model.problem_type_implied else model.problem_type,
            problem_type_implied=False,
            loss=Loss.NOT_DETERMINED.value,
            activation=Activation.NOT_DETERMINED.value,
            parameters=ParameterCounts(whole.total, whole.total - own, own, 0, 0),
            reads_problem_type=None,
        ),
    )


def _facts_after_repair(diagnosis: Diagnosis, trace: HeadTrace | None) -> Repaired | None:
    """Gives the weights and the head that the checkpoint would have after its repair; None without a repair."""
    if diagnosis.weights is None:
        return None
    head = join_head(trace, diagnosis.weights).parameters if trace is not None else ()
    return Repaired(
        tuple(state.rule for state in diagnosis.states if state.repair), diagnosis.change, diagnosis.weights, head
    )


def checkpoint_facts(manifest: CheckpointManifest) -> CheckpointFacts:
    """Builds the part of a report that describes the checkpoint."""
    from headscope.core.checkpoints.score_heads import score_heads_of

    config = manifest.config
    architectures = config.get("architectures")
    model_type = config.get("model_type")
    return CheckpointFacts(
        reference=manifest.reference,
        kind=manifest.kind,
        revision=manifest.revision,
        commit=manifest.commit,
        format=manifest.format,
        files=tuple(file.name for file in manifest.files),
        tensors=len(manifest.tensors),
        bytes_read=manifest.bytes_read,
        bytes_total=manifest.bytes_total,
        requests=manifest.requests,
        architectures=tuple(str(name) for name in architectures) if isinstance(architectures, list) else (),
        model_type=model_type if isinstance(model_type, str) else None,
        notices=manifest.notices,
        sentence_transformers=manifest.sentence,
        score_heads=score_heads_of(manifest.tensors, config),
        decision=manifest.decision,
        unread=manifest.unread,
    )


def with_saved_class(model: ModelFacts, manifest: CheckpointManifest) -> ModelFacts:
    """Adds the class that the checkpoint names, if the model was built from another one."""
    from headscope.core.model.classes.catalog import saved_class_of

    name, is_own = saved_class_of(manifest.config, model.class_name)
    return replace(model, saved_class=name, is_saved_by_own_code=is_own)


def _model_facts(choice: Choice, loaded: Loaded, trace: HeadTrace | None, head: Head | None) -> ModelFacts:
    from headscope.core.model.classes.labels import are_placeholders, labels_in
    from headscope.core.model.tokenizers import padding_side_of

    is_embedding = choice.chain is not None and not choice.chain.score_count
    labels = () if is_embedding else labels_in(choice.config)
    loss = trace.loss if trace else ""
    # headscope composes these models from a base model and a head, so there is no forward that computes a loss.
    loss = Loss.NONE.value if trace and choice.is_composed else loss
    return ModelFacts(
        class_name=choice.cls.__name__,
        task=choice.task,
        num_labels=len(labels),
        labels=labels,
        labels_are_placeholders=are_placeholders(labels),
        **problem_type_of(choice.config.problem_type, trace, len(labels)),
        loss=loss or Loss.NOT_DETERMINED.value,
        activation=_activation_of_choice(choice, loss) if trace else Activation.NOT_DETERMINED.value,
        parameters=parameter_counts(
            sum(item.numel() for item in loaded.model.parameters()), head, loaded.diff.parameters
        ),
        dtype=str(loaded.model.dtype).removeprefix("torch."),
        quantization=_quantization_of_head(loaded, head),
        padding_side=padding_side_of(str(choice.config.model_type)) if choice.task in TEXT_TASKS else "",
        reads_problem_type=trace.reads_problem_type if trace else None,
    )


def _activation_of_choice(choice: Choice, loss: str) -> str:
    """Names what turns the scores into probabilities: for two tokens of a language model, a softmax."""
    if choice.chain is not None:
        return activation_of_chain(choice.chain)
    if choice.head is not None:
        return Activation.NONE.value
    if not choice.rows:
        return activation_for(loss)
    return (Activation.SOFTMAX if len(choice.rows) > 1 else Activation.NONE).value


def activation_of_chain(chain: SentencePipeline) -> str:
    """Names what sentence-transformers applies to the scores of a chain: by default a sigmoid to a single score."""
    name = chain.activation or ("Sigmoid" if chain.score_count == 1 else "Identity")
    return Activation.NONE.value if name == "Identity" or not chain.score_count else name.lower()


def problem_type_of(stated: Any, trace: HeadTrace | None, count: int) -> dict[str, Any]:
    """Gives the problem type of a model, and whether the configuration states it or its forward implies it.

    A stated one that is not a text is shown as JSON: no class of Transformers computes a loss for it.
    """
    stated = stated if isinstance(stated, str | None) else json.dumps(stated, default=str)
    is_chosen = trace is not None and trace.reads_problem_type and trace.loss == Loss.SQUARED_ERROR and count == 1
    implied = "regression" if is_chosen else None
    return {"problem_type": stated or implied, "problem_type_implied": not stated and implied is not None}


def _quantization_of_head(loaded: Loaded, head: Head | None) -> Quantization | None:
    from headscope.core.model.loading.quantized import quantization_facts

    if not loaded.quantization:
        return None
    live = {item.name for item in head.parameters if item.live} if head else set()
    return quantization_facts(loaded.quantization, [item for item in loaded.diff.parameters if item.name in live])


def parameter_counts(
    total: int, head: Head | None, parameters: Iterable[ParameterOrigin], others: int = 0
) -> ParameterCounts:
    """Counts `total` parameters by where they are; `others` are those of other heads.

    Without a head, its parameters are those beside the base model.
    """
    outside = (item.count for item in parameters if not (item.in_base or item.is_buffer))
    own = sum(item.count for item in head.parameters) if head else sum(outside)
    live = sum(item.count for item in head.parameters if item.live) if head else 0
    return ParameterCounts(total, total - own - others, own, live, others)


def join_head(trace: HeadTrace, diff: WeightDiff) -> Head:
    """Builds the head from a trace, with the status of each of its parameters and buffers."""
    origins = {origin.name: origin for origin in diff.parameters}
    mismatches = {item.parameter: item for item in diff.mismatched}
    live = set(trace.live)

    def parameter(name: str) -> HeadParameter:
        origin, mismatch = origins[name], mismatches.get(name)
        return HeadParameter(
            name=name,
            shape=origin.shape,
            dtype=origin.dtype,
            count=origin.count,
            status=origin.status,
            live=name in live,
            checkpoint_keys=origin.checkpoint_keys or ((name,) if mismatch else ()),
            checkpoint_shape=mismatch.checkpoint_shape if mismatch else None,
            adapter=origin.adapter,
            quantized=origin.quantized,
            kind=TensorKind.BUFFER if origin.is_buffer else TensorKind.PARAMETER,
        )

    return Head(
        modules=trace.modules,
        pooling=trace.pooling,
        stages=trace.stages,
        parameters=tuple(parameter(name) for name in trace.parameters if name in origins),
        formula=trace.formula,
        features=trace.features,
        hidden_shape=trace.hidden_shape,
        verification=trace.verification,
        not_live=tuple(name for name in origins if name not in live),
        unused_modules=trace.unused_modules,
        buffers=tuple(parameter(name) for name in trace.buffers if name in origins),
        token_rows=trace.token_rows,
        virtual_tokens=trace.virtual_tokens,
    )
