"""Statistics of a classifier's numbers that tell a fresh draw from a trained matrix; docs/health.md derives them.

Each `z` is zero on average for independent numbers of one distribution, with a standard deviation of about 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from headscope.facts.results.health import BiasStatistics, MatrixStatistics, Spectrum

_GRID = 2.0**24
"""How many values PyTorch's generator has for a uniform float32 number on the CPU."""
_BLOCK = 16
"""`normal_` fills blocks of 16: eight pairs of a Box-Muller transform. Source: normal_fill in aten/native/cpu."""
_MOST_TESTED = 1 << 20
"""Numbers that a test of the draw looks at: many more than it needs, in whole blocks from all over the matrix."""
_FEWEST_PAIRS = 24
_ROUNDING = 2**-8
_UNLIKELY = 1e-4
_DISTINCT = 0.9
_COARSE = 3.5
"""What Rayleigh's test exceeds at random in one case of 200,000."""
_REGULAR_ANGLES = 0.37
"""How regular the angles of normal draws are on the grid after they were rounded, whatever the spread: measured."""
_DISTRIBUTIONS = (("normal", 3.0), ("uniform", 1.8), ("truncated normal", 2.36))
"""Kurtosis of the distributions that initializations draw from; `trunc_normal_` cuts at two standard deviations at
most, and at none with the usual spreads."""


def matrix_statistics(name: str, matrix: torch.Tensor, initial_spread: float | None) -> MatrixStatistics:
    """Statistics of a weight [classes, features] of finite floats, not all of them zero."""
    dtype = str(matrix.dtype).removeprefix("torch.")
    numbers = matrix.detach().to("cpu", torch.float64)
    classes, features = numbers.shape
    spread = float(numbers.square().mean().sqrt())
    kurtosis = float(numbers.pow(4).mean()) / spread**4
    scheme, scheme_z = _nearest_scheme(spread, numbers.shape, kurtosis, initial_spread)
    several = classes > 1
    precision = _precision(matrix)
    distinct = _distinct_share(numbers, precision)
    draw = _draw(matrix) if precision == "float32" and distinct >= _DISTINCT else _Draw()
    dead = (numbers == numbers[:, :1]).all(dim=1)
    return MatrixStatistics(
        name=name,
        dtype=dtype,
        classes=classes,
        features=features,
        spread=spread,
        mean=float(numbers.mean()),
        largest=float(numbers.abs().max()),
        kurtosis=kurtosis,
        shape_z=min((_shape_z(kurtosis, numbers.numel(), usual) for _, usual in _DISTRIBUTIONS), key=abs),
        initial_spread=initial_spread,
        spread_z=None if initial_spread is None else spread_z(spread, initial_spread, numbers.numel(), kurtosis),
        scheme=scheme,
        scheme_z=scheme_z,
        mean_row=float(numbers.mean(dim=0).norm() / numbers.norm(dim=1).mean()) if several else None,
        mean_row_expected=1 / math.sqrt(classes) if several else None,
        mean_row_z=_mean_row_z(numbers) if several else None,
        cosine=_mean_cosine(numbers) if several else None,
        cosine_least=-1 / (classes - 1) if several else None,
        rows_z=_unequal_z(numbers.square().mean(dim=1), features, kurtosis) if several else None,
        columns_z=_unequal_z(numbers.square().mean(dim=0), classes, kurtosis),
        spectrum=_spectrum(numbers, spread),
        draw=draw.name,
        draw_z=draw.strength,
        draw_share=draw.share,
        dead_rows=tuple(torch.nonzero(dead).flatten().tolist()),
        duplicate_rows=_duplicates(numbers),
        zeros=int((numbers[~dead] == 0).sum()),
        precision=precision,
        distinct=distinct,
    )


