"""Writes the pictures in docs/images from bundled snapshots: `write_pictures.py`, or `--check` to compare."""

import difflib
import os
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "images"
PICTURES = {
    "bert-base-uncased.svg": ("bert-base-uncased", 3),
    "roberta-base.svg": ("roberta-base", 3),
    "gpt2.svg": ("gpt2", 2),
}
"""File name: checkpoint and number of labels."""


def main(arguments: list[str]) -> int:
    """Writes the pictures; with `--check` shows the differences instead and returns 1 where there are any."""
    with tempfile.TemporaryDirectory() as empty:
        os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HOME": empty, "HF_HUB_CACHE": empty}
        fresh = {name: _picture(*wanted) for name, wanted in PICTURES.items()}
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


def _difference(name: str, fresh: str) -> list[str]:
    path = FOLDER / name
    present = path.read_text(encoding="utf-8") if path.exists() else ""
    return list(difflib.unified_diff(present.splitlines(), fresh.splitlines(), name, "now", lineterm=""))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
