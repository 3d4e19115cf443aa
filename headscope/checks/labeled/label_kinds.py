"""Whether the labels of the data are of the kind that the model's problem needs."""

from dataclasses import dataclass

from headscope.checks.labeled.label_classes import PER_TOKEN, is_regression
from headscope.facts import ModelFacts
from headscope.facts.counting import counted, list_of
from headscope.facts.results.labeled import DataFacts, LabelKind

LISTED = 12
_BOTH = "multi_label_classification"
_OTHER_TASK = "Use --task sequence-classification for one label for each text, or give the column of tags."


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why labels of this kind are not those of the model's problem."""

    message: str
    remedy: str
    is_soft: bool = False


def misfit_of(data: DataFacts, model: ModelFacts) -> Misfit | None:
    """The kind of labels against the kind of problem; None where they fit."""
    if is_regression(model):
        return _of_regression(data, model)
    if model.task not in PER_TOKEN:
        return _of_several(data, model) or _of_numbers(data, model)
    if data.kind is LabelKind.LISTS:
        return None
    return Misfit(f"The data has one label for each row, but {model.class_name} scores each token.", _OTHER_TASK)


def _of_several(data: DataFacts, model: ModelFacts) -> Misfit | None:
    """One label for each row or several, against the problem type."""
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


def _of_numbers(data: DataFacts, model: ModelFacts) -> Misfit | None:
    """Floats where classes are expected."""
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


def _of_regression(data: DataFacts, model: ModelFacts) -> Misfit | None:
    if data.kind in (LabelKind.INTEGERS, LabelKind.NUMBERS):
        several = model.num_labels > 1
        told = f"problem_type is regression over {model.num_labels} scores, but the data has one number for each row."
        return Misfit(told, "Give each row a list of numbers, or use num_labels=1.") if several else None
    if data.kind in (LabelKind.LISTS, LabelKind.COLUMNS) and model.num_labels > 1:
        return None
    shown = list_of((item.label for item in data.classes), LISTED)
    return Misfit(
        f"The model computes one number (regression), but the labels are {data.kind.value}: {shown}.",
        f"For classes use num_labels={max(len(data.classes), 2)}; for regression give a column of numbers.",
    )
