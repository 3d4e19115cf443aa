"""Whether the classifier of a checkpoint or of a model in memory was trained: its values read, measured and judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from headscope.core.facts import (
    Carried,
    GapTopic,
    Head,
    HeadParameter,
    ModelFacts,
    ParameterStatus,
    PoolingKind,
    Report,
    Task,
    TensorHeader,
)
from headscope.core.facts.counting import counted
from headscope.core.facts.heads.head import classifier_weight
from headscope.core.facts.heads.tasks import WITHOUT_CLASSES, Loss
from headscope.core.facts.health import HeadHealth, HealthBasis, HealthVerdict, InitialSpread
from headscope.core.facts.stored.weights import NEW_AT_LOAD
from headscope.core.source.health.judging import judge_numbers, not_determined
from headscope.core.source.stored_tensors import StoredFiles
from headscope.errors import HeadscopeError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from headscope.core.source.checkpoint import Checkpoint

_LOCAL_BYTES = 64_000_000
_REMOTE_BYTES = 4_000_000
_SMALLEST, _LARGEST = 1e-60, 1e60
"""Their squares, and sums of those, are numbers in double precision."""
_LARGEST_SIDE = 2_048
_OPERATIONS = ("linear", "conv1d", "conv2d")


def health_of_checkpoint(checkpoint: Checkpoint) -> HeadHealth:
    """Judges the stored values of the classifier. Reads only its weight and bias, by their ranges."""
    report = checkpoint.report
    known = _without_numbers(report, is_loaded=True)
    if isinstance(known, HeadHealth):
        return known
    weight, bias = known
    try:
        wanted = [item for item in (weight, bias) if item is not None]
        found, why, read = _read_stored(checkpoint.stored_files, wanted)
    except HeadscopeError as err:
        return not_determined(weight.name, f"its values could not be read: {err.message}")
    if weight.name not in found:
        return not_determined(weight.name, why or "snapshots contain no weights")
    return replace(_judge_measured(report, weight, bias, found, checkpoint.built.initial), bytes_read=read)


def health_of_module(module: nn.Module, report: Report, initial: InitialSpread | None) -> HeadHealth:
    """Judges the numbers of a classifier in memory."""
    held = {name: item.detach() for name, item in module.named_parameters(remove_duplicate=False)}
    otherwise = "the module no longer holds it under this name"
    return health_of_tensors(report, held, initial, otherwise, is_loaded=False)


def health_of_tensors(
    report: Report,
    found: Mapping[str, torch.Tensor],
    initial: InitialSpread | None,
    otherwise: str,
    *,
    is_loaded: bool = True,
) -> HeadHealth:
    """Judges numbers that were read already; `otherwise` says why the classifier may not be among them.

    With `is_loaded`, the numbers are those of a checkpoint, which may give the classifier none.
    """
    known = _without_numbers(report, is_loaded=is_loaded)
    if isinstance(known, HeadHealth):
        return known
    weight, bias = known
    given = [item.name for item in (weight, bias) if item is not None and item.name in found]
    lost = next((name for name in given if found[name].is_meta), None)
    if lost is not None:
        return not_determined(weight.name, f"{lost} is on the meta device, without values")
    if weight.name not in found:
        return not_determined(weight.name, otherwise)
    return _judge_measured(report, weight, bias, found, initial)


def _without_numbers(report: Report, *, is_loaded: bool) -> HeadHealth | tuple[HeadParameter, HeadParameter | None]:
    """Gives the verdict if numbers aren't needed or wouldn't help, otherwise the classifier's weight and bias."""
    head = report.head
    if head is None:
        gaps = (gap.reason for gap in report.not_determined if gap.topic == GapTopic.HEAD_PATH)
        why = next(gaps, "it was not traced")
        return not_determined("", f"headscope could not determine the head path: {why}")
    weight = classifier_weight(head)
    is_of_tokens = head.token_rows is not None or head.pooling.kind is PoolingKind.TOKEN_PAIR
    if weight is None or is_of_tokens:
        rows = "the scores are rows of a language model's head, which pretraining trained"
        return not_determined("", rows if is_of_tokens else "the head has no parameters", HealthBasis.NONE)
    reason = _why_no_matrix(report.model, head, weight)
    if reason:
        return not_determined(weight.name, reason, HealthBasis.NONE)
    if is_loaded and weight.status in NEW_AT_LOAD:
        return _fresh_by_status(report, weight)
    reason = _why_not_its_numbers(weight, is_loaded=is_loaded)
    if reason:
        return not_determined(weight.name, reason)
    bias = next((item for item in head.parameters if item.name == _bias_of(weight) and item.live), None)
    # A bias that is new at every load shows nothing of the training.
    is_read = bias is not None and (not is_loaded or bias.status is ParameterStatus.LOADED) and bias.quantized is None
    return weight, bias if is_read else None


