"""`compare`: heads side by side, where they differ, and whether their stored values are the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Unpack

from headscope.checks.findings import with_findings
from headscope.core.facts import (
    Carried,
    CheckpointKind,
    Head,
    HeadParameter,
    ParameterStatus,
    PoolingKind,
    Report,
    Stage,
    TensorHeader,
)
from headscope.core.facts.counting import counted
from headscope.core.facts.environment import tool_version
from headscope.core.facts.export import HeadBasis, Inventoried, WeightInventory
from headscope.core.facts.heads.tasks import WITHOUT_CLASSES
from headscope.core.source.checkpoint import Checkpoint, examine
from headscope.core.source.memory.memory import Memory, Structures
from headscope.core.source.request import Progress, Request
from headscope.core.source.storage.cache import open_cache
from headscope.core.source.stored_tensors import StoredFiles
from headscope.errors import HeadscopeError, UsageError
from headscope.shared.report.examination import shown
from headscope.shell.options.calls import use_case
from headscope.shell.shown import Shown
from headscope.shell.values import make_request, read_labels
from headscope.slices.compare.exported import compare_with_export
from headscope.slices.compare.facts import Aspect, Comparison, Difference, SameValues, role_of
from headscope.slices.compare.options import CompareOptions

_LARGEST_TENSOR = 2_000_000_000
"""Largest size of a tensor whose values are compared, in bytes of float32."""


class Compared(Shown, Comparison):
    """The result of `compare`."""

    __slots__ = ()


@use_case
def compare(
    *references: str | PathLike[str],
    progress: Progress | None = None,
    **options: Unpack[CompareOptions],
) -> Compared:
    """Compares the heads of several checkpoints, or of a checkpoint and the files it was exported to.

    Args:
        *references: Two checkpoints or more, each as for `inspect`, or a checkpoint and its GGUF or ONNX exports, which
            are compared with the first checkpoint by name and shape. The options apply to all checkpoints.
        options: See `CompareOptions`.
        progress: Called with a short sentence before each step.

    Returns:
        The reports in the given order, what differs between them, and their stages in rows.

    Raises:
        UsageError: Fewer than two checkpoints were given, or an option is unknown or has an invalid value.
        HeadscopeError: A checkpoint can't be read or examined.

    Example:
        >>> import headscope
        >>> result = headscope.compare("bert-base-uncased", "roberta-base", num_labels=3, offline=True)
        >>> [difference.what for difference in result.differences][:3]
        ['class', 'operations', 'formula']
    """
    if len(references) < 2:
        raise UsageError(f"compare needs at least two models; got {len(references)}", "name another model")
    labels = read_labels(options.get("labels"))  # once: an iterator has nothing left for the second model
    values = options.pop("values", False)
    given = options | {"labels": labels}
    requests = [make_request(reference, given) for reference in references]
    memory = Memory(open_cache(options.get("cache", False)), Structures())
    exports, checkpoints = {}, []
    for request in requests:
        found = _examine_checkpoint_or_export(request, progress, memory)
        if isinstance(found, Checkpoint):
            checkpoints.append(found)
        else:
            exports[request] = found
    _check_sources(len(checkpoints), len(exports), values=values)
    reports = tuple(shown(with_findings(item)) for item in checkpoints)
    same = tuple(_compare_values(checkpoints)) if values else ()
    return Compared(
        tool_version=tool_version(),
        command="compare",
        reports=reports,
        differences=tuple(_find_differences(reports)),
        stages=align_stages([report.head.stages if report.head else () for report in reports]),
        values=same,
        values_reason="the heads have no parameter of the same name" if values and not same else "",
        exports=tuple(
            compare_with_export(reports[0], request.reference, contents) for request, contents in exports.items()
        ),
    )


def _examine_checkpoint_or_export(
    request: Request, progress: Progress | None, memory: Memory
) -> Checkpoint | WeightInventory:
    """Examines a checkpoint, or gives the weight inventory of an export, which can't be examined."""
    try:
        return examine("compare", request, progress, memory, takes_class=True)
    except Inventoried as err:
        head = err.contents.head
        if head is not None and head.basis is not HeadBasis.CONFIG:
            return err.contents  # another library's model is not an export of a checkpoint
        raise


def _check_sources(sources: int, exports: int, *, values: bool) -> None:
    """Raises UsageError for exports without a checkpoint to compare with, or if their values were requested."""
    if exports and not sources:
        raise UsageError(
            f"{counted(exports, 'export')} and no checkpoint were given", "name the checkpoint they were exported from"
        )
    if exports and values:
        raise UsageError("values compares the values of checkpoints, not those of exports", "leave it out")