def bias_statistics(name: str, bias: torch.Tensor, features: int) -> BiasStatistics:
    """Statistics of a bias of finite floats, for a classifier that reads `features` numbers. `bias` is [classes]."""
    numbers = bias.detach().to("cpu", torch.float64).flatten()
    largest = float(numbers.abs().max()) if numbers.numel() else 0.0
    bound = 1 / math.sqrt(features)
    return BiasStatistics(
        name=name,
        zeros=int((numbers == 0).sum()),
        count=numbers.numel(),
        largest=largest,
        spread=float(numbers.square().mean().sqrt()) if numbers.numel() else 0.0,
        is_drawn=_may_be_uniform(numbers, bound),
        is_constant=numbers.numel() > 1 and largest > 0 and bool((numbers == numbers[0]).all()),
    )


def spread_z(spread: float, expected: float, count: int, kurtosis: float) -> float:
    """How many standard deviations a root mean square of `count` numbers is from the expected one."""
    if expected <= 0 or spread <= 0:
        return math.inf
    return math.log(spread / expected) / math.sqrt(max(kurtosis - 1, 0.5) / (4 * count))


def known_schemes(shape: tuple[int, ...], initial_spread: float | None) -> dict[str, float]:
    """The spreads that usual initializations give a weight [classes, features].

    Xavier: Glorot and Bengio, 2010; Kaiming: He et al., 2015; orthogonal: Saxe et al., 2014.
    """
    classes, features = shape
    schemes = {"the class's own initialization": initial_spread} if initial_spread else {}
    return schemes | {
        "normal(0.02)": 0.02,
        "nn.Linear's default": math.sqrt(1 / (3 * features)),
        "Xavier": math.sqrt(2 / (classes + features)),
        "Kaiming normal": math.sqrt(2 / features),
        "orthogonal": math.sqrt(1 / max(classes, features)),
    }


def _nearest_scheme(
    spread: float, shape: tuple[int, ...], kurtosis: float, initial_spread: float | None
) -> tuple[str, float]:
    count = math.prod(shape)
    near = {
        name: spread_z(spread, expected, count, min(kurtosis, 3.0))
        for name, expected in known_schemes(shape, initial_spread).items()
    }
    name = min(near, key=lambda item: abs(near[item]))
    return name, near[name]


def _shape_z(kurtosis: float, count: int, usual: float) -> float:
    """The fourth moment against a usual one; 24/n is its variance for a normal distribution, less for others."""
    variance = {3.0: 24.0, 1.8: 1.45, 2.36: 9.0}[usual]
    return (kurtosis - usual) / math.sqrt(variance / count)


def _mean_row_z(numbers: torch.Tensor) -> float:
    """Fisher's z of the variance of the mean row over that of the rows around it.

    Their ratio has an F distribution for independent normal numbers, of any spread. A softmax leaves the mean row where
    it began and moves the others away from it, so training lowers it.
    """
    classes, features = numbers.shape
    mean = numbers.mean(dim=0)
    between = float(mean.square().sum()) * classes / features
    within = float((numbers - mean).square().sum()) / ((classes - 1) * features)
    if between <= 0 or within <= 0:
        return math.copysign(1e3, between - within)
    free = features, (classes - 1) * features
    expected = (1 / free[1] - 1 / free[0]) / 2
    return (math.log(between / within) / 2 - expected) / math.sqrt((1 / free[0] + 1 / free[1]) / 2)


def _mean_cosine(numbers: torch.Tensor) -> float:
    lengths = numbers.norm(dim=1, keepdim=True)
    units = numbers / torch.where(lengths > 0, lengths, 1.0)
    count = len(units)
    return float((units.sum(dim=0).square().sum() - units.square().sum()) / (count * (count - 1)))


def _unequal_z(energies: torch.Tensor, each: int, kurtosis: float) -> float:
    """How unequal the mean squares of rows or columns are, each of `each` numbers, in standard deviations."""
    count = energies.numel()
    mean = float(energies.mean())
    if count < 2:  # a single one equals itself
        return 0.0
    variance = float((energies / mean - 1).square().sum()) / (count - 1)
    expected = max(kurtosis - 1, 0.5) / each
    return (variance / expected - 1) / math.sqrt(2 / (count - 1) + 12 / (each * count))


