"""The atlas as pages of the site: a table to filter, a page with a picture for each class, and a gallery of the heads.

Everything comes from docs/atlas.json and docs/versions/*.json: nothing is traced here.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

from headscope.core.facts.counting import counted
from headscope.core.facts.heads.atlas import AtlasHead, AtlasParameter, HeadEntry
from headscope.core.facts.heads.tasks import TEXT_TASKS
from headscope.core.words.words import POOLING, axes_of, size_of
from headscope.facts import PaddingEffect, PoolingKind, Task, Where
from headscope.shared.report.head.stages import operation_of, source_of
from headscope.slices.atlas.screen import operations_of
from headscope.slices.diagram.layout import NARROW
from headscope.slices.diagram.svg import svg_text
from scripts.pages.atlas_page import atlas_page, by_use, plain
from scripts.pages.write_atlas import Atlas, read_atlas
from scripts.pages.write_changes import differences, kept_versions
from scripts.site.entry_picture import entry_picture

FOLDER = "atlas"


def atlas_pages(docs: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The pages and the pictures by their names, of the atlas that `docs` keeps."""
    atlas = read_atlas(docs)
    classes = _by_class(atlas.entries)
    changes = _changes({path.stem: json.loads(path.read_text(encoding="utf-8")) for path in kept_versions(docs)})
    pages = {
        "atlas.md": atlas_page(atlas.entries, atlas.transformers, link=lambda name: f"{FOLDER}/{name}.md"),
        "gallery.md": _gallery(classes, kept_versions(docs)),
    }
    pictures = {}
    beside = _neighbors(entries[0] for entries in classes.values())
    for name, entries in classes.items():
        pages[f"{FOLDER}/{name}.md"] = _class_page(atlas, entries, changes[name], beside[name])
        if entries[0].head:
            side = atlas.padding_sides.get(entries[0].model_type, "")
            picture = entry_picture(entries[0], atlas.transformers, side)
            pictures[f"{FOLDER}/{name}.svg"] = svg_text(picture)
            pictures[f"{FOLDER}/{name}.narrow.svg"] = svg_text(picture, NARROW)
    return pages, pictures


def _by_class(entries: Iterable[HeadEntry]) -> dict[str, list[HeadEntry]]:
    """The entries of each class, those that were traced first, and of these the families that people use most."""
    found: defaultdict[str, list[HeadEntry]] = defaultdict(list)
    for entry in entries:
        found[entry.class_name].append(entry)
    return {name: sorted(found[name], key=lambda entry: (not entry.traced, by_use(entry))) for name in sorted(found)}


def _changes(versions: dict[str, dict[str, Any]]) -> defaultdict[str, list[str]]:
    """For each class, what changed from one version to the next, in sentences; `versions` from the oldest on."""
    told: defaultdict[str, list[str]] = defaultdict(list)
    for old, new in pairwise(versions):
        for name in versions[old].keys() | versions[new].keys():
            told[name] += [
                f"{new}: {sentence}" for sentence in _change(versions[old].get(name), versions[new].get(name), old)
            ]
    oldest, newest = next(iter(versions)), list(versions)[-1]
    for name in versions[newest]:
        if not told[name] and "reason" not in versions[newest][name]:
            told[name].append(
                f"The head is the same in Transformers {oldest} to {newest}, as far as they were compared."
            )
    return told


def _change(before: dict[str, Any] | None, after: dict[str, Any] | None, old: str) -> Iterator[str]:
    match before, after:
        case None, _:
            yield f"new class, not in {old}"
        case _, None:
            yield f"removed, last seen in {old}"
        case {"reason": _}, {"reason": _}:
            return
        case {"reason": reason}, _:
            yield f"traced; in {old} it was not: {plain(str(reason).partition('; tried: ')[0])}"
        case _, {"reason": reason}:
            yield f"not traced: {plain(str(reason).partition('; tried: ')[0])}"
        case _:
            yield from (f"{what}: {was}, now {now}" for what, was, now in differences(before, after))


# ---- the page of a class


