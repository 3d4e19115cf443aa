"""The site, built as `make docs` builds it: what it holds, and that a link that leads nowhere stops it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def build(project: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """The command in the Makefile."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed")
    words = re.search(r"python (-m mkdocs build.*)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert words is not None
    command = [sys.executable, *words[1].split(), "--site-dir", str(site)]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what the site is made of."""
    shutil.copytree(ROOT / "docs", tmp_path / "project" / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path / "project")
    return tmp_path / "project"


def test_the_site_holds_every_page_the_schema_and_the_pictures(project: Path, tmp_path: Path) -> None:
    ran = build(project, tmp_path / "site")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for page in (project / "docs").glob("*.md"):
        assert (tmp_path / "site" / f"{page.stem}.html").exists()
    for name in ("schema/headscope-1.0.schema.json", "images/architecture.svg", "images/flow.svg", "images/flow.mmd"):
        assert (tmp_path / "site" / name).read_bytes() == (ROOT / "docs" / name).read_bytes()
    assert 'href="schema/headscope-1.0.schema.json"' in (tmp_path / "site" / "json.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("link", ["[a](gone.md)", "[a](json.md#nowhere)", "![a](images/gone.svg)"])
def test_a_link_that_leads_nowhere_stops_the_build(project: Path, tmp_path: Path, link: str) -> None:
    with (project / "docs" / "index.md").open("a", encoding="utf-8") as page:
        page.write(f"\n{link}\n")
    assert build(project, tmp_path / "site").returncode != 0
