"""`explain`: rules, poolings, operations, ideas, words on the screens and classes in plain words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headscope.shell.options.calls import use_case
from headscope.shell.shown import Shown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headscope.shared.topics import Topic


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
    from headscope.slices.lookup.class_topics import topics_named

    return Explained(topics_named(topics) if topics else every_topic())
