"""Comparison of the scores that an engine gave with those of the checkpoint for the same texts."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from headscope.core.facts.heads.head import AS_IT_IS
from headscope.core.facts.heads.tasks import Activation
from headscope.errors import HeadscopeError
from headscope.shared.serving.answers import Answers
from headscope.shared.serving.explaining import (
    FORWARD_BY_NAME,
    SINGLE_PRECISION,
    ExplainedScores,
    Scores,
    explain_scores,
    order_by_distance,
    possible_functions,
)
from headscope.shared.serving.measures.aligning import align_scores
from headscope.shared.serving.measures.class_changes import measure_class_changes, wilson_interval
from headscope.shared.serving.served_facts import ClassChanges, ServedExplanation, ServedScores

_SPREAD = 10
"""How much further than the tolerance the scores of different texts have to lie apart."""
_LEFT = 10
"""How much smaller an explanation has to make the difference."""
_FEWEST_CUT, _SHORTEST_LIMIT, _MOST_LIMITS = 2, 3, 512
"""Texts that were cut: one to find the limit by, one to confirm it. The limits, in tokens, that are tried."""
_MOST_AGAIN = 6
"""Texts that are requested again."""
_SINGLE_FACTOR, _HALF_FACTOR = 10.0, 4.0
"""How many times as much as the checkpoint's own model another implementation may be off by rounding: in single
precision more, since the order of its sums may differ."""
_UNLIKE = 0.5
"""The largest part of a residual that may be left when the errors of the model in half precision are subtracted.
Rounding that happens elsewhere leaves 0.6 to 1.3 of it, and so do other weights."""
_FEWEST_WITH_PATTERN, _LEAST_SHARED = 6, 3
"""Texts that residuals are compared on, and among how many the squares of a residual have to be shared (Kish's
effective size; 3 is that of 7 texts alike). Residuals of one or two texts fit each other by chance in 1 of 30 cases."""
_MOVED = 10
"""How much further than single precision a text has to be moved by half precision, so that equal scores exclude it."""
_NOT_LOOKED_AT = (
    "texts other than these",
    "requests with more texts or fewer",
    "speed and load",
    "the layers below the head one by one",
)
AskAgain = Callable[[Sequence[int]], Answers]
"""Asks for the texts at some places again, each in a request without others."""


@dataclass(frozen=True, slots=True)
class VariantScores:
    """Logits of a variant of the head, and its expression, "" where it has none.

    `is_sum`: the expression is a sum or a difference. `is_without_segments`: all segment IDs of its inputs are 0.
    """

    logits: Scores
    formula: str = ""
    is_sum: bool = False
    is_without_segments: bool = False


@dataclass(frozen=True, slots=True)
class ReferenceScores:
    """Scores that the checkpoint gives for texts: a row for each.

    `activation` is what belongs on the scores, as in `inspect`. `rounded` gives the logits in another precision, None
    where the model can't be run in it; `variants` gives those of the variants of the head; `cut` those of some texts
    that are cut to a number of tokens. They are called only where scores differ: they take further passes of the model.
    `lengths` are the tokens of each text, () where that isn't known. `label2id` is that of the configuration.
    `in_single` names the runs of `rounded` that show what single precision loses.
    """

    logits: Scores
    labels: Sequence[str]
    activation: str
    rounded: Callable[[str], Scores | None]
    variants: Callable[[], Mapping[str, VariantScores]]
    label2id: Mapping[str, int] = field(default_factory=dict)
    lengths: Sequence[int] = ()
    cut: Callable[[Sequence[int], int], Scores] | None = None
    in_single: Sequence[str] = ("float64",)


@dataclass(frozen=True, slots=True)
class AllowedRounding:
    """How far scores may be off in a precision, and the scores of the checkpoint's own model in it."""

    name: str
    tolerance: float
    scores: Scores


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Scores of an engine in the order of the checkpoint's classes, beside those that were expected."""

    reference: ReferenceScores
    answers: Answers
    score: Callable[[Scores], Scores]
    expected: Scores
    given: Scores
    notes: tuple[str, ...]

    @property
    def function(self) -> str:
        """What the checkpoint's logits are compared under."""
        return Activation.NONE.value if self.answers.is_raw else self.reference.activation

    @property
    def scale(self) -> float:
        """Largest expected score."""
        # A floor, so that scores of about zero don't make the tolerance zero.
        return max(float(np.abs(self.expected).max(initial=0.0)), 1e-3)

    @property
    def difference(self) -> float:
        """Largest difference of a score."""
        return float(np.abs(self.given - self.expected).max(initial=0.0))

    def single(self) -> Iterator[AllowedRounding]:
        """Yields what counts as equal in single precision: a fixed part of the scores, then what the model loses."""
        least = SINGLE_PRECISION * self.scale
        yield AllowedRounding("float32", least, self.expected)
        runs = [self.in_precision(name, _SINGLE_FACTOR) for name in self.reference.in_single]
        widest = max((run.tolerance for run in runs if run is not None), default=0.0)
        if widest > least:
            yield AllowedRounding("float32", widest, self.expected)

    def widest_single(self) -> AllowedRounding:
        """Gives the larger of what counts as equal in single precision."""
        return max(self.single(), key=lambda item: item.tolerance)

    def halves(self) -> list[AllowedRounding]:
        """Lists the half precisions that the engine may compute in: the one that was stated, otherwise both."""
        names = [name for name in ("float16", "bfloat16") if self.answers.dtype in ("", name)]
        return [item for name in names if (item := self.in_precision(name, _HALF_FACTOR)) is not None]

    def in_precision(self, name: str, factor: float) -> AllowedRounding | None:
        """Measures the rounding of a precision on the checkpoint's own model; None where it can't be run in it."""
        logits = self.reference.rounded(name)
        if logits is None:
            return None
        scores = self.score(logits)
        return AllowedRounding(name, factor * float(np.abs(scores - self.expected).max(initial=0.0)), scores)

    def has_pattern_of(self, half: AllowedRounding) -> bool:
        """True if the errors of the scores match, text by text, those of the model in half precision."""
        if len(self.given) < _FEWEST_WITH_PATTERN:
            return False
        residual, left = self.given - self.expected, self.given - half.scores
        weights = np.square(residual).sum(1)
        if weights.sum() ** 2 < _LEAST_SHARED * np.square(weights).sum():
            return False
        # Other weights may shift all texts alike, as rounding does, so what differs between texts has to fit too.
        pairs = (residual, left), (residual - residual.mean(0), left - left.mean(0))
        return all(float(np.linalg.norm(rest)) <= _UNLIKE * float(np.linalg.norm(whole)) for whole, rest in pairs)

    def is_partly_exact(self, half: AllowedRounding) -> bool:
        """True if most texts that half precision moves have exact scores: what differs elsewhere isn't rounding."""
        single = self.widest_single().tolerance
        moved = np.abs(half.scores - self.expected).max(1) > _MOVED * single
        exact = moved & (np.abs(self.given - self.expected).max(1) <= single)
        return bool(moved.sum() >= _FEWEST_WITH_PATTERN and 2 * exact.sum() > moved.sum())

    def explained(self, within: AllowedRounding) -> ExplainedScores:
        """Finds what explains the scores in a precision."""
        # What leaves much of the difference explains nothing: a factor and an offset fit a little of anything.
        tolerance = min(within.tolerance, self.difference / _LEFT)
        variants = {name: item.logits for name, item in self.reference.variants().items()}
        return explain_scores(variants, self.given, tolerance / self.scale)

    def equal(self, within: AllowedRounding, notes: Iterable[str] = ()) -> ServedScores:
        """Makes the result for scores that are equal, which is not determined where unequal heads give them too."""
        margin, rows = _SPREAD * within.tolerance, self.expected
        if self.function != Activation.NONE:
            # At the ends of a function's range, which are integers, twice the logits give the same scores.
            rows = rows[(np.abs(rows - np.rint(rows)) > margin).any(1)]
        # Scores that hardly vary agree with any function that gives about their mean.
        if not len(rows) or (np.ptp(rows, axis=0) < margin).all():
            reason = "the scores of the texts hardly differ, so equal ones show nothing"
            if len(rows) < len(self.expected):
                reason = "nearly all scores are close to 0 or 1, as with other logits: compare logits (--logits)"
            return _undetermined_scores(reason, len(self.expected), self.answers)
        return self.found(True, within, notes=(*self.notes, *notes))

    def found(self, same: bool | None, within: AllowedRounding, reason: str = "", **more: Any) -> ServedScores:
        """Makes the result of the comparison."""
        longest = max(self.reference.lengths, default=0)
        longer = (f"texts longer than {longest} tokens",) if longest else ()
        result = ServedScores(
            same=same,
            explanation=None,
            max_difference=self.difference,
            tolerance=within.tolerance,
            precision=within.name,
            class_changes=measure_class_changes(
                self.reference.logits, self.given, self.reference.activation, is_raw=self.answers.is_raw
            ),
            texts=len(self.expected),
            reason=reason,
            notes=self.notes,
            not_looked_at=(*longer, *_NOT_LOOKED_AT),
        )
        return replace(result, **more)


