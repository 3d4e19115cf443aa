"""Padding invariance: whether the scores of a short text change when it is padded to the length of a batch."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from headscope.core.facts import PaddingEffect, Task
from headscope.core.facts.stored.tokenizer import AffectedTexts
from headscope.core.trace.batch.inputs import MAKERS, ProbeRow, Sizes
from headscope.core.trace.batch.probe_batch import LONGEST_TEXT, ProbeBatch, build_probe
from headscope.core.trace.record.execution import class_and_line, run_forward, run_on_probe, run_unrecorded
from headscope.core.trace.record.outputs import usual_scores
from headscope.core.upstream.transformers import text_config_of
from headscope.errors import Unsupported

_LENGTHS = (9, 10)
_PADDING = 4
# In relation to the largest score. Padding that is masked still changes the rounding, as sums have other lengths.
_TOLERANCE = 1e-3
_FEW_POSITIONS = 64
SIDES = ("right", "left")


def measure_padding(model: PreTrainedModel, task: Any) -> tuple[PaddingEffect, ...]:
    """Measures the effect of padding on each side, for a model of texts with real (random) weights and a pad token.

    Empty for models that read no texts or give a score to each token.
    """
    if not reads_padded_texts(type(model)):
        return ()
    # The axis of tokens must not have the size of the axis of classes.
    length = next(size for size in _LENGTHS if size != model.config.num_labels)
    ids = MAKERS["input_ids"](model, Sizes(1, length), (ProbeRow(0, length - 1, length - 3),), task)
    if ids is None or ids.dim() != 2:
        return ()
    if task is Task.MULTIPLE_CHOICE:
        ids = ids.unsqueeze(1).repeat(1, 2, 1)  # two choices
    alone = _measure_scores(model, ids, torch.ones_like(ids))
    if isinstance(alone, str):
        return unmeasured_effects(alone)
    # Each token has a score: padding adds scores, so there is nothing to compare.
    if length in alone.shape:
        return ()
    pad = text_config_of(model.config).pad_token_id
    return tuple(_padding_effect(model, ids, pad, side, alone) for side in SIDES)


@torch.no_grad()
def strengthen_weights(model: PreTrainedModel) -> None:
    """Scales the random matrices of a model so that each passes on numbers as large as those that it takes.

    Classes draw them with a standard deviation of 0.02: in a narrow model what padding does to other positions would
    vanish on the way to the one that the head reads, as behind ConvBERT's convolutions.
    """
    for weight in model.parameters():
        spread = float(weight.std()) if weight.dim() > 1 and weight.is_floating_point() else 0.0
        if spread > 0:
            weight.mul_((weight[0].numel() ** -0.5) / spread)


def unmeasured_effects(reason: str) -> tuple[PaddingEffect, ...]:
    """Returns the effect of padding on each side as not measured, with the reason."""
    return tuple(PaddingEffect(side, None, reason=reason) for side in SIDES)


def reads_padded_texts(cls: type[PreTrainedModel]) -> bool:
    """True if the forward of a class takes token ids and an attention mask."""
    names = inspect.signature(cls.forward).parameters
    return "input_ids" in names and "attention_mask" in names


def measured_texts(
    words: list[int], ends: tuple[list[int], list[int]], configured: int | None
) -> tuple[tuple[AffectedTexts, list[list[int]]], ...]:
    """Makes texts of ordinary words between the tokens at their ends, then some that hold another token as a word."""
    first, last = ends
    own = [] if configured is None else [[*words[:2], configured, *words[2:]], [*words, configured]]
    return (AffectedTexts.ALL, [[*first, *words, *last]]), (
        AffectedTexts.SOME,
        [[*first, *text, *last] for text in own],
    )


def measure_ids(
    configured: PreTrainedModel, right: PreTrainedModel, texts: Any, pad: int | None, side: str
) -> tuple[AffectedTexts | None, str]:
    """Finds which texts get other scores, alone or in a batch, or an error, because of the ids in a model's
    configuration.

    `right` is the same model with the ids of the tokenizer, which pads with `pad` (None: it pads nothing) on a side.
    """
    for reach, group in texts:
        for text in group:
            for place, inputs in _padded_and_alone(text, pad, side).items():
                own, expected = _measure_scores(configured, *inputs), _measure_scores(right, *inputs)
                if isinstance(expected, str):
                    return None, f"with the tokenizer's ids the model raises {expected}"
                if isinstance(own, str):
                    return reach, f"{place} raise {own}"
                if (own - expected).abs().max() > _TOLERANCE * expected.abs().max().clamp(min=1e-12):
                    return reach, f"{place} get other scores"
    return AffectedTexts.NONE, ""


def _padded_and_alone(text: list[int], pad: int | None, side: str) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Makes the inputs of a text alone and, if it can be padded, in a batch with a longer one."""
    ids = torch.tensor([text])
    alone = {"alone": (ids, torch.ones_like(ids))}
    if pad is None:
        return alone
    longer = torch.tensor([[*text[:3], *text[1:2] * _PADDING, *text[3:]]])
    both = torch.cat([_pad_side(ids, side, pad), longer])
    mask = torch.cat([_pad_side(torch.ones_like(ids), side, 0), torch.ones_like(longer)])
    return alone | {"in a batch": (both, mask)}


