"""The one memory of what is known of checkpoints: this process, the user's folder, the package."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from headscope.core.facts import CheckpointManifest, Report
from headscope.core.facts.built import BuiltFacts
from headscope.core.recent import Recent
from headscope.core.source.memory.shipped_structures import shipped_examination
from headscope.core.source.request import Request
from headscope.core.source.storage.cache import Cache, key_of
from headscope.core.source.structure import Remembered, Structure

if TYPE_CHECKING:
    from headscope.core.checkpoints.contents.tokenizer_file import FirstToken
    from headscope.core.trace import HeadProgram

_MOST_STRUCTURES = 96


class Structures(Recent):
    """Structures that a process has examined: a `Remembered` by the key of each, and the programs of the heads."""

    def __init__(self, most: int = _MOST_STRUCTURES) -> None:
        super().__init__(most)
        self.programs = Recent(most)


@dataclass(frozen=True, slots=True)
class Memory:
    """Places where facts of checkpoints are kept: this process, a folder that processes share, the package.

    They are searched in this order. The package's facts are of structures that nobody has to have examined here.
    """

    cache: Cache
    structures: Structures | None = None

    @property
    def is_open(self) -> bool:
        """True if anything is cached."""
        return self.cache.is_open or self.structures is not None

    def find(self, structure: Structure, manifest: CheckpointManifest, *, verified: bool) -> Remembered | None:
        """Finds an earlier examination that is true of this checkpoint, with the effect of padding if `verified`."""
        known = self.structures.get(structure.key) if self.structures is not None else None
        if known is not None and _is_true_of(known, manifest, verified):
            return cast(Remembered, known)
        stored = self.cache.load(Remembered, structure.key)
        if stored is None or not _is_true_of(stored, manifest, verified):
            return None
        if self.structures is not None:
            self.structures.keep(structure.key, stored)
        return stored

    def shipped(self, request: Request, manifest: CheckpointManifest, first: FirstToken | None) -> Remembered | None:
        """Finds the package's examination of a checkpoint; None if there is none, or if no cache is wanted."""
        return shipped_examination(request, manifest, first) if self.cache.is_open else None

    def program(self, structure: Structure, make: Callable[[], HeadProgram | None]) -> HeadProgram | None:
        """Makes the program of a structure's heads, once for a process; None if their path is not known."""
        if self.structures is None:
            return make()
        known = self.structures.programs.get(structure.key)
        if known is None:
            known = make()
            self.structures.programs.keep(structure.key, known)
        return cast("HeadProgram | None", known)

    def keep(
        self, structure: Structure, manifest: CheckpointManifest, report: Report, built: BuiltFacts, *, verified: bool
    ) -> None:
        """Caches an examination; for this checkpoint only, if its report says what others of its kind don't."""
        is_shared = report.checkpoint.states == manifest.states and structure.labels in (None, report.model.labels)
        found = Remembered(report, built, verified, "" if is_shared else _owner_key(manifest))
        if self.structures is not None:
            self.structures.keep(structure.key, found)
        # The folder keeps only reports: a program holds a live module, which can't be stored.
        self.cache.save(structure.key, found)


def _is_true_of(known: Remembered, manifest: CheckpointManifest, verified: bool) -> bool:
    return (known.verified or not verified) and (not known.owner or known.owner == _owner_key(manifest))


def _owner_key(manifest: CheckpointManifest) -> str:
    return key_of(manifest, manifest.reference)
