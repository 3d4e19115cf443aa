"""Screen of topics that were explained."""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from headscope.core.facts import Profile, Severity
from headscope.core.facts.counting import few_of
from headscope.core.facts.plain import to_dict
from headscope.core.words.console import SEVERITY, STRONG
from headscope.core.words.document import Document, opening
from headscope.core.words.lines import Paragraph
from headscope.shared.topics import GROUPS, Topic, topics

if TYPE_CHECKING:
    from headscope.checks.rules.rule import Severities


def shown_screen(result: Sequence[Topic]) -> RenderableType:
    """Renders a result as Python shows it."""
    return several_screen(result)


def shown_line(result: Sequence[Topic]) -> str:
    """Writes a result in one line."""
    return f"explain: {', '.join(topic.id for topic in result)}"


_COLUMNS = "  what a rule finds for training, then for inference: E error, W warning, N note"


_MARK = re.compile(r"\*\*(?P<bold>.+?)\*\*|`(?P<code>.+?)`")


def topic_screen(topic: Topic) -> RenderableType:
    """Renders a topic."""
    also = f" ({few_of(topic.names)})" if topic.names else ""
    heading = Paragraph(Text(f"{topic.id}{also}: {topic.title}", STRONG))
    before, serving = (severity_words(severities_for(topic, profile)) for profile in Profile)
    finds = f"Severity: {before}" if before == serving else f"Severity: training {before}; inference {serving}"
    return Group(
        heading, *([Paragraph(Text(finds))] if declared_severities(topic) else []), Text(), *_render_blocks(topic.text)
    )


def declared_severities(topic: Topic) -> "Severities | None":
    """Gives the severities that a rule may find; None for a topic that is not a rule."""
    if topic.group != "rules":
        return None
    from headscope.checks.rules import every_rule  # slow to import, and no other topic needs them

    return every_rule()[topic.id].severities


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
    for profile in Profile if declared_severities(topic) is not None else ():
        found = severities_for(topic, profile)
        label.append("  ")
        for severity in Severity:
            is_found = severity in found
            label.append(severity[0].upper() if is_found else ".", SEVERITY[severity] if is_found else "")
    return label


def severities_for(topic: Topic, profile: Profile) -> Sequence[Severity]:
    """Gives the severities that a rule may find for a profile; nothing for other topics."""
    return () if (own := declared_severities(topic)) is None else own.of(profile)


def topic_document(topic: Topic) -> Document:
    """Builds the document of `explain TOPIC`."""
    severities = declared_severities(topic)
    return {
        **opening("explain"),
        "topic": topic.id,
        "names": list(topic.names),
        "group": topic.group,
        "title": topic.title,
        "severities": None if severities is None else to_dict(severities),
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
