"""SVG and HTML in a real browser: text stays in its box, nothing is loaded, pointing at a box shows what is known."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_diagram import PICTURES

from headscope.render.diagram import diagram_text

_OUTSIDE = """() => {
  const found = [];
  for (const group of document.querySelectorAll('g.node')) {
    const box = group.querySelector('rect.box').getBoundingClientRect();
    for (const text of group.querySelectorAll('text')) {
      const own = text.getBoundingClientRect();
      if (own.left < box.left || own.right > box.right || own.top < box.top || own.bottom > box.bottom)
        found.push(text.textContent);
    }
  }
  return found;
}"""
_CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next((found for name in _CHROMIUM if (found := shutil.which(name))), None)
    with playwright.sync_playwright() as driver:
        try:
            opened = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        except playwright.Error as err:
            pytest.skip(f"no Chromium to be had: {err.message.splitlines()[0]}")
        yield opened
        opened.close()


def page_with(browser: Any, path: Path, width: int) -> tuple[Any, list[str]]:
    """The page at `path`, and what went wrong or was asked of the network while it was opened."""
    page = browser.new_page(viewport={"width": width, "height": 900})
    trouble: list[str] = []
    page.on("console", lambda message: trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("dialog", lambda dialog: trouble.append(dialog.message))
    page.on("request", lambda request: trouble.append(request.url) if request.url != path.as_uri() else None)
    page.goto(path.as_uri())
    return page, trouble


@pytest.mark.parametrize("format", ["svg", "html"])
@pytest.mark.parametrize("name", PICTURES)
def test_text_stays_in_its_box_and_nothing_is_loaded(browser: Any, tmp_path: Path, name: str, format: str) -> None:
    path = tmp_path / f"head.{format}"
    path.write_text(diagram_text(PICTURES[name](), format), encoding="utf-8")
    page, trouble = page_with(browser, path, 760)
    assert page.evaluate(_OUTSIDE) == []
    assert trouble == []
    page.close()


def test_pointing_at_a_box_or_reaching_it_by_key_shows_what_is_known(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "head.html"
    path.write_text(diagram_text(PICTURES["bert"](), "html"), encoding="utf-8")
    page, _ = page_with(browser, path, 1300)
    assert page.locator("section:visible").count() == 0
    page.hover(".to-stage1")
    assert page.locator("section:visible").get_attribute("id") == "about-stage1"
    page.mouse.move(1, 1)
    page.keyboard.press("Tab")
    assert page.locator("section:visible").get_attribute("id") == "about-base"
    page.close()


def test_on_a_narrow_screen_all_is_listed_below(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "head.html"
    path.write_text(diagram_text(PICTURES["bert"](), "html"), encoding="utf-8")
    page, _ = page_with(browser, path, 600)
    assert page.locator("section:visible").count() == page.locator("section").count() > 5
    assert page.evaluate("document.documentElement.scrollWidth") <= 600
    page.close()
