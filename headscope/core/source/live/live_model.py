"""The examination of a model in memory: any module, untouched, with its own example inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from headscope.core.facts import (
    CheckpointKind,
    Gap,
    Head,
    HeadParameter,
    HeadTrace,
    ParameterStatus,
    Report,
    Task,
    WeightDiff,
)
from headscope.core.facts.built import BuiltFacts
from headscope.core.facts.counting import counted, verb
from headscope.core.facts.environment import tool_version
from headscope.core.facts.health import HeadHealth, InitialSpread
from headscope.core.source.environment import environment
from headscope.core.source.live.live_facts import (
    embeddings_of,
    facts_in_memory,
    labels_of,
    live_model_facts,
    nothing_loaded,
    task_of,
)
from headscope.core.source.live.live_tensors import is_of_transformers
from headscope.core.source.live.live_trace import trace_live_model, trace_without_run, with_live_padding
from headscope.core.source.live.module import Unwrapped, unwrap
from headscope.core.source.live.origin import (
    LoadOrigin,
    Present,
    diff_of_info,
    find_origin,
    joined,
    prefixed,
    same_numbers,
)
from headscope.core.source.reading.assembly import checkpoint_facts, join_head, with_saved_class
from headscope.core.source.reading.configuration import built_facts, with_purpose, with_tables
from headscope.core.source.reading.tracing import unless_contradicted
from headscope.core.source.request import ModuleRequest
from headscope.core.upstream.peft import plain_name

if TYPE_CHECKING:
    from torch import nn

    from headscope.core.model.tensors.held import Held
    from headscope.core.trace import HeadProgram, TracedHead


class LiveModel:
    """A model in memory: traces it, compares it and judges it on first use, and keeps the results.

    It stays untouched: mode, hooks, gradients, random state and device. Weights are compared with the checkpoint that
    it was loaded from; `is_run` is false where only they matter, and nothing is traced. With `by_shape` it is traced
    without its values, whatever code it runs.
    """

    def __init__(
        self, module: nn.Module, request: ModuleRequest | None = None, *, is_run: bool = True, by_shape: bool = False
    ) -> None:
        self._module, self.request = module, request or ModuleRequest()
        self._is_run, self._by_shape = is_run, by_shape

    @cached_property
    def unwrapped(self) -> Unwrapped:
        """Takes the model out of its wrappers. Raises UsageError or Unsupported for what can't be examined."""
        return unwrap(self._module)

    @cached_property
    def task(self) -> Task:
        """Gives the task that the caller names, or that of the model's class."""
        return task_of(self.unwrapped.origin, self.request.task)

    @cached_property
    def _traced_head(self) -> TracedHead:
        from headscope.core.upstream.torch import uncompiled

        with uncompiled(self.unwrapped.module):
            examples, output = self.request.example_inputs, self.request.output
            return trace_live_model(self.unwrapped, examples, self.task, output, by_shape=self._by_shape)

    @cached_property
    def trace(self) -> HeadTrace:
        """Traces the head, with the effect of padding if a proof is wanted. Raises Unsupported if it can't run."""
        if not self._is_run:
            return trace_without_run(self.unwrapped.module)
        trace = self._traced_head.trace
        return with_live_padding(trace, self.unwrapped, self.task) if self.request.prove else unless_contradicted(trace)

    @property
    def program(self) -> HeadProgram:
        """Gives what runs the head again."""
        return self._traced_head.program

    @cached_property
    def own_report(self) -> Report:
        """Reports what the model shows without its checkpoint: no weight has a status."""
        inner, scorer, trace = self.unwrapped.module, self.unwrapped.scorer, self.trace
        names, notes = labels_of(self.unwrapped.origin, trace, self.task, self.request.labels, scorer)
        weights = nothing_loaded(inner, trace)
        head = join_head(trace, weights)
        return Report(
            tool_version=tool_version(),
            command="inspect",
            environment=environment(),
            checkpoint=facts_in_memory(inner),
            model=live_model_facts(self.unwrapped, self.task, names, trace, diff=weights, head=head),
            weights=weights,
            head=head,
            notes=(*(scorer.notes if scorer else ()), *trace.notes, *notes),
            not_determined=trace.not_determined,
        )

    @cached_property
    def origin(self) -> LoadOrigin | Gap | None:
        """Finds the checkpoint of its load, or why none is known; None without one, and with `loading_info`."""
        wanted = self.request
        if wanted.loading_info is not None:
            return None
        return find_origin(self.unwrapped, self.task, loaded_from=wanted.loaded_from, offline=wanted.offline)

    @cached_property
    def report(self) -> Report:
        """Adds the status of each weight, where the checkpoint is known, to `own_report`. Raises UsageError."""
        own = self.own_report  # refuses a model that can't be traced before its checkpoint is read
        if self.request.loading_info is not None:
            return _with_load_of_info(self, self.request.loading_info)
        if isinstance(self.origin, LoadOrigin):
            return _with_load_of_origin(self, self.origin)
        gaps = () if self.origin is None else (self.origin,)
        return replace(own, not_determined=(*own.not_determined, *gaps))

    @property
    def config(self) -> dict[str, Any]:
        """Gives the model's own configuration as plain values; {} for a module without one."""
        written = getattr(getattr(self.unwrapped.origin, "config", None), "to_dict", None)
        return dict(written()) if callable(written) else {}

    @cached_property
    def built(self) -> BuiltFacts:
        """Reads the model's own configuration; only the purpose is read from the checkpoint.

        A library that makes scores itself decides what a checkpoint is for.
        """
        inner = self.unwrapped.origin
        built = with_tables(built_facts(getattr(inner, "config", None)), inner)
        if self.unwrapped.scorer is not None or not isinstance(self.origin, LoadOrigin):
            return built
        return with_purpose(built, self.origin.checkpoint.manifest)

    @cached_property
    def held_parameters(self) -> Held:
        """Reads what the parameters show of their origin.

        A whole copy of a sharded model has no numbers, and the loader's marks are on other tensors.
        """
        from headscope.core.model.tensors.held import held_by

        held = held_by(self.unwrapped.module)
        return replace(held, empty=frozenset(), marked=frozenset()) if self.unwrapped.is_sharded else held

    @cached_property
    def resizable(self) -> frozenset[str]:
        """Names the embeddings, whose rows may have been added after the load."""
        return embeddings_of(self.unwrapped.module, self.unwrapped.origin)

    @property
    def resized(self) -> tuple[str, ...]:
        """Names the embeddings whose number of rows differs from the checkpoint's."""
        numbered = {
            name for name, item in self.unwrapped.module.named_parameters(remove_duplicate=False) if not item.is_meta
        }
        unknown = (item.name for item in self.report.weights.parameters if item.status is ParameterStatus.UNKNOWN)
        return tuple(name for name in unknown if plain_name(name) in self.resizable and name in numbered)

    @property
    def health(self) -> HeadHealth:
        """Judges whether the classifier's numbers were ever trained."""
        from headscope.core.facts.heads.head import classifier_weight
        from headscope.core.source.health.judging import not_determined
        from headscope.core.source.health.reading import health_of_module

        if self.unwrapped.is_sharded:
            return not_determined("", "the parameters are sharded: no process holds all their values")
        weight = classifier_weight(self.report.head) if self.report.head else None
        return health_of_module(self.unwrapped.module, self.report, _spread_of_fresh_classifier(self, weight))


