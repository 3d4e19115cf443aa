"""What the numbers of a matrix and a bias show of how they were drawn: against NumPy, SciPy and real draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from headscope.core.model.tensors.head_statistics import (
    bias_statistics,
    known_schemes,
    matrix_statistics,
    spread_z,
    top_z,
)

# Statistics


@pytest.mark.parametrize("shape", [(5, 70), (70, 5), (2, 2), (1, 70)])
@pytest.mark.parametrize("initial", [0.02, None])
def test_statistics_are_those_of_numpy_and_scipy(shape: tuple[int, int], initial: float | None) -> None:
    classes = shape[0]
    matrix = torch.randn(shape) * 0.03
    matrix[:, 1] *= 4
    found = matrix_statistics("w", matrix, initial)
    plain = matrix.double().numpy()
    spread = math.sqrt((plain**2).mean())
    kurtosis = (plain**4).mean() / (plain**2).mean() ** 2
    assert (found.classes, found.features, found.dtype, found.precision) == (*shape, "float32", "float32")
    assert found.spread == pytest.approx(spread)
    assert found.mean == pytest.approx(plain.mean())
    assert found.largest == pytest.approx(np.abs(plain).max())
    assert found.kurtosis == pytest.approx(kurtosis)
    usual = [(kurtosis - k) / math.sqrt(v / plain.size) for k, v in ((3, 24), (1.8, 1.45), (2.36, 9))]
    assert found.shape_z == pytest.approx(min(usual, key=abs))
    error = math.sqrt((kurtosis - 1) / 4 / plain.size)
    assert found.spread_z == (None if initial is None else pytest.approx(math.log(spread / initial) / error))
    assert found.columns_z == pytest.approx(unequal_z(plain.T, kurtosis))
    singular = np.linalg.svd(plain, compute_uv=False)
    assert found.spectrum.largest == pytest.approx(tuple(singular)[:8])
    assert found.spectrum.effective_rank == pytest.approx(math.exp(stats.entropy(singular**2)))
    of_rows = found.mean_row, found.mean_row_expected, found.mean_row_z, found.cosine, found.cosine_least, found.rows_z
    if classes == 1:
        assert (*of_rows, found.spectrum.top_z) == (None,) * 7
        return
    lengths = np.linalg.norm(plain, axis=1)
    assert found.mean_row == pytest.approx(np.linalg.norm(plain.mean(axis=0)) / lengths.mean())
    assert found.mean_row_expected == pytest.approx(classes**-0.5)
    units = plain / lengths[:, None]
    assert found.cosine == pytest.approx((units @ units.T)[~np.eye(classes, dtype=bool)].mean())
    assert found.cosine_least == -1 / (classes - 1)
    assert found.rows_z == pytest.approx(unequal_z(plain, kurtosis))
    one, other = shape[1], (classes - 1) * shape[1]  # Fisher's z of a ratio of variances
    ratio = classes * (plain.mean(axis=0) ** 2).mean() / plain.var(axis=0, ddof=1).mean()
    z = (math.log(ratio) / 2 - (1 / other - 1 / one) / 2) / math.sqrt((1 / one + 1 / other) / 2)
    assert found.mean_row_z == pytest.approx(z)
    ends = [math.sqrt(size - 0.5) for size in shape]  # Johnstone's; 1.21 and 1.27 are of the law for real numbers
    scale = sum(ends) * (1 / ends[0] + 1 / ends[1]) ** (1 / 3)
    top = ((singular[0] / spread) ** 2 - sum(ends) ** 2) / scale
    assert found.spectrum.top_z == pytest.approx((top + 1.21) / 1.27)


def unequal_z(rows: Any, kurtosis: float) -> float:
    """The variance of the rows' mean squares against that of independent numbers of this kurtosis."""
    count, each = rows.shape
    if count == 1:
        return 0.0
    energies = (rows**2).mean(axis=1)
    ratio = np.var(energies / energies.mean(), ddof=1) * each / (kurtosis - 1)
    return float((ratio - 1) / math.sqrt(2 / (count - 1) + 12 / each / count))


