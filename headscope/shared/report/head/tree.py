"""Tree of the head path: from the hidden states, stage by stage, to the logits."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text
from rich.tree import Tree

from headscope.core.facts import Head, HeadParameter, Report, Shape, Stage, TensorKind, Tie
from headscope.core.words.console import MODULE, OPERATION, POOLING_STYLE, QUIET, STATUS
from headscope.core.words.lines import Paragraph, align, first_fitting
from headscope.core.words.safe import label, safe
from headscope.core.words.tokens import is_pooling_known
from headscope.core.words.words import POOLING, axes_of, result_of
from headscope.shared.report.head.stages import (
    BY_ADAPTER,
    GUIDE,
    NOT_USED,
    common_file,
    linked_source,
    module_of,
    operation_of,
    own_parameters,
    path_end,
    path_root,
    pooling_stage,
    shapes_of,
    weight_size,
)


@dataclass(frozen=True, slots=True)
class Layout:
    """Amount of text on the line of a stage.

    `parameters`: its parameters too, instead of a line each below; `inputs`: the shapes it reads even where
    they are what the stage before it made; `file`: the file's name, which is otherwise at the top, if all
    stages share it; `aligned`: columns line up from stage to stage.
    """

    parameters: bool
    inputs: bool
    file: bool
    aligned: bool = True


LAYOUTS = (
    Layout(parameters=True, inputs=True, file=True),
    Layout(parameters=False, inputs=True, file=True),
    Layout(parameters=False, inputs=False, file=True),
    Layout(parameters=False, inputs=False, file=False),
    Layout(parameters=False, inputs=False, file=False, aligned=False),
)
"""From roomy to narrow; the first that fits is taken."""


@dataclass(frozen=True)
class HeadTree:
    """A Rich tree of the head path in the roomiest layout that fits the width; the stage `marked` is the pooling."""

    head: Head
    model_type: str
    ties: tuple[Tie, ...] = ()
    version: str = ""
    marked: int | None = None
    result: str = "logits"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        file, blocks = self.laid_out(options.max_width - GUIDE, LAYOUTS)
        tree = Tree(Paragraph(path_root(self.head, self.model_type, file, options.max_width)), guide_style=QUIET)
        for block in blocks.values():
            branch = tree.add(Paragraph(block.line))
            for leaf in block.leaves:
                branch.add(Paragraph(leaf))
        tree.add(Paragraph(path_end(self.head, self.result)))
        yield tree

    def laid_out(self, room: int, layouts: Sequence[Layout]) -> "tuple[str, dict[int, StageBlock]]":
        """Writes the stages in the first layout that fits into `room` cells.

        Returns the source file that the lines leave out, and the text of each stage by its index.

        The tree and the boxes of a picture both show these lines.
        """
        each = ((_lines_in(layout, self.head, self.version), layout) for layout in layouts)
        lines, layout = first_fitting(((laid, laid[0]) for laid in each), room)
        sources = {tie.parameter: tie.source for tie in self.ties}
        blocks = {}
        for stage, line in zip(self.head.stages, lines, strict=True):
            pooling = label(f"pooling: {POOLING[self.head.pooling.kind]}", POOLING_STYLE)
            leaves = [pooling] if stage.index == self.marked else []
            if not layout.parameters:
                leaves += align(_parameter_rows(self.head, stage, sources), right=frozenset({3}))
            blocks[stage.index] = StageBlock(line, tuple(leaves))
        return _file_left_out(layout, self.head), blocks


@dataclass(frozen=True)
class StageBlock:
    """Text for a stage: its line, and below it the pooling and the parameters that the line leaves out."""

    line: Text
    leaves: tuple[Text, ...]


def _file_left_out(layout: Layout, head: Head) -> str:
    return "" if layout.file else common_file(head)


def _lines_in(layout: Layout, head: Head, version: str) -> list[Text]:
    """Writes a line for each stage of `head`, in columns if the layout is aligned."""
    rows = list(_stage_rows(head, layout, version, short=bool(_file_left_out(layout, head))))
    return align(rows) if layout.aligned else [line for row in rows for line in align([row])]


def _stage_rows(head: Head, layout: Layout, version: str, *, short: bool) -> Iterator[list[Text]]:
    before: Shape = head.hidden_shape
    for stage in head.stages:
        places = [Text(_shapes_of(stage, before, layout.inputs)), linked_source(stage, version, short=short)]
        # Lines that are not aligned may wrap: at their end, the number of the source line would stand alone.
        row = [
            label(operation_of(stage), OPERATION),
            label(module_of(stage), MODULE),
            *(places if layout.aligned else reversed(places)),
        ]
        if layout.parameters:
            row.append(_inline_parameters(head, stage))
        yield row
        before = stage.output_shape


def _shapes_of(stage: Stage, before: Shape, inputs: bool) -> str:
    # The line above ends with the same shape: a chain needs it only once.
    if not inputs and stage.input_shapes == (before,):
        return f"-> {axes_of(stage.output_shape)}"
    return shapes_of(stage)


def _inline_parameters(head: Head, stage: Stage) -> Text:
    parts = (
        Text.assemble(safe(item.name), f" {weight_size(item)} ", _status_of(item), f" {_tensor_remarks(item)}".rstrip())
        for item in own_parameters(head, stage)
    )
    return Text(", ").join(parts)


def _parameter_rows(head: Head, stage: Stage, sources: dict[str, str]) -> list[list[Text]]:
    return [
        [
            _status_of(item),
            label(item.name),
            Text(weight_size(item)),
            Text(f"{item.count:,}"),
            label(f"same as {sources[item.name]}" if item.name in sources else _tensor_remarks(item), QUIET),
        ]
        for item in own_parameters(head, stage)
    ]


def _status_of(parameter: HeadParameter) -> Text:
    word = Text(parameter.status.value, STATUS[parameter.status])
    return word if parameter.live else word.append(NOT_USED, QUIET)


def _tensor_remarks(parameter: HeadParameter) -> str:
    """Says what is special about a tensor: a buffer, from an adapter, or packed."""
    kind = "buffer" if parameter.kind is TensorKind.BUFFER else ""
    packed = f"packed as {safe(parameter.quantized)}" if parameter.quantized else ""
    return ", ".join(filter(None, (kind, BY_ADAPTER[parameter.adapter] if parameter.adapter else "", packed)))


def tree_of(report: Report, head: Head) -> HeadTree:
    """Builds the tree of the head in `report`."""
    marked = pooling_stage(head) if is_pooling_known(report) else None
    model_type, version = report.checkpoint.model_type or "", report.environment.transformers
    return HeadTree(head, model_type, report.weights.tied, version, marked, result_of(report.model))
