"""Rules on labeled data: whether their labels are the model's classes, in the model's order."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from headscope.checks.label_names import fit_names
from headscope.checks.rule import Findings, NotApplicable, NotKnown, Rule, at, rule
from headscope.facts import ModelFacts, Severity, Task
from headscope.facts.check import Subject
from headscope.facts.counting import counted, list_of, shortened, verb
from headscope.facts.labelled import DataClass, DataFacts, Fit, LabelKind, Order, Predictions
from headscope.facts.tasks import WITHOUT_CLASSES

_DATA = ("data",)
_PREDICTED = ("data", "predictions")
_PER_TOKEN = (Task.TOKEN_CLASSIFICATION, Task.AUDIO_FRAME_CLASSIFICATION)
_LISTED = 12
_UNBALANCED = 20
_HOT = 3
"""A list of this many 0s and 1s has an entry for each class; a shorter one may be a list of ids."""
_INTEGER = re.compile(r"[+-]?\d+")
_BOTH = "multi_label_classification"


def is_regression(model: ModelFacts) -> bool:
    """Whether the one score, or each of several, is a number and not a class."""
    return model.problem_type == "regression" and model.reads_problem_type is not False


def fit_classes(data: DataFacts, model: ModelFacts) -> DataFacts:
    """The data with the class of the model that each label means."""
    if model.task in WITHOUT_CLASSES or is_regression(model):
        return data
    if _is_hot(data, model):
        names = model.labels if len(model.labels) == len(data.hot) else tuple(map(str, range(len(data.hot))))
        ids = range(len(data.hot))
        return replace(data, classes=tuple(_by_id(DataClass(names[i], data.hot[i]), i, model) for i in ids))
    return replace(data, classes=_fitted(data, model))


def _is_hot(data: DataFacts, model: ModelFacts) -> bool:
    """Whether each list has an entry for each class, 0 or 1."""
    if data.kind is not LabelKind.LISTS or model.task in _PER_TOKEN or not data.hot:
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


@dataclass(frozen=True, slots=True)
class _Misfit:
    """Why labels of this kind are not those of the model's problem."""

    message: str
    remedy: str
    is_soft: bool = False


def _misfit(data: DataFacts, model: ModelFacts) -> _Misfit | None:
    """The kind of labels against the kind of problem; None where they fit."""
    if is_regression(model):
        return _of_regression(data, model)
    if model.task not in _PER_TOKEN:
        return _of_several(data, model) or _of_numbers(data, model)
    if data.kind is LabelKind.LISTS:
        return None
    return _Misfit(f"The data has one label for each row, but {model.class_name} scores each token.", _OTHER_TASK)


def _of_several(data: DataFacts, model: ModelFacts) -> _Misfit | None:
    """One label for each row or several, against the problem type."""
    is_several = data.kind in (LabelKind.LISTS, LabelKind.COLUMNS)
    is_multi = model.problem_type == _BOTH and model.reads_problem_type is not False
    if is_multi and not is_several:
        return _Misfit(
            f"problem_type is {_BOTH}, but the data has one label for each row ({data.kind.value}).",
            "Give each row a list of labels, or set problem_type to single_label_classification.",
        )
    if is_several and not is_multi:
        return _Misfit(
            f"The data has several labels for a row ({data.kind.value}), but problem_type is "
            f"{model.problem_type or 'not set'}.",
            f"Set problem_type to {_BOTH} if a row can have several classes; for one label for each token, use "
            "--task token-classification.",
            is_soft=model.problem_type is None,
        )
    return None


def _of_numbers(data: DataFacts, model: ModelFacts) -> _Misfit | None:
    """Floats where classes are expected."""
    if data.kind is not LabelKind.NUMBERS:
        return None
    if data.is_whole:
        return _Misfit(
            "The labels are whole numbers written as floats (1.0), which Transformers takes for several labels or "
            "numbers, not for class ids.",
            "Convert the column to integers before training.",
            is_soft=True,
        )
    return _Misfit(
        f"The labels are numbers with fractions, from {data.lowest:g} to {data.highest:g}, but the model has "
        f"{counted(model.num_labels, 'class', 'classes')}.",
        "For regression use num_labels=1 and problem_type regression; for classes, write class ids or names.",
    )


