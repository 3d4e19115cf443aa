"""Which class of the model each label of the data means, by id, name or spelling, and whether its kind fits."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from headscope.core.facts import ModelFacts, Task
from headscope.core.facts.counting import counted, list_of
from headscope.core.facts.heads.tasks import WITHOUT_CLASSES
from headscope.shared.labeled.facts import DataClass, DataFacts, Fit, LabelKind

PER_TOKEN = (Task.TOKEN_CLASSIFICATION, Task.AUDIO_FRAME_CLASSIFICATION)
_HOT = 3
"""A list of this many 0s and 1s has an entry for each class; a shorter one may be a list of ids."""
_INTEGER = re.compile(r"[+-]?\d+")


def is_regression(model: ModelFacts) -> bool:
    """True if the one score, or each of several, is a number and not a class."""
    return model.problem_type == "regression" and model.reads_problem_type is not False


def fit_classes(data: DataFacts, model: ModelFacts) -> DataFacts:
    """Adds to each label of the data the class of the model that it means."""
    if model.task in WITHOUT_CLASSES or is_regression(model):
        return data
    if is_hot(data, model):
        names = model.labels if len(model.labels) == len(data.hot) else tuple(map(str, range(len(data.hot))))
        ids = range(len(data.hot))
        return replace(data, classes=tuple(_fit_by_id(DataClass(names[i], data.hot[i]), i, model) for i in ids))
    return replace(data, classes=_fit_labels(data, model))


def is_hot(data: DataFacts, model: ModelFacts) -> bool:
    """True if each list has an entry for each class, 0 or 1."""
    if data.kind is not LabelKind.LISTS or model.task in PER_TOKEN or not data.hot:
        return False
    return data.list_length == model.num_labels or len(data.hot) >= _HOT


def _fit_labels(data: DataFacts, model: ModelFacts) -> tuple[DataClass, ...]:
    """Fits each label to a class: truth values and whole numbers by id, all others by name."""
    if data.kind is LabelKind.BOOLEANS:
        return tuple(_fit_by_id(item, int(item.label == "true"), model) for item in data.classes)
    if has_ids(data):
        return tuple(_fit_by_id(item, int(item.label), model) for item in data.classes)
    fits = fit_names([item.label for item in data.classes], model.labels)
    found = zip(data.classes, fits, strict=True)
    return tuple(replace(item, model_class=number, fit=fit) for item, (number, fit) in found)


def _fit_by_id(item: DataClass, number: int, model: ModelFacts) -> DataClass:
    known = 0 <= number < model.num_labels
    return replace(item, model_class=number if known else None, fit=Fit.ID if known else Fit.NONE)


def has_ids(data: DataFacts) -> bool:
    """True if the labels are whole numbers, which name classes by their id."""
    if data.kind is LabelKind.COLUMNS or data.kind is LabelKind.TEXTS:  # a text of digits is a name
        return False
    return bool(data.classes) and all(_INTEGER.fullmatch(item.label) for item in data.classes)


def is_by_id(data: DataFacts, model: ModelFacts) -> bool:
    """True if labels mean classes by their place, without a name that could be compared."""
    return data.kind is LabelKind.BOOLEANS or is_hot(data, model) or (has_ids(data) and not data.names)


def named_classes(data: DataFacts) -> tuple[DataClass, ...]:
    """Gives the classes under the names that the file declares for their ids; as they are if it declares none."""
    if not data.names or not has_ids(data):
        return data.classes
    rows = {int(item.label): item.rows for item in data.classes}
    return tuple(DataClass(name, rows.get(number, 0)) for number, name in enumerate(data.names))


_SYNONYMS = (
    ("negative", "neg", "negativ", "negatif", "negativo", "negativa"),
    ("positive", "pos", "positiv", "positif", "positivo", "positiva"),
    ("neutral", "neu", "neut", "neutre", "neutro", "neutrale"),
    ("entailment", "entail", "entails", "entailed"),
    ("contradiction", "contradict", "contradicts"),
    ("notentailment", "nonentailment", "noentailment"),
    ("notspam", "nonspam", "nospam", "ham"),
    ("nottoxic", "nontoxic"),
    ("true", "yes"),
    ("false", "no"),
)
_WORD = {word: words[0] for words in _SYNONYMS for word in words}
_NUMBERED = re.compile(r"(?:label|class)?(\d{1,9})")
PLACEHOLDER = re.compile(r"LABEL_(\d{1,9})")


def plain_label(name: str) -> str:
    """Strips a name of case, spaces and punctuation; a name of punctuation only keeps it."""
    # NFKC makes one of full-width letters, ligatures and composed accents, and casefold also of ß and ss.
    folded = unicodedata.normalize("NFKC", name).casefold()
    kept = "".join(sign for sign in folded if sign.isalnum())
    return kept or folded.strip()


def word_of(name: str) -> str:
    """Gives the word that stands for a name and its well-known variants; `LABEL_0`, `class 0` and `0` are one."""
    found = plain_label(name)
    numbered = _NUMBERED.fullmatch(found)
    return str(int(numbered[1])) if numbered else _WORD.get(found, found)


Form = Callable[[str], str]
_LEVELS: tuple[tuple[Fit, Form], ...] = ((Fit.NAME, str), (Fit.SPELLING, plain_label), (Fit.SYNONYM, word_of))


def fit_names(given: Sequence[str], labels: Sequence[str]) -> tuple[tuple[int | None, Fit], ...]:
    """Finds for each name the class that it means, and how it fits; a name that fits several classes fits none."""
    tables = []
    for fit, form in _LEVELS:
        numbers: dict[str, list[int]] = defaultdict(list)
        for number, label in enumerate(labels):
            numbers[form(label)].append(number)
        tables.append((fit, form, numbers))
    return tuple(_class_of_name(name, tables) for name in given)


def _class_of_name(name: str, tables: Sequence[tuple[Fit, Form, dict[str, list[int]]]]) -> tuple[int | None, Fit]:
    for fit, form, by_form in tables:  # the strictest form first: a name that is equal wins over a similar one
        found = by_form.get(form(name), [])
        if found:
            return (found[0], fit) if len(found) == 1 else (None, Fit.NONE)
    return None, Fit.NONE


LISTED = 12
_BOTH = "multi_label_classification"
_OTHER_TASK = "Use --task sequence-classification for one label for each text, or give the column of tags."


@dataclass(frozen=True, slots=True)
class Misfit:
    """Contradiction between the kind of the labels and the model's problem; soft: the labels are classes anyway."""

    message: str
    remedy: str
    is_soft: bool = False


