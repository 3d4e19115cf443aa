"""The base model's values: every one that a checkpoint on this machine gives it, read in a stream."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from headscope.checks.facts import BaseNumbers
from headscope.core.facts import Gap, ParameterStatus, Report
from headscope.core.facts.stored.unplaced import of_any_layer
from headscope.core.source.checkpoint import Checkpoint
from headscope.core.source.stored_tensors import StoredFiles
from headscope.core.upstream.peft import begins_as_zero

if TYPE_CHECKING:
    import torch
    from torch import nn

    from headscope.core.model.classes.model_request import Choice

_ByKey = Mapping[str, tuple[str, str, int]]
"""Name, dtype and number of axes of tensors, by checkpoint key."""
_WHOLE_NUMBERS = ("int", "uint", "bool")
NOT_IN_TRAINING = "they are read before inference"


@dataclass(frozen=True, slots=True)
class _Extremes:
    """Smallest and largest of some numbers; NaN if there is one among them."""

    low: float
    high: float

    def over(self, largest: float) -> bool:
        """True if not all numbers are finite in a dtype that goes as far as `largest`."""
        # Written so that NaN, which compares as false, counts as over.
        return not (-largest <= self.low and self.high <= largest)


def read_base_numbers(checkpoint: Checkpoint) -> BaseNumbers | Gap:
    """Reads the numbers outside the head, or says why there are none to read.

    Raises a HeadscopeError for a broken file.
    """
    wanted = _tensors_outside_head(checkpoint.report, stored=True)
    dtypes = {name: dtype for name, dtype, _ in wanted.values()}
    found: dict[str, _Extremes] = {}
    for place in checkpoint.stored_files:
        if not place.sidecar.reads_cheaply:
            return Gap("base values", "headscope reads them only from files on this machine")
        is_adapter = place.manifest is checkpoint.manifest.adapter
        if is_adapter:
            dtypes |= {header.key: header.dtype for header in place.manifest.tensors}
        found |= _read_place(place, wanted, is_adapter=is_adapter)
    if not found:
        return Gap("base values", "the checkpoint holds no values of a base model")
    judged = _judge_extremes(found, dtypes, wanted, partial(_silences_model, checkpoint.choice))
    return replace(judged, whole=tuple(_whole_numbers(checkpoint, wanted)))


def _whole_numbers(checkpoint: Checkpoint, wanted: _ByKey) -> Iterator[tuple[str, str]]:
    """Finds parameters stored as whole numbers and loaded as floats without a scale, each with its dtype."""
    if checkpoint.report.model.quantization is not None:
        return
    parameters = {item.name for item in checkpoint.report.weights.parameters if not item.is_buffer}
    for header in checkpoint.manifest.tensors:
        name = wanted[header.key][0] if header.key in wanted else ""
        if name in parameters and header.dtype.startswith(_WHOLE_NUMBERS):
            yield name, header.dtype


def live_base_numbers(module: nn.Module, report: Report) -> BaseNumbers:
    """Reads the numbers outside the head of a model in memory."""
    wanted = _tensors_outside_head(report, stored=False)
    held = {**dict(module.named_buffers()), **dict(module.named_parameters())}
    tensors = {name: item.detach() for name, item in held.items() if name in wanted and not item.is_meta}
    found = {name: _extremes_of(item.flatten()) for name, item in tensors.items() if item.is_floating_point()}
    dtypes = {name: str(tensors[name].dtype).removeprefix("torch.") for name in found}
    from transformers import PreTrainedModel

    from headscope.core.model.classes.model_request import Choice

    choice = Choice(type(module), report.model.task, module.config) if isinstance(module, PreTrainedModel) else None
    judged = _judge_extremes(found, dtypes, wanted, partial(_silences_model, choice))
    # A fresh adapter begins with a matrix of zeros, so that it changes nothing before the training.
    return replace(judged, zeros=tuple(name for name in judged.zeros if not begins_as_zero(name)))


def _judge_extremes(
    found: Mapping[str, _Extremes],
    dtypes: Mapping[str, str],
    wanted: _ByKey,
    silences: Callable[[Sequence[str]], bool],
) -> BaseNumbers:
    """Judges the extremes of all tensors.

    A vector may be all zeros (a bias, a scale that opens with training): `silences` answers whether these could matter.
    """
    import torch

    largest = {name: torch.finfo(getattr(torch, dtype)).max for name, dtype in dtypes.items() if "float" in dtype}
    broken = tuple(name for name, item in found.items() if item.over(largest.get(name, math.inf)))
    if broken:
        return BaseNumbers(len(found), broken)
    axes = {name: count for name, _, count in wanted.values()}
    zeros = [name for name, item in found.items() if name in axes and item == _Extremes(0.0, 0.0)]
    vectors = [name for name in zeros if axes[name] == 1]
    doubtful = (*(name for name in zeros if axes[name] > 1), *(vectors if vectors and silences(vectors) else ()))
    return BaseNumbers(len(found), (), doubtful)


def _silences_model(choice: Choice | None, names: Sequence[str]) -> bool:
    """True if a small random model of the class gives every input the same scores without these tensors.

    Zeros in one layer are tried in every layer of the small model, so the real model may still give an answer. False if
    such a model can't be run.
    """
    import torch

    from headscope.core.model.quiet import quiet
    from headscope.core.source.reading.tracing import SIZES, small_model
    from headscope.core.trace.record.randomness import OwnRandomness
    from headscope.core.trace.slice.invariance import depends_on_inputs

    if choice is None:
        return False
    kinds = set(map(of_any_layer, names))
    for most in SIZES:
        # A class that cannot be built so small, or run, shows nothing.
        with suppress(Exception), quiet(), OwnRandomness(), torch.no_grad():
            small = small_model(choice, most)
            if depends_on_inputs(small, choice.task):
                for name, item in small.named_parameters():
                    if of_any_layer(name) in kinds:
                        item.zero_()
                return not depends_on_inputs(small, choice.task)
    return False


def _tensors_outside_head(report: Report, *, stored: bool) -> _ByKey:
    """Lists the tensors outside the head; the key is a tensor's name if nothing is stored."""
    head = report.head
    apart = {item.name for item in head.tensors} | set(head.not_live) if head else set()
    found: dict[str, tuple[str, str, int]] = {}
    for item in report.weights.parameters:
        if item.name in apart or item.quantized is not None:  # packed values come with scales
            continue
        if not stored or item.status is ParameterStatus.LOADED:
            described = item.name, item.dtype, len(item.shape)
            found |= dict.fromkeys(item.checkpoint_keys if stored else (item.name,), described)
    return found


def _read_place(place: StoredFiles, wanted: _ByKey, *, is_adapter: bool) -> dict[str, _Extremes]:
    """Reads the extremes of the tensors of one place, by the names of their parameters."""
    headers = [item for item in place.manifest.tensors if is_adapter or item.key in wanted]
    found: dict[str, list[_Extremes]] = {}
    for header, numbers in place.stream(headers):
        name = header.key if is_adapter else wanted[header.key][0]
        found.setdefault(name, []).append(_extremes_of(numbers))
    return {
        # NaN stays NaN.
        name: next(
            (item for item in parts if math.isnan(item.low)),
            _Extremes(min(item.low for item in parts), max(item.high for item in parts)),
        )
        for name, parts in found.items()
    }


def _extremes_of(numbers: torch.Tensor) -> _Extremes:
    import torch

    if not numbers.numel():
        return _Extremes(0.0, 0.0)
    is_ordinary = numbers.is_floating_point() and numbers.dtype.itemsize > 1
    # aminmax lacks kernels for complex and 8-bit floats.
    low, high = torch.aminmax(numbers if is_ordinary else numbers.real.float())
    return _Extremes(float(low), float(high))
