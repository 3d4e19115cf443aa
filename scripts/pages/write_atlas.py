"""Writes docs/atlas.json and docs/atlas.md from the installed Transformers; with `--check`, compares.

The data holds every entry of `headscope heads --json`, with the effect of padding measured on a small random model of
each class. The page follows from the data, and so do the pages of the classes in the site: see `site_atlas.py`.
"""

import json
import multiprocessing
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from headscope.core.facts.heads.atlas import HeadEntry
from headscope.core.facts.heads.tasks import TEXT_TASKS
from headscope.core.facts.plain import restore, to_dict
from headscope.facts import PaddingEffect, Task
from scripts.generated import write_or_compare
from scripts.pages.atlas_page import atlas_page

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE, DATA = DOCS / "atlas.md", DOCS / "atlas.json"


@dataclass(frozen=True, slots=True)
class Atlas:
    """The entries of one version of Transformers; `padding_sides` holds where each model type's tokenizer pads."""

    transformers: str
    padding_sides: dict[str, str]
    entries: tuple[HeadEntry, ...]


def main(arguments: list[str]) -> int:
    """Writes both files; with `--check` shows the differences instead and returns 1 where there are any."""
    atlas = traced_atlas()
    fresh = atlas_page(atlas.entries, atlas.transformers)
    return write_or_compare(DATA, atlas_text(atlas), arguments) | write_or_compare(PAGE, fresh, arguments)


def read_atlas(docs: Path = DOCS) -> Atlas:
    """The atlas that `docs` keeps."""
    kept = json.loads((docs / DATA.name).read_text(encoding="utf-8"))
    entries = tuple(restore(HeadEntry, entry) for entry in kept["heads"])
    return Atlas(kept["transformers"], kept["padding_sides"], entries)


def atlas_text(atlas: Atlas) -> str:
    """The data as JSON, one entry per line, so that a diff shows which classes changed."""
    lines = ",\n".join(json.dumps(to_dict(entry), sort_keys=True) for entry in atlas.entries)
    sides = json.dumps(atlas.padding_sides, sort_keys=True)
    return f'{{"transformers": "{atlas.transformers}",\n"padding_sides": {sides},\n"heads": [\n{lines}\n]}}\n'


def traced_atlas() -> Atlas:
    """The atlas of the installed Transformers; takes minutes."""
    from headscope import api

    entries = api.heads()
    return Atlas(metadata.version("transformers"), padding_sides(entries), with_padding(entries))


def padding_sides(entries: Iterable[HeadEntry]) -> dict[str, str]:
    """The side on which the tokenizer of each model type pads by default."""
    from headscope.core.model.tokenizers import padding_side_of

    types = {entry.model_type for entry in entries if entry.task in TEXT_TASKS}
    return {model_type: padding_side_of(model_type) for model_type in sorted(types)}


def with_padding(entries: Sequence[HeadEntry]) -> tuple[HeadEntry, ...]:
    """The entries with the effect of padding on their scores."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(mp_context=context) as pool:
        return tuple(pool.map(_with_padding, entries, chunksize=8))


def _with_padding(entry: HeadEntry) -> HeadEntry:
    head = entry.head
    if head is None or head.verification is None or entry.task not in TEXT_TASKS or entry.task in _EACH_TOKEN:
        return entry
    proof = replace(head.verification, padding=_effects(entry))
    return replace(entry, head=replace(head, verification=proof))


_EACH_TOKEN = {Task.TOKEN_CLASSIFICATION, Task.QUESTION_ANSWERING}
"""Tasks with a score for each token: padding adds scores, and there is no single score to compare."""


def _effects(entry: HeadEntry) -> tuple[PaddingEffect, ...]:
    import transformers

    from headscope.core.model.classes.defaults import default_configs
    from headscope.core.model.classes.model_request import Choice
    from headscope.core.source.reading.tracing import padding_effects

    cls = getattr(transformers, entry.class_name)
    config, _ = next(default_configs(entry.model_type))
    text_config = config.get_text_config()
    if getattr(text_config, "pad_token_id", None) is None:
        text_config.pad_token_id = 0  # without one, most classes refuse a batch
    effects = padding_effects(Choice(cls, entry.task, config))
    return tuple(replace(item, difference=_rounded(item.difference)) for item in effects)


def _rounded(difference: float | None) -> float | None:
    """Two digits: the others depend on the processor."""
    return None if difference is None else round(difference, 2)
