"""Losses of heads that people met with real libraries, each as a tiny fixture: the loss is made, and reported."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    LlamaModel,
)

import headscope
from headscope.facts.results.check import Verdict
from tests.verification.tiny import TINY, adapted


def llama(folder: Path) -> Path:
    LlamaForSequenceClassification(LlamaConfig(**TINY, num_labels=3, pad_token_id=0)).save_pretrained(folder)
    assert "score.weight" in load_file(folder / "model.safetensors")
    return folder


def bert(folder: Path) -> Path:
    BertForSequenceClassification(BertConfig(**TINY)).save_pretrained(folder)
    return folder


def a_loader_that_drops_the_score_which_the_file_has(folder: Path) -> Any:
    """A reward model that is loaded through the base class, with a fresh classifier on top."""
    model = LlamaForSequenceClassification.from_pretrained(llama(folder))
    model.model = LlamaModel.from_pretrained(folder)
    model.score = nn.Linear(32, 3, bias=False)
    return headscope.verify(model, folder)


def a_loader_that_knows_no_score(folder: Path) -> Any:
    model, info = LlamaForCausalLM.from_pretrained(llama(folder), output_loading_info=True)
    assert info["unexpected_keys"] == {"score.weight"}
    return headscope.verify(model, folder)


def a_load_that_leaves_weights_random_and_reports_nothing(folder: Path) -> Any:
    model, info = BertForSequenceClassification.from_pretrained(bert(folder), output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    nn.init.normal_(model.classifier.weight)
    return headscope.verify(model, folder)


def a_merge_that_keeps_the_head_of_the_base(folder: Path) -> Any:
    """The adapter has a trained classifier; what was merged has the base model's."""
    load = BertForSequenceClassification.from_pretrained
    adapted(folder / "adapter", bert(folder / "base"), target_modules=["query"])
    merged = peft.PeftModel.from_pretrained(load(folder / "base"), folder / "adapter").merge_and_unload()
    merged.classifier.load_state_dict(load(folder / "base").classifier.state_dict())
    return headscope.verify(merged, folder / "base", adapter=folder / "adapter")


def an_adapter_that_was_saved_without_its_head(folder: Path) -> Any:
    model = BertForSequenceClassification.from_pretrained(bert(folder / "base"))
    wrapped = peft.get_peft_model(model, peft.LoraConfig(target_modules=["query"]))
    model.classifier.requires_grad_(True)
    with torch.no_grad():
        model.classifier.weight += 1
    wrapped.save_pretrained(folder / "adapter")
    assert not [key for key in load_file(folder / "adapter" / "adapter_model.safetensors") if "classifier" in key]
    return headscope.verify_save(wrapped, folder / "adapter", loaded_from=folder / "base")


def a_save_that_leaves_the_head_out(folder: Path) -> Any:
    model = LlamaForSequenceClassification.from_pretrained(llama(folder))
    state = {key: item for key, item in load_file(folder / "model.safetensors").items() if key != "score.weight"}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    _, info = LlamaForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert info["missing_keys"] == {"score.weight"}
    return headscope.verify_save(model, folder)


def labels_in_another_order_than_the_data(folder: Path) -> Any:
    names = {0: "neutral", 1: "negative", 2: "positive"}
    BertForSequenceClassification(BertConfig(**TINY, id2label=names)).save_pretrained(folder)
    declared = ["negative", "neutral", "positive"]
    feature = {"names": declared, "_type": "ClassLabel"}
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    info = json.dumps({"info": {"features": {"label": feature}}})
    table = pyarrow.table({"label": [0, 1, 2, 1]}).replace_schema_metadata({"huggingface": info})
    parquet.write_table(table, folder / "rows.parquet")
    return headscope.check(folder, "inference", data=folder / "rows.parquet", label_column="label", select="HS72")


CASES = [
    (a_loader_that_drops_the_score_which_the_file_has, "HS701", "score.weight"),
    (a_loader_that_knows_no_score, "HS703", "score.weight"),
    (a_load_that_leaves_weights_random_and_reports_nothing, "HS701", "classifier.weight"),
    (a_merge_that_keeps_the_head_of_the_base, "HS701", "classifier.weight"),
    (an_adapter_that_was_saved_without_its_head, "HS714", "classifier.weight"),
    (a_save_that_leaves_the_head_out, "HS711", "score.weight"),
    (labels_in_another_order_than_the_data, "HS726", ""),
]


@pytest.mark.parametrize(("case", "rule", "name"), CASES, ids=[case.__name__ for case, _, _ in CASES])
def test_the_loss_is_reported(case: Callable[[Path], Any], rule: str, name: str, tmp_path: Path) -> None:
    result = case(tmp_path)
    assert result.verdict is Verdict.FAILED, str(result)
    found = next((item for item in result.findings if item.id == rule), None)
    assert found is not None, str(result)
    assert name in found.parameters or not name
