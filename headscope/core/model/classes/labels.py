"""Label names of a configuration."""

import re
from typing import Any

_PLACEHOLDER = re.compile(r"LABEL_\d+")


def labels_in(config: Any) -> tuple[str, ...]:
    """Gives the label names in the order of the scores."""
    labels = config.id2label or {}
    return tuple(str(labels[index]) for index in sorted(labels))


def placeholders(count: int) -> tuple[str, ...]:
    """Gives the names that Transformers gives labels that nobody named."""
    return tuple(f"LABEL_{number}" for number in range(count))


def are_placeholders(labels: tuple[str, ...]) -> bool:
    """True if nobody named the labels: `LABEL_0`, `LABEL_1`, ..."""
    return bool(labels) and all(_PLACEHOLDER.fullmatch(label) for label in labels)
