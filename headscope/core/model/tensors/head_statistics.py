"""Statistics of a classifier's numbers that tell a fresh draw from a trained matrix; docs/health.md derives them.

Each `z` is zero on average for independent numbers of one distribution, with a standard deviation of about 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from headscope.core.facts.health import BiasStatistics, MatrixStatistics, Spectrum

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
_KURTOSIS = {3.0: 24.0, 1.8: 1.45, 2.36: 9.0}
"""Kurtosis of the distributions that initializations draw from (normal, uniform, truncated normal), and what its
variance in n numbers is n times. `trunc_normal_` cuts at two standard deviations at most, and at none with the usual
spreads."""


def matrix_statistics(name: str, matrix: torch.Tensor, initial_spread: float | None) -> MatrixStatistics:
    """Computes statistics of a weight [classes, features] of finite floats, not all of them zero."""
    dtype = str(matrix.dtype).removeprefix("torch.")
    numbers = matrix.detach().to("cpu", torch.float64)
    classes, features = numbers.shape
    spread = float(numbers.square().mean().sqrt())
    kurtosis = float(numbers.pow(4).mean()) / spread**4
    scheme, scheme_z = _nearest_scheme(spread, numbers.shape, kurtosis, initial_spread)
    # A single row has no mean row, cosine or spread among rows.
    several = classes > 1
    precision = _coarsest_exact_dtype(matrix)
    distinct = _distinct_share(numbers, precision)
    draw = _find_draw(matrix) if precision == "float32" and distinct >= _DISTINCT else _Draw()
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
        shape_z=min(
            ((kurtosis - usual) / math.sqrt(variance / numbers.numel()) for usual, variance in _KURTOSIS.items()),
            key=abs,
        ),
        initial_spread=initial_spread,
        spread_z=None if initial_spread is None else spread_z(spread, initial_spread, numbers.numel(), kurtosis),
        scheme=scheme,
        scheme_z=scheme_z,
        mean_row=float(numbers.mean(dim=0).norm() / numbers.norm(dim=1).mean()) if several else None,
        mean_row_expected=1 / math.sqrt(classes) if several else None,
        mean_row_z=_mean_row_z(numbers) if several else None,
        cosine=_mean_cosine(numbers) if several else None,
        cosine_least=-1 / (classes - 1) if several else None,
        rows_z=_inequality_z(numbers.square().mean(dim=1), features, kurtosis) if several else None,
        columns_z=_inequality_z(numbers.square().mean(dim=0), classes, kurtosis),
        spectrum=_singular_spectrum(numbers, spread),
        draw=draw.name,
        draw_z=draw.strength,
        draw_share=draw.share,
        dead_rows=tuple(torch.nonzero(dead).flatten().tolist()),
        duplicate_rows=_find_duplicate_rows(numbers),
        zeros=int((numbers[~dead] == 0).sum()),
        precision=precision,
        distinct=distinct,
    )


def bias_statistics(name: str, bias: torch.Tensor, features: int) -> BiasStatistics:
    """Computes statistics of a bias [classes] of finite floats, for a classifier that reads `features` numbers."""
    numbers = bias.detach().to("cpu", torch.float64).flatten()
    largest = float(numbers.abs().max()) if numbers.numel() else 0.0
    bound = 1 / math.sqrt(features)
    # The probability that all of n numbers of a uniform draw are below a share p of the bound is p**n.
    share = largest / bound
    return BiasStatistics(
        name=name,
        zeros=int((numbers == 0).sum()),
        count=numbers.numel(),
        largest=largest,
        spread=float(numbers.square().mean().sqrt()) if numbers.numel() else 0.0,
        is_drawn=0 < share <= 1 + _ROUNDING and share ** numbers.numel() > _UNLIKELY,
        is_constant=numbers.numel() > 1 and largest > 0 and bool((numbers == numbers[0]).all()),
    )


def spread_z(spread: float, expected: float, count: int, kurtosis: float) -> float:
    """Gives how many standard deviations a root mean square of `count` numbers is from the expected one."""
    if expected <= 0 or spread <= 0:
        return math.inf
    return math.log(spread / expected) / math.sqrt(max(kurtosis - 1, 0.5) / (4 * count))


def known_schemes(shape: tuple[int, ...], initial_spread: float | None) -> dict[str, float]:
    """Gives the spread of a weight [classes, features] under each usual initialization.

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


