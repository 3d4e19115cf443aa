"""Examinations of the structures that people use most, made when headscope was made, for any number of classes.

An entry serves a checkpoint whose tensors and configuration are its own, value by value. Only what can't matter may
differ: the names of the labels, a field that is left out and gets the same value by default, and a field that neither
Transformers' sources nor headscope's know. What depends on the number of classes is kept as a rule of that number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope.examination.base.assembly import checkpoint_facts
from headscope.examination.base.environment import environment
from headscope.examination.base.request import Request
from headscope.examination.base.shipped import is_current, shipped, shipped_class
from headscope.examination.checkpoint.structure import Remembered, plain_labels
from headscope.facts import CheckpointKind, CheckpointManifest
from headscope.facts.plain import restore, store
from headscope.facts.results.environment import tool_version
from headscope.model.classes.labels import are_placeholders, placeholders
from headscope.upstream.sources import EVERYWHERE, folder_mentions

if TYPE_CHECKING:
    from headscope.checkpoints.contents.tokenizer_file import FirstToken

LABEL_FIELDS = ("id2label", "label2id")
SILENT_FIELDS = ("transformers_version", "_name_or_path")
MOST_CLASSES = 10_000
"""Up to which the rules of the number of classes are tried."""


@dataclass(frozen=True, slots=True)
class ClassCount:
    """How many classes are meant: by the configuration, by the request, or, where `number` is None, by default."""

    form: str
    number: int | None
    labels: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """By which an entry keeps its answers: one and two classes can be other heads."""
        return "default" if self.number is None else str(self.number) if self.number <= 2 else "many"


def shipped_examination(request: Request, manifest: CheckpointManifest, first: FirstToken | None) -> Remembered | None:
    """The examination of a checkpoint whose structure is shipped; None for any other, and for another request."""
    count = _count(request, manifest.config)
    if count is None or (count.number or 0) > MOST_CLASSES or not _is_plain(request, manifest):
        return None
    try:
        for entry in _entries(manifest):
            answer = _answer(entry, count, first)
            if answer is not None and _holds(entry, manifest, count):
                return _remembered(answer, manifest, count) if is_current(entry["folders"]) else None
    except (KeyError, TypeError, ValueError):  # facts of another shape: the code has changed since they were written
        return None
    return None


def _entries(manifest: CheckpointManifest) -> Sequence[Any]:
    """What is shipped of structures with as many tensors of the same family, or of the class that is meant."""
    if manifest.kind is CheckpointKind.CLASS:
        entry = shipped_class(manifest.reference)
        return () if entry is None else (entry,)
    family = manifest.config.get("model_type")
    if not isinstance(family, str) or not family.replace("-", "_").isidentifier():
        return ()
    return shipped(member_of(family, len(manifest.tensors))) or ()


def member_of(model_type: str, tensors: int) -> str:
    """The part of the shipped facts that holds the structures of a family with that many tensors."""
    return f"structures/{model_type}-{tensors}.json"


def _is_plain(request: Request, manifest: CheckpointManifest) -> bool:
    """Whether nothing but the number of classes is wanted, of a checkpoint without anything beside its tensors."""
    asked = (request.task, request.model_class, request.adapter, request.tokens, request.trust_remote_code)
    beside = (manifest.adapter, manifest.sentence, manifest.decision, manifest.repaired, manifest.gaps, manifest.states)
    is_one_count = not (request.labels and request.num_labels is not None)
    return is_one_count and manifest.kind is not CheckpointKind.ADAPTER and not any((*asked, *beside))


def _count(request: Request, config: Mapping[str, Any]) -> ClassCount | None:
    """The number of classes and their names; None for labels that are not numbered from 0."""
    stated = plain_labels(config)
    if stated is None and any(name in config for name in LABEL_FIELDS):
        return None
    if stated is not None and (request.labels or request.num_labels is not None):
        return None
    if request.labels:
        return ClassCount("asked", len(request.labels), request.labels)
    if request.num_labels is not None:
        return ClassCount("asked", request.num_labels, placeholders(request.num_labels))
    return ClassCount("stated", len(stated), stated) if stated is not None else ClassCount("stated", None)


def _answer(entry: Mapping[str, Any], count: ClassCount, first: FirstToken | None) -> Any:
    """What an entry says for this number of classes and this first token; None where it says nothing."""
    own = None if first is None else [first.token]
    found = [item["changes"] for item in entry["answers"] if item["for"] == [count.form, count.kind, own]]
    return _changed(entry["base"], found[0]) if found else None


def examination_in(entry: Mapping[str, Any], manifest: CheckpointManifest, count: ClassCount) -> Remembered | None:
    """What an entry says of a checkpoint of its structure whose first token isn't known; None where it says nothing."""
    answer = _answer(entry, count, None)
    return None if answer is None else _remembered(answer, manifest, count)


