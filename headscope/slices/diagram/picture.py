"""Contents of a picture of a head in any format: nodes, edges and marks, every text made safe."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from headscope.core.facts import CheckpointKind, GapTopic, Head, HeadParameter, ParameterStatus, Report, Stage
from headscope.core.facts.counting import counted
from headscope.core.facts.heads.head import HIDDEN_STATES
from headscope.core.facts.heads.tasks import WITHOUT_CLASSES
from headscope.core.facts.report import find_without_place
from headscope.core.words.console import Tone
from headscope.core.words.safe import safe
from headscope.core.words.tokens import Cell, CellRow, is_pooling_known, legend_of, token_rows
from headscope.core.words.words import POOLING, SOURCE, axes_of, brief_rule, loss_of, place_words, reads_decoder
from headscope.shared.pictures.markup import Tint
from headscope.shared.report.head.stages import (
    fate_of,
    logits_shape,
    module_of,
    operation_of,
    own_parameters,
    pooling_stage,
    shapes_of,
    source_of,
    weight_size,
    weight_status,
)
from headscope.shared.report.head.tree import HeadTree, tree_of
from headscope.shared.report.verdict import tell_verdict

_LABELS = 8


class BoxKind(StrEnum):
    """Kind of thing that a node is drawn for."""

    BASE = "base"
    HIDDEN = "hidden"
    STAGE = "stage"
    SCORES = "scores"
    OTHER = "other"
    UNUSED = "unused"
    GAP = "gap"


_WORST_FIRST = (
    Tint.MISMATCHED,
    Tint.UNKNOWN,
    Tint.NEW,
    Tint.IGNORED,
    Tint.CHANGED,
    Tint.TIED,
    Tint.LOADED,
    Tint.UNUSED,
)


@dataclass(frozen=True, slots=True)
class Weight:
    """One parameter: its status as a word and a color, its shape, the number of its values, and its origin.

    `count` is empty where the shape says it.
    """

    tint: Tint
    word: str
    name: str
    size: str
    count: str
    origin: str

    @property
    def facts(self) -> str:
        """All that is shown beside the name."""
        return "  ".join(filter(None, (self.size, self.count, self.origin)))


@dataclass(frozen=True, slots=True)
class PictureNode:
    """One box: a title, lines below it (those of a pair stand side by side), weights, rows of cells, a mark.

    `more` are names and values for whoever points at it.
    """

    id: str
    kind: BoxKind
    title: str
    beside: str = ""
    pairs: tuple[tuple[str, str], ...] = ()
    lines: tuple[str, ...] = ()
    rows: tuple[CellRow, ...] = ()
    weights: tuple[Weight, ...] = ()
    mark: str = ""
    tint: Tint = Tint.PLAIN
    more: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Edge:
    """Values that go from one node to another, as `count` tensors; `is_sure` if that was observed."""

    source: str
    target: str
    is_sure: bool = True
    count: int = 1


@dataclass(frozen=True, slots=True)
class Picture:
    """A whole picture; `nodes` are in the order in which they are read. `tree` holds the same path as lines."""

    title: str
    subtitle: str
    verdict: str
    tone: Tone
    nodes: tuple[PictureNode, ...]
    edges: tuple[Edge, ...]
    notices: tuple[str, ...] = ()
    tree: HeadTree | None = None


def picture_of(report: Report) -> Picture:
    """Builds the picture of the head in `report`; each part that could not be determined is a separate node."""
    verdict, origin = tell_verdict(report), report.checkpoint
    commit = f", commit {origin.commit[:12]}" if origin.commit else ""
    gaps = (
        PictureNode(
            f"gap{at}", BoxKind.GAP, safe(f"not determined: {gap.topic}"), lines=(safe(gap.reason),), tint=Tint.UNKNOWN
        )
        for at, gap in enumerate(report.not_determined)
    )
    nodes = (*gaps, _base_node(report), *_head_nodes(report))
    # If there is no checkpoint to compare the weights with, their statuses mean nothing.
    is_alone = origin.kind in (CheckpointKind.MEMORY, CheckpointKind.CLASS)
    statuses = {item.status for item in report.weights.parameters if not item.is_buffer}
    if is_alone and not report.not_determined and statuses <= {ParameterStatus.UNKNOWN}:
        nodes = tuple(map(_without_statuses, nodes))
    return Picture(
        title=safe(report.model.class_name),
        subtitle=safe(f"{origin.reference}, {SOURCE[origin.kind]}{commit}"),
        verdict=safe(verdict.sentence),
        tone=verdict.tone,
        nodes=nodes,
        edges=_picture_edges(report),
        notices=tuple(safe(text) for text in (*report.checkpoint.notices, *report.notes)),
        tree=tree_of(report, report.head) if report.head is not None else None,
    )


def _without_statuses(node: PictureNode) -> PictureNode:
    """Takes status and color from the weights of a node."""

    def plain(weight: Weight) -> Weight:
        is_unknown = weight.tint is Tint.UNKNOWN
        return replace(weight, word="not compared", tint=Tint.PLAIN) if is_unknown else weight

    weights = tuple(map(plain, node.weights))
    lines = ("no checkpoint to compare it with",) if node.kind is BoxKind.BASE else node.lines
    return replace(node, weights=weights, lines=lines, tint=Tint.PLAIN if node.tint is Tint.UNKNOWN else node.tint)


def _base_node(report: Report) -> PictureNode:
    """Draws the base model as one box, with the number of its tensors for each status."""
    counts = report.model.parameters
    about = [safe(report.checkpoint.model_type)] if report.checkpoint.model_type else []
    own = {item.name for item in report.head.parameters} if report.head is not None else set()
    others = [item for item in report.weights.parameters if item.name not in own and not item.is_buffer]
    tally = Counter(item.status for item in others)
    return PictureNode(
        "base",
        BoxKind.BASE,
        " ".join(["base model", *about]),
        beside=counted(counts.base, "parameter"),
        lines=tuple(
            f"{counted(tally[status], 'tensor')} {status.value}" for status in ParameterStatus if tally[status]
        ),
        tint=_worst_tint(Tint(status.value) for status in tally),
        more=(("model", safe(report.model.class_name)), ("dtype", safe(report.model.dtype))),
    )


def _head_nodes(report: Report) -> Iterator[PictureNode]:
    head = report.head
    if head is None:
        yield _scores_node(report, "logits", "")
        return
    yield _hidden_node(report, head)
    sources = {tie.parameter: tie.source for tie in report.weights.tied}
    is_known = is_pooling_known(report)
    marked = pooling_stage(head) if is_known else None
    for stage in head.stages:
        yield _stage_node(head, stage, sources, stage.index == marked)
    yield _scores_node(report, f"logits {axes_of(logits_shape(head))}", head.formula if is_known else "")
    yield from _beside_nodes(report, head, sources)


def _hidden_node(report: Report, head: Head) -> PictureNode:
    rows, pooling = token_rows(report, head), head.pooling
    mark = f"pooling: {brief_rule(pooling)}" if is_pooling_known(report) else "pooling: not determined"
    evidence = [("seen", safe(place_words(item))) for item in pooling.evidence]
    if head.verification is not None:
        evidence.append(("verified", safe(head.verification.told)))
    return PictureNode(
        "hidden",
        BoxKind.HIDDEN,
        "hidden states of the decoder" if reads_decoder(pooling) else "hidden states",
        beside=safe(axes_of(head.hidden_shape)),
        lines=(legend_of(rows),),
        rows=rows,
        mark=safe(mark),
        more=tuple(evidence),
    )


def _stage_node(head: Head, stage: Stage, sources: dict[str, str], is_pooling: bool) -> PictureNode:
    weights = tuple(_weight_row(item, sources) for item in own_parameters(head, stage))
    mark = f"pooling: {POOLING[head.pooling.kind]}" if is_pooling else ""
    return PictureNode(
        stage_id(stage.index),
        BoxKind.STAGE,
        safe(operation_of(stage)),
        beside=safe(source_of(stage)),
        pairs=((safe(module_of(stage)), safe(shapes_of(stage))),),
        weights=weights,
        mark=safe(mark),
        tint=_worst_tint(weight.tint for weight in weights),
        more=tuple(_more_of(head, stage)),
    )


def _more_of(head: Head, stage: Stage) -> Iterator[tuple[str, str]]:
    yield "module", safe(f"{stage.module or '(the model)'} ({stage.module_class})")
    yield "shapes", safe(shapes_of(stage))
    if stage.file:
        yield "source", safe(f"{stage.file}:{stage.line}")
    operations = {item.index: operation_of(item) for item in head.stages}
    for made, shape in zip(stage.inputs, stage.input_shapes, strict=False):
        maker = "hidden states" if made == HIDDEN_STATES else operations.get(made, "?")
        yield "reads", safe(f"{axes_of(shape)} of {maker}")
    for item in own_parameters(head, stage):
        yield weight_status(item), safe(f"{item.name} {weight_size(item)}, {item.dtype}, {_keys_of(item)}")


def _keys_of(item: HeadParameter) -> str:
    if item.status is ParameterStatus.UNKNOWN:
        return "from where is not known"
    return f"from {', '.join(item.checkpoint_keys)}" if item.checkpoint_keys else "from no checkpoint key"


def _weight_row(item: HeadParameter, sources: dict[str, str]) -> Weight:
    tint = Tint(item.status.value) if item.live else Tint.UNUSED
    origin = safe(f"same as {sources[item.name]}") if item.name in sources else ""
    size = weight_size(item)
    count = "" if size == str(item.count) else f"{item.count:,}"  # of a vector both are one number
    return Weight(tint, weight_status(item), safe(item.name), size, count, origin)


def _scores_node(report: Report, title: str, formula: str) -> PictureNode:
    model = report.model
    without = WITHOUT_CLASSES.get(model.task, "")
    labels = () if without else model.labels
    cells = [Cell(f"{index} {safe(name)}") for index, name in enumerate(labels[:_LABELS])]
    if len(labels) > _LABELS:
        cells.append(Cell(f"and {len(labels) - _LABELS:,} more"))
    placeholders = "no label names given: placeholders" if model.labels_are_placeholders else ""
    return PictureNode(
        "scores",
        BoxKind.SCORES,
        safe(title),
        beside="" if without else counted(model.num_labels, "label"),
        lines=tuple(safe(line) for line in (without or placeholders, f"loss: {loss_of(model)}", formula) if line),
        rows=(CellRow(tuple(cells)),) if cells else (),
        more=(("task", model.task.value),),
    )


def _beside_nodes(report: Report, head: Head, sources: dict[str, str]) -> Iterator[PictureNode]:
    """Draws what no stage uses: tensors of the checkpoint without a place, weights of the head, and whole modules."""
    unplaced = find_without_place(report)
    if unplaced:
        pairs = tuple((safe(item.name), safe(item.what or counted(len(item.tensors), "tensor"))) for item in unplaced)
        title = "in the checkpoint, without a place in the model"
        yield PictureNode("unplaced", BoxKind.UNUSED, title, pairs=pairs, tint=Tint.UNUSED)
    used = {name for stage in head.stages for name in stage.parameters}
    beside = tuple(f"{module.path}." for module in head.unused_modules)  # drawn in the last box
    loose = [item for item in head.parameters if item.name not in used and not item.name.startswith(beside)]
    if loose:
        weights = tuple(_weight_row(item, sources) for item in loose)
        tint = _worst_tint(weight.tint for weight in weights)
        yield PictureNode("other", BoxKind.OTHER, "weights of the head that no stage reads", weights=weights, tint=tint)
    if head.unused_modules:
        pairs = tuple((safe(f"{item.path} ({item.module_class})"), fate_of(item)) for item in head.unused_modules)
        yield PictureNode("unused", BoxKind.UNUSED, "registered, not on the head path", pairs=pairs, tint=Tint.UNUSED)


def _worst_tint(tints: Iterable[Tint]) -> Tint:
    found = set(tints)
    return next((tint for tint in _WORST_FIRST if tint in found), Tint.PLAIN)


def stage_id(index: int) -> str:
    """Gives the id of a stage's node."""
    return f"stage{index}"