def test_statistics_of_numbers_that_have_no_spread_in_some_direction() -> None:
    same = matrix_statistics("w", torch.tensor([[1.0, 2.0], [1.0, 2.0]]), None)
    assert (same.mean_row, same.mean_row_z, same.cosine, same.duplicate_rows) == (1.0, 1e3, pytest.approx(1), (1,))
    assert (same.rows_z, same.spectrum.effective_rank) == (pytest.approx(-((2 + 12 / 4) ** -0.5)), pytest.approx(1))
    opposite = matrix_statistics("w", torch.tensor([[1.0, 2.0], [-1.0, -2.0]]), None)
    assert (opposite.mean_row, opposite.mean_row_z, opposite.cosine) == (0.0, -1e3, pytest.approx(-1))
    constant = matrix_statistics("w", torch.full((2, 3), 0.5), 0.5)  # a kurtosis of 1 counts as 1.5
    assert (constant.dead_rows, constant.zeros, constant.spread_z) == ((0, 1), 0, 0.0)
    assert constant.rows_z == pytest.approx(-((2 + 12 / 6) ** -0.5))
    grown = matrix_statistics("w", torch.full((2, 3), 1.0), 0.5)
    assert grown.spread_z == pytest.approx(math.log(2) / math.sqrt(0.5 / 24))
    partly = matrix_statistics("w", torch.tensor([[0.0, 0.0], [0.0, 3.0], [0.0, -3.0], [0.0, 3.0]]), None)
    assert (partly.dead_rows, partly.duplicate_rows, partly.zeros) == ((0,), (3,), 3)
    assert partly.cosine == pytest.approx(-2 / 12)
    assert matrix_statistics("w", torch.tensor([[0.0, 1.0], [-0.0, 1.0]]), None).duplicate_rows == (1,)


def test_the_usual_schemes_have_the_spreads_that_pytorch_gives_them() -> None:
    schemes = known_schemes((30, 500), None)
    for name, draw in (
        ("Xavier", nn.init.xavier_normal_),
        ("Kaiming normal", nn.init.kaiming_normal_),
        ("nn.Linear's default", lambda weight: nn.init.kaiming_uniform_(weight, a=math.sqrt(5))),
        ("orthogonal", nn.init.orthogonal_),
    ):
        assert schemes[name] == pytest.approx(float(draw(torch.empty(30, 500)).std()), rel=0.03)
    assert known_schemes((500, 30), None)["orthogonal"] == pytest.approx(500**-0.5)
    assert known_schemes((30, 500), 0.7) == schemes | {"the class's own initialization": 0.7}
    assert [spread_z(*values, 10, 3.0) for values in ((0.0, 1.0), (1.0, 0.0))] == [math.inf] * 2


@pytest.mark.parametrize(
    ("numbers", "zeros", "largest", "spread", "drawn"),
    [([], 0, 0.0, 0.0, False), ([0.0, 0.0], 2, 0.0, 0.0, False), ([0.0, 0.2], 1, 0.2, 0.02**0.5, True),
     ([0.25, -0.25], 0, 0.25, 0.25, True), ([-0.2509], 0, 0.2509, 0.2509, True), ([0.252], 0, 0.252, 0.252, False),
     ([0.0249] * 4, 0, 0.0249, 0.0249, False), ([0.0251] * 4, 0, 0.0251, 0.0251, True)],
)  # fmt: skip
def test_a_bias_may_be_a_draw_between_the_bounds_of_its_layer(
    numbers: list[float], zeros: int, largest: float, spread: float, drawn: bool
) -> None:
    """Of 16 features: the bound is 1/4, and four draws are all below a tenth of it once in 10,000."""
    found = bias_statistics("b", torch.tensor(numbers), 16)
    assert (found.zeros, found.count, found.is_drawn) == (zeros, len(numbers), drawn)
    assert (found.largest, found.spread) == (pytest.approx(largest), pytest.approx(spread))


@pytest.mark.parametrize(("first", "precision"), [(torch.bfloat16, "bfloat16"), (torch.float16, "float16")])
@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_precision_is_that_of_the_numbers_and_not_of_the_file(
    first: torch.dtype, precision: str, stored: torch.dtype
) -> None:
    if stored.itemsize == 2 and stored != first:
        return
    numbers = torch.linspace(1, 2, 60).reshape(2, 30).to(first).to(stored)
    assert matrix_statistics("w", numbers, None).precision == precision
    fine = matrix_statistics("w", torch.linspace(1, 2, 60, dtype=torch.float64).reshape(2, 30), None)
    assert (fine.precision, fine.dtype) == ("float64", "float64")


def test_numbers_on_a_grid_that_is_coarser_than_that_of_a_draw_are_none() -> None:
    """With 256 features the bound is 1/16, and multiples of 2**-20 are on the grid of a draw, as on coarser ones."""
    found: Any = matrix_statistics("w", torch.randint(-(2**16), 2**16, (2, 256)) / 2**20, None)
    assert found.precision == "float32"
    assert found.draw_z < 4


def test_a_draw_needs_24_pairs_and_is_read_from_a_part_of_many_numbers() -> None:
    draws = {size: nn.init.normal_(torch.empty(1, size)) for size in (47, 400, (1 << 20) + 160_001)}
    found: list[Any] = [matrix_statistics("w", weight, None) for weight in draws.values()]
    assert [item.draw for item in found] == ["", "normal", "normal"]
    assert (found[0].draw_z, found[0].draw_share) == (None, 0.0)
    assert all(item.draw_share > 0.7 for item in found[1:])
    assert found[2].draw_z > 100  # half a million pairs, and no block in another's place