def _spread_of_fresh_classifier(live_model: LiveModel, weight: HeadParameter | None) -> InitialSpread | None:
    """Measures what the class gives a fresh classifier, if the classifier is that of the class."""
    from headscope.core.model.tensors.initialization import initial_spread

    origin, prefix = live_model.unwrapped.origin, live_model.unwrapped.prefix
    if weight is None or not weight.name.startswith(prefix):
        return None
    stated = built_facts(getattr(origin, "config", None)).initializer_range
    return initial_spread(origin, plain_name(weight.name.removeprefix(prefix)), stated)


def _with_load_of_info(live_model: LiveModel, info: Mapping[str, Any]) -> Report:
    """Adds the statuses that `from_pretrained` reported and the marks that it left. Raises UsageError."""
    from headscope.core.model.classes.unexpected_keys import describe_unused

    own, held, prefix = live_model.own_report, live_model.held_parameters, live_model.unwrapped.prefix
    # Those of the part that `from_pretrained` may have loaded, under the names that they have there.
    parameters = [
        replace(item, name=item.name.removeprefix(prefix))
        for item in own.weights.parameters
        if item.name.startswith(prefix) and item.name not in held.of_adapter
    ]
    given = diff_of_info(parameters, info)
    origin: Any = live_model.unwrapped.origin
    given = replace(given, unused_groups=describe_unused(origin, given.unused) if is_of_transformers(origin) else ())
    present = Present(held, {}, frozenset(), marks_count=True, prefix=prefix)
    weights = joined(own.weights, prefixed(given, prefix), present)
    notes = (*_notes_on_gaps(live_model, weights, frozenset()), *own.notes)
    return replace(own, weights=weights, head=join_head(live_model.trace, weights), notes=notes)