def _neighbors(entries: Iterable[HeadEntry]) -> dict[str, str]:
    """For each class, links to the family's other classes, and to those before and after it in the task's table."""
    tasks: defaultdict[Task, list[HeadEntry]] = defaultdict(list)
    families: defaultdict[str, list[str]] = defaultdict(list)
    for entry in sorted(entries, key=by_use):
        tasks[entry.task].append(entry)
        families[entry.model_type].append(entry.class_name)
    found = {}
    for row in tasks.values():
        for before, entry, after in zip([None, *row], row, [*row[1:], None], strict=False):
            others = [_class_link(name) for name in families[entry.model_type] if name != entry.class_name]
            near = {"before": before, "after": after}
            ends = [f"{word}: {_class_link(item.class_name)}" for word, item in near.items() if item]
            lines = [f"Of the same family: {', '.join(others)}."] if others else []
            found[entry.class_name] = "\n\n".join([*lines, f"In the table {'; '.join(ends)}."] if ends else lines)
    return found


def _class_link(name: str) -> str:
    return f"[{name}]({name}.md)"


def _class_page(atlas: Atlas, entries: Sequence[HeadEntry], changes: Sequence[str], beside: str) -> str:
    entry = entries[0]
    families = ", ".join(f"`{item.model_type}`" for item in entries)
    way = f"[Atlas of heads](../atlas.md) / [{entry.task.value}](../atlas.md#{entry.task.value})"
    parts = [f"# {entry.class_name}", way, f"{_lead(entry)} Family: {families}. Task: {entry.task.value}."]
    if entry.head is None:
        parts.append(
            f"headscope could not trace this class of Transformers {atlas.transformers}: {plain(entry.reason)}"
        )
    else:
        parts += list(_head_parts(entry, entry.head, atlas))
    parts += [
        "## Versions of Transformers",
        "\n".join(f"- {change}" for change in changes) or "Traced in none of the versions that were compared.",
    ]
    parts += ["## Your checkpoint", _your_checkpoint(entry), *(["## Other classes", beside] if beside else [])]
    return "\n\n".join(parts) + "\n"


def _lead(entry: HeadEntry) -> str:
    """What the class reads, in a sentence."""
    if entry.head is None:
        return "Not determined."
    kind = entry.head.pooling.kind
    if kind is PoolingKind.NONE:
        return f"{entry.class_name} scores every position separately: nothing is pooled."
    rule = f": {plain(entry.head.pooling.rule)}" if entry.head.pooling.rule else ""
    return f"{entry.class_name} reads {plain(_pooling_words(entry.head))}{rule}."


_READS = {
    PoolingKind.FIRST_TOKEN: "the first token",
    PoolingKind.LAST_TOKEN: "the last token",
    PoolingKind.LAST_NON_PAD_TOKEN: "the last token that isn't padding",
    PoolingKind.EOS_TOKEN: "the end-of-sequence token",
    PoolingKind.TOKEN_AT: "one token",
    PoolingKind.MEAN: "the mean of all positions",
    PoolingKind.MASKED_MEAN: "the mean of the positions that aren't padding",
    PoolingKind.MAX: "the maximum over the positions",
    PoolingKind.WEIGHTED: "a weighted sum of the positions",
    PoolingKind.SPATIAL_MEAN: "the mean over the image",
    PoolingKind.CONCAT: "several vectors",
    PoolingKind.OTHER: "positions by another rule",
}


def _head_parts(entry: HeadEntry, head: AtlasHead, atlas: Atlas) -> Iterator[str]:
    yield f"```text\n{head.formula}\n```" if head.formula else _NO_FORMULA
    yield f"![{_alternative(entry, head)}]({entry.class_name}.svg)"
    yield "\n".join(
        [
            "| what | in the default configuration |",
            "|---|---|",
            *(f"| {name} | {value} |" for name, value in _facts(entry, head, atlas)),
        ]
    )
    yield " ".join(filter(None, (_TRACED[entry.by or ""], _confirmed(head))))
    tables = [_weights(entry, head)] if head.parameters else []
    inner = "\n\n".join("\n".join(table) for table in (*tables, _operations(head)))
    summary = "<summary>The picture as tables: weights and operations</summary>"
    yield f'<details markdown="1">{summary}\n\n{inner}\n\n</details>'


_NO_FORMULA = (
    "There is no formula: no line of at most 160 characters was proven to give the scores of this head. Its operations "
    "are in the picture and in the table below it."
)


def _alternative(entry: HeadEntry, head: AtlasHead) -> str:
    return f"The head of {entry.class_name}: {operations_of(head)}".replace("]", "")