_OTHER_TASK = "Use --task sequence-classification for one label for each text, or give the column of tags."


def _of_regression(data: DataFacts, model: ModelFacts) -> _Misfit | None:
    if data.kind in (LabelKind.INTEGERS, LabelKind.NUMBERS):
        several = model.num_labels > 1
        told = f"problem_type is regression over {model.num_labels} scores, but the data has one number for each row."
        return _Misfit(told, "Give each row a list of numbers, or use num_labels=1.") if several else None
    if data.kind in (LabelKind.LISTS, LabelKind.COLUMNS) and model.num_labels > 1:
        return None
    shown = list_of((item.label for item in data.classes), _LISTED)
    return _Misfit(
        f"The model computes one number (regression), but the labels are {data.kind.value}: {shown}.",
        f"For classes use num_labels={max(len(data.classes), 2)}; for regression give a column of numbers.",
    )


def _comparable(subject: Subject) -> DataFacts:
    """The data, where its labels are classes as the model's are. Raises NotApplicable for any other."""
    data, model = _given(subject), subject.report.model
    if is_regression(model):
        raise NotApplicable("the model computes numbers, which have no classes (regression)")
    misfit = _misfit(data, model)
    if misfit is not None and not misfit.is_soft:
        raise NotApplicable("the labels are of another kind than the model's (HS724)")
    return data


def _given(subject: Subject) -> DataFacts:
    """The data. Raises NotApplicable for a task without classes, NotKnown where the number of classes is not known."""
    model, data = subject.report.model, subject.data
    assert data is not None  # `needs` holds it
    if model.task in WITHOUT_CLASSES:
        raise NotApplicable(f"{model.task.value} has no classes that labels could name")
    if model.num_labels < 1:
        raise NotKnown("headscope could not determine how many classes the model has")
    return data


def _is_named(subject: Subject) -> bool:
    """Whether the model's classes have names that can be compared."""
    model = subject.report.model
    return bool(model.labels) and not model.labels_are_placeholders


def _with_rows(items: Iterable[DataClass]) -> str:
    return list_of((f"{shortened(item.label)!r} ({counted(item.rows, 'row')})" for item in items), _LISTED)


@rule("HS721", "data-classes-unknown", "The data has classes that the model lacks", needs=_DATA)
def data_classes_unknown(this: Rule, subject: Subject) -> Findings:
    """Labels of the data that no class of the model means."""
    data, model = _comparable(subject), subject.report.model
    severity = at(subject, training=Severity.ERROR, inference=Severity.WARNING)
    classes = named_classes(data)
    if _is_by_id(data, model):
        return  # HS723 looks at ids
    if not _is_named(subject):
        if len(classes) > model.num_labels and any(item.model_class is None for item in classes):
            yield this.find(
                severity,
                f"The data has {counted(len(classes), 'class', 'classes')} ({_with_rows(classes)}), and the model "
                f"{model.num_labels}.",
                f"Use num_labels={len(classes)}, or remove the other labels from the data.",
            )
        return
    fits = fit_names([item.label for item in classes], model.labels)
    unknown = [item for item, (number, _) in zip(classes, fits, strict=True) if number is None and item.rows]
    if unknown:
        yield this.find(
            Severity.ERROR if len(unknown) == sum(item.rows > 0 for item in classes) else severity,
            f"No class of the model is called {_with_rows(unknown)}. The model's classes: "
            f"{list_of(model.labels, _LISTED)}.",
            "Rename the labels, remove their rows, or train a head with these classes (--labels).",
        )