def _with_load_of_origin(live_model: LiveModel, origin: LoadOrigin) -> Report:
    """Compares the model with the checkpoint that it was loaded from, number by number where that is cheap.

    The counts of parameters stay those of the model.
    """
    own, manifest = live_model.own_report, origin.checkpoint.manifest
    module, prefix, resized = live_model.unwrapped.module, live_model.unwrapped.prefix, live_model.resizable
    same = same_numbers(module, origin, frozenset(live_model.trace.parameters))
    present = Present(live_model.held_parameters, same, resized, marks_count=not origin.was_named, prefix=prefix)
    weights = joined(own.weights, origin.given, present)
    head = join_head(live_model.trace, weights)
    sentence = f"compared with {manifest.reference}, which the model was loaded from"
    if not _are_compared(head, weights, same):
        sentence += ": the statuses describe that load, not the current values"
    raised = ("shapes differ: the load did not take these tensors from the checkpoint",)
    return replace(
        own,
        checkpoint=replace(checkpoint_facts(manifest), kind=CheckpointKind.MEMORY),
        model=with_saved_class(own.model, manifest),
        weights=weights,
        head=head,
        notes=(
            sentence,
            *(raised if weights.mismatched else ()),
            *_notes_on_gaps(live_model, weights, resized),
            *origin.notes,
            *own.notes,
        ),
        not_determined=(*manifest.gaps, *own.not_determined),
        adapter=origin.adapter,
    )


def _are_compared(head: Head, weights: WeightDiff, same: Mapping[str, bool]) -> bool:
    """True if each live parameter of a head that a load gave was compared with its stored values."""
    return all(
        item.name in same
        for item in (head.parameters or weights.parameters)
        if item.status in (ParameterStatus.LOADED, ParameterStatus.CHANGED)
        if not isinstance(item, HeadParameter) or item.live
    )


def _notes_on_gaps(live_model: LiveModel, weights: WeightDiff, resized: frozenset[str]) -> Iterator[str]:
    """Explains why the status of parameters is open."""
    unknown = [item.name for item in weights.parameters if item.status is ParameterStatus.UNKNOWN]
    empty = [name for name in unknown if name in live_model.held_parameters.empty]
    prefix, is_sharded = live_model.unwrapped.prefix, live_model.unwrapped.is_sharded
    beside = [name for name in unknown if not name.startswith(prefix) and name not in empty]
    rows = [name for name in unknown if plain_name(name) in resized and name not in (*empty, *beside)]
    rows = [] if is_sharded else rows
    other = [name for name in unknown if name not in (*empty, *rows, *beside)]
    if empty:
        yield f"{counted(len(empty), 'parameter')} {verb(len(empty))} on the meta device, without values"
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
