"""The check of the words: what it finds, what it leaves alone, and that no advice breaks the style itself."""

from pathlib import Path

import pytest

pytest.importorskip("codespell_lib")
from scripts.house import check_words  # after the test that its library is there

ROOT = Path(__file__).resolve().parents[2]


def found(prose: str) -> list[str]:
    return [what for _, what, _ in check_words.faults(prose)]


@pytest.mark.parametrize(
    ("bad", "good"),
    [
        ("The user is told.", "headscope reports it."),
        ("x is no path", "x is not a path"),
        ("Read it anew.", "Read it again. There is no other way; it is no longer there."),
        ("A file of its own.", "A separate file."),
        ("Seconds; else 120.", "Seconds (default: 120). If it fails, else raises."),
        ("The head is initialised.", "The head is initialized."),
        ("A quantised head", "A quantized head"),
        ("it stands\nin the file", "it is\nin the file"),
    ],
)
def test_a_bad_sentence_is_found_and_its_rewrite_is_not(bad: str, good: str):
    assert len(found(bad)) == 1
    assert found(good) == []


def test_code_and_generated_parts_of_a_page_are_not_prose():
    page = "`is no path`\n\n```text\nis no path\n```\nhere: is no path\n<!-- below: a script -->\nis no path\n"
    [text] = check_words.page_prose(page)
    assert [line + text.line for line, _, _ in check_words.faults(text.prose)] == [6]


def test_messages_docstrings_and_comments_of_a_module_are_prose():
    module = '"""It is no file."""\nx = f"{y} is no path"\n# is no\n# number\nis_no = "is_no"\n'
    hits = [
        (text.line, what) for text in check_words.python_prose(module) for _, what, _ in check_words.faults(text.prose)
    ]
    assert hits == [(1, "is no"), (2, "is no"), (3, "is no")]


def test_british_spellings_are_found_in_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(check_words, "ROOT", tmp_path)
    module = tmp_path / "catalogue.py"
    module.write_text("_MostNEIGHBOURS = 5\n\ndef minimise(centred, center): ...\n", encoding="utf-8")
    hits = [(hit.line, hit.found) for hit in check_words.find_british_names([module])]
    assert hits == [(1, "catalogue"), (3, "minimise"), (1, "_MostNEIGHBOURS"), (3, "centred")]


def test_what_is_advised_is_in_the_style_itself():
    assert len(check_words.house_patterns()) > 20
    assert [advice for _, advice in check_words.house_patterns() if found(advice)] == []


def test_every_known_word_would_be_a_typo_otherwise():
    """A word that no file holds any more is taken off the list."""
    texts = [
        path.read_text(encoding="utf-8")
        for name in ("headscope", "scripts", "tests")
        for path in (ROOT / name).rglob("*.py")
    ]
    held = "\n".join(texts).lower()
    assert [word for word in check_words.known_words() if word not in held] == []


def test_each_tooltip_is_the_first_sentence_of_the_glossary():
    """One definition of a term: the tooltip must not drift from the page."""
    rows = [line.split(" | ") for line in (ROOT / "docs/glossary.md").read_text(encoding="utf-8").splitlines()]
    meanings = {row[0].split("**")[1].lower(): row[1] for row in rows if row[0].startswith("| **")}
    tips = (ROOT / "scripts/house/words/tooltips.md").read_text(encoding="utf-8").splitlines()
    pairs = [line.removeprefix("*[").split("]: ", 1) for line in tips]
    assert len(pairs) > 5
    by_word = {word: meaning for term, meaning in meanings.items() for word in term.split(", ")}
    lost = [term for term, text in pairs if not by_word.get(term, "").replace(": `", ".").startswith(text[:-1])]
    assert lost == []
