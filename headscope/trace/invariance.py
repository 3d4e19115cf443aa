"""Padding invariance: do the scores of a short text change when it is padded to the length of a batch?"""

import inspect
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel

from headscope.errors import Unsupported
from headscope.facts import PaddingEffect, Task
from headscope.trace.execution import run_forward, run_on_probe, run_unrecorded
from headscope.trace.inputs import MAKERS, Row, Sizes, text_config_of
from headscope.trace.outputs import usual_scores
from headscope.trace.probe import Probe

_LENGTHS = (9, 10)
_PADDING = 4
_CHOICES = 2
# In relation to the largest score. Padding that is masked still changes the rounding, as sums have other lengths.
_TOLERANCE = 1e-3
SIDES = ("right", "left")


def measure_padding(model: PreTrainedModel, task: Any) -> tuple[PaddingEffect, ...]:
    """The effect of padding on each side, for a model with real (random) weights that reads whole texts.

    Empty for models that read no texts or give a score to each token.
    """
    if not reads_padded_texts(type(model)):
        return ()
    pad = getattr(text_config_of(model.config), "pad_token_id", None)
    if pad is None:
        return tuple(PaddingEffect(side, None, reason="no pad token is set") for side in SIDES)
    length = next(size for size in _LENGTHS if size != model.config.num_labels)  # told from the scores by its size
    ids = MAKERS["input_ids"](model, Sizes(1, length), (Row(0, length - 1, length - 3),), task)
    if ids is None or ids.dim() != len(("batch", "tokens")):
        return ()
    if task is Task.MULTIPLE_CHOICE:
        ids = ids.unsqueeze(1).repeat(1, _CHOICES, 1)
    alone = _scores(model, ids, torch.ones_like(ids))
    if isinstance(alone, str):
        return tuple(PaddingEffect(side, None, reason=alone) for side in SIDES)
    if length in alone.shape:
        return ()
    return tuple(_effect(model, ids, pad, side, alone) for side in SIDES)


def reads_padded_texts(cls: type[PreTrainedModel]) -> bool:
    """Whether the forward of a class takes token ids and an attention mask."""
    names = inspect.signature(cls.forward).parameters
    return "input_ids" in names and "attention_mask" in names


def _effect(model: PreTrainedModel, ids: torch.Tensor, pad: int, side: str, alone: torch.Tensor) -> PaddingEffect:
    sizes = (*ids.shape[:-1], _PADDING)
    padding, nothing = ids.new_full(sizes, pad), ids.new_zeros(sizes)
    real = torch.ones_like(ids)
    pieces = ([ids, padding], [real, nothing]) if side == "right" else ([padding, ids], [nothing, real])
    padded = _scores(model, torch.cat(pieces[0], -1), torch.cat(pieces[1], -1))
    if isinstance(padded, str):
        return PaddingEffect(side, None, reason=padded)
    if padded.shape != alone.shape:
        return PaddingEffect(side, None, reason="the scores change their shape")
    difference = float((padded - alone).abs().max() / alone.abs().max().clamp(min=1e-12))
    return PaddingEffect(side, difference > _TOLERANCE, round(difference, 6))


def _scores(model: PreTrainedModel, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor | str:
    """The first score tensor in double precision, or why there is none."""
    inputs = {"input_ids": ids, "attention_mask": mask}
    try:
        known = usual_scores(run_unrecorded(model, inputs))
        if known:
            return known[0].double()
        probe = Probe(inputs, {}, Sizes(ids.shape[0], ids.shape[-1]), ())
        return run_forward(model, probe, hint="", lend=False).logits[0].double()
    except (Exception, SystemExit) as err:  # whatever a forward raises means that this was not measured
        cause = (err.__cause__ or err) if isinstance(err, Unsupported) else err
        lines = str(cause).strip().splitlines()
        return f"{type(cause).__name__}: {lines[0]}" if lines else type(cause).__name__


_DRAWS = 4
_SAME = 1e-6
"""In relation to the largest score: what rounding leaves of equal scores."""


def depends_on_inputs(model: PreTrainedModel, task: Task) -> bool:
    """Whether the order of the scores (a single one: its value) of a model with real weights depends on its inputs.

    Only words, pixels and samples change from run to run: lengths, padding and special tokens stay. Raises Unsupported
    where the forward can't be run.
    """
    probe = run_on_probe(model, task, hint="", with_labels=False).probe
    special = {value for name, value in vars(text_config_of(model.config)).items() if name.endswith("_token_id")}
    runs = []
    for seed in range(_DRAWS):
        draw = torch.Generator().manual_seed(seed)
        inputs = {name: _drawn_again(name, value, special, draw) for name, value in probe.inputs.items()}
        runs.append(run_forward(model, replace(probe, inputs=inputs), hint="", lend=False).logits[0].detach().double())
    scores = torch.stack(runs)
    apart = scores - scores.mean(-1, keepdim=True) if scores.shape[-1] > 1 else scores
    return float((apart - apart[:1]).abs().max()) > _SAME * float(scores.abs().max())


def _drawn_again(name: str, value: Any, special: set[Any], draw: torch.Generator) -> Any:
    """Another input of the same kind: numbers of an image or a sound, or words where words were."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.is_floating_point():
        return torch.randn(value.shape, generator=draw).to(value.dtype)
    if not name.endswith("input_ids"):
        return value
    words = torch.tensor([item for item in value.unique().tolist() if item not in special])
    if not len(words):
        return value
    other = words[torch.randint(len(words), value.shape, generator=draw)]
    return torch.where(torch.isin(value, words), other, value)
