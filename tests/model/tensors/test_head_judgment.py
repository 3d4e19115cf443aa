"""What is said of a classifier from its values alone: no draw is called trained, and no training a draw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForSequenceClassification

from headscope.core.facts.health import InitialSpread
from headscope.core.model.tensors.head_statistics import bias_statistics, matrix_statistics
from headscope.core.model.tensors.initialization import initial_spread
from headscope.core.source.health.judging import CHANGED, judge_numbers, probability, signs_of, verdict_of
from headscope.facts import HealthBasis
from tests.model.tensors.classifiers import BRIEFLY, FRESH, OPEN, TRAINED, WIDTH, train

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
        assert (again.verdict, again.basis) == (FRESH, HealthBasis.DRAW)  # a wider dtype holds the same values


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("parts", [(0.7, 0.3), (0.5, 0.3, 0.2), (0.9, 0.05, 0.05), (0.25,) * 4, (0.05,) * 20])
def test_a_bias_of_log_priors_is_no_training(parts: tuple[float, ...], dtype: torch.dtype) -> None:
    """NumPy's generator, seed 11: off PyTorch's grid. The scores are random values around the priors."""
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


def test_a_spread_alone_is_no_verdict_and_the_reason_says_so() -> None:
    drawn = torch.randn(4, 64, generator=torch.Generator().manual_seed(3))
    told = judge_numbers(matrix_statistics("weight", drawn, 0.02), None, None, None)
    assert told.verdict is OPEN
    assert (told.trained or 0) > 0.9
    assert "another initialization may have left it" in told.reasons[0]
