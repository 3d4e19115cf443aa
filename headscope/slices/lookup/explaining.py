"""`explain`: rules, poolings, operations, ideas, words on the screens and classes in plain words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from headscope.errors import HeadscopeError, UsageError
from headscope.shell.options.calls import use_case
from headscope.shell.shown import Shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headscope.shared.topics import Topic

_CLASS = re.compile(r"[A-Z]\w*[a-z]\w*", re.ASCII)
_MODEL_CLASS = re.compile(r"\w+For[A-Z]\w*", re.ASCII)
_RULE = re.compile(r"HS\d{3}", re.ASCII)
_TASKS = ("Sequence", "Image", "Audio", "Video", "Token")
"""The first words of tasks, the one that a family's name stands for first."""
_CLASSIFIER = re.compile(rf"(?P<family>\w+?)For(?P<task>{'|'.join(_TASKS)})Classification", re.ASCII)


class Explained(Shown, tuple["Topic", ...]):
    """The result of `explain`: the topics, in order."""

    __slots__ = ()

    def __new__(cls, topics: Iterable[Topic] = ()) -> Explained:
        """A tuple of `topics`."""
        return super().__new__(cls, tuple(topics))


@use_case
def explain(*topics: str) -> Explained:
    """Explains rules, poolings, operations, ideas, terms, words on the screens, classes, or families of models.

    Args:
        *topics: IDs or names, such as `"HS102"`, `"first_token"`, `"lora"`, `"BertPooler"` or `"bert"`. Without any,
            every topic is returned, but for classes and families.

    Returns:
        The topics in the given order, each with its `id`, `names`, `title` and `text` (Markdown).

    Raises:
        UsageError: There is no such topic.

    Example:
        >>> import headscope
        >>> [topic.title for topic in headscope.explain("HS102")]
        ['The head is newly initialized']
    """
    from headscope.shared.topics import topics as every_topic

    return Explained(topics_named(topics) if topics else every_topic())


def topics_named(words: Sequence[str]) -> tuple[Topic, ...]:
    """Finds the topics that the words name, also classes. Raises UsageError with the nearest for an unknown word."""
    from headscope.shared.topics import find_topics

    try:
        return find_topics(words)
    except UsageError:  # classes and families are looked up last: that reads the sources of libraries
        if len(words) > 1 and not any(_CLASS.fullmatch(word) or _RULE.fullmatch(word) for word in words):
            raise
    return tuple(dict.fromkeys(topic for word in words for topic in _topics_of_word(word)))


def _topics_of_word(word: str) -> tuple[Topic, ...]:
    from headscope.shared.topics import find_topics

    try:
        return find_topics((word,))
    except UsageError as err:
        topic = _topic_of_command(word) or (_topic_of_class(word) if _CLASS.fullmatch(word) else None)
        topic = topic or _topic_of_family(word)
        if topic is None:
            raise _with_nearest_class(err, word) from err
        return (topic,)


def _topic_of_command(word: str) -> Topic | None:
    """Makes the topic of one of headscope's commands: its purpose and examples."""
    from headscope.commands import COMMANDS
    from headscope.shared.topics import Topic

    entry = COMMANDS.get(word)
    if entry is None:
        return None
    examples = "\n".join((*entry.examples, f"headscope {word} --help"))
    return Topic("commands", word, (), entry.purpose, f"A command of headscope.\n\n```bash\n{examples}\n```")


def _topic_of_class(name: str) -> Topic | None:
    """Makes the topic of a class of Transformers or PyTorch: its head if it has one, otherwise its code."""
    from headscope.core.upstream.class_sources import find_class_source
    from headscope.slices.lookup.class_topics import model_class_topic, module_topic

    source = find_class_source(name)
    if source is None:
        return None
    if _MODEL_CLASS.fullmatch(name):
        from headscope.slices.inspect.run import inspect

        try:
            return model_class_topic(inspect(name, cache=True))
        except HeadscopeError:  # not a classifier, or it needs a package that is not installed
            pass
    return module_topic(source)


def _topic_of_family(word: str) -> Topic | None:
    """Makes the topic of a family's classifier (`bert`, `GPT2`, `deberta-v2`); None for a word that names no family."""
    from headscope.core.upstream.class_sources import class_names_defined

    letters = re.sub(r"[\s_-]+", "", word).lower()
    named = [match for name in class_names_defined() if (match := _CLASSIFIER.fullmatch(name)) is not None]
    own = {match["task"]: match[0] for match in named if match["family"].lower() == letters}
    name = next((own[task] for task in _TASKS if task in own), None)
    return _topic_of_class(name) if name is not None else None


def _with_nearest_class(err: UsageError, word: str) -> UsageError:
    from difflib import get_close_matches

    from headscope.core.upstream.class_sources import class_names_defined

    if _CLASS.fullmatch(word):
        near = get_close_matches(word, class_names_defined(), n=3, cutoff=0.8)
    else:
        named = (_CLASSIFIER.fullmatch(name) for name in class_names_defined())
        near = sorted({found["family"].lower() for found in named if found and found[0].lower().startswith(word)})[:4]
    return UsageError(err.message, f"did you mean {' or '.join(near)}?") if near else err
