"""The head path with a line for each operation: what runs, on which shapes, with how many weights from where."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text
from rich.tree import Tree

from headscope.core.facts import Carried, Head, ParameterStatus, Stage, TensorKind
from headscope.core.facts.counting import counted
from headscope.core.words.console import MODULE, OPERATION, POOLING_STYLE, QUIET, STATUS
from headscope.core.words.lines import Paragraph, align, first_fitting
from headscope.core.words.safe import label, safe
from headscope.core.words.words import axes_of
from headscope.shared.report.head.stages import (
    BY_ADAPTER,
    BY_ADAPTER_IN_SHORT,
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
)

_MOST = 12
_ENDS = _MOST // 2
IDLE_OPERATIONS = frozenset({"dropout", "view", "reshape", "squeeze", "unsqueeze", "transpose", "permute", "flatten"})
"""Operations that only regularize or reshape."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """Form of a line: the source with its `file` name, or no source; an `arrow` before the shape; in columns.

    `brief` is what an adapter did in one word.
    """

    file: bool = False
    arrow: bool = False
    source: bool = True
    aligned: bool = True
    brief: bool = False


_LAYOUTS = (
    _Layout(file=True, arrow=True),
    _Layout(arrow=True),
    _Layout(),
    _Layout(brief=True),
    _Layout(source=False),
    _Layout(brief=True, source=False),
    _Layout(arrow=True, aligned=False),
)
"""From roomy to narrow; the first that fits is taken. The source gives way first; lines of the last one may wrap, those
without their source.
"""


@dataclass(frozen=True)
class HeadPath:
    """Operations that matter, a line each; `version` of Transformers links them to their source."""

    head: Head
    model_type: str
    version: str = ""
    is_pooling_known: bool = True
    result: str = "logits"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # The stages that compute and the pooling; of very many, the first and the last.
        marked = pooling_stage(self.head)
        shown = [item for item in self.head.stages if item.operation not in IDLE_OPERATIONS or item.index == marked]
        shown = shown if len(shown) <= _MOST else [*shown[:_ENDS], *shown[-_ENDS:]]
        room = options.max_width - GUIDE
        laid = ((self._lines_in(layout, shown, room), layout) for layout in _LAYOUTS)
        lines, layout = first_fitting(((each, each[0]) for each in laid), room)
        yield self._build_tree(lines, shown, layout, options.max_width)

    def _lines_in(self, layout: _Layout, shown: list[Stage], room: int) -> list[Text]:
        if layout.aligned:
            return align([self._stage_row(stage, layout) for stage in shown])
        each = (self._stage_row(stage, layout) for stage in shown)
        # Wrapped, the number of the source line would stand alone.
        return [line if line.cell_len <= room else align([row[:-1]])[0] for row in each for line in align([row])]

    def _stage_row(self, stage: Stage, layout: _Layout) -> list[Text]:
        is_pooling = self.is_pooling_known and stage.index == pooling_stage(self.head)
        return [
            label(operation_of(stage), OPERATION),
            label(module_of(stage), MODULE),
            Text(f"{'-> ' if layout.arrow else ''}{axes_of(stage.output_shape)}"),
            Text("pooling", POOLING_STYLE)
            if is_pooling
            else _weights_by_origin(self.head, stage, BY_ADAPTER_IN_SHORT if layout.brief else BY_ADAPTER),
            linked_source(stage, self.version, short=not layout.file and bool(common_file(self.head)))
            if layout.source
            else Text(),
        ]

    def _build_tree(self, lines: Sequence[Text], shown: Sequence[Stage], layout: _Layout, room: int) -> Tree:
        # A file that all stages share is named once, at the top, if the lines leave it out.
        file = common_file(self.head) if not layout.file else ""
        tree = Tree(Paragraph(path_root(self.head, self.model_type, file, room)), guide_style=QUIET)
        gap = len(self.head.stages) - len(shown) if len(shown) == _MOST else 0
        for number, line in enumerate(lines):
            if gap and number == _ENDS:
                tree.add(Paragraph(Text("...", QUIET)))
            tree.add(Paragraph(line))
        tree.add(Paragraph(self._logits_line(shown)))
        return tree

    def _logits_line(self, shown: Sequence[Stage]) -> Text:
        text = path_end(self.head, self.result)
        kept = {stage.index for stage in shown}
        hidden = Counter(stage.operation for stage in self.head.stages if stage.index not in kept)
        if len(hidden) > 3:
            return text.append(f"  (not shown: {counted(hidden.total(), 'operation')})", QUIET)
        named = ", ".join(f"{name} x{count}" if count > 1 else name for name, count in hidden.items())
        return text.append(f"  (not shown: {safe(named)})" if named else "", QUIET)


def _weights_by_origin(head: Head, stage: Stage, by_adapter: Mapping[Carried, str]) -> Text:
    """Counts the weights of a stage by their origin: `589,824 loaded, 768 new`."""
    totals: dict[tuple[str, str], int] = {}
    for item in own_parameters(head, stage):
        kind = "" if item.kind is TensorKind.PARAMETER else " buffer values"
        more = (f" {by_adapter[item.adapter]}" if item.adapter else "") + ("" if item.live else NOT_USED)
        status = "" if item.adapter and item.status is ParameterStatus.LOADED else f" {item.status.value}"
        key = (f"{kind}{status}{more}", STATUS[item.status])
        totals[key] = totals.get(key, 0) + item.count
    return Text(", ").join(Text.assemble(f"{count:,}", words_in_style) for words_in_style, count in totals.items())