def _is_by_id(data: DataFacts, model: ModelFacts) -> bool:
    """Whether labels mean classes by their place, without a name that could be compared."""
    return data.kind is LabelKind.BOOLEANS or _is_hot(data, model) or (has_ids(data) and not data.names)


def named_classes(data: DataFacts) -> tuple[DataClass, ...]:
    """The classes under the names that the file declares for their ids; as they are if it declares none."""
    if not data.names or not has_ids(data):
        return data.classes
    rows = {int(item.label): item.rows for item in data.classes}
    return tuple(DataClass(name, rows.get(number, 0)) for number, name in enumerate(data.names))


@rule("HS722", "data-classes-absent", "The data lacks classes of the model", worst=Severity.WARNING, needs=_DATA)
def data_classes_absent(this: Rule, subject: Subject) -> Findings:
    """Classes of the model without a row."""
    data, model = _comparable(subject), subject.report.model
    found: set[int | None] = {item.model_class for item in data.classes if item.rows} - {None}
    if _compares_by_name(data, subject):
        named = [item for item in named_classes(data) if item.rows]
        found = {number for number, _ in fit_names([item.label for item in named], model.labels)} - {None}
    severity = at(subject, training=Severity.WARNING, inference=Severity.NOTE)
    remedy = "Add rows of these classes, or train a head without them (--labels)."
    if not found and not _is_named(subject) and not has_ids(data):
        lacking = model.num_labels - len(data.classes)
        if lacking > 0:
            yield this.find(
                severity, f"The data has {len(data.classes)} classes, and the model {model.num_labels}.", remedy
            )
        return
    absent = [name for number, name in enumerate(_labels(model)) if number not in found]
    if absent and found:
        yield this.find(
            severity,
            f"No row has {'the class' if len(absent) == 1 else 'one of the classes'} {list_of(absent, _LISTED)}: "
            f"{counted(len(absent), 'class', 'classes')} of {model.num_labels}.",
            remedy,
        )


def _labels(model: ModelFacts) -> Sequence[str]:
    return model.labels or tuple(str(number) for number in range(model.num_labels))


def _compares_by_name(data: DataFacts, subject: Subject) -> bool:
    return bool(data.names) and has_ids(data) and _is_named(subject)


@rule("HS723", "data-ids-out-of-range", "Labels are outside the range of the classes", needs=_DATA)
def data_ids_out_of_range(this: Rule, subject: Subject) -> Findings:
    """Class ids that the model has not: the loss raises, on a GPU without naming the cause."""
    data, model = _comparable(subject), subject.report.model
    if _is_hot(data, model):
        if len(data.hot) != model.num_labels:
            yield this.find(
                Severity.ERROR,
                f"The lists of labels have {len(data.hot)} entries, and the model {model.num_labels} classes.",
                f"Use num_labels={len(data.hot)}, or lists with an entry for each class.",
            )
        return
    if not has_ids(data):
        return
    outside = [item for item in data.classes if item.model_class is None]
    if not outside:
        return
    is_shifted = data.lowest == 1 and data.highest == model.num_labels
    yield this.find(
        Severity.ERROR,
        f"The ids of the model's {counted(model.num_labels, 'class', 'classes')} are 0 to {model.num_labels - 1}, and "
        f"the data has {_with_rows(outside)}{' and more' if data.has_more_classes else ''}.",
        "The ids seem to start at 1: subtract 1 from each."
        if is_shifted
        else f"Correct the labels, or use num_labels={int(data.highest or 0) + 1}; -100 marks what the loss ignores.",
    )


@rule("HS724", "data-label-kind", "The labels don't fit the problem type", needs=_DATA)
def data_label_kind(this: Rule, subject: Subject) -> Findings:
    """Numbers where classes are expected, one label where there are several, and the other way round."""
    misfit = _misfit(_given(subject), subject.report.model)
    if misfit is not None:
        yield this.find(Severity.WARNING if misfit.is_soft else Severity.ERROR, misfit.message, misfit.remedy)


