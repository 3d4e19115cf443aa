"""The examination of a model in memory: any module, untouched, with its own example inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headscope.errors import UsageError
from headscope.examination.base.assembly import checkpoint_facts, join_head, with_saved_class
from headscope.examination.base.configuration import built_facts, with_purpose, with_tables
from headscope.examination.base.environment import environment
from headscope.examination.base.request import ModuleRequest
from headscope.examination.base.tracing import unless_contradicted, with_padding
from headscope.examination.checkpoint.findings import findings_of, likely_profile
from headscope.examination.memory.compiled import uncompiled
from headscope.examination.memory.live_facts import (
    embeddings_of,
    facts_in_memory,
    labels_of,
    live_model_facts,
    nothing_loaded,
    task_of,
)
from headscope.examination.memory.live_tensors import is_of_transformers
from headscope.examination.memory.module import Unwrapped, unwrap
from headscope.examination.memory.origin import LoadOrigin, Present, diff_of_info, find_origin, joined, prefixed
from headscope.facts import (
    CheckpointKind,
    HeadParameter,
    HeadTrace,
    PaddingEffect,
    ParameterOrigin,
    ParameterStatus,
    Pooling,
    PoolingKind,
    Report,
    Task,
    WeightDiff,
)
from headscope.facts.counting import counted, verb
from headscope.facts.results.check import BuiltFacts
from headscope.facts.results.environment import tool_version
from headscope.facts.results.health import HeadHealth, InitialSpread
from headscope.upstream.peft import plain_name

if TYPE_CHECKING:
    from torch import nn

    from headscope.examination.memory.scorers import Scorer
    from headscope.model.tensors.held import Held
    from headscope.trace import HeadProgram, TokenNames, TracedHead


@dataclass(frozen=True, slots=True)
class LiveModel:
    """Facts on a model in memory without its checkpoint. `alone` has no statuses, `program` runs the head again."""

    unwrapped: Unwrapped
    task: Task
    trace: HeadTrace
    alone: Report
    program: HeadProgram | None = None


def inspect_module(module: nn.Module, module_request: ModuleRequest) -> Report:
    """Examines `module` as it is: mode, hooks, gradients, random state and device stay untouched.

    `example_inputs` is what its `forward` takes (a mapping, a tensor, or several in order); a model of Transformers
    needs none. `output` names the scores to examine where the forward returns several. Weights are compared with the
    checkpoint that the model was loaded from, as in `check`. With `health`, the numbers of the classifier are judged
    too. Raises Unsupported if the forward fails or gives no scores.
    """
    live_model = see(module, module_request)
    report, origin = _compare_with_origin(live_model, module_request)
    if module_request.loading_info is not None or origin is not None:
        profile = likely_profile(report)
        found = findings_of(report, profile, config_of_module(live_model), live_facts(live_model, origin))
        report = replace(report, findings=found, profile=profile)
    return replace(report, health=live_health(live_model, report)) if module_request.health else report


def live_health(live_model: LiveModel, report: Report) -> HeadHealth:
    """Judges the numbers of the classifier in memory."""
    from headscope.examination.evidence.health import health_of_module
    from headscope.facts.heads.head import classifier_weight

    if live_model.unwrapped.is_sharded:
        from headscope.checks.health import not_determined

        return not_determined("", "the parameters are sharded: no process holds their whole numbers")
    weight = classifier_weight(report.head) if report.head else None
    return health_of_module(live_model.unwrapped.module, report, _spread_of_fresh_classifier(live_model, weight))


def _spread_of_fresh_classifier(live_model: LiveModel, weight: HeadParameter | None) -> InitialSpread | None:
    """Measures what the class gives a fresh classifier, if the classifier is that of the class."""
    from headscope.model.tensors.initialization import initial_spread

    origin, prefix = live_model.unwrapped.origin, live_model.unwrapped.prefix
    if weight is None or not weight.name.startswith(prefix):
        return None
    stated = built_facts(getattr(origin, "config", None)).initializer_range
    return initial_spread(origin, plain_name(weight.name.removeprefix(prefix)), stated)


def _compare_with_origin(live_model: LiveModel, module_request: ModuleRequest) -> tuple[Report, LoadOrigin | None]:
    """Adds the statuses of the weights to the report, if a checkpoint is known, and gives that checkpoint."""
    if module_request.loading_info is not None:
        return with_info(live_model, module_request.loading_info), None
    origin = find_origin(
        live_model.unwrapped, live_model.task, loaded_from=module_request.loaded_from, offline=module_request.offline
    )
    if isinstance(origin, LoadOrigin):
        return with_origin(live_model, origin), origin
    gaps = () if origin is None else (origin,)
    return replace(live_model.alone, not_determined=(*live_model.alone.not_determined, *gaps)), None


def diff_module(module: nn.Module, module_request: ModuleRequest) -> Report:
    """Compares the weights of `module` with the checkpoint that it was loaded from. Does not run it."""
    unwrapped = unwrap(module)
    found = task_of(unwrapped.origin, module_request.task)
    report, _ = _compare_with_origin(
        _build_live_model(unwrapped, found, _trace_without_run(unwrapped.module), module_request.labels), module_request
    )
    return replace(report, command="diff-weights", head=None)


def _trace_without_run(module: nn.Module) -> HeadTrace:
    """Describes a head without a run of the model: only where its base model lies."""
    from headscope.trace.record.base import ModelNames, base_module

    base = base_module(module)
    name = "" if base is None else ModelNames(module).modules.get(id(base), "")
    return HeadTrace((), Pooling(PoolingKind.OTHER, (), "", ()), (), "", (), (), name, ())


def see(module: nn.Module, module_request: ModuleRequest | None = None) -> LiveModel:
    """Examines `module` without a checkpoint; see `inspect_module`. With `prove`, padding is measured too."""
    module_request = module_request or ModuleRequest()
    unwrapped = unwrap(module)
    inner, found = unwrapped.module, task_of(unwrapped.origin, module_request.task)
    with uncompiled(inner):
        traced = _trace_live_model(unwrapped, module_request.example_inputs, found, module_request.output)
    trace = traced.trace
    trace = _with_padding(trace, unwrapped, found) if module_request.prove else unless_contradicted(trace)
    return replace(_build_live_model(unwrapped, found, trace, module_request.labels), program=traced.program)


def _build_live_model(unwrapped: Unwrapped, found: Task, trace: HeadTrace, labels: tuple[str, ...]) -> LiveModel:
    inner = unwrapped.module
    names, notes = labels_of(unwrapped.origin, trace, found, labels, unwrapped.scorer)
    diff = nothing_loaded(inner, trace)
    head = join_head(trace, diff)
    report = Report(
        tool_version=tool_version(),
        command="inspect",
        environment=environment(),
        checkpoint=facts_in_memory(inner),
        model=live_model_facts(unwrapped, found, names, trace, diff=diff, head=head),
        weights=diff,
        head=head,
        notes=(*(unwrapped.scorer.notes if unwrapped.scorer else ()), *trace.notes, *notes),
        not_determined=trace.not_determined,
    )
    return LiveModel(unwrapped, found, trace, report)


def with_info(live_model: LiveModel, info: Mapping[str, Any]) -> Report:
    """Adds the statuses that `from_pretrained` reported and the marks that it left. Raises UsageError."""
    from headscope.model.classes.unexpected_keys import describe_unused

    held, prefix = _held_parameters(live_model), live_model.unwrapped.prefix
    given = diff_of_info(
        _parameters_of_origin(live_model), info, frozenset(name.removeprefix(prefix) for name in held.of_adapter)
    )
    origin: Any = live_model.unwrapped.origin
    given = replace(given, unused_groups=describe_unused(origin, given.unused) if is_of_transformers(origin) else ())
    report = _with_load(
        live_model, prefixed(given, prefix), Present(held, {}, frozenset(), marks_count=True, prefix=prefix)
    )
    return replace(report, notes=(*_notes_on_gaps(live_model, report, held, frozenset()), *report.notes))


def _parameters_of_origin(live_model: LiveModel) -> tuple[ParameterOrigin, ...]:
    """Lists the parameters of the part that `from_pretrained` may have loaded, under the names it has there."""
    prefix = live_model.unwrapped.prefix
    return tuple(
        replace(item, name=item.name.removeprefix(prefix))
        for item in live_model.alone.weights.parameters
        if item.name.startswith(prefix)
    )


def _held_parameters(live_model: LiveModel) -> Held:
    """Reads what the parameters show of their origin.

    A whole copy of a sharded model has no numbers, and the loader's marks are on other tensors.
    """
    from headscope.model.tensors.held import held_by

    held = held_by(live_model.unwrapped.module)
    return replace(held, empty=frozenset(), marked=frozenset()) if live_model.unwrapped.is_sharded else held


def _with_load(live_model: LiveModel, given: WeightDiff, present: Present) -> Report:
    diff = joined(live_model.alone.weights, given, present)
    return replace(live_model.alone, weights=diff, head=join_head(live_model.trace, diff))


def with_origin(live_model: LiveModel, origin: LoadOrigin) -> Report:
    """Compares the model with the checkpoint that it was loaded from, number by number where that is cheap."""
    from headscope.examination.memory.stored_numbers import same_numbers

    module, prefix = live_model.unwrapped.module, live_model.unwrapped.prefix
    held, resized = _held_parameters(live_model), embeddings_of(module, live_model.unwrapped.origin)
    same = same_numbers(module, origin, frozenset(live_model.trace.parameters))
    present = Present(held, same, resized, marks_count=not origin.was_named, prefix=prefix)
    report = _with_load(live_model, origin.given, present)
    compared = report.head is not None and all(
        item.name in same
        for item in (report.head.parameters or report.weights.parameters)
        if item.status in (ParameterStatus.LOADED, ParameterStatus.CHANGED)
        if not isinstance(item, HeadParameter) or item.live
    )
    sentence = f"compared with {origin.checkpoint.manifest.reference}, which the model was loaded from"
    if not compared:
        sentence += ": the statuses describe that load, not the current values"
    mismatched = report.weights.mismatched
    raised = ("shapes differ: the load did not take these tensors from the checkpoint",)
    return replace(
        report,
        checkpoint=replace(checkpoint_facts(origin.checkpoint.manifest), kind=CheckpointKind.MEMORY),
        model=with_saved_class(report.model, origin.checkpoint.manifest),
        notes=(
            sentence,
            *(raised if mismatched else ()),
            *_notes_on_gaps(live_model, report, held, resized),
            *origin.notes,
            *report.notes,
        ),
        not_determined=(*origin.checkpoint.manifest.gaps, *report.not_determined),
        adapter=origin.adapter,
    )


def resized_in(live_model: LiveModel, report: Report) -> tuple[str, ...]:
    """Lists the embeddings whose number of rows differs from the checkpoint's."""
    module = live_model.unwrapped.module
    resized = embeddings_of(module, live_model.unwrapped.origin)
    numbered = {name for name, item in module.named_parameters(remove_duplicate=False) if not item.is_meta}
    unknown = (item.name for item in report.weights.parameters if item.status is ParameterStatus.UNKNOWN)
    return tuple(name for name in unknown if plain_name(name) in resized and name in numbered)


