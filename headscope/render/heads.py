"""The screens of the atlas: a line for each class, all of one class, and the page of all of them in Markdown."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.text import Text

from headscope.facts import Task
from headscope.facts.atlas import AtlasHead, HeadEntry
from headscope.facts.counting import counted
from headscope.facts.plain import to_dict
from headscope.render.document import Document, opening
from headscope.render.fold import fold_keys
from headscope.render.lines import GAP, Paragraph, align
from headscope.render.palette import MODULE, OPERATION, POOLING, QUIET, STRONG, TONE, Tone
from headscope.render.safe import label, safe

_QUIET_OPERATIONS = {"dropout", "view", "reshape", "squeeze", "unsqueeze", "transpose", "permute", "flatten"}


def heads_document(entries: Sequence[HeadEntry]) -> Document:
    """The document of `heads`."""
    return {**opening("heads"), "heads": [to_dict(entry) for entry in entries]}


def heads_screen(entries: Sequence[HeadEntry]) -> RenderableType:
    """A line for each class by task, what could not be traced, and counts at the end."""
    parts: list[RenderableType] = []
    for task, group in groupby(entries, key=lambda entry: entry.task):
        parts += [Text(task.value, STRONG), *_table(list(group)), Text()]
    return Group(*parts, *_untraced(entries), _counts(entries))


def heads_names(entries: Sequence[HeadEntry]) -> RenderableType:
    """One class a line, each once: all that `-q` shows."""
    return Text("\n".join(safe(name) for name in dict.fromkeys(entry.class_name for entry in entries)))


def _table(entries: Sequence[HeadEntry]) -> list[RenderableType]:
    """Names at the margin, so that what wraps stays to the right of them."""
    traced = [(entry, entry.head) for entry in entries if entry.head]
    names = [Text(f"  {safe(entry.class_name)}", MODULE) for entry, _ in traced]
    margin = max((name.cell_len for name in names), default=0) + GAP
    lines = align([_row(entry, head) for entry, head in traced]) if traced else []
    return [Paragraph(line, name, margin) for name, line in zip(names, lines, strict=True)]


def _row(entry: HeadEntry, head: AtlasHead) -> tuple[Text, ...]:
    return (
        Text(head.pooling.kind.value, POOLING),
        Text(operations_of(head), OPERATION),
        Text(new_in_words(entry), QUIET),
    )


def operations_of(head: AtlasHead) -> str:
    """The operations of a head in order, without those that only regularize or reshape."""
    names = [stage.operation for stage in head.stages if stage.operation not in _QUIET_OPERATIONS]
    return " > ".join(names) if len(names) <= _MOST_OPERATIONS else f"{len(names)} operations"


_MOST_OPERATIONS = 8


def new_in_words(entry: HeadEntry) -> str:
    """What a pretraining checkpoint of the family does not bring of the head."""
    if entry.head is None or entry.pretraining_class is None:
        return ""
    total, new = len(entry.head.parameters), len(entry.new_from_pretraining)
    if new == total:
        return f"all new after {entry.pretraining_class}"
    return f"{new} of {total} new after {entry.pretraining_class}"


def _untraced(entries: Sequence[HeadEntry]) -> Iterable[RenderableType]:
    for entry in entries:
        if not entry.traced:
            word = Text("not traced", TONE[Tone.WARNING])
            yield Paragraph(label(f"{entry.class_name} ({entry.task.value}): {entry.reason}"), word, 12)


def _counts(entries: Sequence[HeadEntry]) -> RenderableType:
    traced = sum(entry.traced for entry in entries)
    reduced = sum(entry.by == "reduced" for entry in entries)
    proven = sum(_is_proven(entry) for entry in entries)
    sentence = f"{counted(len(entries), 'head')}: {traced} traced"
    if reduced:
        sentence += f" ({reduced} of them on a smaller model with weights)"
    return Paragraph(label(f"{sentence}, {proven} confirmed by gradients, {len(entries) - traced} not traced"))


def _is_proven(entry: HeadEntry) -> bool:
    return bool(entry.head and entry.head.verification and entry.head.verification.agrees)


def atlas_page(entries: Sequence[HeadEntry], transformers: str) -> str:
    """The atlas as a page of Markdown: a table for each task, then every class that could not be traced."""
    kinds = Counter(entry.head.pooling.kind.value for entry in entries if entry.head)
    traced = sum(entry.traced for entry in entries)
    lines = [
        "# Atlas of classification heads",
        "",
        f"Every classification class of Transformers {transformers} at its default configuration, as `headscope heads` "
        f"traces it: {traced} of {len(entries)}. The column *new* says what a checkpoint of the family's pretraining "
        "class does not bring of the head. The pooling of every line was confirmed by the gradients of the head unless "
        "it says otherwise.",
        "",
        "Poolings: " + ", ".join(f"{kind} {count}" for kind, count in kinds.most_common()) + ".",
    ]
    lines += ["", *_sweep_table(entries)]
    for task in Task:
        own = [entry for entry in entries if entry.task is task]
        lines += ["", f"## {task.value}", "", *_markdown_table(own)] if own else []
    lines += ["", "## Not traced", ""]
    lines += [f"- `{entry.class_name}` ({entry.task.value}): {entry.reason}" for entry in entries if not entry.traced]
    return "\n".join(lines) + "\n"


def _sweep_table(entries: Sequence[HeadEntry]) -> list[str]:
    """The sweep by task, and what the gradients said of it."""
    lines = [
        "| task | classes | by shapes | on a smaller model | not traced | gradients agree | no claim | contradict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for task in [*Task, None]:
        own = [entry for entry in entries if task in (None, entry.task)]
        if own:
            lines.append(f"| {task.value if task else '**all**'} | {' | '.join(map(str, _sweep_counts(own)))} |")
    return lines


def _sweep_counts(entries: Sequence[HeadEntry]) -> tuple[int, ...]:
    verdicts = [entry.head.verification.agrees for entry in entries if entry.head and entry.head.verification]
    by = Counter(entry.by for entry in entries)
    return (
        len(entries),
        by["shapes"],
        by["reduced"],
        sum(not entry.traced for entry in entries),
        sum(verdict is True for verdict in verdicts),
        sum(verdict is None for verdict in verdicts),
        sum(verdict is False for verdict in verdicts),
    )


def _markdown_table(entries: Sequence[HeadEntry]) -> list[str]:
    head = ["| class | pooling | head path | parameters | new |", "|---|---|---|---|---|"]
    return head + [_markdown_row(entry, entry.head) for entry in entries if entry.head]


def _markdown_row(entry: HeadEntry, head: AtlasHead) -> str:
    proof = "" if _is_proven(entry) else " (not confirmed by gradients)"
    path = f"`{head.formula}`" if head.formula else operations_of(head)
    parameters = ", ".join(f"`{name}`" for name in fold_keys([item.name for item in head.parameters]))
    many = counted(len(head.parameters), "tensor")
    cells = (
        f"`{entry.class_name}`",
        f"{head.pooling.kind.value}: {head.pooling.rule}{proof}",
        path,
        parameters if len(parameters) <= _LONGEST_CELL else many,
        new_in_words(entry),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


_LONGEST_CELL = 160