def _bias_of(weight: HeadParameter) -> str:
    return f"{weight.name.rpartition('.')[0]}.bias"


def _why_not_its_numbers(weight: HeadParameter, *, is_loaded: bool) -> str:
    """Says why the stored values would not be those of the classifier; "" if they are."""
    if is_loaded and weight.status is not ParameterStatus.LOADED:
        return _REASONS.get(weight.status, f"its status is {weight.status.value}")
    if weight.adapter is Carried.ADAPTED:
        return "the adapter changes its output, and only the weight below it could be read"
    if weight.quantized is not None:
        return f"it is quantized ({weight.quantized}), which hides the effect of training"
    if min(weight.shape[0], weight.count // weight.shape[0]) > _LARGEST_SIDE:
        shape = _format_shape(weight.shape)
        return f"it is {shape}, and headscope judges matrices with a side of at most {_LARGEST_SIDE:,}"
    return ""


_REASONS = {
    ParameterStatus.UNKNOWN: "not all of the checkpoint could be read, so its status is not known",
    ParameterStatus.TIED: "it is tied to another tensor, so it is not a separate classifier",
    ParameterStatus.IGNORED: "it is not in the checkpoint, and Transformers computes it",
}


def _why_no_matrix(model: ModelFacts, head: Head, weight: HeadParameter) -> str:
    """Says why a weight is not a classifier [classes, features]; "" for one that is."""
    stage = next(item for item in reversed(head.stages) if weight.name in item.parameters)
    if stage.operation not in _OPERATIONS or len(weight.shape) < 2:  # a matrix
        return f"the last stage with parameters is {stage.operation}, and headscope judges linear classifiers only"
    if model.task not in WITHOUT_CLASSES and model.num_labels and weight.shape[0] != model.num_labels:
        return f"it has {weight.shape[0]} rows for {counted(model.num_labels, 'class', 'classes')}"
    if not weight.count:
        return "it is empty"
    return ""


def _fresh_by_status(report: Report, weight: HeadParameter) -> HeadHealth:
    whose = "neither the adapter nor its base model gives" if report.adapter is not None else "the checkpoint lacks"
    if weight.status is ParameterStatus.MISMATCHED:
        stored = _format_shape(weight.checkpoint_shape or ())
        sizes = f"{stored} for {weight.name}, and the model {_format_shape(weight.shape)}"
        reason = f"the checkpoint has {sizes}, so every load initializes it"
    else:
        reason = f"{whose} {weight.name}, so every load initializes it"
    return HeadHealth(HealthVerdict.FRESH, 1.0, HealthBasis.STATUS, (reason,), weight.name)


def _format_shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "another shape"


def _read_stored(
    places: Sequence[StoredFiles], wanted: list[HeadParameter]
) -> tuple[Mapping[str, torch.Tensor], str, int]:
    """Reads tensors by their names; also says why one could not be read, and how many bytes they took."""
    found: dict[str, torch.Tensor] = {}
    reasons: list[str] = []
    for place in places:
        stored = {item: header for item in wanted if (header := place.header_of(item)) is not None}
        whys = {header: why for item, header in stored.items() if (why := _why_unread(place, header, item))}
        whys |= place.unreadable(header for header in stored.values() if header not in whys)
        reasons += whys.values()
        read = place.together({header: None for header in stored.values() if header not in whys})
        found |= {item.name: read[header] for item, header in stored.items() if header in read}
    why = reasons[0] if reasons else "its stored tensor was not found" if places else ""
    return found, why, sum(item.nbytes for item in found.values())


def _why_unread(place: StoredFiles, header: TensorHeader, item: HeadParameter) -> str:
    """Says why a stored tensor isn't read as the classifier's; "" if it is."""
    size = item.count * _WIDTHS.get(header.dtype, 0)
    limit = _LOCAL_BYTES if place.sidecar.reads_cheaply else _REMOTE_BYTES
    if header.shape != item.shape:
        return f"the checkpoint stores it as {header.shape}, not as {item.shape}"
    if not size:
        return f"its dtype {header.dtype} is not one that headscope measures"
    if size > limit:
        return f"it has {size:,} bytes, and headscope reads up to {limit:,} for this"
    return ""


_WIDTHS = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
"""The bytes of a number, of the dtypes that are fine enough."""


def _judge_measured(
    report: Report,
    weight: HeadParameter,
    bias: HeadParameter | None,
    found: Mapping[str, torch.Tensor],
    initial: InitialSpread | None,
) -> HeadHealth:
    import torch

    from headscope.core.model.tensors.head_statistics import bias_statistics, matrix_statistics

    applies = _mean_row_applies(report)
    matrix = found[weight.name].reshape(weight.shape[0], -1)
    vector = found.get(bias.name) if bias is not None else None
    if matrix.is_floating_point() and not _SMALLEST < float(matrix.double().abs().max()) < _LARGEST:
        matrix = matrix.to(getattr(torch, weight.dtype))  # as the loader gives it: mostly infinity, or zero
    both = [matrix] if vector is None else [matrix, vector]
    if not all(item.is_floating_point() and item.dtype.itemsize > 1 for item in both):
        return not_determined(weight.name, f"its dtype {str(matrix.dtype).removeprefix('torch.')} holds no floats")
    if not all(bool(torch.isfinite(item).all()) for item in both):
        return _collapsed_health(weight.name, "it holds NaN or infinity, so every score is NaN: the training diverged")
    if not bool(matrix.any()):
        return _collapsed_health(
            weight.name, "it holds only zeros, so all inputs get the same scores: never trained, or lost"
        )
    if not _SMALLEST < float(matrix.double().abs().max()) < _LARGEST:
        return not_determined(weight.name, "its values are too large or too small to be measured")
    numbers = matrix_statistics(weight.name, matrix, initial.weight if initial else None)
    offsets = bias_statistics(bias.name, vector, matrix.shape[1]) if bias is not None and vector is not None else None
    judged = judge_numbers(numbers, offsets, initial, applies)
    has_bias = report.head is not None and any(item.name == _bias_of(weight) for item in report.head.parameters)
    if has_bias and offsets is None and judged.basis is HealthBasis.STATISTICS:
        return replace(judged, reasons=(*judged.reasons, "its bias could not be read, so it shows nothing"))
    return judged


def _collapsed_health(name: str, reason: str) -> HeadHealth:
    return HeadHealth(HealthVerdict.COLLAPSED, 1.0, HealthBasis.VALUES, (reason,), name)


def _mean_row_applies(report: Report) -> bool | None:
    """True if the loss is a softmax over the rows of the classifier; None if the loss is not determined."""
    model = report.model
    if model.task in WITHOUT_CLASSES and model.task is not Task.NEXT_SENTENCE_PREDICTION:
        return False  # a softmax over positions or choices, not over the rows
    if model.problem_type is not None:
        return model.problem_type == "single_label_classification"
    return True if model.loss == Loss.CROSS_ENTROPY else None if model.loss == Loss.NOT_DETERMINED else False
