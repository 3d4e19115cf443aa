"""Every sentence that an edit says of scores is held against scores: before and after, on random logits."""

import itertools
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import headscope
from headscope.copies.class_rows import promised_scores
from headscope.copies.facts import EditedLabel, LabelOrigin
from headscope.errors import HeadscopeError, Unsupported, UsageError
from headscope.facts import TensorHeader
from headscope.shell.app import main
from headscope.slices.edit.classes import ClassTensor
from headscope.slices.edit.plan import LabelChanges, plan_labels
from headscope.slices.edit.promises import ScoreChange, check_shifts, of_function, promises
from headscope.slices.edit.wish import EditWish
from tests.editing.checkpoints import logits, saved

FUNCTIONS = ("softmax", "sigmoid", "none", "not determined")
CHANGES: tuple[LabelChanges, ...] = (
    LabelChanges(),
    LabelChanges(rename={"a": "A"}, order=None),
    LabelChanges(drop=["c"]),
    LabelChanges(keep=["b"]),
    LabelChanges(drop=["c"], bias={"b": -0.25}),
    LabelChanges(merge={"x": ["a", "b"]}),
    LabelChanges(merge={"x": ["a", "b"]}, bias={"x": 0.5}),
    LabelChanges(merge={"x": ["a", "b"]}, bias={"c": 0.5}),
    LabelChanges(merge={"x": ["a", "b"]}, threshold={"x": 0.3}),
    LabelChanges(merge={"x": ["a", "b"]}, add={"y": "copy:x"}),
    LabelChanges(merge={"x": ["a", "b"]}, add={"y": "copy:c"}),
    LabelChanges(merge={"x": ["a", "b"]}, drop=["d"]),
    LabelChanges(merge={"x": ["a", "b"], "y": ["c", "d"]}),
    LabelChanges(merge={"x": ["a", "b", "c"]}),
    LabelChanges(add={"n": "zero"}),
    LabelChanges(add={"n": "mean", "m": "random"}, bias={"n": 1.5, "m": 1.5, "a": -1.0}),
    LabelChanges(add={"n": "zero", "m": "zero"}, drop=["a"]),
    LabelChanges(add={"n": "copy:a"}),
    LabelChanges(add={"n": "copy:a"}, bias={"n": 0.75}),
    LabelChanges(add={"n": "copy:a"}, threshold={"n": 0.7}),
    LabelChanges(add={"n": "copy:a"}, threshold={"a": 0.7}, drop=["c"]),
    LabelChanges(bias={"a": 0.5}),
    LabelChanges(bias={"a": -1.5}, threshold={"a": 0.2}),
    LabelChanges(bias={"b": 0.5}, threshold={"a": 0.2}),
    LabelChanges(threshold={"a": 0.8}),
    LabelChanges(threshold={"a": 0.5}),
    LabelChanges(threshold={"a": 0.8, "b": 0.3}),
)


@dataclass(frozen=True)
class Scores:
    """The logits before and after an edit, and the classes after it."""

    change: ScoreChange
    before: torch.Tensor
    after: torch.Tensor

    def label(self, name: str) -> EditedLabel:
        return next(label for label in self.change.labels if label.name == name)

    def column(self, name: str) -> torch.Tensor:
        return self.after[:, [label.name for label in self.change.labels].index(name)]

    def base(self, name: str) -> torch.Tensor:
        """The logit of a class without its shift and the temperature."""
        label = self.label(name)
        if label.source is not None:
            return self.before[:, label.source]
        if label.merged or label.origin is LabelOrigin.MEAN:
            return self.before[:, list(label.merged or range(self.before.shape[1]))].mean(1)
        return torch.zeros(len(self.before)) if label.origin is LabelOrigin.ZERO else self.column(name) * torch.nan

    @property
    def origins(self) -> list[LabelOrigin]:
        return [label.origin for label in self.change.labels]

    @property
    def kept(self) -> list[EditedLabel]:
        return [label for label in self.change.labels if label.origin is LabelOrigin.KEPT]


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one, other.to(one.dtype), rtol=1e-5, atol=3e-5, equal_nan=True)


