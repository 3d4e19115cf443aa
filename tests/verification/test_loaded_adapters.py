"""Adapters in memory, merged and not, against what PEFT and the base model store."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file
from transformers import GPT2ForSequenceClassification

import headscope
from headscope.core.facts.verdict import Verdict
from tests.edits import edit_json
from tests.verification.tiny import METHODS, S, adapted, counts, ids, loaded, saved_adapter, statuses, with_adapter

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


OTHER = peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query"], modules_to_save=[])
HELD: dict[str, tuple[Callable[[Any], object], Verdict]] = {
    "as loaded": (lambda model: None, Verdict.PASSED),
    "merged in place": (lambda model: model.merge_adapter(), Verdict.PASSED),
    "disabled": (lambda model: model.base_model.disable_adapter_layers(), Verdict.NOT_DETERMINED),
    "scaled": (
        lambda model: model.base_model.model.bert.encoder.layer[0].attention.self.query.set_scale("my-own", 2),
        Verdict.NOT_DETERMINED,
    ),
    "beside another": (lambda model: model.add_adapter("other", deepcopy(OTHER)), Verdict.PASSED),
    "another is used": (
        lambda model: (model.add_adapter("other", deepcopy(OTHER)), model.set_adapter("other")),
        Verdict.FAILED,
    ),
}


@pytest.mark.parametrize("case", HELD)
def test_an_adapter_that_is_held_must_also_be_used(saved: Path, query: Path, case: str) -> None:
    change, verdict = HELD[case]
    plain = with_adapter(saved, query).eval()
    model = with_adapter(saved, query, adapter_name="my-own").eval()
    change(model)
    tokens = torch.arange(9)[None]
    scores = [item(input_ids=tokens).logits for item in (plain, model)]
    assert torch.allclose(*scores, atol=1e-5) == (verdict is Verdict.PASSED)
    result = headscope.verify(model, saved, adapter=query)
    assert result.verdict is verdict, str(result)


@pytest.mark.parametrize("method", METHODS)
def test_each_tensor_of_an_adapter_is_compared(saved: Path, method: str, tmp_path: Path) -> None:
    saved_adapter(method, saved, tmp_path)
    model = with_adapter(saved, tmp_path)
    for head in (False, True):
        result = headscope.verify(model, saved, adapter=tmp_path, head=head)
        assert (result.verdict, result.findings) == (Verdict.PASSED, ()), str(result)
    added = (
        "prompt_encoder", "lora_", "ia3_", "hada_", "trainable_tokens_delta", "oft_", "vera_", "ln_tuning_",
        "modules_to_save",
    )  # fmt: skip
    parameters = [item for name, item in model.named_parameters() if any(part in name for part in added)]
    assert parameters
    with torch.no_grad():
        parameters[0] += 1
    assert headscope.verify(model, saved, adapter=tmp_path).verdict is Verdict.FAILED


@pytest.mark.parametrize("head", [False, True])
def test_an_adapter_that_is_not_named_is_not_determined(saved: Path, query: Path, head: bool) -> None:
    model = with_adapter(saved, query)
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
    ("tokens", "trainable_tokens_original"), ("OFT", "oft_R.default.rows"), ("BOFT", "boft_P"),
    ("AdaLoRA", "ranknum.default"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "part"), COMPUTED_BY_PEFT)
def test_what_peft_computes_is_computed_again(saved: Path, method: str, part: str, tmp_path: Path) -> None:
    saved_adapter(method, saved, tmp_path)
    model = with_adapter(saved, tmp_path)
    inside = model.base_model.model
    named = dict(inside.named_buffers()) | dict(inside.named_parameters())
    name = next(name for name in named if part in name)
    assert name not in load_file(tmp_path / "adapter_model.safetensors")
    with torch.no_grad():
        named[name] += 1
    result = headscope.verify(model, saved, adapter=tmp_path)
    assert result.verdict is Verdict.FAILED
    assert statuses(result)[name] is S.DIFFERENT


def test_a_merge_that_did_not_happen_is_caught(saved: Path, query: Path) -> None:
    result = headscope.verify(loaded(saved), saved, adapter=query)
    assert set(ids(result)) == {"HS701", "HS705"}
    (lost,) = (item for item in result.tensors if item.name == "bert.encoder.layer.0.attention.self.query.weight")
    assert "not merged" in lost.reason


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("size", [6e-5, 1e-3, 0.03])
def test_a_small_change_that_short_numbers_lack_is_caught(
    saved: Path, dtype: torch.dtype, size: float, tmp_path: Path
) -> None:
    """The change is far below the rounding step of the largest weight, and not below that of most of them."""
    adapted(tmp_path, saved, std=size, target_modules=["query"])
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
    model = with_adapter(saved, adapter).merge_and_unload()
    edit_json(adapter / "adapter_config.json", {"lora_alpha": 13})
    assert ids(headscope.verify(model, saved, adapter=adapter)) == ["HS705"]


def test_a_method_whose_merge_is_not_known_is_not_determined(saved: Path, tmp_path: Path) -> None:
    adapter = adapted(tmp_path / "a", saved, target_modules=["query"], use_dora=True)
    model = with_adapter(saved, adapter).merge_and_unload()
    result = headscope.verify(model, saved, adapter=adapter)
    assert result.verdict is Verdict.NOT_DETERMINED
    assert "use_dora" in result.not_determined[0].reason
