"""`headscope explain [TOPIC]...`."""

from typing import Annotated

import typer

from headscope.cli.options import Pages
from headscope.cli.output import check_output, write_report


def _known(incomplete: str) -> list[str]:
    from headscope.render.parts.explain import topics

    return [topic.id for topic in topics() if topic.id.lower().startswith(incomplete.lower())]


TopicName = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TOPIC",
        help="A rule (HS102, head-new), a pooling (first_token), an operation, an idea (logits).",
        show_default=False,
        autocompletion=_known,
    ),
]


def explain_command(output: Pages, topic: TopicName = None) -> int:
    """Explain rules, poolings, operations or ideas; without TOPIC, list them."""
    check_output(output.output)
    from headscope.render.parts import explain as pages

    if not topic:
        write_report(output, pages.topics_screen, pages.topics_document)
        return 0
    found = pages.find_topics(topic)
    if len(found) == 1:
        write_report(output, lambda: pages.topic_screen(found[0]), lambda: pages.topic_document(found[0]))
    else:
        write_report(output, lambda: pages.several_screen(found), lambda: pages.several_document(found))
    return 0
