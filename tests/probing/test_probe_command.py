"""`probe` from a checkpoint and a file to the answer: baselines, bad input, the same values twice."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
import transformers

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from labeled.trained import save, texts, trained, untrained, write_csv
from probing import tiny

import headscope
from headscope.errors import HeadscopeError
from headscope.shell.app import main
from headscope.slices.probe.facts.result import BaselineKind, ProbeResult, Vector
from scripts.pages.write_schema import build_schema

NAMES = ("negative", "neutral", "positive")
ROWS = [(text, NAMES[place]) for text, place in texts(3, 90)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier that was trained for a while."""
    return save(trained(NAMES), tmp_path_factory.mktemp("trained") / "model", NAMES)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_csv(tmp_path_factory.mktemp("data") / "rows.csv", ROWS)


def probed(folder: Path, data: Path, **options: Any) -> ProbeResult:
    given = {"text_column": "text", "label_column": "label", "folds": 3} | options
    return headscope.probe(folder, data=data, **given)


@pytest.fixture(scope="module")
def result(folder: Path, rows: Path) -> ProbeResult:
    return probed(folder, rows)


def test_a_trained_head_is_scored_by_its_own_predictions(folder: Path, result: ProbeResult) -> None:
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
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


def test_the_same_seed_gives_the_same_result(folder: Path, rows: Path, result: ProbeResult) -> None:
    assert probed(folder, rows) == result
    assert probed(folder, rows, batch_size=7).to_dict()["best"] == result.best
    assert probed(folder, rows, seed=1) != result


