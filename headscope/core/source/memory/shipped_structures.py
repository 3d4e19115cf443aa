"""Examinations of the structures that people use, made when headscope was made, for any sizes and numbers of classes.

An entry serves a checkpoint whose tensors and configuration fit it. Its rules name the fields of the configuration that
building and running the class reads: what no rule names can't matter. Sizes are symbols, which have to stand to each
other as they did in everything that the entry was made from (a width that the number of heads divides). Functions of
Transformers that ran have to be the same in the installed version; otherwise the checkpoint is traced.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

from headscope.core.facts import CheckpointKind, CheckpointManifest, Head, Report, Verification, WeightsFormat
from headscope.core.facts.environment import package_version, tool_version
from headscope.core.facts.heads.head import MOST_RUN_AGAIN, classifier_weight
from headscope.core.facts.health import MOST_INITIALIZED
from headscope.core.facts.plain import restore, store
from headscope.core.facts.stored.weights import in_layer_order
from headscope.core.model.classes.labels import are_placeholders, placeholders
from headscope.core.source.environment import environment
from headscope.core.source.memory.templates import Symbols, changed, filled
from headscope.core.source.reading.assembly import checkpoint_facts, parameter_counts
from headscope.core.source.reading.configuration import special_ids
from headscope.core.source.request import Request
from headscope.core.source.storage.shipped import (
    SOURCES,
    are_same_sources,
    line_of,
    shipped,
    shipped_class,
)
from headscope.core.source.structure import Remembered, plain_labels
from headscope.core.upstream.sources import Unvouched

if TYPE_CHECKING:
    from headscope.core.checkpoints.contents.tokenizer_file import FirstToken

LABEL_FIELDS = ("id2label", "label2id")
SILENT_FIELDS = ("transformers_version", "_name_or_path", "dtype", "torch_dtype", "auto_map")
"""Fields that no rule is about: `dtype` has to be that of the tensors, and code that isn't trusted isn't run."""
ABSENT = {"absent": True}
"""What a rule has for a field that is left out."""
_KINDS: dict[str, tuple[type, ...]] = {"n": (int,), "f": (int, float)}
"""The types of the values that a rule leaves free: sizes and ids, shares and spreads."""
_ERRORS_OF_OTHER_FACTS = (KeyError, TypeError, ValueError, Unvouched)
"""What facts of another shape raise, a size that is null where it is needed, or other sources."""
MOST_CLASSES = 10_000
"""Up to which number of classes entries are tried."""


@dataclass(frozen=True, slots=True)
class ClassCount:
    """Number of classes meant: by the configuration, by the request, or, if `number` is None, by default."""

    form: str
    number: int | None
    labels: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """Key under which an entry keeps its answers: one and two classes can be other heads."""
        return "default" if self.number is None else str(self.number) if self.number <= 2 else "many"


def shipped_examination(request: Request, manifest: CheckpointManifest, first: FirstToken | None) -> Remembered | None:
    """Finds the shipped examination of a checkpoint's structure; None if there is none for it or the request."""
    count = _class_count(request, manifest.config)
    if count is None or (count.number or 0) > MOST_CLASSES or not _is_plain(request, manifest):
        return None
    try:
        entries = _entries_of_family(manifest)
    except _ERRORS_OF_OTHER_FACTS:
        return None
    for entry in entries:
        if manifest.sentence is not None and [False, False] in entry["labels"]:  # an embedder: reports tell more of it
            continue
        with suppress(*_ERRORS_OF_OTHER_FACTS):
            found = _examination_of(entry, manifest, count, first)
            if found is not None:
                return _with_proof(entry, found) if request.prove else found
    return None


