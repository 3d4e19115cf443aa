"""Links from a screen to the lines of source that were seen, for terminals that show links."""

import re

from rich.style import Style
from rich.text import Text

from headscope.facts import Stage
from headscope.render.head.stages import source_of
from headscope.render.text.console import QUIET
from headscope.render.text.safe import safe

_SOURCES = "https://github.com/huggingface/transformers/blob/v{version}/src/{file}#L{line}"
_RELEASE = re.compile(r"\d+\.\d+\.\d+(\.post\d+)?")


def source_url(file: str, line: int, version: str) -> str:
    """The page of a line of Transformers' source in that release; "" for other code and for development versions."""
    is_known = file.startswith("transformers/") and _RELEASE.fullmatch(version)
    return _SOURCES.format(version=version, file=file, line=line) if is_known else ""


def linked_source(stage: Stage, version: str, *, short: bool) -> Text:
    """Where a stage was seen; `short` leaves out the file's name. Rich writes the link on terminals only."""
    words = f":{stage.line}" if short and stage.file else source_of(stage)
    url = source_url(stage.file, stage.line, version)
    style = Style.parse(QUIET) + Style(link=url) if url else Style.parse(QUIET)
    return Text(safe(words), style, overflow="fold")
