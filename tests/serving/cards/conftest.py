"""A checkpoint with its card, and the readers in docs/card, built once for all tests of cards."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from serving.cards.making import Reader, save_checkpoint

import headscope

READERS = Path(__file__).parents[3] / "docs" / "card"


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_checkpoint("Bert", tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="session")
def card(checkpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("card") / "card.json"
    headscope.write_card(checkpoint, path)
    return path


@pytest.fixture(scope="session")
def python_reader() -> Reader:
    return lambda *given: _run_reader([sys.executable, str(READERS / "reader.py")], given)


@pytest.fixture(scope="session")
def rust_reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    if shutil.which("rustc") is None:
        pytest.skip("rustc is not installed")
    program = tmp_path_factory.mktemp("rust") / "reader"
    subprocess.run(["rustc", "-O", "-o", str(program), str(READERS / "reader.rs")], check=True)
    return lambda *given: _run_reader([str(program)], given)


@pytest.fixture(scope="session")
def typescript_reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    places = [Path(place) for place in os.environ.get("NODE_PATH", "").split(os.pathsep) if place]
    found = [place / ".bin" / "tsc" for place in places if (place / ".bin" / "tsc").is_file()]
    compiler = str(found[0]) if found else shutil.which("tsc")
    if compiler is None or shutil.which("node") is None:
        pytest.skip("node or typescript is not installed")
    folder = tmp_path_factory.mktemp("typescript")
    types = [flag for place in places for flag in ("--typeRoots", str(place / "@types")) if (place / "@types").is_dir()]
    options = ["--module", "nodenext", "--target", "es2022", "--strict", "--erasableSyntaxOnly", "--types", "node"]
    subprocess.run([compiler, str(READERS / "reader.ts"), "--outDir", str(folder), *options, *types], check=True)
    return lambda *given: _run_reader(["node", str(folder / "reader.js")], given)


def _run_reader(command: list[str], given: tuple[Path, Path, str]) -> tuple[int, str]:
    done = subprocess.run([*command, *map(str, given)], capture_output=True, text=True, check=False)
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout
