"""The command line as a process: exit codes, and how little it imports."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headscope.errors import ExitCode

HEAVY = ("torch", "transformers", "huggingface_hub", "tokenizers", "numpy", "safetensors")
ROOT = Path(__file__).parents[2]
_IMPORT = re.compile(r"^import time:.*\| +(\S+)$", re.MULTILINE)


def run(*arguments: str, flags: tuple[str, ...] = (), **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *flags, "-m", "headscope", *arguments],
        capture_output=True, text=True, check=False, timeout=60, env=os.environ | variables, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def imported_packages(ended: subprocess.CompletedProcess[str]) -> set[str]:
    """What a process imported that ran with `-X importtime`."""
    return {name.partition(".")[0] for name in _IMPORT.findall(ended.stderr)}


LIGHT: tuple[tuple[str, ...], ...] = (
    ("--help",),
    ("inspect", "--help"),
    ("diagram", "--help"),
    ("--version",),
    ("inspect",),
    ("--bogus",),
    *(
        (command, "gpt2", "--task", "token-classifcation")
        for command in ("inspect", "diff-weights", "forward", "diagram", "check", "heads", "scan")
    ),
    ("compare", "gpt2", "gpt2", "--task", "token-classifcation"),
    ("heads", "--pooling", "meen"),
    ("check", "BertForSequenceClassification"),
    ("cache",),
    ("cache", "--json"),
)


@pytest.mark.parametrize("arguments", LIGHT, ids=" ".join)
def test_what_needs_no_model_imports_no_library_of_models(arguments: tuple[str, ...]) -> None:
    imported = imported_packages(run(*arguments, flags=("-X", "importtime")))
    assert "headscope" in imported
    assert imported.isdisjoint(HEAVY)


def test_help_imports_neither_facts_nor_screens() -> None:
    imported = _IMPORT.findall(run("--help", flags=("-X", "importtime")).stderr)
    own = {name for name in imported if name.startswith("headscope.")}
    # Folders run nothing but their docstring.
    run_anything = {name for name in own if not (ROOT / name.replace(".", "/")).is_dir()}
    of_rooms = {name for name in run_anything if not name.startswith(("headscope.shell.", "headscope.slices."))}
    assert of_rooms == {
        "headscope.checks.options",
        "headscope.commands",
        "headscope.core.upstream.python",
        "headscope.errors",
        "headscope.shared.report.status",
        "headscope.shared.serving.options",
    }
    assert {name.rpartition(".")[2] for name in run_anything if ".slices." in name} == {"options"}
    assert "headscope.shell.options.calls" not in own


def test_an_encoding_without_the_characters_shows_escapes() -> None:
    ended = run("inspect", "x", "--labels", "é正,é正", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert ended.returncode == ExitCode.USAGE
    assert "\\xe9\\u6b63" in ended.stderr
