"""The button of a code block copies what a reader would type: of a session, neither prompts nor what was printed."""

from pathlib import Path

import pytest

from scripts.site.site_finish import typed_lines
from tests.docs.look_site import browsed, write_project
from tests.docs.test_site import browser_problem, build

SESSIONS = (
    ("console", "$ headscope explain HS202\nHS202: The classes\n\n> a quote", "headscope explain HS202"),
    ("console", "$ one\nprinted\n\n$ two  x\nprinted", "one\ntwo  x"),
    ("console", "$ one \\\n    --two \\\n    --three\nprinted", "one \\\n    --two \\\n    --three"),
    ("console", "$ one \\\n> --two\nprinted\n> printed", "one \\\n--two"),
    ("console", "$ for a in b; do\n>   echo $a\n> done\nb", "for a in b; do\n  echo $a\ndone"),
    ("console", "$ echo '<b>&amp;\"'\n<b>&amp;\"", "echo '<b>&amp;\"'"),
    (
        "pycon",
        ">>> 1\n1\n>>> try:\n...     x()\n... except Y:\n...     z\n...\n2\n... 3",
        "1\ntry:\n    x()\nexcept Y:\n    z\n",
    ),
)
"""The language of a block, what stands in it, and what its button copies."""


@pytest.mark.parametrize(("kind", "session", "typed"), SESSIONS)
def test_what_was_typed_is_told_from_what_was_printed(kind: str, session: str, typed: str) -> None:
    assert "\n".join(typed_lines(session, kind)) == typed


def test_a_block_without_a_prompt_is_copied_as_it_is() -> None:
    assert list(typed_lines("printed\n> printed\n", "console")) == []


def test_the_button_of_a_session_copies_its_commands(tmp_path: Path) -> None:
    """In Chromium, through the theme's own script."""
    if browser_problem():
        pytest.skip(browser_problem())
    write_project(tmp_path)
    blocks = [*((kind, session) for kind, session, _ in SESSIONS), ("sh", "one\ntwo"), ("text", "$ printed")]
    text = "\n".join(f"```{kind}\n{session}\n```\n" for kind, session in blocks)
    (tmp_path / "docs" / "index.md").write_text(f"# Start\n\n{text}", encoding="utf-8")
    ran = build(tmp_path)
    assert ran.returncode == 0, ran.stderr
    told = browsed(tmp_path / "site", [{"name": "start", "page": "index.html", "visit": "", "buttons": True}])[0]
    assert told["console"] == []
    assert told["buttons"] == [*(typed.rstrip() for *_, typed in SESSIONS), "one\ntwo", "$ printed"]