def _facts(entry: HeadEntry, head: AtlasHead, atlas: Atlas) -> Iterator[tuple[str, str]]:
    measured = entry.task in TEXT_TASKS
    yield "padding", " ".join(_padding(head)) if measured else "Not measured: headscope measures it for text only."
    side = atlas.padding_sides.get(entry.model_type)
    if side:
        yield "tokenizer", f"pads on the {side} by default"
    yield "loss", head.loss if head.loss and head.loss != "none" else "none in `forward`"
    fields = ", ".join(f"`{name}`" for name in entry.depends_on)
    yield "configuration", f"the head reads {fields}" if fields else "the head reads no field"
    if entry.filled:
        yield "set to trace it", ", ".join(f"`{name}`" for name in entry.filled)


_TRACED = {
    "shapes": "headscope ran the class's own `forward` on tensors that have a shape and no numbers, and recorded what "
    "it did.",
    "reduced": "headscope ran the class's own `forward` on a smaller model with random weights, and recorded what it "
    "did.",
    "": "",
}


def _confirmed(head: AtlasHead) -> str:
    """What a second look, at the gradients of the scores, says of the positions that were seen to be read."""
    proof = head.verification
    if proof is None:
        return "This was not compared with gradients."
    if proof.agrees:
        return "Then it ran the head on random values: exactly those positions change the scores."
    words = "could not tell which positions change the scores" if proof.agrees is None else "**contradicts this**"
    return f"A second look, on random values, {words}: {plain(proof.told)}."


def _padding(head: AtlasHead) -> Iterator[str]:
    """What padding a text does to its scores, as measured."""
    effects = head.verification.padding if head.verification else ()
    for effect in effects:
        yield f"On the {effect.side}: {_effect(effect)}."
    if effects:
        yield "Measured on a small model with random weights."
    elif head.pooling.kind is PoolingKind.NONE:
        yield "Every position has its own scores; ignore those of the padding."
    elif any(part.positions.where is Where.ALL for part in head.pooling.parts):
        yield "All positions count, padded ones too."
    else:
        yield "Not measured."


def _effect(effect: PaddingEffect) -> str:
    if effect.changes is None:
        return f"not determined, {plain(effect.reason)}"
    return "changes the scores" if effect.changes else "leaves the scores alone"


def _weights(entry: HeadEntry, head: AtlasHead) -> Iterator[str]:
    after = f"after `{entry.pretraining_class}`" if entry.pretraining_class else "after pretraining"
    yield f"| weight | shape | numbers | {after} |"
    yield "|---|---|---|---|"
    for item in head.parameters:
        yield f"| `{item.name}` | {size_of(item.shape)} | {item.count:,} | {_status(entry, item)} |"


def _status(entry: HeadEntry, item: AtlasParameter) -> str:
    if entry.pretraining_class is None:
        status = "not determined"
    else:
        status = "new: random until trained" if item.name in entry.new_from_pretraining else "loaded"
    return status if item.live else f"{status}; not used by the scores"


def _operations(head: AtlasHead) -> Iterator[str]:
    yield "| operation | module | makes | source |"
    yield "|---|---|---|---|"
    for stage in head.stages:
        module = f"`{stage.module}`" if stage.module else "`forward`"
        shape, source = plain(axes_of(stage.output_shape)), plain(source_of(stage))
        yield f"| `{_code(operation_of(stage))}` | {module} | {shape} | {source} |"


def _code(text: str) -> str:
    """Text for a code span in a table."""
    return text.replace("|", "\\|").replace("`", "'")


def _your_checkpoint(entry: HeadEntry) -> str:
    task = "" if entry.task is Task.SEQUENCE_CLASSIFICATION else f" --task {entry.task.value}"
    return (
        f"A checkpoint can differ from these defaults. To see its head, and which weights it gives:\n\n"
        f"```sh\nheadscope inspect CHECKPOINT{task}\n```\n\n"
        f"`headscope heads {entry.class_name} --json` prints the facts on this page. See [the atlas](../atlas.md) for "
        "the other classes and [the gallery](../gallery.md) for the other kinds of heads."
    )


# ---- the gallery