def _entries_of_family(manifest: CheckpointManifest) -> Sequence[Any]:
    """Reads the shipped entries of a family, or of the class that is meant."""
    if manifest.kind is CheckpointKind.CLASS:
        entry = shipped_class(manifest.reference)
        return () if entry is None else (entry,)
    family = manifest.config.get("model_type")
    if not isinstance(family, str) or not family.replace("-", "_").isidentifier():
        return ()
    return shipped(member_of(family)) or ()


def member_of(model_type: str) -> str:
    """Names the part of the shipped facts that holds the structures of a family."""
    return f"structures/{model_type}.json"


def _is_plain(request: Request, manifest: CheckpointManifest) -> bool:
    """True if only the number of classes is requested, of a checkpoint without anything beside its tensors."""
    asked = (request.task, request.model_class, request.adapter, request.tokens, request.trust_remote_code)
    chain = manifest.sentence is not None and (manifest.sentence.chain or manifest.sentence.token_ids)
    beside = (manifest.adapter, chain, manifest.decision, manifest.repaired, manifest.gaps, manifest.states)
    is_one_count = not (request.labels and request.num_labels is not None)
    return is_one_count and manifest.kind is not CheckpointKind.ADAPTER and not any((*asked, *beside))


def _class_count(request: Request, config: Mapping[str, Any]) -> ClassCount | None:
    """Counts the classes and lists their names; None for labels that are not numbered from 0."""
    stated = plain_labels(config)
    if stated is None and any(_has_maps(config)):
        return None
    if stated is not None and (request.labels or request.num_labels not in (None, len(stated))):
        return None
    if request.labels:
        return ClassCount("asked", len(request.labels), request.labels)
    if stated is not None:
        return ClassCount("stated", len(stated), stated)
    if request.num_labels is not None:
        return ClassCount("asked", request.num_labels, placeholders(request.num_labels))
    return ClassCount("stated", None)


def _has_maps(config: Mapping[str, Any]) -> list[bool]:
    """Tells which label maps a configuration has; null, which Transformers 5.24 writes, is one that is left out."""
    return [config.get(name) is not None for name in LABEL_FIELDS]


def _examination_of(
    entry: Mapping[str, Any], manifest: CheckpointManifest, count: ClassCount, first: FirstToken | None
) -> Remembered | None:
    symbols = symbols_of(entry, manifest, count)
    form = None if symbols is None else form_of(entry, manifest, symbols)
    answer = None if form is None else answer_of_form(form, manifest, count, first)
    return None if symbols is None or answer is None else _examination_from(entry, answer, symbols, manifest, count)


def form_of(entry: Mapping[str, Any], manifest: CheckpointManifest, symbols: Symbols) -> Any | None:
    """Finds the form in which a checkpoint of an entry was saved; None for tensors that no form has."""
    if manifest.kind is CheckpointKind.CLASS:
        return entry["forms"][0]
    own = [[tensor.key, tensor.dtype, list(tensor.shape)] for tensor in by_layer(manifest.tensors)]
    form = next((form for form in entry["forms"] if own == filled(form["tensors"], symbols)), None)
    # A report names the files of unused tensors.
    has_unused = form is not None and bool(form["base"]["report"]["weights"]["unused_tensors"])
    return None if has_unused and len(manifest.files) > 1 else form


def symbols_of(entry: Mapping[str, Any], manifest: CheckpointManifest, count: ClassCount) -> Symbols | None:
    """Reads the sizes of a checkpoint whose configuration fits an entry; None for another one."""
    classes = entry["default_classes"] if count.number is None else count.number
    if manifest.kind is CheckpointKind.CLASS:
        return {"classes": classes}
    config = manifest.config
    present = _has_maps(config)
    if any(present) and present not in entry["labels"]:
        return None
    if manifest.format not in (WeightsFormat.SAFETENSORS, WeightsFormat.TORCH) or manifest.shared:
        return None
    found = symbols_of_config(entry, config)
    if found is None or not hold(entry["relations"], found | {"classes": classes}):
        return None
    # Buffers of positions and ids are int64 whatever the dtype of the weights.
    kinds = {tensor.dtype for tensor in manifest.tensors} - {"int64"}
    stated = config.get("dtype", config.get("torch_dtype"))
    if len(kinds) != 1 or stated not in (None, *kinds) or not kinds <= set(entry["dtypes"]):
        return None
    return found | {"classes": classes, "dtype": kinds.pop()}


