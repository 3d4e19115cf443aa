"""What the vectors have to beat, and what the comparison says about training: the baselines, the loss at the start."""

from __future__ import annotations

from headscope.facts import Report, Unavailable
from headscope.facts.results.probe import (
    Baseline,
    BaselineKind,
    HeadInput,
    Input,
    ProbeFirst,
    Problem,
    StartingLoss,
    Vector,
)
from headscope.probing.data.rows import LabeledRows
from headscope.probing.examined import new_names
from headscope.probing.hidden.store import Features
from headscope.probing.scoring.comparison import Rated, ScoredCandidate, compare_one, rate
from headscope.probing.scoring.scores import Trial, predict_constant, predict_from_words
from headscope.probing.scoring.start import advise_probe_first, is_finite, predictions_of, starting_loss

_CONSTANT = {
    Problem.SINGLE_LABEL: BaselineKind.MAJORITY,
    Problem.MULTI_LABEL: BaselineKind.EVERY_LABEL,
    Problem.REGRESSION: BaselineKind.MEAN,
}


def score_rivals(  # noqa: PLR0917  a step of `measure`, all of whose names it uses
    texts: LabeledRows,
    trial: Trial,
    report: Report,
    features: Features,
    outputs: tuple[int, ...] | Unavailable,
    input: Input,
) -> tuple[dict[BaselineKind, Rated], tuple[Unavailable, ...]]:
    """The baselines with their scores, and those that are not."""
    found, gaps = {_CONSTANT[texts.problem]: predict_constant(trial)}, []
    words = predict_from_words([" ".join(text) for text in texts.texts], trial) if input is Input.TEXT else None
    if input is not Input.TEXT:
        gaps.append(Unavailable(BaselineKind.TFIDF.value, f"the rows are {input.value} files, not texts"))
    elif words is None:
        gaps.append(Unavailable(BaselineKind.TFIDF.value, "the texts hold no words of two letters or more"))
    if words is not None:
        found[BaselineKind.TFIDF] = words.values
    if new_names(report):
        reason = "the checkpoint's head is not trained: weights that its scores depend on are newly initialized"
        gaps.append(Unavailable(BaselineKind.CHECKPOINT.value, reason))
    elif isinstance(outputs, Unavailable):
        gaps.append(outputs)
    elif not is_finite(features.scores):
        gaps.append(Unavailable(BaselineKind.CHECKPOINT.value, "the checkpoint's head gave NaN or infinite scores"))
    else:
        found[BaselineKind.CHECKPOINT] = predictions_of(texts, features.scores, outputs)
    return dict(zip(found, rate(list(found.values()), trial), strict=True)), tuple(gaps)


def baseline_of(kind: BaselineKind, rated: Rated) -> Baseline:
    """A baseline with its scores."""
    main = rated.main
    return Baseline(kind, main.metric, main.mean, main.low, main.high, rated.scores[1:])


def loss_at_start(
    texts: LabeledRows,
    trial: Trial,
    features: Features,
    outputs: tuple[int, ...] | Unavailable,
    *,
    is_new: bool,
) -> StartingLoss | None:
    """The loss that training starts with; a new head has an output for each class, in any order."""
    if is_new and features.scores.shape[1] == (len(texts.classes) or 1):
        outputs = tuple(range(len(texts.classes) or 1))
    if isinstance(outputs, Unavailable):
        return None
    return starting_loss(texts, trial, features.scores, outputs, new_head=is_new)


def advice_on_head(  # noqa: PLR0917  a step of `measure`, all of whose names it uses
    scored: ScoredCandidate,
    rivals: dict[BaselineKind, Rated],
    trial: Trial,
    start: StartingLoss | None,
    head: HeadInput | None,
    input: Input,
    features: Features,
    *,
    is_new: bool,
) -> ProbeFirst:
    """Whether to train the head first: the vector that it reads against a constant and against the words."""
    place = scored.place(Vector.HEAD.value)
    kinds = (_CONSTANT[trial.problem], BaselineKind.TFIDF)
    knows, words = (
        None if place is None or kind not in rivals else compare_one(scored, place, kind.value, rivals[kind], trial)
        for kind in kinds
    )
    return advise_probe_first(
        start,
        new_head=is_new,
        knows=knows,
        words=words,
        random_input=bool(head is not None and head.new),
        noun=input.noun,
        is_finite=is_finite(features.scores),
    )
