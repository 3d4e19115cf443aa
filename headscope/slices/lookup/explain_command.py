"""`headscope explain [TOPIC]...`."""

from typing import TYPE_CHECKING, Annotated

import typer

from headscope.errors import UsageError
from headscope.shell.arguments import Pages
from headscope.shell.completion import complete_topic
from headscope.shell.output import write_report

if TYPE_CHECKING:
    from headscope.shared.topics import Topic


TopicName = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TOPIC",
        help="A rule (HS102, head-new), a pooling (first_token), an operation, an idea (logits), a word on a screen, "
        "a term (lora), a class (BertPooler), a family (bert).",
        show_default=False,
        autocompletion=complete_topic,
    ),
]


def _find_topics_named(words: list[str]) -> "tuple[Topic, ...]":
    """Finds the topics that the words name, also classes."""
    # What knows the classes is slow to import, so the written topics come first.
    from headscope.shared.topics import find_topics

    try:
        return find_topics(words)
    except UsageError:
        from headscope.slices.lookup.explaining import topics_named

        return topics_named(words)


def explain_command(output: Pages, topic: TopicName = None) -> int:
    """Explain rules, poolings, operations, ideas, words on the screens or classes; without TOPIC, list them."""
    from headscope.slices.lookup import explained_screen as pages

    if not topic:
        write_report(output, pages.topics_screen, pages.topics_document)
        return 0
    found = _find_topics_named(topic)
    if len(found) == 1:
        write_report(output, lambda: pages.topic_screen(found[0]), lambda: pages.topic_document(found[0]))
    else:
        write_report(output, lambda: pages.several_screen(found), lambda: pages.several_document(found))
    return 0
