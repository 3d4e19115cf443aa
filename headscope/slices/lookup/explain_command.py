"""`headscope explain [TOPIC]...`."""

from typing import Annotated

import typer

from headscope.shell.arguments import Pages
from headscope.shell.completion import complete_topic
from headscope.shell.output import write_report

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


def explain_command(output: Pages, topic: TopicName = None) -> int:
    """Explain rules, poolings, operations, ideas, words on the screens or classes; without TOPIC, list them."""
    from headscope.slices.lookup import explained_screen as pages

    if not topic:
        write_report(output, pages.topics_screen, pages.topics_document)
        return 0
    from headscope.slices.lookup.class_topics import topics_named

    found = topics_named(topic)
    if len(found) == 1:
        write_report(output, lambda: pages.topic_screen(found[0]), lambda: pages.topic_document(found[0]))
    else:
        write_report(output, lambda: pages.several_screen(found), lambda: pages.several_document(found))
    return 0
