"""The labels of a configuration."""

import re
from typing import Any

_PLACEHOLDER = re.compile(r"LABEL_\d+")


def labels_in(config: Any) -> tuple[str, ...]:
    """The label names in the order of the scores."""
    labels = config.id2label or {}
    return tuple(str(labels[index]) for index in sorted(labels))


def are_placeholders(labels: tuple[str, ...]) -> bool:
    """Whether nobody named the labels: `LABEL_0`, `LABEL_1`, ..."""
    return bool(labels) and all(_PLACEHOLDER.fullmatch(label) for label in labels)
