"""Verdict in one sentence: which weights of this model did the checkpoint not give?"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import RenderableType

from headscope.core.facts import (
    AdapterFaultKind,
    Carried,
    CheckpointKind,
    GapTopic,
    Head,
    HeadParameter,
    ParameterStatus,
    Report,
    TensorKind,
)
from headscope.core.facts.counting import counted, few_of
from headscope.core.facts.report import LoadVerdict, find_missing, find_without_place
from headscope.core.facts.stored.adapter import describe_fault
from headscope.core.facts.stored.unplaced import describe_unplaced
from headscope.core.facts.stored.weights import GIVEN_AT_LOAD
from headscope.core.words.console import TONE, Tone
from headscope.core.words.fold import few_keys, fold_keys
from headscope.core.words.lines import Paragraph
from headscope.core.words.safe import label
from headscope.core.words.words import size_of

_TONES = {
    LoadVerdict.COMPLETE: Tone.GOOD,
    LoadVerdict.INCOMPLETE: Tone.WARNING,
    LoadVerdict.NOT_DETERMINED: Tone.WARNING,
    LoadVerdict.NOT_COMPARED: Tone.NOTE,
    LoadVerdict.BROKEN: Tone.ERROR,
}


@dataclass(frozen=True, slots=True)
class HeadVerdict:
    """A sentence and its tone."""

    tone: Tone
    sentence: str


def is_missing_weights(report: Report) -> bool:
    """True if a weight that the logits depend on is new, any is mismatched or has no place, or the adapter is broken.

    This is what `--exit-code` reports.
    """
    missing, is_broken = find_missing(report), report.adapter is not None and report.adapter.is_broken
    lacks = missing.head or missing.elsewhere or report.weights.mismatched or find_without_place(report)
    return bool(lacks) or is_broken


def tell_verdict(report: Report) -> HeadVerdict:
    """Gives the verdict on the head and the base model; if no head is known, on all parameters together."""
    if report.head is None:
        return _tell_whole_verdict(report)
    if not report.is_compared:
        return _verdict_without_weights(report, report.head)
    missing = find_missing(report)
    reported = {*missing.head, *missing.elsewhere}
    beside = [item.parameter for item in report.weights.mismatched if item.parameter not in reported]
    clauses = [
        _head_clause(report.head) + _adapter_share(report.head),
        *_adapter_clauses(report),
        _base_clause(report, report.head),
        # Loading these raises an error all the same.
        *([f"unused by the logits, but of another shape: {few_keys(beside)}"] if beside else []),
        *unplaced_clauses(report),
        *_gap_clauses(report),
    ]
    return HeadVerdict(_TONES[report.verdict], "; ".join(clauses))


def _adapter_share(head: Head) -> str:
    """Says how many of the head's tensors a PEFT adapter saves in full."""
    live = _live_tensors(head)
    given = [item for item in live if item.adapter is Carried.SAVED]
    if not given:
        return ""
    return f", {'all' if len(given) == len(live) else f'{len(given):,} of them'} from the adapter"


def _adapter_clauses(report: Report) -> list[str]:
    """Says what a PEFT adapter leaves out."""
    if report.adapter is None:
        return []
    clauses: list[str] = []
    faults = report.adapter.faults
    if faults:
        # The kinds are declared in the order of what they lead to: first those for which PEFT raises an error.
        worst = min(faults, key=lambda item: list(AdapterFaultKind).index(item.kind))
        more = f" (and {len(faults) - 1:,} more)" if len(faults) > 1 else ""
        clauses.append(f"adapter: {describe_fault(worst)}{more}")
    if report.adapter.promised:
        clauses.append(f"PEFT cannot load the adapter, which lacks {few_keys(report.adapter.promised)}")
    if report.adapter.not_carried:
        own = report.adapter.own_model
        clauses.append(f"the adapter is one of {own}" if own else "the adapter doesn't contain the new weights")
    return clauses