def _notes_on_gaps(live_model: LiveModel, report: Report, held: Held, resized: frozenset[str]) -> Iterator[str]:
    """Explains why the status of parameters is open."""
    unknown = [item.name for item in report.weights.parameters if item.status is ParameterStatus.UNKNOWN]
    empty = [name for name in unknown if name in held.empty]
    prefix, is_sharded = live_model.unwrapped.prefix, live_model.unwrapped.is_sharded
    beside = [name for name in unknown if not name.startswith(prefix) and name not in empty]
    rows = [name for name in unknown if plain_name(name) in resized and name not in (*empty, *beside)]
    rows = [] if is_sharded else rows
    other = [name for name in unknown if name not in (*empty, *rows, *beside)]
    if empty:
        yield f"{counted(len(empty), 'parameter')} {verb(len(empty))} on the meta device, without numbers"
    if rows:
        yield f"not the size that the checkpoint has, so resized or new: {', '.join(rows)}"
    if beside:
        loaded = type(live_model.unwrapped.origin).__name__
        yield (
            f"{counted(len(beside), 'parameter')} {verb(len(beside))} not part of the {loaded} that the checkpoint "
            "gave, so headscope can't tell where they come from"
        )
    if other and is_sharded:
        yield f"{counted(len(other), 'parameter')} {verb(len(other))} sharded, so not compared with the checkpoint"
    elif other:
        yield (
            f"{counted(len(other), 'parameter')} {verb(len(other), 'lacks', 'lack')} the mark of Transformers' loader, "
            "as in a copied model, and could not be compared with the checkpoint"
        )


