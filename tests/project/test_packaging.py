"""The wheel and the sdist: what a user installs is whole, names what it needs, and runs with that alone."""

import json
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from importlib.metadata import Distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from scripts.releases.refresh_constraints import needed

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that is built from the sdist; the build backend is fetched."""
    folder = tmp_path_factory.mktemp("dist")
    build = run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)])
    assert build.returncode == 0, build.stdout + build.stderr
    return folder


def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    (file,) = built.glob("*.whl")
    return zipfile.ZipFile(file)


def member(wheel: zipfile.ZipFile, name: str) -> str:
    (path,) = (path for path in wheel.namelist() if path.endswith(f".dist-info/{name}"))
    return wheel.read(path).decode()


def test_another_build_is_the_same_byte_for_byte(built: Path, tmp_path: Path) -> None:
    build = run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)])
    assert build.returncode == 0, build.stdout + build.stderr
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in built.iterdir()}
    assert all((built / path.name).read_bytes() == path.read_bytes() for path in tmp_path.iterdir())


def test_it_holds_every_file_of_the_package(wheel: zipfile.ZipFile) -> None:
    sources = [path for path in (ROOT / "headscope").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert {str(path.relative_to(ROOT)) for path in sources} <= set(wheel.namelist())


def test_it_holds_the_bundled_snapshots_and_the_mark_of_types(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert "headscope/py.typed" in names
    assert "headscope/core/checkpoints/bundled/roberta-base.json" in names


def test_it_holds_nothing_but_the_package(wheel: zipfile.ZipFile) -> None:
    assert {name.partition("/")[0].partition("-")[0] for name in wheel.namelist()} == {"headscope"}


def test_it_installs_the_command(wheel: zipfile.ZipFile) -> None:
    assert "headscope = headscope.shell:main" in member(wheel, "entry_points.txt")


def test_its_metadata_is_that_of_the_project(wheel: zipfile.ZipFile) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    metadata = Parser().parsestr(member(wheel, "METADATA"))
    assert (metadata["Name"], metadata["Version"]) == ("headscope", project["version"])
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == project["requires-python"]
    assert "Apache License" in member(wheel, "licenses/LICENSE")


def test_the_sdist_holds_what_the_project_is_made_of_and_nothing_that_was_built(built: Path) -> None:
    (file,) = built.glob("*.tar.gz")
    with tarfile.open(file) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = (
        "headscope/__init__.py",
        "tests/conftest.py",
        "docs/index.md",
        "constraints/tested.txt",
        "LICENSE",
        "PKG-INFO",
    )
    assert set(wanted) <= names
    assert not [name for name in names if name.endswith((".pyc", ".whl", ".egg-info"))]
    assert not [name for name in names if name.startswith((".venv", ".cache", "site/", "dist/"))]


def test_the_index_would_take_both_and_render_the_readme(built: Path) -> None:
    files = [str(path) for path in built.iterdir()]
    assert len(files) == 2
    checked = run([sys.executable, "-m", "twine", "check", "--strict", *files])
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_wheel_has_the_right_contents(built: Path) -> None:
    (file,) = built.glob("*.whl")
    checked = run([sys.executable, "-m", "check_wheel_contents", str(file)], cwd=ROOT)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def lend(distributions: dict[str, Distribution], site_packages: Path) -> None:
    """Links the files of installed distributions into another environment, and no file of any other."""
    for item in distributions.values():
        tops = {path.parts[0] for path in item.files or () if path.parts[0] not in ("..", "__pycache__")}
        for top in (top for top in tops if not top.endswith(".pth") and not (site_packages / top).exists()):
            (site_packages / top).symlink_to(Path(str(item.locate_file(top))))


@pytest.fixture(scope="module")
def bare(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of an environment with the wheel and the dependencies that its metadata names, lent by this one."""
    folder = tmp_path_factory.mktemp("bare")
    assert run([sys.executable, "-m", "venv", "--without-pip", str(folder)]).returncode == 0
    (site_packages,) = folder.glob("lib/python3*/site-packages")
    (file,) = built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
    installed = run([*pip, "install", "-q", "--no-deps", "--no-index", str(file)])
    assert installed.returncode == 0, installed.stderr
    (metadata,) = site_packages.glob("headscope-*.dist-info/METADATA")
    names = Parser().parsestr(metadata.read_text(encoding="utf-8")).get_all("Requires-Dist", [])
    lend(needed([Requirement(line) for line in names]), site_packages)
    checked = run([*pip, "check"])
    assert checked.returncode == 0, checked.stdout
    return folder / "bin"


def in_the_bare(bare: Path, command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command of the bare environment, far from the checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HF_", "HEADSCOPE_"))}
    surroundings = kept | {"PATH": f"{bare}:{os.environ['PATH']}", "HF_HOME": str(folder), "HEADSCOPE_NO_CACHE": "1"}
    program, *arguments = command.split()
    return run([str(bare / program), *arguments], cwd=folder, env=surroundings)


def test_the_wheel_runs_with_the_dependencies_that_it_names(bare: Path, tmp_path: Path) -> None:
    inspected = in_the_bare(bare, "headscope inspect roberta-base --num-labels 3 --offline --json", tmp_path)
    assert inspected.returncode == 0, inspected.stdout + inspected.stderr
    report = json.loads(inspected.stdout)
    assert report["head"]["formula"] == "logits = out_proj(tanh(dense(h[<s>])))"
    assert report["weights"]["new"][0] == "classifier.dense.bias"


def test_the_bare_environment_is_not_the_checkout(bare: Path, tmp_path: Path) -> None:
    (tmp_path / "where.py").write_text("import headscope; print(headscope.__file__, headscope.__version__)", "utf-8")
    told = in_the_bare(bare, "python where.py", tmp_path).stdout.split()
    assert Path(told[0]).is_relative_to(bare.parent)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert told[1] == project["version"] == in_the_bare(bare, "headscope --version", tmp_path).stdout.split()[-1]
    (tmp_path / "where.py").write_text("import pytest", "utf-8")
    assert "ModuleNotFoundError" in in_the_bare(bare, "python where.py", tmp_path).stderr
