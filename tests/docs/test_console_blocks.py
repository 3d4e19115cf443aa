"""What the docs show of the tool is what it makes now, text and pictures; `--update-golden` writes them anew."""

import os
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from tests import warm

ROOT = Path(__file__).resolve().parents[2]
NAMES = "questions", "pictures", "reference", "rules", "architecture", "benchmarks", "engines", "surface"


def documented_transformers() -> str:
    """The version whose source lines the documents show."""
    lines = (ROOT / "constraints" / "tested.txt").read_text(encoding="utf-8").splitlines()
    return next(line.partition("==")[2] for line in lines if line.startswith("transformers=="))


@pytest.mark.parametrize("name", NAMES)
def test_the_docs_show_what_the_tool_makes(name: str, request: pytest.FixtureRequest) -> None:
    installed = metadata.version("transformers")
    if installed != documented_transformers():
        pytest.skip(f"the documents show source lines of another transformers than {installed}")
    option = [] if request.config.getoption("--update-golden") else ["--check"]
    surroundings = os.environ | warm.offline()
    command = [*warm.python(environment=surroundings), "-m", "scripts.generate", name, *option]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=surroundings)
    assert ran.returncode == 0, ran.stdout + ran.stderr
