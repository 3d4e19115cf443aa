"""Files that are damaged, or in another form than a reader may think: headscope and every reader give one answer."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from serving.cards.making import Program

import headscope
from headscope.errors import HeadscopeError
from headscope.shell.app import main

CODES = {"PASS": 0, "FAIL": 1, "UNUSABLE": 3, "NOT DETERMINED": 3}
OPEN = "NOT DETERMINED"
Document = dict[str, Any]
Damage = Callable[[Document], Any]
READERS = Path(__file__).parents[3] / "docs" / "card"
DEEP = "[" * 100_000 + "]" * 100_000


def scores_text(card: Document) -> str:
    return json.dumps(card["scores"])


def ids(card: Document) -> list[list[int]]:
    return [item["input_ids"] for item in card["inputs"]]


def instead_of_first(text: str) -> Damage:
    """Another text in place of the first number."""
    return lambda card: scores_text(card).replace(str(card["scores"][0][0]), text, 1)


def beside_scores(text: str) -> Damage:
    """More in the object that has the scores."""
    return lambda card: f'{{"scores": {scores_text(card)}, {text}}}'


def with_ids(change: Callable[[list[list[int]]], Any]) -> Damage:
    """The scores, and what is made of the card's `input_ids`."""
    return lambda card: json.dumps({"scores": card["scores"], "input_ids": change(ids(card))})


