"""Value heads, reward models and process-reward models, as TRL and others save them."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import headscope
from headscope.core.facts.report import LoadVerdict
from headscope.errors import HeadscopeError
from headscope.facts import ScoreHead
from tests import families
from tests.edits import edit_json
from tests.scorers import save_language_model, save_tokenizer

FAMILIES = ("Qwen3", "Llama", "Gemma")
HEADS = {
    "v_head": {"v_head.0.weight": (8, 16), "v_head.2.weight": (1, 8), "v_head.2.bias": (1,)},
    "value_head": {"value_head.dense.weight": (16, 16), "value_head.out.weight": (1, 16)},
    "reward_head": {"reward_head.0.weight": (8, 16), "reward_head.2.weight": (5, 8), "reward_head.2.bias": (5,)},
}
"""Heads of custom code: no file says what is computed between their layers."""
LINEAR = {
    "v_head": {"v_head.summary.weight": (1, 16), "v_head.summary.bias": (1,)},
    "value_head": {"value_head.weight": (1, 16)},
    "reward_head": {"reward_head.weight": (3, 16), "reward_head.bias": (3,)},
}
"""`v_head` as AutoModelForCausalLMWithValueHead of older TRL wrote it, which 1.16 lacks; `value_head` as OpenRLHF."""


def _save_beside(
    folder: Path, shapes: dict[str, tuple[int, ...]], place: str = "model.safetensors"
) -> dict[str, torch.Tensor]:
    """Tensors of these shapes, drawn, which are then in that file too."""
    file, more = folder / place, {name: torch.randn(shape) for name, shape in shapes.items()}
    if file.suffix == ".bin":
        torch.save(more, file)
    else:
        own = load_file(file) if file.is_file() else {}
        save_file(own | more, file, metadata={"format": "pt"})
    return more


def _ids(folder: Path) -> dict[str, str]:
    return {item.id: item.message for item in headscope.check(folder, profile="inference").findings}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("head", HEADS)
def test_a_head_of_another_library_is_named_and_not_denied(family: str, head: str, tmp_path: Path) -> None:
    save_language_model(family, tmp_path)
    assert "HS401" in _ids(tmp_path)
    _save_beside(tmp_path, HEADS[head])
    report = headscope.inspect(tmp_path)
    (found,) = report.checkpoint.score_heads
    last = next(name for name in reversed(HEADS[head]) if name.endswith("weight"))
    assert found == ScoreHead(head, HEADS[head][last][0], last, tuple(sorted(HEADS[head])))
    cls = getattr(transformers, report.model.class_name)
    _, info = cls.from_pretrained(tmp_path, output_loading_info=True)
    assert set(found.tensors) <= info["unexpected_keys"]
    ids = _ids(tmp_path)
    assert "HS401" not in ids
    assert head in ids["HS406"]
    assert head in str(report)


PLACES = ("model.safetensors", "value_head.safetensors", "value_head.bin")
"""Among the weights (TRL), and in LlamaFactory's own file."""


@pytest.mark.parametrize("family", ("Qwen3", "Llama", "Gemma", "OPT"))
@pytest.mark.parametrize(
    ("head", "place"), [*(("v_head", place) for place in PLACES), *((name, PLACES[0]) for name in LINEAR)]
)
def test_a_linear_value_head_is_the_head(family: str, head: str, place: str, tmp_path: Path) -> None:
    base = save_language_model(family, tmp_path)
    weights = _save_beside(tmp_path, LINEAR[head], place)
    report = headscope.inspect(tmp_path)
    assert report.verdict is LoadVerdict.COMPLETE, str(report)
    assert {item.id for item in report.findings} <= {"HS202"}
    assert {item.name for item in report.head.parameters} == set(weights)
    assert report.weights.unused == (() if base.config.tie_word_embeddings else ("lm_head.weight",))
    _scores_are_those_of(base.base_model, weights, tmp_path)
    result = headscope.check(tmp_path, run=True, ignore=["HS502", "HS202", "HS205"])
    assert (result.profile.value, result.verdict.value) == ("inference", "passed"), str(result)


def _scores_are_those_of(base: Any, weights: dict[str, torch.Tensor], folder: Path) -> None:
    """The scores are the hidden states of Transformers' own model times the head's matrix, for each token."""
    matrix = next(value for value in weights.values() if value.dim() == 2)
    bias = next((value for value in weights.values() if value.dim() == 1), torch.zeros(len(matrix)))
    shown = headscope.forward(folder, device="cpu", text=["w1 w3 w5"])
    tokens = transformers.AutoTokenizer.from_pretrained(folder)(["w1 w3 w5"], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        expected = base(input_ids=tokens).last_hidden_state @ matrix.T + bias
    assert torch.allclose(torch.tensor(shown.logits), expected, atol=1e-5)


@pytest.mark.parametrize("place", PLACES[1:])
def test_a_value_head_beside_an_adapter(place: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    base = save_language_model("Llama", tmp_path / "base")
    wrapped = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj"]))
    for name, value in wrapped.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value, std=0.5)
    folder = tmp_path / "adapter"
    wrapped.save_pretrained(folder)
    save_tokenizer(folder)
    base.config._name_or_path = str(tmp_path / "base")
    edit_json(folder / "adapter_config.json", {"base_model_name_or_path": str(tmp_path / "base")})
    weights = _save_beside(folder, LINEAR["v_head"], place)
    report = headscope.inspect(folder)
    assert report.verdict is LoadVerdict.COMPLETE, str(report)
    _scores_are_those_of(wrapped.base_model.model.model, weights, folder)
    result = headscope.check(folder, run=True, ignore=["HS502", "HS202", "HS205"])
    assert (result.verdict.value, result.trial is not None) == ("passed", True), str(result)


@pytest.mark.parametrize("family", ("Qwen3", "Llama", "Gemma2", "Granite"))
def test_an_output_layer_of_a_few_answers_is_the_head(family: str, tmp_path: Path) -> None:
    save_language_model(family, tmp_path, tie_word_embeddings=False)
    weights = _save_beside(tmp_path, {"lm_head.weight": (3, 16)})
    report = headscope.inspect(tmp_path)
    assert report.verdict is LoadVerdict.COMPLETE, str(report)
    assert (report.model.num_labels, report.model.class_name) == (3, f"{family}ForCausalLM")
    model = getattr(transformers, f"{family}ForCausalLM").from_pretrained(tmp_path, ignore_mismatched_sizes=True).eval()
    model.lm_head = torch.nn.Linear(16, 3, bias=False)
    model.lm_head.weight.data.copy_(weights["lm_head.weight"])
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path)(["w1 w3 w5"], return_tensors="pt")
    with torch.no_grad():
        expected = model(input_ids=tokens["input_ids"]).logits
    shown = headscope.forward(tmp_path, device="cpu", text=["w1 w3 w5"])
    assert torch.allclose(torch.tensor(shown.logits), expected, atol=1e-5)
    assert headscope.check(tmp_path, run=True, ignore=["HS502", "HS202"]).verdict.value == "passed"


