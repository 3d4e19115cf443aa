"""Screens of the atlas: a line for each class, or only their names."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.text import Text

from headscope.core.facts.counting import counted
from headscope.core.facts.heads.atlas import AtlasHead, HeadEntry
from headscope.core.facts.plain import to_dict
from headscope.core.words.console import MODULE, OPERATION, POOLING_STYLE, QUIET, STRONG, TONE, Tone
from headscope.core.words.document import Document, opening
from headscope.core.words.lines import GAP, FittedRows, Paragraph
from headscope.core.words.safe import label, safe
from headscope.shared.report.head.head_path import IDLE_OPERATIONS


def heads_document(entries: Sequence[HeadEntry]) -> Document:
    """Builds the document of `heads`."""
    return {**opening("heads"), "heads": [to_dict(entry) for entry in entries]}


def heads_screen(entries: Sequence[HeadEntry], pattern: str = "") -> RenderableType:
    """Shows a line for each class by task, what could not be traced, and counts at the end.

    If a class has exactly the name `pattern`, the others, whose names only contain it, follow below a heading.
    """
    named = [entry for entry in entries if entry.class_name == pattern]
    others = [entry for entry in entries if entry.class_name != pattern]
    parts: list[RenderableType] = [
        *_by_task(named),
        *([label(f"names that hold {pattern}"), Text()] if named and others else ()),
    ]
    parts += _by_task(others)
    for entry in entries:
        if not entry.traced:
            why = label(f"{entry.class_name} ({entry.task.value}): {entry.reason}")
            parts.append(Paragraph(why, Text("not traced", TONE[Tone.WARNING]), 12))
    return Group(*parts, _count_lines(entries))


def _by_task(entries: Sequence[HeadEntry]) -> Iterable[RenderableType]:
    """Shows a line for each class of a task: its pooling, its operations, what is new."""
    for task, group in groupby(entries, key=lambda entry: entry.task):
        listed = tuple(group)
        families = Counter(entry.class_name for entry in listed)
        rows = tuple(_class_cells(entry, entry.head, families[entry.class_name] > 1) for entry in listed if entry.head)
        margin = max((row[0].cell_len for row in rows), default=0) + GAP
        yield from (Text(task.value, STRONG), FittedRows(rows, (3, 2, 1), margin, 2 * GAP), Text())


def heads_names(entries: Sequence[HeadEntry]) -> RenderableType:
    """Lists each class once, which is all that `-q` shows."""
    return Text("\n".join(safe(name) for name in dict.fromkeys(entry.class_name for entry in entries)))


def _class_cells(entry: HeadEntry, head: AtlasHead, is_shared: bool) -> tuple[Text, ...]:
    """Gives the cells of a class; with its family if several families share the class."""
    return (
        Text(f"  {safe(entry.class_name)}{f' ({safe(entry.model_type)})' if is_shared else ''}", MODULE),
        Text(head.pooling.kind.value, POOLING_STYLE),
        label(operations_of(head), OPERATION),
        label(new_in_words(entry), QUIET),
    )


def operations_of(head: AtlasHead) -> str:
    """Lists the operations of a head in order, without those that only regularize or reshape."""
    names = [stage.operation for stage in head.stages if stage.operation not in IDLE_OPERATIONS]
    return " > ".join(names) if len(names) <= 8 else f"{len(names)} operations"


def new_in_words(entry: HeadEntry) -> str:
    """Says which weights of the head a pretraining checkpoint of the family lacks."""
    if entry.head is None or entry.pretraining_class is None:
        return ""
    total, new = len(entry.head.parameters), len(entry.new_from_pretraining)
    if new == total:
        return f"all new after {entry.pretraining_class}"
    return f"{new} of {total} new after {entry.pretraining_class}"


_NONE = "0 heads: no class fits all the options. `headscope heads` lists every class with its pooling and operations."


def _count_lines(entries: Sequence[HeadEntry]) -> RenderableType:
    traced = sum(entry.traced for entry in entries)
    reduced = sum(entry.by == "reduced" for entry in entries)
    proven = sum(is_proven(entry) for entry in entries)
    if not entries:
        return Paragraph(label(_NONE))
    sentence = f"{counted(len(entries), 'head')}: {traced} traced"
    if reduced:
        sentence += f" ({reduced} of them on a smaller model with weights)"
    sentence += f", {proven} confirmed by gradients, {len(entries) - traced} not traced"
    is_after = any(new_in_words(entry) for entry in entries)
    meaning = "new after CLASS: weights of the head that a checkpoint of CLASS does not fill" if is_after else ""
    return Group(*(Paragraph(label(line)) for line in (sentence, meaning) if line))


def is_proven(entry: HeadEntry) -> bool:
    """True if gradients confirmed the pooling that was traced."""
    return bool(entry.head and entry.head.verification and entry.head.verification.agrees)


def shown_screen(result: Sequence[HeadEntry]) -> RenderableType:
    """Renders a result as Python shows it."""
    return heads_screen(result)


def shown_line(result: Sequence[HeadEntry]) -> str:
    """Writes a result in one line."""
    return f"heads: {counted(len(result), 'class', 'classes')}"