SCORES: dict[str, tuple[Damage, str]] = {
    "as it is": (scores_text, "PASS"),
    "a byte order mark": (lambda card: b"\xef\xbb\xbf" + scores_text(card).encode(), "PASS"),
    "UTF-16": (lambda card: scores_text(card).encode("utf-16"), "UNUSABLE"),
    "UTF-16 without a mark": (lambda card: scores_text(card).encode("utf-16-le"), "UNUSABLE"),
    "bytes that are not UTF-8": (lambda card: beside_scores('"engine": "\xe9"')(card).encode("latin-1"), "UNUSABLE"),
    "empty": (lambda card: "", "UNUSABLE"),
    "spaces": (lambda card: " \n", "UNUSABLE"),
    "null": (lambda card: "null", "UNUSABLE"),
    "a number": (lambda card: "1.5", "UNUSABLE"),
    "a text": (lambda card: '"scores"', "UNUSABLE"),
    "an empty list": (lambda card: "[]", "UNUSABLE"),
    "an empty object": (lambda card: "{}", "UNUSABLE"),
    "NaN": (instead_of_first("NaN"), "UNUSABLE"),
    "Infinity": (instead_of_first("-Infinity"), "UNUSABLE"),
    "a name for infinity": (instead_of_first("inf"), "UNUSABLE"),
    "1e999": (instead_of_first("1e999"), "UNUSABLE"),
    "400 digits": (instead_of_first("9" * 400), "UNUSABLE"),
    "5,000 digits": (instead_of_first("9" * 5000), "UNUSABLE"),
    "1e308": (instead_of_first("1e308"), "FAIL"),
    "an exponent": (lambda card: instead_of_first(f"{card['scores'][0][0]:.12E}")(card), "PASS"),
    "true for a number": (instead_of_first("true"), "UNUSABLE"),
    "null for a number": (instead_of_first("null"), "UNUSABLE"),
    "a text for a number": (instead_of_first('"0.5"'), "UNUSABLE"),
    "a list for a number": (instead_of_first("[0.5]"), "UNUSABLE"),
    "a leading zero": (instead_of_first("00.5"), "UNUSABLE"),
    "a plus": (instead_of_first("+0.5"), "UNUSABLE"),
    "no digit before the point": (instead_of_first(".5"), "UNUSABLE"),
    "no digit after the point": (instead_of_first("1."), "UNUSABLE"),
    "hexadecimal": (instead_of_first("0x1"), "UNUSABLE"),
    "two minus signs": (instead_of_first("--1"), "UNUSABLE"),
    "one row less": (lambda card: json.dumps(card["scores"][1:]), "UNUSABLE"),
    "one row more": (lambda card: json.dumps(card["scores"] + card["scores"][:1]), "UNUSABLE"),
    "one number less": (lambda card: json.dumps([*card["scores"][1:], card["scores"][0][1:]]), "UNUSABLE"),
    "one number more in every row": (lambda card: json.dumps([[*row, 0.5] for row in card["scores"]]), "UNUSABLE"),
    "a number for a row": (lambda card: json.dumps([0.5, *card["scores"][1:]]), "UNUSABLE"),
    "an empty row": (lambda card: json.dumps([[], *card["scores"][1:]]), "UNUSABLE"),
    "null for a row": (lambda card: json.dumps([None, *card["scores"][1:]]), "UNUSABLE"),
    "an object for the rows": (lambda card: json.dumps({"scores": dict(enumerate(card["scores"]))}), "UNUSABLE"),
    "a text for the rows": (lambda card: json.dumps({"scores": "0" * 32}), "UNUSABLE"),
    "a trailing comma": (lambda card: scores_text(card)[:-1] + ",]", "UNUSABLE"),
    "a trailing comma in an object": (beside_scores(""), "UNUSABLE"),
    "a comma at the start": (lambda card: "[," + scores_text(card)[1:], "UNUSABLE"),
    "no comma": (lambda card: scores_text(card).replace("], [", "] [", 1), "UNUSABLE"),
    "no colon": (beside_scores('"engine" "mine"'), "UNUSABLE"),
    "a key without quotes": (beside_scores("engine: 1"), "UNUSABLE"),
    "single quotes": (beside_scores("'engine': 1"), "UNUSABLE"),
    "a comment": (lambda card: "// mine\n" + scores_text(card), "UNUSABLE"),
    "a form feed": (lambda card: "\f" + scores_text(card), "UNUSABLE"),
    "a line break in a text": (beside_scores('"engine": "a\nb"'), "UNUSABLE"),
    "an unknown escape": (beside_scores(r'"engine": "\x41"'), "UNUSABLE"),
    "half an escape": (beside_scores(r'"engine": "\u00"'), "UNUSABLE"),
    "half a pair of escapes": (beside_scores(r'"engine": "\ud83d"'), "PASS"),
    "cut off": (lambda card: scores_text(card)[:-9], "UNUSABLE"),
    "cut off in an escape": (lambda card: scores_text(card) and '{"scores\\', "UNUSABLE"),
    "more behind it": (lambda card: scores_text(card) + " ]", "UNUSABLE"),
    "nested deeply": (lambda card: DEEP, "UNUSABLE"),
    "objects nested deeply": (lambda card: '{"a":' * 100_000 + "1" + "}" * 100_000, "UNUSABLE"),
    "nested deeply beside the scores": (beside_scores(f'"more": {DEEP}'), "UNUSABLE"),
    "nested a little beside the scores": (beside_scores(f'"more": {"[" * 50}{"]" * 50}'), "PASS"),
    "a key twice": (lambda card: beside_scores(f'"scores": {scores_text(card)}')(card), "UNUSABLE"),
    "a key twice, once escaped": (lambda card: beside_scores(rf'"sc\u006fres": {scores_text(card)}')(card), "UNUSABLE"),
    "a key twice further in": (beside_scores('"more": [{"a": 1, "a": 1}]'), "UNUSABLE"),
    "an escaped key": (lambda card: rf'{{"sc\u006fres": {scores_text(card)}}}', "PASS"),
    "scores and logits": (lambda card: beside_scores(f'"logits": {json.dumps(card["logits"])}')(card), "UNUSABLE"),
    "logits that are null": (beside_scores('"logits": null'), "PASS"),
    "scores that are null": (lambda card: json.dumps({"scores": None, "logits": card["logits"]}), "PASS"),
    "labels that are null": (beside_scores('"labels": null'), "PASS"),
    "the card's labels, escaped": (beside_scores(r'"labels": ["b\u0061d", "fair", "good"]'), "PASS"),
    "no labels in the list": (beside_scores('"labels": []'), "UNUSABLE"),
    "one label less": (beside_scores('"labels": ["bad", "fair"]'), "UNUSABLE"),
    "a text for labels": (beside_scores('"labels": "bad, fair, good"'), "UNUSABLE"),
    "numbers for labels": (beside_scores('"labels": [0, 1, 2]'), "UNUSABLE"),
    "input_ids that are null": (beside_scores('"input_ids": null'), "PASS"),
    "the card's input_ids": (lambda card: beside_scores(f'"input_ids": {ids(card)}')(card), "PASS"),
    "input_ids with a point": (with_ids(lambda rows: [[*map(float, row)] for row in rows]), "PASS"),
    "input_ids between whole numbers": (with_ids(lambda rows: [[1.5], *rows[1:]]), "UNUSABLE"),
    "true in input_ids": (with_ids(lambda rows: [[True], *rows[1:]]), "UNUSABLE"),
    "texts for input_ids": (with_ids(lambda rows: [""] * 32), "UNUSABLE"),
    "one list of input_ids less": (with_ids(lambda rows: rows[1:]), "UNUSABLE"),
    "other input_ids, the same scores": (with_ids(lambda rows: [[7]] * 32), "PASS"),
    "other input_ids, other scores": (
        lambda card: with_ids(lambda rows: [[7]] * 32)({**card, "scores": card["scores"][::-1]}), "FAIL"
    ),
}  # fmt: skip


