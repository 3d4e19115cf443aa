"""Words for a result of `probe`: the answer in one to four sentences, and the names of vectors and baselines."""

from headscope.core.facts import PoolingKind
from headscope.core.facts.heads.tasks import Input
from headscope.core.words.console import Tone
from headscope.core.words.safe import safe
from headscope.core.words.words import POOLING
from headscope.slices.probe.facts.data import HeadInput
from headscope.slices.probe.facts.result import (
    Baseline,
    BaselineKind,
    Candidate,
    Metric,
    ProbeResult,
    Standing,
    Vector,
    Versus,
)

_VECTORS = {
    Vector.FIRST_TOKEN: "first token",
    Vector.MASKED_MEAN: "mean over {}",
    Vector.LAST_NON_PAD_TOKEN: "last token",
    Vector.EOS_TOKEN: "end-of-sequence token",
    Vector.MAX: "maximum over {}",
    Vector.MEAN_AND_MAX: "mean and max over {}",
    Vector.FIRST_LAST_MEAN: "mean over {}, layers 1 and last",
    Vector.LAST_FOUR_CONCAT: "first token, last 4 layers, joined",
    Vector.LAST_FOUR_AVERAGE: "first token, last 4 layers, averaged",
    Vector.POOLER: "output of the pooler",
    Vector.HEAD: "input of the head",
}
_BASELINES = {
    BaselineKind.MAJORITY: "most frequent class",
    BaselineKind.MEAN: "mean of the numbers",
    BaselineKind.EVERY_LABEL: "every class for every {}",
    BaselineKind.TFIDF: "TF-IDF and a linear model",
    BaselineKind.CHECKPOINT: "predictions of the checkpoint itself",
}
CONSTANTS = (BaselineKind.MAJORITY, BaselineKind.MEAN, BaselineKind.EVERY_LABEL)
"""Predictions that are the same for every text."""
METRICS = {Metric.ACCURACY: "accuracy", Metric.MACRO_F1: "macro F1", Metric.R2: "R2"}


def probe_answer(result: ProbeResult) -> str:
    """Gives the answer in one to four sentences, which is all that `-q` shows."""
    return " ".join(
        filter(
            None, (_rows_sentence(result), _head_sentence(result), _constant_sentence(result), _words_sentence(result))
        )
    )


def _rows_sentence(result: ProbeResult) -> str:
    """Says how many rows were used, if these are less than half of the data."""
    is_most = 2 * result.texts >= result.available
    return "" if is_most else f"Only {result.texts:,} of {result.available:,} labeled rows were used."


def _head_sentence(result: ProbeResult) -> str:
    best = result.candidate(result.best)
    name = candidate_words(best, result)
    score = f"{METRICS[best.metric]} {best.mean:.3f} ({best.low:.3f} to {best.high:.3f})"
    said = f"{name[:1].upper()}{name[1:]} is best with a frozen base model: {score}"
    if result.head is None or result.head_input is None:
        return f"{said}."
    head = result.candidate(result.head)
    if result.best in (head.name, head.same_as):
        return f"{said}. The head of {safe(result.head_input.class_name)} reads it."
    versus = result.against(head.name)
    reads = _read_by(result.head_input, head)
    told = f"{said}; the head of {safe(result.head_input.class_name)} reads {reads}: {head.mean:.3f}."
    return told if versus is None else f"{told} {_difference_sentence(versus, len(result.candidates))}"


def _read_by(head_input: HeadInput, head: Candidate) -> str:
    """Names what the head reads."""
    kind = PoolingKind(head_input.pooling)
    words = "another vector" if kind in _UNNAMED else POOLING[kind]
    article = "" if kind in _UNNAMED or kind in _OVER_POSITIONS else "the "
    through = " through the pooler" if head.same_as == Vector.POOLER.value else ""
    return f"{article}{words}{through}"


_UNNAMED = (PoolingKind.OTHER, PoolingKind.CONCAT, PoolingKind.NONE)
_OVER_POSITIONS = (
    PoolingKind.MEAN, PoolingKind.MASKED_MEAN, PoolingKind.MAX, PoolingKind.SPATIAL_MEAN, PoolingKind.FLATTEN,
)  # fmt: skip


