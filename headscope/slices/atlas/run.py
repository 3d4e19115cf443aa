"""`heads`, the atlas: every classification class of the installed Transformers traced, in several processes."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Unpack

from headscope.core.facts import PoolingKind, Task
from headscope.core.facts.counting import few_of
from headscope.core.facts.environment import package_version
from headscope.core.facts.heads.atlas import AtlasHead, AtlasParameter, HeadEntry
from headscope.core.facts.heads.head import parse_pooling
from headscope.core.facts.heads.tasks import parse_task
from headscope.core.facts.plain import restore
from headscope.core.facts.stored.checkpoint import Shapes
from headscope.core.source.request import Progress
from headscope.core.source.storage.cache import open_cache
from headscope.core.source.storage.shipped import SOURCES, are_same_sources, shipped, shipped_atlas
from headscope.core.upstream.imports import fault_of_import
from headscope.errors import UsageError, did_you_mean
from headscope.shell.options.calls import use_case
from headscope.shell.shown import Shown
from headscope.slices.atlas.options import HeadsOptions

if TYPE_CHECKING:
    from headscope.core.facts import HeadTrace
    from headscope.core.trace import TokenNames

# What a worker takes at a time: enough to outweigh handing it over, and few enough that all are busy to the end. Fewer
# classes than that are traced here, as a worker needs seconds to import Transformers.
_BATCH = 6
_WILDCARDS = frozenset("*?[")
_LARGEST_REDUCED = 400_000_000
"""Largest number of parameters of a reduced model with real weights."""


class Heads(Shown, tuple[HeadEntry, ...]):
    """The result of `heads`: the entries, in order."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class _Target:
    """A class by name, with the model type and task that map to it."""

    name: str
    model_type: str
    task: Task


@use_case
def heads(pattern: str = "", *, progress: Progress | None = None, **options: Unpack[HeadsOptions]) -> Heads:
    """Traces the heads of the installed Transformers, without checkpoints.

    Each class is built at its default configuration, with few layers: heads don't depend on the depth. A class whose
    own name is `pattern` comes first.

    Args:
        pattern: Part of a class name or model type, or a whole one with wildcards (`Luke*`), in any case (default: all
            classes).
        options: See `HeadsOptions`.
        progress: Called with a short sentence before each step.

    Returns:
        The entries, sorted by task and class name. A class that can't be traced is an entry with `head` None and a
        `reason`.

    Raises:
        UsageError: No class matches, or there is no such task, pooling or operation.

    Example:
        >>> import headscope
        >>> entries = headscope.heads("squeezebert", task="sequence-classification")
        >>> entries[0].head.formula
        'logits = classifier(tanh(dense(h[CLS])))'
    """
    tell = progress or (lambda sentence: None)
    pooling, named, operation = options.get("pooling"), options.get("task"), options.get("operation")
    kind = None if pooling is None else parse_pooling(pooling)
    task = None if named is None else parse_task(named)
    known = _KnownClasses(shipped_atlas() if options.get("cache") and open_cache(wanted=True).is_open else None, tell)
    if operation is not None and operation not in known.operations:
        _refuse_unknown_operation(operation, known.operations)
    targets = _match_targets(known, pattern, task)
    if not targets:
        if os.path.lexists(pattern):
            raise UsageError(
                f"{pattern} is a path, but heads takes part of a class name",
                f"run `headscope inspect {pattern}` for the head of a checkpoint",
            )
        where = f" for {task}" if task else ""
        raise UsageError(f"no class matches {pattern!r}{where}", _suggest_nearest(known, pattern, task))

    kept = {target: known.entry(target) for target in targets}
    unknown = [target for target, entry in kept.items() if entry is None]
    traced = _trace_all(unknown, options.get("workers") or os.cpu_count() or 1, tell) if unknown else []
    found = [*filter(None, kept.values()), *traced]
    found = [entry for entry in found if _passes_filters(entry, kind, operation)]
    order = {item: number for number, item in enumerate(Task)}
    return Heads(
        sorted(
            found,
            key=lambda entry: (order[entry.task], entry.class_name != pattern, entry.class_name, entry.model_type),
        )
    )