def compare_scores(reference: ReferenceScores, answers: Answers, ask_again: AskAgain | None = None) -> ServedScores:
    """Compares an engine's scores with the checkpoint's, and finds what the engine computes where they differ.

    Scores are equal, or have an explanation, in single precision. In half precision they are equal, or those of another
    function or class order, if their errors match, text by text, those of the checkpoint's own model in it. Errors of
    the same size with another pattern are not determined: slightly different weights look like that. Other explanations
    there need an engine that is known to compute in that precision.
    """
    score = FORWARD_BY_NAME.get(Activation.NONE if answers.is_raw else reference.activation)
    count = len(reference.logits)
    if score is None:
        return _undetermined_scores(f"what belongs on the scores is {reference.activation}", count, answers)
    aligned = align_scores(answers, reference.labels, reference.label2id, reference.logits.shape)
    if aligned.scores is None:
        return _undetermined_scores(aligned.reason, count, answers)
    expected, given = score(reference.logits), aligned.scores
    if aligned.top:
        rows = np.minimum(expected, given)  # classes that were not given have at most the score of the one that was
        rows[np.arange(count), list(aligned.top)] = given[:, 0]
        given = rows
    elif aligned.reason:
        expected, given = np.sort(expected, axis=1), np.sort(given, axis=1)
    one = _Comparison(reference, answers, score, expected, given, (*answers.notes, *aligned.notes))
    if aligned.top:
        changed = int((reference.logits.argmax(1) != np.asarray(aligned.top)).sum())
        changes = wilson_interval(changed, count) if reference.activation == Activation.SOFTMAX else None
        return _compare_partly(one, "the engine gave only the class with the highest score of each text", changes)
    if aligned.reason:
        return _compare_partly(one, f"{aligned.reason}; only the sets of scores could be compared", None)
    found = _compare_in_single(one) or _compare_in_half(one, ask_again)
    return found if found.same or found.explanation else replace(found, notes=(*found.notes, *_note_equal_texts(one)))


