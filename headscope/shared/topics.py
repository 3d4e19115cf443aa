"""Topics in plain words: rules, poolings, operations, ideas and words on the screens, from Markdown files."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from importlib import resources
from math import log

from headscope.errors import UsageError

GROUPS = {
    "rules": "Rules of check, verify and saves",
    "pooling": "Poolings",
    "operations": "Operations",
    "ideas": "Ideas",
    "terms": "Terms of the field",
    "words": "Words on the screens",
}
"""The files of topics, and what they are called."""
_NEAR, _LONG_NAME = 3, 3
_ALIKE, _SOMEWHAT_ALIKE = 0.75, 0.65
_MOST_WORDS = 0.6
"""A topic with fewer of a question's words, by weight, is probably about something else."""
_WORD = re.compile(r"[a-z0-9]+")
_SMALL_WORDS = (
    "a an and are as at be but can do does for from has have how i in is it my of on or our s t that the their this to "
    "versus vs was were what when where which who why will with you your"
)
_JOINING = frozenset(_SMALL_WORDS.split())
_ENDING = re.compile(r"(?<=\w{3})(?:ings?|ed|e?s|e)$")
_ASKING = re.compile(
    r"^(what(('s| is| are| does))?|why (is|are|does|do)|how (do i|does|to)|explain|is|the|a|an)( (a|an|the|my))?\s+",
    re.I,
)
_ASKED = re.compile(r"\s+(means?|do|stand for)$", re.IGNORECASE)
_HEADING = re.compile(r"^## (?P<names>[^:\n]+): (?P<title>.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic: its group, its id, other names for it, a title, and its text as Markdown."""

    group: str
    id: str
    names: tuple[str, ...]
    title: str
    text: str


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
    asked = _ASKED.sub("", _ASKING.sub("", " ".join(words).strip(" ?!"))).split()
    rest, found = list(words) if _topic_named(" ".join(words)) else asked, list[Topic]()
    while rest:
        ends = range(len(rest), 0, -1)  # the longest name first: `hidden states` is one topic
        longest = next((end for end in ends if _topic_named(" ".join(rest[:end])) is not None), 0)
        named = _topic_named(" ".join(rest[:longest]))
        if named is None and not (found and rest[0].lower() in _JOINING):
            break
        found += [] if named is None else [named]
        rest = rest[longest or 1 :]
    # A long name isn't met by chance: it comes before the topics of single words in it.
    least = _LONG_NAME if found and not rest else 1
    if len(found) != 1 or rest:
        mentioned = _mentioned_topic(" ".join(words), least)
        if mentioned is not None:
            return (mentioned,)
    if not rest and found:
        return tuple(dict.fromkeys(found))
    is_sentence = any(word.lower() in _JOINING for word in words)
    raise _unknown_topic_error(" ".join(words if is_sentence else rest), " ".join(rest), by_name)


def _mentioned_topic(text: str, least: int) -> Topic | None:
    """Finds the topic with the longest name of several words, `least` or more, inside a question or a pasted message.

    A name as it is written comes before one whose words are there in another order, or with other endings.
    """
    words = " ".join(_WORD.findall(text.lower()))
    asked = _stems_of(words)
    names = [(name, " ".join(_WORD.findall(name))) for name in _topics_by_name() if " " in name]
    names = [(name, plain) for name, plain in names if len(_stems_of(plain)) >= least]
    named = [name for name, plain in names if f" {plain} " in f" {words} "]
    named = named or [name for name, plain in names if len(_stems_of(plain)) > 1 and _stems_of(plain) <= asked]
    return _topics_by_name()[max(named, key=lambda name: (len(_stems_of(name)), len(name)))] if named else None


@cache
def _stems_of(text: str) -> frozenset[str]:
    """Gives the words of a text that say what it is about, without their commonest endings."""
    return frozenset(_ENDING.sub("", word) for word in _WORD.findall(text.lower()) if word not in _JOINING)


@cache
def _topics_by_name() -> dict[str, Topic]:
    named = {_plain_spelling(known): topic for topic in topics() for known in _names_of(topic)}
    return dict(_asked_otherwise(named)) | named


def _asked_otherwise(named: dict[str, Topic]) -> Iterator[tuple[str, Topic]]:
    """Reads what people type for a topic beside its names: messages of loaders, fields, misspellings."""
    text = (resources.files("headscope.shared") / "explanations" / "also.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        name, _, phrases = line.partition(": ")
        for phrase in phrases.split(", "):
            yield _plain_spelling(phrase), named[_plain_spelling(name)]


@cache
def _topics_by_letters() -> dict[str, Topic]:
    """Indexes the topics by their names without spaces and without the s of a plural: `LayerNorm`, `label`."""
    # Reversed, so that of two names with the same letters the first one wins, as in the list of topics.
    return {_letters_of(name): topic for name, topic in reversed(_topics_by_name().items())}


def _topic_named(name: str) -> Topic | None:
    """Finds a topic by its name as it is written, or else by the letters alone; None if there is none."""
    return _topics_by_name().get(_plain_spelling(name)) or _topics_by_letters().get(_letters_of(name)) if name else None


def _letters_of(name: str) -> str:
    letters = _plain_spelling(name).replace(" ", "")
    return letters.removesuffix("s") if len(letters) > 3 else letters


def _names_of(topic: Topic) -> tuple[str, ...]:
    """Lists what a topic may be called: id, names, title; a pooling also as people call it, `mean pooling`."""
    names = (topic.id, *topic.names)
    said = tuple(f"{name} pooling" for name in names) if topic.group == "pooling" else ()
    return (*names, topic.title, *said)


def _unknown_topic_error(asked: str, rest: str, by_name: dict[str, Topic]) -> UsageError:
    """Builds the error with the topics nearest to `rest`, the part of the question that names none."""
    wanted = _plain_spelling(rest)
    begun = sorted(known for known in by_name if wanted and known.startswith(wanted))
    inside = [known for known in by_name if wanted and (wanted in known.split() or known in wanted.split())]
    close = [*begun, *get_close_matches(wanted, by_name, n=_NEAR, cutoff=_ALIKE)]
    ids = [*(by_name[known].id for known in close), *_topic_ids_about(asked), *(by_name[known].id for known in inside)]
    ids = ids or [by_name[known].id for known in get_close_matches(wanted, by_name, n=1, cutoff=_SOMEWHAT_ALIKE)]
    near = [f"{id} ({rule_name(id)})" if rule_name(id) else id for id in dict.fromkeys(ids if wanted else ())][:_NEAR]
    hint = f"did you mean {' or '.join(near)}?" if near else "`headscope explain` lists the topics"
    return UsageError(f"no such topic: {asked}", hint)


def _topic_ids_about(wanted: str) -> list[str]:
    """Finds the topics with most of the words, where rare words count more: for a message of a loader, or `lora`.

    Words that no topic holds don't count; if they are more than half, no topic is about the rest.
    """
    held = _words_by_topic()
    words = _stems_of(wanted)
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
    """Indexes what a topic is called, also by people who ask, and its text."""
    called: dict[str, list[str]] = {}
    for name, topic in _topics_by_name().items():
        called.setdefault(topic.id, []).append(name)
    return {item.id: _stems_of(" ".join((*called[item.id], item.text))) for item in topics()}


def _plain_spelling(name: str) -> str:
    """Writes a name in one spelling: lower case, single spaces, without a colon at the end."""
    return " ".join(re.split(r"[\s_-]+", name.strip().rstrip(":").lower()))
