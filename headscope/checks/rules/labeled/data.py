"""Rules on labeled data: whether their labels are the model's classes, in the model's order."""

import shlex
from collections.abc import Iterable, Sequence

from headscope.checks.facts import Subject
from headscope.checks.rules.labeled.label_classes import (
    LISTED,
    fit_names,
    has_ids,
    is_by_id,
    is_hot,
    is_regression,
    misfit_of,
    named_classes,
)
from headscope.checks.rules.rule import Findings, NotApplicable, NotKnown, Rule, rule, severity_at
from headscope.core.facts import ModelFacts, Severity
from headscope.core.facts.counting import counted, list_of, shortened, verb
from headscope.core.facts.heads.tasks import WITHOUT_CLASSES
from headscope.shared.labeled.facts import DataClass, DataFacts, Fit, LabelKind

_DATA = ("data",)
_UNBALANCED = 20


def _comparable_data(subject: Subject) -> DataFacts:
    """Gives the data if its labels are classes like the model's. Raises NotApplicable for any other labels."""
    data, model = given_data(subject), subject.report.model
    if is_regression(model):
        raise NotApplicable("the model computes numbers, which have no classes (regression)")
    misfit = misfit_of(data, model)
    # After a soft misfit the labels are still classes, which can be compared.
    if misfit is not None and not misfit.is_soft:
        raise NotApplicable("the labels are of another kind than the model's (HS004)")
    return data


def given_data(subject: Subject) -> DataFacts:
    """Gives the data. Raises NotApplicable for a task without classes, NotKnown for an unknown number of classes."""
    model, data = subject.report.model, subject.data
    assert data is not None  # `needs` holds it
    if model.task in WITHOUT_CLASSES:
        raise NotApplicable(f"{model.task.value} has no classes that labels could name")
    if model.num_labels < 1:
        raise NotKnown("headscope could not determine how many classes the model has")
    return data


def _has_class_names(subject: Subject) -> bool:
    """True if the model's classes have names that can be compared."""
    model = subject.report.model
    return bool(model.labels) and not model.labels_are_placeholders


def _labels_with_rows(items: Iterable[DataClass]) -> str:
    return list_of((f"{shortened(item.label)!r} ({counted(item.rows, 'row')})" for item in items), LISTED)


@rule("HS001", "data-classes-unknown", "The data has classes that the model lacks", needs=_DATA, finds="E|EW")
def data_classes_unknown(this: Rule, subject: Subject) -> Findings:
    """Labels of the data that no class of the model means."""
    data, model = _comparable_data(subject), subject.report.model
    severity = severity_at(subject, training=Severity.ERROR, inference=Severity.WARNING)
    classes = named_classes(data)
    if is_by_id(data, model):
        return  # HS003 looks at ids
    if not _has_class_names(subject):
        if len(classes) > model.num_labels and any(item.model_class is None for item in classes):
            yield this.find(
                severity,
                f"The data has {counted(len(classes), 'class', 'classes')} ({_labels_with_rows(classes)}), and the "
                f"model {model.num_labels}.",
                f"Use num_labels={len(classes)}, or remove the other labels from the data.",
            )
        return
    fits = fit_names([item.label for item in classes], model.labels)
    unknown = [item for item, (number, _) in zip(classes, fits, strict=True) if number is None and item.rows]
    if unknown:
        yield this.find(
            Severity.ERROR if len(unknown) == sum(item.rows > 0 for item in classes) else severity,
            f"No class of the model is called {_labels_with_rows(unknown)}. The model's classes: "
            f"{list_of(model.labels, LISTED)}.",
            "Rename the labels, remove their rows, or train a head with these classes (--labels).",
        )


