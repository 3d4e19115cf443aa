"""Results that show themselves, as text, in a Rich console and in a notebook, and that become tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from rich.jupyter import JupyterMixin

if TYPE_CHECKING:
    from rich.console import RenderableType


class Shown(JupyterMixin):
    """Shows a result: `str` is its screen, `repr` one short line; Rich shows the screen in a notebook."""

    __slots__ = ()

    def __str__(self) -> str:
        from headscope.shell.result_screen import result_text

        return result_text(self)

    def __repr__(self) -> str:
        from headscope.shell.result_screen import result_line

        return result_line(self)

    def __rich__(self) -> RenderableType:
        from headscope.shell.result_screen import result_screen

        return result_screen(self)

    def _repr_mimebundle_(self, include: Sequence[str], exclude: Sequence[str], **given: Any) -> dict[str, str]:
        # Rich types the mixin for classes with another of its protocols, and takes `__rich__` as well.
        bundle = super()._repr_mimebundle_(include, exclude, **given)  # type: ignore[misc]
        # Rich's plain text holds codes of a terminal; it is what a shell shows and what a notebook saves.
        return bundle | ({"text/plain": repr(self)} if "text/plain" in bundle else {})


def fields_of(fact: Any) -> dict[str, Any]:
    """Gives the fields of a dataclass by name, to make one of another class that has them too."""
    return {field.name: getattr(fact, field.name) for field in fields(fact)}
