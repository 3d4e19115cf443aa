"""Counts in sentences."""


def counted(count: int, noun: str, plural: str = "") -> str:
    """`1 tensor`, `2,048 tensors`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def verb(count: int, one: str = "is", many: str = "are") -> str:
    """The form of a verb behind a count."""
    return one if count == 1 else many
