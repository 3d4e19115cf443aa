"""docs/scan.md: its commands run in their order in one folder, and its Python reads the tables that they wrote."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_docs import BLOCK, ROOT, checked

from tests import warm

PAGE = ROOT / "docs" / "scan.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What the page takes for granted: a list of models, and a folder with a checkpoint."""
    (tmp_path / "models.txt").write_text("# three\nbert-base-uncased\nroberta-base\ngpt2\n", encoding="utf-8")
    (tmp_path / "runs").mkdir()
    shutil.copy(ROOT / "headscope" / "core" / "checkpoints" / "bundled" / "gpt2.json", tmp_path / "runs")
    return tmp_path


def test_the_page_works_from_its_beginning_to_its_end(folder: Path) -> None:
    surroundings = os.environ | warm.offline()
    command = warm.headscope_command(folder / "bin", surroundings)
    surroundings |= {"PYTHONPATH": str(ROOT), "PATH": f"{command.parent}:{os.environ['PATH']}"}
    seen = []
    for language, shown in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if language not in {"sh", "py"}:
            continue
        body = shown.replace("headscope scan ", "headscope scan --workers 1 ")  # each worker imports PyTorch
        words = ["bash", "-c", body] if language == "sh" else [sys.executable, "-c", checked(body)]
        ran = subprocess.run(words, cwd=folder, env=surroundings, capture_output=True, text=True, check=False)
        assert ran.returncode == (1 if language == "sh" else 0), ran.stderr  # gpt2 fails
        told = [line for line in ran.stderr.splitlines() if not line.startswith("wrote ")]
        assert not told or "nanobind" in ran.stderr, ran.stderr
        seen.append(language)
    assert seen == ["sh", "sh", "sh", "py", "py", "sh"]
    written = {"heads.jsonl", "heads.csv", "heads.parquet", "all.jsonl", "summary.html", "summary.md"}
    assert {path.name for path in folder.iterdir()} >= written
    assert len((folder / "all.jsonl").read_text(encoding="utf-8").splitlines()) == 4
    assert len((folder / "heads.jsonl").read_text(encoding="utf-8").splitlines()) == 3


@pytest.mark.parametrize("package", ["ray", "dask"])
def test_the_example_of_an_engine_gives_what_its_comments_say(package: str, folder: Path) -> None:
    pytest.importorskip(package)
    shown = [body for language, body in BLOCK.findall(PAGE.read_text(encoding="utf-8")) if language == "python3"]
    (body,) = (one for one in shown if f"import {package}" in one)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    quiet = {"RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0", "DASK_SCHEDULER": "threads"}
    quiet["RAY_ADDRESS"] = "local"  # not the cluster of another test, which may end meanwhile
    surroundings = os.environ | warm.offline() | quiet | {"PYTHONPATH": path}
    ran = subprocess.run(
        [*warm.python(environment=surroundings), "-c", checked(body)],
        cwd=folder, env=surroundings, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
