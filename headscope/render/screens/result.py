"""Screen of any result, the same as text, and one line for it in a list or a debugger."""

import shutil
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from headscope.facts import CheckpointManifest, Report
from headscope.facts.counting import counted
from headscope.facts.probing.result import ProbeResult
from headscope.facts.results.check import CheckResult
from headscope.facts.results.comparison import Comparison
from headscope.facts.results.edit import EditReport
from headscope.facts.results.engines import EnginesReport
from headscope.facts.results.forward import ForwardReport
from headscope.facts.results.repair import RepairReport
from headscope.facts.results.served import ServedReport
from headscope.facts.results.verification import VerifyResult
from headscope.render.parts.explain import Topic, several_screen
from headscope.render.parts.verdict import tell_verdict
from headscope.render.probing.screen import probe_screen
from headscope.render.probing.words import probe_answer
from headscope.render.screens.check import check_screen, verdict_words
from headscope.render.screens.compare import compare_screen, compare_verdict
from headscope.render.screens.diff import diff_screen
from headscope.render.screens.edit import edit_screen, edit_verdict
from headscope.render.screens.engines import engines_screen, engines_verdict
from headscope.render.screens.forward import forward_screen
from headscope.render.screens.inspect import inspect_screen
from headscope.render.screens.lookup.heads import heads_screen
from headscope.render.screens.repair import repair_screen, repair_verdict
from headscope.render.screens.served import served_screen, served_verdict
from headscope.render.screens.verification import verification_screen, verification_verdict
from headscope.render.text.console import plain_text
from headscope.render.text.safe import safe
from headscope.render.text.words import axes_of, snapshot_lines, snapshot_sentence

_LINE = 160


def result_screen(result: Any) -> RenderableType:  # noqa: PLR0911, PLR0912 - one for each kind of result
    """Renders `result` (of any use case) as the terminal shows it.

    Raises TypeError for anything else.
    """
    match result:
        case CheckResult():
            return check_screen([result], details=True)
        case Comparison():
            return compare_screen(result, details=True)
        case VerifyResult():
            return verification_screen(result)
        case ProbeResult():
            return probe_screen(result, details=True)
        case ForwardReport():
            return forward_screen(result)
        case EditReport():
            return edit_screen(result)
        case RepairReport():
            return repair_screen(result)
        case EnginesReport():
            return engines_screen(result, details=True)
        case ServedReport():
            return served_screen(result)
        case Report():
            is_diff = result.command == "diff-weights"
            return diff_screen(result) if is_diff else inspect_screen(result, details=True)
        case CheckpointManifest():
            return Text(snapshot_sentence(result, getattr(result, "output", "")), overflow="fold")
        case tuple() if result and isinstance(result[0], Topic):
            return several_screen(result)
        case tuple():
            return heads_screen(result)
    raise TypeError(f"not a result: {type(result).__name__}")


def result_text(result: Any, width: int | None = None) -> str:
    """Renders `result_screen` as text without color, as wide as the terminal if no `width` is given."""
    columns = width or shutil.get_terminal_size((100, 24)).columns
    return plain_text(result_screen(result), columns).rstrip("\n")


def result_line(result: Any) -> str:
    """Writes one line of at most 160 characters: `<headscope check of roberta-base: Failed for inference: 1 error>`."""
    line = f"headscope {_one_line(result)}"
    return f"<{line if len(line) <= _LINE else line[: _LINE - 3] + '...'}>"


def _one_line(result: Any) -> str:  # noqa: PLR0911, PLR0912
    match result:
        case CheckResult():
            return f"check of {safe(result.reference)}: {safe(verdict_words(result))}"
        case VerifyResult():
            return f"verify of {safe(result.reference)}: {plain_text(verification_verdict(result)).strip()}"
        case Comparison():
            names = ", ".join(safe(report.checkpoint.reference) for report in result.reports)
            return f"compare of {names}: {plain_text(compare_verdict(result)).strip()}"
        case ProbeResult():
            return f"probe of {safe(result.reference)}: {probe_answer(result)}"
        case EditReport():
            return f"edit of {safe(result.source)}: {plain_text(edit_verdict(result)).strip()}"
        case RepairReport():
            return f"repair of {safe(result.source)}: {plain_text(repair_verdict(result)).strip()}"
        case EnginesReport():
            return f"engines of {safe(result.reference)}: {plain_text(engines_verdict(result)).strip()}"
        case ServedReport():
            return f"verify of {safe(result.reference)}: {plain_text(served_verdict(result)).strip()}"
        case ForwardReport():
            name = safe(result.checkpoint.reference)
            return f"forward of {name}: logits {axes_of(result.logits_shape)} on {safe(result.device)}"
        case Report():
            return f"{result.command} of {safe(result.checkpoint.reference)}: {safe(tell_verdict(result).sentence)}"
        case CheckpointManifest():
            return f"snapshot: {' '.join(snapshot_lines(result, getattr(result, 'output', '')))}"
        case tuple() if result and isinstance(result[0], Topic):
            return f"explain: {', '.join(topic.id for topic in result)}"
        case tuple():
            return f"heads: {counted(len(result), 'class', 'classes')}"
    raise TypeError(f"not a result: {type(result).__name__}")
