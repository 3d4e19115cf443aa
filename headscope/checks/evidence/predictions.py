"""Predictions for a sample of labeled rows, with the real weights: which order of the classes they fit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headscope.checks.labeled_data import Labeled
from headscope.checks.rules.labeled.label_classes import has_ids, is_regression
from headscope.core.facts import Gap, ModelFacts, Task
from headscope.core.facts.report import find_missing
from headscope.core.source.reading.reading import WITHOUT_WEIGHTS
from headscope.core.source.request import Progress
from headscope.errors import Unsupported
from headscope.shared.labeled.facts import DataFacts, LabelKind, Order, Pairing, Predictions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headscope.core.source.checkpoint import Checkpoint
    from headscope.shared.labeled.matching import FlagMatching, Matching
    from headscope.shared.labeled.sample import Sampled

_SURE = 0.001
"""The chance up to which an order of the classes is taken for shown: a wrong one leads to a wrong repair."""
_UNSURE = 0.05
"""The chance above which predictions fit no order; between the two, nothing is claimed."""
_FEWEST = 8
"""Fewer rows with a known class are not tested: by chance, 7 of two classes are all right once in 128."""
_FEWEST_FOR_NEITHER = 30
_ROWS_A_CLASS = 5
"""The most and the rows for each class from which "no order fits" is claimed: of fewer, a good model may miss some."""
_LEAST_MARGIN = 0.2
"""How much more probable the classes have to be under the best order than under the given one, to claim that they are
permuted."""
_LEAST_CONTRAST = 0.1
"""The same against equal probabilities, to claim that the given order fits, or to find one: a model that was never
trained leans to some class for each text, but not by much."""
_MORE = "give more rows (--predict)"


def predict_sample(checkpoint: Checkpoint, labeled: Labeled, progress: Progress | None) -> Predictions | Gap:
    """Predicts a sample of the rows, and judges which order of the classes the predictions fit."""
    report, data = checkpoint.report, labeled.facts
    model = report.model
    reason = _why_unsuited(checkpoint, data, model)
    if reason:
        return Gap("predictions", reason)
    from headscope.shared.labeled.label_cells import open_labeled
    from headscope.shared.labeled.sample import sample_rows

    wanted = labeled.request
    source = open_labeled(wanted.file, wanted.split, wanted.label_columns).source
    rows = sample_rows(source, data, wanted.predict or 0)
    (progress or (lambda sentence: None))(f"predicting {len(rows)} rows on {wanted.device}")
    scores = _predict_scores(checkpoint, wanted.device, rows)
    if scores.dim() != 2 or scores.shape[1] != model.num_labels:  # a row for each text
        found = _not_determined(len(rows), f"the model gives scores of the shape {tuple(scores.shape)}")
    elif not bool(scores.isfinite().all()):
        found = _not_determined(len(rows), "some scores are NaN or infinite")
    elif is_regression(model):
        found = _judge_numbers(rows, scores)
    elif _has_several_labels(data):
        found = _judge_flags(rows, scores.sigmoid(), data, model)
    else:
        found = _judge_classes(rows, scores.softmax(-1), data, model)
    return replace(found, device=wanted.device)


def _why_unsuited(checkpoint: Checkpoint, data: DataFacts, model: ModelFacts) -> str:
    """Says why predictions would show nothing; "" if they do."""
    if model.task is not Task.SEQUENCE_CLASSIFICATION:
        return f"headscope predicts labels of whole texts, and the task is {model.task.value}"
    if checkpoint.choice.rows:
        return "the scores are those of tokens of a language model"
    missing = find_missing(checkpoint.report)
    if missing.head or missing.elsewhere:
        return "weights that the scores depend on are newly initialized, so the predictions are random"
    return _why_labels_unsuited(data, model)


def _why_labels_unsuited(data: DataFacts, model: ModelFacts) -> str:
    """Says why the labels can't be compared with predictions; "" if they can."""
    if is_regression(model):
        is_number = data.kind in (LabelKind.INTEGERS, LabelKind.NUMBERS) and model.num_labels == 1
        return "" if is_number else "the labels are not one number for each row"
    if _has_several_labels(data) != (model.problem_type == "multi_label_classification"):
        return "the labels don't fit the problem type (HS004)"
    if not _has_order(data) and not model.labels_are_placeholders:
        return "no label of the data is a class of the model (HS001)"
    return "" if model.num_labels > 1 else "the model has one class"