def _gallery(classes: dict[str, list[HeadEntry]], versions: Sequence[Path]) -> str:
    """One picture for each way in which heads are built."""
    oldest = json.loads(versions[0].read_text(encoding="utf-8")) if versions else {}
    groups = _groups(entry for entries in classes.values() for entry in entries[:1])
    many = sum(len(group) for group in groups)
    parts = [
        "# Gallery of heads",
        f"The heads of the {many} classes that are traced in the [atlas](atlas.md) are built in {len(groups)} ways: "
        "the same positions, then the same operations. Each is shown by one class, the most common first. These are "
        "the heads that people meet most:",
        _cards(_met_most(groups), oldest),
    ]
    for group in groups:
        parts += _exhibit(_representative(group, oldest), group)
    return "\n\n".join(parts) + "\n"


_KNOWN_BEST = ("BertForSequenceClassification", "RobertaForSequenceClassification", "GPT2ForSequenceClassification")
_CARDS = 12


def _met_most(groups: Sequence[Sequence[HeadEntry]]) -> dict[str, Sequence[HeadEntry]]:
    """The groups of the classes that everyone knows, by these, then the largest ones."""
    known = {name: group for name in _KNOWN_BEST for group in groups if any(item.class_name == name for item in group)}
    others = [group for group in groups if not any(group is one for one in known.values())]
    return known | {group[0].class_name: group for group in others[: _CARDS - len(known)]}


def _cards(chosen: dict[str, Sequence[HeadEntry]], oldest: dict[str, Any]) -> str:
    """What each kind of head reads and computes, in letters, with a link to it below."""
    cards = []
    for name, group in chosen.items():
        shown = _representative(group, oldest)
        known = next((entry for entry in group if entry.class_name == name and name in _KNOWN_BEST), shown)
        assert known.head is not None
        link = f'<a href="#{shown.class_name}">{known.class_name.replace("For", "<wbr>For", 1)}</a>'
        kind = "each position separately" if known.head.pooling.kind is PoolingKind.NONE else _pooling_words(known.head)
        formula = f"<code>{escape(known.head.formula or operations_of(known.head))}</code>"
        count = counted(len(group), "class", "classes")
        cards.append(f"<li>{link}<span>{escape(kind)}</span>{formula}<small>{count}</small></li>")
    return "\n".join(('<ul class="cards">', *cards, "</ul>"))


def _pooling_words(head: AtlasHead) -> str:
    return _READS.get(head.pooling.kind, POOLING[head.pooling.kind])


def _groups(entries: Iterable[HeadEntry]) -> list[list[HeadEntry]]:
    """Heads that read the same positions and run the same operations, the largest group first."""
    found: defaultdict[Any, list[HeadEntry]] = defaultdict(list)
    for entry in entries:
        if entry.head:
            places = tuple((part.positions.where, part.positions.index) for part in entry.head.pooling.parts)
            found[entry.head.pooling.kind, places, operations_of(entry.head)].append(entry)
    return sorted(found.values(), key=lambda group: (-len(group), group[0].class_name))


def _representative(group: Sequence[HeadEntry], oldest: dict[str, Any]) -> HeadEntry:
    """A class of the group's most frequent task: one that people use, or that is old, with a short name."""
    tasks = Counter(entry.task for entry in group)
    return min(
        group,
        key=lambda entry: (
            -tasks[entry.task],
            by_use(entry),
            entry.class_name not in oldest,
            len(entry.class_name),
            entry.class_name,
        ),
    )


def _exhibit(shown: HeadEntry, group: Sequence[HeadEntry]) -> Iterator[str]:
    if shown.head is None:
        return
    yield f"## {_title(shown.head)} {{ #{shown.class_name} }}"
    others = len(group) - 1
    more = f"and {counted(others, 'other class', 'other classes')}" if others else "no other class"
    yield f"[{shown.class_name}]({FOLDER}/{shown.class_name}.md), {more}"
    yield f"![{_alternative(shown, shown.head)}]({FOLDER}/{shown.class_name}.svg){{ loading=lazy }}"
    if others:
        names = ", ".join(
            f"[{entry.class_name}]({FOLDER}/{entry.class_name}.md)" for entry in group if entry is not shown
        )
        yield f'<details markdown="1"><summary>The other classes</summary>\n\n{names}\n\n</details>'


def _title(head: AtlasHead) -> str:
    kind = "no pooling" if head.pooling.kind is PoolingKind.NONE else POOLING[head.pooling.kind]
    operations = re.sub(r"^(select|index|mean|slice) > ", "", operations_of(head))
    return plain(f"{kind[:1].upper()}{kind[1:]}: {operations}")
