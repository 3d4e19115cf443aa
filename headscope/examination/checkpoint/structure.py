"""Structure once, checkpoint many: what reports of one structure share, and what is each checkpoint's own.

A structure is everything that the class, the loader and the trace can see: the configuration, every tensor's key, shape
and dtype, the tokens, the request, the versions. Left out is what none of them reads: the names of the labels, where
the checkpoint lies, and which version wrote it. Whatever isn't known to be inert is part of the structure, so two
checkpoints share a report only if they can't differ in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from headscope.examination.base.assembly import checkpoint_facts
from headscope.examination.base.cache import Cache, key_of, versions_key
from headscope.examination.base.request import Request
from headscope.facts import CheckpointManifest, Report
from headscope.facts.results.check import BuiltFacts
from headscope.model.classes.labels import are_placeholders
from headscope.recent import Recent

if TYPE_CHECKING:
    from headscope.trace import HeadProgram

_MOST_STRUCTURES = 96
# A class (Inkling2) reads whether a version is written, none reads which.
_VERSION, _NAME = "transformers_version", "_name_or_path"


@dataclass(frozen=True, slots=True)
class Remembered:
    """What is kept of an examination; `verified` says that the effect of padding was measured too.

    `owner` is the exact key of the one checkpoint that it is true of; "" if it is true of the whole structure.
    """

    report: Report
    built: BuiltFacts
    verified: bool
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Structure:
    """The key of a structure; `labels` are the checkpoint's own if the key leaves their names out, otherwise None."""

    key: str
    labels: tuple[str, ...] | None


def structure_of(manifest: CheckpointManifest, request: Request, *parts: object) -> Structure:
    """The structure of a checkpoint as a request wants it examined; `parts` are what else the report depends on."""
    asked = (request.num_labels, request.labels, request.task, request.model_class)
    config = manifest.config
    has_numbers = "label2id" in config
    labels = None if request.num_labels is not None or request.labels else plain_labels(config)
    if isinstance(config.get(_VERSION), str):
        config[_VERSION] = ""
    if isinstance(config.get(_NAME), str):
        del config[_NAME]
    if labels is not None:
        config["id2label"] = len(labels)
        config.pop("label2id", None)
    # An adapter's report names the base model, and what its headers are compared with.
    own = (request.reference, key_of(manifest)) if manifest.adapter is not None else ()
    repaired = manifest.repaired.tensors if manifest.repaired is not None else ()
    heads = (manifest.sentence, manifest.decision)
    rest = (manifest.shared, manifest.gaps, manifest.notices, manifest.unread, *heads, manifest.states, repaired)
    text = json.dumps(
        [
            versions_key(config),
            manifest.kind.value,
            manifest.format.value,
            config,
            [(tensor.key, tensor.dtype, tensor.shape, tensor.file) for tensor in manifest.tensors],
            [file.name for file in manifest.files],
            [repr(part) for part in (*rest, *asked, *parts, *own)],
            None if labels is None else has_numbers,
        ],
        sort_keys=True,
    )
    return Structure(hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40], labels)


def plain_labels(config: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The label names in order, if they are numbered from 0 and `label2id` says the same; None for anything else."""
    names, numbers = config.get("id2label"), config.get("label2id")
    if not isinstance(names, dict) or not names:
        return None
    labels: tuple[Any, ...] = tuple(map(names.get, map(str, range(len(names)))))
    if set(map(type, labels)) != {str}:
        return None
    if "label2id" in config and (
        not isinstance(numbers, dict)
        or set(map(type, numbers.values())) != {int}
        or numbers != dict(zip(labels, range(len(labels)), strict=True))
    ):
        return None
    return labels


class Structures(Recent):
    """The structures that a process has examined: a `Remembered` by the key of each, and the programs of the heads."""

    def __init__(self, most: int = _MOST_STRUCTURES) -> None:
        super().__init__(most)
        self.programs = Recent(most)


@dataclass(frozen=True, slots=True)
class ReportMemory:
    """Where examinations are cached: in this process, and in a folder that processes share."""

    cache: Cache
    structures: Structures | None = None

    @property
    def is_open(self) -> bool:
        """Whether anything is cached."""
        return self.cache.is_open or self.structures is not None

    def find(self, structure: Structure, manifest: CheckpointManifest, *, verified: bool) -> Remembered | None:
        """What is known and true of this checkpoint, with the effect of padding if it is wanted; None otherwise."""
        known = self.structures.get(structure.key) if self.structures is not None else None
        if known is not None and _serves(known, manifest, verified):
            return cast(Remembered, known)
        stored = self.cache.load(Remembered, structure.key)
        if stored is None or not _serves(stored, manifest, verified):
            return None
        if self.structures is not None:
            self.structures.keep(structure.key, stored)
        return stored

    def program(self, structure: Structure, make: Callable[[], HeadProgram | None]) -> HeadProgram | None:
        """What runs the heads of a structure again, made once for a process; None where their path is not known."""
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
        found = Remembered(report, built, verified, "" if is_shared else _owner(manifest))
        if self.structures is not None:
            self.structures.keep(structure.key, found)
        self.cache.save(structure.key, found)


def _serves(known: Remembered, manifest: CheckpointManifest, verified: bool) -> bool:
    return (known.verified or not verified) and (not known.owner or known.owner == _owner(manifest))


def _owner(manifest: CheckpointManifest) -> str:
    return key_of(manifest, manifest.reference)


def renewed(
    known: Remembered, structure: Structure, manifest: CheckpointManifest, command: str, *, verified: bool
) -> Report:
    """A cached report as this command and this reading of this checkpoint would have made it."""
    report = known.report
    states = manifest.states if not known.owner else report.checkpoint.states
    model = report.model
    if structure.labels is not None and not known.owner:
        model = replace(model, labels=structure.labels, labels_are_placeholders=are_placeholders(structure.labels))
    report = replace(
        report, command=command, checkpoint=replace(checkpoint_facts(manifest), states=states), model=model
    )
    verification = report.head.verification if report.head else None
    if report.head is None or verified or verification is None or verification.agrees is False:
        return report
    return replace(report, head=replace(report.head, verification=None))