def test_weights_that_the_checkpoint_lacks_are_named_and_drawn_from_the_seed(tmp_path: Path, rows: Path) -> None:
    model = untrained(NAMES)
    save(model, tmp_path / "model", NAMES)
    kept = {name: value for name, value in model.bert.state_dict().items() if "pooler" not in name}
    model.bert.save_pretrained(tmp_path / "model", state_dict=kept)
    once, again = (probed(tmp_path / "model", rows) for _ in range(2))
    assert once == again
    assert set(once.head_input.new) == {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    assert once.candidate("pooler").new == tuple(sorted(once.candidate("pooler").new)) != ()
    assert "initialized" in next(gap.reason for gap in once.left_out if gap.topic == "checkpoint")
    assert "checkpoint" not in {item.name for item in once.baselines}


def test_the_result_shows_itself(result: ProbeResult) -> None:
    assert " is best " in str(result).splitlines()[0]
    assert repr(result).startswith("<headscope probe ")
    assert "several; 0 embeddings" in result._repr_mimebundle_([], [])["text/html"]  # type: ignore[attr-defined]


def test_classes_that_the_sample_misses_are_told(folder: Path, tmp_path: Path) -> None:
    data = write_csv(tmp_path / "rows.csv", [*ROWS, ("word1 word2", "rare")])
    assert any(note.startswith("1 class ") and note.endswith(": rare") for note in probed(folder, data, limit=30).notes)


def test_rows_that_are_mostly_left_out_are_told(folder: Path, tmp_path: Path) -> None:
    rows = [(f"word{at % 4} word{at}", str(at % 2 if at < 12 else at)) for at in range(40)]
    notes = probed(folder, write_csv(tmp_path / "rows.csv", rows)).notes
    expected = (
        "28 of 40 rows left out with these classes; for numbers that are not classes, use --problem-type regression"
    )
    assert expected in notes, notes


def test_vectors_are_kept_in_a_folder_that_is_asked_for(folder: Path, rows: Path, tmp_path: Path) -> None:
    import numpy as np

    kept = tmp_path / "kept"
    probed(folder, rows, features=kept)
    stored = np.load(kept / "masked_mean-1.npy", mmap_mode="r")
    assert stored.shape == (90, 32)
    probed(folder, rows, features=kept)
    (kept / "notes.txt").write_text("mine")
    with pytest.raises(HeadscopeError, match=r": notes\.txt"):
        probed(folder, rows, features=kept)
    assert (kept / "notes.txt").is_file()


def test_more_rows_than_the_limit_are_sampled_in_proportion(folder: Path, tmp_path: Path) -> None:
    data = write_csv(
        tmp_path / "rows.csv",
        [(text, "positive" if at % 4 else "negative") for at, (text, _) in enumerate(texts(3, 200))],
    )
    result = probed(folder, data, limit=40)
    assert {item.label: item.texts for item in result.classes} == {"negative": 10, "positive": 30}
    assert (result.texts, result.available) == (40, 200)
    assert any(note.startswith("40 of 200 ") for note in result.notes)


def test_what_is_left_out_is_told(folder: Path, tmp_path: Path) -> None:
    extra = [("", "positive"), ("  ", "neutral"), (ROWS[0][0], ROWS[0][1]), ("word1 word2", "rare")]
    result = probed(folder, write_csv(tmp_path / "rows.csv", [*ROWS, *extra]))
    assert len(result.notes) == 4
    for note, start in zip(result.notes[1:], ("2 rows without a text", "1 class ", "1 repeated text "), strict=True):
        assert note.startswith(start)
    assert (result.texts, result.distinct, result.available) == (91, 90, 94)


def test_the_first_note_says_what_the_scores_are_of(result: ProbeResult) -> None:
    assert "frozen" in result.notes[0]


def test_pairs_of_texts_are_two_columns(folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "pairs.csv"
    lines = [f"{text},{text.split()[0]},{label}" for text, label in ROWS[:60]]
    data.write_text("\n".join(["a,b,label", *lines]), encoding="utf-8")
    result = probed(folder, data, text_column=("a", "b"))
    assert result.texts == 60


def one_class(folder: Path, place: Path) -> dict[str, Any]:
    return {"data": write_csv(place / "one.csv", [(text, "yes") for text, _ in ROWS])}


def few_rows(folder: Path, place: Path) -> dict[str, Any]:
    return {"data": write_csv(place / "few.csv", [*ROWS[:1], *((text, "neutral") for text, _ in ROWS[1:4])])}


def empty(folder: Path, place: Path) -> dict[str, Any]:
    return {"data": write_csv(place / "empty.csv", [(" ", label) for _, label in ROWS])}


def snapshot(folder: Path, place: Path) -> dict[str, Any]:
    headscope.snapshot(folder, place / "model.json")
    return {"reference": place / "model.json"}


def without_tokenizer(folder: Path, place: Path) -> dict[str, Any]:
    untrained(NAMES).save_pretrained(place / "bare")
    return {"reference": place / "bare"}


def not_finite(folder: Path, place: Path) -> dict[str, Any]:
    model = untrained(NAMES)
    with torch.no_grad():
        model.bert.embeddings.LayerNorm.weight.fill_(float("inf"))
    return {"reference": save(model, place / "model", NAMES)}


BAD: dict[str, tuple[Callable[[Path, Path], dict[str, Any]], str]] = {
    "no such column": (lambda folder, place: {"label_column": "lable"}, "has no column 'lable'"),
    "no such text": (lambda folder, place: {"text_column": "txt"}, "has no column 'txt'"),
    "one class": (one_class, "has one class, 'yes'"),
    "few rows": (few_rows, "only 'neutral' has 3 different texts or more, one for each fold (too few: negative)"),
    "empty texts": (empty, "no class has 3 different texts or more"),
    "a snapshot": (snapshot, "a snapshot, which holds no weights"),
    "no tokenizer": (without_tokenizer, "tokenizer"),
    "not finite": (not_finite, "no vector can be scored"),
    "another task": (
        lambda folder, place: {"model_class": "BertForTokenClassification"},
        "probe scores vectors of whole texts, and BertForTokenClassification is for token-classification",
    ),
    "no such file": (lambda folder, place: {"data": "nowhere.csv"}, "nowhere.csv doesn't exist"),
    "folds": (lambda folder, place: {"folds": 1}, "folds must be a whole number from 2, not 1"),
    "limit": (lambda folder, place: {"limit": "many"}, "limit must be int, not str 'many'"),
    "meta": (lambda folder, place: {"device": "meta"}, "the device is meta"),
    "no real device": (lambda folder, place: {"device": "tpu"}, "no such device: tpu"),
    "device": (lambda folder, place: {"device": "gpu"}, "no such device: gpu"),
    "labels": (lambda folder, place: {"label_column": ("a", "b")}, "has no column 'a'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_in_one_sentence(name: str, folder: Path, rows: Path, tmp_path: Path) -> None:
    make, sentence = BAD[name]
    given = {"reference": folder, "data": rows} | make(folder, tmp_path)
    with pytest.raises(HeadscopeError) as raised:
        probed(given.pop("reference"), **given)
    assert sentence in raised.value.message
    assert "\n" not in raised.value.message
    assert raised.value.hint
    assert "meta" not in raised.value.hint


def test_a_model_in_memory_has_no_tokenizer(rows: Path) -> None:
    with pytest.raises(HeadscopeError, match="in memory"):
        probed(untrained(NAMES), rows)  # type: ignore[arg-type]


def test_without_scikit_learn_the_command_says_what_to_install(
    folder: Path, rows: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    code = main(["probe", str(folder), "--data", str(rows), "--text-column", "text", "--label-column", "label"])
    assert code == 3
    assert 'pip install "headscope[probe]"' in capsys.readouterr().err


def command(folder: Path, rows: Path, *more: str) -> list[str]:
    columns = ["--text-column", "text", "--label-column", "label", "--folds", "3"]
    return ["probe", str(folder), "--data", str(rows), *columns, *more]


def test_the_document_is_valid_and_has_the_names_of_the_contract(
    folder: Path, rows: Path, capsys: pytest.CaptureFixture[str], result: ProbeResult
) -> None:
    assert main(command(folder, rows, "--json")) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(build_schema()).validate(document)
    assert document["command"] == "probe"
    assert {"name", "layer", "pooling", "metric", "mean", "low", "high"} <= document["candidates"][0].keys()
    assert (document["best"], document["head"]) == (result.best, "head")


def test_the_answer_comes_first(
    folder: Path, rows: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # in a pipe, lines stay whole
    assert main(command(folder, rows)) == 0
    screen = capsys.readouterr().out
    assert " is best " in screen.splitlines()[0]
    assert "method" not in screen
    assert main(command(folder, rows, "--details")) == 0
    whole = capsys.readouterr().out
    assert "several; 0 embeddings" in whole
    assert "logistic regression" in whole
    assert main(command(folder, rows, "-q")) == 0
    assert len(capsys.readouterr().out.splitlines()) <= 3


def test_a_module_and_a_picture_are_written(folder: Path, rows: Path, tmp_path: Path, result: ProbeResult) -> None:
    assert main(command(folder, rows, "-q", "-o", str(tmp_path / "advised.py"))) == 0
    text = (tmp_path / "advised.py").read_text()
    compile(text, "advised.py", "exec")
    assert text == result.code()  # type: ignore[attr-defined]
    assert main(command(folder, rows, "-q", "-o", str(tmp_path / "scores.svg"))) == 0
    assert (tmp_path / "scores.svg").read_text().startswith("<svg ")


def test_a_head_of_nan_predicts_nothing(tmp_path: Path, rows: Path) -> None:
    model = trained(NAMES)
    with torch.no_grad():
        model.classifier.weight.fill_(float("nan"))
    result = probed(save(model, tmp_path / "model", NAMES), rows)
    assert "NaN" in {gap.topic: gap.reason for gap in result.left_out}["checkpoint"]
    assert result.start is None
    assert "NaN" in result.probe_first.reason


def test_a_picture_in_another_format_is_refused_before_the_work(
    folder: Path, rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(folder, rows, "-o", str(tmp_path / "scores.png"))) == 2
    assert "probe draws .svg and .html" in capsys.readouterr().err


def test_data_are_asked_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", str(folder)]) == 2
    assert "add --data FILE" in capsys.readouterr().err


def test_a_decoder_without_a_pad_token_is_probed(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "gpt2", "gpt2", pads=False)
    lines = [(text, "ab"[at % 2]) for at, (text,) in enumerate(tiny.texts(40))]
    result = probed(folder, write_csv(tmp_path / "rows.csv", lines))
    assert result.candidate("head").same_as == "last_non_pad_token-2"
    assert result.padded is False