class _KnownClasses:
    """Classes of the installed Transformers, from the shipped atlas or from an import."""

    def __init__(self, atlas: dict[str, Any] | None, tell: Callable[[str], None]) -> None:
        self._atlas, self._tell = atlas, tell
        entries = atlas["heads"] if atlas is not None else ()
        self._trace_entries = {_Target(item["class"], item["model_type"], Task(item["task"])): item for item in entries}
        self.operations = {stage["operation"] for item in entries if item["head"] for stage in item["head"]["stages"]}

    def targets(self) -> Iterable[_Target]:
        """Gives every class, with its model type and task."""
        if self._atlas is not None:
            return self._trace_entries
        from headscope.core.model.classes.catalog import all_classes_of_task

        self._tell("importing transformers")
        return [_Target(name, kind, task) for task in Task for kind, name in all_classes_of_task(task)]

    def others(self, is_wanted: Callable[[str, str], bool]) -> list[str]:
        """Gives the wanted classes whose task headscope doesn't know, as texts with the auto classes that map them.

        `is_wanted` takes a text and the model type.
        """
        if self._atlas is not None:
            return [item for item, kind in self._atlas["others"].items() if is_wanted(item, kind)]
        from headscope.core.model.classes.catalog import every_other_class

        return list(every_other_class(is_wanted))

    def entry(self, target: _Target) -> HeadEntry | None:
        """Gives the shipped entry of a class; None if the class has to be traced."""
        if self._atlas is None:
            return None
        item, code = self._trace_entries[target], self._atlas["code"].get(target.name)
        # Of a class that could not be traced no code is known; without Transformers there is none that could differ.
        installed = package_version("transformers")
        is_same = installed in ("", shipped(SOURCES)["transformers"]) if code is None else are_same_sources(code)
        # The class could not be traced without these packages; if one is here now, it may be.
        may_be_traced = not item["traced"] and any(map(find_spec, self._atlas["absent"]))
        return restore(HeadEntry, item) if is_same and not may_be_traced else None


def _match_targets(known: _KnownClasses, pattern: str, task: Task | None) -> list[_Target]:
    return [
        target
        for target in known.targets()
        if task in (None, target.task)
        and (
            _matches_pattern(pattern.lower(), target.name.lower())
            or _matches_pattern(pattern.lower(), target.model_type.lower())
        )
    ]


def _matches_pattern(pattern: str, name: str) -> bool:
    """True if a name contains the pattern or, for a pattern with wildcards, matches it as a whole."""
    return fnmatchcase(name, pattern) if _WILDCARDS & set(pattern) else pattern in name


def _suggest_nearest(known: _KnownClasses, pattern: str, task: Task | None) -> str:
    """Makes the hint for a pattern without a match: another task, a pooling, or the nearest model types and classes."""
    if task is not None and (elsewhere := _match_targets(known, pattern, None)):
        return f"it has classes for {', '.join(dict.fromkeys(target.task.value for target in elsewhere))}"
    wanted = pattern.lower()
    pooling = "_".join(wanted.split())
    if pooling in set(PoolingKind):
        return f"headscope heads --pooling {pooling} lists the classes with this pooling"
    others = known.others(lambda item, kind: _matches_pattern(wanted, item.lower()) or wanted == kind)
    if others:
        return f"{few_of(others)}: for a task that headscope doesn't know"
    spelled = {
        name.lower(): name for target in _match_targets(known, "", task) for name in (target.name, target.model_type)
    }
    near = get_close_matches(wanted, list(spelled), n=3)
    return (
        f"did you mean {' or '.join(spelled[name] for name in near)}?"
        if near
        else "try a part of a class name, such as bert; * and ? stand for any characters"
    )


def _refuse_unknown_operation(operation: str, shown: Set[str]) -> None:
    """Raises UsageError for an operation that no head runs.

    `shown` are the operations of the heads in the shipped atlas, none without an atlas.
    """
    # This comes before any head is traced, which takes minutes.
    otherwise = "operations have PyTorch's names, such as linear, tanh or layer_norm"
    if shown:
        hint = did_you_mean(operation, shown, otherwise)
        raise UsageError(f"no head of the installed Transformers runs {operation}", hint)
    from headscope.core.trace.slice.stages import function_operations, module_operations

    functions = function_operations()
    if operation in functions or operation in module_operations():
        return
    hint = did_you_mean(operation, functions, otherwise)
    raise UsageError(f"no such operation: {operation}", hint)


def _passes_filters(entry: HeadEntry, kind: PoolingKind | None, operation: str | None) -> bool:
    if kind is None and operation is None:
        return True
    if entry.head is None:
        return False
    runs = operation is None or any(stage.operation == operation for stage in entry.head.stages)
    return runs and kind in (None, entry.head.pooling.kind)


def _trace_all(targets: list[_Target], workers: int, tell: Callable[[str], None]) -> list[HeadEntry]:
    """Traces the heads of all targets, in processes if there are many."""
    found: list[HeadEntry] = []
    if len(targets) <= _BATCH or workers == 1:
        for target in targets:
            tell(f"tracing {target.name}")
            found.append(_trace_entry(target))
        return found
    batches = [targets[at : at + _BATCH] for at in range(0, len(targets), _BATCH)]
    from headscope.core.workers import Workers, begin_worker, results

    crew = Workers(begin_worker)
    for entries in results(
        lambda batch: crew.worker().call(_trace_entries, batch), batches, min(workers, len(batches)), crew
    ):
        found += entries
        tell(f"traced {len(found)} of {len(targets)} classes")
    return found


def _trace_entries(targets: list[_Target]) -> list[HeadEntry]:
    return [_trace_entry(target) for target in targets]


def _trace_entry(target: _Target) -> HeadEntry:
    """Traces one class; a class that can't be traced becomes an entry with the reason."""
    import transformers

    try:
        cls = getattr(transformers, target.name)  # Transformers imports the module of a class on first use
    except ImportError as err:
        fault = fault_of_import(err)
        return _untraced_entry(target, fault.message if fault is not None else _first_error_line(err))
    try:
        return _traced_entry(target, cls)
    except ImportError as err:
        return _untraced_entry(target, f"an optional dependency is missing: {_first_error_line(err)}")
    except Exception as err:  # one class that cannot be built must not take the others with it
        return _untraced_entry(target, _first_error_line(err))