def _has_several_labels(data: DataFacts) -> bool:
    return data.kind in (LabelKind.LISTS, LabelKind.COLUMNS)


def _has_order(data: DataFacts) -> bool:
    """True if the data say which class of the model a label means."""
    return any(item.model_class is not None for item in data.classes)


def _predict_scores(checkpoint: Checkpoint, device: str, rows: Sequence[Sampled]) -> Any:
    from headscope.core.model.loading.inference import check_device, predict_texts

    manifest = checkpoint.manifest
    if manifest.kind in WITHOUT_WEIGHTS:
        raise Unsupported(
            f"{checkpoint.request.reference} is {WITHOUT_WEIGHTS[manifest.kind]}, so headscope can't predict with it",
            "give the folder or the Hub ID of a whole checkpoint, or leave out --predict",
        )
    where = check_device(device)
    return predict_texts(checkpoint.choice, checkpoint.location, where, [row.texts for row in rows])


def _not_determined(rows: int, reason: str) -> Predictions:
    return Predictions(rows, "", Order.NOT_DETERMINED, reason)


def _judge_numbers(rows: Sequence[Sampled], scores: Any) -> Predictions:
    from headscope.shared.labeled.matching import fit_line

    given = [float(str(row.label)) for row in rows]
    line = fit_line(given, scores[:, 0].tolist()) if rows else None
    found = Predictions(len(rows), "", Order.NONE)
    return found if line is None else replace(found, correlation=line[0], scale=line[1], offset=line[2])


def _judge_classes(rows: Sequence[Sampled], chances: Any, data: DataFacts, model: ModelFacts) -> Predictions:
    """Judges one label for each row."""
    from headscope.shared.labeled.matching import match_classes
    from headscope.shared.labeled.tally import spelled

    is_ordered = _has_order(data)
    places = {item.label: item.model_class if is_ordered else number for number, item in enumerate(data.classes)}
    pairs = [(places.get(spelled(row.label)), chance) for row, chance in zip(rows, chances.tolist(), strict=True)]
    known = [(place, chance) for place, chance in pairs if place is not None]
    expected, given = [place for place, _ in known], [chance for _, chance in known]
    # Data may have more classes than the model: a square table needs room for both.
    size = max(model.num_labels, *(place + 1 for place in expected), 1)
    present = sorted(set(expected))
    if len(known) < _FEWEST or len(present) < 2:
        few = "rows of only one class" if len(known) >= _FEWEST else f"only {len(known)} rows with a known class"
        return _not_determined(len(known), f"the sample has {few}: {_MORE}")
    predicted = [max(range(len(row)), key=row.__getitem__) for row in given]
    match = match_classes(expected, predicted, size)
    moved = [place for place in present if match.order[place] != place]
    margin = _margin_of_order(expected, given, match.order, moved if is_ordered else present, is_ordered=is_ordered)
    found = Predictions(
        len(known),
        "",
        Order.NOT_DETERMINED,
        given=match.given if is_ordered else None,
        best=match.best,
        chance=match.chance,
        margin=margin,
        pairs=_pair_classes(present, match.order, data, model, is_ordered=is_ordered),
    )
    is_enough = len(known) >= max(_FEWEST_FOR_NEITHER, _ROWS_A_CLASS * len(present))
    if match.chance > _SURE or is_ordered:
        return _choose_order(found, match, is_moved=bool(moved), is_enough=is_enough)
    return _if_clear(found, Order.FOUND, _LEAST_CONTRAST)


def _choose_order(
    found: Predictions, match: Matching | FlagMatching, *, is_moved: bool, is_enough: bool
) -> Predictions:
    """Chooses the order that the predictions fit."""
    if match.chance > _UNSURE and is_enough:
        return replace(found, order=Order.NEITHER)
    if match.chance > _SURE:
        return replace(found, reason=f"{found.rows} predictions are too few, or too often wrong, to tell: {_MORE}")
    if is_moved and match.moved <= _SURE:
        return _if_clear(found, Order.PERMUTED, _LEAST_MARGIN)
    if not is_moved:
        return _if_clear(found, Order.SAME, _LEAST_CONTRAST)
    if match.moved > _UNSURE and match.chance_given <= _SURE:
        return replace(found, order=Order.SAME)
    return replace(found, reason=f"{found.rows} predictions don't tell the given order from another: {_MORE}")


