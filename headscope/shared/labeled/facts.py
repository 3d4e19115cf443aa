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
    """The label as the data spell it."""
    rows: int
    """How many rows have it; for tags, how many rows have it at some token."""
    model_class: int | None = None
    """The id of the model's class that it means; null where none fits."""
    fit: Fit = Fit.NONE
    """How that class was found: by its `id`, its `name`, another `spelling`, a `synonym`; or `none`."""


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
    """The share, from 0 to 1."""
    low: float
    """The lower end of its 95% interval (Clopper and Pearson)."""
    high: float
    """The upper end of its 95% interval."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """A label of the data, the model's class that it should mean, and the class that the predictions fit."""

    label: str
    """The label of the data."""
    expected: str | None
    """The model's class that it should mean; null where none is given."""
    fits: str
    """The model's class that the predictions fit."""


@dataclass(frozen=True, slots=True)
class Predictions:
    """What `rows` predictions say of the order of the classes."""

    rows: int
    """How many rows were predicted."""
    device: str
    """Where."""
    order: Order
    """Which order of the classes the predictions fit."""
    reason: str = ""
    """Why that is not determined; empty where it is."""
    given: Accuracy | None = None
    """The share of rows that are right in the given order; null where none is given."""
    best: Accuracy | None = None
    """The share of rows that are right in the order that fits best."""
    chance: float | None = None
    """The probability that predictions without any relation to the labels fit some order as well."""
    margin: float | None = None
    """How much more probability the classes of the best order get than those of the given order, on the rows where they
    differ; where they don't, than an even share. With several labels for a row: how much more rows with a class get
    than rows without it."""
    pairs: tuple[Pairing, ...] = ()
    """The order that fits best, class by class."""
    correlation: float | None = None
    """The correlation of numbers and predictions (regression)."""
    scale: float | None = None
    """The predictions grow by this for each 1 in the labels (regression)."""
    offset: float | None = None
    """The prediction at a label of 0 (regression)."""


@dataclass(frozen=True, slots=True)
class DataFacts:
    """Labeled data, counted from the first row to the last.

    `hot` counts, position by position, the lists that hold only 0 and 1.
    """

    file: str
    """The file or folder, as typed."""
    format: str
    """`csv`, `tsv`, `jsonl`, `parquet` or `datasets` (a folder of `save_to_disk`)."""
    split: str | None
    """The split that was read; null where there are none."""
    rows: int
    """How many rows were read: all of them."""
    label_columns: tuple[str, ...]
    """The columns of the labels."""
    text_columns: tuple[str, ...]
    """The columns of the texts: one, two for pairs, or none."""
    kind: LabelKind
    """What is in the column of the labels."""
    classes: tuple[DataClass, ...]
    """The labels, each with its rows; empty for numbers that take over 20,000 values."""
    names: tuple[str, ...] = ()
    """The names that the file declares for the ids of the classes, in order; empty without any."""
    missing: int = 0
    """Rows without a label."""
    ignored: int = 0
    """Labels of -100, which the losses of PyTorch leave out."""
    lowest: float | None = None
    """The lowest number among the labels; null without numbers."""
    highest: float | None = None
    """The highest number among the labels; null without numbers."""
    is_whole: bool = True
    """Whether all numbers are whole."""
    has_more_classes: bool = False
    """Whether there are more different labels than `classes` lists."""
    list_length: int | None = None
    """The length of every list of labels; null where they differ or there are none."""
    hot: tuple[int, ...] = field(default=(), metadata={"json": None})
    predictions: Predictions | None = None
    """What predictions say of the order of the classes; null without `--predict`."""
