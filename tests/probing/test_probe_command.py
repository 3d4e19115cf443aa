"""`probe` from a checkpoint and a file to the answer: baselines, bad input, the same values twice."""

import json
import sys
from collections.abc import Callable
from math import inf, nan
from pathlib import Path
from shutil import copytree
from typing import Any

import jsonschema
import pytest
import torch
import transformers

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from labeled.trained import texts, untrained, write_csv
from probing import tiny
from probing.made import NAMES, ROWS, add, command, keep_base_model, probed

import headscope
from headscope.errors import HeadscopeError
from headscope.shell.app import main
from headscope.slices.probe.facts.result import BaselineKind, ProbeResult, Vector
from scripts.pages.write_schema import build_schema


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_csv(tmp_path_factory.mktemp("data") / "rows.csv", ROWS)


@pytest.fixture(scope="module")
def result(known: Path, rows: Path) -> ProbeResult:
    return probed(known, rows)


def test_a_trained_head_is_scored_by_its_own_predictions(known: Path, result: ProbeResult) -> None:
    model = transformers.AutoModelForSequenceClassification.from_pretrained(known).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(known)
    with torch.no_grad():
        places = [int(model(**tokenizer(text, return_tensors="pt")).logits.argmax()) for text, _ in ROWS]
    right = [model.config.id2label[place] == label for place, (_, label) in zip(places, ROWS, strict=True)]
    found = {item.name: item.mean for item in result.baselines}
    assert found[BaselineKind.CHECKPOINT] == pytest.approx(sum(right) / len(right))
    assert found[BaselineKind.MAJORITY] == pytest.approx(1 / 3, abs=0.05)
    assert 0.6 < found[BaselineKind.TFIDF] <= 1


def test_the_input_of_the_head_is_that_of_its_classifier(result: ProbeResult) -> None:
    assert (result.head_input.classifier, result.head_input.pooling) == ("classifier", "first_token")
    assert result.head_input.new == ()
    head = result.candidate("head")
    assert (head.same_as, head.pooling, head.size) == ("pooler", Vector.HEAD, 32)
    assert head.mean > 0.8
    assert {item.against for item in result.versus} == {"head", "majority", "tfidf", "checkpoint"}
    assert result.not_determined == ()


def test_the_same_seed_gives_the_same_result(known: Path, rows: Path, result: ProbeResult) -> None:
    assert probed(known, rows) == result
    assert probed(known, rows, batch_size=7).to_dict()["best"] == result.best
    assert probed(known, rows, seed=1) != result


