"""A head and an export of it, side by side: which tensors, labels and operations the export carries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headscope.core.facts import Gap, GapTopic, Head, HeadParameter, ModelFacts, PoolingKind, Report, TensorHeader
from headscope.core.facts.export import (
    AspectFate,
    ExportComparison,
    ExportHead,
    ExportStep,
    Fate,
    HeadBasis,
    Storage,
    TensorFate,
    WeightInventory,
)
from headscope.core.facts.heads.tasks import WITHOUT_CLASSES

_STORED_PLAIN = ("f16", "f32", "f64", "bf16", "float16", "float32", "float64", "bfloat16")
_NEUTRAL = frozenset({
    "dropout", "select", "index", "slice", "contiguous", "to", "clone", "detach", "view", "reshape", "squeeze",
    "unsqueeze", "mean", "sum", "div", "mul", "add", "gather", "getitem", "argmax", "expand", "cast", "identity",
})  # fmt: skip
"""Operations that pool or rearrange; the pooling is compared apart from the functions behind it."""
_SAME_FUNCTION = {"addmm": "linear"}


def compare_with_export(report: Report, reference: str, contents: WeightInventory) -> ExportComparison:
    """Compares an export with the report of its source; what is unknown goes into `not_determined`."""
    head, export = report.head, contents.head
    if head is None or export is None:
        whose = "the export" if head is not None else "the source"
        return ExportComparison(reference, contents, (), (), (Gap(GapTopic.HEAD, f"the head of {whose} is not known"),))
    gaps = tuple(gap for gap in export.not_determined if export.tensors or gap.topic != GapTopic.HEAD)
    if not export.tensors and contents.format != "gguf":
        return ExportComparison(reference, contents, (), (), export.not_determined)
    return ExportComparison(
        reference=reference,
        contents=contents,
        tensors=tuple(_tensor_fates(head, export)),
        aspects=tuple(_compare_aspects(report.model, head, export)),
        not_determined=gaps,
    )


def _tensor_fates(head: Head, export: ExportHead) -> Iterator[TensorFate]:
    """Follows each tensor of the source's head: by its name, or by its place among the layers and its shape."""
    stored = {item.key: item for item in export.tensors}
    steps = {name: step for step in export.steps for name in step.tensors}
    placed = _by_place(head, export)
    for item in head.tensors:
        if not item.live:
            continue
        found = _by_name(item, stored)
        how = "same name" if found is not None and found.key == item.name else "name"
        if found is None and item.name in placed:
            found, how = stored[placed[item.name]], "place in the head and shape"
        if found is None:
            weight = f"{item.name.removesuffix('.bias')}.weight"
            zeros = item.name.endswith(".bias") and export.basis is HeadBasis.GRAPH and weight in placed
            how = "exporters leave out a bias whose values are all zero" if zeros else ""
        yield _describe_fate(item, found, steps.get(found.key) if found is not None else None, how)


def _by_name(item: HeadParameter, stored: dict[str, TensorHeader]) -> TensorHeader | None:
    """Finds the tensor of that name, or of that name with what exporters put before or behind it."""
    for name, tensor in stored.items():
        bare = name
        for suffix in ("_quantized", "_transposed", "_DequantizeLinear"):
            bare = bare.removesuffix(suffix)
        if bare == item.name or bare.endswith(f".{item.name}"):
            return tensor if _shapes_fit(item.shape, tensor.shape) else None
    return None


def _shapes_fit(shape: Sequence[int], stored: Sequence[int]) -> bool:
    # Exporters turn a linear layer into a product with its transposed weight.
    return tuple(stored) in (tuple(shape), tuple(shape)[::-1])


def _by_place(head: Head, export: ExportHead) -> dict[str, str]:
    """Finds the source's tensors in the export: aligns the layers from the scores backwards."""
    ours = [names for stage in head.stages if (names := stage.parameters + stage.buffers)]
    shapes = {item.name: item.shape for item in head.tensors}
    theirs = [step for step in export.steps if step.tensors]
    stored = {item.key: item.shape for item in export.tensors}
    found: dict[str, str] = {}
    at = len(theirs) - 1
    for names in reversed(ours):
        for place in range(at, -1, -1):
            pairs = _pair_by_shape(names, theirs[place], shapes, stored)
            if pairs:
                found |= pairs
                # Steps are in the order of the run, so the next layer is looked for before this one only.
                at = place - 1
                break
    return found


