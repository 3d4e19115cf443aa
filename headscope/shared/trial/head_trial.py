"""The head tried: what it does with its real values, as the loader gives them, on random hidden states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from headscope.core.facts import Task
from headscope.core.facts.trial import HeadTrial
from headscope.errors import Unsupported

if TYPE_CHECKING:
    from headscope.core.trace import HeadProgram
    from headscope.core.trace.replay.replay import Replay

_ORDINARY, _LARGE = 1.0, 30.0
"""The size of hidden states: a base model ends in a normalization, which gives numbers around 1. Those of models
without one, and the outliers of the others, are rarely larger than 30."""
_HUGE = 1e30
"""Scores beyond this are infinite for inputs a little larger."""
_UNMOVED = 1e-9
"""Scores that inputs of the larger size move by no more than this don't move."""
_SAME, _TINY = 1e-5, 1e-5
"""Scores that move by less give the same probabilities in every digit shown. That is a fault if a matrix of the head
holds no larger number than the second; a fresh head of many small layers makes such scores too."""
_ROUNDING = 64 * torch.finfo(torch.float32).eps
"""What single precision may change by rounding, in relation to the largest score."""
_SEED = 7
_ONE_PER_INPUT = (Task.MULTIPLE_CHOICE,)


@dataclass(frozen=True, slots=True)
class _Bench:
    """A head, its values, and the settings that say how to read its scores."""

    program: HeadProgram
    given: Mapping[str, torch.Tensor]
    task: Task
    problem_type: str | None

    def hidden(self, size: float, seed: int = _SEED) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(seed)
        return tuple(torch.randn(item.shape, generator=generator) * size for item in self.program.head.hidden)

    def run(self, size: float, *, exact: bool = False) -> Replay:
        return self.program.run(self.given, self.hidden(size), exact=exact)

    def table(self, replay: Replay) -> torch.Tensor:
        """Arranges the scores as [inputs, classes]; an input is a text, a token or a choice."""
        scores = [item.float() for item in replay.logits]
        if self.task in _ONE_PER_INPUT or scores[0].dim() == 1:
            return torch.cat([item.reshape(-1, 1) for item in scores])
        if len(scores) > 1 and len({item.shape for item in scores}) == 1:  # starts and ends of answers
            return torch.stack([item.reshape(-1) for item in scores], 1)
        return scores[0].reshape(-1, scores[0].shape[-1])


def try_head(
    program: HeadProgram, given: Mapping[str, torch.Tensor], task: Task, problem_type: str | None
) -> HeadTrial:
    """Tries a head with the numbers in `given`; tensors that aren't given are made up."""
    numbers = dict(given)
    for name, value in given.items():
        wanted = program.tensors.get(name)
        if wanted is None or wanted.shape == value.shape or wanted.dim() == 0 or wanted.shape[1:] != value.shape[1:]:
            continue
        # The last rows of the program's tensor stand for those of a few tokens.
        zeros = torch.zeros(wanted.shape[0] - value.shape[0], *value.shape[1:], dtype=value.dtype)
        numbers[name] = torch.cat([zeros, value])
    bench = _Bench(program, numbers, task, problem_type)
    try:
        found = _run_trial(bench)
        # A head that behaves so with any numbers says nothing about these: masked positions, a score that is constant.
        usual = found if found == HeadTrial() else _run_trial(replace(bench, given=_any_numbers(program)))
    except Unsupported as err:
        return HeadTrial(why_not=err.message)
    if found != HeadTrial() and (not usual.finite or not usual.moves or usual.fails):
        return HeadTrial(why_not="with random values in its place, the head gives no comparable scores either")
    return found


def _any_numbers(program: HeadProgram) -> dict[str, torch.Tensor]:
    """Draws random values for the head; those of buffers are positive, as they may be variances."""
    generator = torch.Generator().manual_seed(_SEED)
    floats = {name: item for name, item in program.tensors.items() if item.is_floating_point()}
    drawn = {name: torch.randn(item.shape, generator=generator) / 2 for name, item in floats.items()}
    return {
        name: value if isinstance(floats[name], nn.Parameter) else value.abs() + 0.5 for name, value in drawn.items()
    }