def _picture_edges(report: Report) -> tuple[Edge, ...]:
    head = report.head
    if head is None:
        gaps = [f"gap{number}" for number in range(len(report.not_determined))]
        return tuple(Edge(source, "scores", is_sure=False) for source in gaps or ["base"])
    is_sure = all(gap.topic != GapTopic.HEAD_PATH for gap in report.not_determined)
    return (Edge("base", "hidden"), *_stage_edges(head, is_sure), *_score_edges(head, is_sure))


def _stage_edges(head: Head, is_sure: bool) -> Iterator[Edge]:
    """Connects each stage with what it reads; if that is not known, with the stage before it, as not sure."""
    before = HIDDEN_STATES
    for stage in head.stages:
        is_known = len(stage.inputs) == len(stage.input_shapes) > 0
        for made, count in Counter(stage.inputs if is_known else (before,)).items():
            yield Edge(_maker_id(made), stage_id(stage.index), is_sure and is_known, count)
        before = stage.index


def _score_edges(head: Head, is_sure: bool) -> Iterator[Edge]:
    """Connects the scores with every stage whose result no other stage reads."""
    read = {made for stage in head.stages for made in stage.inputs}
    ends = [stage.index for stage in head.stages if stage.index not in read]
    # If the inputs of some stage are not known, any earlier stage may feed it: only the last is sure to be an end.
    if not all(stage.inputs for stage in head.stages):
        ends = ends[-1:]
    for index in ends or [HIDDEN_STATES]:
        yield Edge(_maker_id(index), "scores", is_sure)


def _maker_id(index: int) -> str:
    return "hidden" if index == HIDDEN_STATES else stage_id(index)