@rule("HS725", "data-names-differ", "Labels are spelled differently", worst=Severity.WARNING, needs=_DATA)
def data_names_differ(this: Rule, subject: Subject) -> Findings:
    """Names of the data that are the model's except for case, spaces, punctuation, or a well-known other word."""
    data, model = _comparable(subject), subject.report.model
    if _is_by_id(data, model):
        return
    classes = named_classes(data)
    fits = fit_names([item.label for item in classes], model.labels)
    differing = {
        item.label: model.labels[number]
        for item, (number, fit) in zip(classes, fits, strict=True)
        if number is not None and fit in (Fit.SPELLING, Fit.SYNONYM)
    }
    if differing:
        pairs = list_of((f"{given!r} is {own!r}" for given, own in differing.items()), _LISTED)
        yield this.find(
            Severity.WARNING,
            f"A mapping that would fit: {pairs}.",
            "headscope doesn't apply it: check it, then rename the labels.",
            code=f"same = {differing!r}  # label in the data: class of the model",
        )


@rule("HS726", "data-order", "The data and the model number their classes differently", needs=_DATA)
def data_order(this: Rule, subject: Subject) -> Findings:
    """The order of the names that the data declares against id2label."""
    data, model = _comparable(subject), subject.report.model
    if not has_ids(data):
        raise NotApplicable("the labels of the data have no order: they are names, not ids")
    if not _is_named(subject):
        raise NotApplicable(f"the model's classes have no names to compare ({_MEASURE})")
    if not data.names:
        yield from _by_digits(this, data, model)
        return
    fits = fit_names(data.names, model.labels)
    moved = [(number, name) for number, name in enumerate(data.names) if fits[number][0] not in (number, None)]
    if moved:
        rows = "; ".join(
            f"{number}: {name!r} in the data, {_named(model, number)} in the model" for number, name in moved[:_LISTED]
        )
        rest = f"; {len(moved) - _LISTED:,} more" if len(moved) > _LISTED else ""
        yield this.find(
            Severity.ERROR,
            f"{rows}{rest}.",
            "Set id2label and label2id in the order of the data before training a new head; for a trained model, "
            "convert the ids of the data by name.",
            code=f"labels = {list(data.names)!r}  # the order of the data\n"
            "model.config.id2label = dict(enumerate(labels))\n"
            "model.config.label2id = {name: number for number, name in enumerate(labels)}",
        )


def _named(model: ModelFacts, number: int) -> str:
    return repr(model.labels[number]) if number < len(model.labels) else "no class"


_MEASURE = "--predict measures their order"


def _by_digits(this: Rule, data: DataFacts, model: ModelFacts) -> Findings:
    """Ids without names. Where the model's names are numbers too, id and name can contradict each other."""
    ids = [int(item.label) for item in data.classes if item.model_class is not None]
    fits = dict(zip(ids, fit_names([str(number) for number in ids], model.labels), strict=True))
    moved = [number for number in ids if fits[number][0] not in (number, None)]
    if not moved:
        raise NotApplicable(f"the ids in the data have no names to compare ({_MEASURE})")
    shown = list_of((f"{number}: {_named(model, number)} by id, {model.labels[fits[number][0] or 0]!r} by name"
                     for number in moved), _LISTED)  # fmt: skip
    yield this.find(
        Severity.WARNING,
        f"The labels are numbers, and the model's names are other numbers. {shown}.",
        "Find out which is meant, then write the names of the classes into the data.",
    )


