"""What a checkpoint holds and the model leaves out: Transformers' own unexpected keys and the scores are the truth."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import headscope
from headscope.core.model.classes.unexpected_keys import describe_unused, find_dropped
from headscope.core.trace.batch.probe_batch import build_probe
from headscope.core.trace.record.execution import run_unrecorded
from headscope.facts import Task
from tests.edits import edit_json, edit_tensors
from tests.families import FAMILIES

_FAR: dict[str, Any] = {"initializer_range": 0.3, "num_labels": 3}
_TEXT = FAMILIES["bert"].config | _FAR | {"pad_token_id": 1}
_IMAGE = FAMILIES["vit"].config | _FAR
_SOUND = _TEXT | {
    "conv_dim": (8, 8),
    "conv_kernel": (3, 3),
    "conv_stride": (2, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "classifier_proj_size": 16,
}


@dataclass(frozen=True)
class Left:
    """A class saved with one configuration and loaded with another; `setting` is what the finding names, if any."""

    family: str
    saved: dict[str, Any]
    loaded: dict[str, Any]
    setting: str = ""
    is_needed: bool = True
    kind: str = "SequenceClassification"
    task: Task = Task.SEQUENCE_CLASSIFICATION


def _flag(family: str, flag: str, sizes: dict[str, Any] = _TEXT, **more: Any) -> Left:
    return Left(family, sizes | {flag: True}, {flag: False}, flag, **more)


_PICTURE: dict[str, Any] = {"kind": "ImageClassification", "task": Task.IMAGE_CLASSIFICATION}
LEFT = {
    "a layer": Left("Bert", _TEXT, {"num_hidden_layers": 1}),
    "a layer of a decoder": Left("Llama", _TEXT | {"num_key_value_heads": 2}, {"num_hidden_layers": 1}),
    "attention biases": _flag("Llama", "attention_bias"),
    "other biases": _flag("Llama", "mlp_bias"),
    "biases of an image model": _flag("ViT", "qkv_bias", _IMAGE, **_PICTURE),
    "relative positions": _flag("DebertaV2", "relative_attention", _TEXT | {"pos_att_type": ["c2p"]}),
    "weights of layers": _flag("Wav2Vec2", "use_weighted_layer_sum", _SOUND, task=Task.AUDIO_CLASSIFICATION),
    "a table of positions": _flag("Beit", "use_relative_position_bias", _IMAGE, **_PICTURE),
    "a mask token": _flag("Dinov2", "use_mask_token", _IMAGE, is_needed=False, **_PICTURE),
    "a mask token of BEiT": _flag("Beit", "use_mask_token", _IMAGE, is_needed=False, **_PICTURE),
}


def _changed(folder: Path, case: Left) -> tuple[Any, Any, set[str]]:
    """The model before the save, the one that the edited folder gives, and the keys that its load left."""
    torch.manual_seed(0)
    cls = getattr(transformers, f"{case.family}For{case.kind}")
    before = cls(cls.config_class(**case.saved)).eval()
    with torch.no_grad():  # biases and tables begin with zeros
        for value in before.parameters():
            value.add_(0.2 * torch.randn_like(value))
    before.save_pretrained(folder)
    edit_json(folder / "config.json", case.loaded)
    after, info = cls.from_pretrained(folder, output_loading_info=True)
    return before, after.eval(), set(info["unexpected_keys"])


@pytest.mark.parametrize("name", LEFT)
def test_what_the_configuration_leaves_out_is_dropped_exactly_where_the_scores_need_it(
    name: str, tmp_path: Path
) -> None:
    case = LEFT[name]
    before, after, unexpected = _changed(tmp_path, case)
    inputs = build_probe(before, case.task).inputs
    given, wanted = (run_unrecorded(model, inputs).logits for model in (after, before))
    assert unexpected and torch.allclose(given, wanted, atol=1e-4) is not case.is_needed
    dropped = headscope.diff_weights(str(tmp_path), offline=True).weights.dropped
    assert {key for group in dropped for key in group.keys} == (unexpected if case.is_needed else set())
    assert {group.setting for group in dropped} == ({case.setting} if case.is_needed else set())


class OwnBiasedHead(transformers.LlamaForSequenceClassification):
    """A class that Transformers doesn't have."""


def test_the_switch_of_a_class_of_ones_own_is_found_with_that_class() -> None:
    with torch.device("meta"):
        model = OwnBiasedHead(transformers.LlamaConfig(**_TEXT))
    keys = ("model.layers.0.self_attn.q_proj.bias",)
    (group,) = find_dropped(model, describe_unused(model, keys), ())
    assert (group.keys, group.setting) == (keys, "attention_bias")


def test_unused_keys_have_owners_though_no_json_can_hold_the_configuration() -> None:
    config = transformers.BertConfig(**_TEXT)
    config.own = object()
    with torch.device("meta"):
        model = transformers.BertForSequenceClassification(config)
    (group,) = describe_unused(model, ("cls.predictions.bias",))
    assert group.description == "masked-LM head"


@pytest.mark.parametrize(
    ("extra", "is_dropped"),
    [
        ("bert.encoder.layer.7.output.dense.bias", True),
        ("bert.encoder.layer.1.output.adapter.weight", True),
        ("bert.own.weight", False),
        ("own.weight", False),
        ("extra_weight", False),
        ("cls.predictions.bias", False),
        ("bert.embeddings.position_ids", False),
    ],
)
def test_a_key_that_no_configuration_takes_is_dropped_if_it_is_inside_the_base_model(
    extra: str, is_dropped: bool, tmp_path: Path
) -> None:
    transformers.BertForSequenceClassification(transformers.BertConfig(**_TEXT)).save_pretrained(tmp_path)
    value = torch.arange(64)[None] if extra.endswith("_ids") else torch.ones(99 if "predictions" in extra else 32)
    edit_tensors(tmp_path / "model.safetensors", lambda state: state | {extra: value})
    dropped = headscope.diff_weights(str(tmp_path), offline=True).weights.dropped
    assert [key for group in dropped for key in group.keys] == [extra] * is_dropped
