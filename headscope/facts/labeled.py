"""What labeled data say of their classes, and how a model's predictions fit them."""

from dataclasses import dataclass, field
from enum import StrEnum


class LabelKind(StrEnum):
    """What is in a column of labels.

    `columns`: several columns, one for each class; `lists`: several labels in a cell, or one for each token.
    """

    INTEGERS = "integers"
    NUMBERS = "numbers"
    TEXTS = "texts"
    BOOLEANS = "booleans"
    LISTS = "lists"
    COLUMNS = "columns"


class Fit(StrEnum):
    """How a label of the data was found among the model's classes."""

    ID = "id"
    NAME = "name"
    SPELLING = "spelling"
    SYNONYM = "synonym"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class DataClass:
    """A label of the data: how many rows have it, and the class of the model that it means; None where none fits."""

    label: str
    rows: int
    model_class: int | None = None
    fit: Fit = Fit.NONE


class Order(StrEnum):
    """Which order of the classes the model's predictions fit.

    `same`: that of the data; `permuted`: another one; `neither`: none better than chance; `found`: the data and the
    model have no order in common, and one fits; `none`: numbers have no order of classes; `not_determined`: there is
    too little to tell.
    """

    SAME = "same"
    PERMUTED = "permuted"
    NEITHER = "neither"
    FOUND = "found"
    NONE = "none"
    NOT_DETERMINED = "not_determined"


@dataclass(frozen=True, slots=True)
class Accuracy:
    """A share of rows, and the 95% interval of Clopper and Pearson around it."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Pairing:
    """A label of the data, the model's class that it should mean, and the class that the predictions fit."""

    label: str
    expected: str | None
    fits: str


@dataclass(frozen=True, slots=True)
class Predictions:
    """What `rows` predictions say of the order of the classes.

    `pairs` is the order that fits best. `chance` is the probability that scores without any relation to the labels fit
    some order as well; `margin` is by how much more probability the best order's class gets than the expected one, on
    the rows where they differ. `correlation`, `scale` and `offset` are for regression.
    """

    rows: int
    device: str
    order: Order
    reason: str = ""
    given: Accuracy | None = None
    best: Accuracy | None = None
    chance: float | None = None
    margin: float | None = None
    pairs: tuple[Pairing, ...] = ()
    correlation: float | None = None
    scale: float | None = None
    offset: float | None = None


@dataclass(frozen=True, slots=True)
class DataFacts:
    """Labeled data, counted from the first row to the last.

    `names` are the class names that the file itself declares, in the order of their ids. `missing` counts rows without
    a label, `ignored` labels of -100. `lowest` and `highest` are for numbers. `list_length` is that of every list, None
    if they differ; `hot` counts, position by position, the lists that hold only 0 and 1.
    """

    file: str
    format: str
    split: str | None
    rows: int
    label_columns: tuple[str, ...]
    text_columns: tuple[str, ...]
    kind: LabelKind
    classes: tuple[DataClass, ...]
    names: tuple[str, ...] = ()
    missing: int = 0
    ignored: int = 0
    lowest: float | None = None
    highest: float | None = None
    is_whole: bool = True
    has_more_classes: bool = False
    list_length: int | None = None
    hot: tuple[int, ...] = field(default=(), metadata={"json": None})
    predictions: Predictions | None = None
