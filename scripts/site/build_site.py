"""Builds the site with Zensical; adds each page as Markdown and llms.txt; finds links that lead nowhere.

    python -m scripts.site.build_site [--project DIR] [--address URL] [--hub URL ...]

The site has more pages than docs/: one for each question (`site_questions.py`) and for each class of the atlas
(`site_atlas.py`). They are made beside a copy of docs/ and built with it. What the page "Look at a checkpoint" looks
up is made by `site_look.py`. Zensical checks links between pages. It
doesn't check pictures and other files, so those are checked here. Exits with 1 where a link leads nowhere, or where
Zensical has a complaint.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from headscope.core.facts.environment import tool_version
from scripts.site.site_atlas import atlas_pages
from scripts.site.site_finish import finish
from scripts.site.site_markdown import staged
from scripts.site.site_policy import HUB
from scripts.site.site_questions import FOLDER, Question, question_pages, read_questions

ROOT = Path(__file__).resolve().parents[2]
_COLORS = re.compile(r"\x1b\[[0-9;]*m")


class _Links(HTMLParser):
    """The links of a page to files of the site, and the places in it that links may name."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value is not None:
                self.links.append(value)
            elif name in ("id", "name") and value:
                self.names.add(value)


def dead_links(site: Path) -> Iterator[str]:
    """Every link of a page to a file or a place that isn't there, as "page: link"."""
    pages = {path: _read(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        if path.name == "404.html":  # its links are those of the site's root
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            known = pages.get(target)
            if not target.exists() or (parts.fragment and known and unquote(parts.fragment) not in known.names):
                yield f"{path.relative_to(site)}: {link}"


def _read(path: Path) -> _Links:
    links = _Links()
    links.feed(path.read_text(encoding="utf-8"))
    return links


def pages_of(contents: list[dict[str, Any]], section: str = "") -> Iterator[tuple[str, str, str]]:
    """Section, title and file of every page, in the order of the site's contents."""
    for entry in contents:
        for title, inside in entry.items():
            if isinstance(inside, str):
                yield section, title, inside
            else:
                yield from pages_of(inside, title)


def write_llms(site: Path, project: dict[str, Any], questions: Iterable[Question]) -> None:
    """llms.txt: what the project is, and a link to the Markdown of every page but those of the atlas's classes."""
    lines = [f"# {project['site_name']}", "", f"> {project['site_description']}"]
    last = ""
    for section, title, name in pages_of(project["nav"]):
        if section != last:
            lines += ["", f"## {section}", ""]
            last = section
        lines.append(f"- [{title}]({name})")
        if name == "questions.md":
            lines += [f"- [{one.title}]({FOLDER}/{one.slug}.md)" for one in questions]
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def build(project: Path, address: str, hub: Sequence[str]) -> int:
    """The exit code."""
    settings_file = (project / "zensical.toml").read_text(encoding="utf-8")
    settings = tomllib.loads(settings_file)["project"]
    site, docs = project / settings["site_dir"], project / settings["docs_dir"]
    stage = project / ".cache" / "site"
    generated, pictures = _stage(docs, stage, settings["docs_dir"])
    (stage / "zensical.toml").write_text(_settings(settings_file, docs, address), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--clean"],
        cwd=stage, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        said = done.stdout + done.stderr.partition("Traceback")[0]
        print(_COLORS.sub("", said), file=sys.stderr)
        return 1
    shutil.rmtree(site, ignore_errors=True)
    shutil.move(stage / settings["site_dir"], site)
    for name, text in {**generated, **_own_pages(docs)}.items():
        (site / name).write_text(text, encoding="utf-8")
    write_llms(site, settings, read_questions(_questions(docs))[1])
    if (docs / "look.md").exists():
        from scripts.site.site_look import write_look  # imports Transformers, which no other page needs

        write_look(site / "look")
    finish(site, settings["site_name"], address, hub)
    for name in pictures:  # the pages show those of their theme
        (site / name).unlink()
    dead = list(dead_links(site))
    for link in dead:
        print(f"{link} leads nowhere", file=sys.stderr)
    print(f"{sum(1 for _ in site.rglob('*.html'))} pages in {site}")
    return 1 if dead else 0


def _stage(docs: Path, stage: Path, name: str) -> tuple[dict[str, str], dict[str, str]]:
    """A copy of docs with the generated pages and pictures; returns those by their names."""
    shutil.rmtree(stage / name, ignore_errors=True)
    shutil.copytree(docs, stage / name)
    pages, pictures = atlas_pages(docs) if (docs / "atlas.json").exists() else ({}, {})
    pages |= question_pages(_questions(docs))
    for place, text in {**_own_pages(docs), **pages}.items():
        (stage / name / place).parent.mkdir(exist_ok=True)
        (stage / name / place).write_text(staged(text), encoding="utf-8")
    for place, text in pictures.items():
        (stage / name / place).write_text(text, encoding="utf-8")
    return pages, pictures


def _own_pages(docs: Path) -> dict[str, str]:
    """The pages that docs holds, by their names."""
    return {page.relative_to(docs).as_posix(): page.read_text(encoding="utf-8") for page in docs.rglob("*.md")}


def _questions(docs: Path) -> str:
    page = docs / "questions.md"
    return page.read_text(encoding="utf-8") if page.exists() else ""


def _settings(text: str, docs: Path, address: str) -> str:
    """Zensical's settings with the version, the site's address, and a page for each question."""
    _, questions = read_questions(_questions(docs))
    pages = "".join(f"\n    {json.dumps(f'{FOLDER}/{question.slug}.md')}," for question in questions)
    text = text.replace('"questions.md" },', f'"questions.md" }},{pages}', 1)
    own = [f"copyright = {json.dumps(f'headscope {tool_version()}, Apache License 2.0')}"]
    own += [f"site_url = {json.dumps(address)}"] if address else []
    return text.replace("[project]\n", "\n".join(("[project]", *own, "")), 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--project", type=Path, default=ROOT, help="a folder with zensical.toml and docs")
    parser.add_argument("--address", default="", help="where the site will be published, for previews of links to it")
    parser.add_argument("--hub", action="append", help="another Hub than the public one, for tests: address and CDN")
    options = parser.parse_args()
    return build(options.project, options.address, options.hub or HUB)


if __name__ == "__main__":
    sys.exit(main())
