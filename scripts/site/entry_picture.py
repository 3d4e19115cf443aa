"""The picture of a class of the atlas: a head without a checkpoint, as a pretraining checkpoint would fill it."""

from dataclasses import replace

from headscope.core.facts.counting import counted
from headscope.core.facts.heads.atlas import AtlasHead, HeadEntry
from headscope.core.facts.heads.tasks import TEXT_TASKS, activation_for
from headscope.core.words.console import Tone
from headscope.core.words.safe import safe
from headscope.facts import (
    CheckpointFacts,
    CheckpointKind,
    Environment,
    Head,
    HeadParameter,
    ModelFacts,
    ParameterCounts,
    ParameterStatus,
    Report,
    WeightDiff,
    WeightsFormat,
)
from headscope.shared.report.head.stages import logits_shape
from headscope.slices.diagram.picture import BoxKind, Picture, PictureNode, picture_of

_NO_VERSIONS = Environment("", "", "", "", "")
_NOTHING_LOADED = WeightDiff(0, (), (), (), (), ())


def entry_picture(entry: HeadEntry, transformers: str, padding_side: str) -> Picture:
    """The head of a traced class. `padding_side` is where the family's tokenizer pads, "" for the right.

    A weight is `new` or `loaded` after a checkpoint of the family's pretraining class, `unknown` without such a class.
    """
    if entry.head is None:
        raise ValueError(f"{entry.class_name} was not traced")
    picture = picture_of(_report(entry, entry.head, padding_side))
    return replace(
        picture,
        subtitle=safe(f"Transformers {transformers}, default configuration"),
        verdict=safe(_verdict(entry, entry.head)),
        tone=Tone.NOTE,
        nodes=tuple(_without_counts(node, entry) for node in picture.nodes),
    )


def _verdict(entry: HeadEntry, head: AtlasHead) -> str:
    if entry.pretraining_class is None:
        return "the family's pretraining class is not known"
    new, count = len(entry.new_from_pretraining), len(head.parameters)
    total = counted(count, "head tensor")
    share = f"{new} of {total}" if new < count else total if count == 1 else f"all {total}"
    return f"{share} new after {entry.pretraining_class}"


def _without_counts(node: PictureNode, entry: HeadEntry) -> PictureNode:
    """The base model's box without values, which the atlas does not hold."""
    if node.kind is not BoxKind.BASE:
        return node
    return PictureNode("base", BoxKind.BASE, safe(f"base model {entry.model_type}"))


def _report(entry: HeadEntry, head: AtlasHead, padding_side: str) -> Report:
    """The entry as the report that a picture is made of."""
    model = _model(entry, head, padding_side)
    return Report("", "heads", _NO_VERSIONS, _CHECKPOINT, model, _NOTHING_LOADED, _head(entry, head))


_CHECKPOINT = CheckpointFacts("", CheckpointKind.MEMORY, None, None, WeightsFormat.NONE, (), 0, 0, 0, (), None)


def _model(entry: HeadEntry, head: AtlasHead, padding_side: str) -> ModelFacts:
    counts = ParameterCounts(0, 0, 0, 0)
    loss = head.loss or "not determined"
    activation = activation_for(loss)
    scores = _scores(head)
    is_text = entry.task in TEXT_TASKS
    return ModelFacts(
        entry.class_name, entry.task, scores, (), False, None, loss, activation, counts, "float32",
        padding_side=padding_side if is_text else "",
    )  # fmt: skip


def _scores(head: AtlasHead) -> int:
    """How many scores the head makes for each input."""
    shape = logits_shape(_as_head(head, ()))
    last = shape[-1] if shape else 0
    return last if isinstance(last, int) else 0


def _head(entry: HeadEntry, head: AtlasHead) -> Head:
    parameters = tuple(
        HeadParameter(item.name, item.shape, "float32", item.count, _status(entry, item.name), item.live, ())
        for item in head.parameters
    )
    return _as_head(head, parameters)


def _as_head(head: AtlasHead, parameters: tuple[HeadParameter, ...]) -> Head:
    return Head(
        head.modules, head.pooling, head.stages, parameters, head.formula, head.hidden_shape, head.unused_modules,
        head.verification,
    )  # fmt: skip


def _status(entry: HeadEntry, name: str) -> ParameterStatus:
    if entry.pretraining_class is None:
        return ParameterStatus.UNKNOWN
    return ParameterStatus.NEW if name in entry.new_from_pretraining else ParameterStatus.LOADED
