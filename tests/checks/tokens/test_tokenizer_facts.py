"""The tokenizer held against the configuration and the weights: real tokenizers and real models are the truth."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import headscope
from tests.checks.tokens.tokenized import END, SPECIAL, TEXT, check, found, save, scores, template, tokenizer
from tests.edits import edit_json
from tests.families import FAMILIES

SHORT, LONG = "w11 w12 w13 w14", "w21 w22 w23 w24 w25 w26 w27"


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(
    ("role", "family"), [(role, name) for name in SPECIAL for role in ("pad", "eos") if role in SPECIAL[name][0]]
)
def test_another_id_is_an_error_exactly_where_the_scores_of_a_batch_differ(
    role: str, family: str, side: str, tmp_path: Path
) -> None:
    right = {f"{role}_token_id": SPECIAL[family][0][role]}
    save(tmp_path, family, tokenizer(family, side), **{f"{role}_token_id": 33})
    wanted = scores(tmp_path, [SHORT, LONG], **right)
    try:
        differs = not torch.allclose(scores(tmp_path, [SHORT, LONG]), wanted, atol=1e-4)
    except (ValueError, RuntimeError, IndexError):
        differs = True
    (item,) = [item for item in check(tmp_path).findings if item.id == "HS306"]
    assert (item.severity == "error") is differs, item.message
    assert f"{role}_token_id is 33 (config.json)" in item.message
    assert f"is {SPECIAL[family][0][role]} (tokenizer.json)" in item.message


@pytest.mark.parametrize("family", SPECIAL)
def test_the_ids_of_a_healthy_checkpoint_are_silent(family: str, tmp_path: Path) -> None:
    save(tmp_path, family, tokenizer(family, model_max_length=60))
    result = check(tmp_path)
    assert (result.findings, result.not_determined) == ((), ())


def test_a_word_that_the_configuration_takes_for_padding_is_a_warning(tmp_path: Path) -> None:
    save(tmp_path, "llama", tokenizer("llama", "left"), pad_token_id=14)
    assert torch.allclose(scores(tmp_path, [SHORT[:-4], LONG]), scores(tmp_path, [SHORT[:-4]]), atol=1e-4)
    assert not torch.allclose(scores(tmp_path, [SHORT]), scores(tmp_path, [SHORT], pad_token_id=0), atol=1e-4)
    assert found(tmp_path) == {"HS306": "warning"}


def test_the_end_token_as_padding_of_the_configuration_is_inert_on_the_left(tmp_path: Path) -> None:
    save(tmp_path, "gpt2", tokenizer("gpt2", "left"), pad_token_id=2)
    assert found(tmp_path) == {"HS306": "note"}


WIDE = {"vocab_size": 50_257, "n_layer": 1, "n_positions": 1024}
"""A vocabulary too large for the first small model on which padding is measured: there it is made smaller."""


def test_a_pad_token_outside_the_vocabulary_fails_in_a_small_model_as_in_the_whole(tmp_path: Path) -> None:
    model = FAMILIES["gpt2"].build("GPT2ForSequenceClassification", **WIDE, n_embd=192, pad_token_id=50_257)
    model.save_pretrained(tmp_path)
    ids = torch.tensor([[5, 6, 7, 50_257]])
    with pytest.raises(IndexError) as failure:
        model(ids, attention_mask=(ids != 50_257).long())
    effects = headscope.inspect(tmp_path, prove=True).head.verification.padding
    assert [(item.side, item.changes) for item in effects] == [("right", None), ("left", None)]
    assert all(str(failure.value) in item.reason for item in effects)


def test_a_pad_token_outside_the_vocabulary_fails_for_rows_of_a_language_model_too(tmp_path: Path) -> None:
    FAMILIES["gpt2"].build("GPT2LMHeadModel", vocab_size=300, pad_token_id=300).save_pretrained(tmp_path)
    effects = headscope.inspect(tmp_path, tokens="id:4,id:5", prove=True).head.verification.padding
    assert {item.reason.partition(":")[0] for item in effects} == {"IndexError"}


def test_padding_is_not_measured_without_a_pad_token(tmp_path: Path) -> None:
    wide = FAMILIES["gpt2"].build("GPT2ForSequenceClassification", **WIDE, n_embd=768, num_labels=1000)
    wide.save_pretrained(tmp_path)  # one layer and this head are more than the first limit
    effects = headscope.inspect(tmp_path, prove=True).head.verification.padding
    assert {(item.changes, item.reason) for item in effects} == {(None, "no pad token is set")}


@pytest.mark.parametrize(
    ("added", "special", "severity"),
    [("w500", False, "error"), ("<image>", True, "warning"), ("[pad]", True, "error")],
    ids=["a word", "a token that only its name gives", "the pad token"],
)
def test_a_token_beyond_the_embedding_raises_in_service(
    added: str, special: bool, severity: str, tmp_path: Path
) -> None:
    tokens = tokenizer("gpt2", count=99)
    tokens.add_tokens([added if added != "[pad]" else "[other pad]"], special_tokens=special)
    if added == "[pad]":
        tokens.pad_token = "[other pad]"
    save(tmp_path, "gpt2", tokens)
    with pytest.raises(IndexError):
        scores(tmp_path, [f"w11 {added}"] if added != "[pad]" else [SHORT, LONG])
    assert found(tmp_path)["HS307"] == severity


def test_words_beyond_the_embedding_raise_and_a_padded_embedding_does_not(tmp_path: Path) -> None:
    larger = save(tmp_path / "larger", "bert", tokenizer("bert", count=120))
    with pytest.raises(IndexError):
        scores(larger, ["w110"])
    (item,) = check(larger).findings
    assert (item.id, item.severity) == ("HS307", "error")
    assert "99 rows" in item.message
    assert all(word in item.message for word in ("'w119'", " 119 ", "(tokenizer.json)"))
    assert found(save(tmp_path / "same", "bert", tokenizer("bert", count=99))) == {}


def test_special_tokens_that_no_file_lists_are_appended_in_their_order(tmp_path: Path) -> None:
    tokens = tokenizer("gpt2", count=99)
    tokens.add_tokens(["<image>"], special_tokens=True)
    save(tmp_path, "gpt2", tokens)
    new = {"pad_token": "<new>", "bos_token": "<start>"}
    edit_json(tmp_path / "tokenizer_config.json", new)
    encode = AutoTokenizer.from_pretrained(tmp_path)
    assert (encode.bos_token_id, encode.pad_token_id) == (100, 101)
    with pytest.raises(IndexError):
        scores(tmp_path, [SHORT, LONG])
    messages = {str(item.severity): item.message for item in check(tmp_path).findings if item.id == "HS307"}
    for severity, token, number in (("warning", "<start>", 100), ("error", "<new>", 101)):
        assert repr(token) in messages[severity] and f" {number} (" in messages[severity]


def test_special_tokens_and_sides_that_no_file_names_are_those_of_the_class(tmp_path: Path) -> None:
    FAMILIES["bert"].build("BertForSequenceClassification", pad_token_id=7).save_pretrained(tmp_path / "bert")
    (tmp_path / "bert" / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]))
    assert AutoTokenizer.from_pretrained(tmp_path / "bert").pad_token_id == 0
    assert [item.message for item in check(tmp_path / "bert", "HS306").findings if "'[PAD]' is 0" in item.message]
    FAMILIES["xlnet"].build("XLNetForSequenceClassification").save_pretrained(tmp_path / "xlnet")
    for side, expected in ((None, []), ("right", ["HS303"])):
        settings = {"padding_side": side} if side else {}
        (tmp_path / "xlnet" / "tokenizer_config.json").write_text(json.dumps(settings))
        assert [item.id for item in check(tmp_path / "xlnet", "HS303").findings] == expected


@pytest.mark.parametrize(
    ("family", "length", "raises"),
    [("bert", 64, False), ("bert", 65, True), ("roberta", 62, False), ("roberta", 63, True), ("llama", 500, False),
     ("t5", 500, False), ("bart", 65, True), ("gpt2", 1_000_000, True)],
)  # fmt: skip
def test_texts_as_long_as_the_tokenizer_allows(family: str, length: int, raises: bool, tmp_path: Path) -> None:
    save(tmp_path, family, tokenizer(family, model_max_length=length))
    encode = AutoTokenizer.from_pretrained(tmp_path)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    inputs = encode("w11 " * 200, truncation=True, return_tensors="pt")
    try:
        model(inputs.input_ids, attention_mask=inputs.attention_mask)
    except (IndexError, RuntimeError):
        assert raises
    else:
        assert not raises
    assert ("HS308" in found(tmp_path)) is raises


PADDING = {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0}
PADDING |= {"pad_type_id": 0, "pad_token": "[pad]"}
CUTTING = {"direction": "Right", "max_length": 50, "strategy": "LongestFirst", "stride": 0}


@pytest.mark.parametrize(
    ("parts", "settings", "said"),
    [
        ({"padding": PADDING | {"direction": "Left"}}, {}, "padding_side is 'right'"),
        ({"padding": PADDING | {"pad_token": "[unk]"}}, {}, "pad_token is '[pad]'"),
        ({"padding": PADDING | {"pad_token": "[PAD]"}}, {}, ""),
        ({"padding": PADDING, "truncation": CUTTING}, {"truncation_side": "right"}, ""),
        ({"truncation": CUTTING | {"direction": "Left"}}, {"truncation_side": "right"}, "truncation_side is 'right'"),
        ({"truncation": CUTTING | {"direction": "Left"}}, {}, ""),
        ({}, {"added_tokens_decoder": {"4": {"content": "[mask]"}}}, ""),
        ({}, {"added_tokens_decoder": {"5": {"content": "[mask]"}}}, "the id of '[mask]' is 4 (tokenizer.json)"),
        ({}, {"added_tokens_decoder": {"5": {"content": "[other]"}}}, ""),
    ],
)
def test_two_files_that_differ_are_a_note(
    parts: dict[str, Any], settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    save(tmp_path, "bert", tokenizer("bert"))
    for name, more in (("tokenizer.json", parts), ("tokenizer_config.json", settings)):
        edit_json(tmp_path / name, more)
    if "padding" in parts and not settings:
        assert AutoTokenizer.from_pretrained(tmp_path).padding_side == "right"
    notes = [(item.id, str(item.severity)) for item in check(tmp_path).findings]
    assert notes == ([("HS309", "note")] if said else [])
    assert all(said in item.message for item in check(tmp_path).findings)


@pytest.mark.parametrize("length", [10**9, 10**30, 0, -1, True, "512", 64.5, None])
def test_a_length_that_cuts_nothing_is_no_limit(length: Any, tmp_path: Path) -> None:
    save(tmp_path, "bert", tokenizer("bert"))
    edit_json(tmp_path / "tokenizer_config.json", {"model_max_length": length})
    assert check(tmp_path, "HS308").verdict == "passed"


def test_only_an_id_that_the_embeddings_have_and_the_tokenizer_lacks_is_another_id(tmp_path: Path) -> None:
    for number, (family, stated, expected) in enumerate(
        (("bert", {"sep_token_id": 5000}, []), ("bart", {"eos_token_id": [2, 33]}, []), ("bert", {}, ["HS306"]))
    ):
        folder = save(tmp_path / str(number), family, tokenizer(family, count=90))
        file = folder / "config.json"
        values = {name: value for name, value in json.loads(file.read_text()).items() if name != "pad_token_id"}
        file.write_text(json.dumps(values | stated))
        if not stated:
            vocabulary = folder / "tokenizer.json"
            text = vocabulary.read_text().replace('"[pad]": 0', '"[pad]": 7').replace('"w7": 7', '"w7": 0')
            vocabulary.write_text(text.replace('"id": 0', '"id": 7'))
        findings = check(folder, "HS306").findings
        assert [item.id for item in findings] == expected
        assert all("default" in item.message for item in findings)


@pytest.mark.parametrize(("other", "expected"), [("{{ b }}", {"HS309": "note"}), ("{{ a }}\r\n", {})])
@pytest.mark.parametrize(
    "form", [str, lambda text: [{"name": "tool", "template": "x"}, {"name": "default", "template": text}]]
)
def test_two_chat_templates_that_differ_are_a_note(
    other: str, expected: dict[str, str], form: Any, tmp_path: Path
) -> None:
    save(tmp_path, "llama", tokenizer("llama", chat_template="{{ a }}"))
    edit_json(tmp_path / "tokenizer_config.json", {"chat_template": form(other)})
    assert AutoTokenizer.from_pretrained(tmp_path).chat_template == "{{ a }}"
    assert found(tmp_path) == expected


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", SPECIAL)
def test_no_side_of_cutting_costs_a_text_a_special_token(family: str, side: str, tmp_path: Path) -> None:
    tokenizer(family, model_max_length=5, truncation_side=side).save_pretrained(tmp_path)
    encode = AutoTokenizer.from_pretrained(tmp_path)
    special = [token for token in encode.tokenize("w11", add_special_tokens=True) if token != "w11"]
    cut = encode.convert_ids_to_tokens(encode(LONG, truncation=True).input_ids)
    assert len(cut) == 5
    assert [token for token in cut if token in special] == special


BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}


@pytest.mark.parametrize(
    ("processor", "raises"),
    [(None, True), (template(TEXT), True), (BYTES, True), ({"type": "Sequence", "processors": [BYTES]}, True),
     (template(TEXT, END), False), ({"type": "Sequence", "processors": [BYTES, template(TEXT, END)]}, False),
     ({"type": "BertProcessing", "sep": ["[eos]", 2], "cls": ["[bos]", 0]}, False)],
)  # fmt: skip
def test_a_head_that_reads_the_end_token_raises_where_texts_have_none(
    processor: Any, raises: bool, tmp_path: Path
) -> None:
    save(tmp_path, "bart", tokenizer("bart"))
    edit_json(tmp_path / "tokenizer.json", {"post_processor": processor})
    assert (2 not in AutoTokenizer.from_pretrained(tmp_path)(SHORT).input_ids) is raises
    if raises:
        with pytest.raises(ValueError, match="<eos>"):
            scores(tmp_path, [SHORT])
    assert [item.id for item in check(tmp_path, "HS310").findings] == (["HS310"] if raises else [])


@pytest.mark.parametrize(("name", "family"), [("BartTokenizer", "bart"), ("T5Tokenizer", "t5")])
def test_a_class_adds_the_end_token_where_its_file_does_not_say(name: str, family: str, tmp_path: Path) -> None:
    tokens = getattr(transformers, name)()
    tokens.save_pretrained(tmp_path)
    edit_json(tmp_path / "tokenizer.json", {"post_processor": None})
    assert AutoTokenizer.from_pretrained(tmp_path)("a").input_ids[-1] == tokens.eos_token_id
    FAMILIES[family].build(FAMILIES[family].classifier, eos_token_id=tokens.eos_token_id).save_pretrained(tmp_path)
    assert check(tmp_path, "HS310").verdict == "passed"


def test_a_model_in_memory_is_held_against_the_tokenizer_it_was_loaded_with(tmp_path: Path) -> None:
    save(tmp_path, "gpt2", tokenizer("gpt2"), pad_token_id=33)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    live = headscope.check(model, "inference", select="HS3")
    assert [item for item in live.findings if item.id == "HS306"] == [
        replace(item, code="")
        for item in check(tmp_path).findings
        if item.id == "HS306"  # nothing in memory to change
    ]
    shutil.rmtree(tmp_path)


def test_an_end_token_among_several_of_the_configuration_is_silent(tmp_path: Path) -> None:
    save(tmp_path, "gpt2", tokenizer("gpt2"), eos_token_id=[33, 2])
    assert found(tmp_path) == {}
    save(tmp_path, "gpt2", tokenizer("gpt2"), eos_token_id=[33, 34])
    assert "HS306" in found(tmp_path)


def test_a_model_that_reads_no_text_has_no_tokenizer_to_compare(tmp_path: Path) -> None:
    chosen = FAMILIES["vit"]
    chosen.build("ViTForImageClassification", num_labels=3).save_pretrained(tmp_path)
    [reason] = {item.reason for item in check(tmp_path).not_applicable}
    assert "text" in reason
