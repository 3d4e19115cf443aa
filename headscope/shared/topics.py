"""Topics in plain words: rules, poolings, operations, ideas and words on the screens, from Markdown files."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from importlib import resources
from math import log

from rich.console import Group, RenderableType
from rich.text import Text

from headscope.core.facts import Profile, Severity
from headscope.core.facts.counting import few_of
from headscope.core.facts.plain import to_dict
from headscope.core.facts.verdict import Severities, severities_of
from headscope.core.words.console import SEVERITY, STRONG
from headscope.core.words.document import Document, opening
from headscope.core.words.lines import Paragraph
from headscope.errors import UsageError

GROUPS = {
    "rules": "Rules of check, verify and saves",
    "pooling": "Poolings",
    "operations": "Operations",
    "ideas": "Ideas",
    "words": "Words on the screens",
}
"""The files of topics, and what they are called."""
_COLUMNS = "  what a rule finds for training, then for inference: E error, W warning, N note"
_NEAR = 3
_ALIKE, _SOMEWHAT_ALIKE = 0.75, 0.65
_MOST_WORDS = 0.6
"""A topic with fewer of a question's words, by weight, is probably about something else."""
_WORD = re.compile(r"[a-z0-9]+")
_HEADING = re.compile(r"^## (?P<names>[^:\n]+): (?P<title>.+)$", re.MULTILINE)
_MARK = re.compile(r"\*\*(?P<bold>.+?)\*\*|`(?P<code>.+?)`")


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic: its group, its id, other names for it, a title, and its text as Markdown."""

    group: str
    id: str
    names: tuple[str, ...]
    title: str
    text: str

    @property
    def severities(self) -> Severities | None:
        """Severities that a rule may find; None for a topic that is not a rule."""
        return severities_of(self.id) if self.group == "rules" else None


@cache
def topics() -> tuple[Topic, ...]:
    """Reads every topic, group by group."""
    found = tuple(topic for group in GROUPS for topic in _topics_of(group))
    return tuple(_append_group_list(topic, found) for topic in found)


def _append_group_list(topic: Topic, every: Sequence[Topic]) -> Topic:
    """Appends the list of a group to the text of a topic that is named like the group, such as `pooling`."""
    own = [item for item in every if item.group in (topic.id, *topic.names)]
    if not own:
        return topic
    width = max(len(item.id) for item in own) + 2
    lines = "\n".join(f"{item.id:<{width}}{item.title}" for item in own)
    return replace(topic, text=f"{topic.text}\n\n```text\n{lines}\n```")


def _topics_of(group: str) -> Iterator[Topic]:
    text = (resources.files("headscope.shared") / "explanations" / f"{group}.md").read_text(encoding="utf-8")
    found = list(_HEADING.finditer(text))
    ends = [item.start() for item in found[1:]] + [len(text)]
    for heading, end in zip(found, ends, strict=True):
        names = heading["names"].split() if group == "rules" else heading["names"].split(", ")
        yield Topic(group, names[0], tuple(names[1:]), heading["title"], text[heading.end() : end].strip())


def rule_name(identifier: str) -> str:
    """Gives the short name of a rule, such as `head-new`; "" for one that has no topic."""
    found = (topic.names for topic in topics() if topic.group == "rules" and topic.id == identifier)
    return next((name for names in found for name in names), "")


def find_topics(words: Sequence[str]) -> tuple[Topic, ...]:
    """Finds the topics that the words name: all words together one topic (`hidden states`), or several topics in order.

    Hyphens, underscores and spaces are one.

    Raises UsageError with the nearest topics.
    """
    by_name = _topics_by_name()
    rest, found = list(words), list[Topic]()
    while rest:
        ends = range(len(rest), 0, -1)  # the longest name first: `hidden states` is one topic
        longest = next((end for end in ends if _topic_named(" ".join(rest[:end])) is not None), 0)
        named = _topic_named(" ".join(rest[:longest]))
        if named is None:
            break
        found.append(named)
        rest = rest[longest:]
    if not rest and found:
        return tuple(dict.fromkeys(found))
    raise _unknown_topic_error(" ".join(rest), by_name)


@cache
def _topics_by_name() -> dict[str, Topic]:
    return {_plain_spelling(known): topic for topic in topics() for known in _names_of(topic)}


@cache
def _topics_by_letters() -> dict[str, Topic]:
    """Indexes the topics by their names without spaces and without the s of a plural: `LayerNorm`, `label`."""
    # Reversed, so that of two names with the same letters the first one wins, as in the list of topics.
    return {_letters_of(name): topic for name, topic in reversed(_topics_by_name().items())}


def _topic_named(name: str) -> Topic | None:
    """Finds a topic by its name as it is written, or else by the letters alone; None if there is none."""
    return _topics_by_name().get(_plain_spelling(name)) or _topics_by_letters().get(_letters_of(name)) if name else None


def _letters_of(name: str) -> str:
    return _plain_spelling(name).replace(" ", "").removesuffix("s")


def _names_of(topic: Topic) -> tuple[str, ...]:
    """Lists what a topic may be called: id, names, title; a pooling also as people call it, `mean pooling`."""
    names = (topic.id, *topic.names)
    said = tuple(f"{name} pooling" for name in names) if topic.group == "pooling" else ()
    return (*names, topic.title, *said)


def _unknown_topic_error(name: str, by_name: dict[str, Topic]) -> UsageError:
    wanted = _plain_spelling(name)
    begun = sorted(known for known in by_name if wanted and known.startswith(wanted))
    inside = [known for known in by_name if wanted and (wanted in known.split() or known in wanted.split())]
    close = [*begun, *get_close_matches(wanted, by_name, n=_NEAR, cutoff=_ALIKE)]
    ids = [*(by_name[known].id for known in close), *_topic_ids_about(wanted), *(by_name[known].id for known in inside)]
    ids = ids or [by_name[known].id for known in get_close_matches(wanted, by_name, n=1, cutoff=_SOMEWHAT_ALIKE)]
    near = list(dict.fromkeys(ids if wanted else ()))[:_NEAR]
    hint = f"did you mean {' or '.join(near)}?" if near else "`headscope explain` lists the topics"
    return UsageError(f"no such topic: {name}", hint)


def _topic_ids_about(wanted: str) -> list[str]:
    """Finds the topics with most of the words, where rare words count more: for a message of a loader, or `lora`.

    Words that no topic holds don't count; if they are more than half, no topic is about the rest.
    """
    held = _words_by_topic()
    words = set(_WORD.findall(wanted))
    weights = {word: log(len(held) / number) for word in words if (number := sum(word in own for own in held.values()))}
    if len(weights) * 2 < len(words):
        return []
    shares = {id: sum(weights[word] for word in own & weights.keys()) for id, own in held.items()}
    most = sum(weights.values()) * _MOST_WORDS
    return sorted(
        (id for id, share in shares.items() if share and share >= most), key=lambda id: (-shares[id], len(held[id]))
    )


@cache
def _words_by_topic() -> dict[str, frozenset[str]]:
    return {
        item.id: frozenset(_WORD.findall(_plain_spelling(f"{' '.join(_names_of(item))} {item.text}")))
        for item in topics()
    }


def _plain_spelling(name: str) -> str:
    """Writes a name in one spelling: lower case, single spaces, without a colon at the end."""
    return " ".join(re.split(r"[\s_-]+", name.strip().rstrip(":").lower()))


def topic_screen(topic: Topic) -> RenderableType:
    """Renders a topic."""
    also = f" ({few_of(topic.names)})" if topic.names else ""
    heading = Paragraph(Text(f"{topic.id}{also}: {topic.title}", STRONG))
    before, serving = (severity_words(severities_for(topic, profile)) for profile in Profile)
    finds = f"Severity: {before}" if before == serving else f"Severity: training {before}; inference {serving}"
    return Group(heading, *([Paragraph(Text(finds))] if topic.severities else []), Text(), *_render_blocks(topic.text))


def severity_words(found: Sequence[Severity]) -> str:
    """Writes severities in words."""
    return " or ".join(found) or "nothing"


def _render_blocks(text: str) -> Iterator[RenderableType]:
    """Renders paragraphs wrapped to the width, and code as it is."""
    for number, block in enumerate(_split_blocks(text)):
        if number:
            yield Text()
        if block.startswith("```"):
            # Code will be copied: a line is whole even if it is wider than the screen.
            lines = (Text(f"    {line}", "cyan", no_wrap=True, overflow="ignore") for line in block.splitlines()[1:-1])
            yield from map(Paragraph, lines)
        else:
            yield Paragraph(_style_marks(block))


def _split_blocks(text: str) -> list[str]:
    """Splits at empty lines, but not inside fenced code."""
    parts = re.split(r"(^```.*?^```)", text, flags=re.MULTILINE | re.DOTALL)
    blocks: list[str] = []
    for part in parts:
        blocks += [part] if part.startswith("```") else re.split(r"\n\s*\n", part)
    return [block.strip("\n") for block in blocks if block.strip()]


def _style_marks(block: str) -> Text:
    line = " ".join(block.split())
    text, at = Text(), 0
    for mark in _MARK.finditer(line):
        text.append(line[at : mark.start()])
        text.append(mark["bold"] or mark["code"], STRONG if mark["bold"] else "cyan")
        at = mark.end()
    return text.append(line[at:])


def several_screen(found: Sequence[Topic]) -> RenderableType:
    """Renders topics one below the other."""
    parts: list[RenderableType] = []
    for topic in found:
        parts += [topic_screen(topic), Text()]
    return Group(*parts[:-1])


def topics_screen() -> RenderableType:
    """Renders the list of topics, group by group."""
    parts: list[RenderableType] = []
    for group, name in GROUPS.items():
        own = [topic for topic in topics() if topic.group == group]
        parts += [Paragraph(Text(name, STRONG))]
        parts += [Paragraph(Text(_COLUMNS))] if group == "rules" else []
        width = max(len(_topic_label(topic)) for topic in own) + 4
        parts += [Paragraph(Text(topic.title), Text("  ") + _topic_label(topic), width) for topic in own]
        parts += [Text()]
    return Group(*parts[:-1])


def _topic_label(topic: Topic) -> Text:
    """Writes the id of a topic, for a rule with a column of severities for each profile."""
    label = Text(topic.id)
    for profile in Profile if topic.severities is not None else ():
        found = severities_for(topic, profile)
        label.append("  ")
        for severity in Severity:
            is_found = severity in found
            label.append(severity[0].upper() if is_found else ".", SEVERITY[severity] if is_found else "")
    return label


def severities_for(topic: Topic, profile: Profile) -> Sequence[Severity]:
    """Gives the severities that a rule may find for a profile; nothing for other topics."""
    return topic.severities.of(profile) if topic.severities is not None else ()


def topic_document(topic: Topic) -> Document:
    """Builds the document of `explain TOPIC`."""
    return {
        **opening("explain"),
        "topic": topic.id,
        "names": list(topic.names),
        "group": topic.group,
        "title": topic.title,
        "severities": None if topic.severities is None else to_dict(topic.severities),
        "text": topic.text,
    }


def several_document(found: Sequence[Topic], without: str = "") -> Document:
    """Builds the document of `explain TOPIC TOPIC ...`, without the field `without`."""
    left = {*opening(""), without}
    topics_of = [{name: value for name, value in topic_document(topic).items() if name not in left} for topic in found]
    return {**opening("explain"), "topics": topics_of}


def topics_document() -> Document:
    """Builds the document of `explain` without a topic."""
    return several_document(topics(), without="text")