def _mean_row_z(numbers: torch.Tensor) -> float:
    """Computes Fisher's z for the variance of the mean row over that of the rows around it.

    Their ratio has an F distribution for independent normal numbers, of any spread. A softmax leaves the mean row where
    it began and moves the others away from it, so training lowers it.
    """
    classes, features = numbers.shape
    mean = numbers.mean(dim=0)
    between = float(mean.square().sum()) * classes / features
    within = float((numbers - mean).square().sum()) / ((classes - 1) * features)
    # The logarithm needs both: equal rows, or rows without a mean, get a z beyond every threshold instead.
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


def _inequality_z(energies: torch.Tensor, each: int, kurtosis: float) -> float:
    """Gives how unequal the mean squares of rows or columns are, each of `each` numbers, in standard deviations."""
    count = energies.numel()
    mean = float(energies.mean())
    if count < 2:  # a single one equals itself
        return 0.0
    variance = float((energies / mean - 1).square().sum()) / (count - 1)
    expected = max(kurtosis - 1, 0.5) / each
    return (variance / expected - 1) / math.sqrt(2 / (count - 1) + 12 / (each * count))


def _singular_spectrum(numbers: torch.Tensor, spread: float) -> Spectrum:
    # The Gram matrix on the shorter side: its eigenvalues are the squared singular values, and it is small.
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
    """Compares the largest singular value of unit noise with the law of Tracy and Widom, with Johnstone's constants.

    `top` is that of a matrix [small, large] or [large, small]. Johnstone, 2001; the law's mean is -1.21, its deviation
    1.27.
    """
    wide, narrow = math.sqrt(large - 0.5), math.sqrt(small - 0.5)
    center = (wide + narrow) ** 2
    scale = (wide + narrow) * (1 / wide + 1 / narrow) ** (1 / 3)
    return float((top**2 - center) / scale + 1.21) / 1.27


def _coarsest_exact_dtype(matrix: torch.Tensor) -> str:
    """Finds the coarsest dtype that holds every value exactly: rounded numbers stay rounded in a wider file."""
    stored = str(matrix.dtype).removeprefix("torch.")
    every = (torch.bfloat16, torch.float16, torch.float32)
    same = (str(item).removeprefix("torch.") for item in every if bool((matrix.to(item).to(matrix) == matrix).all()))
    return next(same, stored)


