"""`explain`: rules, poolings, operations and ideas in plain words."""

from __future__ import annotations

from headscope.api.arguments import use_case
from headscope.api.results.shown import Explained


@use_case
def explain(*topics: str) -> Explained:
    """Explains rules, poolings, operations or ideas.

    Args:
        *topics: IDs or names, such as `"HS102"`, `"first_token"`, `"tanh"` or `"logits"`. Without any, every topic is
            returned.

    Returns:
        The topics in the given order, each with its `id`, `names`, `title` and `text` (Markdown).

    Raises:
        UsageError: There is no such topic.

    Example:
        >>> import headscope
        >>> [topic.title for topic in headscope.explain("HS102")]
        ['The head is newly initialized']
    """
    from headscope.render.parts.explain import find_topics
    from headscope.render.parts.explain import topics as every_topic

    return Explained(find_topics(topics) if topics else every_topic())
