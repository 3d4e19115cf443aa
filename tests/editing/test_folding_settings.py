"""`edit --as`: settings of a chain's base model that would be lost are refused, in a dry run as in a run."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import headscope
from headscope.copies.facts import EditVerdict
from tests.editing.checkpoints import write_setfit
from tests.edits import edit_json
from tests.modules import dense, norm, pooling, write_chain
from tests.scorers import WORDS, save_encoder, save_language_model, save_tokenizer

SETTINGS = "sentence_bert_config.json"
MODERN = [dense(16, 16, "GELU", bias=False), norm(), dense(16, 1)]
TEXT = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
TEXTS = ["NO w1 YES", " ".join(WORDS[6:46])]


def write_modern(folder: Path, settings: dict[str, Any]) -> Path:
    write_chain(folder, "ModernBert", [pooling("mean"), *MODERN])
    edit_json(folder / SETTINGS, settings)
    return folder


SAVED_AGAIN = [
    ("do_lower_case", {"do_lower_case": True}),
    ("processor_kwargs.truncation_side", {"processor_kwargs": {"truncation_side": "left"}}),
    ("processor_kwargs.truncation_side", {"tokenizer_args": {"truncation_side": "left"}}),
    ("processor_kwargs.cls_token", {"processor_kwargs": {"cls_token": "w3"}}),
    ("processor_kwargs.model_max_length", {"max_seq_length": 8, "processor_kwargs": {"model_max_length": 6}}),
    ("model_kwargs.dtype", {"model_kwargs": {"torch_dtype": "float16"}}),
    ("model_kwargs.dtype", {"model_args": {"dtype": "bfloat16"}}),
    ("config_kwargs.hidden_activation", {"config_kwargs": {"hidden_activation": "relu"}}),
    ("config_kwargs.hidden_activation", {"config_args": {"hidden_activation": "relu"}}),
    ("tokenizer_name_or_path", {"tokenizer_name_or_path": "OTHER"}),
]
"""Settings that sentence-transformers puts into other files when it saves."""
TO_TAKE_OUT = [
    ("max_seq_length", {"max_seq_length": "8"}),
    ("model_kwargs", {"model_kwargs": None}),
    ("model_kwargs.variant", {"model_kwargs": {"variant": "fp16"}}),
    ("processing_kwargs.text.max_length", {"processing_kwargs": {"text": {"max_length": 7}}}),
    ("processing_kwargs.text.truncation", {"processing_kwargs": {"text": {"truncation": "only_first"}}}),
    ("processing_kwargs.common.add_special_tokens", {"processing_kwargs": {"common": {"add_special_tokens": False}}}),
    (
        "modality_config.text.method",
        {"modality_config": TEXT | {"text": {**TEXT["text"], "method": "get_text_features"}}},
    ),
    ("modality_config.message.method", {"modality_config": TEXT | {"message": TEXT["text"]}}),
    ("transformer_task", {"transformer_task": "fill-mask"}),
    ("not_known", {"not_known": 1}),
]


@pytest.mark.parametrize(("key", "settings"), [*SAVED_AGAIN, *TO_TAKE_OUT], ids=str)
def test_a_setting_that_the_class_has_no_place_for_is_named(key: str, settings: dict[str, Any], tmp_path: Path) -> None:
    write_modern(tmp_path / "chain", settings)
    for is_dry in (True, False):
        found = headscope.edit(tmp_path / "chain", tmp_path / "out", as_class="auto", dry_run=is_dry)
        assert found.verdict is EditVerdict.REFUSED
        assert f"{SETTINGS} has {key}: " in found.proof.reason and "and fold that" in found.proof.reason
    assert sorted(item.name for item in tmp_path.iterdir()) == ["chain"]


@pytest.mark.parametrize(("key", "settings"), SAVED_AGAIN, ids=str)
def test_a_save_of_the_library_makes_the_setting_foldable(key: str, settings: dict[str, Any], tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    save_tokenizer(tmp_path / "other")
    settings = json.loads(json.dumps(settings).replace("OTHER", str(tmp_path / "other")))
    encoder = library.CrossEncoder(str(write_modern(tmp_path / "chain", settings)), device="cpu")
    encoder.save_pretrained(str(tmp_path / "again"))
    found = headscope.edit(tmp_path / "again", tmp_path / "out", as_class="auto", texts=TEXTS)
    assert found.verdict is EditVerdict.PROVEN, found.proof.reason
    folded = library.CrossEncoder(str(tmp_path / "out"), device="cpu")
    rounding = 1e-5 if "dtype" not in key else 0.05
    theirs, ours = (model.predict(TEXTS, convert_to_tensor=True).float() for model in (encoder, folded))
    torch.testing.assert_close(ours, theirs, atol=rounding, rtol=rounding)


KEPT: list[dict[str, Any]] = [
    {"do_lower_case": False, "unpad_inputs": False, "query_length": 8, "backend": "onnx"},
    {"max_seq_length": 8},
    {"max_seq_length": 60},
    {"model_kwargs": {"attn_implementation": "eager", "dtype": "float32", "trust_remote_code": True}},
    {"config_kwargs": {"hidden_size": 16}, "processor_kwargs": {"padding_side": "left"}},
    {"processing_kwargs": {"text": {"truncation": True}, "chat_template": {"add_generation_prompt": True}}},
]
"""Settings with which the class gives the same scores."""


@pytest.mark.parametrize("settings", KEPT, ids=str)
def test_a_setting_that_changes_no_score_or_is_kept_folds(settings: dict[str, Any], tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    source = write_modern(tmp_path / "chain", settings)
    edit_json(source / "tokenizer_config.json", {"model_max_length": 32})
    planned = headscope.edit(source, as_class="auto", dry_run=True)
    assert planned.verdict is EditVerdict.PLANNED, planned.proof.reason
    found = headscope.edit(source, tmp_path / "out", as_class="auto", texts=TEXTS)
    assert found.verdict is EditVerdict.PROVEN, found.proof.reason
    assert not any("Long texts" in sentence for sentence in found.fold.to_do)
    theirs, ours = (
        library.CrossEncoder(str(folder), device="cpu").predict(TEXTS) for folder in (source, tmp_path / "out")
    )
    assert theirs == pytest.approx(ours, abs=1e-5)


def test_a_chain_of_half_precision_folds_with_the_number_format_that_it_names(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    source = write_modern(tmp_path / "chain", {"model_kwargs": {"dtype": "bfloat16"}})
    edit_json(source / "config.json", {"dtype": "bfloat16"})
    assert headscope.edit(source, as_class="auto", dry_run=True).verdict is EditVerdict.PLANNED


def test_settings_in_a_file_of_an_older_name_are_read_as_the_library_does(tmp_path: Path) -> None:
    source = write_modern(tmp_path / "chain", {})
    (source / SETTINGS).rename(source / "sentence_xlm-roberta_config.json")
    edit_json(source / "sentence_xlm-roberta_config.json", {"do_lower_case": True})
    assert (
        "sentence_xlm-roberta_config.json has do_lower_case"
        in headscope.edit(source, as_class="auto", dry_run=True).proof.reason
    )
    (source / SETTINGS).write_text(json.dumps({"do_lower_case": False}))
    assert headscope.edit(source, as_class="auto", dry_run=True).verdict is EditVerdict.PLANNED


@pytest.mark.parametrize("settings", [{"do_lower_case": True}, {"max_seq_length": 4}])
def test_what_a_cross_encoder_does_to_texts_is_not_lost_in_a_chain(settings: dict[str, Any], tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    save_encoder("ModernBert", "ForSequenceClassification", tmp_path / "class", num_labels=1)
    library.CrossEncoder(str(tmp_path / "class"), device="cpu").save_pretrained(str(tmp_path / "saved"))
    assert headscope.edit(tmp_path / "saved", as_class="chain", dry_run=True).verdict is EditVerdict.PLANNED
    edit_json(tmp_path / "saved" / SETTINGS, settings)
    found = headscope.edit(tmp_path / "saved", as_class="chain", dry_run=True)
    assert found.verdict is EditVerdict.REFUSED and next(iter(settings)) in found.proof.reason
    encoder = library.CrossEncoder(str(tmp_path / "saved"), device="cpu")
    encoder.save_pretrained(str(tmp_path / "again"))
    assert headscope.edit(tmp_path / "again", tmp_path / "chain", as_class="chain").verdict is EditVerdict.PROVEN
    chain = library.CrossEncoder(str(tmp_path / "chain"), device="cpu")
    assert chain.predict(TEXTS) == pytest.approx(encoder.predict(TEXTS), abs=1e-5)


def test_a_chain_from_setfit_keeps_what_the_library_saves_with_it(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    source = write_setfit(tmp_path / "setfit", "ModernBert")
    edit_json(source / SETTINGS, {
        "do_lower_case": True, "max_seq_length": 9, "processor_kwargs": {"truncation_side": "left"},
        "processing_kwargs": {"text": {"max_length": 7}},
    })  # fmt: skip
    assert headscope.edit(source, as_class="chain", dry_run=True).verdict is EditVerdict.PLANNED
    assert headscope.edit(source, tmp_path / "chain", as_class="chain", texts=TEXTS).verdict is EditVerdict.PROVEN
    before = library.SentenceTransformer(str(source), device="cpu")
    after = library.CrossEncoder(str(tmp_path / "chain"), device="cpu")
    assert before.preprocess(TEXTS)["input_ids"].tolist() == after.preprocess(TEXTS)["input_ids"].tolist()
    edit_json(source / SETTINGS, {"config_kwargs": {"num_hidden_layers": 1}})
    found = headscope.edit(source, as_class="chain", dry_run=True)
    assert found.verdict is EditVerdict.REFUSED and "config_kwargs.num_hidden_layers: 1" in found.proof.reason


def test_a_language_model_that_the_library_asks_keeps_its_prompt_with_the_caller(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    save_language_model("Qwen3", tmp_path / "lm")
    library.CrossEncoder(str(tmp_path / "lm")).save_pretrained(str(tmp_path / "saved"))
    edit_json(tmp_path / "saved" / SETTINGS, {"processing_kwargs": {"chat_template": {"add_generation_prompt": True}}})
    assert headscope.edit(tmp_path / "saved", as_class="auto", dry_run=True).verdict is EditVerdict.PLANNED
    edit_json(tmp_path / "saved" / SETTINGS, {"do_lower_case": True})
    assert "do_lower_case" in headscope.edit(tmp_path / "saved", as_class="auto", dry_run=True).proof.reason
    named = headscope.edit(tmp_path / "saved", as_class="auto", tokens="no,yes", dry_run=True)
    assert named.verdict is EditVerdict.PLANNED  # of the tokens, Transformers computes the scores
