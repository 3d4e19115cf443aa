"""A checkpoint with its card, and the readers in docs/card, built once for all tests of cards."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from serving.cards.making import Program, save_checkpoint

import headscope

READERS = Path(__file__).parents[3] / "docs" / "card"
ENGINES = Path(__file__).with_name("engines")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_checkpoint("Bert", tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="session")
def card(checkpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("card") / "card.json"
    headscope.write_card(checkpoint, path)
    return path


@pytest.fixture(scope="session")
def python_reader() -> Program:
    return run_program([sys.executable, str(READERS / "reader.py")])


@pytest.fixture(scope="session")
def rust_reader(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return run_program(build_rust(READERS / "reader.rs", tmp_path_factory.mktemp("rust")))


@pytest.fixture(scope="session")
def typescript_reader(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return run_program(build_typescript(READERS / "reader.ts", tmp_path_factory.mktemp("typescript")))


@pytest.fixture(scope="session")
def python_engine() -> Program:
    return run_program([sys.executable, str(ENGINES / "engine.py")])


@pytest.fixture(scope="session")
def rust_engine(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return run_program(build_rust(ENGINES / "engine.rs", tmp_path_factory.mktemp("rust")))


@pytest.fixture(scope="session")
def typescript_engine(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return run_program(build_typescript(ENGINES / "engine.ts", tmp_path_factory.mktemp("typescript")))


def build_rust(source: Path, folder: Path) -> list[str]:
    if shutil.which("rustc") is None:
        pytest.skip("rustc is not installed")
    program = folder / source.stem
    subprocess.run(["rustc", "-O", "-o", str(program), str(source)], check=True)
    return [str(program)]


def build_typescript(source: Path, folder: Path) -> list[str]:
    places = [Path(place) for place in os.environ.get("NODE_PATH", "").split(os.pathsep) if place]
    found = [place / ".bin" / "tsc" for place in places if (place / ".bin" / "tsc").is_file()]
    compiler = str(found[0]) if found else shutil.which("tsc")
    if compiler is None or shutil.which("node") is None:
        pytest.skip("node or typescript is not installed")
    types = [flag for place in places for flag in ("--typeRoots", str(place / "@types")) if (place / "@types").is_dir()]
    options = ["--module", "nodenext", "--target", "es2022", "--strict", "--erasableSyntaxOnly", "--types", "node"]
    subprocess.run([compiler, str(source), "--outDir", str(folder), *options, *types], check=True)
    return ["node", str(folder / f"{source.stem}.js")]


def run_program(command: list[str]) -> Program:
    def run(*given: Path | str) -> tuple[int, str]:
        done = subprocess.run([*command, *map(str, given)], capture_output=True, text=True, check=False)
        assert not done.stderr, done.stderr
        return done.returncode, done.stdout

    return run