def changed(**fields: Any) -> Damage:
    """The card with other values, None for a field to leave out."""
    left_out = {name for name, one in fields.items() if one is None}
    return lambda card: json.dumps({name: one for name, one in {**card, **fields}.items() if name not in left_out})


def alike(logits: list[list[float]], scores: list[list[float]]) -> Damage:
    """A card with these logits and scores, which repeat, without runs and alternatives."""
    rows = {"logits": (logits * 32)[:32], "scores": (scores * 32)[:32]}
    limits = {name: 1e-4 * max(abs(one) for row in rows[name] for one in row) for name in rows}
    open_limits = [{"precision": name, "logits": None, "scores": None} for name in ("float16", "bfloat16")]
    limits = [{"precision": "float32", **limits}, *open_limits]  # type: ignore[assignment]
    return changed(**rows, tolerances=limits, runs=[], alternatives=[])


CARDS: dict[str, tuple[Damage, str]] = {
    "a byte order mark": (lambda card: b"\xef\xbb\xbf" + json.dumps(card).encode(), "PASS"),
    "UTF-16": (lambda card: json.dumps(card).encode("utf-16"), "UNUSABLE"),
    "empty": (lambda card: "", "UNUSABLE"),
    "a list": (lambda card: "[]", "UNUSABLE"),
    "the scores": (scores_text, "UNUSABLE"),
    "nested deeply": (lambda card: DEEP, "UNUSABLE"),
    "a trailing comma": (lambda card: json.dumps(card)[:-1] + ",}", "UNUSABLE"),
    "NaN": (lambda card: json.dumps({**card, "logits": [[float("nan")] * 3, *card["logits"][1:]]}), "UNUSABLE"),
    "1e999": (lambda card: json.dumps(card).replace(str(card["scores"][0][0]), "1e999"), "UNUSABLE"),
    "a key twice": (lambda card: json.dumps(card)[:-1] + ', "version": 1}', "UNUSABLE"),
    "another format": (changed(format="headscope-snapshot"), "UNUSABLE"),
    "a later version": (changed(version=2), "UNUSABLE"),
    "a text for the version": (changed(version="1"), "UNUSABLE"),
    "a text of a decimal for the version": (changed(version="1.0"), "UNUSABLE"),
    "true for the version": (changed(version=True), "UNUSABLE"),
    "a list for the version": (changed(version=[1]), "UNUSABLE"),
    "no version": (changed(version=None), "UNUSABLE"),
    "no labels": (changed(labels=None), "UNUSABLE"),
    "labels that are empty": (changed(labels=[]), "UNUSABLE"),
    "no inputs": (changed(inputs=[]), "UNUSABLE"),
    "no tolerances": (changed(tolerances=None), "UNUSABLE"),
    "one row less": (lambda card: json.dumps({**card, "scores": card["scores"][1:]}), "UNUSABLE"),
    "one number less": (lambda card: json.dumps({**card, "scores": [[0.5], *card["scores"][1:]]}), "UNUSABLE"),
    "true for a number": (lambda card: json.dumps({**card, "scores": [[True] * 3, *card["scores"][1:]]}), "UNUSABLE"),
    "scores that hardly differ": (alike([[1.0, 0.0, 0.0]], [[0.576116885, 0.211941557, 0.211941557]]), OPEN),
    "scores at the ends": (alike([[40.0, 0.0, 0.0], [0.0, 40.0, 0.0]], [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), OPEN),
}  # fmt: skip


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.fixture(scope="session")
def files(card: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path, str]]:
    """A card, scores and the expected word for each row of the two tables."""
    folder, document = tmp_path_factory.mktemp("hostile"), json.loads(card.read_text())
    found = {}
    for at, (name, (damage, word)) in enumerate(SCORES.items()):
        found[f"scores: {name}"] = card, write(folder / f"{at}.json", damage(document)), word
    for at, (name, (damage, word)) in enumerate(CARDS.items()):
        bad = write(folder / f"card{at}.json", damage(document))
        try:
            rows = json.loads(bad.read_bytes())["scores"]
        except (ValueError, LookupError, TypeError, RecursionError):
            rows = document["scores"]
        found[f"card: {name}"] = bad, write(folder / f"for{at}.json", json.dumps(rows)), word
    return found


