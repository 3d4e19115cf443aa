"""Nothing in the package takes its own sentences apart, or decides by one: whoever needs a part gets it typed."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "headscope"
CUTS = {
    "partition", "rpartition", "split", "rsplit", "splitlines", "startswith", "endswith", "removeprefix",
    "removesuffix", "replace", "index", "find",
}  # fmt: skip
FIELDS = {
    "rule", "reason", "message", "sentence", "formula", "expression", "hint", "variant", "title", "remedy", "what",
    "topic", "loss", "activation",
}  # fmt: skip
"""Fields of facts and errors that hold words for a reader."""
MAKERS = ("_sentence", "_words", "_verdict", "_line")
"""How functions end that make sentences."""
PUNCTUATION = {"self.sentence.removesuffix(':')"}
"""The colon of a repair leads to its code, and goes where the code isn't on the same line."""


def taken_apart(source: str) -> Iterator[tuple[int, str]]:
    """The lines and expressions that cut the words of a fact, or compare them with words."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr in CUTS and _holds_words(value):
                yield node.lineno, ast.unparse(node)
            case ast.Compare(left=left, comparators=others):
                sides = (left, *others)
                if any(map(_holds_words, sides)) and any(map(_is_text, sides)):
                    yield node.lineno, ast.unparse(node)


def _holds_words(node: ast.expr) -> bool:
    match node:
        case ast.Attribute(attr=name):
            return name in FIELDS
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            return name.endswith(MAKERS)
    return False


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(node.value)


def test_no_own_sentence_is_taken_apart() -> None:
    found = [
        f"{file.relative_to(PACKAGE)}:{line}: {text}"
        for file in sorted(PACKAGE.rglob("*.py"))
        if "upstream" not in file.parts
        for line, text in taken_apart(file.read_text(encoding="utf-8"))
        if text not in PUNCTUATION
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "verdict_sentence(found).partition(':')",
        "err.message.endswith('.')",
        "'segment IDs' == item.variant",
        "words.scan_words(x).replace('live model', part)",
        "model.loss != 'MSELoss'",
        "part.rule.replace(old, new)",
    ],
)
def test_a_sentence_that_is_taken_apart_is_found(source: str) -> None:
    assert len(list(taken_apart(source))) == 1


@pytest.mark.parametrize(
    "source", ["item.reason == ''", "name.partition('@')", "model.loss != Loss.NONE", "err.message"]
)
def test_other_texts_may_be_taken_apart(source: str) -> None:
    assert not list(taken_apart(source))
