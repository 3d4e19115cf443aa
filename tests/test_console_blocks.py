"""The console blocks of the README and the docs show what their commands print; `--update-golden` writes them anew."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "write_questions.py"


def documented_transformers() -> str:
    """The version whose source lines the documents show."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return next(line.partition("==")[2] for line in lines if line.startswith("transformers=="))


def test_every_console_block_shows_what_its_commands_print(request: pytest.FixtureRequest) -> None:
    installed = metadata.version("transformers")
    if installed != documented_transformers():
        pytest.skip(f"the documents show source lines of another transformers than {installed}")
    option = [] if request.config.getoption("--update-golden") else ["--check"]
    ran = subprocess.run([sys.executable, str(SCRIPT), *option], capture_output=True, text=True, check=False, cwd=ROOT)
    assert ran.returncode == 0, ran.stdout + ran.stderr
