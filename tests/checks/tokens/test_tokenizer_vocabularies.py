"""The tokens that the files of a tokenizer hold, old and new, broken and whole."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from headscope.core.checkpoints.contents.tokenizer_file import read_token_ids, read_vocabulary
from headscope.core.checkpoints.local import Folder
from headscope.errors import Malformed
from tests.checks.tokens.tokenized import check, found, save, scores, tokenizer, vocabulary


@pytest.mark.parametrize("older", ["special_tokens_map.json", "vocab.txt", "vocab.json"])
def test_the_files_of_older_tokenizers_are_read(older: str, tmp_path: Path) -> None:
    save(tmp_path, "gpt2", tokenizer("gpt2"), pad_token_id=33)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    names = {name: settings.pop(name) for name in list(settings) if name.endswith("_token")}
    settings.pop("added_tokens_decoder", None)
    if older.startswith("vocab"):
        vocabulary = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
        (tmp_path / "tokenizer.json").unlink()
        text = json.dumps(vocabulary) if older.endswith("json") else "\n".join(vocabulary) + "\n"
        (tmp_path / older).write_text(text)
        settings |= names
    else:
        (tmp_path / older).write_text(json.dumps(names))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert found(tmp_path) == {"HS306": "error"}


@pytest.mark.parametrize("settings", [{}, {"added_tokens_decoder": {"0": {"content": "[pad]"}}}])
def test_a_vocabulary_that_is_not_text_is_not_determined(settings: dict[str, Any], tmp_path: Path) -> None:
    save(tmp_path, "gpt2", tokenizer("gpt2"))
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"pad_token": "[pad]", "eos_token": "[eos]"} | settings))
    (tmp_path / "spiece.model").write_bytes(b"\x00")
    gaps = check(tmp_path).not_determined
    assert {item.rule for item in gaps} == {"HS306", "HS307"}
    assert all("spiece.model" in item.reason for item in gaps)


def test_a_tokenizer_without_a_vocabulary_gives_the_rules_on_ids_nothing_to_look_at(tmp_path: Path) -> None:
    save(tmp_path, "gpt2", tokenizer("gpt2"))
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer_config.json").write_text('{"pad_token": "[pad]"}')
    assert {item.rule for item in check(tmp_path).not_applicable} == {"HS306", "HS307"}


BROKEN = {
    "cut": "{", "no model": "{}", "no vocabulary": '{"model": {}}', "a list": "[]", "empty": "", "null": "null",
    "no ids": vocabulary('{"a": "b"}'), "a fraction": vocabulary('{"a": 1.5}'), "true": vocabulary('{"a": true}'),
    "below zero": vocabulary('{"a": -1}'), "past 32 bits": vocabulary('{"a": 1000000000}'),
    "5,000 digits": vocabulary('{"a": ' + "9" * 5000 + "}"), "an escape": vocabulary('{"\\x": 1}'),
    "half a letter": vocabulary('{"\\ud800": 1}'), "twice": vocabulary('{"a": 1, "a": 2}'),
    "pieces without text": vocabulary("[[1, -0.5]]"), "pieces of lists": vocabulary("[[[], -0.5]]"),
    "empty pieces": vocabulary("[[]]"), "pieces as text": vocabulary('["a"]'), "a text": vocabulary('"abc"'),
    "nested": vocabulary("[" * 100_000 + "]" * 100_000), "ten million values": vocabulary("[" + "[]," * 10**7 + "[]]"),
}  # fmt: skip


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_broken_vocabulary_is_not_determined(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(Malformed):
        read_token_ids(Folder(tmp_path), {})
    with pytest.raises(Exception, match=r"."):
        Tokenizer.from_file(str(tmp_path / "tokenizer.json"))


@pytest.mark.parametrize(
    ("listed", "expected"),
    [({"7": {"content": "<x>"}}, {"<x>": 7, "<y>": 8}), ({"7": "<x>"}, {"<x>": 7, "<y>": 8}),
     ({"7": {"content": 5}}, {"<y>": 8}), ({"-7": "<x>"}, {"<y>": 8}), ({"x": "<x>"}, {"<y>": 8}),
     ({"9" * 10: "<x>"}, {"<y>": 8}), ({"7": "\ud800"}, {"<y>": 8}), ({"7": None}, {"<y>": 8}), ([7], {"<y>": 8})],
)  # fmt: skip
def test_added_tokens_are_those_of_both_files_beside_a_vocabulary(
    listed: Any, expected: dict[str, int], tmp_path: Path
) -> None:
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    (tmp_path / "added_tokens.json").write_text('{"<y>": 8}')
    ids = read_token_ids(Folder(tmp_path), {"added_tokens_decoder": listed})
    assert ({item.token: item.id for item in ids.added}, ids.vocabulary) == (expected, {"a": 0})


def test_an_added_token_that_is_not_an_object_is_left_out(tmp_path: Path) -> None:
    added = [None, 7, "<x>", {"id": 7, "content": "<y>"}, {"content": "<z>"}]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added, "model": {"vocab": {}}}))
    assert [(item.token, item.id) for item in read_token_ids(Folder(tmp_path), {}).added] == [("<y>", 7)]


def test_what_could_not_be_read_of_a_tokenizer_is_not_determined(tmp_path: Path) -> None:
    save(tmp_path, "gpt2", tokenizer("gpt2"))
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(2 << 30)
    result = check(tmp_path)
    assert {item.rule for item in result.not_determined} == {"HS306", "HS307"}
    assert result.verdict == "not_determined"


@pytest.mark.parametrize("model", [models.BPE, models.WordPiece, models.Unigram])
def test_the_vocabulary_is_the_one_that_the_tokenizers_library_reads(model: Any, tmp_path: Path) -> None:
    strange = ["a", '"', "\\", "\\\\", "ä€😀", "\u2028", "\n", '": 5', "padding", "model", "[", "}"]
    if model is models.Unigram:
        inner = Tokenizer(models.Unigram([(token, -float(at)) for at, token in enumerate(strange)], unk_id=0))
    else:
        inner = Tokenizer(
            model(
                {token: at for at, token in enumerate(strange)}, **({} if model is models.WordPiece else {"merges": []})
            )
        )
    inner.add_special_tokens(["<p>"])
    for pretty in (True, False):
        inner.save(str(tmp_path / "tokenizer.json"), pretty=pretty)
        assert read_vocabulary(Folder(tmp_path)) == inner.get_vocab(with_added_tokens=True)


def test_a_vocab_txt_is_split_at_line_ends_only(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes('a\u2028b\n"\\\r\n\x85\nz\n'.encode())
    assert read_vocabulary(Folder(tmp_path)) == {"a\u2028b": 0, '"\\': 1, "\x85": 2, "z": 3}


def test_of_several_added_tokens_the_one_with_the_highest_id_counts(tmp_path: Path) -> None:
    tokens = tokenizer("gpt2", count=97)
    tokens.add_tokens(["w500", "w501", "w502"])
    save(tmp_path, "gpt2", tokens)  # 99 rows: the first two added tokens fit
    assert scores(tmp_path, ["w11 w501"]).isfinite().all()
    with pytest.raises(IndexError):
        scores(tmp_path, ["w11 w502"])
    (item,) = check(tmp_path).findings
    assert (item.id, "'w502'" in item.message) == ("HS307", True)