def _verdict_without_weights(report: Report, head: Head) -> HeadVerdict:
    extent = _extent_words(_live_tensors(head))
    if report.checkpoint.kind is CheckpointKind.CLASS:
        found = f"Head of {report.model.class_name} in its default configuration: {extent}"
        clauses = [found, "no checkpoint was read", *_gap_clauses(report)]
        return HeadVerdict(Tone.WARNING if report.not_determined else Tone.NOTE, "; ".join(clauses))
    if report.checkpoint.kind is CheckpointKind.MEMORY:
        if any(gap.topic == GapTopic.CHECKPOINT for gap in report.not_determined):
            return HeadVerdict(Tone.WARNING, f"Not determined: what the checkpoint gave the head ({extent})")
        found = (
            f"Head of a model in memory: {extent}" if _live_tensors(head) else "No head found in the model in memory"
        )
        clauses = [found, "no checkpoint to compare it with", *_gap_clauses(report)]
        return HeadVerdict(Tone.WARNING if report.not_determined else Tone.NOTE, "; ".join(clauses))
    return HeadVerdict(Tone.ERROR, f"Not determined: no weights could be read (head: {extent})")


def verdict_screen(report: Report) -> RenderableType:
    """Renders the verdict on `report` as one paragraph."""
    verdict = tell_verdict(report)
    return Paragraph(label(verdict.sentence, TONE[verdict.tone]))


def _tell_whole_verdict(report: Report) -> HeadVerdict:
    diff = report.weights
    missing = (*diff.new, *(item.parameter for item in diff.mismatched))
    total = diff.loaded + len(diff.tied) + len(missing)
    clauses = [f"{len(missing):,} of {counted(total, 'tensor')} newly initialized: {few_keys(missing)}"]
    unknown = report.unknown
    if not missing and not unknown:
        tied = f", {len(diff.tied):,} tied to {'it' if diff.loaded == 1 else 'them'}" if diff.tied else ""
        given = tuple(item.name for item in diff.parameters if item.adapter is Carried.SAVED)
        by = f" or the adapter, which gives {few_keys(given)}" if given else ""
        every = f"{'' if diff.loaded == 1 else 'all '}{counted(diff.loaded, 'tensor')}"
        clauses = [f"Fully loaded: {every} loaded from the checkpoint{by}{tied}"]
    if unknown:
        clauses = [
            f"Not determined for {counted(len(unknown), 'tensor')}: {few_keys(unknown)}",
            *(clauses if missing else ()),
        ]
    if diff.mismatched:
        clauses.append(f"{len(diff.mismatched):,} of them because of shape mismatch")
    clauses += [f"{counted(len(diff.unused), 'checkpoint tensor')} unused", *unplaced_clauses(report)]
    return HeadVerdict(_TONES[report.verdict], "; ".join([*clauses, *_gap_clauses(report)]))


def _head_clause(head: Head) -> str:
    live = _live_tensors(head)
    changed = [parameter for parameter in live if parameter.status is ParameterStatus.CHANGED]
    lost = [parameter for parameter in live if parameter.status not in (*GIVEN_AT_LOAD, ParameterStatus.CHANGED)]
    unknown = [parameter for parameter in lost if parameter.status is ParameterStatus.UNKNOWN]
    mismatched = [parameter for parameter in lost if parameter.status is ParameterStatus.MISMATCHED]
    if not live:
        return "Head has no parameters"
    if not lost and changed:
        what = few_keys([parameter.name for parameter in changed])
        part = _part_words(changed, live)
        return f"Head changed since the load (trained, replaced or filled by an adapter): {what} ({part})"
    if not lost:
        packed = {item.quantized is not None for item in head.matrices}
        words = ", quantized" if packed == {True} else ", partly quantized" if True in packed else ""
        return f"Head fully loaded{words} ({_extent_words(live)})"
    if unknown:
        return (
            f"Head not determined: {few_keys([parameter.name for parameter in unknown])} ({_part_words(unknown, live)})"
        )
    if len(mismatched) == len(lost):
        return (
            f"Head re-initialized because of shape mismatch: {_shape_changes(mismatched)} ({_part_words(lost, live)})"
        )
    clause = f"Head newly initialized ({_extent_words(live)})"
    if len(lost) < len(live):
        # A module of which all tensors are lost is named instead of them.
        kept = {_module_of(item.name) for item in live if item not in lost}
        names = [item.name if _module_of(item.name) in kept else _module_of(item.name) for item in lost]
        clause = f"Head partly new: {few_of(fold_keys(dict.fromkeys(names)))} ({_part_words(lost, live)})"
    return f"{clause}; shape mismatch: {_shape_changes(mismatched)}" if mismatched else clause


