"""Explanations of an engine's scores: what is named, and what is not enough to name anything."""

from collections.abc import Callable

import numpy as np
import pytest

from headscope.shared.serving.explaining import Scores, explain_scores


def _three_variants(texts: int = 12) -> dict[str, Scores]:
    random = np.random.default_rng(1)
    return {name: random.normal(size=(texts, 3)) for name in ("as it is", "no pooler", "mean")}


def test_another_order_and_a_factor_are_named() -> None:
    variants = _three_variants()
    found = explain_scores(variants, 2 * variants["mean"][:, [2, 0, 1]] + 0.5).explanation
    assert found is not None
    assert (found.variant, found.function, found.order) == ("mean", "none", (2, 0, 1))
    assert (found.scale, found.offset) == pytest.approx((2, 0.5))


def test_two_variants_that_fit_are_no_explanation() -> None:
    variants = _three_variants()
    found = explain_scores(variants | {"the same": variants["mean"]}, variants["mean"])
    assert found.explanation is None and "several" in found.reason
    assert found.fitting == ("none of mean", "none of the same")


def test_one_text_that_differs_is_no_explanation() -> None:
    variants = _three_variants()
    for text in range(12):
        given = variants["mean"].copy()
        given[text, 1] += 0.01
        found = explain_scores(variants, given)
        assert (found.explanation, found.fitting) == (None, ())


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (lambda scores: scores[:5], "5 texts are too few: at least 6 are needed"),
        (lambda scores: np.where(scores > 1, np.nan, scores), "the scores are not all finite"),
        (lambda scores: scores[:1].repeat(12, 0), "the scores of the texts hardly differ"),
        (lambda scores: scores * 0, "the scores of the texts hardly differ"),
        (lambda scores: scores * 0 + 1 / 3, "the scores of the texts hardly differ"),
        (lambda scores: np.eye(3)[scores.argmax(1) % 3], "the texts have only 3 different scores"),
        (
            lambda scores: np.c_[scores[:, :1] + scores[:, 1:2], 0 * scores[:, :1], scores[:, 2:]],
            "class 1 has the same score for all texts",
        ),
    ],
)
def test_scores_that_tell_nothing_have_no_explanation(given: Callable[[Scores], Scores], reason: str) -> None:
    variants = _three_variants()
    scores = given(variants["mean"])
    found = explain_scores({name: item[: len(scores)] for name, item in variants.items()}, scores)
    assert (found.explanation, found.reason) == (None, reason)


@pytest.mark.parametrize("seed", range(8))
def test_a_softmax_over_the_texts_of_a_request_is_no_sigmoid(seed: int) -> None:
    random = np.random.default_rng(seed)
    logits = random.normal(0, random.choice([0.02, 0.1, 1]), (random.integers(16, 200), 1))
    found = explain_scores({"as it is": logits}, np.exp(logits) / np.exp(logits).sum(), 1e-3)
    assert found.explanation is None or found.explanation.function == "exp"


def test_half_precision_is_explained_only_where_it_is_expected() -> None:
    variants = _three_variants(24)
    half = variants["mean"].astype(np.float16).astype(np.float64) * (1 + 1e-3)
    half += np.random.default_rng(3).normal(size=half.shape) * 2e-3
    assert explain_scores(variants, half).explanation is None
    found = explain_scores(variants, half, precision=1e-2).explanation
    assert found is not None and found.variant == "mean"