def _if_clear(found: Predictions, order: Order, least: float) -> Predictions:
    """Claims the order, unless the scores hardly differ, as those of a model that was never trained."""
    if found.margin is not None and found.margin >= least:
        return replace(found, order=order)
    reason = "the probabilities of the classes hardly differ, as those of a model that was not trained"
    return replace(found, reason=reason)


def _margin_of_order(
    expected: Sequence[int],
    given: Sequence[Sequence[float]],
    order: Sequence[int],
    classes: Sequence[int],
    *,
    is_ordered: bool,
) -> float:
    """Computes how much more probability the best order's class gets than the given one, on rows of these classes.

    If no class is moved, or no order is given, the comparison is with an even share.
    """
    even = not is_ordered or not classes
    rows = [(place, chance) for place, chance in zip(expected, given, strict=True) if even or place in set(classes)]
    found = [
        _chance_of(chance, order[place]) - (1 / len(chance) if even else _chance_of(chance, place))
        for place, chance in rows
    ]
    return sum(found) / len(found)


def _chance_of(chances: Sequence[float], place: int) -> float:
    return chances[place] if place < len(chances) else 0.0


def _pair_classes(
    present: Sequence[int], order: Sequence[int], data: DataFacts, model: ModelFacts, *, is_ordered: bool
) -> tuple[Pairing, ...]:
    labels = {item.model_class: item.label for item in reversed(data.classes)}
    if not is_ordered:
        labels = dict(enumerate(item.label for item in data.classes))
    if data.names and has_ids(data):
        labels |= {place: data.names[place] for place in present if place < len(data.names)}
    return tuple(
        Pairing(labels[place], _class_name(model, place) if is_ordered else None, _class_name(model, order[place]))
        for place in present
    )


def _class_name(model: ModelFacts, place: int) -> str:
    return model.labels[place] if place < len(model.labels) else f"class {place}"


def _judge_flags(rows: Sequence[Sampled], chances: Any, data: DataFacts, model: ModelFacts) -> Predictions:
    """Judges several labels for each row, matched class by class."""
    from headscope.shared.labeled.matching import match_flags

    if not _has_order(data):
        return _not_determined(len(rows), "the classes of the model have no names that the data knows")
    expected = [_row_as_flags(row, data, model.num_labels) for row in rows]
    present = [item for item in range(model.num_labels) if 0 < sum(row[item] for row in expected) < len(rows)]
    if len(rows) < _FEWEST_FOR_NEITHER or len(present) < 2:
        return _not_determined(len(rows), f"too few of the {len(rows)} rows have and lack a class: {_MORE}")
    match = match_flags(expected, chances.tolist())
    moved = [place for place in present if match.order[place] != place]
    found = Predictions(
        len(rows), "", Order.NOT_DETERMINED, chance=match.chance, margin=match.contrast,
        pairs=_pair_classes(present, match.order, data, model, is_ordered=True),
    )  # fmt: skip
    return _choose_order(found, match, is_moved=bool(moved), is_enough=True)


def _row_as_flags(row: Sampled, data: DataFacts, size: int) -> list[float]:
    """Writes a row as 0 and 1 for each class of the model."""
    from headscope.shared.labeled.tally import spelled

    label = row.label if isinstance(row.label, tuple) else (row.label,)
    is_hot = data.kind is LabelKind.COLUMNS or (len(data.hot) == size and len(label) == size)
    found = [0.0] * size
    if is_hot:
        for item, value in zip(data.classes, label, strict=False):
            if item.model_class is not None:
                found[item.model_class] = float(bool(value))
        return found
    places = {item.label: item.model_class for item in data.classes}
    for value in label:
        place = places.get(spelled(value))
        if place is not None:
            found[place] = 1.0
    return found