def measure_rounding(reference: ReferenceScores, *, is_raw: bool) -> dict[str, float]:
    """Measures how far scores, or logits, may be off in each precision; {} for scores of an unknown function."""
    score = FORWARD_BY_NAME.get(Activation.NONE if is_raw else reference.activation)
    if score is None:
        return {}
    expected = score(reference.logits)
    one = _Comparison(reference, Answers("", "", "", is_raw, ()), score, expected, expected, ())
    return {item.name: item.tolerance for item in (one.widest_single(), *one.halves())}


def _compare_partly(one: _Comparison, reason: str, changes: ClassChanges | None) -> ServedScores:
    """Gives the result for scores that can show a difference, but not that they are equal."""
    for within in one.single():
        if one.difference <= within.tolerance:
            return one.found(None, within, f"{reason}, and they are equal", class_changes=changes)
    within = max((*one.single(), *one.halves()), key=lambda item: item.tolerance)
    same = None if one.difference <= within.tolerance else False
    return one.found(same, within, f"{reason}; they differ by up to {one.difference:.2g}", class_changes=changes)


def _compare_in_single(one: _Comparison) -> ServedScores | None:
    """Gives the result if the scores are equal or explained in single precision; otherwise None."""
    for within in one.single():
        if one.difference <= within.tolerance:
            return one.equal(within)
        variants = one.reference.variants()
        tried = one.explained(within)
        if tried.fitting:
            explanation, reason = _describe_explanation(tried, variants)
            return one.found(False, within, reason, explanation=explanation)
        limit = _find_limit(one, within.tolerance)
        if limit is not None:
            own, order = variants[AS_IT_IS], tuple(range(one.given.shape[1]))
            words = f"texts cut to {limit} tokens"
            cut = ServedExplanation(words, own.formula, one.function, order, 1.0, 0.0, own.is_sum)
            return one.found(False, within, explanation=cut)
    return None


