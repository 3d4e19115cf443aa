"""Text that wraps between words, keeps its indent and leaves no spaces at the end of a line."""

from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

_LEAST = 24


@dataclass(frozen=True)
class Paragraph:
    """`body` wrapped to the right of a word at the margin, in a column of `indent` characters."""

    body: Text
    margin: Text = field(default_factory=Text)
    indent: int = 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if options.max_width - self.indent < _LEAST and self.margin.cell_len:
            yield Paragraph(Text.assemble(self.margin, " ", self.body))
            return
        lines = self.body.wrap(console, max(options.max_width - self.indent, 1), overflow="fold")
        for number, line in enumerate(lines):
            line.rstrip()
            yield Text.assemble(self._lead(number), line, overflow="fold")

    def _lead(self, number: int) -> Text:
        """The margin of a line: the word on the first, spaces on the others."""
        lead = Text() if number else self.margin.copy()
        lead.pad_right(self.indent - lead.cell_len)
        return lead