def test_weights_that_the_checkpoint_lacks_are_named_and_drawn_from_the_seed(
    known: Path, tmp_path: Path, rows: Path
) -> None:
    folder = copytree(known, tmp_path / "model")
    keep_base_model(folder)
    once, again = (probed(folder, rows) for _ in range(2))
    assert once == again
    assert set(once.head_input.new) == {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    assert once.candidate("pooler").new == tuple(sorted(once.candidate("pooler").new)) != ()
    assert "initialized" in next(gap.reason for gap in once.left_out if gap.topic == "checkpoint")
    assert "checkpoint" not in {item.name for item in once.baselines}


def test_the_result_shows_itself(result: ProbeResult) -> None:
    assert " is best " in str(result).splitlines()[0]
    assert repr(result).startswith("<headscope probe ")
    assert "several; 0 embeddings" in result._repr_mimebundle_([], [])["text/html"]  # type: ignore[attr-defined]


def test_classes_that_the_sample_misses_are_told(known: Path, tmp_path: Path) -> None:
    data = write_csv(tmp_path / "rows.csv", [*ROWS, ("word1 word2", "rare")])
    assert any(note.startswith("1 class ") and note.endswith(": rare") for note in probed(known, data, limit=30).notes)


def test_rows_that_are_mostly_left_out_are_told(known: Path, tmp_path: Path) -> None:
    rows = [(f"word{at % 4} word{at}", str(at % 2 if at < 12 else at)) for at in range(40)]
    notes = probed(known, write_csv(tmp_path / "rows.csv", rows)).notes
    told = "28 of 40 rows left out with these classes; for numbers that are not classes, use --problem-type regression"
    assert told in notes, notes


def test_more_rows_than_the_limit_are_sampled_in_proportion(known: Path, tmp_path: Path) -> None:
    many = [(text, "positive" if at % 4 else "negative") for at, (text, _) in enumerate(texts(3, 200))]
    result = probed(known, write_csv(tmp_path / "rows.csv", many), limit=40)
    assert {item.label: item.texts for item in result.classes} == {"negative": 10, "positive": 30}
    assert (result.texts, result.available) == (40, 200)
    assert any(note.startswith("40 of 200 ") for note in result.notes)


def test_what_is_left_out_is_told(known: Path, tmp_path: Path) -> None:
    extra = [("", "positive"), ("  ", "neutral"), (ROWS[0][0], ROWS[0][1]), ("word1 word2", "rare")]
    result = probed(known, write_csv(tmp_path / "rows.csv", [*ROWS, *extra]))
    assert len(result.notes) == 4
    assert "frozen" in result.notes[0]  # the first says what the scores are of
    for note, start in zip(result.notes[1:], ("2 rows without a text", "1 class ", "1 repeated text "), strict=True):
        assert note.startswith(start)
    assert (result.texts, result.distinct, result.available) == (91, 90, 94)


def test_pairs_of_texts_are_two_columns(known: Path, tmp_path: Path) -> None:
    data = tmp_path / "pairs.csv"
    lines = [f"{text},{text.split()[0]},{label}" for text, label in ROWS[:60]]
    data.write_text("\n".join(["a,b,label", *lines]), encoding="utf-8")
    assert probed(known, data, text_column=("a", "b")).texts == 60


def snapshot(known: Path, place: Path) -> dict[str, Any]:
    headscope.snapshot(known, place / "model.json")
    return {"reference": place / "model.json"}


def without_tokenizer(known: Path, place: Path) -> dict[str, Any]:
    untrained(NAMES).save_pretrained(place / "bare")
    return {"reference": place / "bare"}


def not_finite(known: Path, place: Path) -> dict[str, Any]:
    return {"reference": add(copytree(known, place / "model"), "bert.embeddings.LayerNorm.weight", inf)}


BAD: dict[str, tuple[Callable[[Path, Path], dict[str, Any]] | list[tuple[str, str]] | dict[str, Any], str]] = {
    "no such column": ({"label_column": "lable"}, "has no column 'lable'"),
    "no such text": ({"text_column": "txt"}, "has no column 'txt'"),
    "one class": ([(text, "yes") for text, _ in ROWS], "has one class, 'yes'"),
    "few rows": (
        [*ROWS[:1], *((text, "neutral") for text, _ in ROWS[1:4])],
        "only 'neutral' has 3 different texts or more, one for each fold (too few: negative)",
    ),
    "empty texts": ([(" ", label) for _, label in ROWS], "no class has 3 different texts or more"),
    "a snapshot": (snapshot, "a snapshot, which holds no weights"),
    "no tokenizer": (without_tokenizer, "tokenizer"),
    "not finite": (not_finite, "no vector can be scored"),
    "another task": (
        {"model_class": "BertForTokenClassification"},
        "probe scores vectors of whole texts, and BertForTokenClassification is for token-classification",
    ),
    "no such file": ({"data": "nowhere.csv"}, "nowhere.csv doesn't exist"),
    "folds": ({"folds": 1}, "folds must be a whole number from 2, not 1"),
    "limit": ({"limit": "many"}, "limit must be int, not str 'many'"),
    "meta": ({"device": "meta"}, "the device is meta"),
    "no real device": ({"device": "tpu"}, "no such device: tpu"),
    "device": ({"device": "gpu"}, "no such device: gpu"),
    "labels": ({"label_column": ("a", "b")}, "has no column 'a'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_in_one_sentence(name: str, known: Path, rows: Path, tmp_path: Path) -> None:
    bad, sentence = BAD[name]
    if isinstance(bad, list):
        bad = {"data": write_csv(tmp_path / "bad.csv", bad)}
    given = {"reference": known, "data": rows} | (bad if isinstance(bad, dict) else bad(known, tmp_path))
    with pytest.raises(HeadscopeError) as raised:
        probed(given.pop("reference"), **given)
    assert sentence in raised.value.message
    assert "\n" not in raised.value.message
    assert raised.value.hint
    assert "meta" not in raised.value.hint


def test_a_model_in_memory_has_no_tokenizer(rows: Path) -> None:
    with pytest.raises(HeadscopeError, match="in memory"):
        probed(untrained(NAMES), rows)


def test_without_scikit_learn_the_command_says_what_to_install(
    known: Path, rows: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert main(command(known, rows)) == 3
    error, hint = capsys.readouterr().err.splitlines()
    assert "scikit-learn" in error
    assert hint == 'hint: pip install "headscope[probe]"'


def test_the_document_is_valid_and_has_the_names_of_the_contract(
    known: Path, rows: Path, capsys: pytest.CaptureFixture[str], result: ProbeResult
) -> None:
    assert main(command(known, rows, "--json")) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(build_schema()).validate(document)
    assert document["command"] == "probe"
    assert {"name", "layer", "pooling", "metric", "mean", "low", "high"} <= document["candidates"][0].keys()
    assert (document["best"], document["head"]) == (result.best, "head")


def test_the_answer_comes_first(
    known: Path, rows: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # in a pipe, lines stay whole
    assert main(command(known, rows)) == 0
    screen = capsys.readouterr().out
    assert " is best " in screen.splitlines()[0]
    assert "method" not in screen
    assert main(command(known, rows, "--details")) == 0
    whole = capsys.readouterr().out
    assert "several; 0 embeddings" in whole
    assert "logistic regression" in whole
    assert main(command(known, rows, "-q")) == 0
    assert len(capsys.readouterr().out.splitlines()) <= 3


def test_a_module_and_a_picture_are_written(known: Path, rows: Path, tmp_path: Path, result: ProbeResult) -> None:
    assert main(command(known, rows, "-q", "-o", str(tmp_path / "advised.py"))) == 0
    text = (tmp_path / "advised.py").read_text()
    compile(text, "advised.py", "exec")
    assert text == result.code()  # type: ignore[attr-defined]
    assert main(command(known, rows, "-q", "-o", str(tmp_path / "scores.svg"))) == 0
    assert (tmp_path / "scores.svg").read_text().startswith("<svg ")


def test_a_head_of_nan_predicts_nothing(known: Path, tmp_path: Path, rows: Path) -> None:
    result = probed(add(copytree(known, tmp_path / "model"), "classifier.weight", nan), rows)
    assert "NaN" in {gap.topic: gap.reason for gap in result.left_out}["checkpoint"]
    assert result.start is None
    assert "NaN" in result.probe_first.reason


def test_a_picture_in_another_format_is_refused_before_the_work(
    known: Path, rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(known, rows, "-o", str(tmp_path / "scores.png"))) == 2
    assert "probe draws .svg and .html" in capsys.readouterr().err


def test_data_are_asked_for(known: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", str(known)]) == 2
    assert "add --data FILE" in capsys.readouterr().err


def test_a_decoder_without_a_pad_token_is_probed(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "gpt2", "gpt2", pads=False)
    lines = [(text, "ab"[at % 2]) for at, (text,) in enumerate(tiny.texts(40))]
    result = probed(folder, write_csv(tmp_path / "rows.csv", lines))
    assert result.candidate("head").same_as == "last_non_pad_token-2"
    assert result.padded is False
