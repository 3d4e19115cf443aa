"""Facts for an edit from labeled data: the order of the classes, and a fitted temperature or thresholds."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from headscope.checks.labeled_data import DataRequest, read_labeled
from headscope.checks.rules.labeled.label_classes import PLACEHOLDER, fit_names, has_ids, is_hot, named_classes
from headscope.copies.facts import EditedLabel, EditFit, FitKind, FittedThreshold
from headscope.core.facts import ModelFacts
from headscope.core.facts.counting import counted, few_of
from headscope.core.facts.heads.tasks import Activation
from headscope.errors import Unsupported, UsageError
from headscope.shared.labeled.facts import DataFacts, LabelKind
from headscope.shared.labeled.label_cells import open_labeled
from headscope.shared.labeled.sample import Sampled, sample_in_proportion, sample_spread
from headscope.shared.labeled.tally import spelled
from headscope.slices.edit.fitting import (
    CALIBRATION_BINS,
    FIT_RESAMPLES,
    FloatArray,
    ScoredTexts,
    figures_of,
    fitted_temperature,
    fitted_thresholds,
)
from headscope.slices.edit.wish import EditWish

if TYPE_CHECKING:
    import torch

    from headscope.core.source.checkpoint import Checkpoint
    from headscope.core.source.request import Progress

_BATCH = 16
_FEWEST = 20
"""Texts of each part: of fewer, no figure says anything."""
_SEVERAL = (LabelKind.LISTS, LabelKind.COLUMNS)
_SINGLE = (LabelKind.INTEGERS, LabelKind.TEXTS, LabelKind.BOOLEANS)


def order_of_data(request: DataRequest) -> tuple[str, ...]:
    """Reads the classes in the order of the data: of a `ClassLabel` or of several columns; otherwise sorts their names.

    Raises UsageError for data without names of classes.
    """
    data = read_labeled(request).facts
    numbered = has_ids(data) and not data.names
    if data.kind is LabelKind.NUMBERS or numbered or data.has_more_classes:
        raise UsageError(
            f"the labels of {request.file} are numbers without names, so they give no order of names",
            "give data with names, or the order itself with --order",
        )
    return data.names or tuple(item.label for item in named_classes(data))


def fit_to_texts(
    checkpoint: Checkpoint,
    labels: Sequence[EditedLabel],
    wish: EditWish,
    *,
    activation: str,
    tell: Progress,
) -> EditFit:
    """Fits a temperature or thresholds to labeled texts; `labels` are the classes after the edit without the fit.

    Raises UsageError for labels that can't be compared or are too few, Unsupported for a model that can't be fitted.
    """
    from headscope.shared.serving.reference_scores import check_comparable  # imports PyTorch

    check_comparable(checkpoint)
    assert wish.fit is not None  # called for one
    kind, data, seed = wish.fit.kind, wish.fit.data, wish.seed
    names = tuple(label.name for label in labels)
    model = replace(checkpoint.report.model, labels=names, num_labels=len(names), activation=activation)
    is_softmax = _is_softmax(model, kind)
    labeled = read_labeled(data)
    places = _match_labels(labeled.facts, model, is_softmax=is_softmax)
    source = open_labeled(data.file, data.split, data.label_columns).source
    sample = sample_in_proportion if labeled.facts.kind in _SINGLE else sample_spread
    rows = sample(source, labeled.facts, data.predict or labeled.facts.rows, seed)
    truth = np.array([_encode_labels(row, labeled.facts, model, places) for row in rows], float).reshape(
        len(rows), len(names)
    )
    parts = _split_halves(rows, truth, seed)
    fitted = _fitted_classes(truth[parts[0]], names, kind, is_softmax=is_softmax)
    tell(f"running {counted(len(rows), 'text')} on {data.device}")
    logits, truncated = _compute_logits(checkpoint, data.device, rows)
    texts = ScoredTexts(_edit_logits(logits, labels), truth, is_softmax)
    tell(f"fitting the {kind.value}")
    found = _fit_and_compare(kind, [texts.part(part) for part in parts], names, fitted, seed)
    return replace(found, skipped=labeled.facts.missing + labeled.facts.ignored, truncated=truncated)


def _is_softmax(model: ModelFacts, kind: FitKind) -> bool:
    """True if the scores go through a softmax. Raises Unsupported for scores that can't be fitted."""
    if model.activation not in (Activation.SOFTMAX, Activation.SIGMOID):
        raise Unsupported(f"the model's scores aren't probabilities ({model.activation}), so nothing can be fitted", "")
    is_softmax = model.activation == Activation.SOFTMAX
    if is_softmax and kind is FitKind.THRESHOLDS and model.num_labels != 2:
        raise Unsupported(
            f"a threshold decides between two classes, and the softmax is over {model.num_labels}",
            "use --fit temperature, or --problem-type multi_label_classification for a sigmoid of each class",
        )
    return is_softmax