def _untraced_entry(target: _Target, reason: str) -> HeadEntry:
    return HeadEntry(target.name, target.task, target.model_type, traced=False, reason=reason)


def _first_error_line(err: BaseException) -> str:
    """Gives the whole sentences in the first line of an error that isn't empty, or the name of its class."""
    lines = [line.strip() for line in str(err).splitlines() if line.strip()]
    if not lines:
        return type(err).__name__
    whole, end, _ = lines[0].rpartition(". ")
    return f"{whole}." if end and len(lines) > 1 and not lines[0].endswith((".", "!")) else lines[0]


def _traced_entry(target: _Target, cls: Any) -> HeadEntry:
    from headscope.core.model.classes.pretraining_siblings import inherit
    from headscope.core.model.quiet import quiet

    with quiet():
        first = _first_trace(cls, target)
        head = _atlas_head(first.trace, first.shapes)
        pretraining_class, new = inherit(cls, first.config, first.trace.parameters)
    return HeadEntry(
        class_name=target.name,
        task=target.task,
        model_type=target.model_type,
        traced=True,
        by=first.by,
        reason=first.reason,
        pretraining_class=pretraining_class,
        new_from_pretraining=new,
        depends_on=first.trace.config_fields,
        filled=first.filled,
        head=head,
    )


@dataclass(frozen=True, slots=True)
class _FirstTrace:
    """First successful trace of a class, and its configuration.

    `filled` are the fields of the configuration that had to be set, `shapes` those of all parameters and buffers, `by`
    says how the trace was made, `reason` why not by shapes.
    """

    config: Any
    filled: tuple[str, ...]
    trace: HeadTrace
    shapes: Shapes
    by: str
    reason: str = ""


def _first_trace(cls: Any, target: _Target) -> _FirstTrace:
    """Traces the first configuration that works without weights; if none does, a reduced one with real weights."""
    from headscope.core.model.classes.defaults import default_configs
    from headscope.core.model.classes.reduced_config import shallow_twins
    from headscope.core.trace import trace_head
    from headscope.core.upstream.torch import on_meta

    failures = []
    for config, filled in default_configs(target.model_type):
        try:
            with on_meta():
                model = cls(config)
            shapes, twins = _shapes_of(model), partial(shallow_twins, model)
            traced = trace_head(model, target.task, _token_names(config), prove=True, twins=twins)
            return _FirstTrace(config, filled, traced.trace, shapes, "shapes")
        except ImportError:  # another configuration needs the same package
            raise
        except Exception as err:
            failures.append((config, filled, err))
    config, filled, failure = failures[0]
    trace = _trace_reduced(cls, config, target.task, failure)
    with on_meta():
        shapes = _shapes_of(cls(config))
    return _FirstTrace(config, filled, trace, shapes, "reduced", _first_error_line(failure))


def _shapes_of(model: Any) -> Shapes:
    # A tied parameter is listed under each of its names: a head may use any of them.
    held = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return {name: tuple(value.shape) for name, value in held}


def _trace_reduced(cls: Any, config: Any, task: Task, failure: Exception) -> HeadTrace:
    """Traces a smaller model with real weights. Raises `failure` if even that would be too large."""
    import torch

    from headscope.core.model.classes.reduced_config import reduced_config
    from headscope.core.trace import trace_head
    from headscope.core.upstream.torch import on_meta

    reduced = reduced_config(config)
    with on_meta():
        size = sum(parameter.numel() for parameter in cls(reduced).parameters())
    if size > _LARGEST_REDUCED:
        raise failure
    with torch.random.fork_rng(devices=[]):  # the new weights must not advance the caller's generator
        model = cls(reduced)
    return trace_head(model, task, _token_names(config), prove=True).trace


def _atlas_parameters(names: Iterable[str], shapes: Shapes, live: set[str]) -> tuple[AtlasParameter, ...]:
    return tuple(
        AtlasParameter(name, shapes[name], math.prod(shapes[name]), name in live) for name in names if name in shapes
    )


def _token_names(config: Any) -> TokenNames:
    from headscope.core.model.tokenizers import special_tokens_of
    from headscope.core.trace import TokenNames

    special = special_tokens_of(str(config.model_type))
    return TokenNames(special.first, special.eos)


def _atlas_head(trace: HeadTrace, shapes: Shapes) -> AtlasHead:
    live = set(trace.live)
    return AtlasHead(
        modules=trace.modules,
        pooling=trace.pooling,
        stages=trace.stages,
        parameters=_atlas_parameters(trace.parameters, shapes, live),
        buffers=_atlas_parameters(trace.buffers, shapes, live),
        formula=trace.formula,
        loss=trace.loss,
        hidden_shape=trace.hidden_shape,
        unused_modules=trace.unused_modules,
        verification=trace.verification,
    )
