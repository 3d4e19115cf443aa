"""The page of the atlas in Markdown: a table for each task, what was not traced, and how it was traced."""

import re
from collections import Counter
from collections.abc import Callable, Sequence

from headscope.core.facts.heads.atlas import AtlasHead, HeadEntry
from headscope.facts import Task
from headscope.slices.atlas.screen import is_proven, new_in_words, operations_of
from scripts.pages.shipped_sizes import SIZES

_USED_MOST = tuple(dict.fromkeys(model_type for model_type, _ in SIZES))
"""The families that people use most, the most used first."""


def by_use(entry: HeadEntry) -> int:
    """What the entries of a table are sorted by: the families that people use most, then the others as they are."""
    return _USED_MOST.index(entry.model_type) if entry.model_type in _USED_MOST else len(_USED_MOST)


def atlas_page(entries: Sequence[HeadEntry], transformers: str, link: Callable[[str], str] | None = None) -> str:
    """The page; `link` gives the address of a class's own page, where there are such pages."""
    lines = [
        "# Atlas of classification heads",
        "",
        f"How each classification class of Transformers {transformers} makes its scores in its default configuration, "
        "as `headscope heads` traces it: which positions of the hidden states it reads, what it computes from them, "
        "and which of its weights are new after a checkpoint of the family's pretraining class. The families that "
        "people use most come first.",
    ]
    if link is not None:
        lines += [
            "",
            "Each class has a page with its picture, its weights, what padding does to its scores, and the versions in "
            "which it changed. The [gallery](gallery.md) shows the different kinds of heads.",
        ]
    for task in Task:
        own = sorted((entry for entry in entries if entry.task is task), key=by_use)
        lines += ["", f"## {task.value}", "", *_table(own, link)] if own else []
    lines += ["", "## Not traced", ""]
    lines += [
        f"- {_name(entry, link)} ({entry.task.value}): {plain(entry.reason)}" for entry in entries if not entry.traced
    ]
    lines += ["", "## How the heads were traced", "", *_account(entries)]
    return "\n".join(lines) + "\n"


def plain(text: str) -> str:
    """Words of a report as Markdown shows them, also in a table."""
    return re.sub(r"([\[\]_*`|])", r"\\\1", text).replace("<", "&lt;")


def _table(entries: Sequence[HeadEntry], link: Callable[[str], str] | None) -> list[str]:
    head = ["| class | family | pooling | head path | new |", "|---|---|---|---|---|"]
    return head + [_row(entry, entry.head, link) for entry in entries if entry.head]


def _row(entry: HeadEntry, head: AtlasHead, link: Callable[[str], str] | None) -> str:
    proof = "" if is_proven(entry) else " (not confirmed by gradients)"
    path = head.formula.removeprefix("logits = ") or operations_of(head)
    cells = (
        _name(entry, link),
        f"`{entry.model_type}`",
        f"{plain(head.pooling.kind.value)}{proof}",
        "`" + path.replace("|", "\\|") + "`",
        new_in_words(entry),
    )
    return f"| {' | '.join(cells)} |"


def _name(entry: HeadEntry, link: Callable[[str], str] | None) -> str:
    if link is None:
        return f"`{entry.class_name}`"
    broken = entry.class_name.replace("For", "<wbr>For", 1)  # a long name may go on in a second line, but not anywhere
    return f"[<code>{broken}</code>]({link(entry.class_name)})"


def _account(entries: Sequence[HeadEntry]) -> list[str]:
    """How many classes were traced in which way, and what the gradients of the heads said of the poolings."""
    traced = sum(entry.traced for entry in entries)
    kinds = Counter(entry.head.pooling.kind.value for entry in entries if entry.head)
    classes = {entry.class_name for entry in entries}
    found = {entry.class_name for entry in entries if entry.traced}
    lines = [
        f"{len(found)} of {len(classes)} classes were traced. Some classes serve two families, so that the tables have "
        f"{traced} of {len(entries)} rows. They were traced on tensors without values (by shapes), or on a smaller "
        "model with random weights. The gradients of the scores with respect to the hidden states then show which "
        "positions move the scores, and are compared with the pooling that was traced.",
        "",
        "Poolings: " + ", ".join(f"{plain(kind)} {count}" for kind, count in kinds.most_common()) + ".",
        "",
        "| task | classes | by shapes | on a smaller model | not traced | gradients agree | no claim | contradict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for task in [*Task, None]:
        own = [entry for entry in entries if task in (None, entry.task)]
        if own:
            lines.append(f"| {task.value if task else '**all**'} | {' | '.join(map(str, _counts(own)))} |")
    return lines


def _counts(entries: Sequence[HeadEntry]) -> tuple[int, ...]:
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
