"""Value heads, reward models and process-reward models, as TRL and others save them."""

from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import headscope
from headscope.facts import ScoreHead
from tests.scorers import save_language_model

FAMILIES = ("Qwen3", "Llama", "Gemma")
HEADS = {
    "v_head": {"v_head.summary.weight": (1, 16), "v_head.summary.bias": (1,)},
    "value_head": {"value_head.weight": (1, 16)},
    "reward_head": {"reward_head.0.weight": (8, 16), "reward_head.2.weight": (5, 8), "reward_head.2.bias": (5,)},
}
"""`v_head` as AutoModelForCausalLMWithValueHead of older TRL wrote it, which 1.16 lacks; the others of custom code."""


def _with_head(folder: Path, head: str) -> None:
    tensors = load_file(folder / "model.safetensors")
    more = {name: torch.randn(shape) for name, shape in HEADS[head].items()}
    save_file(tensors | more, folder / "model.safetensors", metadata={"format": "pt"})


def _ids(folder: Path) -> dict[str, str]:
    return {item.id: item.message for item in headscope.check(folder, profile="inference").findings}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("head", HEADS)
def test_a_head_of_another_library_is_named_and_not_denied(family: str, head: str, tmp_path: Path) -> None:
    save_language_model(family, tmp_path)
    assert "HS401" in _ids(tmp_path)
    _with_head(tmp_path, head)
    report = headscope.inspect(tmp_path)
    (found,) = report.checkpoint.score_heads
    last = max(HEADS[head], key=lambda name: (name.endswith("weight"), name))
    assert found == ScoreHead(head, HEADS[head][last][0], last, tuple(sorted(HEADS[head])))
    cls = getattr(transformers, report.model.class_name)
    _, info = cls.from_pretrained(tmp_path, output_loading_info=True)
    assert set(found.tensors) <= info["unexpected_keys"]
    ids = _ids(tmp_path)
    assert "HS401" not in ids
    assert head in ids["HS406"]
    assert head in str(report)


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
    tensors = load_file(tmp_path / "model.safetensors")
    more = {"v_head.scale": torch.ones(1), "my_v_head_weight": torch.ones(2, 16)}
    save_file(tensors | more, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert headscope.inspect(tmp_path).checkpoint.score_heads == ()
    assert "HS401" in _ids(tmp_path)