def _distinct_share(numbers: torch.Tensor, precision: str) -> float:
    """Counts the different values, zeros left out, relative to a draw of the same spread that was rounded alike.

    Numbers that were rounded to few steps have few. A draw of one spread that is rounded to 8 or 11 bits repeats too.
    """
    living = _sample_blocks(numbers.flatten())
    living = living[living != 0].abs()
    drawn = torch.randn(living.numel(), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    usual = drawn.mul(living.square().mean().sqrt()).to(getattr(torch, precision)).abs()
    return len(torch.unique(living)) / max(1, len(torch.unique(usual)))


def _sample_blocks(numbers: torch.Tensor) -> torch.Tensor:
    """Returns all numbers, or blocks at equal distances if there are more than `_MOST_TESTED`."""
    if numbers.numel() <= _MOST_TESTED:
        return numbers
    blocks = numbers[: numbers.numel() // _BLOCK * _BLOCK].reshape(-1, _BLOCK)
    return blocks[:: -(-numbers.numel() // _MOST_TESTED)].flatten()


def _find_duplicate_rows(numbers: torch.Tensor) -> tuple[int, ...]:
    """Finds the rows that equal an earlier one."""
    factors = torch.randint(-(2**62), 2**62, numbers.shape[1:], generator=torch.Generator().manual_seed(0))
    bits = (numbers + 0.0).contiguous().view(torch.int64)  # sums of whole numbers are equal for equal rows
    bits = bits ^ (bits >> 29)  # those below are zero in every value that was a float32
    hashes = (bits * factors).sum(dim=1)
    if len(torch.unique(hashes)) == len(hashes):
        return ()
    _, places = torch.unique(numbers, dim=0, return_inverse=True)
    first: dict[int, int] = {}
    return tuple(row for row, place in enumerate(places.tolist()) if first.setdefault(place, row) != row)


@dataclass(frozen=True, slots=True)
class _Draw:
    """Test against the grid of a draw; `share` of the numbers is on it. `strength` is None where none was made."""

    name: str = ""
    strength: float | None = None
    share: float = 0.0


def _find_draw(matrix: torch.Tensor) -> _Draw:
    """Finds the draw of PyTorch's CPU generator on whose grid the numbers are, and how strongly they are on it.

    A float32 number from 0 to 1 is a multiple of 2**-24. `normal_` makes its values in pairs from two such numbers,
    one of which is the angle of the pair; `uniform_` shifts and scales one. A change of one part in a million, as by a
    single step of training, leaves no grid. Numbers that were rounded to other dtypes are too coarse to show it.
    """
    if matrix.numel() < _FEWEST_PAIRS * 2:
        return _Draw()
    numbers = _sample_blocks(matrix.detach().to("cpu", torch.float64).flatten())
    bounds = (1 / math.sqrt(matrix.shape[1]), math.sqrt(6 / sum(matrix.shape)))
    # The angle of each pair that `normal_` made, as a part of a turn; only full blocks count.
    blocks = numbers[: numbers.numel() // _BLOCK * _BLOCK].reshape(-1, 2, _BLOCK // 2)
    angles = (torch.atan2(blocks[:, 1], blocks[:, 0]) / (2 * math.pi)).flatten()
    found = [_test_grid("normal", angles, _REGULAR_ANGLES)]
    for bound in (item for item in bounds if float(numbers.abs().max()) <= item * (1 + 1e-6)):
        # How much of the grid is left after rounding depends on the bounds: a fresh draw between them is the measure.
        fresh = torch.empty(max(numbers.numel(), _FEWEST_PAIRS * 8))
        fresh.uniform_(-bound, bound, generator=torch.Generator().manual_seed(0))
        usual = _test_grid("", _places_in_range(fresh.double(), bound), 1.0)
        found.append(_test_grid("uniform", _places_in_range(numbers, bound), usual.share))
    return max(found, key=lambda item: item.strength or 0)


def _places_in_range(numbers: torch.Tensor, bound: float) -> torch.Tensor:
    """Gives how far numbers are from the middle of a uniform draw, as parts of its width."""
    return numbers / bound / 2


def _test_grid(name: str, parts: torch.Tensor, usual: float) -> _Draw:
    """Runs Rayleigh's test on the places between the grid's points: about 0.9 +- 0.5 at random, more on the grid.

    Every place counts once: zeros and constants share a few. Half of a draw fits a grid that is twice as coarse, and
    all numbers that were rounded to fewer bits; where that grid fits too, the numbers show no draw.
    """
    distinct: torch.Tensor = torch.unique(parts)
    count = distinct.numel()
    if count < _FEWEST_PAIRS:
        return _Draw(name, 0.0)
    regular = _phase_agreement(distinct * _GRID)
    if _phase_agreement(distinct * _GRID / 2) * math.sqrt(count) >= _COARSE:
        return _Draw(name, 0.0)
    share = regular / usual * count / parts.numel() if usual else 0.0
    return _Draw(name, regular * math.sqrt(count), min(1.0, share))


def _phase_agreement(places: torch.Tensor) -> float:
    """Gives how much the places between whole numbers agree: 1 if all are the same, about 0 at random."""
    turns = (places % 1) * 2 * math.pi
    return math.sqrt(float(turns.cos().mean() ** 2 + turns.sin().mean() ** 2))
