"""SVG and HTML in a real browser: text stays in its box, nothing is loaded, a box opens on a click and by key."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headscope.slices.diagram.formats import diagram_text
from tests.render.diagram.pictures import PICTURES

_OUTSIDE = """() => {
  const found = [];
  for (const group of document.querySelectorAll('g.node, main .box')) {
    const box = (group.querySelector('rect.box') ?? group).getBoundingClientRect();
    for (const text of group.querySelectorAll('text, span, p, dt, dd')) {
      if (!text.checkVisibility()) continue;
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


@pytest.fixture
def head(browser: Any, tmp_path: Path) -> Callable[[str, int], Any]:
    """Opens the page of a picture at a width."""

    def opened(name: str, width: int) -> Any:
        path = tmp_path / "head.html"
        path.write_text(diagram_text(PICTURES[name](), "html"), encoding="utf-8")
        return page_with(browser, path, width)[0]

    return opened


Head = Callable[[str, int], Any]


def test_a_box_opens_on_a_click_and_by_key(head: Head) -> None:
    page = head("bert", 1300)
    facts = page.locator("dl:visible")
    assert facts.count() == 0
    page.click("#stage1 .side")
    assert facts.count() == 1
    assert "modeling_bert.py:461" in facts.inner_text()
    page.click("#stage1 summary")
    assert facts.count() == 0
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.locator("details[open]").get_attribute("id") == "stage2"
    page.close()


@pytest.mark.parametrize("width", [390, 700, 1100, 1900])
@pytest.mark.parametrize("name", PICTURES)
def test_the_page_uses_its_width_and_never_more(head: Head, name: str, width: int) -> None:
    page = head(name, width)
    for box in page.locator("details").all():
        box.evaluate("box => box.open = true")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(_OUTSIDE) == []
    used = page.evaluate("document.querySelector('.path').getBoundingClientRect().width")
    assert used >= min(0.9 * width, 1_600)
    page.close()


@pytest.mark.parametrize("is_open", [False, True])
def test_wires_begin_and_end_at_the_boxes_that_they_join(head: Head, is_open: bool) -> None:
    page = head("branched", 800)
    page.evaluate("is_open => document.querySelectorAll('details').forEach(box => box.open = is_open)", is_open)

    def place(of: str) -> Any:
        return page.evaluate("of => document.querySelector(of).getBoundingClientRect()", of)

    wires = page.evaluate("[...document.querySelectorAll('.wire')].map(wire => wire.getBoundingClientRect())")
    for wire, target in zip(wires, ("#stage2", "#stage3"), strict=True):
        source, end = place("#stage0"), place(target)
        assert source["top"] < wire["top"] < source["bottom"]
        assert end["top"] < wire["bottom"] < end["bottom"]
        assert abs(wire["left"] - source["right"]) < 1
    page.close()
