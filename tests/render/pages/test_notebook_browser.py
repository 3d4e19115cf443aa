"""The HTML of results in a real browser: the notebook's theme decides, and the page around is left alone."""

import re
from pathlib import Path
from typing import Any

import pytest

from headscope.render.diagram import markup
from headscope.render.pages.notebook import result_html
from tests.render.diagram.pictures import PICTURES
from tests.render.diagram.test_diagram_browser import browser as a_browser, page_with

browser = a_browser
JUPYTER = ('data-jp-theme-light="true"', 'data-jp-theme-light="false"')
VSCODE = ('data-vscode-theme-kind="vscode-light"', 'data-vscode-theme-kind="vscode-dark"')


def ground(color: str) -> str:
    """`#rrggbb` as a browser says it."""
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgb({red}, {green}, {blue})"


def notebook_page(folder: Path, name: str, body: str = "", html: str = "") -> Path:
    path = folder / "notebook.html"
    outputs = f"{result_html(PICTURES[name]())}\n<p id=prose>Prose</p>\n{result_html(PICTURES[name]())}"
    path.write_text(f"<!DOCTYPE html><html {html}><body {body}>{outputs}</body></html>", encoding="utf-8")
    return path


@pytest.mark.parametrize("system", ["light", "dark"])
@pytest.mark.parametrize(
    ("html", "body", "theme"),
    [
        ("", JUPYTER[0], "light"), ("", JUPYTER[1], "dark"), ("", VSCODE[0], "light"), ("", VSCODE[1], "dark"),
        ("theme=light", "", "light"), ("theme=dark", "", "dark"), ("", "", None),
    ],
)  # fmt: skip
def test_the_notebook_decides_on_light_or_dark_and_else_the_system(  # noqa: PLR0917 - the cases
    browser: Any,
    tmp_path: Path,
    html: str,
    body: str,
    theme: str | None,
    system: str,
) -> None:
    page, trouble = page_with(browser, notebook_page(tmp_path, "bert", body, html), 900)
    page.emulate_media(color_scheme=system)
    wanted = {"light": markup.LIGHT.ground, "dark": markup.DARK.ground}[theme or system]
    for element in (".headscope", ".headscope .ground"):
        kind = "fill" if "ground" in element else "background-color"
        assert page.locator(element).first.evaluate(f"e => getComputedStyle(e)['{kind}']") == ground(wanted)
    assert trouble == []
    page.close()


@pytest.mark.parametrize("name", PICTURES)
def test_nothing_is_loaded_or_run_and_nothing_is_wider_than_the_output(
    browser: Any,
    tmp_path: Path,
    name: str,
) -> None:
    page, trouble = page_with(browser, notebook_page(tmp_path, name), 700)
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= 700
    assert trouble == []
    page.close()


def test_details_unfold_and_the_prose_around_keeps_its_look(browser: Any, tmp_path: Path) -> None:
    page, _ = page_with(browser, notebook_page(tmp_path, "bert", JUPYTER[1]), 900)
    folded = page.locator("details", has_text="Weights of the head").first
    assert not folded.locator("table").is_visible()
    folded.locator("summary").click()
    assert folded.locator("table").is_visible()
    look = page.locator("#prose").evaluate("e => [getComputedStyle(e).color, getComputedStyle(e).marginTop]")
    assert look == ["rgb(0, 0, 0)", "16px"]
    page.close()


def test_where_rules_are_dropped_a_sentence_stands_for_the_drawing(browser: Any, tmp_path: Path) -> None:
    path = notebook_page(tmp_path, "bert")
    page, _ = page_with(browser, path, 900)
    assert page.locator(".drawing").first.is_visible()
    assert not page.locator(".instead").first.is_visible()
    path.write_text(re.sub(r"<style>.*?</style>|</?svg[^>]*>", "", path.read_text("utf-8"), flags=re.DOTALL), "utf-8")
    page.reload()
    assert not page.locator(".drawing").first.is_visible()
    assert "Head partly new" in page.locator(".instead").first.inner_text()
    page.close()