def _find_differences(reports: Sequence[Report]) -> Iterator[Difference]:
    """Gives each aspect in which the reports differ, then each weight of a head that differs."""
    for aspect, read in _ASPECTS.items():
        values = tuple(read(report) for report in reports)
        # Two texts on pooling can differ where the pooling itself doesn't.
        keys = map(_pooling_key, reports) if aspect is Aspect.POOLING else values
        if len(set(keys)) > 1:
            yield Difference(aspect.value, values, aspect)
    heads = [report.head for report in reports]
    # The order of the heads' own tensors: a dict keeps it and drops names that come again, a set would shuffle them.
    for name in dict.fromkeys(item.name for head in heads if head for item in head.tensors):
        values = tuple(_describe_parameter(head, name) for head in heads)
        if len(set(values)) > 1:
            yield Difference(f"weight of the head {name}", values)


def _head_reader(read: Callable[[Head], str]) -> Callable[[Report], str]:
    return lambda report: read(report.head) if report.head else "not determined"


def _describe_parameter(head: Head | None, name: str) -> str:
    if head is None:
        return "not determined"
    found = next((item for item in head.tensors if item.name == name), None)
    if found is None:
        return "none"
    live = "" if found.live else ", not used"
    return f"{'x'.join(map(str, found.shape))} {found.dtype} {found.status.value}{live}"


_ASPECTS: dict[Aspect, Callable[[Report], str]] = {
    Aspect.CLASS: lambda report: report.model.class_name,
    Aspect.TASK: lambda report: report.model.task.value,
    Aspect.POOLING: _head_reader(lambda head: f"{head.pooling.kind.value}: {head.pooling.rule}"),
    Aspect.OPERATIONS: _head_reader(
        lambda head: " > ".join(f"{stage.operation} {stage.detail}".strip() for stage in head.stages)
    ),
    Aspect.FORMULA: _head_reader(lambda head: head.formula),
    Aspect.CLASSES: lambda report: WITHOUT_CLASSES.get(report.model.task) or str(report.model.num_labels),
    Aspect.LABELS: lambda report: WITHOUT_CLASSES.get(report.model.task) or ", ".join(report.model.labels),
    Aspect.PROBLEM_TYPE: lambda report: report.model.problem_type or "not set",
    Aspect.LOSS: lambda report: report.model.loss,
    Aspect.ACTIVATION: lambda report: report.model.activation,
    Aspect.DTYPE: lambda report: report.model.dtype,
    Aspect.MODEL_SIZE: lambda report: f"{report.model.parameters.total:,} parameters",
    Aspect.HEAD_SIZE: lambda report: f"{report.model.parameters.head:,} parameters",
}
"""How the value of each aspect is read from a report, in the order in which differences are listed."""


def _pooling_key(report: Report) -> Hashable:
    """Gives what tells poolings apart besides their words: kinds, positions and layers; None without a head.

    The tokenizer's name for the token at a position is left out: the head reads the position, not the name.
    """
    if report.head is None:
        return None
    pooling = report.head.pooling
    parts = tuple(
        (
            part.kind,
            replace(part.positions, token="", parameter=""),
            tuple((source.text, source.layer) for source in part.sources),
        )
        for part in pooling.parts
    )
    # Without parts, or for a kind that has no name, the rule is all that describes the pooling.
    rule = pooling.rule if not parts or pooling.kind is PoolingKind.OTHER else ""
    return pooling.kind, parts, rule


def align_stages(sequences: Sequence[Sequence[Stage]]) -> tuple[tuple[Stage | None, ...], ...]:
    """Puts the stages of several heads into rows: equal roles share a row where that keeps the order of each head."""
    rows: list[list[Stage | None]] = []
    for column, stages in enumerate(sequences):
        rows = _add_column(rows, stages, column)
    return tuple(tuple(row) for row in rows)


def _add_column(rows: list[list[Stage | None]], stages: Sequence[Stage], column: int) -> list[list[Stage | None]]:
    """Adds the stages of one more head to the rows; a stage that fits no row gets a new one."""
    keys = [next(role_of(stage.operation) for stage in row if stage is not None) for row in rows]
    merged: list[list[Stage | None]] = []
    at, done = 0, 0
    # The last pair is past both ends: it moves what is left after the last common role.
    for row, stage in [
        *_common_subsequence(keys, [role_of(stage.operation) for stage in stages]),
        (len(rows), len(stages)),
    ]:
        merged += [[*other, None] for other in rows[at:row]]
        merged += [[*[None] * column, own] for own in stages[done:stage]]
        if row < len(rows):
            merged.append([*rows[row], stages[stage]])
        at, done = row + 1, stage + 1
    return merged


