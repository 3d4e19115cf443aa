"""The site, built as `make docs` builds it: what it holds, and that a link that leads nowhere stops it."""

import json
import os
import re
import shutil
import struct
import subprocess
from functools import cache
from html import unescape
from pathlib import Path

import pytest

from tests import warm
from tests.docs.look_cases import SITE

ROOT = Path(__file__).resolve().parent.parent.parent


def build(project: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The command in the Makefile."""
    pytest.importorskip("zensical", reason="zensical is not installed")
    assert "python -m scripts.site.build_site\n" in (ROOT / "Makefile").read_text(encoding="utf-8")
    command = [*warm.python(environment=SITE), "-m", "scripts.site.build_site", "--project", str(project), *options]
    return subprocess.run(command, env=SITE, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole site, as it will be published at an address."""
    project = tmp_path_factory.mktemp("project")
    shutil.copytree(ROOT / "docs", project / "docs")
    shutil.copy(ROOT / "zensical.toml", project)
    ran = build(project, "--address", "https://docs.example/headscope/")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return project / "site"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A site of two pages and two questions."""
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text("# Start\n\nSee [questions](questions.md#old-name).\n", encoding="utf-8")
    (docs / "questions.md").write_text(QUESTIONS, encoding="utf-8")
    picture = '<svg xmlns="http://www.w3.org/2000/svg"><style>svg { --a: b }\n@media (prefers-color-scheme: dark) '
    (docs / "head.svg").write_text(picture + "{ svg { --a: c } }\n</style></svg>\n", encoding="utf-8")
    nav = 'nav = [{ "Start" = "index.md" }, { "All" = "questions.md" }, ]\n'
    settings = '[project]\nsite_name = "small"\nsite_description = "d"\ndocs_dir = "docs"\nsite_dir = "site"\n'
    (tmp_path / "zensical.toml").write_text(f"{settings}use_directory_urls = false\n{nav}", encoding="utf-8")
    return tmp_path


QUESTIONS = """# Questions

Every block is real.

<a id="old-name"></a>

## Is it `one`?

It is: see [start](index.md) and [the other](#what-of-two). More.

```sh
## no heading
```

![A head](head.svg)

<a id="older"></a>

## What of two?

Nothing yet
"""


def test_the_site_holds_every_page_the_schema_and_the_pictures(site: Path) -> None:
    listed = (site / "llms.txt").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert (site / f"{page.stem}.html").exists()
        assert (site / page.name).read_bytes() == page.read_bytes()
        assert f"]({page.name})" in listed
    for name in ("schema/headscope-1.0.schema.json", "images/architecture.svg", "images/flow.svg", "images/flow.mmd"):
        assert (site / name).read_bytes() == (ROOT / "docs" / name).read_bytes()
    assert 'href="schema/headscope-1.0.schema.json"' in (site / "json.html").read_text(encoding="utf-8")


def test_no_page_fetches_from_another_host(site: Path) -> None:
    own = re.compile(r'<link rel="(canonical|alternate)"[^>]*>|<meta [^>]*>')
    for page in site.rglob("*.html"):
        text = own.sub("", page.read_text(encoding="utf-8")).replace("https://docs.example/headscope/", "")
        assert not re.findall(r"""(?:src|srcset)=["']?(?:https?:)?//|<link[^>]+href=["']?(?:https?:)?//""", text), page


@pytest.mark.parametrize("link", ["[a](gone.md)", "[a](index.md#nowhere)", "![a](images/gone.svg)", "[a](gone.json)"])
def test_a_link_that_leads_nowhere_stops_the_build(small: Path, link: str) -> None:
    with (small / "docs" / "index.md").open("a", encoding="utf-8") as page:
        page.write(f"\n{link}\n")
    ran = build(small)
    assert ran.returncode == 1
    assert "Traceback" not in ran.stderr
    assert "gone" in ran.stderr or "nowhere" in ran.stderr


def test_a_description_is_text_whatever_it_holds(small: Path) -> None:
    (small / "docs" / "index.md").write_text('# Start\n\nThe "first" <s> & [last](questions.md).\n', encoding="utf-8")
    assert build(small).returncode == 0
    page = (small / "site" / "index.html").read_text(encoding="utf-8")
    told = re.findall(r'"(?:og:)?description" content="([^"]*)"', page)
    assert told == ["The &quot;first&quot; &lt;s&gt; &amp; last."] * 2


def test_each_question_has_a_page_and_its_old_names_still_lead_to_it(small: Path) -> None:
    ran = build(small)
    assert ran.returncode == 0, ran.stderr
    index = (small / "site" / "questions.html").read_text(encoding="utf-8")
    assert 'id="old-name"' in index
    assert 'id="is-it-one"' in index
    assert "It is." in index
    assert "Nothing yet" in index
    page = (small / "site" / "questions" / "is-it-one.html").read_text(encoding="utf-8")
    assert 'href="what-of-two.html"' in page
    assert 'href="../index.html"' in page
    assert "## no heading" in (small / "site" / "questions" / "is-it-one.md").read_text(encoding="utf-8")
    assert (small / "site" / "questions.md").read_text(encoding="utf-8") == QUESTIONS
    assert "- [What of two?](questions/what-of-two.md)" in (small / "site" / "llms.txt").read_text(encoding="utf-8")


def test_a_picture_follows_the_theme_of_the_page(small: Path) -> None:
    assert build(small).returncode == 0
    page = (small / "site" / "questions" / "is-it-one.html").read_text(encoding="utf-8")
    assert 'class="only-light" href="../head.light.svg"' in page
    assert 'class="only-dark" href="../head.dark.svg"' in page
    light, dark = ((small / "site" / f"head.{theme}.svg").read_text(encoding="utf-8") for theme in ("light", "dark"))
    assert "--a: c" not in light
    assert "--a: c" in dark
    assert "prefers-color-scheme" not in light + dark


def test_every_class_of_the_atlas_has_a_page_with_its_picture(site: Path) -> None:
    kept = json.loads((ROOT / "docs" / "atlas.json").read_text(encoding="utf-8"))["heads"]
    table = (site / "atlas.html").read_text(encoding="utf-8")
    for entry in kept:
        name = entry["class"]
        page = (site / "atlas" / f"{name}.html").read_text(encoding="utf-8")
        assert f'href="atlas/{name}.html"' in table
        if entry["head"]:
            assert f'src="{name}.light.svg"' in page
            assert (site / "atlas" / f"{name}.dark.svg").exists()
            assert f'srcset="{name}.narrow.light.svg"' in page
            assert (site / "atlas" / f"{name}.narrow.light.svg").exists()
            assert all(field in page for field in entry["depends_on"])
        assert not re.findall(r"</?(?:s|eos|cls|unk|pad)>", page, re.IGNORECASE), name  # a token is text


def test_a_class_page_says_what_padding_does_what_changed_and_that_there_is_no_formula(site: Path) -> None:
    bert = (site / "atlas" / "BertForSequenceClassification.md").read_text(encoding="utf-8")
    assert "There is no formula" not in bert
    assert "On the right: leaves the scores alone. On the left: changes the scores." in bert
    assert "`classifier.weight` | 2x768 | 1,536 | new: random until trained" in bert
    pvt = (site / "atlas" / "PvtForImageClassification.md").read_text(encoding="utf-8")
    assert "- 5.23.0: parameters:" in pvt
    sounds = (site / "atlas" / "Wav2Vec2ForXVector.md").read_text(encoding="utf-8")
    assert "There is no formula" in sounds
    assert "| padding | Not measured" in sounds


def test_the_gallery_shows_each_kind_of_head_once(site: Path) -> None:
    page = (site / "gallery.md").read_text(encoding="utf-8")
    shown = re.findall(r"^!\[[^\]]*\]\(atlas/(\w+)\.svg\)", page, re.MULTILINE)
    assert len(shown) == len(set(shown)) == page.count("\n## ") > 40
    others = re.findall(r"\]\(atlas/(\w+)\.md\)", page)
    traced = {path.name.partition(".")[0] for path in (site / "atlas").glob("*.light.svg")}
    assert sorted(others) == sorted(traced)


def test_each_session_on_the_site_has_what_its_button_copies(site: Path) -> None:
    """None of it is a prompt, and all of it stands in the session."""
    sessions = 0
    for path in site.rglob("*.html"):
        for copied, kind, shown in SESSION.findall(path.read_text(encoding="utf-8")):
            text = unescape(re.sub("<[^>]*>", "", shown))
            prompts = ("$ ", "> ") if kind == "console" else (">>> ", "... ")
            typed = unescape(copied.removeprefix(' data-copy="').removesuffix('"')).splitlines()
            assert typed, f"{path.name}: {text}"
            assert not [line for line in typed if line.startswith(prompts)], path.name
            assert len(typed) >= sum(line.startswith(prompts[0]) for line in text.splitlines()), path.name
            assert set(typed) <= {line.removeprefix(prompts[0]).removeprefix(prompts[1]) for line in text.splitlines()}
            sessions += 1
    assert sessions >= 35


SESSION = re.compile(r'<div( data-copy="[^"]*")? class="language-(console|pycon) highlight">(.*?)</div>', re.DOTALL)


def test_labeled_alternatives_become_tabs(site: Path) -> None:
    page = (site / "index.html").read_text(encoding="utf-8")
    assert re.findall(r'<label for="__tabbed_1_\d">(?:<a[^>]*>)?(\w+)', page) == ["CLI", "Python", "CI"]
    assert "**CLI**" in (site / "index.md").read_text(encoding="utf-8")


def test_links_to_a_page_have_a_preview(site: Path) -> None:
    page = (site / "questions" / "what-are-logits.html").read_text(encoding="utf-8")
    told = dict(re.findall(r'<meta property="og:(\w+)" content="([^"]*)">', page))
    assert told["title"] == "What are logits?"
    assert told["description"].startswith("Logits are the scores before any softmax")
    assert told["url"] == "https://docs.example/headscope/questions/what-are-logits.html"
    assert told["image"].removeprefix("https://docs.example/headscope/") == "images/social.png"
    width, height = struct.unpack(">II", (site / "images" / "social.png").read_bytes()[16:24])
    assert (width, height) == (1200, 630)


def test_without_an_address_no_preview_claims_one(small: Path) -> None:
    assert build(small).returncode == 0
    page = (small / "site" / "index.html").read_text(encoding="utf-8")
    assert 'property="og:title"' in page
    assert "og:image" not in page
    assert "og:url" not in page


def test_a_page_that_is_not_there_leads_on(site: Path) -> None:
    page = (site / "404.html").read_text(encoding="utf-8")
    for name in re.findall(r'<li><a href="/headscope/([^"]+)">', page):
        assert (site / name).exists()
    assert 'href="/headscope/questions.html"' in page


def test_each_page_names_its_icon_and_its_markdown(site: Path) -> None:
    for name, root in (
        ("index", "./"),
        ("questions/what-are-logits", "../"),
        ("atlas/GPT2ForSequenceClassification", "../"),
    ):
        page = (site / f"{name}.html").read_text(encoding="utf-8")
        assert f'<link rel="icon" href="{root}images/favicon.svg">' in page
        assert f'<link rel="alternate" type="text/markdown" href="{Path(name).name}.md">' in page
    assert (site / "images" / "favicon.svg").exists()
    assert "text/markdown" not in (site / "404.html").read_text(encoding="utf-8")


def test_a_bar_in_the_code_of_a_table_is_shown_without_its_escape(site: Path) -> None:
    assert r"\|" in (site / "api.md").read_text(encoding="utf-8")
    page = (site / "api.html").read_text(encoding="utf-8")
    assert r"\|" not in page
    assert "<td><code>int | None</code></td>" in page


@pytest.mark.parametrize(("setting", "code"), [({}, 0), ({"CI": "1"}, 1)])
def test_without_a_browser_the_look_is_skipped_with_a_reason(
    tmp_path: Path, setting: dict[str, str], code: int
) -> None:
    """Except in CI, where a check that never runs would look like one that passes."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not installed")
    script = shutil.copy(ROOT / "scripts" / "site" / "check_site.mjs", tmp_path)
    command, environment = [node, str(script), str(tmp_path)], {"PATH": str(tmp_path), **setting}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == code
    assert "playwright-core, axe-core, html-validate" in ran.stdout
    assert ran.stderr == ""


@cache
def browser_problem() -> str:
    """Why the pages cannot be looked at; empty if they can."""
    if shutil.which("node") is None:
        return "Node.js is not installed"
    names = "['playwright-core', 'axe-core/axe.min.js', 'html-validate']"
    find = f"const r=require('module').createRequire(process.argv[1]); {names}.forEach(name => r.resolve(name))"
    ran = subprocess.run(
        ["node", "-e", find, str(ROOT / "scripts" / "site" / "check_site.mjs")], capture_output=True, check=False
    )
    if ran.returncode:
        return "npm's playwright-core, axe-core and html-validate are not installed, here or on NODE_PATH"
    known = ("chromium", "chromium-browser", "google-chrome")
    return "" if os.environ.get("CHROMIUM") or any(map(shutil.which, known)) else "no Chromium is installed"


@pytest.mark.parametrize(
    "page", ["index.html", "questions.html", "atlas.html", "changes.html", "atlas/BertForSequenceClassification.html"]
)
def test_a_browser_and_axe_find_nothing_wrong(site: Path, page: str) -> None:
    """Of a few pages; `make docs-look` looks at all of them."""
    if browser_problem():
        pytest.skip(browser_problem())
    ran = subprocess.run(
        ["node", str(ROOT / "scripts" / "site" / "check_site.mjs"), str(site), page],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
