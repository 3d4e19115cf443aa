"""Stored tensors that have a class axis, found by building the model with one more class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headscope.core.facts import CheckpointManifest, ParameterOrigin, ParameterStatus, TensorHeader
from headscope.core.facts.counting import few_of
from headscope.core.model.classes.labels import placeholders
from headscope.core.source.loading import choose_class
from headscope.errors import HeadscopeError, Unsupported

if TYPE_CHECKING:
    from headscope.core.source.checkpoint import Checkpoint
    from headscope.core.source.request import Request


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
