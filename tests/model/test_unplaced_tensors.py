"""Why nothing takes a tensor: each kind of tensor that people's files hold beside the model that is built."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import transformers as tf
from torch import nn
from torch.nn.utils import parametrizations, prune
from transformers.models.t5.modeling_t5 import T5Stack

from headscope.core.facts.stored.unplaced import look_of, parametrized_among
from headscope.core.model.classes.catalog import task_of_class
from headscope.core.model.classes.model_request import Choice
from headscope.core.model.classes.unexpected_keys import describe_unused
from headscope.core.model.loading.loader import load_skeleton
from headscope.facts import CheckpointKind, CheckpointManifest, TensorHeader, WeightDiff, WeightsFormat

Shape = tuple[int, ...]
BERT = tf.BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20)
GPT2 = tf.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=20, pad_token_id=0)
T5 = tf.T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=20, num_layers=2, num_heads=2)
ELECTRA = tf.ElectraConfig(
    vocab_size=50, embedding_size=16, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20
)

_PART = {"hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 2}
CLIP = tf.CLIPConfig(
    text_config=_PART | {"vocab_size": 50}, vision_config=_PART | {"image_size": 8, "patch_size": 4}, projection_dim=16
)


def diff_of(cls: Any, config: Any, source: Any = None, **extra: Shape | tuple[str, Shape]) -> WeightDiff:
    """What a load of `cls` does with the tensors of `source`, a class of the family, and others, all headers only."""
    with torch.device("meta"):
        state = (source or cls)(deepcopy(config)).state_dict()
    headers = [TensorHeader(key, "float32", tuple(item.shape)) for key, item in state.items()]
    for key, given in extra.items():
        dtype, shape = given if given and isinstance(given[0], str) else ("float32", given)
        headers.append(TensorHeader(key, str(dtype), shape))  # type: ignore[arg-type]
    manifest = CheckpointManifest(
        reference="it", kind=CheckpointKind.LOCAL, format=WeightsFormat.SAFETENSORS, config={},
        tensors=tuple(headers), files=(),
    )  # fmt: skip
    task = task_of_class(cls.__name__)
    assert task is not None
    return load_skeleton(Choice(cls, task, deepcopy(config)), manifest).diff


def reasons(diff: WeightDiff) -> dict[str, str]:
    return {item.module: item.reason.value for item in diff.unplaced}


OF_THE_FAMILY = {
    "masked LM": (tf.BertForSequenceClassification, BERT, tf.BertForPreTraining, {"pretraining_head"}),
    "pooler": (tf.BertForTokenClassification, BERT, tf.BertForPreTraining, {"pretraining_head", "other_tower"}),
    "discriminator": (tf.ElectraForSequenceClassification, ELECTRA, tf.ElectraForPreTraining, {"pretraining_head"}),
    "tied lm_head": (tf.GPT2ForSequenceClassification, GPT2, tf.GPT2LMHeadModel, {"pretraining_head"}),
    "unmapped class": (tf.GPT2ForSequenceClassification, GPT2, tf.GPT2DoubleHeadsModel, {"pretraining_head"}),
    "class that is not public": (tf.T5ForTokenClassification, T5, T5Stack, {"other_tower"}),
    "decoder": (tf.T5ForTokenClassification, T5, tf.T5ForConditionalGeneration, {"pretraining_head"}),
    "text model": (tf.CLIPForImageClassification, CLIP, tf.CLIPModel, {"other_tower"}),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_THE_FAMILY)
def test_what_a_class_of_the_family_has_is_not_without_a_place(name: str) -> None:
    cls, config, source, expected = OF_THE_FAMILY[name]
    diff = diff_of(cls, config, source)
    assert set(reasons(diff).values()) == expected
    assert diff.without_place == () and diff.lost == ()


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "masks of GPT-2": (
        {"transformer.h.0.attn.masked_bias": (), "transformer.h.0.attn.bias": (1, 1, 20, 20)},
        "older_version",
    ),
    "a mask of GPT-NeoX": ({"layers.0.attention.bias": ("uint8", (1, 1, 20, 20))}, "older_version"),
    "biases of attentions": (
        {"one.attn.bias": (16,), "two.attn.bias": (1, 1, 16), "three.attn.bias": (1, 2, 20, 20)},
        "unknown",
    ),
    "a mask's shape by another name": ({"filter.bias": (1, 1, 20, 20)}, "unknown"),
    "whole numbers": ({"seen.steps": ("int64", ())}, "older_version"),
    "an optimizer": ({"optimizer.exp_avg.0": (16,)}, "training_state"),
    "weights of a loss": ({"loss_fct.weight": (2,)}, "training_state"),
    "an average": (
        {"ema_model.bert.pooler.dense.weight": (16, 16), "ema_model.classifier.weight": (2, 16)},
        "training_state",
    ),
    "a loss with a matrix": ({"loss_fct.weight": (2, 16)}, "unknown"),
    "a teacher of another shape": ({"teacher.classifier.weight": (2, 64)}, "unknown"),
    "a head by the name of another, of other sizes": ({"qa_outputs.weight": (2, 64)}, "unknown"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_tensors_have_the_reason_that_their_names_and_shapes_tell(name: str) -> None:
    extra, expected = OTHERS[name]
    is_gpt2 = name == "masks of GPT-2"
    cls, config = (tf.GPT2ForSequenceClassification, GPT2) if is_gpt2 else (tf.BertForSequenceClassification, BERT)
    diff = diff_of(cls, config, **extra)
    assert set(reasons(diff).values()) == {expected}
    assert diff.dropped == ()
    assert bool(diff.without_place) is bool(diff.lost) is (expected == "unknown")


def test_without_shapes_names_alone_give_the_reason_and_a_loss_needs_its_shape() -> None:
    with torch.device("meta"):
        model = tf.BertForSequenceClassification(BERT)
    known = {"h.0.attn.masked_bias": "older_version", "optimizer.step": "training_state"}
    unknown = dict.fromkeys(("h.0.attn.bias", "loss.weight", "ema.classifier.weight"), "unknown")
    groups = describe_unused(model, (*unknown, *known))
    assert {key: group.reason.value for group in groups for key in group.keys} == known | unknown


def test_every_unused_tensor_is_in_one_entry_and_none_is_named_by_two_rules() -> None:
    with torch.device("meta"):
        state = tf.BertForSequenceClassification(BERT).state_dict()
    deeper = {key.replace(".1.", ".2."): tuple(item.shape) for key, item in state.items() if "layer.1." in key}
    diff = diff_of(tf.BertForSequenceClassification, BERT, tf.BertForPreTraining, **deeper, mean=(1,))
    listed = [key for item in diff.unplaced for key in item.tensors]
    assert sorted(listed) == sorted(diff.unused) and len(set(listed)) == len(listed)
    [dropped] = diff.dropped
    assert set(dropped.keys) == set(deeper)
    assert [item.tensors for item in diff.without_place] == [("mean",)]


LOOKS = {
    "an LSTM over the positions in both directions, 16 -> 8": nn.LSTM(16, 8, bidirectional=True),
    "a GRU over the positions, 16 -> 4": nn.GRU(16, 4, num_layers=2),
    "1 convolution: 16 -> 8": nn.Conv1d(16, 8, 3),
    "2 linear layers: 16 -> 8, 8 -> 2": nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2)),
    "a norm of 16 features": nn.LayerNorm(16),
    "an encoder of 3 layers": nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 2, 20, batch_first=True), 3, enable_nested_tensor=False
    ),
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_module_without_a_place_is_told_by_its_shapes(look: str) -> None:
    shapes = {f"bert.extra.{key}": tuple(item.shape) for key, item in LOOKS[look].state_dict().items()}
    [found] = diff_of(tf.BertForSequenceClassification, BERT, **shapes).without_place
    assert (found.module, found.what) == ("bert.extra", look)


COMPUTED = (
    parametrizations.weight_norm, parametrizations.spectral_norm, parametrizations.orthogonal,
    nn.utils.weight_norm, nn.utils.spectral_norm, lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("computed", COMPUTED)
def test_what_a_weight_is_computed_from_is_no_layer(computed: Callable[[nn.Linear], nn.Linear]) -> None:
    state = computed(nn.Linear(16, 8)).state_dict()
    made = [key for key in state if key not in ("weight", "bias")]
    assert {key for key in made if not key.endswith(("_u", "_v", "_mask"))} <= {*parametrized_among(made)}
    assert look_of("extra", {f"extra.{key}": tuple(item.shape) for key, item in state.items()}) == (
        "a weight is computed from them"
    )


@pytest.mark.parametrize(
    ("shapes", "look"),
    [
        ({"mean": (1,), "std": (1,)}, "mean and standard deviation of one score"),
        ({"crf.transitions": (3, 3), "crf.start_transitions": (3,)}, "a CRF over 3 labels"),
        ({"v_head.out.weight": (1, 16), "v_head.out.bias": (1,)}, "a value or reward head, 1 linear layer: 16 -> 1"),
        ({"temperature": ()}, "1 number"),
    ],
)  # fmt: skip
def test_tensors_by_their_names_and_shapes(shapes: dict[str, Shape], look: str) -> None:
    [found] = diff_of(tf.BertForSequenceClassification, BERT, **shapes).without_place
    assert found.what == look
