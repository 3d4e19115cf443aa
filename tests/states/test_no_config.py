"""State dicts without a config.json: the class that saved them is proposed first, and the configuration loads them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from states.table.small import LABELS

import headscope
from headscope.core.model.classes.proposals import Proposal
from headscope.core.source.reading.unseen_settings import settings_without_shape
from headscope.errors import NotFound, WithoutConfig
from headscope.facts import Severity, StateKind
from tests.families import FAMILIES
from tests.saving import save_state
from tests.sweeps.no_config_sweep import with_settings_of


@pytest.mark.parametrize(
    ("family", "prefix", "file"),
    [("bert", "", "weights.pt"), ("distilbert", "module.", "pytorch_model.bin"), ("gpt2", "", "model.safetensors")],
)
def test_the_class_that_saved_the_weights_is_proposed_with_its_sizes(
    family: str, prefix: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = FAMILIES[family]
    model = chosen.build(chosen.classifier, **(chosen.pad_token | LABELS))
    save_state({f"{prefix}{key}": value for key, value in model.state_dict().items()}, tmp_path / file)
    with pytest.raises(NotFound) as caught:
        headscope.inspect(str(tmp_path), offline=True)
    state = caught.value.state
    assert (state.kind, state.rule) == (StateKind.NO_CONFIG, "HS809")
    total = len(model.state_dict())
    assert f"{chosen.classifier} fits {total} of {total} keys (100%)" in state.evidence
    monkeypatch.chdir(tmp_path)
    exec(state.repair.code, {})
    for wrapped in headscope.inspect(str(tmp_path), offline=True).checkpoint.states:
        exec(wrapped.repair.code, {})
    cls = getattr(transformers, chosen.classifier)
    _, info = cls.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["mismatched_keys"]
    found = {item.id: item.severity for item in headscope.check(str(tmp_path), "inference", offline=True).findings}
    assert not {"HS101", "HS102", "HS103", "HS104", "HS201", "HS802"} & found.keys()
    assert Severity.ERROR not in {severity for rule, severity in found.items() if rule not in ("HS301", "HS202")}


def test_keys_of_no_class_are_said_to_fit_none(tmp_path: Path) -> None:
    torch.save({f"layer{number}.kernel": torch.ones(2, 2) for number in range(9)}, tmp_path / "weights.pt")
    with pytest.raises(WithoutConfig, match="no classification class") as caught:
        headscope.inspect(str(tmp_path), offline=True)
    assert caught.value.state.repair is None
    assert "config.json" in caught.value.hint


_SMALL = {
    "vocab_size": 99, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96,
    "max_position_embeddings": 64, "pad_token_id": 1,
}  # fmt: skip
_GROUPED = _SMALL | {"num_key_value_heads": 2}
_WITHOUT_CONFIG = {
    "EsmForSequenceClassification": _SMALL,
    "Data2VecTextForSequenceClassification": _SMALL,
    "XLMRobertaForSequenceClassification": _SMALL,
    "NemotronForSequenceClassification": _GROUPED,
    "GemmaForSequenceClassification": _GROUPED | {"head_dim": 16},
    "LlamaForSequenceClassification": _GROUPED,
    "Qwen2ForSequenceClassification": _GROUPED,
    "SmolLM3ForSequenceClassification": _GROUPED,
    "GPTNeoForSequenceClassification": {
        "vocab_size": 99, "hidden_size": 64, "num_layers": 2, "num_heads": 4, "attention_types": [[["global"], 2]],
        "max_position_embeddings": 64, "pad_token_id": 1,
    },
    "FunnelForSequenceClassification": {
        "vocab_size": 99, "d_model": 64, "n_head": 4, "d_head": 16, "d_inner": 96, "block_sizes": [1, 1, 1],
    },
    "LongformerForSequenceClassification": _SMALL | {"attention_window": [4, 4]},
    "LukeForEntityClassification": _SMALL | {"entity_vocab_size": 20, "entity_emb_size": 16},
}  # fmt: skip


def _refused(name: str, folder: Path) -> tuple[Any, WithoutConfig]:
    """A model saved without its config.json, and what is said of it."""
    cls = getattr(transformers, name)
    torch.manual_seed(0)
    model = cls(cls.config_class(**_WITHOUT_CONFIG[name], **LABELS)).eval()
    model.save_pretrained(folder)
    (folder / "config.json").unlink()
    with pytest.raises(WithoutConfig) as caught:
        headscope.inspect(str(folder), offline=True)
    return model, caught.value


@pytest.mark.parametrize("name", _WITHOUT_CONFIG)
def test_a_class_is_offered_right_or_left_open(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, error = _refused(name, tmp_path)
    state = error.state
    if state.repair is None:
        assert "don't tell" in state.evidence[-1] or "no class" in state.evidence[-1]
        return
    monkeypatch.chdir(tmp_path)
    assert "not proven" in state.repair.sentence
    exec(state.repair.code, {})
    exec(with_settings_of(model.config, state.repair.code), {})
    (offered,) = json.loads((tmp_path / "config.json").read_text())["architectures"]
    loaded, info = getattr(transformers, offered).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    loaded.config.pad_token_id = model.config.pad_token_id
    ids = {"input_ids": torch.arange(10, 22)[None]}
    assert torch.allclose(loaded.eval()(**ids).logits, model(**ids).logits, atol=1e-4)


def test_classes_that_compute_something_else_are_not_offered(tmp_path: Path) -> None:
    _, error = _refused("GemmaForSequenceClassification", tmp_path)
    assert error.state.repair is None
    assert "different scores" in error.message and "GemmaForSequenceClassification" in error.message


_TOLD_BY_NO_SHAPE = {
    "BertForSequenceClassification": (_SMALL, {"hidden_act", "layer_norm_eps", "num_attention_heads"}),
    "DistilBertForSequenceClassification": (
        {"vocab_size": 99, "dim": 64, "hidden_dim": 96, "n_layers": 2, "n_heads": 4}, {"activation"},
    ),
    "GPT2ForSequenceClassification": (
        {"vocab_size": 99, "n_embd": 64, "n_layer": 2, "n_positions": 64, "n_head": 4, "pad_token_id": 1},
        {"activation_function", "scale_attn_weights"},
    ),
    "Qwen2ForSequenceClassification": (_GROUPED, {"hidden_act", "rope_parameters", "rms_norm_eps"}),
    "ViTForImageClassification": (
        {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96},
        {"hidden_act", "layer_norm_eps"},
    ),
}  # fmt: skip
_OF_TRAINING = {"attention_dropout", "hidden_dropout_prob", "use_cache", "initializer_range"}


@pytest.mark.parametrize("name", _TOLD_BY_NO_SHAPE)
def test_settings_that_change_the_scores_and_no_shape_are_named(name: str) -> None:
    sizes, expected = _TOLD_BY_NO_SHAPE[name]
    config = getattr(transformers, name).config_class(**sizes)
    told = {size: value for size, value in sizes.items() if "head" not in size}
    assumed = tuple((size, value) for size, value in sizes.items() if size not in told)
    found = settings_without_shape(Proposal(name, type(config).__name__, 1, 1, tuple(told.items()), assumed))
    assert expected <= found.keys()
    assert not (_OF_TRAINING | told.keys()) & found.keys()