def _pair_by_shape(
    names: Sequence[str], step: ExportStep, shapes: dict[str, tuple[int, ...]], stored: dict[str, tuple[int, ...]]
) -> dict[str, str]:
    """Pairs the tensors of one layer with those of one step of the export by shape; {} if the largest doesn't fit."""
    left = [name for name in step.tensors if name in stored]
    pairs: dict[str, str] = {}
    for name in sorted((name for name in names if name in shapes), key=lambda item: -len(shapes[item])):
        match = next((other for other in left if _shapes_fit(shapes[name], stored[other])), None)
        if match is None:
            if not pairs:
                return {}
            continue
        pairs[name] = match
        left.remove(match)
    return pairs


def _describe_fate(item: HeadParameter, found: TensorHeader | None, step: ExportStep | None, how: str) -> TensorFate:
    """Describes what became of one tensor."""
    if found is None:
        return TensorFate(item.name, item.shape, Fate.LOST, how=how)
    changes = []
    # A square matrix looks the same when transposed: then only the step of the graph can tell.
    is_square = len(item.shape) > 1 and item.shape == item.shape[::-1]
    if found.shape != item.shape or (is_square and step is not None and Storage.TRANSPOSED in step.storage):
        changes.append("transposed")
    if not found.dtype.lower().startswith(_STORED_PLAIN):
        changes.append(f"quantized ({found.dtype})")
    elif step is not None and Storage.QUANTIZED in step.storage and len(item.shape) > 1:
        changes.append("quantized")
    if step is not None and step.operation != "linear" and "linear" not in step.operation and item.shape:
        how = f"{how}, in {step.operation}"
    fate = Fate.TRANSFORMED if changes else Fate.CARRIED
    said = ", ".join([*changes, f"recognized by {how}"])
    return TensorFate(item.name, item.shape, fate, found.key, found.shape, found.dtype, said)


def _compare_aspects(model: ModelFacts, head: Head, export: ExportHead) -> Iterator[AspectFate]:
    """Compares classes, labels, pooling and the functions behind it, without those that only rearrange."""
    if model.task not in WITHOUT_CLASSES:
        known = export.classes is not None
        same = export.classes == model.num_labels
        unknown = Fate.UNKNOWN if export.tensors else Fate.LOST
        fate = (Fate.CARRIED if same else Fate.CHANGED) if known else unknown
        yield AspectFate("classes", fate, str(model.num_labels), str(export.classes) if known else "not determined")
        yield _compare_labels(model, export)
    yield _compare_pooling(head, export)
    ours = _essential_operations(stage.operation for stage in head.stages)
    theirs = _essential_operations(step.operation for step in export.steps)
    fate = Fate.CARRIED if ours == theirs else Fate.CHANGED
    yield AspectFate("operations", fate, " > ".join(ours) or "none", " > ".join(theirs) or "none")


def _compare_labels(model: ModelFacts, export: ExportHead) -> AspectFate:
    ours, theirs = ", ".join(model.labels), ", ".join(export.labels) or "none"
    if not export.labels:
        note = "the source has placeholders only" if model.labels_are_placeholders else ""
        return AspectFate("labels", Fate.CARRIED if note else Fate.LOST, ours, theirs, note)
    origin = f"named in {export.labels_from} beside the file" if export.labels_from else ""
    if tuple(export.labels) == tuple(model.labels):
        return AspectFate("labels", Fate.CARRIED, ours, theirs, origin)
    note = "the same names in another order" if sorted(export.labels) == sorted(model.labels) else ""
    return AspectFate("labels", Fate.CHANGED, ours, theirs, "; ".join(item for item in (note, origin) if item))


def _compare_pooling(head: Head, export: ExportHead) -> AspectFate:
    """Compares which positions are read."""
    ours = f"{head.pooling.kind.value}: {head.pooling.rule}"
    if export.pooling is None:
        return AspectFate("pooling", Fate.UNKNOWN, ours, export.pooling_rule or "not determined")
    theirs = f"{export.pooling.value}: {export.pooling_rule}"
    if export.pooling is PoolingKind.OTHER:
        return AspectFate("pooling", Fate.UNKNOWN, ours, theirs, "the rule that computes the index was not recognized")
    fate = Fate.CARRIED if export.pooling is head.pooling.kind else Fate.CHANGED
    return AspectFate("pooling", fate, ours, theirs)


def _essential_operations(operations: Iterator[str]) -> list[str]:
    return [_SAME_FUNCTION.get(name, name) for name in operations if name not in _NEUTRAL]
