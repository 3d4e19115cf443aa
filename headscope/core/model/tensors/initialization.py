"""Numbers that a model's class puts into a fresh classifier: measured on a copy of the module, not looked up."""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from headscope.core.facts.health import MOST_INITIALIZED, InitialSpread
from headscope.core.model.quiet import quiet
from headscope.core.model.tensors.head_statistics import known_schemes, spread_z
from headscope.core.model.tensors.held import fresh_skeleton
from headscope.core.upstream.torch import with_child
from headscope.core.upstream.transformers import initialize

CUT_AT_TWO = 0.879625661034240
"""The spread of a normal distribution that is cut off at twice its spread, as ModernBERT draws its heads."""
_SPREADS = ("init_std", "initializer_factor")
"""The fields beside `initializer_range` that say how far the first weights spread, in BART's and T5's kind."""
_ENOUGH = 100_000
_DRAWS = 4
_NEAR = 3


def initial_spread(model: nn.Module, weight: str, stated: float | None) -> InitialSpread | None:
    """Measures what a model's own initialization draws for a weight and the bias beside it; None if it can't be run.

    The module that holds the weight is copied and initialized as `from_pretrained` initializes what a checkpoint lacks:
    alone, then by the modules around it, the model last. A known spread that explains a few such draws, such as the
    `initializer_range` that is `stated`, is exact and replaces the measured one. The model and the caller's random
    state stay untouched.
    """
    path, _, name = weight.rpartition(".")
    if not isinstance(model, PreTrainedModel):
        return None
    try:
        # A copy, so that initializing changes no number of `model`.
        skeleton = model if all(item.is_meta for item in model.parameters()) else fresh_skeleton(model)
        module = skeleton.get_submodule(path)
        shape = tuple(getattr(module, name).shape)
        if sum(item.numel() for item in module.parameters()) > MOST_INITIALIZED or len(shape) < 2:  # a matrix
            return None
        count = min(_DRAWS, max(1, _ENOUGH // math.prod(shape)))
        drawn = fresh_draws(skeleton, path, seed=0, count=count)
        draws = [{name: item.flatten()[:_ENOUGH].double() for name, item in draw.items()} for draw in drawn]
        config = skeleton.config
        others = [getattr(config, field, None) for field in _SPREADS]
        found = _exact_or_measured_spread(_join_draws(draws, name), shape, stated, others)
        bias = _join_draws(draws, "bias") if "bias" in draws[0] else None
    except Exception:  # whatever a class's own initialization raises: then its spread is not known
        return None
    if not 0 < found < math.inf:
        return None
    return InitialSpread(found, None if bias is None else _spread_of_bias(bias, math.prod(shape[1:])))


def _exact_or_measured_spread(
    drawn: torch.Tensor, shape: tuple[int, ...], stated: float | None, others: list[float | None]
) -> float:
    spread = float(drawn.square().mean().sqrt())
    if not 0 < spread < math.inf:
        return spread
    kurtosis = float(drawn.pow(4).mean()) / spread**4
    features = math.prod(shape[1:])
    own = [item for item in (stated, *others) if item]
    by_features = [times * math.sqrt(1 / features) for times in (CUT_AT_TWO, *filter(None, others))]
    known = (*own, *known_schemes((shape[0], features), None).values(), *by_features)
    # A known spread is exact; the measured one has the noise of a few draws.
    return next((item for item in known if abs(spread_z(spread, item, drawn.numel(), kurtosis)) < _NEAR), spread)


def _spread_of_bias(drawn: torch.Tensor, features: int) -> float:
    """Gives the spread of a bias, exact where it is drawn as `nn.Linear` draws it."""
    spread, usual = float(drawn.square().mean().sqrt()), math.sqrt(1 / (3 * features))
    is_usual = spread > 0 and abs(spread_z(spread, usual, drawn.numel(), 1.8)) < _NEAR  # 1.8: of a uniform distribution
    return usual if is_usual else spread


def _join_draws(draws: list[dict[str, torch.Tensor]], name: str) -> torch.Tensor:
    return torch.cat([item[name] for item in draws])


def fresh_draws(
    skeleton: PreTrainedModel, path: str, *, seed: int, count: int = 1
) -> Iterator[dict[str, torch.Tensor]]:
    """Initializes a module on the meta device as its class does, and yields its parameters in single precision.

    With `count`, it is initialized several times, and one set of numbers is in memory at a time. Raises whatever the
    class's own initialization raises.
    """
    with quiet(), torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(seed)
        # A copy in memory, with room for its values.
        fresh = deepcopy(skeleton.get_submodule(path)).to_empty(device="cpu").float()
        around = _shells_around(skeleton, path, fresh)
        for _ in range(count):
            _initialize_module(skeleton, fresh, around)
            yield {name: item.detach().clone() for name, item in fresh.named_parameters(recurse=False)}


def _initialize_module(skeleton: PreTrainedModel, fresh: nn.Module, around: list[nn.Module]) -> None:
    # `to_empty` leaves whatever was in memory, and `_init_weights` skips modules that it doesn't know.
    for part in fresh.modules():
        reset: Any = getattr(part, "reset_parameters", None)
        if callable(reset):
            reset()
    for part in (*fresh.modules(), *around):
        initialize(skeleton, part)


def _shells_around(skeleton: nn.Module, path: str, fresh: nn.Module) -> list[nn.Module]:
    """Makes shallow copies of the modules around one, innermost first, that hold `fresh` in its place.

    Some classes initialize a classifier from the module that holds it. All else in the copies stays on the meta device.
    """
    found: list[nn.Module] = []
    inner = fresh
    names = path.split(".")
    for depth in range(len(names) - 1, -1, -1):
        inner = with_child(skeleton.get_submodule(".".join(names[:depth])), names[depth], inner)
        found.append(inner)
    return found