def _pad_side(values: torch.Tensor, side: str, pad: int) -> torch.Tensor:
    return torch.nn.functional.pad(values, (0, _PADDING) if side == "right" else (_PADDING, 0), value=pad)


def error_of_length(make: Callable[[Any], PreTrainedModel], config: Any, length: int, ahead: int = 0) -> str | None:
    """Returns the error that texts of `length` tokens raise; "" for none, None if it could not be tried.

    The model is made with few positions, and the text as much longer or shorter than that; `ahead` virtual tokens come
    before it.
    """
    # A real table of positions may be very large. Only the difference to the number of positions matters.
    text = text_config_of(config)
    fields = [name for name in LONGEST_TEXT if type(getattr(text, name, None)) is int]
    over = min(length + ahead - min(getattr(text, name) for name in fields), 1)
    for name in fields:
        setattr(text, name, _FEW_POSITIONS + ahead)
    model = make(config)
    rows = (ProbeRow(0, size - 1, size - 1) for size in (_FEW_POSITIONS // 2, _FEW_POSITIONS + over))
    short, long = (
        MAKERS["input_ids"](model, Sizes(1, row.last + 1), (row,), Task.SEQUENCE_CLASSIFICATION) for row in rows
    )
    # A model that fails on a short text too says nothing about the length.
    if isinstance(_measure_scores(model, short, torch.ones_like(short)), str):
        return None
    found = _measure_scores(model, long, torch.ones_like(long))
    return found if isinstance(found, str) else ""


def _padding_effect(
    model: PreTrainedModel, ids: torch.Tensor, pad: int, side: str, alone: torch.Tensor
) -> PaddingEffect:
    """Compares the scores of a text that is padded on one side with those that it gets alone."""
    padded = _measure_scores(model, _pad_side(ids, side, pad), _pad_side(torch.ones_like(ids), side, 0))
    if isinstance(padded, str):
        return PaddingEffect(side, None, reason=padded)
    if padded.shape != alone.shape:
        return PaddingEffect(side, None, reason="the scores change their shape")
    difference = float((padded - alone).abs().max() / alone.abs().max().clamp(min=1e-12))
    return PaddingEffect(side, difference > _TOLERANCE, round(difference, 6))


def _measure_scores(model: PreTrainedModel, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor | str:
    """Returns the first score tensor in double precision, or why there is none."""
    inputs = {"input_ids": ids, "attention_mask": mask}
    try:
        known = usual_scores(run_unrecorded(model, inputs))
        if known:
            return known[0].double()
        probe = ProbeBatch(inputs, {}, Sizes(ids.shape[0], ids.shape[-1]), ())
        return run_forward(model, probe, hint="", lend=False).logits[0].double()
    except (Exception, SystemExit) as err:  # whatever a forward raises means that this was not measured
        cause = (err.__cause__ or err) if isinstance(err, Unsupported) else err
        return class_and_line(cause)


_SAME = 1e-6
"""In relation to the largest score: what rounding leaves of equal scores."""


def depends_on_inputs(model: PreTrainedModel, task: Task) -> bool:
    """True if the order of the scores (a single one: its value) of a model with real weights depends on its inputs.

    Only words, pixels and samples change from run to run: lengths, padding and special tokens stay. Raises Unsupported
    where the forward can't be run.
    """
    probe = run_on_probe(model, partial(build_probe, model, task, with_labels=False), hint="").probe
    special = {value for name, value in vars(text_config_of(model.config)).items() if name.endswith("_token_id")}
    runs = []
    for seed in range(4):
        draw = torch.Generator().manual_seed(seed)
        inputs = {name: _drawn_again(name, value, special, draw) for name, value in probe.inputs.items()}
        runs.append(run_forward(model, replace(probe, inputs=inputs), hint="", lend=False).logits[0].detach().double())
    scores = torch.stack(runs)
    # What is added to all classes alike changes neither the order nor a softmax.
    apart = scores - scores.mean(-1, keepdim=True) if scores.shape[-1] > 1 else scores
    return float((apart - apart[:1]).abs().max()) > _SAME * float(scores.abs().max())


def _drawn_again(name: str, value: Any, special: set[Any], draw: torch.Generator) -> Any:
    """Draws another input of the same kind: numbers of an image or a sound, or words where words were."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.is_floating_point():
        return torch.randn(value.shape, generator=draw).to(value.dtype)
    if not name.endswith("input_ids"):
        return value
    words = torch.tensor([item for item in sorted(set(value.flatten().tolist())) if item not in special])
    if not len(words):
        return value
    other = words[torch.randint(len(words), value.shape, generator=draw)]
    return torch.where(torch.isin(value, words), other, value)