def by_layer(tensors: Iterable[Any]) -> list[Any]:
    """Sorts tensors by their layers, as no file orders them."""
    return sorted(tensors, key=lambda item: in_layer_order(item.key))


def symbols_of_config(entry: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Reads the numbers of a configuration that fits the rules of an entry; None for another."""
    if any(name.startswith("__") for name in config) or not config.keys().isdisjoint(
        (*entry["absent"], *shipped(SOURCES)["reserved"])
    ):
        return None
    rules, defaults = entry["config"], entry["defaults"]
    stated = {**defaults, **config}  # a default that is a number comes before those that follow from numbers
    found = {
        name: stated[name]
        for name, (kind, *_) in rules.items()
        if kind in _KINDS and type(stated.get(name)) in _KINDS[kind]
    }
    sizes = dict(found)
    for name, (kind, *allowed) in rules.items():
        if name in found:
            continue
        value = config[name] if name in config else filled(defaults.get(name, ABSENT), sizes)
        if kind in _KINDS and name not in config and type(value) in _KINDS[kind]:
            found[name] = value
        elif not any(fits(value, filled(item, sizes)) for item in allowed):
            return None
    return found


_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "%": lambda one, two: two > 0 and one % two == 0,
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    "!=": operator.ne,
}


def _size_of(side: str, symbols: Symbols) -> int | None:
    """Gives a size, or a product of two (`n_head*d_head`); None for one that is missing."""
    names = side.split("*")
    sizes = [symbols[name] for name in names if symbols.get(name) is not None]
    return int(prod(sizes)) if len(sizes) == len(names) else None


def hold(relations: Sequence[Any], symbols: Symbols) -> bool:
    """True if sizes stand to each other, and to numbers, as they did where the entry was made."""
    for kind, one, two in relations:
        left, right = (side if isinstance(side, int) else _size_of(side, symbols) for side in (one, two))
        if left is None or right is None:  # a field that may be null
            continue
        if not _COMPARISONS[kind](left, right):
            return False
    return True


def fits(value: Any, rule: Any) -> bool:
    """True if a value of JSON is that of a rule: `{"?": "f"}` is any number, and `{"?": "ids"}` any list of ids."""
    match rule:
        case {"?": "f"}:
            return type(value) in (int, float)
        case {"?": _}:
            return isinstance(value, list) and set(map(type, value)) == {int}
        case dict() if isinstance(value, dict):
            return value.keys() == rule.keys() and all(fits(item, rule[name]) for name, item in value.items())
        case list() if isinstance(value, list):
            return len(value) == len(rule) and all(map(fits, value, rule))
    # As texts, because 1, 1.0 and true are equal in Python but not in JSON.
    return json.dumps(value, sort_keys=True) == json.dumps(rule, sort_keys=True)


def answer_of_form(
    form: Mapping[str, Any], manifest: CheckpointManifest, count: ClassCount, first: FirstToken | None
) -> Any | None:
    """Gives the facts of a form for this number of classes and this first token; None if it has none."""
    problem = manifest.config.get("problem_type")
    wanted = ([count.form, count.kind, problem], None if first is None else [first.token])
    template = form["base"]
    for axis, own in zip(form["answers"], wanted, strict=True):
        found = [item["changes"] for item in axis if item["for"] == own]
        if not found:
            return None
        template = changed(template, found[0])
    return template


def examination_in(entry: Mapping[str, Any], manifest: CheckpointManifest, count: ClassCount) -> Remembered | None:
    """Gives the examination that an entry has for a checkpoint whose first token isn't known, or None."""
    try:
        return _examination_of(entry, manifest, count, None)
    except _ERRORS_OF_OTHER_FACTS:
        return None


def _examination_from(
    entry: Mapping[str, Any], answer: Any, symbols: Symbols, manifest: CheckpointManifest, count: ClassCount
) -> Remembered | None:
    """Fills an answer with what is the checkpoint's own; None if other sources run here."""
    if not are_same_sources(entry["code"]):
        return None
    document = filled(answer, symbols, line_of)
    own = {"tool_version": tool_version(), "command": "inspect", "environment": store(environment()),
           "checkpoint": store(checkpoint_facts(manifest))}  # fmt: skip
    built = document["built"]
    if built["token_ids"] is None:
        ids = {
            name: filled(entry["defaults"][name], symbols) for name in entry["defaults"] if name.endswith("_token_id")
        }
        eos, by_role = special_ids({**ids, **manifest.config})
        built = {**built, "eos_token_ids": list(eos), "token_ids": list(map(list, by_role))}
    found = restore(Remembered, {**document, "built": built, "report": {**document["report"], **own}})
    report = with_counts(found.report)
    # A formula is proven by running the head, which one may be too large for: its results count there too.
    if report.head is not None and sum(item.count for item in report.head.parameters) > MOST_RUN_AGAIN // 2:
        return None
    labels = count.labels or report.model.labels or placeholders(report.model.num_labels)
    # A class of one's own has tensors or a name that no entry has: every name here is one of Transformers.
    saved = next(iter(report.checkpoint.architectures), None)
    model = replace(
        report.model,
        labels=labels,
        labels_are_placeholders=are_placeholders(labels),
        saved_class=None if saved == report.model.class_name else saved,
    )
    initial = None if _is_too_large(report.head) else found.built.initial
    return replace(
        found,
        built=replace(found.built, initial=initial),
        report=replace(report, model=model, is_shipped=True),
    )


def _is_too_large(head: Head | None) -> bool:
    """True if the module of a head's classifier has more numbers than are drawn to see their spread."""
    weight = classifier_weight(head) if head is not None else None
    if head is None or weight is None:
        return False
    own, _, _ = weight.name.rpartition(".")
    return sum(item.count for item in head.parameters if item.name.rpartition(".")[0] == own) > MOST_INITIALIZED


def _with_proof(entry: Mapping[str, Any], found: Remembered) -> Remembered | None:
    """Adds the proof and what padding does; None if the base model differs from the one that was measured."""
    if found.report.head is None or entry.get("proof") is None or not are_same_sources(entry["code_of_base"]):
        return None
    head = replace(found.report.head, verification=restore(Verification, entry["proof"]))
    return replace(found, verified=True, report=replace(found.report, head=head))


def with_version(report: Report) -> Report:
    """Adds a note on the version of Transformers that the facts are of, if none is installed."""
    if package_version("transformers"):
        return report
    made = shipped(SOURCES)["transformers"]
    return replace(report, notes=(*report.notes, f"as of Transformers {made}: it is not installed here"))


def with_counts(report: Report) -> Report:
    """Adds the numbers of parameters, which follow from shapes."""
    weights = report.weights
    parameters = tuple(replace(item, count=prod(item.shape)) for item in weights.parameters)
    tied = {tie.parameter for tie in weights.tied}
    total = sum(item.count for item in parameters if not item.is_buffer and item.name not in tied)
    head = report.head
    if head is not None:
        own, buffers = (
            tuple(replace(item, count=prod(item.shape)) for item in some) for some in (head.parameters, head.buffers)
        )
        head = replace(head, parameters=own, buffers=buffers)
    counts = parameter_counts(total, head, parameters, report.model.parameters.other_heads)
    return replace(
        report,
        head=head,
        model=replace(report.model, parameters=counts),
        weights=replace(weights, parameters=parameters),
    )