@rule("HS002", "data-classes-absent", "The data lacks classes of the model", needs=_DATA, finds="W|N")
def data_classes_absent(this: Rule, subject: Subject) -> Findings:
    """Classes of the model without a row."""
    data, model = _comparable_data(subject), subject.report.model
    found: set[int | None] = {item.model_class for item in data.classes if item.rows} - {None}
    # `model_class` is by id; where the data declares names for its ids, the names tell which classes are meant.
    if bool(data.names) and has_ids(data) and _has_class_names(subject):
        named = [item for item in named_classes(data) if item.rows]
        found = {number for number, _ in fit_names([item.label for item in named], model.labels)} - {None}
    severity = severity_at(subject, training=Severity.WARNING, inference=Severity.NOTE)
    remedy = "Add rows of these classes, or train a head without them (--labels)."
    if not found and not _has_class_names(subject) and not has_ids(data):
        lacking = model.num_labels - len(data.classes)
        if lacking > 0:
            yield this.find(
                severity, f"The data has {len(data.classes)} classes, and the model {model.num_labels}.", remedy
            )
        return
    names = model.labels or tuple(map(str, range(model.num_labels)))
    absent = [name for number, name in enumerate(names) if number not in found]
    if absent and found:
        yield this.find(
            severity,
            f"No row has {'the class' if len(absent) == 1 else 'one of the classes'} {list_of(absent, LISTED)}: "
            f"{counted(len(absent), 'class', 'classes')} of {model.num_labels}.",
            remedy,
        )


@rule("HS003", "data-ids-out-of-range", "Labels are outside the range of the classes", needs=_DATA)
def data_ids_out_of_range(this: Rule, subject: Subject) -> Findings:
    """Class ids that the model has not: the loss raises, on a GPU without naming the cause."""
    data, model = _comparable_data(subject), subject.report.model
    if is_hot(data, model):
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
        f"the data has {_labels_with_rows(outside)}{' and more' if data.has_more_classes else ''}.",
        "The ids seem to start at 1: subtract 1 from each."
        if is_shifted
        else f"Correct the labels, or use num_labels={int(data.highest or 0) + 1}; -100 marks what the loss ignores.",
    )


@rule("HS004", "data-label-kind", "The labels don't fit the problem type", needs=_DATA, finds="EW|EW")
def data_label_kind(this: Rule, subject: Subject) -> Findings:
    """Numbers where classes are expected, one label where there are several, and the other way round."""
    misfit = misfit_of(given_data(subject), subject.report.model)
    if misfit is not None:
        yield this.find(Severity.WARNING if misfit.is_soft else Severity.ERROR, misfit.message, misfit.remedy)


@rule("HS005", "data-names-differ", "Labels are spelled differently", needs=_DATA, finds="W|W")
def data_names_differ(this: Rule, subject: Subject) -> Findings:
    """Names of the data that are the model's except for case, spaces, punctuation, or a well-known other word."""
    data, model = _comparable_data(subject), subject.report.model
    if is_by_id(data, model):
        return
    classes = named_classes(data)
    fits = fit_names([item.label for item in classes], model.labels)
    differing = {
        item.label: model.labels[number]
        for item, (number, fit) in zip(classes, fits, strict=True)
        if number is not None and fit in (Fit.SPELLING, Fit.SYNONYM)
    }
    if differing:
        pairs = list_of((f"{given!r} is {own!r}" for given, own in differing.items()), LISTED)
        yield this.find(
            Severity.WARNING,
            f"A mapping that would fit: {pairs}.",
            "headscope doesn't apply it: check it, then rename the labels"
            + _edit_advice([f"--rename {shlex.quote(f'{own}={given}')}" for given, own in differing.items()]),
            code=f"same = {differing!r}  # label in the data: class of the model",
        )


