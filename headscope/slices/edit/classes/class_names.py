"""Names of the rows of the last layer, from config.json, or from a person if that contradicts itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from headscope.checks.rules.labeled.labels import LABEL_MAPS_REMEDY, faults_of_label_maps
from headscope.copies.facts import EditProof, EditReport
from headscope.core.facts.counting import counted, few_of
from headscope.core.facts.environment import tool_version
from headscope.core.facts.stored.weights import stored_classes
from headscope.core.model.classes.labels import are_placeholders
from headscope.core.source.checkpoint import Checkpoint
from headscope.core.source.reading.configuration import config_facts
from headscope.errors import ExitCode, HeadscopeError, Unsupported, UsageError
from headscope.slices.edit.wish import EditWish

if TYPE_CHECKING:
    from headscope.core.source.request import Progress, Request


class ContradictoryNames(Unsupported):
    """A contradiction between class names, or with the last layer, so that no row's name is certain."""

    exit_code = ExitCode.FINDINGS


def examine_by_name(request: Request, names: Sequence[str] | None, tell: Progress) -> Checkpoint:
    """Examines a checkpoint whose rows have names.

    The names are those of config.json, or `names` if config.json contradicts itself or the last layer. Raises
    ContradictoryNames without `names`, UsageError for another number of them than there are rows.
    """
    checkpoint = Checkpoint("inspect", request, tell)
    faults = list(faults_of_names(checkpoint.manifest.config)) or _faults_of_rows(checkpoint, "config.json describes")
    if not faults:
        return checkpoint
    if names is None:
        raise ContradictoryNames(
            f"{'; '.join(faults)}. So no row of the last layer has a name for sure. {LABEL_MAPS_REMEDY}, or name the "
            "classes in the order of their scores with --labels A,B,C."
        )
    checkpoint = Checkpoint("inspect", replace(request, labels=tuple(names)), tell)
    if wrong := _faults_of_rows(checkpoint, "--labels names"):
        raise UsageError(wrong[0], "name every class once, in the order of the scores")
    return checkpoint


def faults_of_names(config: Mapping[str, Any]) -> Iterator[str]:
    """Yields sentences on how a configuration contradicts itself about its class names, as Transformers reads it."""
    names, count = config.get("id2label"), None
    if names is None:
        yield from _faults_without_names(config)
    elif not isinstance(names, dict) or not names:
        yield "id2label in config.json is not an object with the names of the classes"
    else:
        yield from (f"in config.json {fault}" for fault in faults_of_label_maps(config_facts(dict(config))))
        if any(not isinstance(name, str | int | float) for name in names.values()):
            yield "id2label in config.json holds a name that is not a text"
        count = len(names)
    for field in ("num_labels", "_num_labels"):
        stated = config.get(field)
        count = stated if count is None else count
        if stated is not None and (type(stated) is not int or stated != count):
            yield f"{field} in config.json is {str(stated)[:80]}, and there are {count} classes"


def _faults_without_names(config: Mapping[str, Any]) -> Iterator[str]:
    """Yields names that Transformers ignores: without id2label it calls the classes LABEL_0, LABEL_1, ..."""
    back = config.get("label2id")
    if isinstance(back, dict) and back and not all(name == f"LABEL_{place}" for name, place in back.items()):
        yield f"label2id in config.json names {few_of(back)}, but id2label, which gives the names, is absent"
    for part, value in config.items():
        names = value.get("id2label") if isinstance(value, dict) else None
        if isinstance(names, dict) and names and not are_placeholders(tuple(map(str, names.values()))):
            yield f"id2label is in {part} of config.json, where Transformers doesn't read the names of the classes"


def _faults_of_rows(checkpoint: Checkpoint, who: str) -> list[str]:
    """Reports the number of named or counted classes if the checkpoint has another number of rows."""
    count = checkpoint.report.model.num_labels
    return [
        f"{who} {counted(count, 'class', 'classes')}, but {item.parameter} has {counted(rows, 'row')}"
        for item in checkpoint.report.weights.mismatched
        if (rows := stored_classes(item.checkpoint_shape, item.model_shape, count)) is not None
    ][-1:]


def refused_report(
    source: str | PathLike[str], output: str | PathLike[str] | None, wish: EditWish, err: HeadscopeError
) -> EditReport:
    """Builds the report on an edit that is refused, with the reason."""
    place = fspath(source if output is None else output)
    proof = EditProof(reason="; ".join(filter(None, (err.message, err.hint))))
    return EditReport(tool_version(), fspath(source), place, "", (), proof, is_dry_run=wish.dry_run)
