"""The scores of a model in memory beside those of a fresh load of its checkpoint, on the same random inputs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from headscope.core.model.classes.catalog import task_of_class
from headscope.core.model.loading.inference import fault_of_checkpoint
from headscope.core.source.live.live_facts import task_of
from headscope.core.source.live.live_tensors import is_of_transformers
from headscope.core.source.live.module import unwrap
from headscope.core.source.request import Request
from headscope.core.trace.record.randomness import OwnRandomness
from headscope.errors import HeadscopeError
from headscope.shared.loaded.facts import ScoreComparison
from headscope.shared.loaded.verification import load_model_with
from headscope.shared.trial.deciding import OFF, is_run_off
from headscope.shared.trial.live_trial import called_module, in_eval_mode, random_rows
from headscope.shared.trial.observing import call_model, error_words

_ROUNDING, _ROUNDING_ELSEWHERE, _ROUNDINGS = 1e-4, 1e-2, 16
"""How far the same weights may be apart, in relation to the largest score: in single precision on one processor, where
1e-6 was seen; on another device, which may compute in TF32; and in half precision, in roundings of the format."""
_LITTLE = 0.1
"""The smallest score that a difference is held against."""


@dataclass(frozen=True, slots=True)
class ScoredModel:
    """A model in memory, called on random inputs. A text among the scores is the error that a call raised.

    `dtype` is the one number format of its floats, "" for several; `is_elsewhere` says that it is not on a processor.
    """

    rows: tuple[Mapping[str, Any], ...]
    scores: tuple[torch.Tensor | str, ...]
    again: torch.Tensor | str
    dtype: str
    is_elsewhere: bool
    in_train_mode: bool


def scored(module: nn.Module) -> ScoredModel | str:
    """Scores random inputs with a model in eval mode, or says why not. The model stays as it was."""
    unwrapped = unwrap(module)
    inner: Any = unwrapped.module
    reason = _why_not_called(unwrapped)
    if reason:
        return reason
    called = called_module(module, inner)
    floats = {item.dtype for item in inner.parameters() if item.is_floating_point()}
    device = next(iter(inner.parameters())).device
    was_training = bool(called.training)
    try:
        rows = random_rows(inner, task_of(inner, None))
        with in_eval_mode(called), OwnRandomness():
            scores = tuple(_scores_of(called, row, device) for row in rows)
            # Twice the same input: a model that is random in its forward differs from itself too.
            again = _scores_of(called, rows[0], device)
    except HeadscopeError as err:
        return err.message
    dtype = str(next(iter(floats))).removeprefix("torch.") if len(floats) == 1 else ""
    return ScoredModel(rows, scores, again, dtype, device.type != "cpu", was_training)


def _why_not_called(unwrapped: Any) -> str:
    """Says why the scores of a model are not compared; "" if they are."""
    module = unwrapped.module
    if is_run_off():
        return f"{OFF} is set"
    if unwrapped.is_sharded or unwrapped.offloaded or any(item.is_meta for item in module.parameters()):
        return "no process holds all of its weights"
    if unwrapped.scorer is not None or not is_of_transformers(unwrapped.origin):
        return "it is not a model of Transformers alone"
    if type(module).__module__.startswith("transformers.") and task_of_class(type(module).__name__) is not None:
        return ""
    return f"{type(module).__name__} isn't one of Transformers' own classes for classification"


def _scores_of(model: Any, row: Mapping[str, Any], device: torch.device) -> torch.Tensor | str:
    try:
        return call_model(model, row, device).float().cpu()
    except Exception as err:  # whatever a model raises
        return error_words(err)


def score_checkpoint(
    request: Request, rows: Sequence[Mapping[str, Any]], dtype: str
) -> tuple[torch.Tensor | str, ...] | str | Exception:
    """Scores rows with a fresh load: each result, or its error.

    Returns the error of the load if there is one, or the reason why the checkpoint can't be loaded.
    """
    try:
        model: Any = load_model_with(request, None)[0].eval()
    except HeadscopeError as err:
        fault = fault_of_checkpoint(err)
        return err.message if fault is None else RuntimeError(error_words(fault))
    if dtype:
        for item in model.parameters():
            item.data = item.data.to(getattr(torch, dtype)) if item.is_floating_point() else item.data
    try:
        return tuple(_scores_of(model, row, torch.device("cpu")) for row in rows)
    except HeadscopeError as err:
        return err.message


def compared_scores(own: ScoredModel, fresh: Sequence[torch.Tensor | str]) -> ScoreComparison:
    """Compares the scores of two models on the same inputs."""
    live_error = next((item for item in own.scores if isinstance(item, str)), "")
    fresh_error = next((item for item in fresh if isinstance(item, str)), "")
    found = ScoreComparison(in_train_mode=own.in_train_mode, live_error=live_error, fresh_error=fresh_error)
    both = [
        (one, other)
        for one, other in zip(own.scores, fresh, strict=True)
        if not isinstance(one, str) and not isinstance(other, str)
    ]
    if not both:
        return found
    if any(one.shape != other.shape for one, other in both):
        return replace(found, reason="the two models return scores of different shapes")
    scale = max(_LITTLE, *(float(one.nan_to_num(0.0, 0.0, 0.0).abs().max()) for one, _ in both))
    bound = (_ROUNDING_ELSEWHERE if own.is_elsewhere else _ROUNDING) * scale
    if own.dtype in ("float16", "bfloat16"):
        bound = _ROUNDINGS * torch.finfo(getattr(torch, own.dtype)).eps * scale
    apart = [_largest_difference(one, other) for one, other in both]
    again, first = own.again, own.scores[0]
    is_same = isinstance(again, str) or isinstance(first, str) or _largest_difference(again, first) <= bound
    return replace(
        found, inputs=len(both), differing=sum(item > bound for item in apart), bound=bound, repeats_equal=is_same,
        largest=None if math.isinf(max(apart)) else max(apart),
    )  # fmt: skip


def _largest_difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Computes the largest difference; infinite if only one of both has a number."""
    if not bool((one.isfinite() == other.isfinite()).all()):
        return float("inf")
    return float((one.nan_to_num(0.0, 0.0, 0.0) - other.nan_to_num(0.0, 0.0, 0.0)).abs().max())
