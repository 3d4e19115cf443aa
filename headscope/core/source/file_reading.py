"""What was read of a checkpoint, or why it was not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from headscope.core.facts import Gap

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class FileReading(Generic[_Found]):
    """What was found in files, if anything, and the gaps beside it.

    What is unknown may be readable the next time, say after a network error; what is inapplicable isn't there.
    """

    found: _Found | None = None
    unknown: tuple[Gap, ...] = ()
    inapplicable: tuple[Gap, ...] = ()