def _module_of(name: str) -> str:
    """Gives the module of a tensor; the name itself for a tensor outside all submodules."""
    return name.rpartition(".")[0] or name


def _live_tensors(head: Head) -> list[HeadParameter]:
    """Gives the parameters and buffers that the logits depend on."""
    return [item for item in head.tensors if item.live]


def _extent_words(tensors: Sequence[HeadParameter]) -> str:
    buffers = _count_buffers(tensors)
    sentence = f", {_some_of(buffers, len(tensors))}" if buffers else ""
    return f"{counted(len(tensors), 'tensor')}{sentence}, {counted(_count_parameters(tensors), 'parameter')}"


def _some_of(buffers: int, tensors: int) -> str:
    if buffers == tensors:
        return "a buffer" if buffers == 1 else "all of them buffers"
    return "one of them a buffer" if buffers == 1 else f"{buffers:,} of them buffers"


def _count_buffers(tensors: Sequence[HeadParameter]) -> int:
    return sum(item.kind is TensorKind.BUFFER for item in tensors)


def _count_parameters(tensors: Sequence[HeadParameter]) -> int:
    """Counts the elements of the parameters; a buffer is not trained, and no tool counts it as a parameter."""
    return sum(item.count for item in tensors if item.kind is TensorKind.PARAMETER)


def _part_words(some: Sequence[HeadParameter], every: Sequence[HeadParameter]) -> str:
    if len(some) == len(every):
        return _extent_words(every)
    buffers = _count_buffers(some)
    parameters = f"{_count_parameters(some):,} of {counted(_count_parameters(every), 'parameter')}"
    if not buffers:
        return parameters
    part = f"{len(some):,} of {counted(len(every), 'tensor')}, {_some_of(buffers, len(some))}"
    return part if buffers == len(some) else f"{part}, {parameters}"


def _shape_changes(mismatched: Sequence[HeadParameter]) -> str:
    changes = []
    for item in mismatched:
        shape = item.checkpoint_shape
        stored = "?" if shape is None else "empty" if 0 in shape else size_of(shape)
        changes.append(f"{item.name} {stored} -> {size_of(item.shape)}")
    return few_of(changes)


def _base_clause(report: Report, head: Head) -> str:
    missing = find_missing(report).elsewhere
    own = {item.name for item in head.tensors}
    unknown = [name for name in report.unknown if name not in own]
    if unknown:
        return f"base model not determined: {counted(len(unknown), 'tensor')} not seen: {few_keys(unknown)}"
    changed = [item.name for item in report.weights.parameters if item.status is ParameterStatus.CHANGED]
    outside = [name for name in changed if name not in own]
    if not missing and outside:
        return f"base model differs from the checkpoint in {counted(len(outside), 'tensor')}"
    if not missing:
        return "base model loaded"
    base = [item for item in report.weights.parameters if item.in_base and item.name not in own]
    extent = f"{len(missing):,} of {counted(len(base), 'tensor')}" if base else counted(len(missing), "tensor")
    return f"base model incomplete: {extent} newly initialized: {few_keys(missing)}"


def unplaced_clauses(report: Report) -> list[str]:
    """Names the checkpoint tensors without a place, and the saved class if Transformers doesn't have it."""
    found, model = find_without_place(report), report.model
    count = sum(len(item.tensors) for item in found)
    places = f"{counted(count, 'checkpoint tensor')} without a place: {describe_unplaced(found)}"
    own = f"saved as {model.saved_class}, a class that Transformers doesn't have"
    return ([places] if found else []) + ([own] if model.is_saved_by_own_code else [])


def _gap_clauses(report: Report) -> list[str]:
    if not report.not_determined:
        return []
    return [f"not determined: {few_of(dict.fromkeys(gap.topic for gap in report.not_determined))}"]
