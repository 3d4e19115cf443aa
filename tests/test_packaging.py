"""The wheel: what a user installs is whole, and names what it needs."""

import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from the checkout; the build backend is fetched if it is not installed."""
    folder = tmp_path_factory.mktemp("wheel")
    build = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert build.returncode == 0, build.stderr
    (file,) = folder.glob("*.whl")
    return zipfile.ZipFile(file)


def member(wheel: zipfile.ZipFile, name: str) -> str:
    (path,) = (path for path in wheel.namelist() if path.endswith(f".dist-info/{name}"))
    return wheel.read(path).decode()


def test_it_holds_every_file_of_the_package(wheel: zipfile.ZipFile) -> None:
    sources = [path for path in (ROOT / "headscope").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert {str(path.relative_to(ROOT)) for path in sources} <= set(wheel.namelist())


def test_it_holds_the_bundled_snapshots_and_the_mark_of_types(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert "headscope/py.typed" in names
    assert "headscope/checkpoints/bundled/roberta-base.json" in names


def test_it_holds_nothing_but_the_package(wheel: zipfile.ZipFile) -> None:
    assert {name.partition("/")[0].partition("-")[0] for name in wheel.namelist()} == {"headscope"}


def test_it_installs_the_command(wheel: zipfile.ZipFile) -> None:
    assert "headscope = headscope.cli:main" in member(wheel, "entry_points.txt")


def test_its_metadata_is_that_of_the_project(wheel: zipfile.ZipFile) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    metadata = Parser().parsestr(member(wheel, "METADATA"))
    assert (metadata["Name"], metadata["Version"]) == ("headscope", project["version"])
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == project["requires-python"]
    assert "Apache License" in member(wheel, "licenses/LICENSE")
