"""Classes of a checkpoint: names of the rows of the last layer, and the stored tensors that have these rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from headscope.checks.rules.labeled.labels import LABEL_MAPS_REMEDY, faults_of_label_maps
from headscope.copies.facts import EditProof, EditReport
from headscope.core.facts import CheckpointManifest, ParameterOrigin, ParameterStatus, TensorHeader
from headscope.core.facts.counting import counted, few_of
from headscope.core.facts.environment import tool_version
from headscope.core.facts.stored.weights import stored_classes
from headscope.core.model.classes.labels import are_placeholders, placeholders
from headscope.core.source.checkpoint import Checkpoint
from headscope.core.source.loading import choose_class
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


@dataclass(frozen=True, slots=True)
class ClassTensor:
    """A stored tensor with one row per class on `axis`, and the parameter that it fills."""

    parameter: str
    header: TensorHeader
    axis: int

    @property
    def is_bias(self) -> bool:
        """True if its name and shape are those of a bias on the logits; the proof checks the scores."""
        return len(self.header.shape) == 1 and self.parameter.rpartition(".")[2] == "bias"


def class_tensors(checkpoint: Checkpoint) -> tuple[ClassTensor, ...]:
    """Finds the tensors of a checkpoint that have a class axis.

    Raises Unsupported where the classes aren't rows of stored tensors, or a tensor can't be changed row by row.
    """
    report, manifest = checkpoint.report, checkpoint.manifest
    count = report.model.num_labels
    axes = _class_axes(checkpoint.request, manifest, report.weights.parameters, count)
    if not axes:
        raise Unsupported(
            f"no tensor of {report.model.class_name} has a row for each class, so there is nothing to edit",
            "edit a checkpoint whose last layer has one score for each class",
        )
    headers = {header.key: header for header in manifest.tensors}
    origins = {item.name: item for item in report.weights.parameters}
    found = tuple(ClassTensor(name, _header_of(origins[name], headers), axis) for name, axis in axes.items())
    tied = {tie.source: tie.parameter for tie in report.weights.tied}
    for item in found:
        if item.parameter in tied:
            raise Unsupported(f"{item.parameter} is tied to {tied[item.parameter]}, which has other rows", "")
    keys = [item.header.key for item in found]
    if len(set(keys)) < len(keys):
        raise Unsupported(f"one stored tensor fills several parameters: {few_of(axes)}", "")
    return found


def _class_axes(
    request: Request, manifest: CheckpointManifest, parameters: Sequence[ParameterOrigin], count: int
) -> dict[str, int]:
    """Finds the class axis of each parameter that has one."""
    more = _build_shapes(request, manifest, count + 1)
    own = {item.name: item.shape for item in parameters}
    if own.keys() != more.keys():
        raise Unsupported("another number of classes gives the model other parameters", "")
    axes = {}
    for name, shape in own.items():
        # Shapes of different lengths are compared as far as they go here, and refused below.
        differing = [axis for axis, sizes in enumerate(zip(shape, more[name], strict=False)) if sizes[0] != sizes[1]]
        if len(shape) != len(more[name]) or len(differing) > 1:
            raise Unsupported(f"{name} doesn't have one axis of classes", "")
        if differing and (shape[differing[0]], more[name][differing[0]]) != (count, count + 1):
            raise Unsupported(f"{name} has not one row for each of the {count} classes", "")
        if differing:
            axes[name] = differing[0]
    return axes


def _build_shapes(request: Request, manifest: CheckpointManifest, count: int) -> Mapping[str, tuple[int, ...]]:
    """Builds the model with `count` classes on the meta device, and gives the shapes of its tensors."""
    from headscope.core.model.quiet import quiet
    from headscope.core.upstream.torch import on_meta

    names = placeholders(count) if request.labels else ()
    choice = choose_class(replace(request, num_labels=count, labels=names), manifest)
    try:
        with quiet(), on_meta():
            return {name: tuple(item.shape) for name, item in choice.cls(choice.config).state_dict().items()}
    except HeadscopeError:
        raise
    except Exception as err:  # whatever a foreign class raises
        raise Unsupported(f"{choice.cls.__name__} can't be built with {count} classes: {err}", "") from err


def _header_of(item: ParameterOrigin, headers: Mapping[str, TensorHeader]) -> TensorHeader:
    """Finds the one stored tensor of a parameter. Raises Unsupported if there isn't one with its shape."""
    name = item.name
    if item.status in (ParameterStatus.NEW, ParameterStatus.MISMATCHED):
        raise Unsupported(
            f"the checkpoint doesn't give {name}: it is randomly initialized on every load, so it has no rows to keep",
            "train the head first, or run `headscope probe --write-head` for a first one",
        )
    if item.quantized is not None:
        raise Unsupported(f"{name} is quantized ({item.quantized}), and its rows are packed", "edit the original")
    if item.status is not ParameterStatus.LOADED or len(item.checkpoint_keys) != 1:
        how = item.status.value if item.status is not ParameterStatus.LOADED else "made of several stored tensors"
        raise Unsupported(f"{name} is {how}, so its rows can't be edited", "save the model with Transformers first")
    header = headers.get(item.checkpoint_keys[0])
    if header is None or header.shape != item.shape:
        raise Unsupported(f"{name} is stored in another form than the model has", "save it with Transformers first")
    return header
