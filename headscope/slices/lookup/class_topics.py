"""Finds the topics that words name: those that are written, and others made of a command, a class or a family."""

import re
from collections.abc import Sequence
from difflib import get_close_matches

from headscope.commands import COMMANDS
from headscope.core.facts import Report
from headscope.core.facts.counting import list_of
from headscope.core.facts.heads.atlas import ClassSource
from headscope.core.upstream.class_sources import class_names_defined, find_class_source
from headscope.core.words.plain_words import plain_words
from headscope.core.words.words import POOLING, reads_decoder
from headscope.errors import HeadscopeError, UsageError
from headscope.shared.topics import Topic, find_topics

_CLASS = re.compile(r"[A-Z]\w*[a-z]\w*", re.ASCII)
_MODEL_CLASS = re.compile(r"\w+For[A-Z]\w*", re.ASCII)
_RULE = re.compile(r"HS\d{3}", re.ASCII)
_TASKS = ("Sequence", "Image", "Audio", "Video", "Token")
"""The first words of tasks, the one that a family's name stands for first."""
_CLASSIFIER = re.compile(rf"(?P<family>\w+?)For(?P<task>{'|'.join(_TASKS)})Classification", re.ASCII)
_GROUP = "classes"
_MOST_LINES = 30
_ROLE = re.compile(r":\w+:`~?([^`]*)`")


def topics_named(words: Sequence[str]) -> tuple[Topic, ...]:
    """Finds the topics that the words name, also classes. Raises UsageError with the nearest for an unknown word."""
    try:
        return find_topics(words)
    except UsageError:  # classes and families are looked up last: that reads the sources of libraries
        if len(words) > 1 and not any(_CLASS.fullmatch(word) or _RULE.fullmatch(word) for word in words):
            raise
    return tuple(dict.fromkeys(topic for word in words for topic in _topics_of_word(word)))


def _topics_of_word(word: str) -> tuple[Topic, ...]:
    try:
        return find_topics((word,))
    except UsageError as err:
        of_class = _topic_of_class(word) if _CLASS.fullmatch(word) else None
        topic = _topic_of_command(word) or of_class or _topic_of_family(word)
        if topic is None:
            raise _with_nearest_class(err, word) from err
        return (topic,)


def _topic_of_command(word: str) -> Topic | None:
    """Makes the topic of one of headscope's commands: its purpose and examples."""
    entry = COMMANDS.get(word)
    if entry is None:
        return None
    examples = "\n".join((*entry.examples, f"headscope {word} --help"))
    return Topic("commands", word, (), entry.purpose, f"A command of headscope.\n\n```bash\n{examples}\n```")


def _topic_of_class(name: str) -> Topic | None:
    """Makes the topic of a class of Transformers or PyTorch: its head if it has one, otherwise its code."""
    source = find_class_source(name)
    if source is None:
        return None
    if _MODEL_CLASS.fullmatch(name):
        from headscope.slices.inspect.run import inspect

        try:
            return _model_class_topic(inspect(name, cache=True))
        except HeadscopeError:  # not a classifier, or it needs a package that is not installed
            pass
    return _module_topic(source)


def _topic_of_family(word: str) -> Topic | None:
    """Makes the topic of a family's classifier (`bert`, `GPT2`, `deberta-v2`); None for a word that names no family."""
    letters = re.sub(r"[\s_-]+", "", word).lower()
    named = [match for name in class_names_defined() if (match := _CLASSIFIER.fullmatch(name)) is not None]
    own = {match["task"]: match[0] for match in named if match["family"].lower() == letters}
    name = next((own[task] for task in _TASKS if task in own), None)
    return _topic_of_class(name) if name is not None else None


def _with_nearest_class(err: UsageError, word: str) -> UsageError:
    if _CLASS.fullmatch(word):
        near = get_close_matches(word, class_names_defined(), n=3, cutoff=0.8)
    else:
        named = (_CLASSIFIER.fullmatch(name) for name in class_names_defined())
        near = sorted({found["family"].lower() for found in named if found and found[0].lower().startswith(word)})[:4]
    return UsageError(err.message, f"did you mean {' or '.join(near)}?") if near else err


def _module_topic(source: ClassSource) -> Topic:
    """Explains a class by its source file, the beginning of its docstring, and its `forward`."""
    package = {"torch": "PyTorch", "transformers": "Transformers"}[source.file.partition("/")[0]]
    words = " ".join(_ROLE.sub(r"\1", source.docstring).split("\n\n")[0].split()).replace("`", "")
    text = f"Defined in `{source.file}`, line {source.line}. {words}".strip()
    lines = source.forward.rstrip().splitlines()
    if lines:
        left = [f"# {len(lines) - _MOST_LINES} more lines"] if len(lines) > _MOST_LINES else []
        text += "\n\nWhat it computes:\n\n```python\n" + "\n".join([*lines[:_MOST_LINES], *left]) + "\n```"
    return Topic(_GROUP, source.name, (), f"A class of {package}", text)


def _model_class_topic(report: Report) -> Topic:
    """Explains a model class by the head of its default configuration; no checkpoint is read."""
    name, head = report.model.class_name, report.head
    parts = [f"{report.model.task.value}, in its default configuration; no checkpoint was read."]
    if head is not None:
        weights = list_of((item.name for item in head.parameters if item.live), 6)
        parts += [f"```text\n{head.formula}\n```"] if head.formula else []
        parts += [f"{words}."] if (words := plain_words(report)) else []
        place = ", of the decoder" if reads_decoder(head.pooling) else ""
        parts += [
            f"**Pooling.** `{head.pooling.kind.value}`: {head.pooling.rule or POOLING[head.pooling.kind]}{place}."
        ]
        parts += [f"**Weights of the head.** {weights}."] if weights else []
    parts += [f"`headscope inspect {name}` shows every operation, `headscope diagram {name}` draws it."]
    return Topic(_GROUP, name, (), "A class of Transformers", "\n\n".join(parts))