def test_a_reader_gives_the_same_answer_as_headscope(reader: Program, files: dict[str, tuple[Path, Path, str]]) -> None:
    wrong = {}
    for name, (card, scores, word) in files.items():
        code, told = reader(card, scores, "float32")
        if (code, told.partition(":")[0]) != (CODES[word], word) or (word != "PASS" and "\n" in told.strip()):
            wrong[name] = code, told[:200]
    assert not wrong, wrong


def test_the_reader_in_python_takes_what_json_reads(card: Path) -> None:
    """Called as a function, with whole numbers that are int."""
    document, compare = json.loads(card.read_text()), runpy.run_path(str(READERS / "reader.py"))["compare"]
    given = {"scores": document["scores"], "input_ids": ids(document)}
    assert type(document["version"]) is int and compare(document, given)[0] == "PASS"
    with pytest.raises(ValueError, match="32 rows of 3 numbers were expected"):
        compare(document, [[float("nan")] * 3, *document["scores"][1:]])
    for version in ("1", "1.0", True, 2, None):
        with pytest.raises(ValueError, match="not a card of version 1"):
            compare({**document, "version": version}, given)


@pytest.mark.parametrize("name", ["reader.py", "reader.ts", "reader.rs"])
def test_a_reader_has_under_a_hundred_lines_of_code(name: str) -> None:
    """Lines that are neither empty nor comments nor docstrings, as docs/card.md says."""
    text = (READERS / name).read_text(encoding="utf-8")
    if name.endswith(".py"):
        text = re.sub(r'^ *"""(?s:.*?)"""$', "", text, flags=re.MULTILINE)
    lines = [line.strip() for line in text.splitlines()]
    code = [line for line in lines if line and not line.startswith(("#", "//"))]
    assert 50 < len(code) < 100, len(code)


@pytest.mark.parametrize("table", ["scores", "card"])
def test_headscope_gives_the_same_answer_as_the_readers(
    table: str, files: dict[str, tuple[Path, Path, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {}
    for name, (card, scores, word) in files.items():
        if not name.startswith(table):
            continue
        code = main(["verify", "--card", str(card), "--scores", str(scores)])
        told = "".join(capsys.readouterr())
        try:
            same = headscope.verify_card(card, scores=scores).served.same
            found = {True: "PASS", False: "FAIL", None: "NOT DETERMINED"}[same]
        except HeadscopeError as err:
            found = "UNUSABLE" if err.hint and (card.name in err.message or scores.name in err.message) else str(err)
        if (code, found) != (CODES[word], word) or "Traceback" in told:
            wrong[name] = code, found, told[:200]
    assert not wrong, wrong
