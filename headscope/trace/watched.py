"""Which fields of its configuration a forward reads while it runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from transformers import PreTrainedConfig


@contextmanager
def watching(field: str) -> Iterator[list[str]]:
    """A list that gains an entry each time this thread reads `field` of a configuration of Transformers.

    The reads are seen in the class: a loss function that is handed the configuration reads it outside the model.
    """
    reads: list[str] = []
    thread = get_ident()
    plain = PreTrainedConfig.__getattribute__

    def noticed(config: PreTrainedConfig, name: str) -> Any:
        if name == field and get_ident() == thread:
            reads.append(name)
        return plain(config, name)  # type: ignore[no-untyped-call]  # upstream has no annotations

    PreTrainedConfig.__getattribute__ = noticed  # type: ignore[method-assign]  # put back below
    try:
        yield reads
    finally:
        PreTrainedConfig.__getattribute__ = plain  # type: ignore[method-assign]
