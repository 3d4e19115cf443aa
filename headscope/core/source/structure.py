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
from typing import TYPE_CHECKING, Any

from headscope.core.facts import CheckpointManifest, Report
from headscope.core.facts.built import BuiltFacts
from headscope.core.model.classes.labels import are_placeholders
from headscope.core.source.reading.assembly import checkpoint_facts
from headscope.core.source.request import Request
from headscope.core.source.storage.cache import key_of, versions_key

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from headscope.core.model.classes.model_request import Choice
    from headscope.core.trace import HeadProgram

# A class (Inkling2) reads whether a version is written, none reads which.
_VERSION, _NAME = "transformers_version", "_name_or_path"


@dataclass(frozen=True, slots=True)
class Remembered:
    """An examination as it is cached; `verified` says that the effect of padding was measured too.

    `owner` is the exact key of the one checkpoint that it is true of; "" if it is true of the whole structure.
    """

    report: Report
    built: BuiltFacts
    verified: bool
    owner: str = ""


@dataclass(frozen=True, slots=True)
class ExaminationOutcome:
    """What an examination came to; it has neither choice nor skeleton where the report was known."""

    report: Report
    built: BuiltFacts
    make_program: Callable[[], HeadProgram | None]
    key: str = ""
    choice: Choice | None = None
    skeleton: PreTrainedModel | None = None


@dataclass(frozen=True, slots=True)
class Structure:
    """Key of a structure; `labels` are the checkpoint's own if the key leaves their names out, otherwise None."""

    key: str
    labels: tuple[str, ...] | None


def structure_of(manifest: CheckpointManifest, request: Request, *parts: object) -> Structure:
    """Computes the structure of a checkpoint and a request; `parts` are what else the report depends on."""
    asked = (request.num_labels, request.labels, request.task, request.model_class)
    config = dict(manifest.config)
    has_numbers = config.get("label2id") is not None
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
    """Lists the label names in order, if they are numbered from 0 and `label2id` maps names to numbers or texts.

    Heads don't read it: it may contradict the names, as it does where only they were given, or have texts as ids.
    """
    names, numbers = config.get("id2label"), config.get("label2id")
    if not isinstance(names, dict) or not names:
        return None
    labels: tuple[Any, ...] = tuple(map(names.get, map(str, range(len(names)))))
    if set(map(type, labels)) != {str}:
        return None
    has_ids = isinstance(numbers, dict) and set(map(type, numbers.values())) <= {int, str}
    return labels if numbers is None or has_ids else None


def renewed(
    known: Remembered, structure: Structure, manifest: CheckpointManifest, command: str, *, verified: bool
) -> Report:
    """Turns a cached report into the one that this command and this reading of this checkpoint would have made."""
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
