"""Explanations of an engine's scores, held against simulated engines of which half compute what no variant does."""

from collections.abc import Callable

import numpy as np
import pytest

from headscope.shared.serving.explaining import FORWARD_BY_NAME, ExplainedScores, Scores, explain_scores

_HIDDEN, _LENGTH = 16, 9
_ENGINES = 1000
KNOWN = ("as it is", "no pooler", "relu", "last token", "mean", "segments zero", "cut")
Random = np.random.Generator


class Model:
    """A classifier of random values: tanh(dense(h[position])), on hidden states that depend on segments and length."""

    def __init__(self, random: Random, texts: int, classes: int) -> None:
        self.hidden = random.normal(size=(texts, _LENGTH, _HIDDEN))
        self.other_hidden = {
            name: self.hidden + random.normal(size=self.hidden.shape) * 0.3 for name in ("segments zero", "cut")
        }
        self.dense = random.normal(size=(_HIDDEN, _HIDDEN)) / 2
        self.weight = random.normal(size=(_HIDDEN, classes)) / 2
        self.bias = random.normal(size=classes)

    def logits(self, variant: str) -> Scores:
        """The logits of a variant, known or not."""
        hidden = self.other_hidden.get(variant, self.hidden)
        position = {"last token": hidden[:, -1], "mean": hidden.mean(1), "second token": hidden[:, 1]}
        pooled = position.get(variant, hidden[:, 0])
        return np.asarray(self._dense(variant, pooled) @ self.weight + self.bias * (variant != "no bias"))

    def _dense(self, variant: str, pooled: Scores) -> Scores:
        inner = pooled if variant == "no pooler" else pooled @ self.dense
        activations: dict[str, Callable[[Scores], Scores]] = {
            "no pooler": lambda value: value,
            "relu": lambda value: np.maximum(value, 0),
            "softsign": lambda value: value / (1 + np.abs(value)),
            "nearly tanh": lambda value: np.tanh(value * 1.01),
        }
        return activations.get(variant, np.tanh)(inner)


def _is_right(found: ExplainedScores, variant: str, function: str, expected: Scores, model: Model) -> bool:
    """Whether the explanation is the engine itself: the same variant and function, and the same scores."""
    item = found.explanation
    assert item is not None
    logits = item.scale * model.logits(item.variant)[:, list(item.order)] + item.offset
    is_same = np.abs(FORWARD_BY_NAME[item.function](logits) - expected).max() < 2e-4 * max(1.0, np.abs(expected).max())
    return item.variant == variant and item.function == function and bool(is_same)


def _engine(random: Random, model: Model, variant: str, function: str) -> Scores:
    """Scores of an engine: perhaps in another order, perhaps with a factor, and rounded as single precision does."""
    logits = model.logits(variant)
    if random.random() < 0.3:
        logits = logits[:, random.permutation(logits.shape[1])]
    if random.random() < 0.3:
        logits = logits * random.uniform(0.3, 3) + random.normal() * (function != "softmax")
    scores = FORWARD_BY_NAME[function](logits)
    return np.asarray(scores * (1 + random.normal(size=scores.shape) * 1e-6))


def _unexplained(random: Random, model: Model, function: str) -> Scores:
    """Scores that no variant gives."""
    classes = model.weight.shape[1]
    kind = random.integers(10)
    variant = KNOWN[random.integers(len(KNOWN))]
    unknown = ("second token", "no bias", "softsign", "nearly tanh")
    if kind < len(unknown):
        return _engine(random, model, unknown[kind], function)
    logits = model.logits(variant)
    changes: dict[int, Callable[[], Scores]] = {
        4: lambda: logits * random.uniform(0.5, 2, size=classes),  # a factor for each class
        5: lambda: logits + random.normal(size=classes),  # another bias
        6: lambda: logits + random.normal(size=logits.shape) * 0.01,  # noise
        7: lambda: np.where(np.arange(len(logits))[:, None] < len(logits) / 2, logits, model.logits("second token")),
        8: lambda: np.clip(logits, -0.5, 0.5),
        9: lambda: np.take_along_axis(
            logits, random.permuted(np.tile(np.arange(classes), (len(logits), 1)), axis=1), 1
        ),
    }
    return FORWARD_BY_NAME[function](changes[int(kind)]())


def test_no_explanation_of_a_thousand_engines_is_wrong() -> None:
    random = np.random.default_rng(29)
    wrong, right, claimed = [], 0, 0
    for number in range(_ENGINES):
        # With one class, another bias or a factor for each class is an affine function, which is an explanation.
        classes, texts = int(random.integers(1 + number % 2, 7)), int(random.integers(8, 40))
        model = Model(random, texts, classes)
        function = str(random.choice([name for name in FORWARD_BY_NAME if classes > 1 or name != "softmax"]))
        variants = {name: model.logits(name) for name in KNOWN}
        if number % 2:
            found = explain_scores(variants, _unexplained(random, model, function))
            if found.explanation is not None:
                wrong.append((number, found))
            continue
        variant = KNOWN[random.integers(len(KNOWN))]
        given = _engine(random, model, variant, function)
        found = explain_scores(variants, given)
        claimed += 1
        if found.explanation is None:
            continue
        if _is_right(found, variant, function, given, model):
            right += 1
        else:
            wrong.append((number, found))
    assert not wrong
    assert right >= 0.9 * claimed, (right, claimed)


def _three_variants(texts: int = 12) -> dict[str, Scores]:
    model = Model(np.random.default_rng(1), texts, 3)
    return {name: model.logits(name) for name in ("as it is", "no pooler", "mean")}


def test_another_order_and_a_factor_are_named() -> None:
    variants = _three_variants()
    found = explain_scores(variants, 2 * variants["mean"][:, [2, 0, 1]] + 0.5).explanation
    assert found is not None and found.is_reordered
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