def test_the_mean_row_has_an_f_distribution() -> None:
    found = []
    for _ in range(300):
        matrix = torch.randn(4, 60, dtype=torch.float64)
        plain = matrix.numpy()
        mean = plain.mean(axis=0)
        ratio = (mean**2).sum() * 4 / 60 / (((plain - mean) ** 2).sum() / (3 * 60))
        z: Any = matrix_statistics("w", matrix, None).mean_row_z
        assert stats.norm.cdf(z) == pytest.approx(stats.f.cdf(ratio, 60, 180), abs=0.02)
        found.append(z)
    assert stats.kstest(found, "norm").pvalue > 1e-3


@pytest.mark.parametrize(("classes", "features"), [(2, 64), (6, 384), (30, 64)])
@pytest.mark.parametrize("draw", [nn.init.normal_, lambda w: nn.init.uniform_(w, -0.03, 0.03)])
def test_fresh_statistics_are_standard_normal(draw: Callable[[Any], Any], classes: int, features: int) -> None:
    every = [matrix_statistics("w", draw(torch.empty(classes, features)), None) for _ in range(80)]
    for values in (
        [item.mean_row_z for item in every],
        [item.rows_z for item in every],
        [item.columns_z for item in every],
        [item.spectrum.top_z for item in every],
    ):
        numbers = [value for value in values if value is not None]
        assert len(numbers) == 80
        assert abs(np.mean(numbers)) < 0.6
        assert np.std(numbers) < 1.6


@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_a_draw_of_pytorch_is_known_until_a_step_changes_it(kind: str) -> None:
    weight = torch.empty(6, 256)
    nn.init.normal_(weight, std=0.02) if kind == "normal" else nn.init.xavier_uniform_(weight)
    found = matrix_statistics("w", weight, None)
    assert (found.draw, found.draw_z is not None and found.draw_z > 8) == (kind, True)
    stepped = weight + 1e-6 * torch.randn(6, 256)
    elsewhere = weight.double().mul(1 + 1e-3 * torch.rand(6, 256).double()).float()
    for numbers in (stepped, elsewhere):
        changed: Any = matrix_statistics("w", numbers, None)
        assert changed.draw_z < 4
    assert matrix_statistics("w", weight.bfloat16(), None).draw_z is None


@pytest.mark.parametrize(("small", "large"), [(5, 20), (10, 40), (20, 100)])
def test_the_largest_singular_value_of_noise_is_as_its_law_says(small: int, large: int) -> None:
    draws = torch.randn(5000, small, large, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = torch.tensor([top_z(float(top), small, large) for top in torch.linalg.svdvals(draws)[:, 0]])
    assert abs(float(found.mean())) < 0.07
    assert 0.85 < float(found.std()) < 1.1


def test_the_mean_row_of_few_features_is_as_the_distribution_of_f_says() -> None:
    generator = torch.Generator().manual_seed(0)
    found = [matrix_statistics("w", torch.randn(200, 4, generator=generator), 0.02).mean_row_z for _ in range(1000)]
    assert abs(float(np.mean(np.array(found, dtype=float)))) < 0.08


def test_numbers_that_were_rounded_to_few_steps_repeat_and_pruned_ones_do_not() -> None:
    weight = torch.randn(4, 4000, generator=torch.Generator().manual_seed(0)) / 50
    pruned = weight * (weight.abs() > weight.abs().quantile(0.9))
    for numbers, few in ((weight, False), (pruned, False), (weight.sign() / 50, True), ((weight * 200).round(), True)):
        assert (matrix_statistics("w", numbers, 0.02).distinct < 0.5) is few
    assert matrix_statistics("w", pruned, 0.02).distinct == pytest.approx(1, abs=0.001)


@pytest.mark.parametrize(
    ("bias", "constant"), [([0.5, 0.5], True), ([0.5], False), ([0.0, 0.0], False), ([1, 2], False)]
)
def test_a_constant_bias_has_one_number_several_times(bias: list[float], constant: bool) -> None:
    assert bias_statistics("b", torch.tensor(bias, dtype=torch.float32), 16).is_constant is constant


@pytest.mark.parametrize(
    ("scheme", "draw"),
    [("normal(0.02)", lambda weight: nn.init.normal_(weight, std=0.02)), ("Xavier", nn.init.xavier_normal_),
     ("Xavier", nn.init.xavier_uniform_), ("orthogonal", nn.init.orthogonal_),
     ("Kaiming normal", lambda weight: nn.init.kaiming_normal_(weight, nonlinearity="relu")),
     ("nn.Linear's default", lambda weight: nn.init.kaiming_uniform_(weight, a=math.sqrt(5)))],
)  # fmt: skip
def test_the_scheme_is_the_one_that_drew_the_numbers(scheme: str, draw: Callable[[torch.Tensor], torch.Tensor]) -> None:
    torch.manual_seed(0)
    found = matrix_statistics("w", draw(torch.empty(300, 700)), None)
    assert (found.scheme, abs(found.scheme_z) < 3) == (scheme, True)