def kept_logits(scores: Scores, count: str, temperature: str | None) -> bool:
    kept = [label for label in scores.kept if not label.shift]
    divided = float(temperature or 1)
    return len(kept) == int(count) and all(
        close(scores.column(label.name), scores.before[:, label.source or 0] / divided) for label in kept
    )


def mean_of_logits(scores: Scores, name: str, count: str, amount: str, temperature: str) -> bool:
    shift = float(amount.replace(" ", "") or 0)
    is_count = len(scores.label(name).merged) == int(count)
    return is_count and close(scores.column(name), (scores.base(name) + shift) / float(temperature or 1))


def shifted(scores: Scores, amount: str, name: str, temperature: str) -> bool:
    return close(scores.column(name), (scores.base(name) + float(amount)) / float(temperature or 1))


def copied(scores: Scores, name: str, source: str, temperature: str) -> bool:
    return close(scores.column(name), scores.before[:, "abcd".index(source)] / float(temperature or 1))


def wins_above(scores: Scores, name: str, limit: str) -> bool:
    chance = scores.before.softmax(1)[:, scores.label(name).source or 0]
    place = [label.name for label in scores.change.labels].index(name)
    is_tie = (chance - float(limit)).abs() < 1e-9  # of equal scores, a program takes one by its number
    is_softmax = scores.change.function == "softmax"
    return is_softmax and bool((is_tie | ((scores.after.argmax(1) == place) == (chance > float(limit)))).all())


def sigmoid_above(scores: Scores, name: str, limit: str) -> bool:
    was = scores.before[:, scores.label(name).source or 0].sigmoid() > float(limit)
    return scores.change.function == "sigmoid" and torch.equal(scores.column(name).sigmoid() > 0.5, was)


def same_winner(scores: Scores) -> bool:
    sources = torch.tensor([label.source or 0 for label in scores.change.labels])
    return scores.change.function != "none" and torch.equal(sources[scores.after.argmax(1)], scores.before.argmax(1))


def ratios(scores: Scores, only_unshifted: str, stay: str) -> bool:
    names = [label for label in scores.kept if not (only_unshifted and label.shift)]
    is_changed = len(scores.change.labels) != scores.change.before or set(scores.origins) != {LabelOrigin.KEPT}
    if not stay:
        return is_changed
    before, after = scores.before.softmax(1), scores.after.nan_to_num().softmax(1)
    order = [label.name for label in scores.change.labels]
    pairs = itertools.combinations(names, 2)
    return (
        is_changed
        and scores.change.function_before == "softmax"
        and len(names) > 1
        and all(
            close(
                (after[:, order.index(one.name)] / after[:, order.index(two.name)]).log(),
                (before[:, one.source or 0] / before[:, two.source or 0]).log(),
            )
            for one, two in pairs
        )
    )


