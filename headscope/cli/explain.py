"""`headscope explain [TOPIC]`."""

from typing import Annotated

import typer

from headscope.cli.options import Output
from headscope.cli.output import check_output, write_report


def _known(incomplete: str) -> list[str]:
    from headscope.render.explain import topics

    return [topic.id for topic in topics() if topic.id.lower().startswith(incomplete.lower())]


TopicName = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TOPIC]",
        help="A rule (HS102, head-new), a pooling (first_token), an operation, an idea (logits).",
        show_default=False,
        autocompletion=_known,
    ),
]


def explain(output: Output, topic: TopicName = None) -> int:
    """A rule, a pooling, an operation or an idea in plain words; without TOPIC, the list of them."""
    check_output(output.output)
    from headscope.render import explain as pages

    if not topic:
        write_report(output, pages.topics_screen, pages.topics_document)
        return 0
    found = pages.find_topic(" ".join(topic))
    write_report(output, lambda: pages.topic_screen(found), lambda: pages.topic_document(found))
    return 0