def _common_subsequence(first: Sequence[str], second: Sequence[str]) -> list[tuple[int, int]]:
    """Gives the index pairs of a longest common subsequence, each pair as late as it can stand."""
    # Heads are alike at their ends, so the walk back from the end takes a match as soon as it meets one.
    lengths = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for row, own in enumerate(first):
        for column, other in enumerate(second):
            diagonal = lengths[row][column] + 1 if own == other else 0
            lengths[row + 1][column + 1] = max(diagonal, lengths[row][column + 1], lengths[row + 1][column])
    pairs, row, column = [], len(first), len(second)
    while row and column:
        if first[row - 1] == second[column - 1]:
            row, column = row - 1, column - 1
            pairs.append((row, column))
        elif lengths[row - 1][column] >= lengths[row][column - 1]:
            row -= 1
        else:
            column -= 1
    return pairs[::-1]


_StoredTensor = tuple[StoredFiles, TensorHeader]
"""A stored tensor and the place that holds it."""


def _compare_values(checkpoints: Sequence[Checkpoint]) -> Iterator[SameValues]:
    """Compares the stored bytes of each parameter that all heads have."""
    heads = [item.report.head for item in checkpoints]
    if any(head is None for head in heads):
        yield SameValues("head", None, "the head path of a model is not known")
        return
    stored = [_locate_stored_head(item) for item in checkpoints]
    for name in stored[0]:
        found = [other[name] for other in stored if name in other]
        unread = next((item for item in found if isinstance(item, str)), None)
        if unread is not None and len(found) == len(stored):
            yield SameValues(name, None, unread)
        elif len(found) == len(stored):
            yield _compare_parameter(name, [item for item in found if not isinstance(item, str)])


def _compare_parameter(name: str, found: Sequence[_StoredTensor]) -> SameValues:
    """Compares one parameter of all heads; where its bytes differ, measures by how much at most."""
    try:
        first = _stored_bytes(found[0])
        changed = [item for item in found[1:] if _stored_bytes(item) != first]
        largest, scale = _largest_difference(found[0], changed) if changed else (None, None)
    except HeadscopeError as err:
        return SameValues(name, None, err.message)
    return SameValues(name, not changed, largest_difference=largest, largest_value=scale)


def _stored_bytes(stored: _StoredTensor) -> tuple[str, tuple[int, ...], bytes]:
    place, header = stored
    return header.dtype, header.shape, place.bytes_of(header)


def _largest_difference(first: _StoredTensor, others: Sequence[_StoredTensor]) -> tuple[float | None, float | None]:
    """Measures the largest difference between the first tensor and others, and the first one's largest number.

    None for both where numbers can't be subtracted or aren't finite.
    """
    from headscope.core.model.tensors.numbers import compare_numbers  # imports torch, which equal bytes don't need

    place, header = first
    count = math.prod(header.shape)
    if not count or any("float" not in item.dtype or math.prod(item.shape) != count for _, item in (first, *others)):
        return None, None
    numbers = place.whole(header)
    differences = [compare_numbers(numbers, partial(other.part, item)).largest for other, item in others]
    scale = float(numbers.double().abs().max())
    return (max(differences), scale) if all(map(math.isfinite, (*differences, scale))) else (None, None)


def _locate_stored_head(checkpoint: Checkpoint) -> dict[str, _StoredTensor | str]:
    """Finds the stored tensor of each live parameter of a head, by name, or the reason why it can't be compared."""
    report, head = checkpoint.report, checkpoint.report.head
    live = [item for item in head.tensors if item.live] if head else []
    found: dict[str, _StoredTensor | str] = {item.name: _why_unread(report, item) for item in live}
    # A parameter that several tensors make, or that an adapter changes, has no stored bytes to compare.
    readable = [
        item
        for item in live
        if item.status is ParameterStatus.LOADED
        and len(item.checkpoint_keys) == 1
        and item.adapter is not Carried.ADAPTED
    ]
    try:
        for place in checkpoint.stored_files:
            for item in readable:
                header = place.header_of(item)
                if header is None:
                    continue
                count = math.prod(header.shape)
                if place.is_pickled:
                    found[item.name] = f"{header.file} is a pickle, whose values are not compared"
                elif count > _LARGEST_TENSOR // 4:
                    found[item.name] = f"it has {count:,} numbers, too many to be compared"
                else:
                    found[item.name] = place, header
    except HeadscopeError as err:
        found |= {item.name: err.message for item in readable}
    return found


def _why_unread(report: Report, item: HeadParameter) -> str:
    """Gives the reason for a parameter that was found in no stored file."""
    if item.status is not ParameterStatus.LOADED:
        return f"{report.checkpoint.reference} does not give it ({item.status.value})"
    if item.adapter is Carried.ADAPTED:
        return f"changed by the adapter {report.checkpoint.reference}, not compared"
    if report.checkpoint.kind is CheckpointKind.SNAPSHOT:
        return f"{report.checkpoint.reference} is a snapshot, which holds no weights"
    return f"{report.checkpoint.reference} makes it from several tensors"
