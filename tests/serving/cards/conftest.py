"""A checkpoint with its card, and the readers in docs/card, built once for all tests of cards."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
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
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Program]:
    """A reader or an engine by the name of its file, ready to be run."""

    @cache
    def build(name: str) -> Program:
        source = (READERS if name.startswith("reader") else ENGINES) / name
        if source.suffix == ".py":
            return run_program([sys.executable, str(source)])
        compiled = build_rust if source.suffix == ".rs" else build_typescript
        return run_program(compiled(source, tmp_path_factory.mktemp("built")))

    return build


@pytest.fixture(scope="session", params=["py", "ts", "rs"])
def language(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def reader(language: str, built: Callable[[str], Program]) -> Program:
    return built(f"reader.{language}")


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
