"""Screen of `env`: versions and settings, one to a line."""

import dataclasses

from rich.console import Group, RenderableType
from rich.text import Text

from headscope.core.facts.environment import Surroundings, tool_version
from headscope.core.facts.plain import to_dict
from headscope.core.words.console import STRONG
from headscope.core.words.document import Document, opening
from headscope.core.words.lines import Paragraph
from headscope.core.words.safe import label

_WORDS = {True: "yes", False: "no"}


def env_screen(surroundings: Surroundings) -> RenderableType:
    """Renders `surroundings`."""
    parts = (surroundings.environment, surroundings.packages, surroundings.settings)
    named = {"headscope": tool_version()} | {
        field.name: getattr(part, field.name) for part in parts for field in dataclasses.fields(part)
    }
    words = ((name, _WORDS[value] if isinstance(value, bool) else value) for name, value in named.items())
    return Group(*(Paragraph(label(word), Text(name, STRONG), 23) for name, word in words))


def environment_document(surroundings: Surroundings) -> Document:
    """Builds the document of `env`."""
    return {**opening("env"), **to_dict(surroundings)}