def _encode_labels(row: Sampled, data: DataFacts, model: ModelFacts, places: Mapping[str, int]) -> list[float]:
    """Turns a row's labels into 0 and 1 for each class; `places` gives the class number of each label in the data."""
    found = [0.0] * model.num_labels
    labels = row.label if isinstance(row.label, tuple) else (row.label,)
    if data.kind is LabelKind.COLUMNS:
        for item, value in zip(data.classes, labels, strict=True):
            found[places[item.label]] = float(bool(value))
    elif is_hot(data, model):
        found = [float(spelled(value)) for value in labels]
    elif _is_single_flag(data, model):
        found = [float(places[spelled(labels[0])])]
    else:
        for value in labels:
            found[places[spelled(value)]] = 1.0
    return found


def _is_single_flag(data: DataFacts, model: ModelFacts) -> bool:
    """True if the model has one sigmoid, and the data give one 0 or 1, or false or true, for it."""
    is_flag = data.kind is LabelKind.BOOLEANS or {item.label for item in data.classes} <= {"0", "1"}
    return model.activation == Activation.SIGMOID and model.num_labels == 1 and data.kind not in _SEVERAL and is_flag


def _match_labels(data: DataFacts, model: ModelFacts, *, is_softmax: bool) -> Mapping[str, int]:
    """Maps each label of the data to a class number. Raises UsageError for a label that fits no class."""
    if (data.kind in _SEVERAL) == is_softmax and not _is_single_flag(data, model):
        what = "each text has one class (softmax)" if is_softmax else "a text can have several classes (sigmoid)"
        raise UsageError(f"the labels are {data.kind.value}, but {what}", "give the labels that the model was made for")
    if data.kind is LabelKind.NUMBERS and not data.is_whole:
        raise UsageError("the labels are numbers with fractions, not classes", "name another column")
    if is_hot(data, model):
        if len(data.hot) != model.num_labels:
            raise UsageError(f"the lists have {len(data.hot)} entries for {model.num_labels} classes", "")
        return {}
    if data.kind is LabelKind.BOOLEANS or _is_single_flag(data, model):
        return {"0": 0, "1": 1, "false": 0, "true": 1}
    is_numbered = has_ids(data) and (not data.names or all(map(PLACEHOLDER.fullmatch, model.labels)))
    if is_numbered and set(model.labels) & {item.label for item in data.classes}:
        raise UsageError("the labels are numbers, and the names of the classes are numbers too", "rename the classes")
    places = {str(at) if is_numbered else name: at for at, name in enumerate(model.labels)}
    names = data.names if has_ids(data) and not is_numbered else ()
    found = {item.label: places.get(_name_in(item.label, names)) for item in data.classes}
    unknown = [_name_in(label, names) for label, place in found.items() if place is None]
    if unknown:
        fits = zip(unknown, fit_names(unknown, model.labels), strict=True)
        similar = [f"--rename {model.labels[at]}={name}" for name, (at, _) in fits if at is not None]
        every = f"classes: {few_of(model.labels)}; --rename renames them"
        raise UsageError(
            f"no class of the model is called {few_of(unknown)}, as in the data",
            f"perhaps {' '.join(similar[:4])}" if similar else every,
        )
    return {label: place for label, place in found.items() if place is not None}


def _name_in(label: str, names: Sequence[str]) -> str:
    """Gives the name that the file declares for a label of the data, or the label itself."""
    return names[int(label)] if names and 0 <= int(label) < len(names) else label