def merged_chances(scores: Scores, name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The sum of probabilities before, the one after, and whether the logits of the merged classes are equal."""
    parts, place = list(scores.label(name).merged), [label.name for label in scores.change.labels].index(name)
    own = scores.before[:, parts]
    sums = scores.before.softmax(1)[:, parts].sum(1)
    return sums, scores.after.nan_to_num().softmax(1)[:, place], own.max(1).values == own.min(1).values


def sum_where_equal(scores: Scores, name: str, count: str) -> bool:
    sums, after, are_equal = merged_chances(scores, name)
    assert are_equal.any() and not are_equal.all()
    is_as_said = close(after[are_equal], sums[are_equal]) and bool((after < sums - 1e-9)[~are_equal].all())
    return is_as_said and len(scores.label(name).merged) == int(count)


def not_the_sum(scores: Scores, name: str, count: str) -> bool:
    sums, after, _ = merged_chances(scores, name)
    return bool(((after - sums).abs() > 1e-3).any()) and len(scores.label(name).merged) == int(count)


def not_any(scores: Scores, name: str, count: str) -> bool:
    """Any of several events is at least as probable as the likeliest: the sigmoid of a mean is often below that."""
    parts = list(scores.label(name).merged)
    is_below = scores.base(name).sigmoid() < scores.before[:, parts].sigmoid().max(1).values
    return scores.change.function != "softmax" and bool(is_below.any()) and len(parts) == int(count)


def equal_scores(scores: Scores, names: str) -> bool:
    def twins(name: str) -> list[EditedLabel]:
        own = scores.label(name)
        others = [label for label in scores.change.labels if label.name != name]
        return [label for label in others if (label.source, label.merged) == (own.source, own.merged)]

    return all(
        twins(name) and close(scores.column(name), scores.column(twins(name)[0].name)) for name in names.split(", ")
    )


def not_exactly_chosen(scores: Scores) -> bool:
    def is_exact(name: str, limit: float) -> bool:
        label, place = scores.label(name), [label.name for label in scores.change.labels].index(name)
        chance = scores.before.softmax(1)[:, [label.source] if label.source is not None else list(label.merged)].sum(1)
        return torch.equal(scores.after.nan_to_num().argmax(1) == place, chance > limit)

    return not all(is_exact(*item) for item in scores.change.wish.changes.threshold.items())


def untrained(scores: Scores, names: str) -> bool:
    new = [LabelOrigin.ZERO, LabelOrigin.MEAN, LabelOrigin.RANDOM]
    return names.split(", ") == [label.name for label in scores.change.labels if label.origin in new]


def regression(scores: Scores) -> bool:
    return scores.change.function == "none" and not close(scores.after[:, 0], scores.before[:, 0])


T = r"(?:, (?:then all is )?divided by ([\d.]+))?"
SENTENCES: dict[str, Callable[..., bool]] = {
    rf"The logits of (\d+) kept class(?:es)? are those of before{T}\.": kept_logits,
    rf"(\w+) gets the mean of the logits of (\d+) classes(?: ([+-] [\d.e-]+))?{T}\.": mean_of_logits,
    rf"([+-][\d.e-]+) is added to the logit of (\w+){T}\.": shifted,
    rf"(\w+) begins with the logit of (\w+){T}\.": copied,
    r"(\w+) wins exactly where a softmax of the old logits gives it more than ([\d.]+)\.": wins_above,
    r"(\w+) is above 0\.5 exactly where the sigmoid of its logit was above ([\d.]+)\.": sigmoid_above,
    r"The class with the highest score is the same for every input\.": same_winner,
    r"A softmax shares 1 among its classes, so probabilities can change with them"
    r"(?:; between kept classes( without a shift)? (their ratios stay))?\.": ratios,
    r"The probability of (\w+) is the sum of those of its (\d+) classes only where their logits are equal; elsewhere "
    r"it is smaller\.": sum_where_equal,
    r"The probability of (\w+) is in general not the sum of those of its (\d+) classes\.": not_the_sum,
    r"(\w+): no probability that any of the (\d+) classes applies follows from a mean of logits\.": not_any,
    r"([\w, ]+): until training, the score equals that of the copied class; of equal scores, most programs take the "
    r"one with the lower number\.": equal_scores,
    r"A threshold shifts the logit: with other changes or classes, it isn't exactly where the class is "
    r"chosen\.": not_exactly_chosen,
    r"([\w, ]+): the row is a starting point for training, not a trained class\.": untrained,
    r"The scores are those of a regression: its results are divided too\.": regression,
}


def drawn_logits(count: int) -> torch.Tensor:
    """Random logits of before; in some rows, all classes but the last have the same one."""
    logits = torch.randn(4000, count, generator=torch.Generator().manual_seed(count), dtype=torch.float64) * 2
    logits[:500, :-1] = logits[:500, :1]
    logits[:250] = logits[:250, :1]
    return logits


def tensor(name: str, axes: int) -> ClassTensor:
    return ClassTensor(name, TensorHeader(name, "float32", (3,) * axes, "model.safetensors"), 0)


def possible_changes(before: str, function: str, temperature: float) -> Iterator[ScoreChange]:
    """Of heads of up to four classes with a bias; a change may name a class that a head lacks, or have no place."""
    for changes, count in itertools.product(CHANGES, (1, 2, 3, 4)):
        wish = EditWish(changes, temperature)
        try:
            labels = plan_labels("abcd"[:count], changes, is_softmax=function == "softmax")
            check_shifts(labels, [tensor("classifier.bias", 1)], wish, function)
        except HeadscopeError:
            continue
        yield ScoreChange(labels, wish, count, before, function)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 0.3])
@pytest.mark.parametrize(("function_before", "function"), itertools.product(FUNCTIONS, FUNCTIONS))
def test_every_sentence_holds_of_scores(function_before: str, function: str, temperature: float) -> None:
    told = 0
    for change in possible_changes(function_before, function, temperature):
        before = drawn_logits(change.before)
        scores = Scores(change, before, promised_scores(before, change.labels, temperature))
        exact, approximate = promises(change, ["float32"])
        for sentence in (*exact, *approximate):
            told += 1
            found = [(check, match) for form, check in SENTENCES.items() if (match := re.fullmatch(form, sentence))]
            assert len(found) == 1, sentence
            check, match = found[0]
            assert check(scores, *(group or "" for group in match.groups())), (sentence, change)
        _check_nothing_is_missing(scores, [*exact, *approximate])
        _check_rounding(change, exact, approximate)
    assert told > 20


def _check_nothing_is_missing(scores: Scores, sentences: list[str]) -> None:
    """A class that was merged, shifted or copied has a sentence with its name; the kept ones have one together."""
    text = " ".join(sentences)
    for label in scores.change.labels:
        if label.shift or label.merged or label.origin is not LabelOrigin.KEPT:
            assert re.search(rf"\b{label.name}\b", text), (label, sentences)
    assert any(label.origin is LabelOrigin.KEPT and not label.shift for label in scores.change.labels) == (
        "are those of before" in text
    )


def _check_rounding(change: ScoreChange, exact: list[str], approximate: list[str]) -> None:
    """In half precision, only what is copied bit by bit stays exact; in a format that the rows come to, nothing."""
    copies = [words for words in exact if re.match(r"The logits of|\w+ begins with", words)]
    half, rest = promises(change, ["bfloat16"])
    assert half == (copies if change.wish.temperature == 1.0 else [])
    assert {*exact, *approximate} <= {*half, *rest} and (len(half) == len(exact) or "bfloat16" in " ".join(rest))
    wish = EditWish(change.wish.changes, change.wish.temperature, dtype="bfloat16")
    rounded = ScoreChange(change.labels, wish, change.before, change.function_before, change.function)
    assert promises(rounded, ["bfloat16"])[0] == []


def test_the_forms_of_all_sentences_occur() -> None:
    seen = set()
    for function, temperature in itertools.product(FUNCTIONS, (1.0, 2.0)):
        for change in possible_changes(function, function, temperature):
            words = itertools.chain(*promises(change, ["float32"]))
            seen |= {form for sentence in words for form in SENTENCES if re.fullmatch(form, sentence)}
    assert seen == set(SENTENCES)


MERGE, THRESHOLD, BIAS = (
    LabelChanges(merge={"x": ["a", "b"]}), LabelChanges(threshold={"a": 0.3}), LabelChanges(bias={"a": 0.3}),
)  # fmt: skip
ONE, TWO_BIASES, NO_BIAS = (
    [tensor("score.weight", 2), tensor("score.bias", 1)], [tensor("a.bias", 1), tensor("b.bias", 1)],
    [tensor("score.weight", 2)],
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "tensors", "function", "kind"),
    [
        *((changes, ONE, function, None) for changes in (MERGE, BIAS) for function in FUNCTIONS),
        *((MERGE, tensors, function, None) for tensors in (NO_BIAS, TWO_BIASES) for function in FUNCTIONS[1:]),
        *((MERGE, tensors, "softmax", UsageError) for tensors in (NO_BIAS, TWO_BIASES)),
        *((changes, NO_BIAS, "sigmoid", UsageError) for changes in (THRESHOLD, BIAS)),
        *((THRESHOLD, ONE, function, None) for function in ("softmax", "sigmoid")),
        *((THRESHOLD, tensors, "none", UsageError) for tensors in (ONE, NO_BIAS)),
        (THRESHOLD, ONE, "not determined", Unsupported),
        (THRESHOLD, ONE, "tanh", Unsupported),
        *((LabelChanges(drop=["c"]), tensors, "softmax", None) for tensors in (NO_BIAS, TWO_BIASES)),
    ],
)  # fmt: skip
def test_what_has_no_place_or_no_probability_is_refused(
    changes: LabelChanges, tensors: list[ClassTensor], function: str, kind: type[HeadscopeError] | None
) -> None:
    labels = plan_labels("abc", changes, is_softmax=function == "softmax")

    def check() -> None:
        check_shifts(labels, tensors, EditWish(changes), function)

    if kind is None:
        check()
        return
    with pytest.raises(kind) as caught:
        check()
    assert caught.value.hint


@pytest.mark.parametrize(("before", "after"), itertools.product((*FUNCTIONS, "tanh"), repeat=2))
def test_another_function_is_told_and_the_same_is_not(before: str, after: str) -> None:
    assert bool(of_function(before, after)) == (before != after)
    assert math.isfinite(len(of_function(before, after))) and "not determined" not in of_function(before, after)


@pytest.mark.parametrize(
    ("count", "fields"), [(1, {}), (1, {"problem_type": "regression"}), (3, {"problem_type": "regression"})]
)
def test_a_threshold_of_a_regression_cannot_be_meant(
    count: int, fields: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = saved("BertForSequenceClassification", tmp_path / "old", "abc"[:count], **fields)
    command = ["edit", str(source), "-o", str(tmp_path / "new"), "--threshold", "a=0.3"]
    assert main([*command, "--dry-run"]) == 2
    assert "regression" in capsys.readouterr().err
    assert main([*command, "--problem-type", "multi_label_classification", "-q"]) == 0
    before, after = logits(source), logits(tmp_path / "new")
    assert torch.equal(after[:, 0].sigmoid() > 0.5, before[:, 0].sigmoid() > 0.3)
    found = headscope.edit(source, tmp_path / "half", temperature=2.0)
    torch.testing.assert_close(logits(tmp_path / "half"), before / 2)
    assert "The scores are those of a regression: its results are divided too." in found.approximate
    assert main([*command, "--problem-type", "regression"]) == 2


def test_a_problem_type_that_the_forward_does_not_read_makes_no_sigmoid(tmp_path: Path) -> None:
    source = saved("BertForTokenClassification", tmp_path / "old", "abc")
    options: dict[str, Any] = {"problem_type": "multi_label_classification"}
    found = headscope.edit(source, tmp_path / "new", threshold={"a": 0.3}, **options)
    assert not any("sigmoid" in sentence for sentence in (*found.exact, *found.approximate))
    merged = headscope.edit(source, tmp_path / "two", merge={"x": ["a", "b"]}, **options)
    assert merged.labels[0].shift == pytest.approx(math.log(2))


def test_one_score_that_becomes_two_has_a_softmax(tmp_path: Path) -> None:
    source = saved("BertForSequenceClassification", tmp_path / "old", "a")
    found = headscope.edit(source, tmp_path / "new", add={"b": "zero"}, threshold={"a": 0.3})
    assert not any("sigmoid of its logit" in sentence for sentence in found.exact)
    assert any("those of a softmax, no longer of a regression" in sentence for sentence in found.approximate)
    with pytest.raises(UsageError, match="always 1"):
        headscope.edit(source, tmp_path / "x", problem_type="single_label_classification")


@pytest.mark.parametrize("name", ["GPT2ForSequenceClassification", "LlamaForSequenceClassification"])
def test_a_shift_without_a_place_is_refused_in_a_dry_run_too(name: str, tmp_path: Path) -> None:
    source = saved(name, tmp_path / "old", "abc")
    merge: dict[str, Any] = {"merge": {"x": ["a", "b"]}}
    for dry_run in (True, False):
        with pytest.raises(UsageError, match="no bias, so the logarithm") as caught:
            headscope.edit(source, tmp_path / "new", dry_run=dry_run, **merge)
        with pytest.raises(UsageError, match="no bias"):
            headscope.edit(source, tmp_path / "new", dry_run=dry_run, bias={"a": 1.0})
    assert "probabilities" in caught.value.hint and not (tmp_path / "new").exists()
    found = headscope.edit(source, tmp_path / "new", problem_type="multi_label_classification", **merge)
    assert found.labels[0].shift == 0 and found.verdict.value == "proven"
