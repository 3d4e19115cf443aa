"""Screen of `cache`: what headscope keeps on disk, and what was not looked at."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from headscope.core.facts.counting import counted
from headscope.core.facts.plain import to_dict
from headscope.core.facts.stored.disk_usage import DiskUsage
from headscope.core.words.console import QUIET, STRONG, TONE, Tone
from headscope.core.words.document import Document, opening
from headscope.core.words.lines import Paragraph
from headscope.core.words.safe import label, safe
from headscope.core.words.words import bytes_of

_KINDS = {
    "reports": "examined checkpoints",
    "evidence": "what rules read from checkpoints",
    "numbers": "statistics of base model weights",
    "runs": "results of trial runs",
    "others": "entries of another version of headscope",
    "key": "signs the entries",
}


def cache_screen(usage: DiskUsage) -> RenderableType:
    """Renders `usage`."""
    lines = (Paragraph(body, Text(name, STRONG), 13) for name, body in _cache_lines(usage))
    return Group(cache_verdict(usage), Text(), *lines)


def cache_verdict(usage: DiskUsage) -> Text:
    """Says in one sentence what is kept, or what was removed."""
    amount = f"{counted(usage.entries, 'file')}, {bytes_of(usage.bytes)}"
    if usage.not_determined:
        what = f"Not everything was removed: {amount} removed" if usage.cleared else "The cache can't be read"
        return Text(what, TONE[Tone.WARNING])
    if not usage.entries:
        return Text("Nothing to remove: the cache is empty" if usage.cleared else "The cache is empty")
    return Text(f"Removed {amount}" if usage.cleared else f"The cache holds {amount}")


def _cache_lines(usage: DiskUsage) -> Iterator[tuple[str, Text]]:
    yield "folder", Text(safe(usage.folder) if usage.folder else "none: there is no home folder")
    for kind in usage.kinds:
        amount = f"{counted(kind.entries, 'file')}, {bytes_of(kind.bytes)}"
        yield kind.name, Text.assemble(amount, (f"  {_KINDS[kind.name]}", QUIET))
    if not usage.is_on:
        yield "off", Text("HEADSCOPE_NO_CACHE is set, so nothing is read or added")
    most = f"{usage.most_entries} entries or {bytes_of(usage.most_bytes)}"
    yield "limit", Text(f"{most}; beyond that, those that were not used for the longest time are removed")
    shipped = usage.shipped
    amount = f"{counted(shipped.entries, 'entry', 'entries')}, {bytes_of(shipped.bytes)}"
    yield "shipped", Text.assemble(amount, ("  structures in the package, which --clear keeps", QUIET))
    for gap in usage.not_determined:
        yield "unknown", label(f"{gap.topic}: {gap.reason}", "yellow")
    for number, gap in enumerate(usage.not_read):
        yield "" if number else "not counted", label(f"{gap.topic}: {gap.reason}")


def cache_document(usage: DiskUsage) -> Document:
    """Builds the document of `cache`."""
    return {**opening("cache"), **to_dict(usage)}