def _split_halves(rows: Sequence[Sampled], truth: FloatArray, seed: int) -> tuple[FloatArray, FloatArray]:
    """Splits the rows into those to fit to and those held out, with as many of each class in both.

    Equal texts are in the same half. Raises UsageError for too few texts.
    """
    groups: dict[tuple[str, ...], list[int]] = {}
    for at, row in enumerate(rows):
        groups.setdefault(row.texts, []).append(at)
    ordered = list(groups.values())
    random.Random(seed).shuffle(ordered)
    # The sort is stable: groups of one class are together, in random order, so each half gets every second one.
    ordered.sort(key=lambda group: tuple(truth[group[0]]))
    one, other = ([at for group in ordered[start::2] for at in group] for start in (0, 1))
    if min(len(one), len(other)) < _FEWEST:
        raise UsageError(
            f"{counted(len(rows), 'labeled text')} are too few to fit to a half and look at the other",
            f"give at least {2 * _FEWEST} different ones",
        )
    return np.array(one), np.array(other)


def _fitted_classes(truth: FloatArray, names: Sequence[str], kind: FitKind, *, is_softmax: bool) -> list[int]:
    """Lists the classes that get a threshold. Raises UsageError if all labels are alike."""
    given = truth.any(0)
    if (is_softmax and given.sum() < 2) or not given.any() or (not is_softmax and truth.all()):
        only = f"all have {names[int(given.argmax())]}" if given.any() else "none has a class"
        raise UsageError(f"the labels of the fitting part are all alike: {only}", "give texts of several classes")
    if kind is FitKind.TEMPERATURE:
        return []
    return [1] if is_softmax else list(range(len(names)))


def _compute_logits(checkpoint: Checkpoint, device: str, rows: Sequence[Sampled]) -> tuple[torch.Tensor, int]:
    """Runs the model on each text; gives the logits, [texts, classes], and how many texts were cut."""
    import torch

    from headscope.core.model.loading.inference import (
        check_device,
        encode_batches,
        limit_length,
        load_model,
        open_tokenizer,
        score_texts,
    )

    tokenizer = open_tokenizer(checkpoint.location)
    model = load_model(checkpoint.choice, checkpoint.location, check_device(device, runs_weights=True), torch.float32)
    limit_length(tokenizer, model)
    texts = [row.texts for row in rows]
    scores = score_texts(model, encode_batches(tokenizer, model, texts, _BATCH))
    if scores.dim() != 2 or scores.shape[1] != checkpoint.report.model.num_labels or not bool(scores.isfinite().all()):
        raise Unsupported(f"the model gives no finite score for each class, but {tuple(scores.shape)} numbers", "")
    limit = tokenizer.model_max_length
    # `verbose=False`: the tokenizer would warn of each text that is too long, and here they are counted.
    sizes = (len(tokenizer(*text, truncation=False, verbose=False)["input_ids"]) for text in texts)
    return scores, sum(size > limit for size in sizes)


def _edit_logits(logits: torch.Tensor, labels: Sequence[EditedLabel]) -> FloatArray:
    """Computes the logits after the edit so far. Raises UsageError if a row is random."""
    from headscope.copies.class_rows import promised_scores

    found: FloatArray = promised_scores(logits, labels, 1.0).numpy()
    if np.isnan(found).any():
        raise UsageError("a class with a random row has no scores to fit", "train it first, then fit")
    return found


def _fit_and_compare(
    kind: FitKind, parts: Sequence[ScoredTexts], names: Sequence[str], classes: Sequence[int], seed: int
) -> EditFit:
    """Fits to the first part, and compares the held-out part before and after."""
    fitting, held_out = parts
    temperature, thresholds = None, {}
    shifts = np.zeros(len(names))
    if kind is FitKind.TEMPERATURE:
        temperature = fitted_temperature(fitting)
    else:
        thresholds = fitted_thresholds(fitting, classes)
        if not thresholds:
            raise UsageError("too few texts have a class, or lack one, to fit its threshold", "give more texts")
        for at, chance in thresholds.items():  # minus the logit of the threshold, whose probability becomes 0.5
            shifts[at] = math.log1p(-chance) - math.log(chance)
    pair = held_out, held_out.changed(temperature or 1.0, shifts)
    return EditFit(
        kind=kind,
        temperature=temperature,
        thresholds=tuple(FittedThreshold(names[at], chance) for at, chance in thresholds.items()),
        not_fitted=tuple(names[at] for at in classes if at not in thresholds),
        fitting_texts=len(fitting.truth),
        held_out_texts=len(held_out.truth),
        skipped=0,
        truncated=0,
        seed=seed,
        bins=CALIBRATION_BINS,
        resamples=FIT_RESAMPLES,
        figures=figures_of(kind, pair, names, seed, list(thresholds)),
    )
