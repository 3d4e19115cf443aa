"""Values in the settings of other libraries: whole numbers, names and labels, checked before they are used."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headscope.core.facts import Gap, GapTopic, Shape, TensorHeader
from headscope.core.facts.export import ExportStep

MOST_LABELS = 100_000
_BATCH = "batch"


@dataclass(frozen=True, slots=True)
class ForeignLabels:
    """Class names in order, and why there are none; "" if nothing is wrong."""

    names: tuple[str, ...] = ()
    reason: str = ""


def whole(value: Any) -> int | None:
    """Gives a whole number that is not negative; None for anything else."""
    # isinstance would take JSON's true for a number.
    return value if type(value) is int and value >= 0 else None


def text(value: Any, otherwise: str = "") -> str:
    """Gives a short text; `otherwise` for anything else."""
    return value[:100] if isinstance(value, str) and value else otherwise


def mapping(value: Any) -> Mapping[str, Any]:
    """Gives an object of JSON; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def listed_labels(value: Any, where: str) -> ForeignLabels:
    """Reads the labels in a list of names; a missing list (None) is not a fault."""
    if value is None:
        return ForeignLabels()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        return ForeignLabels(reason=f"{where} is not a list of strings")
    if len(value) > MOST_LABELS:
        return ForeignLabels(reason=f"{where} lists {len(value):,} names, over the limit of {MOST_LABELS:,}")
    return ForeignLabels(tuple(value))


def numbered_labels(value: Any, where: str) -> ForeignLabels:
    """Reads the labels of a map from names to numbers, in the order of the numbers, which must be 0, 1, 2 and so on."""
    if value is None:
        return ForeignLabels()
    if not isinstance(value, dict) or not all(type(item) is int for item in value.values()):
        return ForeignLabels(reason=f"{where} does not map names to whole numbers")
    if len(value) > MOST_LABELS:
        return ForeignLabels(reason=f"{where} lists {len(value):,} names, over the limit of {MOST_LABELS:,}")
    if sorted(value.values()) != list(range(len(value))):
        return ForeignLabels(reason=f"the numbers in {where} are not 0 to {len(value) - 1:,}")
    return ForeignLabels(tuple(sorted(value, key=lambda name: value[name])))


def linear(weight: TensorHeader, bias: TensorHeader | None, detail: str = "") -> ExportStep:
    """Describes a linear layer by its weight."""
    output: Shape = (_BATCH, weight.shape[0]) if is_matrix(weight) else ()
    names = (weight.key,) if bias is None else (weight.key, bias.key)
    return ExportStep("linear", names, detail, output)


def is_matrix(tensor: TensorHeader) -> bool:
    """True if a weight multiplies vectors: it has two axes, or is a convolution over one point."""
    return len(tensor.shape) == 2 or (len(tensor.shape) > 2 and set(tensor.shape[2:]) == {1})


def shape_faults(weights: Iterable[TensorHeader]) -> Iterator[Gap]:
    """Gives gaps for weights that are not matrices, or that do not take what the one before gives."""
    given: int | None = None
    for weight in weights:
        if not is_matrix(weight):
            yield Gap(GapTopic.HEAD, f"{weight.key} has {len(weight.shape)} axes, and a linear layer needs 2")
            return
        if given is not None and weight.shape[1] != given:
            yield Gap(
                GapTopic.HEAD, f"{weight.key} takes {weight.shape[1]:,} numbers, and the one before gives {given:,}"
            )
        given = weight.shape[0]


def count_faults(classes: int | None, stated: Any, where: str, labels: ForeignLabels) -> Iterator[Gap]:
    """Gives gaps for a stated number of classes, or of labels, that the tensors contradict."""
    if stated is not None and whole(stated) is None:
        yield Gap("classes", f"{where} is {str(stated)[:40]!r}, which is not a number of classes")
    elif classes is not None and stated is not None and stated != classes:
        yield Gap("classes", f"{where} is {stated:,}, and the last layer gives {classes:,} scores")
    if labels.reason:
        yield Gap("labels", labels.reason)
    elif labels.names and classes is not None and len(labels.names) != classes:
        yield Gap("labels", f"{len(labels.names):,} labels are named, and the last layer gives {classes:,} scores")


def labels_if_they_fit(labels: ForeignLabels, classes: int | None) -> tuple[str, ...]:
    """Gives the labels if there are as many as scores; () otherwise."""
    return labels.names if classes is None or len(labels.names) == classes else ()
