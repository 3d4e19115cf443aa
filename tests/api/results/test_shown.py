"""What results show by themselves, in a separate process: as text, in one line, in a console, in a notebook."""

import os
import subprocess
from pathlib import Path

import pytest

from tests import warm
from tests.api.results.test_notebook_output import HtmlReader
from tests.families import FAMILIES

RESULTS = {
    "inspect": ('inspect("bert-base-uncased", offline=True)', "inspect bert-base-uncased --offline --details"),
    "diff_weights": ('diff_weights("bert-base-uncased", offline=True)', "diff-weights bert-base-uncased --offline"),
    "check": (
        'check("bert-base-uncased", "inference", offline=True)',
        "check bert-base-uncased --for inference --offline --details",
    ),
    "compare": (
        'compare("bert-base-uncased", "roberta-base", offline=True)',
        "compare bert-base-uncased roberta-base --offline --details",
    ),
    "forward": ('forward("bert-base-uncased", offline=True)', "forward bert-base-uncased --offline"),
    "heads": ('heads("AlbertForSequenceClassification")', "heads AlbertForSequenceClassification"),
    "snapshot": (
        'snapshot("bert-base-uncased", "out.json", offline=True)',
        "snapshot bert-base-uncased -o out.json --offline",
    ),
}


def run(code: str, folder: Path, **environment: str) -> str:
    """What a process prints that imports headscope first."""
    given = os.environ | {"COLUMNS": "100", "HEADSCOPE_NO_CACHE": "1", "PYTHONPATH": str(Path.cwd())} | environment
    done = subprocess.run(
        [*warm.python(environment=given, anew=True), "-c", code],
        cwd=folder, env=given, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def terminal(name: str, folder: Path) -> str:
    """What the command shows."""
    code = f"import headscope.shell.app as app; app.main({RESULTS[name][1].split()!r})"
    return run(code, folder).partition("\nnext  ")[0]


def printed(name: str, folder: Path) -> list[str]:
    """What the result prints: as text, in a console, in one line, in a notebook."""
    code = f"""
import headscope, rich.console
result = headscope.{RESULTS[name][0]}
print(result)
print("-----")
rich.console.Console(width=100, color_system=None, highlight=False, emoji=False).print(result)
print("-----")
print(repr(result))
print("-----")
print(result._repr_mimebundle_([], [])["text/html"])
"""
    return run(code, folder).split("-----\n")


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_prints_what_the_terminal_shows(name: str, tmp_path: Path) -> None:
    shown = terminal(name, tmp_path)
    (tmp_path / "out.json").unlink(missing_ok=True)
    text, console, line, html = printed(name, tmp_path)
    assert text.rstrip() == shown.rstrip()
    assert console.rstrip() == shown.rstrip()
    assert line.count("\n") == 1
    assert line.startswith("<headscope ")
    assert len(line) <= len("<>\n") + 160
    assert HtmlReader(html).text.rstrip() == text.rstrip()


def test_hostile_names_are_harmless_in_every_form(tmp_path: Path) -> None:
    folder = tmp_path / "a\u202eb\x1b[31m<b>"
    FAMILIES["bert"].build("BertForMaskedLM").save_pretrained(folder)
    code = f"""
import headscope
for result in (headscope.check({str(folder)!r}), headscope.compare({str(folder)!r}, {str(folder)!r})):
    html = result._repr_mimebundle_([], [])["text/html"]
    for shown in (str(result), repr(result), html):
        print("\\x1b" in shown or "\\u202e" in shown)
    print("<b>" in html)
"""
    assert run(code, tmp_path).splitlines() == ["False"] * 8