def config_of_module(live_model: LiveModel) -> dict[str, Any]:
    """Reads the model's own configuration as plain values; {} for a module without one."""
    written = getattr(getattr(live_model.unwrapped.origin, "config", None), "to_dict", None)
    return dict(written()) if callable(written) else {}


def live_facts(live_model: LiveModel, origin: LoadOrigin | None = None) -> BuiltFacts:
    """Reads the model's own configuration; only the purpose is read from the checkpoint.

    A library that makes scores itself decides what a checkpoint is for.
    """
    inner = live_model.unwrapped.origin
    built = with_tables(built_facts(getattr(inner, "config", None)), inner)
    return (
        built
        if origin is None or live_model.unwrapped.scorer is not None
        else with_purpose(built, origin.checkpoint.manifest)
    )


def _trace_live_model(unwrapped: Unwrapped, example_inputs: Any, task: Task, output: str | None) -> TracedHead:
    """Traces the head; a model of Transformers runs on the probe that its checkpoint would be traced with."""
    from transformers import PreTrainedModel

    from headscope.model.quiet import quiet
    from headscope.trace import trace_called, trace_head

    module = unwrapped.module
    caller = unwrapped.caller
    if (example_inputs is not None and caller is None) or not isinstance(unwrapped.origin, PreTrainedModel):
        return _trace_with_examples(module, example_inputs, task, output)
    with quiet():
        if unwrapped.scorer is not None:
            return _trace_scorer(unwrapped.scorer, task, output)
        assert isinstance(module, PreTrainedModel)
        if caller is not None:
            return trace_called(caller, task, token_names(module), output=output)
        return trace_head(module, task, token_names(module), prove=True, output=output)


