"""Code that cures a finding, for the checkpoint that was checked: it changes the settings in its folder."""

from collections.abc import Iterator

from headscope.checks.facts import Subject
from headscope.core.facts import CheckpointKind
from headscope.core.facts.stored.checkpoint import WEIGHT_SUFFIXES


def settings_code(subject: Subject, *, tokenizer: str = "", config: str = "") -> str:
    """Writes Python code that sets attributes of the tokenizer, then of the configuration, and saves both.

    Each is an assignment after the dot, such as `padding_side = "left"`. Gives "" for what has no folder on this
    machine, brings its own code, or has no tokenizer.
    """
    place = subject.report.checkpoint
    is_folder = place.kind is CheckpointKind.LOCAL and not place.reference.endswith(tuple(WEIGHT_SUFFIXES))
    if not is_folder or subject.config.has_auto_map or subject.tokenizer is None:
        return ""
    return "\n".join(_code_lines(place.reference, tokenizer, config))


def _code_lines(folder: str, tokenizer: str, config: str) -> Iterator[str]:
    yield f"from transformers import {'AutoConfig, ' if config else ''}AutoTokenizer"
    yield f"folder = {folder!r}"
    yield "tokenizer = AutoTokenizer.from_pretrained(folder)"
    if tokenizer:
        yield f"tokenizer.{tokenizer}"
        yield "tokenizer.save_pretrained(folder)"
    if config:
        yield "config = AutoConfig.from_pretrained(folder)"
        yield f"config.{config}"
        yield "config.save_pretrained(folder)"
