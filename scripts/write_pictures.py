"""Writes the pictures in docs/images: `write_pictures.py`, or `--check` to compare.

They show a screen of the terminal, the heads of bundled snapshots, and those of the modules in the Python blocks of
docs/questions.md. Links to the site are shown with social.svg as social.png, which Chromium makes; the PNG names the
SVG that it was made from, so that `--check` sees without a browser whether it is of an older one.
"""

import difflib
import hashlib
import io
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

from site_finish import in_theme, narrow_name

from headscope.slices.diagram.layout import NARROW
from headscope.slices.diagram.picture import picture_of
from headscope.slices.diagram.svg import svg_text

DOCS = Path(__file__).resolve().parent.parent / "docs"
FOLDER = DOCS / "images"
PICTURES = {
    "bert-base-uncased.svg": ("bert-base-uncased", 3),
    "roberta-base.svg": ("roberta-base", 3),
    "gpt2.svg": ("gpt2", 3),
}
"""File name: checkpoint and number of labels."""
MODULES = {
    "last-four-layers.svg": ("LastFourLayers", {}),
    "mean-of-tokens.svg": ("PooledDistilBert", {"pooling": "mean"}),
}
"""File name: the class in a block of docs/questions.md, and its arguments besides the encoder and the labels."""
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def main(arguments: list[str]) -> int:
    """Writes the pictures; with `--check` shows the differences instead and returns 1 where there are any."""
    with tempfile.TemporaryDirectory() as empty:
        os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HOME": empty, "HF_HUB_CACHE": empty}
        reports = {name: _report(*wanted) for name, wanted in PICTURES.items()}
        reports |= {name: _report_of_module(*wanted) for name, wanted in MODULES.items()}
        fresh: dict[str, str] = {}
        for name, report in reports.items():
            picture = picture_of(report)
            fresh |= {name: svg_text(picture), narrow_name(name): svg_text(picture, NARROW)}
        fresh |= {"social.svg": _social(fresh["bert-base-uncased.svg"])}
        fresh |= {"screen.svg": _screen(_COLUMNS), narrow_name("screen.svg"): _screen(_FEW_COLUMNS)}
    if "--check" in arguments:
        differences = [line for name, text in fresh.items() for line in _difference(name, text)]
        differences += [] if _is_made_from(fresh["social.svg"]) else [_OLDER]
        print(*differences, sep="\n", end="\n" if differences else "")
        return int(bool(differences))
    FOLDER.mkdir(exist_ok=True)
    for name, text in fresh.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    if not _is_made_from(fresh["social.svg"]):
        browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
        if browser is None:
            print(f"{_OLDER}; none of {', '.join(_BROWSERS)} is installed to make it", file=sys.stderr)
            return 1
        _write_png(browser, fresh["social.svg"])
    return 0


_COMMAND = "roberta-base --num-labels 3 --offline"
_COLUMNS, _FEW_COLUMNS = 80, 46
_TERMINAL = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<title>headscope inspect roberta-base --num-labels 3</title>
<style>
.{unique_id}-matrix {{
font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", "Liberation Mono", monospace;
font-size: {char_height}px; line-height: {line_height}px
}}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""Rich's own, but for its font: that comes from a server, which GitHub doesn't ask, so the reader's own is used."""


def _screen(columns: int) -> str:
    """A terminal with the screen of `inspect`; dark, as terminals are on light pages and on dark ones."""
    from rich.console import Console
    from rich.text import Text

    from headscope import api
    from headscope.slices.inspect.screen import inspect_screen

    console = Console(
        file=io.StringIO(), record=True, force_terminal=True, color_system="truecolor", width=columns, highlight=False,
        markup=False, emoji=False, legacy_windows=False,
    )  # fmt: skip
    console.print(Text.assemble(("$ ", "bold green"), f"headscope inspect {_COMMAND}"))
    console.print(
        inspect_screen(api.inspect("roberta-base", num_labels=3, offline=True), words=_COMMAND), Text(), sep="\n"
    )
    drawn = console.export_svg(title="", code_format=_TERMINAL, unique_id="screen")
    return (
        "\n".join(line.strip() for line in drawn.splitlines() if line.strip()).replace("</text><", "</text>\n<") + "\n"
    )


_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_OLDER = "social.png is of another social.svg than the present one"
_PNG_HEADER = 33
"""The signature and the chunk that every PNG begins with."""


def _write_png(browser: str, svg: str) -> None:
    """social.png as the browser draws social.svg, with the name of that SVG behind its header."""
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "social.png"
        command = [browser, "--headless", "--no-sandbox", "--hide-scrollbars", f"--user-data-dir={folder}/profile"]
        command += ["--window-size=1200,630", f"--screenshot={shot}", (FOLDER / "social.svg").as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        drawn = shot.read_bytes()
    (FOLDER / "social.png").write_bytes(drawn[:_PNG_HEADER] + _source_chunk(svg) + drawn[_PNG_HEADER:])


def _is_made_from(svg: str) -> bool:
    """Whether social.png names this SVG as what it was made from."""
    path = FOLDER / "social.png"
    return path.exists() and _source_chunk(svg) in path.read_bytes()


def _source_chunk(svg: str) -> bytes:
    """A text chunk of a PNG that names an SVG by its digest."""
    body = b"tEXtSource\0sha256 " + hashlib.sha256(svg.encode()).hexdigest().encode()
    return struct.pack(">I", len(body) - len(b"tEXt")) + body + struct.pack(">I", zlib.crc32(body))


def _report(checkpoint: str, labels: int) -> Any:
    from headscope import api

    return api.inspect(checkpoint, num_labels=labels, offline=True)


_SOCIAL = """<svg xmlns="http://www.w3.org/2000/svg" width="1200" height="630" viewBox="0 0 1200 630">
<rect width="1200" height="630" fill="#fff"/>
<g font-family="Helvetica,Arial,'Liberation Sans',sans-serif" fill="#1c2128">
<text x="56" y="180" font-size="64" font-weight="700" style="font-family:inherit">headscope</text>
<text x="56" y="264" font-size="34" style="font-family:inherit">What turns hidden states</text>
<text x="56" y="310" font-size="34" style="font-family:inherit">into class scores, and which</text>
<text x="56" y="356" font-size="34" style="font-family:inherit">of those weights did the</text>
<text x="56" y="402" font-size="34" style="font-family:inherit">checkpoint really give you?</text>
</g>
{picture}</svg>
"""


def _social(picture: str) -> str:
    """The picture that other sites show with a link: what the tool does, beside a head, in a light theme."""
    placed = re.sub(
        r'<svg ([^>]*?)width="[^"]*" height="[^"]*"',
        r'<svg \1x="580" y="24" width="600" height="582"',
        in_theme(picture, "light"),
        count=1,
    )
    return _SOCIAL.format(picture=placed)


def _report_of_module(name: str, arguments: dict[str, str]) -> Any:
    """The report on a module that the block with its class makes."""
    from headscope import api

    blocks = _BLOCK.findall((DOCS / "questions.md").read_text(encoding="utf-8"))
    code = next(block for block in blocks if f"class {name}(" in block)
    made: dict[str, Any] = {"__name__": "example"}

    exec(compile(code, "example.py", "exec"), made)
    model = made[name](made["encoder"], num_labels=3, **arguments)
    return api.inspect(model, example_inputs=made["inputs"])


def _difference(name: str, fresh: str) -> list[str]:
    path = FOLDER / name
    present = path.read_text(encoding="utf-8") if path.exists() else ""
    return list(difflib.unified_diff(present.splitlines(), fresh.splitlines(), name, "now", lineterm=""))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