@pytest.mark.parametrize(
    "key",
    ["model.layers.0.self_attn.v_head.weight", "model.layers.0.value_head.weight", "encoder.attention.1.v_head.bias"],
)
def test_a_layer_of_that_name_is_no_value_head(key: str, tmp_path: Path) -> None:
    save_language_model("Llama", tmp_path)
    _save_beside(tmp_path, {key: (1, 16)})
    report = headscope.inspect(tmp_path)
    assert (report.checkpoint.score_heads, report.model.class_name) == ((), "LlamaForSequenceClassification")


def test_an_output_layer_of_a_smaller_vocabulary_is_no_head(tmp_path: Path) -> None:
    save_language_model("Llama", tmp_path, tie_word_embeddings=False)
    _save_beside(tmp_path, {"lm_head.weight": (40, 16), "model.embed_tokens.weight": (40, 16)})
    assert headscope.inspect(tmp_path).checkpoint.score_heads == ()


def test_a_value_head_in_a_subfolder(tmp_path: Path) -> None:
    save_language_model("Llama", tmp_path / "sub")
    _save_beside(tmp_path, LINEAR["v_head"], PLACES[1])  # of another model, in the root
    assert headscope.inspect(tmp_path, subfolder="sub").checkpoint.score_heads == ()
    _save_beside(tmp_path / "sub", LINEAR["v_head"], PLACES[1])
    assert headscope.inspect(tmp_path, subfolder="sub").model.class_name == "LlamaModelWithValueHead"


def test_a_damaged_file_of_a_value_head_is_said(tmp_path: Path) -> None:
    save_language_model("Llama", tmp_path)
    (tmp_path / "value_head.bin").write_bytes(b"damaged")
    with pytest.raises(HeadscopeError, match=r"value_head\.bin"):
        headscope.inspect(tmp_path)


def test_two_value_heads_of_one_name_are_a_notice(tmp_path: Path) -> None:
    save_language_model("Llama", tmp_path)
    for place in PLACES[:2]:
        _save_beside(tmp_path, LINEAR["v_head"], place)
    assert any("in two files" in item for item in headscope.inspect(tmp_path).checkpoint.notices)


def test_an_encoder_decoder_with_a_value_head_is_not_composed(tmp_path: Path) -> None:
    model = families.FAMILIES["t5"].build("T5ForConditionalGeneration")
    model.save_pretrained(tmp_path)
    _save_beside(tmp_path, {"v_head.summary.weight": (1, model.config.d_model), "v_head.summary.bias": (1,)})
    result = headscope.check(tmp_path)
    assert "HS406" in {item.id for item in result.findings} and result.verdict.value == "failed"


def test_a_head_that_nothing_loads_is_no_reason_to_train_another(tmp_path: Path) -> None:
    save_language_model("Llama", tmp_path)
    _save_beside(tmp_path, HEADS["v_head"])
    result = headscope.check(tmp_path)
    assert (result.profile.value, result.profile_reason) == ("inference", "the checkpoint holds its own head")
    assert result.verdict.value == "failed" and "Train it first" not in str(result)
    as_classifier = headscope.inspect(tmp_path, num_labels=4)
    assert as_classifier.model.class_name == "LlamaForSequenceClassification"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["SequenceClassification", "TokenClassification"])
def test_a_reward_model_has_a_classifier(family: str, kind: str, tmp_path: Path) -> None:
    """RewardTrainer saves one score for each text, PRMTrainer two for each token."""
    name = f"{family}For{kind}"
    count = 1 if kind == "SequenceClassification" else 2
    config = save_language_model(family, tmp_path / "plain").config
    config.num_labels = count
    getattr(transformers, name)(config).save_pretrained(tmp_path / "saved")
    report = headscope.inspect(tmp_path / "saved")
    _, info = getattr(transformers, name).from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert report.model.class_name == name
    assert set(report.weights.new) == info["missing_keys"] == set()
    assert report.model.num_labels == count
    assert not {"HS401", "HS406"} & set(_ids(tmp_path / "saved"))


def test_a_name_alone_is_not_a_head(tmp_path: Path) -> None:
    save_language_model("Llama", tmp_path)
    _save_beside(tmp_path, {"v_head.scale": (1,), "my_v_head_weight": (2, 16)})
    assert headscope.inspect(tmp_path).checkpoint.score_heads == ()
    assert "HS401" in _ids(tmp_path)