def _spectrum(numbers: torch.Tensor, spread: float) -> Spectrum:
    products = numbers @ numbers.T if numbers.shape[0] <= numbers.shape[1] else numbers.T @ numbers
    values = torch.linalg.eigvalsh(products).flip(0).clamp(min=0).sqrt()
    shares = values.square() / values.square().sum()
    rank = float(torch.exp(-(shares * torch.log(shares.clamp(min=1e-300))).sum()))
    small, large = sorted(numbers.shape)
    return Spectrum(
        largest=tuple(float(item) for item in values[:8]),
        effective_rank=rank,
        top_z=top_z(float(values[0]) / spread, small, large) if small > 1 else None,
    )


def top_z(top: float, small: int, large: int) -> float:
    """The largest singular value of unit noise against the law of Tracy and Widom, with Johnstone's constants.

    `top` is that of a matrix [small, large] or [large, small]. Johnstone, 2001; the law's mean is -1.21, its deviation
    1.27.
    """
    wide, narrow = math.sqrt(large - 0.5), math.sqrt(small - 0.5)
    center = (wide + narrow) ** 2
    scale = (wide + narrow) * (1 / wide + 1 / narrow) ** (1 / 3)
    return float((top**2 - center) / scale + 1.21) / 1.27


def _precision(matrix: torch.Tensor) -> str:
    """The coarsest dtype that holds every number as it is: numbers that were rounded stay so in a wider file."""
    stored = str(matrix.dtype).removeprefix("torch.")
    every = (torch.bfloat16, torch.float16, torch.float32)
    same = (str(item).removeprefix("torch.") for item in every if bool((matrix.to(item).to(matrix) == matrix).all()))
    return next(same, stored)


