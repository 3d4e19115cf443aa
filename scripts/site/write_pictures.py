"""Writes the pictures in docs/images; with `--check`, compares.

They show a screen of the terminal, the heads of bundled snapshots, and those of the modules in the Python blocks of
docs/questions.md. Links to the site are shown with social.svg as social.png, which resvg makes; the PNG names the
SVG that it was made from, so that `--check` sees without a browser whether it is of an older one.
"""

import contextlib
import hashlib
import io
import os
import re
import struct
import tempfile
import zlib
from pathlib import Path
from typing import Any

from headscope.slices.diagram.layout import NARROW
from headscope.slices.diagram.picture import picture_of
from headscope.slices.diagram.svg import svg_text
from scripts.generated import write_or_compare
from scripts.site.site_finish import in_theme, narrow_name

DOCS = Path(__file__).resolve().parents[2] / "docs"
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
    from headscope import api

    with tempfile.TemporaryDirectory() as empty:
        os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HOME": empty, "HF_HUB_CACHE": empty}
        reports = {name: _report(*wanted) for name, wanted in PICTURES.items()}
        reports |= {name: _report_of_module(*wanted) for name, wanted in MODULES.items()}
        fresh: dict[str, str] = {}
        for name, report in reports.items():
            picture = picture_of(report)
            fresh |= {name: svg_text(picture), narrow_name(name): svg_text(picture, NARROW)}
        fresh |= {"social.svg": _social(fresh["bert-base-uncased.svg"])}
        screens = {"screen.svg": (_COMMAND, reports["roberta-base.svg"])}
        with contextlib.chdir(empty):
            _save_adapter(Path("sentiment-lora"))
            screens["lora.svg"] = (_OF_ADAPTER, api.inspect("./sentiment-lora", offline=True))
        for name, (words, report) in screens.items():
            fresh |= {name: _screen(words, report, _COLUMNS), narrow_name(name): _screen(words, report, _FEW_COLUMNS)}
    FOLDER.mkdir(exist_ok=True)
    status = max(write_or_compare(FOLDER / name, text, arguments) for name, text in fresh.items())
    if _is_made_from(fresh["social.svg"]):
        return status
    if "--check" in arguments:
        print("social.png is of another social.svg than the present one")
        return 1
    _write_png(fresh["social.svg"])
    return 0


_COMMAND = "roberta-base --num-labels 3 --offline"
_OF_ADAPTER = "./sentiment-lora --offline"
_COLUMNS, _FEW_COLUMNS = 80, 46
_TERMINAL = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<title>headscope inspect {words}</title>
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


def _save_adapter(folder: Path) -> None:
    """Saves LoRA on BERT's classifier as PEFT does without a `task_type`: the classifier isn't in it."""
    import torch
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
    from safetensors.torch import save_file
    from transformers import BertConfig, BertForSequenceClassification

    config = LoraConfig(target_modules=["query", "value"])
    with torch.device("meta"):
        state = get_peft_model_state_dict(get_peft_model(BertForSequenceClassification(BertConfig()), config))
    config.base_model_name_or_path = "bert-base-uncased"  # PEFT took it from the model, which has none
    config.save_pretrained(str(folder))
    save_file({name: torch.zeros(item.shape) for name, item in state.items()}, folder / "adapter_model.safetensors")


def _screen(words: str, report: Any, columns: int) -> str:
    """A terminal with the screen of `inspect`; dark, as terminals are on light pages and on dark ones."""
    from rich.console import Console
    from rich.text import Text

    from headscope.slices.inspect.screen import inspect_screen

    console = Console(
        file=io.StringIO(), record=True, force_terminal=True, color_system="truecolor", width=columns, highlight=False,
        markup=False, emoji=False, legacy_windows=False,
    )  # fmt: skip
    console.print(Text.assemble(("$ ", "bold green"), f"headscope inspect {words}"))
    console.print(inspect_screen(report, words=words), Text(), sep="\n")
    drawn = console.export_svg(title="", code_format=_TERMINAL.replace("{words}", words), unique_id="screen")
    return (
        "\n".join(line.strip() for line in drawn.splitlines() if line.strip()).replace("</text><", "</text>\n<") + "\n"
    )


_PNG_HEADER = 33
"""The signature and the chunk that every PNG begins with."""


def _write_png(svg: str) -> None:
    """social.png as resvg draws social.svg, with the name of that SVG behind its header."""
    import resvg_py

    # resvg doesn't know CSS variables and `white-space`.
    values = dict(re.findall(r"(--[\w-]+): ([^;}]+)", svg))
    plain = re.sub(r"var\((--[\w-]+)\)", lambda found: values[found[1]].strip(), svg)
    plain = plain.replace("<text ", '<text xml:space="preserve" ')
    drawn = bytes(
        resvg_py.svg_to_bytes(svg_string=plain, sans_serif_family="DejaVu Sans", monospace_family="DejaVu Sans Mono")
    )
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