def _find_limit(one: _Comparison, tolerance: float) -> int | None:
    """Finds the number of tokens that the engine cuts texts to: the only one that gives all scores; otherwise None."""
    lengths, cut = np.asarray(one.reference.lengths), one.reference.cut
    if cut is None or len(lengths) != len(one.given):
        return None
    differs = np.abs(one.given - one.expected).max(1) > tolerance
    rows = sorted(map(int, np.flatnonzero(differs)), key=lambda at: int(lengths[at]))
    least = max(int(lengths[~differs].max(initial=0)), _SHORTEST_LIMIT)
    if len(rows) < _FEWEST_CUT or not least < lengths[rows[0]] <= least + _MOST_LIMITS:
        return None

    def fits(rows: Sequence[int], limit: int) -> bool:
        return bool(np.abs(one.score(cut(rows, limit)) - one.given[list(rows)]).max() <= tolerance)

    limits = [limit for limit in range(least, int(lengths[rows[0]])) if fits(rows[:1], limit)]
    found = [limit for limit in limits if fits(rows[1:], limit)]
    return found[0] if len(found) == 1 else None


def _compare_in_half(one: _Comparison, ask_again: AskAgain | None) -> ServedScores:
    """Gives the result where single precision neither equals nor explains the scores."""
    halves = one.halves()
    small = [half for half in halves if one.difference <= half.tolerance and not one.is_partly_exact(half)]
    for half in small:
        # Of an engine that headscope ran on the checkpoint, the weights are known.
        is_rounding = one.answers.is_run and half.name == one.answers.dtype
        if is_rounding or one.has_pattern_of(half):
            off = {
                name: np.abs(one.score(item.logits) - one.given).max()
                for name, item in one.reference.variants().items()
            }
            fits = sorted(name for name, most in off.items() if most <= half.tolerance and name != AS_IT_IS)
            alike = [f"{half.name} can't tell the head from these variants: {'; '.join(fits)}"] if fits else []
            return one.equal(half, alike) if is_rounding else one.found(True, half, notes=(*one.notes, *alike))
    within = max((*one.single(), *halves), key=lambda item: item.tolerance)
    unsteady = _find_unsteady(one, within, ask_again)
    misplaced = "" if small else _find_misplaced(one)
    if misplaced:
        return one.found(False, one.widest_single(), "; ".join(filter(None, (misplaced, unsteady))))
    if small:
        names = " or ".join(half.name for half in small)
        reason = f"the scores differ by up to {one.difference:.2g}: rounding of {names}, or slightly different weights"
        return one.found(None, within, unsteady or reason)
    return one.found(False, within, unsteady) if unsteady else _explain_in_half(one, halves)


def _note_equal_texts(one: _Comparison) -> Iterator[str]:
    """Yields how many texts get the checkpoint's scores, where some do."""
    single = one.widest_single().tolerance
    equal = np.abs(one.given - one.expected).max(1) <= single
    if equal.any() and not equal.all():
        first = f"text {equal.argmin() + 1} is the first other"
        yield f"{equal.sum()} of {len(equal)} texts get the checkpoint's scores; {first}"


def _find_misplaced(one: _Comparison) -> str:
    """Says that each text with other scores has those of one other text, as from a cache or in another order."""
    single = one.widest_single().tolerance
    differs = np.flatnonzero(np.abs(one.given - one.expected).max(1) > single)
    first = ""
    for at in differs:
        gaps = np.abs(one.expected - one.given[at]).max(1)
        # Only scores that no third text has too show whose they are.
        if (gaps <= single).sum() != 1 or (gaps <= _SPREAD * single).sum() != 1:
            return ""
        first = first or f"text {at + 1} those of text {gaps.argmin() + 1}"
    return f"{len(differs)} texts get the scores of other texts ({first})" if len(differs) >= _FEWEST_CUT else ""