def _difference_sentence(versus: Versus, candidates: int) -> str:
    how = f"p = {chance(versus.p_value)}, paired, corrected for the choice among {candidates}"
    if versus.verdict is Standing.BETTER:
        rate = f"{versus.false_alarms:.1%} of simulations without a difference find one"
        return f"The difference is real ({how}; {rate})."
    return f"They cannot be told apart ({how})."


def beats_constant(result: ProbeResult) -> bool:
    """True if a vector is shown to predict the labels at all; without that, its predictions mean nothing."""
    compared = [versus for kind in CONSTANTS if (versus := result.against(kind.value)) is not None]
    return all(versus.verdict is Standing.BETTER for versus in compared)


def _constant_sentence(result: ProbeResult) -> str:
    """Says if no vector is shown to beat a constant prediction, which reads nothing."""
    if beats_constant(result):
        return ""
    constant = next(item for item in result.baselines if item.name in CONSTANTS)
    versus = result.against(constant.name.value)
    assert versus is not None
    what = f"predicting the {words_of(constant, result)}"
    if versus.verdict is Standing.NOT_BETTER:
        return f"No vector beats {what}: {constant.mean:.3f}."
    return f"No vector is shown to beat {what} ({constant.mean:.3f}, p = {chance(versus.p_value)})."


def _words_sentence(result: ProbeResult) -> str:
    """Says if the best vector is not shown to beat TF-IDF, which reads only the words of the texts."""
    versus = result.against(BaselineKind.TFIDF.value)
    words = next((item for item in result.baselines if item.name is BaselineKind.TFIDF), None)
    if versus is None or words is None or versus.verdict is Standing.BETTER:
        return ""
    if versus.verdict is Standing.NOT_BETTER:
        return f"Nothing beats TF-IDF with a linear model: {words.mean:.3f}."
    return f"The best and TF-IDF ({words.mean:.3f}) cannot be told apart (p = {chance(versus.p_value)})."


def chance(value: float) -> str:
    """Writes a probability with as many digits as it needs."""
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def input_words(result: ProbeResult) -> Input:
    """Gives the kind of input that was classified."""
    return result.loading.input if result.loading else Input.TEXT


def vector_words(vector: Vector, input: Input) -> str:
    """Names a vector; images and sounds have positions, not tokens."""
    return _VECTORS[vector].format("tokens" if input is Input.TEXT else "positions")


def candidate_words(candidate: Candidate, result: ProbeResult) -> str:
    """Names a candidate: `mean over tokens of layer 11`."""
    words = vector_words(candidate.pooling, input_words(result))
    return words if candidate.layer is None else f"{words} of layer {candidate.layer}"


def answer_tone(result: ProbeResult) -> Tone:
    """Gives the tone of the answer: good if the best vector beats a constant and the words of the texts."""
    words = result.against(BaselineKind.TFIDF.value)
    is_better = words is None or words.verdict is Standing.BETTER
    return Tone.GOOD if is_better and beats_constant(result) else Tone.WARNING


def rows_of(result: ProbeResult) -> list[Candidate | Baseline]:
    """Gives the rows of the table, the best first."""
    by_pooling: dict[Vector, list[Candidate]] = {}
    for item in result.candidates:
        by_pooling.setdefault(item.pooling, []).append(item)
    best = [max(candidates, key=lambda item: item.mean) for candidates in by_pooling.values()]
    shown = {id(item): item for item in best}  # by identity: the best of a pooling can be the head's input as well
    shown |= {id(item): item for item in result.candidates if item.name in (result.best, result.head)}
    return sorted([*shown.values(), *result.baselines], key=lambda item: -item.mean)


def words_of(item: Candidate | Baseline, result: ProbeResult) -> str:
    """Names a row of the table."""
    if isinstance(item, Baseline):
        return _BASELINES[item.name].format(input_words(result).noun)
    words = candidate_words(item, result)
    if item.same_as is not None:
        words += f" (same as {item.same_as})"
    return f"{words} (new weights)" if item.new else words