@rule("HS006", "data-order", "The data and the model number their classes differently", needs=_DATA, finds="EW|EW")
def data_order(this: Rule, subject: Subject) -> Findings:
    """Names of classes that the data declares in another order than id2label."""
    data, model = _comparable_data(subject), subject.report.model
    if not has_ids(data):
        raise NotApplicable("the labels of the data have no order: they are names, not ids")
    if not _has_class_names(subject):
        raise NotApplicable(f"the model's classes have no names to compare ({_MEASURE})")
    if not data.names:
        yield from _compare_numbered_names(this, data, model)
        return
    fits = fit_names(data.names, model.labels)
    moved = [(number, name) for number, name in enumerate(data.names) if fits[number][0] not in (number, None)]
    if moved:
        rows = "; ".join(
            f"{number}: {name!r} in the data, {_label_at(model, number)} in the model"
            for number, name in moved[:LISTED]
        )
        rest = f"; {len(moved) - LISTED:,} more" if len(moved) > LISTED else ""
        yield this.find(
            Severity.ERROR,
            f"{rows}{rest}.",
            "Set id2label and label2id in the order of the data before training a new head; for a trained model, "
            "convert the ids of the data by name" + _edit_advice(_reorder_option(fits, model)),
            code=f"labels = {list(data.names)!r}  # the order of the data\n"
            "model.config.id2label = dict(enumerate(labels))\n"
            "model.config.label2id = {name: number for number, name in enumerate(labels)}",
        )


def _edit_advice(options: Sequence[str]) -> str:
    """Ends a remedy with the command that changes the model instead of the data, if there is one."""
    if not options or len(options) > LISTED:  # nobody reads or copies a longer command
        return "."
    return f", or change the model: `headscope edit MODEL -o DIR {' '.join(options)}`."


def _reorder_option(fits: Sequence[tuple[int | None, Fit]], model: ModelFacts) -> list[str]:
    """Gives the option that puts all classes in the order of the data; none where the data has other classes."""
    places = [place for place, _ in fits if place is not None]
    names = [model.labels[place] for place in places]
    # The option splits names at commas. With a class left out or named twice, its order would be no order of all.
    is_whole = sorted(places) == list(range(len(model.labels)))
    return [f"--order {shlex.quote(','.join(names))}"] if is_whole and not any("," in name for name in names) else []


def _label_at(model: ModelFacts, number: int) -> str:
    return repr(model.labels[number]) if number < len(model.labels) else "no class"


_MEASURE = "--predict measures their order"


def _compare_numbered_names(this: Rule, data: DataFacts, model: ModelFacts) -> Findings:
    """Compares ids without names with the model's names, which they contradict if those are other numbers."""
    ids = [int(item.label) for item in data.classes if item.model_class is not None]
    fits = dict(zip(ids, fit_names([str(number) for number in ids], model.labels), strict=True))
    moved = [number for number in ids if fits[number][0] not in (number, None)]
    if not moved:
        raise NotApplicable(f"the ids in the data have no names to compare ({_MEASURE})")
    shown = list_of((f"{number}: {_label_at(model, number)} by id, {model.labels[fits[number][0] or 0]!r} by name"
                     for number in moved), LISTED)  # fmt: skip
    yield this.find(
        Severity.WARNING,
        f"The labels are numbers, and the model's names are other numbers. {shown}.",
        "Find out which is meant, then write the names of the classes into the data.",
    )


@rule("HS007", "data-unbalanced", "The classes are unbalanced", needs=_DATA, finds="N|N")
def data_unbalanced(this: Rule, subject: Subject) -> Findings:
    """A class with many times more rows than another."""
    data = _comparable_data(subject)
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


@rule("HS008", "data-labels-missing", "Rows have no label", needs=_DATA, finds="W|N")
def data_labels_missing(this: Rule, subject: Subject) -> Findings:
    """Empty cells, null and NaN in the column of labels."""
    data = given_data(subject)
    if data.missing:
        yield this.find(
            severity_at(subject, training=Severity.WARNING, inference=Severity.NOTE),
            f"{data.missing:,} of {counted(data.rows, 'row')} {verb(data.missing, 'has', 'have')} no label.",
            "Remove these rows, or label them.",
        )