def _find_unsteady(one: _Comparison, within: AllowedRounding, ask_again: AskAgain | None) -> str:
    """Asks for some texts again, twice, and says how the answers differ from each other; "" if they don't."""
    if ask_again is None:
        return ""
    places = list(range(0, len(one.given), max(1, len(one.given) // _MOST_AGAIN)))[:_MOST_AGAIN]
    reference = one.reference
    again = []
    # In the other order, so that servers that take turns don't get the same texts again.
    for order in (places, places[::-1]):
        try:
            answers = ask_again(order)
        except HeadscopeError as err:
            return f"some texts were requested again, each alone, and the request failed: {err.message}"
        shape = (len(places), reference.logits.shape[1])
        aligned = align_scores(answers, reference.labels, reference.label2id, shape)
        if aligned.scores is None or aligned.reason or aligned.top or answers.is_raw != one.answers.is_raw:
            return "some texts were requested again, and the answers have another form"
        again.append(aligned.scores)
    apart = np.abs(again[0] - one.given[places]).max(1)
    # A text that was alone at first too is in the same request now.
    alone = apart[[one.answers.items[place].is_alone for place in places]]
    noise = float(max(np.abs(again[0] - again[1][::-1]).max(), alone.max(initial=0.0)))
    single = one.widest_single().tolerance
    if noise > single:
        return f"the same text gets scores that differ by up to {noise:.2g} from one request to the next"
    if apart.max() > within.tolerance:
        is_own = float(np.abs(again[0] - one.expected[places]).max()) <= single
        own = ", where they are the checkpoint's" if is_own else ""
        return f"in a request with other texts, a text gets other scores than alone{own}"
    return ""


def _explain_in_half(one: _Comparison, halves: Sequence[AllowedRounding]) -> ServedScores:
    """Gives the result where the scores differ by more than half precision rounds."""
    variants, within = one.reference.variants(), next(iter(one.single()))
    own = [item for half in halves for item in _functions_in_half(one, half.name)]
    if len(own) == 1:
        return one.found(False, own[0][0], explanation=own[0][1])
    tried = one.explained(within)
    for half in halves:
        found = one.explained(half)
        if found.fitting and half.name == one.answers.dtype:
            explanation, reason = _describe_explanation(found, variants)
            return one.found(False, half, reason, explanation=explanation)
        if found.explanation is not None:
            _, reason = _describe_explanation(tried, variants)
            hint = f"if the server computes in {half.name} (--dtype {half.name}), {found.fitting[0]} fits"
            return one.found(False, within, f"{reason}; {hint}")
    return one.found(False, within, _describe_explanation(tried, variants)[1])


def _functions_in_half(one: _Comparison, name: str) -> Iterator[tuple[AllowedRounding, ServedExplanation]]:
    """Yields each function and class order that, on the model's own logits, leaves only errors of that precision."""
    head = one.reference.variants()[AS_IT_IS]
    for function in possible_functions(one.given):
        order = order_by_distance(function.forward(one.reference.logits), one.given)
        if order is None:
            continue
        score = partial(_reordered_scores, function.forward, order)
        other = replace(one, score=score, expected=score(one.reference.logits))
        half = other.in_precision(name, _HALF_FACTOR)
        if half is not None and other.difference <= half.tolerance and other.has_pattern_of(half):
            yield half, ServedExplanation(AS_IT_IS, head.formula, function.name, order, 1.0, 0.0, head.is_sum)


def _reordered_scores(forward: Callable[[Scores], Scores], order: Sequence[int], logits: Scores) -> Scores:
    return np.asarray(forward(logits)[:, order])


def _describe_explanation(
    found: ExplainedScores, variants: Mapping[str, VariantScores]
) -> tuple[ServedExplanation | None, str]:
    """Makes the report's explanation of what the engine computes, or None with the reason."""
    item, reason = found.explanation, found.reason
    if item is not None:
        variant = variants[item.variant]
        return ServedExplanation(
            item.variant, variant.formula, item.function, item.order, item.scale, item.offset,
            variant.is_sum, variant.is_without_segments,
        ), ""  # fmt: skip
    if found.is_unexplained and not variants[AS_IT_IS].formula:
        reason += "; the head has no proven expression, so only other functions, orders and factors were tried"
    return None, reason


def _undetermined_scores(reason: str, texts: int, answers: Answers) -> ServedScores:
    return ServedScores(None, None, None, None, "", None, texts, reason, answers.notes, _NOT_LOOKED_AT)
