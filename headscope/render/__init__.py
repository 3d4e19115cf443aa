"""Facts to text: screens, tables, JSON. Doesn't import torch or use the network."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headscope.render.diagram import diagram_screen as diagram_screen
    from headscope.render.diagram import diagram_text as diagram_text
    from headscope.render.diff import diff_screen as diff_screen
    from headscope.render.document import diff_document as diff_document
    from headscope.render.document import environment_document as environment_document
    from headscope.render.document import error_document as error_document
    from headscope.render.document import inspect_document as inspect_document
    from headscope.render.document import json_text as json_text
    from headscope.render.document import snapshot_document as snapshot_document
    from headscope.render.env import env_screen as env_screen
    from headscope.render.forward import forward_document as forward_document
    from headscope.render.forward import forward_screen as forward_screen
    from headscope.render.heads import heads_document as heads_document
    from headscope.render.heads import heads_names as heads_names
    from headscope.render.heads import heads_screen as heads_screen
    from headscope.render.inspect import inspect_screen as inspect_screen
    from headscope.render.inspect import inspect_verdict as inspect_verdict
    from headscope.render.notebook import result_html as result_html
    from headscope.render.screen import result_line as result_line
    from headscope.render.screen import result_screen as result_screen
    from headscope.render.screen import result_text as result_text
    from headscope.render.verdict import is_missing_weights as is_missing_weights
    from headscope.render.verdict import tell_verdict as tell_verdict
    from headscope.render.verdict import verdict_screen as verdict_screen
    from headscope.render.words import snapshot_sentence as snapshot_sentence

_HOMES = {
    "forward_document": "forward",
    "forward_screen": "forward",
    "heads_document": "heads",
    "heads_names": "heads",
    "heads_screen": "heads",
    "diagram_screen": "diagram",
    "diagram_text": "diagram",
    "diff_document": "document",
    "diff_screen": "diff",
    "env_screen": "env",
    "environment_document": "document",
    "error_document": "document",
    "inspect_document": "document",
    "inspect_screen": "inspect",
    "inspect_verdict": "inspect",
    "is_missing_weights": "verdict",
    "json_text": "document",
    "result_html": "notebook",
    "result_line": "screen",
    "result_screen": "screen",
    "result_text": "screen",
    "snapshot_document": "document",
    "snapshot_sentence": "words",
    "tell_verdict": "verdict",
    "verdict_screen": "verdict",
}


def __getattr__(name: str) -> Any:
    """Each name from its home, imported on first use: JSON needs no Rich."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