def _run_trial(bench: _Bench) -> HeadTrial:
    try:
        exact = bench.run(_ORDINARY, exact=True)
    except Unsupported as err:
        if isinstance(err.__cause__, RuntimeError) and not isinstance(err.__cause__, NotImplementedError):
            return HeadTrial(fails=str(err.__cause__).partition("\n")[0])
        exact = bench.run(_ORDINARY)  # a kernel that the CPU lacks
    if not bool((bench.table(exact).abs() < _HUGE).all()):  # NaN is no less
        return HeadTrial(finite=False)
    scores = torch.cat([bench.table(bench.run(size)).detach() for size in (_ORDINARY, _LARGE)])
    scores = scores[torch.isfinite(scores).all(1)]  # those of large numbers may overflow
    is_tiny = any(value.dim() > 1 and float(value.abs().max()) < _TINY for value in bench.given.values())
    least, largest = _SAME if is_tiny else _UNMOVED, scores.abs().amax(0)
    least = 0.0 if bench.problem_type == "regression" else least  # a number may be measured in any unit
    best = scores.amax(1, keepdim=True)
    apart = scores - best if scores.shape[1] > 1 else scores  # of a mean, a class that is switched off takes the bits
    limit = (_ROUNDING * largest.maximum(best.abs().amax())).clamp(min=least)
    if not bool((apart.amax(0) - apart.amin(0) > limit).any()):
        return HeadTrial(moves=False)
    limit = (_ROUNDING * largest).clamp(min=least)
    stuck = tuple(torch.nonzero(scores.amax(0) - scores.amin(0) <= limit).flatten().tolist())
    is_several = bench.problem_type == "multi_label_classification"
    picks_one = scores.shape[1] > 1 and not is_several and bench.task is not Task.QUESTION_ANSWERING
    # A bias that was made up may outweigh all that the real values do.
    picks = picks_one and bench.program.tensors.keys() <= bench.given.keys()
    winner = _find_constant_winner(bench, scores) if picks else None
    found = HeadTrial(stuck=stuck, winner=winner)
    vectors = [item for name, item in bench.given.items() if item.shape == scores.shape[1:] and name.endswith("bias")]
    if winner is None or len(vectors) != 1:
        return found
    bias = vectors[0].float()
    others = torch.cat([bias[:winner], bias[winner + 1 :]])
    return replace(found, bias=float(bias[winner]), ahead=float(bias[winner] - others.max()))


def _find_constant_winner(bench: _Bench, scores: torch.Tensor) -> int | None:
    """Finds the class that wins whatever the input; None if another one wins for some input."""
    first, *others = set(scores.argmax(1).tolist())
    if others:
        return None
    margin = (scores - scores[:, first : first + 1]).amax(0)
    # The winner is not its own rival.
    margin[first] = -torch.inf
    # Only the classes that came closest: each search takes up to 30 runs of the head.
    rivals = margin.topk(min(4, len(margin) - 1)).indices.tolist()
    is_beaten = any(_can_win(bench, rival, first, size) for rival in rivals for size in (_ORDINARY, _LARGE))
    return None if is_beaten else first


def _can_win(bench: _Bench, rival: int, first: int, size: float) -> bool:
    """Follows the gradient from random inputs; True if this finds one for which the first class doesn't win.

    The steps are those of Rprop, which pass the flat parts of a tanh, and no input gets larger than what is tried.
    """
    hidden = [item.requires_grad_() for item in bench.hidden(size)]
    steps = torch.optim.Rprop(hidden, lr=size / 4)
    for _ in range(30):
        run = bench.program.run(bench.given, tuple(item.detach() for item in hidden))
        table = bench.table(run)
        if bool((table.argmax(1) != first).any()):
            return True
        lead = (table[:, first] - table[:, rival]).sum()
        for item, slope in zip(hidden, torch.autograd.grad(lead, run.hidden, allow_unused=True), strict=True):
            item.grad = slope
        steps.step()
        for item in hidden:
            item.data.clamp_(-_LARGE, _LARGE)
    return False