def misfit_of(data: DataFacts, model: ModelFacts) -> Misfit | None:
    """Compares the kind of labels with the kind of problem; None where they fit."""
    if is_regression(model):
        return _misfit_of_regression(data, model)
    if model.task not in PER_TOKEN:
        return _misfit_of_several(data, model) or _misfit_of_numbers(data, model)
    if data.kind is LabelKind.LISTS:
        return None
    return Misfit(f"The data has one label for each row, but {model.class_name} scores each token.", _OTHER_TASK)


def _misfit_of_several(data: DataFacts, model: ModelFacts) -> Misfit | None:
    """Compares the number of labels for each row, one or several, with the problem type."""
    is_several = data.kind in (LabelKind.LISTS, LabelKind.COLUMNS)
    is_multi = model.problem_type == _BOTH and model.reads_problem_type is not False
    if is_multi and not is_several:
        return Misfit(
            f"problem_type is {_BOTH}, but the data has one label for each row ({data.kind.value}).",
            "Give each row a list of labels, or set problem_type to single_label_classification.",
        )
    if is_several and not is_multi:
        return Misfit(
            f"The data has several labels for a row ({data.kind.value}), but problem_type is "
            f"{model.problem_type or 'not set'}.",
            f"Set problem_type to {_BOTH} if a row can have several classes; for one label for each token, use "
            "--task token-classification.",
            is_soft=model.problem_type is None,
        )
    return None


def _misfit_of_numbers(data: DataFacts, model: ModelFacts) -> Misfit | None:
    """Finds floats where classes are expected."""
    if data.kind is not LabelKind.NUMBERS:
        return None
    if data.is_whole:
        return Misfit(
            "The labels are whole numbers written as floats (1.0), which Transformers takes for several labels or "
            "numbers, not for class ids.",
            "Convert the column to integers before training.",
            is_soft=True,
        )
    return Misfit(
        f"The labels are numbers with fractions, from {data.lowest:g} to {data.highest:g}, but the model has "
        f"{counted(model.num_labels, 'class', 'classes')}.",
        "For regression use num_labels=1 and problem_type regression; for classes, write class ids or names.",
    )


def _misfit_of_regression(data: DataFacts, model: ModelFacts) -> Misfit | None:
    if data.kind in (LabelKind.INTEGERS, LabelKind.NUMBERS):
        several = model.num_labels > 1
        fault = f"problem_type is regression over {model.num_labels} scores, but the data has one number for each row."
        return Misfit(fault, "Give each row a list of numbers, or use num_labels=1.") if several else None
    if data.kind in (LabelKind.LISTS, LabelKind.COLUMNS) and model.num_labels > 1:
        return None
    shown = list_of((item.label for item in data.classes), LISTED)
    return Misfit(
        f"The model computes one number (regression), but the labels are {data.kind.value}: {shown}.",
        f"For classes use num_labels={max(len(data.classes), 2)}; for regression give a column of numbers.",
    )