def _distinct_share(numbers: torch.Tensor, precision: str) -> float:
    """How many different numbers there are, zeros left out, in parts of what a draw has that was rounded alike.

    Numbers that were rounded to few steps have few. A draw of one spread that is rounded to 8 or 11 bits repeats too.
    """
    living = _sampled(numbers.flatten())
    living = living[living != 0].abs()
    drawn = torch.randn(living.numel(), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    usual = drawn.mul(living.square().mean().sqrt()).to(getattr(torch, precision)).abs()
    return len(torch.unique(living)) / max(1, len(torch.unique(usual)))


def _sampled(numbers: torch.Tensor) -> torch.Tensor:
    """All numbers; of more than `_MOST_TESTED`, blocks at equal distances."""
    if numbers.numel() <= _MOST_TESTED:
        return numbers
    blocks = numbers[: numbers.numel() // _BLOCK * _BLOCK].reshape(-1, _BLOCK)
    return blocks[:: -(-numbers.numel() // _MOST_TESTED)].flatten()


def _duplicates(numbers: torch.Tensor) -> tuple[int, ...]:
    """The rows that equal an earlier one."""
    factors = torch.randint(-(2**62), 2**62, numbers.shape[1:], generator=torch.Generator().manual_seed(0))
    bits = (numbers + 0.0).contiguous().view(torch.int64)  # sums of whole numbers are equal for equal rows
    bits = bits ^ (bits >> 29)  # those below are zero in every number that was a float32
    hashes = (bits * factors).sum(dim=1)
    if len(torch.unique(hashes)) == len(hashes):
        return ()
    _, places = torch.unique(numbers, dim=0, return_inverse=True)
    seen: set[int] = set()
    found = []
    for row, place in enumerate(places.tolist()):
        if place in seen:
            found.append(row)
        seen.add(place)
    return tuple(found)


def _may_be_uniform(numbers: torch.Tensor, bound: float) -> bool:
    """Whether numbers may be a uniform draw from -bound to bound: inside, and not all of them near zero.

    All of `count` numbers are below a part of the bound with the probability of that part to the power of `count`.
    """
    largest = float(numbers.abs().max()) / bound if numbers.numel() else 0.0
    return 0 < largest <= 1 + _ROUNDING and largest ** numbers.numel() > _UNLIKELY


@dataclass(frozen=True, slots=True)
class _Draw:
    """A test against the grid of a draw; `share` of the numbers is on it. `strength` is None where none was made."""

    name: str = ""
    strength: float | None = None
    share: float = 0.0


def _draw(matrix: torch.Tensor) -> _Draw:
    """Which draw of PyTorch's generator on the CPU the numbers are on the grid of, and how strongly.

    A float32 number from 0 to 1 is a multiple of 2**-24. `normal_` makes its numbers in pairs from two such numbers,
    one of which is the angle of the pair; `uniform_` shifts and scales one. A change of one part in a million, as by a
    single step of training, leaves no grid. Numbers that were rounded to other dtypes are too coarse to show it.
    """
    if matrix.numel() < _FEWEST_PAIRS * 2:
        return _Draw()
    numbers = _sampled(matrix.detach().to("cpu", torch.float64).flatten())
    bounds = (1 / math.sqrt(matrix.shape[1]), math.sqrt(6 / sum(matrix.shape)))
    found = [_tested("normal", _angles(numbers), _REGULAR_ANGLES)]
    for bound in (item for item in bounds if float(numbers.abs().max()) <= item * (1 + 1e-6)):
        usual = _tested("", _places(_uniform_draw(numbers.numel(), bound), bound), 1.0)
        found.append(_tested("uniform", _places(numbers, bound), usual.share))
    return max(found, key=lambda item: item.strength or 0)


def _places(numbers: torch.Tensor, bound: float) -> torch.Tensor:
    """How far numbers are from the middle of a uniform draw, as parts of its width."""
    return numbers / bound / 2


def _uniform_draw(count: int, bound: float) -> torch.Tensor:
    """A fresh draw between these bounds: how much of the grid is left after rounding depends on them."""
    numbers = torch.empty(max(count, _FEWEST_PAIRS * 8))
    return numbers.uniform_(-bound, bound, generator=torch.Generator().manual_seed(0)).double()


def _tested(name: str, parts: torch.Tensor, usual: float) -> _Draw:
    """Rayleigh's test on the places between the points of the grid: about 0.9 +- 0.5 at random, more on the grid.

    Every place counts once: zeros and constants share a few. Half of a draw fits a grid that is twice as coarse, and
    all numbers that were rounded to fewer bits; where that grid fits too, the numbers show no draw.
    """
    distinct: torch.Tensor = torch.unique(parts)
    count = distinct.numel()
    if count < _FEWEST_PAIRS:
        return _Draw(name, 0.0)
    regular = _regularity(distinct * _GRID)
    if _regularity(distinct * _GRID / 2) * math.sqrt(count) >= _COARSE:
        return _Draw(name, 0.0)
    share = regular / usual * count / parts.numel() if usual else 0.0
    return _Draw(name, regular * math.sqrt(count), min(1.0, share))


def _regularity(places: torch.Tensor) -> float:
    """How much the places between whole numbers agree: 1 if all are the same, about 0 at random."""
    turns = (places % 1) * 2 * math.pi
    return math.sqrt(float(turns.cos().mean() ** 2 + turns.sin().mean() ** 2))


def _angles(numbers: torch.Tensor) -> torch.Tensor:
    """The angle of each pair as a part of a turn; a last block that is not full overlaps the one before it."""
    blocks = numbers[: numbers.numel() // _BLOCK * _BLOCK].reshape(-1, 2, _BLOCK // 2)
    return (torch.atan2(blocks[:, 1], blocks[:, 0]) / (2 * math.pi)).flatten()