def _trace_scorer(scorer: Scorer, task: Task, output: str | None) -> TracedHead:
    """Traces the head of a scorer, which runs on the probe of the model of Transformers inside."""
    from headscope.trace.batch.probe_batch import build_probe
    from headscope.trace.head import read_head
    from headscope.trace.record.execution import Execution, run_forward

    sizes = frozenset(size for item in scorer.module.parameters() for size in item.shape)

    def run(subject: nn.Module, turn: int, taken: frozenset[int]) -> Execution:
        inside: Any = subject.get_submodule(scorer.path)
        probe = replace(build_probe(inside, task, taken | sizes, turn), labels={})
        return run_forward(subject, probe, hint="give example_inputs that its forward takes", output=output)

    return read_head(scorer.module, run, token_names(scorer.inside), prove=True)


def token_names(module: nn.Module) -> TokenNames:
    """Names the special tokens as the tokenizer of the model's family does."""
    from headscope.model.tokenizers import special_tokens_of
    from headscope.trace import TokenNames

    tokens = special_tokens_of(str(getattr(getattr(module, "config", None), "model_type", "")))
    return TokenNames(tokens.first, tokens.eos)


def _with_padding(trace: HeadTrace, unwrapped: Unwrapped, task: Task) -> HeadTrace:
    from transformers import PreTrainedModel

    from headscope.model.classes.model_request import Choice
    from headscope.model.tensors.held import has_own_modules

    module, caller = unwrapped.module, unwrapped.caller
    if not isinstance(module, PreTrainedModel):
        return trace
    settings = {} if caller is None else caller.settings
    measured = with_padding(trace, Choice(type(module), task, deepcopy(module.config), adapter=settings))
    # Measured on a fresh model of the class. A module that was put into this one afterwards may treat padding
    # differently.
    if measured.verification is None or not measured.verification.padding or has_own_modules(module):
        return measured
    gap = PaddingEffect("any", None, reason=f"some modules are not those of {type(module).__name__}")
    return replace(measured, verification=replace(measured.verification, padding=(gap,)))


def _trace_with_examples(module: nn.Module, example_inputs: Any, task: Task, output: str | None) -> TracedHead:
    from headscope.trace.batch.examples import probe_from_examples
    from headscope.trace.head import read_head
    from headscope.trace.record.execution import Execution, run_forward

    if example_inputs is None:
        name = type(module).__name__
        raise UsageError(
            f"{name} is not a model of Transformers, so headscope doesn't know its inputs", "give example_inputs"
        )

    def run(subject: nn.Module, turn: int, taken: frozenset[int]) -> Execution:
        probe = probe_from_examples(subject, example_inputs, taken, turn)
        return run_forward(subject, probe, hint="give example_inputs that its forward takes", output=output)

    return read_head(module, run, token_names(module), prove=True)
