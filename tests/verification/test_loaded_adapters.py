"""Adapters in memory, merged and not, against what PEFT and the base model store."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import GPT2ForSequenceClassification

import headscope
from headscope.core.facts.verdict import Verdict
from tests.verification.tiny import S, adapted, counts, ids, loaded, statuses

LORA = [
    {"target_modules": ["query", "value"]},
    {"target_modules": ["query"], "use_rslora": True},
    {"target_modules": ["query", "key"], "alpha_pattern": {"key": 3}, "rank_pattern": {"key": 2}},
    {"target_modules": ["word_embeddings", "value"]},
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", LORA, ids=str)
def test_an_adapter_is_compared_merged_and_unmerged(
    saved: Path, options: Any, dtype: torch.dtype, tmp_path: Path
) -> None:
    adapter = adapted(tmp_path / "adapter", saved, **options)
    wrapped = peft.PeftModel.from_pretrained(loaded(saved, dtype=dtype), adapter)
    beside = headscope.verify(wrapped, saved, adapter=adapter)
    assert beside.verdict is Verdict.PASSED, beside.findings
    assert not {S.MERGED, S.DROPPED} & set(statuses(beside).values())
    merged = headscope.verify(wrapped.merge_and_unload(), saved, adapter=adapter)
    assert merged.verdict is Verdict.PASSED, merged.findings
    expected = {path for path, _ in loaded(saved).named_modules() if path.endswith(tuple(options["target_modules"]))}
    assert {item.name for item in merged.tensors if item.status is S.MERGED} == {f"{each}.weight" for each in expected}


def test_a_layer_that_is_stored_transposed_is_merged_so(gpt2: Path, tmp_path: Path) -> None:
    adapter = adapted(tmp_path / "a", gpt2, GPT2ForSequenceClassification, fan_in_fan_out=True)
    wrapped = peft.PeftModel.from_pretrained(GPT2ForSequenceClassification.from_pretrained(gpt2), adapter)
    result = headscope.verify(wrapped.merge_and_unload(), gpt2, adapter=adapter)
    assert counts(result) == {"merged": 2, "equal": 27}


def disabled(model: Any) -> None:
    model.base_model.disable_adapter_layers()


def scaled(model: Any) -> None:
    model.base_model.model.bert.encoder.layer[0].attention.self.query.scaling["my-own"] *= 2


def merged_in_place(model: Any) -> None:
    model.merge_adapter()


def two(model: Any) -> None:
    config = peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query"], modules_to_save=[])
    model.add_adapter("other", config)


def other(model: Any) -> None:
    two(model)
    model.set_adapter("other")


HELD = [
    (lambda model: None, Verdict.PASSED),
    (two, Verdict.PASSED),
    (merged_in_place, Verdict.PASSED),
    (disabled, Verdict.NOT_DETERMINED),
    (scaled, Verdict.NOT_DETERMINED),
    (other, Verdict.FAILED),
]


@pytest.mark.parametrize(("change", "verdict"), HELD, ids=lambda item: getattr(item, "__name__", ""))
def test_an_adapter_that_is_held_must_also_be_used(
    saved: Path, query: Path, change: Callable[[Any], None], verdict: Verdict
) -> None:
    plain = peft.PeftModel.from_pretrained(loaded(saved), query).eval()
    model = peft.PeftModel.from_pretrained(loaded(saved), query, adapter_name="my-own").eval()
    change(model)
    tokens = torch.arange(9)[None]
    scores = [item(input_ids=tokens).logits for item in (plain, model)]
    assert torch.allclose(*scores, atol=1e-5) == (verdict is Verdict.PASSED)
    result = headscope.verify(model, saved, adapter=query)
    assert result.verdict is verdict, str(result)


METHODS = [
    peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=4),
    peft.IA3Config(task_type="SEQ_CLS"),
    peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"], bias="all"),
    peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"], use_dora=True),
    peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"], trainable_token_indices={"word_embeddings": [1]}),
    peft.LoHaConfig(task_type="SEQ_CLS", target_modules=["query"]),
    peft.PromptEncoderConfig(task_type="SEQ_CLS", num_virtual_tokens=4, encoder_hidden_size=8),
    peft.PrefixTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=4),
    peft.OFTConfig(task_type="SEQ_CLS", target_modules=["query"], oft_block_size=8, r=0),
    peft.BOFTConfig(task_type="SEQ_CLS", target_modules=["query"], boft_block_size=8),
    peft.VeraConfig(task_type="SEQ_CLS", target_modules=["query"]),
    peft.AdaLoraConfig(task_type="SEQ_CLS", target_modules=["query"], total_step=10),
]


@pytest.mark.parametrize("number", range(len(METHODS)))
def test_each_tensor_of_an_adapter_is_compared(saved: Path, number: int, tmp_path: Path) -> None:
    peft.get_peft_model(loaded(saved), METHODS[number]).save_pretrained(tmp_path)
    model = peft.PeftModel.from_pretrained(loaded(saved), tmp_path)
    for head in (False, True):
        result = headscope.verify(model, saved, adapter=tmp_path, head=head)
        assert (result.verdict, result.findings) == (Verdict.PASSED, ()), str(result)
    added = (
        "prompt_encoder", "lora_", "ia3_", "hada_", "trainable_tokens_delta", "oft_", "vera_", "modules_to_save",
    )  # fmt: skip
    parameters = [item for name, item in model.named_parameters() if any(part in name for part in added)]
    assert parameters
    with torch.no_grad():
        parameters[0] += 1
    assert headscope.verify(model, saved, adapter=tmp_path).verdict is Verdict.FAILED


@pytest.mark.parametrize("head", [False, True])
def test_an_adapter_that_is_not_named_is_not_determined(saved: Path, query: Path, head: bool) -> None:
    model = peft.PeftModel.from_pretrained(loaded(saved), query)
    model.base_model.model.classifier.modules_to_save.default.load_state_dict(loaded(saved).classifier.state_dict())
    result = headscope.verify(model, saved, head=head)
    assert (result.verdict, result.findings) == (Verdict.NOT_DETERMINED, ()), str(result)
    assert [gap.topic for gap in result.not_determined] == ["adapter"]
    unknown = {item.name for item in result.tensors if item.status is S.UNKNOWN}
    inside = dict(model.base_model.model.named_parameters())
    assert unknown == ({name for name in inside if ".lora_" in name} if not head else set())
    with torch.no_grad():
        inside["bert.pooler.dense.weight"] += 1
    assert ids(headscope.verify(model, saved, head=head)) == ["HS701"]


COMPUTED_BY_PEFT = [
    (METHODS[4], "trainable_tokens_original", "different"),
    (METHODS[8], "oft_R.default.rows", "different"),
    (METHODS[9], "boft_P", "different"),
    (METHODS[11], "ranknum.default", "different"),
]


@pytest.mark.parametrize(("config", "part", "status"), COMPUTED_BY_PEFT, ids=[item[1] for item in COMPUTED_BY_PEFT])
def test_what_peft_computes_is_computed_again(saved: Path, config: Any, part: str, status: str, tmp_path: Path) -> None:
    peft.get_peft_model(loaded(saved), config).save_pretrained(tmp_path)
    model = peft.PeftModel.from_pretrained(loaded(saved), tmp_path)
    inside = model.base_model.model
    named = dict(inside.named_buffers()) | dict(inside.named_parameters())
    name = next(name for name in named if part in name)
    assert name not in load_file(tmp_path / "adapter_model.safetensors")
    with torch.no_grad():
        named[name] += 1
    result = headscope.verify(model, saved, adapter=tmp_path)
    assert result.verdict is Verdict.FAILED
    assert statuses(result)[name].value == status


def test_a_merge_that_did_not_happen_is_caught(saved: Path, tmp_path: Path) -> None:
    adapter = adapted(tmp_path / "a", saved, target_modules=["query"])
    result = headscope.verify(loaded(saved), saved, adapter=adapter)
    assert set(ids(result)) == {"HS701", "HS705"}
    (query,) = (item for item in result.tensors if item.name == "bert.encoder.layer.0.attention.self.query.weight")
    assert "not merged" in query.reason


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("size", [1e-4, 2e-3, 0.05])
def test_a_small_change_that_short_numbers_lack_is_caught(
    saved: Path, dtype: torch.dtype, size: float, tmp_path: Path
) -> None:
    """The change is far below the rounding step of the largest weight, and not below that of most of them."""
    config = peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query"])
    model = peft.get_peft_model(loaded(saved), config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=size)
    model.save_pretrained(tmp_path)
    merged = peft.PeftModel.from_pretrained(loaded(saved, dtype=dtype), tmp_path).merge_and_unload()
    whole = headscope.verify(merged, saved, adapter=tmp_path)
    assert (whole.verdict, counts(whole)["merged"]) == (Verdict.PASSED, 2), str(whole)
    plain = loaded(saved, dtype=dtype)
    plain.classifier = merged.classifier
    query = "bert.encoder.layer.0.attention.self.query.weight"
    assert not torch.equal(plain.get_parameter(query), merged.get_parameter(query))
    result = headscope.verify(plain, saved, adapter=tmp_path)
    assert ids(result) == ["HS705"]
    assert "not merged" in next(item.reason for item in result.tensors if item.name == query)


def test_a_merge_with_another_scale_is_caught(saved: Path, tmp_path: Path) -> None:
    adapter = adapted(tmp_path / "a", saved, target_modules=["query"])
    model = peft.PeftModel.from_pretrained(loaded(saved), adapter).merge_and_unload()
    settings = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(settings | {"lora_alpha": 13}))
    assert ids(headscope.verify(model, saved, adapter=adapter)) == ["HS705"]


def test_a_method_whose_merge_is_not_known_is_not_determined(saved: Path, tmp_path: Path) -> None:
    adapter = adapted(tmp_path / "a", saved, target_modules=["query"], use_dora=True)
    model = peft.PeftModel.from_pretrained(loaded(saved), adapter).merge_and_unload()
    result = headscope.verify(model, saved, adapter=adapter)
    assert result.verdict is Verdict.NOT_DETERMINED
    assert "use_dora" in result.not_determined[0].reason