def _holds(entry: Mapping[str, Any], manifest: CheckpointManifest, count: ClassCount) -> bool:
    """Whether a checkpoint has the tensors and the configuration of an entry."""
    if len(entry["tensors"]) != len(manifest.tensors) or entry["stored"] != stored_as(manifest):
        return False
    stated = count.number if count.form == "stated" else None
    for (key, dtype, shape), tensor in zip(entry["tensors"], manifest.tensors, strict=True):
        if (key, dtype) != (tensor.key, tensor.dtype) or tuple(filled(shape, stated or 0)) != tensor.shape:
            return False
    return _is_same_config(entry, manifest.config)


def stored_as(manifest: CheckpointManifest) -> list[Any]:
    """In which files the tensors are, in which format, and which of them use one storage."""
    return [manifest.format.value, [file.name for file in manifest.files], list(map(list, manifest.shared))]


def _is_same_config(entry: Mapping[str, Any], config: dict[str, Any]) -> bool:
    present = [name in config for name in LABEL_FIELDS]
    own = {name: value for name, value in config.items() if name not in (*LABEL_FIELDS, *SILENT_FIELDS)}
    if "torch_dtype" in own and "dtype" not in own:
        own["dtype"] = own.pop("torch_dtype")
    whole = entry["config"]
    known = {name: value for name, value in own.items() if name in whole}
    if present != entry["labels"] or any(not _equal(value, whole[name]) for name, value in known.items()):
        return False
    if not set(whole) - set(known) <= set(entry["by_default"]):
        return False
    unknown = set(own) - set(known)
    return not unknown or not _are_known(unknown, entry["folders"])


def _equal(one: Any, other: Any) -> bool:
    """Whether two values of JSON are the same: 1, 1.0 and true are not."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _are_known(names: set[str], folders: Sequence[str]) -> bool:
    """Whether a source of Transformers or of headscope holds one of these words, or Python gives one a meaning."""
    if any(name.startswith("__") for name in names):
        return True
    words = [name.encode("utf-8", "surrogatepass") for name in names]
    if any(folder_mentions(folder, words) for folder in (*EVERYWHERE, *folders)):
        return True
    package = Path(__file__).parents[2]
    return any(word in text for path in package.rglob("*.py") for text in (path.read_bytes(),) for word in words)


def _remembered(answer: list[Any], manifest: CheckpointManifest, count: ClassCount) -> Remembered:
    """The examination with what is the checkpoint's own."""
    report, *rest = answer
    own = [tool_version(), "inspect", store(environment()), store(checkpoint_facts(manifest))]
    found = restore(Remembered, filled([[*own, *report[len(own) :]], *rest], count.number or 0))
    labels = count.labels or found.report.model.labels or placeholders(found.report.model.num_labels)
    # A class of one's own has tensors or a name that no entry has: every name here is one of Transformers.
    saved = next(iter(found.report.checkpoint.architectures), None)
    model = replace(
        found.report.model,
        labels=labels,
        labels_are_placeholders=are_placeholders(labels),
        saved_class=None if saved == found.report.model.class_name else saved,
    )
    return replace(found, report=replace(found.report, model=model, is_shipped=True))


def filled(template: Any, count: int) -> Any:
    """A template for a number of classes: `{"+": [a, b]}` is a times the number plus b, `{"": [...]}` a joined text."""
    match template:
        case list():
            return [filled(item, count) if isinstance(item, list | dict) else item for item in template]
        case {"+": [int(each), int(more)]}:
            return each * count + more
        case {"": list(parts)}:
            return "".join(str(filled(part, count)) for part in parts)
    return template


def _changed(value: Any, changes: Sequence[Any]) -> Any:
    """A nested list with other values at some places; each change is the indices that lead there, and the value."""
    for path, new in changes:
        value = _replaced(value, path, new)
    return value


def _replaced(value: Any, path: Sequence[int], new: Any) -> Any:
    if not path:
        return new
    at, *rest = path
    return [_replaced(item, rest, new) if number == at else item for number, item in enumerate(value)]
