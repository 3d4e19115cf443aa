"""Line of cells for the hidden states on the screen: which positions the class scores read."""

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from headscope.core.words.console import POOLING_STYLE, QUIET, STRONG
from headscope.core.words.lines import Paragraph
from headscope.core.words.safe import safe
from headscope.core.words.tokens import VIRTUAL, CellRow, Mark, has_virtual, meanings_of

_ASCII = {"\N{BLACK UP-POINTING TRIANGLE}": "^"}
_SIGNS = {Mark.READ: "\N{BLACK UP-POINTING TRIANGLE}", Mark.UNTOLD: "?"}
_STYLES = {Mark.READ: POOLING_STYLE, Mark.UNTOLD: "yellow", Mark.BESIDE: QUIET, Mark.PLAIN: ""}
_GAP = "  "
_MOST = 4


@dataclass(frozen=True)
class TokenStrip:
    """`rows` of cells with their legend; nothing for cells without a text, such as the patches of an image."""

    rows: tuple[CellRow, ...]
    margin: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # Without texts the marks alone would say nothing: every patch of an image looks the same.
        if not all(cell.text for row in self.rows for cell in row.cells):
            return
        legend = [f"{_SIGNS[mark]} {meaning}" for mark, meaning in meanings_of(self.rows).items()]
        legend += [VIRTUAL] if has_virtual(self.rows) else []
        legend += [f"{len(self.rows) - _MOST} more parts"] if len(self.rows) > _MOST else []
        for number, row in enumerate(self.rows[:_MOST]):
            line = Text(f"{safe(row.caption)}: " if row.caption else "", overflow="fold")
            cells = (Text(f"{_SIGNS.get(cell.mark, '')}{safe(cell.text)}", _STYLES[cell.mark]) for cell in row.cells)
            line.append_text(Text(_GAP).join(cells))
            if number == min(len(self.rows), _MOST) - 1:
                line.append(f"{_GAP} ({'; '.join(legend)})", QUIET)
            yield Paragraph(_encodable_line(line, options), Text("" if number else "tokens", STRONG), self.margin)


def _encodable_line(line: Text, options: ConsoleOptions) -> Text:
    """Replaces the signs that an encoding other than UTF may lack."""
    if options.encoding.startswith("utf"):
        return line
    shown = line.copy()
    shown.plain = "".join(_ASCII.get(char, char) for char in line.plain)
    return shown
