"""The site, built as `make docs` builds it: what it holds, and that a link that leads nowhere stops it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def build(project: Path) -> subprocess.CompletedProcess[str]:
    """The command in the Makefile."""
    pytest.importorskip("zensical", reason="zensical is not installed")
    assert "python scripts/build_site.py\n" in (ROOT / "Makefile").read_text(encoding="utf-8")
    command = [sys.executable, str(ROOT / "scripts" / "build_site.py"), "--project", str(project)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what the site is made of."""
    shutil.copytree(ROOT / "docs", tmp_path / "project" / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path / "project")
    return tmp_path / "project"


def test_the_site_holds_every_page_the_schema_and_the_pictures(project: Path) -> None:
    ran = build(project)
    site = project / "site"
    assert ran.returncode == 0, ran.stdout + ran.stderr
    listed = (site / "llms.txt").read_text(encoding="utf-8")
    for page in (project / "docs").glob("*.md"):
        assert (site / f"{page.stem}.html").exists()
        assert (site / page.name).read_bytes() == page.read_bytes()
        assert f"]({page.name})" in listed
    for name in ("schema/headscope-1.0.schema.json", "images/architecture.svg", "images/flow.svg", "images/flow.mmd"):
        assert (site / name).read_bytes() == (ROOT / "docs" / name).read_bytes()
    assert 'href="schema/headscope-1.0.schema.json"' in (site / "json.html").read_text(encoding="utf-8")


def test_no_page_fetches_from_another_host(project: Path) -> None:
    assert build(project).returncode == 0
    for page in (project / "site").rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"""(?:src|srcset)=["']?(?:https?:)?//|<link[^>]+href=["']?(?:https?:)?//""", text), page


@pytest.mark.parametrize("link", ["[a](gone.md)", "[a](json.md#nowhere)", "![a](images/gone.svg)", "[a](gone.json)"])
def test_a_link_that_leads_nowhere_stops_the_build(project: Path, link: str) -> None:
    with (project / "docs" / "index.md").open("a", encoding="utf-8") as page:
        page.write(f"\n{link}\n")
    ran = build(project)
    assert ran.returncode == 1
    assert "Traceback" not in ran.stderr
    assert "gone" in ran.stderr or "nowhere" in ran.stderr
