"""Which class of the model each label of the data means."""

import re
from dataclasses import replace

from headscope.checks.labeled.label_names import fit_names
from headscope.facts import ModelFacts, Task
from headscope.facts.heads.tasks import WITHOUT_CLASSES
from headscope.facts.results.labeled import DataClass, DataFacts, Fit, LabelKind

PER_TOKEN = (Task.TOKEN_CLASSIFICATION, Task.AUDIO_FRAME_CLASSIFICATION)
_HOT = 3
"""A list of this many 0s and 1s has an entry for each class; a shorter one may be a list of ids."""
_INTEGER = re.compile(r"[+-]?\d+")


def is_regression(model: ModelFacts) -> bool:
    """Whether the one score, or each of several, is a number and not a class."""
    return model.problem_type == "regression" and model.reads_problem_type is not False


def fit_classes(data: DataFacts, model: ModelFacts) -> DataFacts:
    """The data with the class of the model that each label means."""
    if model.task in WITHOUT_CLASSES or is_regression(model):
        return data
    if is_hot(data, model):
        names = model.labels if len(model.labels) == len(data.hot) else tuple(map(str, range(len(data.hot))))
        ids = range(len(data.hot))
        return replace(data, classes=tuple(_by_id(DataClass(names[i], data.hot[i]), i, model) for i in ids))
    return replace(data, classes=_fitted(data, model))


def is_hot(data: DataFacts, model: ModelFacts) -> bool:
    """Whether each list has an entry for each class, 0 or 1."""
    if data.kind is not LabelKind.LISTS or model.task in PER_TOKEN or not data.hot:
        return False
    return data.list_length == model.num_labels or len(data.hot) >= _HOT


def _fitted(data: DataFacts, model: ModelFacts) -> tuple[DataClass, ...]:
    if data.kind is LabelKind.BOOLEANS:
        return tuple(_by_id(item, int(item.label == "true"), model) for item in data.classes)
    if has_ids(data):
        return tuple(_by_id(item, int(item.label), model) for item in data.classes)
    fits = fit_names([item.label for item in data.classes], model.labels)
    found = zip(data.classes, fits, strict=True)
    return tuple(replace(item, model_class=number, fit=fit) for item, (number, fit) in found)


def _by_id(item: DataClass, number: int, model: ModelFacts) -> DataClass:
    known = 0 <= number < model.num_labels
    return replace(item, model_class=number if known else None, fit=Fit.ID if known else Fit.NONE)


def has_ids(data: DataFacts) -> bool:
    """Whether the labels are whole numbers, which name classes by their id."""
    if data.kind is LabelKind.COLUMNS or data.kind is LabelKind.TEXTS:
        return False
    return bool(data.classes) and all(_INTEGER.fullmatch(item.label) for item in data.classes)


def is_by_id(data: DataFacts, model: ModelFacts) -> bool:
    """Whether labels mean classes by their place, without a name that could be compared."""
    return data.kind is LabelKind.BOOLEANS or is_hot(data, model) or (has_ids(data) and not data.names)


def named_classes(data: DataFacts) -> tuple[DataClass, ...]:
    """The classes under the names that the file declares for their ids; as they are if it declares none."""
    if not data.names or not has_ids(data):
        return data.classes
    rows = {int(item.label): item.rows for item in data.classes}
    return tuple(DataClass(name, rows.get(number, 0)) for number, name in enumerate(data.names))
