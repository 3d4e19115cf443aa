"""Screen of `env`: versions and settings, one to a line."""

import dataclasses

from rich.console import Group, RenderableType
from rich.text import Text

from headscope.facts.results.environment import Surroundings, tool_version
from headscope.render.text.console import STRONG
from headscope.render.text.lines import Paragraph
from headscope.render.text.safe import label

_WORDS = {True: "yes", False: "no"}


def env_screen(surroundings: Surroundings) -> RenderableType:
    """Renders `surroundings`."""
    parts = (surroundings.environment, surroundings.packages, surroundings.settings)
    named = {"headscope": tool_version()} | {
        field.name: getattr(part, field.name) for part in parts for field in dataclasses.fields(part)
    }
    words = ((name, _WORDS[value] if isinstance(value, bool) else value) for name, value in named.items())
    return Group(*(Paragraph(label(word), Text(name, STRONG), 23) for name, word in words))