@rule("HS727", "data-unbalanced", "The classes are unbalanced", worst=Severity.NOTE, needs=_DATA)
def data_unbalanced(this: Rule, subject: Subject) -> Findings:
    """A class with many times more rows than another."""
    data = _comparable(subject)
    if data.kind in (LabelKind.LISTS, LabelKind.COLUMNS):
        raise NotApplicable("a row can have several labels")
    counts = sorted((item for item in named_classes(data) if item.rows), key=lambda item: item.rows)
    if len(counts) > 1 and counts[-1].rows >= _UNBALANCED * counts[0].rows:
        low, high = counts[0], counts[-1]
        yield this.find(
            Severity.NOTE,
            f"{high.label!r} has {counted(high.rows, 'row')}, {low.label!r} {low.rows:,}.",
            "Look at the scores of each class separately; accuracy hides the small ones.",
        )


@rule("HS728", "data-labels-missing", "Rows have no label", worst=Severity.WARNING, needs=_DATA)
def data_labels_missing(this: Rule, subject: Subject) -> Findings:
    """Empty cells, null and NaN in the column of labels."""
    data = _given(subject)
    if data.missing:
        yield this.find(
            at(subject, training=Severity.WARNING, inference=Severity.NOTE),
            f"{data.missing:,} of {counted(data.rows, 'row')} {verb(data.missing, 'has', 'have')} no label.",
            "Remove these rows, or label them.",
        )


@rule("HS729", "predictions-permuted", "The predictions fit another order of the classes", needs=_PREDICTED)
def predictions_permuted(this: Rule, subject: Subject) -> Findings:
    """A model whose scores are right under another order than the data's."""
    found = _predictions(subject)
    if found.order is Order.NOT_DETERMINED:
        raise NotKnown(found.reason)
    if found.order is Order.PERMUTED:
        moved = [pair for pair in found.pairs if pair.fits != pair.expected]
        named = list_of((f"{pair.label!r} in the data is predicted as {pair.fits!r}" for pair in moved), _LISTED)
        yield this.find(Severity.ERROR, f"{named}. {_measured(subject, found.rows)}", _PERMUTED)


def _predictions(subject: Subject) -> Predictions:
    """The predictions. Raises NotApplicable for numbers."""
    found = _given(subject).predictions
    assert found is not None  # `needs` holds it
    if found.order is Order.NONE:
        raise NotApplicable("the model computes numbers, which have no classes (regression)")
    return found


_PERMUTED = (
    "The labels of the training data were in another order than id2label: correct id2label, or the ids of the data."
)


def _measured(subject: Subject, rows: int) -> str:
    assert subject.data is not None and subject.data.predictions is not None
    given, best = subject.data.predictions.given, subject.data.predictions.best
    if given is None or best is None:
        return f"Measured on {counted(rows, 'row')}."
    return f"On {counted(rows, 'row')} {given.value:.0%} are right as given, and {best.value:.0%} in this order."


@rule("HS730", "predictions-chance", "The predictions are no better than chance", worst=Severity.WARNING,
      needs=_PREDICTED)  # fmt: skip
def predictions_chance(this: Rule, subject: Subject) -> Findings:
    """Scores that fit no order of the classes."""
    found = _predictions(subject)
    if found.order is Order.NEITHER:
        share = f" {found.given.value:.0%} are right." if found.given else ""
        yield this.find(
            at(subject, training=Severity.NOTE, inference=Severity.WARNING),
            f"On {counted(found.rows, 'row')} the scores fit no order of the classes better than chance.{share} That "
            "points to the model or to the data, not to their order.",
            "Check that the model was trained for these labels, and that the columns are the right ones.",
        )


@rule("HS731", "predictions-name-classes", "Predictions show which class is which", worst=Severity.NOTE,
      needs=_PREDICTED)  # fmt: skip
def predictions_name_classes(this: Rule, subject: Subject) -> Findings:
    """Classes without names, each predicted for one label of the data."""
    found = _predictions(subject)
    if found.order is Order.FOUND:
        named = list_of((f"{pair.fits} is {pair.label!r}" for pair in found.pairs), _LISTED)
        yield this.find(
            Severity.NOTE,
            f"By {counted(found.rows, 'prediction')}, {named}.",
            "Check it, then set id2label and label2id in the configuration.",
        )
