"""Cards as files: what is written and refused, servers and files compared with them, and nothing heavy imported."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from jsonschema import Draft202012Validator
from serving.cards.making import LIMIT, judged_by_card, save_checkpoint
from serving.classifiers import LABELS, as_it_is, cut_to, load_model, scorer, without_pooler
from serving.servers import serve
from transformers import AutoTokenizer

import headscope
from headscope.errors import Malformed, NotFound, Unsupported, UsageError
from headscope.shared.serving.card import writing
from headscope.shared.serving.card.reading import read_card
from tests.cli.command import Cli

SCHEMA = Path(__file__).parents[3] / "docs" / "schema" / "headscope-card-1.schema.json"


def read(card: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(card.read_text())
    return found


def test_a_card_has_what_the_tokenizer_and_the_model_give(checkpoint: str, card: Path) -> None:
    document, model = read(card), load_model(checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    assert list(document)[:2] == ["format", "version"] and document["formula"] == "classifier(tanh(dense(h[CLS])))"
    assert (document["labels"], document["activation"], len(document["inputs"])) == (list(LABELS), "softmax", 32)
    batches: dict[int, list[dict[str, Any]]] = {}
    for item, logits in zip(document["inputs"], document["logits"], strict=True):
        pair = [item["text"], *([item["text_pair"]] if item["text_pair"] else [])]
        if item["batch"] is None:
            assert item["input_ids"] == tokenizer(*pair, truncation=True)["input_ids"]
            assert item["is_truncated"] is (len(tokenizer(*pair)["input_ids"]) > tokenizer.model_max_length)
        else:
            batches.setdefault(item["batch"], []).append(item)
        names = ("input_ids", "attention_mask", "token_type_ids")
        with torch.no_grad():
            own = model(**{name: torch.tensor([item[name]]) for name in names}).logits[0]
        torch.testing.assert_close(torch.tensor(logits), own, rtol=1e-4, atol=1e-5)
    for items in batches.values():
        texts = [item["text"] for item in items], [item["text_pair"] for item in items]
        padded = tokenizer(texts[0], texts[1] if texts[1][0] else None, padding=True)
        assert [item["input_ids"] for item in items] == padded["input_ids"]
        assert [item["attention_mask"] for item in items] == padded["attention_mask"]
    pairs = [item for item in document["inputs"] if item["text_pair"] is not None]
    assert (len(batches), len(pairs), sum(item["is_truncated"] for item in document["inputs"])) == (2, 16, 1)
    scores = torch.tensor(document["logits"]).softmax(1)
    torch.testing.assert_close(scores, torch.tensor(document["scores"]), rtol=0, atol=1e-6)


def test_a_card_is_small_and_names_no_place_and_follows_its_schema(checkpoint: str, card: Path) -> None:
    text = card.read_text()
    assert (
        len(text) < 300_000 and text.isascii() and checkpoint not in text and str(Path(checkpoint).parent) not in text
    )
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(json.loads(text))
    done = subprocess.run(["sha256sum", f"{checkpoint}/model.safetensors"], capture_output=True, text=True, check=True)
    assert read(card)["weights"] == [{"name": "model.safetensors", "sha256": done.stdout.split()[0]}]


def test_tolerances_are_those_of_the_model_itself(checkpoint: str, card: Path) -> None:
    document = read(card)
    limits = {item["precision"]: item for item in document["tolerances"]}
    assert 0 < limits["float32"]["logits"] < limits["float16"]["logits"] < limits["bfloat16"]["logits"]
    brain = next(run["logits"] for run in document["runs"] if run["name"] == "bfloat16")
    off = float(np.abs(np.asarray(brain) - document["logits"]).max())
    assert limits["bfloat16"]["logits"] == pytest.approx(4 * off, rel=1e-3)


def test_padding_is_on_the_tokenizers_side(tmp_path: Path) -> None:
    headscope.write_card(save_checkpoint("Qwen3", tmp_path / "model", side="left"), tmp_path / "card.json")
    document = read(tmp_path / "card.json")
    assert document["padding_side"] == "left" and document["inputs"][0]["attention_mask"][0] == 0
    assert "without the causal mask" in [item["name"] for item in document["alternatives"]]


def test_padding_that_changes_the_scores_is_left_out(tmp_path: Path) -> None:
    """GPT-2 counts positions from the first one, even if that is padding: on the left, there is no right answer."""
    written = headscope.write_card(save_checkpoint("GPT2", tmp_path / "model", side="left"), tmp_path / "card.json")
    assert written.padding_side == "right"
    assert all(item.attention_mask[0] == 1 for item in written.inputs)


def test_what_a_card_lacks_is_said(tmp_path: Path) -> None:
    folder = save_checkpoint("GPT2", tmp_path / "model", pad_token_id=None)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.model_max_length = 4096
    tokenizer.save_pretrained(folder)
    written = headscope.write_card(folder, tmp_path / "card.json", text=[f"a text {at}" * at for at in range(1, 9)])
    assert (len(written.inputs), written.padding_side) == (8, None)
    assert [gap.topic for gap in written.not_determined] == ["padded inputs"]


DAMAGED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "another format": (lambda card: card.update(format="headscope-snapshot"), "not a card"),
    "a later version": (lambda card: card.update(version=2), "card of version 2, but this headscope reads version 1"),
    "no version": (lambda card: card.pop("version"), "card of version None"),
    "not a number": (lambda card: card["logits"][3].__setitem__(0, float("nan")), "not finite"),
    "an infinite alternative": (lambda card: card["alternatives"][2]["logits"][0].__setitem__(1, 1e999), "not finite"),
    "a text for a number": (
        lambda card: card["logits"][3].__setitem__(0, "1"),
        "logits: item 3: item 0: a number was expected, found a text",
    ),
    "true for a number": (lambda card: card["scores"][3].__setitem__(0, True), "scores: item 3: item 0: a number was"),
    "a list for an input": (lambda card: card["inputs"].__setitem__(2, []), "inputs: item 2: an object was expected"),
    "an input without its mask": (lambda card: card["inputs"][2].pop("attention_mask"), "item 2: the fields don't fit"),
    "one row less": (lambda card: card["logits"].pop(), "not 32 rows of 3 numbers"),
    "one class less": (lambda card: card["runs"][0]["logits"][5].pop(), "not 32 rows of 3 numbers"),
    "a longer mask": (lambda card: card["inputs"][7]["attention_mask"].append(1), "don't fit"),
    "one input more": (lambda card: card["inputs"].append(card["inputs"][0]), "not 33 rows"),
    "no labels": (lambda card: card.update(labels=[]), "0 labels"),
    "other scores": (lambda card: card["scores"].reverse(), "not the softmax of the logits"),
    "an unknown activation": (lambda card: card.update(activation="relu"), "unknown"),
    "one name twice": (lambda card: card["alternatives"][1].update(name="as it is"), "one name"),
    "a larger tolerance": (lambda card: card["tolerances"][0].update(logits=1.0), "doesn't follow from its runs"),
    "another run": (lambda card: card["runs"][0]["logits"][2].__setitem__(0, 9.0), "doesn't follow from its runs"),
    "a tolerance twice": (lambda card: card["tolerances"].append(card["tolerances"][0]), "of one precision"),
    "a field more": (lambda card: card.update(extra=1), "'extra' is unknown"),
    "a field less": (lambda card: card.pop("runs"), "runs is missing"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_card_is_refused(damage: str, card: Path, tmp_path: Path, cli: Cli) -> None:
    document, (change, words) = read(card), DAMAGED[damage]
    change(document)
    bad, scores = tmp_path / "bad.json", tmp_path / "scores.json"
    bad.write_text(json.dumps(document))
    scores.write_text("[]")
    told = " ".join(cli("verify", "--card", bad, "--scores", scores, code=3).err.split())
    assert words in told and "bad.json" in told and "Traceback" not in told, told


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no rows"), ("[]", "no rows"), ("[1, 2", "line 1, column 6"),
        ("{}", "scores or logits: no list found, and a row for each of the card's 32 inputs expected"),
        ("[[1, 2, 3]]", "1 row found"), (json.dumps([["a"]] * 32), "rows, row 0: neither a number nor a list"),
        (json.dumps({"logits": [[1, 2, 3]] * 31 + [[1e999, 1, 1]]}), "logits, row 31: a number that is not finite"),
        (json.dumps({"scores": [[1, 2, 3]] * 31 + [[1, 2]]}), "scores, row 31: 2 numbers found, and one for each of"),
        ('[{"scores": [1]}, {"logits": [1]}]', "row 1 has other fields than row 0"),
        ("[1, 2, 3]\n[1, 2\n", "line 2 of scores.json is not valid JSON"),
        (json.dumps({"scores": [[1, 2, 3]] * 32, "labels": ["a"]}), "labels: 1 name found"),
        (json.dumps({"scores": [[1, 2, 3]] * 32, "labels": ["a", "b", "a"]}), "labels: 2 names found"),
        (json.dumps({"scores": [[1, 2, 3]] * 32, "input_ids": [[1], *[[1.5]] * 31]}), "input_ids, row 1: not a"),
        (json.dumps({"scores": [[1, 2, 3]] * 32, "dtype": "bf16"}), "dtype: 'bf16' found, and float32, float16"),
    ],
)  # fmt: skip
def test_scores_of_another_form_are_refused(card: Path, tmp_path: Path, text: str, words: str) -> None:
    scores = tmp_path / "scores.json"
    scores.write_text(text)
    with pytest.raises(Malformed) as caught:
        headscope.verify_card(card, scores=scores)
    assert words in caught.value.message and "server" not in caught.value.message, caught.value.message
    assert "scores.json" in caught.value.message and caught.value.hint


def test_scores_come_as_lines_and_with_labels_too(card: Path, tmp_path: Path) -> None:
    document, scores = read(card), tmp_path / "scores.jsonl"
    for line in (lambda row: row, lambda row: {"scores": row}):
        scores.write_text("".join(f"{json.dumps(line(row))}\n" for row in document["scores"]))
        assert headscope.verify_card(card, scores=scores).served.same is True
    rows = [row[::-1] for row in document["scores"]]
    scores.write_text(json.dumps({"scores": rows, "labels": list(LABELS[::-1]), "engine": "mine", "version": "3"}))
    found = headscope.verify_card(card, scores=scores)
    assert (found.served.same, found.engine, found.engine_version, found.protocol) == (True, "mine", "3", "file")
    assert judged_by_card(card, tmp_path, document["logits"], logits=True).same is True
    assert judged_by_card(card, tmp_path, document["logits"]).same is False


def test_a_card_is_compared_without_pytorch_and_without_the_checkpoint(card: Path, tmp_path: Path) -> None:
    scores = tmp_path / "scores.json"
    scores.write_text(json.dumps({"logits": read(card)["alternatives"][0]["logits"]}))
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from headscope.shell.app import main\n"
        "code = main(sys.argv[1:])\n"
        "loaded = {name for name, module in sys.modules.items() if module}\n"
        "heavy = {'torch', 'transformers', 'tokenizers', 'peft'} & loaded\n"
        "assert not heavy, heavy\n"
        "sys.exit(code)"
    )
    command = [sys.executable, "-c", code, "verify", "--card", str(card), "--scores", str(scores), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["served"]["explanation"]["variant"] == read(card)["alternatives"][0]["name"]


@pytest.mark.parametrize("protocol", ["vllm", "tei", "inputs", "kserve", "infinity", "sglang"])
def test_a_server_is_compared_with_a_card(protocol: str, checkpoint: str, card: Path) -> None:
    with serve(protocol, scorer(checkpoint, cut_to(LIMIT)), LABELS) as url:
        right = headscope.verify_card(card, url)
    with serve(protocol, scorer(checkpoint, cut_to(LIMIT, without_pooler)), LABELS) as url:
        wrong = headscope.verify_card(card, url).served
    takes_pairs = protocol in ("tei", "inputs")
    assert right.served.same is True and right.served.texts == (32 if takes_pairs else 16), right
    assert any("16 pairs" in note for note in right.served.notes) is not takes_pairs, right.served.notes
    assert wrong.explanation is not None and wrong.explanation.variant == "without dense and tanh", wrong
    assert wrong.explanation.formula == "classifier(h[CLS])"


def test_a_server_that_refuses_long_texts_is_compared_on_the_others(checkpoint: str, card: Path) -> None:
    right = scorer(checkpoint, as_it_is)

    def scores(text: tuple[str, ...]) -> Sequence[float]:
        if len(text[0]) > LIMIT:
            raise OSError("refused")
        return right(text)

    with serve("tei", scores, LABELS) as url:
        found = headscope.verify_card(card, url, server_timeout=5.0).served
    assert (found.same, found.texts) == (True, 31), found
    assert any(note.startswith("1 text beyond the limit") for note in found.notes)


def test_a_server_of_pairs_gets_the_pairs(tmp_path: Path) -> None:
    folder = save_checkpoint("Bert", tmp_path / "model", id2label={0: "LABEL_0"}, num_labels=1)
    headscope.write_card(folder, tmp_path / "card.json")
    with serve("llama-cpp", scorer(folder, as_it_is), ["LABEL_0"]) as url:
        found = headscope.verify_card(tmp_path / "card.json", url, logits=True)
    assert found.served.texts == 16 and found.served.same is True, found


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--card", "CARD"], "either a URL or a file of scores"),
        (["--card", "CARD", "--scores", "S", "--url", "http://localhost"], "either a URL or a file of scores"),
        (["MODEL", "--card", "CARD", "--scores", "S"], "leave out MODEL"),
        (["MODEL", "--scores", "S"], "add --card FILE"),
        (["MODEL", "--write-card", "new.json", "--url", "http://localhost"], "doesn't go with --write-card"),
        (["--write-card", "new.json"], "name a MODEL"),
        (["--card", "CARD", "--scores", "S", "--head"], "--head doesn't go with --scores"),
        (["--card", "CARD", "--scores", "S", "--text", "a"], "--text a doesn't go with --scores"),
        (["--card", "CARD", "--scores", "S", "--format", "junit"], "--format junit"),
        (["--card", "CARD", "--scores", "S", "--server-token", "t"], "--server-token doesn't go with --scores"),
        (["--card", "CARD", "--scores", "S", "--ca", "ca.pem"], "--ca ca.pem doesn't go with --scores"),
        (["--card", "CARD", "--scores", "S", "--batch-size", "2"], "--batch-size 2 doesn't go with --scores"),
        (["--card", "CARD", "--scores", "S", "--protocol", "tei"], "--protocol tei doesn't go with --scores"),
        (["--card", "CARD", "--scores", "S", "--served-model", "m"], "--served-model m doesn't go with --scores"),
        (["--card", "CARD", "--scores", "S", "--num-labels", "3"], "--num-labels 3 doesn't go with --scores"),
        (["--card", "CARD", "--scores", "S", "--python", "p"], "--python p doesn't go with --scores"),
        (["--card", "CARD", "--url", "http://localhost", "--python", "p"], "--python p doesn't go with --card"),
        (["--card", "CARD", "--url", "http://localhost", "--text", "a"], "--text a doesn't go with --card"),
        (["--card", "CARD", "--url", "http://localhost", "--token", "t"], "--token doesn't go with --card"),
        (["--card", "CARD", "--url", "http://localhost", "--against", "m"], "--against m doesn't go with --card"),
        (["MODEL", "--write-card", "new.json", "--server-token", "t"], "--server-token doesn't go with --write-card"),
        (["MODEL", "--write-card", "new.json", "--dtype", "float16"], "--dtype float16 doesn't go with --write-card"),
        (["MODEL", "--write-card", "new.json", "--num-labels", "3"], "--num-labels 3 doesn't go with --write-card"),
        (["MODEL", "--write-card", "new.json", "-o", "x.json"], "writes the card alone"),
        (["MODEL", "--write-card", "new.json", "--json"], "writes the card alone"),
        (["MODEL", "--server-token", "t"], "add --url URL or --with ENGINE"),
        ([], "name a MODEL"),
        (["MODEL", "--write-card", "no/such/folder.json"], "there is no folder"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    words: list[str], told: str, card: Path, checkpoint: str, cli: Cli
) -> None:
    places = {"CARD": str(card), "S": str(card), "MODEL": checkpoint}
    assert told in cli("verify", *(places.get(word, word) for word in words), code=2).words


def test_a_token_of_the_environment_goes_with_everything(
    card: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    scores = tmp_path / "scores.json"
    scores.write_text(json.dumps(read(card)["scores"]))
    monkeypatch.setenv("HEADSCOPE_SERVER_TOKEN", "secret")
    cli("verify", "--card", card, "--scores", scores)
    with pytest.raises(UsageError, match="server_token: only for a server"):
        headscope.verify_card(card, scores=scores, server_token="other")


def test_a_card_that_would_be_too_large_is_written_without_alternatives_then_without_runs(
    card: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = read_card(card)
    sizes, limit = [], 10**9
    for _ in range(3):
        monkeypatch.setattr(writing, "LARGEST_CARD", limit)
        fitted, text = writing.fit_card(whole)
        smaller = card.with_name(f"{limit}.json")
        smaller.write_text(text)
        assert read_card(smaller) == fitted and len(text) <= limit
        sizes.append((len(fitted.runs), len(fitted.alternatives), [gap.topic for gap in fitted.not_determined]))
        assert fitted.alternatives_left_out == whole.alternatives_left_out + len(whole.alternatives) * (limit < 10**9)
        limit = len(text) - 1
    runs, alternatives = len(whole.runs), len(whole.alternatives)
    assert sizes == [(runs, alternatives, []), (runs, 0, ["alternatives"]), (0, 0, ["alternatives", "runs"])]
    monkeypatch.setattr(writing, "LARGEST_CARD", limit)
    with pytest.raises(UsageError, match="over the limit of"):
        writing.fit_card(whole)
    assert fitted.tolerances[1].logits is None and fitted.tolerances[0].logits is not None


def test_the_command_shows_what_differs(card: Path, tmp_path: Path, cli: Cli) -> None:
    document, scores = read(card), tmp_path / "scores.json"
    scores.write_text(json.dumps(document["scores"]))
    assert "the checkpoint's scores (32 texts)" in cli("verify", "--card", card, "--scores", scores).words
    other = next(item for item in document["alternatives"] if item["name"] == "without dense and tanh")
    scores.write_text(json.dumps({"logits": other["logits"]}))
    shown = cli("verify", "--card", card, "--scores", scores, code=1).words
    assert "it computes classifier(h[CLS])" in shown and "separate process" not in shown


def test_what_gives_no_scores_has_no_card(tmp_path: Path) -> None:
    headless = tmp_path / "headless"
    folder = save_checkpoint("Bert", headless)
    transformers.BertModel.from_pretrained(folder).save_pretrained(folder)
    with pytest.raises(Unsupported):
        headscope.write_card(folder, tmp_path / "card.json")
    assert not (tmp_path / "card.json").exists()
    with pytest.raises(NotFound):
        headscope.verify_card(tmp_path / "card.json", scores=tmp_path / "scores.json")
    with pytest.raises(UsageError):
        headscope.write_card(torch.nn.Linear(1, 1), tmp_path / "card.json")  # type: ignore[arg-type]


def test_a_card_that_can_not_be_written_is_a_sentence(checkpoint: str) -> None:
    with pytest.raises(UsageError, match=r"could not be written|no folder"):
        headscope.write_card(checkpoint, "/proc/card.json")
