"""Whether a classifier was trained: statistics against plain NumPy and SciPy, verdicts on heads made here, and gaps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy import stats
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    LlamaConfig,
    LlamaForSequenceClassification,
    PreTrainedModel,
)

import headscope
from headscope.checks.health import CHANGED, judge_numbers, probability, signs_of, verdict_of
from headscope.errors import UsageError
from headscope.facts import HealthBasis, HealthVerdict
from headscope.facts.results.health import HeadHealth, InitialSpread
from headscope.model.tensors.head_statistics import (
    bias_statistics,
    known_schemes,
    matrix_statistics,
    spread_z,
    top_z,
)
from headscope.model.tensors.initialization import initial_spread
from tests.model.test_quantized import save as save_packed
from tests.saving import save_sharded_safetensors, save_torch_legacy, save_torch_zip

FRESH, BRIEFLY, TRAINED = HealthVerdict.FRESH, HealthVerdict.BRIEFLY_TRAINED, HealthVerdict.TRAINED
COLLAPSED, OPEN = HealthVerdict.COLLAPSED, HealthVerdict.NOT_DETERMINED
WIDTH = 128
REAL = Path(__file__).parents[3] / "shared" / "real" / "checkpoints"


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(7)


def bert(**changes: Any) -> BertForSequenceClassification:
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 60}
    return BertForSequenceClassification(BertConfig(**({"hidden_size": WIDTH, "num_labels": 3} | sizes | changes)))


def llama(**changes: Any) -> LlamaForSequenceClassification:
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 60}
    return LlamaForSequenceClassification(
        LlamaConfig(hidden_size=WIDTH, num_labels=3, pad_token_id=0, **(sizes | changes))
    )


def train(head: nn.Linear, steps: int, rate: float) -> None:
    """The classifier alone, on clusters of features."""
    centres = torch.randn(head.out_features, head.in_features)
    optimizer = torch.optim.AdamW(head.parameters(), rate)
    for _ in range(steps):
        labels = torch.randint(head.out_features, (32,))
        optimizer.zero_grad()
        features = centres[labels] + torch.randn(32, head.in_features)
        loss: Any = nn.functional.cross_entropy(head(features), labels)
        loss.backward()
        optimizer.step()


def health_of(folder: Path, **options: Any) -> HeadHealth:
    found = headscope.inspect(folder, health=True, **options).health
    assert found is not None
    return found


def saved(model: PreTrainedModel, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


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
    found = matrix_statistics("w", torch.randint(-(2**16), 2**16, (2, 256)) / 2**20, None)
    assert found.precision == "float32"
    assert found.draw_z is not None
    assert found.draw_z < 4


def test_a_draw_needs_24_pairs_and_is_read_from_a_part_of_many_numbers() -> None:
    draws = {size: nn.init.normal_(torch.empty(1, size)) for size in (47, 400, (1 << 20) + 160_001)}
    found = [matrix_statistics("w", weight, None) for weight in draws.values()]
    assert [item.draw for item in found] == ["", "normal", "normal"]
    assert (found[0].draw_z, found[0].draw_share) == (None, 0.0)
    assert all(item.draw_share > 0.7 for item in found[1:])
    last = found[2].draw_z
    assert last is not None
    assert last > 100  # half a million pairs, and no block in another's place


def test_the_mean_row_has_an_f_distribution() -> None:
    found = []
    for _ in range(300):
        matrix = torch.randn(4, 60, dtype=torch.float64)
        plain = matrix.numpy()
        mean = plain.mean(axis=0)
        ratio = (mean**2).sum() * 4 / 60 / (((plain - mean) ** 2).sum() / (3 * 60))
        z = matrix_statistics("w", matrix, None).mean_row_z
        assert z is not None
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


def test_softmax_training_leaves_the_mean_row_where_it_began() -> None:
    head = nn.Linear(WIDTH, 5)
    before = head.weight.detach().mean(dim=0).clone()
    optimizer = torch.optim.SGD(head.parameters(), 0.1)
    for _ in range(50):
        loss: Any = nn.functional.cross_entropy(head(torch.randn(32, WIDTH)), torch.randint(5, (32,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert torch.allclose(head.weight.mean(dim=0), before, atol=1e-6)


def test_dead_and_repeated_rows_are_listed() -> None:
    matrix = torch.randn(5, 40)
    matrix[3], matrix[4] = 0.5, matrix[1]
    found = matrix_statistics("w", matrix, None)
    assert (found.dead_rows, found.duplicate_rows) == ((3,), (4,))


@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_a_draw_of_pytorch_is_known_until_a_step_changes_it(kind: str) -> None:
    weight = torch.empty(6, 256)
    nn.init.normal_(weight, std=0.02) if kind == "normal" else nn.init.xavier_uniform_(weight)
    found = matrix_statistics("w", weight, None)
    assert (found.draw, found.draw_z is not None and found.draw_z > 8) == (kind, True)
    changed = matrix_statistics("w", weight + 1e-6 * torch.randn(6, 256), None)
    assert changed.draw_z is not None
    assert changed.draw_z < 4
    elsewhere = matrix_statistics("w", weight.double().mul(1 + 1e-3 * torch.rand(6, 256).double()).float(), None)
    assert elsewhere.draw_z is not None
    assert elsewhere.draw_z < 4
    assert matrix_statistics("w", weight.bfloat16(), None).draw_z is None


# What a class puts into a fresh classifier


_SMALL: dict[str, Any] = {
    "vocab_size": 60, "num_hidden_layers": 1, "encoder_layers": 1, "decoder_layers": 1, "num_decoder_layers": 1,
    "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "intermediate_size": 32, "d_ff": 32, "num_labels": 3,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "weight"),
    [
        (AutoConfig.for_model("bert", hidden_size=48, initializer_range=0.05, **_SMALL), "classifier.weight"),
        (AutoConfig.for_model("bart", d_model=64, init_std=0.04, **_SMALL), "classification_head.out_proj.weight"),
        (
            AutoConfig.for_model("roberta", hidden_size=48, initializer_range=0.03, **_SMALL),
            "classifier.out_proj.weight",
        ),
        (AutoConfig.for_model("t5", d_model=64, num_layers=1, **_SMALL), "classification_head.out_proj.weight"),
    ],
)
def test_the_initial_spread_is_that_of_the_class(config: Any, weight: str) -> None:
    with torch.device("meta"):
        skeleton = AutoModelForSequenceClassification.from_config(config)
    state = torch.random.get_rng_state()
    found = initial_spread(skeleton, weight, getattr(config, "initializer_range", None))
    assert torch.equal(torch.random.get_rng_state(), state)
    real = [AutoModelForSequenceClassification.from_config(config).get_parameter(weight) for _ in range(20)]
    spread = float(torch.stack([item.detach() for item in real]).square().mean().sqrt())
    assert found.weight == pytest.approx(spread, rel=0.08)
    assert found.bias == 0


# Verdicts


@pytest.mark.parametrize(
    "scheme", ["xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "orthogonal_", "trunc_normal_", "odd"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("is_known", [True, False])
def test_no_initialization_is_called_trained(scheme: str, dtype: torch.dtype, has_bias: bool, is_known: bool) -> None:
    for classes, width in ((2, 64), (6, 256), (20, 128), (1, 512)):
        weight = torch.empty(classes, width)
        nn.init.normal_(weight, std=0.11) if scheme == "odd" else getattr(nn.init, scheme)(weight)
        bias = bias_statistics("bias", torch.zeros(classes), width) if has_bias else None
        initial = InitialSpread(0.02, 0.0 if has_bias else None) if is_known else None
        judged = judge_numbers(matrix_statistics("weight", weight.to(dtype), initial and 0.02), bias, initial, True)
        assert judged.verdict in (FRESH, OPEN), judged


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("classes", [2, 3, 50])
@pytest.mark.parametrize(
    "draw",
    [
        nn.init.uniform_,
        lambda w: nn.init.trunc_normal_(w, std=0.02, a=-0.02, b=0.02),
        lambda w: nn.init.sparse_(w, 0.5),
        nn.init.eye_,
    ],
    ids=["uniform from 0 to 1", "cut at one standard deviation", "sparse", "eye"],
)
def test_no_unusual_initialization_is_called_trained(
    draw: Callable[[Any], Any], classes: int, dtype: torch.dtype
) -> None:
    weight = torch.empty(classes, 768)
    for _ in range(3):
        draw(weight)
        judged = judge_numbers(matrix_statistics("weight", weight.to(dtype), None), None, None, None)
        assert judged.verdict in (FRESH, OPEN), judged


def test_a_default_linear_layer_is_not_called_trained_for_its_bias() -> None:
    for _ in range(20):
        head = nn.Linear(WIDTH, 4).to(torch.bfloat16)
        bias = bias_statistics("bias", head.bias, WIDTH)
        for initial in (None, InitialSpread(0.02, 0.0)):
            judged = judge_numbers(matrix_statistics("weight", head.weight, None), bias, initial, None)
            assert judged.verdict in (FRESH, OPEN), judged


def test_a_bias_that_code_sets_is_not_training() -> None:
    weight = torch.randn(4, WIDTH, dtype=torch.float64).mul(0.02).float()
    bias = bias_statistics("bias", torch.full((4,), -4.6), WIDTH)
    judged = judge_numbers(matrix_statistics("weight", weight, 0.02), bias, InitialSpread(0.02, 0.0), None)
    assert judged.verdict is OPEN
    untouched = nn.init.normal_(torch.empty(4, 512), std=0.02)
    bias = bias_statistics("bias", torch.tensor([-4.6, -2.0, -4.0, 1.0]), 512)
    judged = judge_numbers(matrix_statistics("weight", untouched, 0.02), bias, InitialSpread(0.02, 0.0), None)
    assert judged.verdict is OPEN
    assert "only the" in judged.reasons[0]


# Trained heads that were changed, and fresh ones with a bias that code set

REMADE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "pruned 50": lambda w: w * (w.abs() > w.abs().flatten().quantile(0.5)),
    "pruned 90": lambda w: w * (w.abs() > w.abs().flatten().quantile(0.9)),
    "pruned 98": lambda w: w * (w.abs() > w.abs().flatten().quantile(0.98)),
    "ternary": lambda w: w.sign() * (w.abs() > 0.7 * w.abs().mean()) * w.abs().mean(),
    "signs": lambda w: w.sign() * w.abs().mean(),
    "signs of each row": lambda w: w.sign() * w.abs().mean(dim=1, keepdim=True),
    "3 bits": lambda w: (w / w.abs().max() * 3).round() * w.abs().max() / 3,
    "8 bits": lambda w: (w / w.abs().max() * 127).round() * w.abs().max() / 127,
    "bfloat16": lambda w: w.bfloat16().float(),
    "float16": lambda w: w.half().float(),
    "float8": lambda w: w.to(torch.float8_e4m3fn).float(),
    "two decimals": lambda w: (w * 100).round() / 100,
    "multiples of 1/1024": lambda w: (w * 1024).round() / 1024,
}


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("width", [256, 768, 1024])  # 256 and 1024: the bound of a uniform draw is 2**-n
def test_rounding_is_no_draw(has_bias: bool, width: int) -> None:
    """Seed 7: every rounding of a trained weight lies on some grid, and none of them is that of the generator."""
    for classes, steps in ((2, 200), (20, 200)):
        head = nn.Linear(width, classes, bias=has_bias)
        nn.init.normal_(head.weight, std=0.02)
        if has_bias:
            nn.init.zeros_(head.bias)
        train(head, steps, 1e-3)
        bias = bias_statistics("bias", head.bias, width) if has_bias else None
        for remake in REMADE.values():
            found = matrix_statistics("weight", remake(head.weight.detach()), 0.02)
            judged = judge_numbers(found, bias, InitialSpread(0.02, 0.0 if has_bias else None), True)
            assert judged.verdict is not FRESH, judged
            assert judged.basis is not HealthBasis.DRAW, judged
            assert not any("only the" in reason for reason in judged.reasons)


@pytest.mark.parametrize("draw", [nn.init.normal_, lambda w: nn.init.normal_(w, std=0.02), nn.init.xavier_uniform_,
                                  lambda w: nn.init.kaiming_uniform_(w, a=5**0.5)])  # fmt: skip
def test_an_untouched_draw_is_told_from_rounding(draw: Callable[[torch.Tensor], Any]) -> None:
    """The other side, at the same sizes: seed 7."""
    for classes, width in ((2, 768), (3, 1024), (20, 256)):
        weight = torch.empty(classes, width)
        draw(weight)
        judged = judge_numbers(matrix_statistics("weight", weight, None), None, None, True)
        assert (judged.verdict, judged.basis) == (FRESH, HealthBasis.DRAW), judged
        again = judge_numbers(matrix_statistics("weight", weight.double(), None), None, None, True)
        assert (again.verdict, again.basis) == (FRESH, HealthBasis.DRAW)  # a wider dtype holds the same numbers


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("parts", [(0.7, 0.3), (0.5, 0.3, 0.2), (0.9, 0.05, 0.05), (0.25,) * 4, (0.05,) * 20])
def test_a_bias_of_log_priors_is_no_training(parts: tuple[float, ...], dtype: torch.dtype) -> None:
    """NumPy's generator, seed 11: off PyTorch's grid. The scores are random numbers around the priors."""
    drawn = np.random.default_rng(11).normal(0, 0.02, (len(parts), 768))
    for numbers in (torch.tensor(parts).log(), torch.tensor(parts).log() - torch.tensor(parts).log().mean() + 0.3):
        bias = bias_statistics("bias", numbers.to(dtype), 768)
        weight = matrix_statistics("weight", torch.from_numpy(drawn).to(dtype), 0.02)
        judged = judge_numbers(weight, bias, InitialSpread(0.02, 0.0), True)
        assert judged.verdict in (FRESH, OPEN), judged


@pytest.mark.parametrize("seed", range(4))
def test_short_training_with_a_frozen_bias_is_not_fresh(seed: int) -> None:
    """300 small steps leave little in the weight and nothing in the bias; longer training shows without it."""
    torch.manual_seed(seed)
    head = nn.Linear(768, 3)
    nn.init.normal_(head.weight, std=0.02)
    nn.init.zeros_(head.bias).requires_grad_(False)
    verdicts = []
    for steps, rate in ((300, 2e-6), (1000, 1e-3)):
        train(head, steps, rate)
        found = matrix_statistics("weight", head.weight, 0.02)
        bias = bias_statistics("bias", head.bias, 768)
        verdicts.append(judge_numbers(found, bias, InitialSpread(0.02, 0.0), True).verdict)
    assert verdicts[0] is OPEN
    assert verdicts[1] in (BRIEFLY, TRAINED)


@pytest.mark.parametrize("make", [bert, llama])
def test_heads_of_checkpoints(make: Callable[..., Any], tmp_path: Path) -> None:
    model = make()
    head = model.classifier if make is bert else model.score
    assert health_of(saved(model, tmp_path / "fresh")).verdict is FRESH
    train(head, 300, 3e-3)
    long = health_of(saved(model, tmp_path / "long"))
    assert (long.verdict, long.basis) == (TRAINED, HealthBasis.STATISTICS)
    assert long.confidence is not None
    assert 0.9 <= long.confidence < 1
    assert long.weight.mean_row_z is not None
    assert long.weight.mean_row_z < -4
    half = health_of(saved(model.to(torch.bfloat16), tmp_path / "half"))
    assert half.verdict is (TRAINED if half.bias else half.verdict) is not FRESH
    assert half.trained is not None
    assert half.trained > 0.8  # 384 coarse numbers without a bias may fall short of a verdict


def test_a_few_steps_show_in_the_bias_and_not_without_one(tmp_path: Path) -> None:
    model = bert()
    train(model.classifier, 20, 5e-5)
    found = health_of(saved(model, tmp_path / "bert"))
    assert (found.verdict, "at zero" in found.reasons[0]) == (BRIEFLY, True)
    other = llama()
    train(other.score, 20, 2e-5)
    found = health_of(saved(other.to(torch.bfloat16), tmp_path / "llama"))
    assert (found.verdict, found.confidence) == (OPEN, None)
    assert found.fresh is not None
    assert found.trained is not None
    assert found.fresh + (found.briefly_trained or 0) + found.trained == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda w: w.fill_(float("nan")), "NaN"),
        (lambda w: w[0].fill_(float("inf")), "infinity"),
        (lambda w: w.zero_(), "only zeros"),
        (lambda w: w.copy_(w[:1].expand_as(w)), "rows"),
        (lambda w: w.copy_(torch.tensor([[0.1], [0.2], [0.3]]).expand_as(w)), "one number"),
    ],
)
def test_collapsed_heads(change: Callable[[torch.Tensor], Any], word: str, tmp_path: Path) -> None:
    model = bert()
    with torch.no_grad():
        change(model.classifier.weight.copy_(model.classifier.weight.clone()))
    found = health_of(saved(model, tmp_path))
    assert (found.verdict, found.confidence) == (COLLAPSED, 1.0)
    assert word in found.reasons[0]


def test_a_classifier_that_the_load_makes_is_fresh_by_its_status(tmp_path: Path) -> None:
    BertModel(bert().config).save_pretrained(tmp_path / "base")
    found = health_of(tmp_path / "base", num_labels=3)
    assert (found.verdict, found.basis, found.bytes_read) == (FRESH, HealthBasis.STATUS, 0)
    assert "lacks classifier.weight" in found.reasons[0]
    model = bert()
    train(model.classifier, 100, 1e-3)
    found = health_of(saved(model, tmp_path / "other"), num_labels=5)
    assert (found.verdict, found.basis) == (FRESH, HealthBasis.STATUS)
    assert "3x128" in found.reasons[0]
    assert "5x128" in found.reasons[0]


@pytest.mark.parametrize("save", [save_sharded_safetensors, save_torch_zip, save_torch_legacy])
def test_every_format_gives_the_same_verdict(save: Callable[[Any, Path], None], tmp_path: Path) -> None:
    model = bert()
    train(model.classifier, 200, 3e-3)
    plain = health_of(saved(model, tmp_path / "plain"))
    (tmp_path / "other").mkdir()
    save(model, tmp_path / "other")
    found = health_of(tmp_path / "other")
    assert (found.verdict, found.weight, found.bias) == (TRAINED, plain.weight, plain.bias)


def test_a_known_structure_is_not_initialized_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADSCOPE_NO_CACHE")
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path / "cache"))
    calls: list[str] = []

    def counted(model: nn.Module, weight: str, stated: float | None) -> InitialSpread | None:
        calls.append(weight)
        return initial_spread(model, weight, stated)

    monkeypatch.setattr("headscope.model.tensors.initialization.initial_spread", counted)
    for name in "ab":
        saved(bert(initializer_range=0.05), tmp_path / name)
        checked = headscope.check(tmp_path / name, "inference", select="HS502", cache=True)
        assert [item.id for item in checked.findings] == ["HS502"]
        found = health_of(tmp_path / name, cache=True)
        assert found.weight.initial_spread == 0.05
    assert calls == ["classifier.weight"]
    other = health_of(saved(bert(initializer_range=0.03), tmp_path / "other"), cache=True)
    assert other.weight.initial_spread == 0.03
    assert len(calls) == 2


def test_losses_that_move_the_mean_row_are_said(tmp_path: Path) -> None:
    assert health_of(saved(bert(problem_type="single_label_classification"), tmp_path / "a")).mean_row_applies is True
    assert health_of(saved(bert(problem_type="multi_label_classification"), tmp_path / "b")).mean_row_applies is False
    report = headscope.inspect(tmp_path / "b", health=True)
    assert "not a softmax" in str(report)
    one = health_of(saved(bert(num_labels=1), tmp_path / "c"))
    assert one.mean_row_applies is False
    assert (one.weight.mean_row, one.weight.cosine, one.weight.spectrum.top_z) == (None, None, None)


# What is not determined


def test_a_snapshot_holds_no_numbers(tmp_path: Path) -> None:
    headscope.snapshot(saved(bert(), tmp_path / "model"), tmp_path / "snapshot.json")
    found = health_of(tmp_path / "snapshot.json")
    assert found.verdict is OPEN and "snapshot" in found.reasons[0]


def test_other_dtypes_and_missing_biases(tmp_path: Path) -> None:
    folder = saved(bert(), tmp_path)
    state = load_file(folder / "model.safetensors")
    rough = state["classifier.weight"].to(torch.float8_e4m3fn)
    save_file(state | {"classifier.weight": rough}, folder / "model.safetensors", {"format": "pt"})
    found = health_of(folder)
    assert found.verdict is OPEN
    assert "float8" in found.reasons[0]
    save_file({name: item for name, item in state.items() if name != "classifier.bias"}, folder / "model.safetensors",
              {"format": "pt"})  # fmt: skip
    found = health_of(folder)
    assert found.bias is None
    assert found.verdict in (FRESH, OPEN)


@pytest.mark.parametrize("packing", ["bnb4", "bnb8", "fp8"])
def test_a_packed_head_is_not_judged(packing: str, tmp_path: Path) -> None:
    found = health_of(save_packed(tmp_path, packing, head=True))
    assert (found.verdict, found.basis, found.bytes_read) == (OPEN, HealthBasis.UNREAD, 0)
    assert "quantized" in found.reasons[0]
    (tmp_path / "plain").mkdir()
    assert health_of(save_packed(tmp_path / "plain", packing)).bytes_read == 4 * 3 * 64


@pytest.mark.parametrize("kept", [True, False])
def test_of_an_adapter_the_classifier_that_it_saves_is_judged(kept: bool, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    BertModel(bert().config).save_pretrained(tmp_path / "base")
    model = BertForSequenceClassification.from_pretrained(tmp_path / "base", num_labels=3)
    train(model.classifier, 300, 3e-3)
    # Under FEATURE_EXTRACTION, PEFT adds no classifier to `modules_to_save`.
    settings = peft.LoraConfig(
        task_type="SEQ_CLS" if kept else "FEATURE_EXTRACTION", r=2, target_modules=["query"],
        modules_to_save=["classifier"] if kept else None,
    )  # fmt: skip
    peft.get_peft_model(model, settings).save_pretrained(tmp_path / "adapter")
    stored = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert any("classifier" in name for name in stored) is kept
    found = health_of(tmp_path / "adapter", num_labels=3, task="sequence-classification", offline=True)
    assert found.verdict is (TRAINED if kept else FRESH)
    assert found.basis is (HealthBasis.STATISTICS if kept else HealthBasis.STATUS)
    assert found.bytes_read == (4 * (3 * WIDTH + 3) if kept else 0)


def test_a_large_classifier_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headscope.examination.evidence.health._LOCAL_BYTES", 1000)
    found = health_of(saved(bert(), tmp_path))
    assert (found.verdict, found.bytes_read) == (OPEN, 0)
    assert " 1,000" in found.reasons[0]


def test_an_unknown_spread_alone_is_no_training() -> None:
    weight = matrix_statistics("weight", torch.randn(4, WIDTH, dtype=torch.float64).mul(0.33).float(), None)
    signs = replace(signs_of(weight, None, None), distance=5.0)
    assert verdict_of(signs, 0.99, 0.95)[0] is OPEN
    assert verdict_of(replace(signs, bias_moved=True), 0.99, 0.95)[0] is TRAINED


def test_the_spread_of_the_class_counts_unless_other_code_may_have_drawn_the_weight() -> None:
    drawn = torch.randn(4, WIDTH)
    fits, grown = drawn * 0.02, drawn * 0.03
    xavier = nn.init.xavier_uniform_(torch.empty(4, WIDTH))
    known = [signs_of(matrix_statistics("weight", weight, 0.02), None, None) for weight in (fits, grown, xavier)]
    assert [item.has_spread for item in known] == [True, True, False]
    fresh, changed, _ = (probability(CHANGED, item.of_change) for item in known)
    assert fresh < changed
    assert verdict_of(known[1], changed, changed)[0] is OPEN  # any code may draw numbers of any size
    unknown = signs_of(matrix_statistics("weight", grown, None), None, None)
    assert not unknown.has_spread
    assert probability(CHANGED, unknown.of_change) < changed


# Models in memory, and the surfaces


def test_a_model_in_memory_is_judged_by_its_numbers() -> None:
    model = bert()
    assert health_in_memory(model).verdict is FRESH
    train(model.classifier, 300, 3e-3)
    before = model.classifier.weight.detach().clone()
    assert health_in_memory(model).verdict is TRAINED
    assert torch.equal(model.classifier.weight, before)
    with torch.device("meta"):
        empty = bert()
    assert health_in_memory(empty).verdict is OPEN


def health_in_memory(model: nn.Module) -> HeadHealth:
    found = headscope.inspect(model, health=True).health
    assert found is not None
    return found


def test_without_the_option_nothing_is_said(tmp_path: Path) -> None:
    report = headscope.inspect(saved(bert(), tmp_path))
    assert report.health is None
    assert report.to_dict()["health"] is None
    assert "health" not in str(report)
    with pytest.raises(UsageError, match="heatlh"):
        headscope.inspect(tmp_path, heatlh=True)  # type: ignore[call-overload]


def test_hs502_is_found_where_the_verdict_is_fresh_and_not_where_it_is_trained(tmp_path: Path) -> None:
    model = bert()
    checked = headscope.check(saved(model, tmp_path / "fresh"), "inference", select="HS502")
    assert [item.id for item in checked.findings] == ["HS502"]
    train(model.classifier, 300, 3e-3)
    checked = headscope.check(saved(model, tmp_path / "long"), "inference", select="HS502")
    assert (checked.findings, checked.not_determined) == ((), ())
    half = llama().to(torch.bfloat16)
    checked = headscope.check(saved(half, tmp_path / "half"), "inference", select="HS502")
    assert checked.findings == ()
    assert [item.topic for item in checked.not_determined] == ["HS502 looks-untrained"]


@pytest.mark.skipif(not REAL.is_dir(), reason="the real checkpoints are not there")
def test_real_classifiers() -> None:
    assert health_of(REAL / "tiny-bert", num_labels=2).basis is HealthBasis.STATUS
    assert health_of(REAL / "tiny-modernbert-classifier").verdict is not TRAINED


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
