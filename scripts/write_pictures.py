"""Writes the pictures in docs/images: `write_pictures.py`, or `--check` to compare.

They show the heads of bundled snapshots, and of the modules in the Python blocks of docs/questions.md. Links to the
site are shown with social.svg as a PNG, which a browser makes: `chromium --headless --hide-scrollbars
--window-size=1200,630 --screenshot=docs/images/social.png docs/images/social.svg`.
"""

import difflib
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from site_finish import in_theme

DOCS = Path(__file__).resolve().parent.parent / "docs"
FOLDER = DOCS / "images"
PICTURES = {
    "bert-base-uncased.svg": ("bert-base-uncased", 3),
    "roberta-base.svg": ("roberta-base", 3),
    "gpt2.svg": ("gpt2", 2),
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
        fresh = {name: _picture(*wanted) for name, wanted in PICTURES.items()}
        fresh |= {"social.svg": _social(fresh["bert-base-uncased.svg"])}
        fresh |= {name: _picture_of_module(*wanted) for name, wanted in MODULES.items()}
    if "--check" in arguments:
        differences = [line for name, text in fresh.items() for line in _difference(name, text)]
        print(*differences, sep="\n", end="\n" if differences else "")
        return int(bool(differences))
    FOLDER.mkdir(exist_ok=True)
    for name, text in fresh.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


def _picture(checkpoint: str, labels: int) -> str:
    from headscope import api, render

    return render.diagram_text(api.inspect(checkpoint, num_labels=labels, offline=True), "svg")


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


def _picture_of_module(name: str, arguments: dict[str, str]) -> str:
    """The head of a module that the block with its class makes."""
    from headscope import api, render

    blocks = _BLOCK.findall((DOCS / "questions.md").read_text(encoding="utf-8"))
    code = next(block for block in blocks if f"class {name}(" in block)
    made: dict[str, Any] = {"__name__": "example"}
    exec(compile(code, "example.py", "exec"), made)
    model = made[name](made["encoder"], num_labels=3, **arguments)
    return render.diagram_text(api.inspect(model, example_inputs=made["inputs"]), "svg")


def _difference(name: str, fresh: str) -> list[str]:
    path = FOLDER / name
    present = path.read_text(encoding="utf-8") if path.exists() else ""
    return list(difflib.unified_diff(present.splitlines(), fresh.splitlines(), name, "now", lineterm=""))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
