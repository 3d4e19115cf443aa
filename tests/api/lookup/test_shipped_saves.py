"""Shipped facts of checkpoints as libraries save them: known, equal to a trace, and true of a real load."""

import random
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers

import headscope
from headscope.core.facts.heads.head import HeadStatus
from headscope.errors import HeadscopeError
from scripts.shipped.saved_manifests import saved_manifest
from tests.api.lookup.test_published import headers
from tests.api.lookup.test_shipped import IS_MADE_HERE
from tests.headers_only import Checkpoint, write

needs_its_facts = pytest.mark.skipif(not IS_MADE_HERE, reason="the facts are of another version")
DTYPES = ("float32", "float16", "bfloat16")
PROBLEMS = (None, "single_label_classification", "multi_label_classification", "regression")
_LISTS = {"long_factor": [1.0 + at for at in range(48)], "short_factor": [1] * 48}
LONG_ROPE = {"type": "longrope", **_LISTS}
PHI = {"hidden_size": 3072, "num_attention_heads": 32, "num_hidden_layers": 3, "max_position_embeddings": 131072}
DINO = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3}
BART = {
    "d_model": 32, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64, "vocab_size": 200, "encoder_layers": 2, "decoder_layers": 2, "max_position_embeddings": 64,
}  # fmt: skip


def saved(name: str, fields: dict[str, Any], dtype: str, count: int, problem: str | None) -> Checkpoint:
    cls = getattr(transformers, name)  # a configuration writes into the dicts that it's given
    manifest = saved_manifest(cls, cls.config_class(**deepcopy(fields)), dtype, count, problem)
    return headers("", dict(manifest.config), manifest.tensors)


def is_known_as_traced(folder: Path) -> bool:
    """Whether the facts of a checkpoint are shipped ones; they have to be those of a trace."""
    known, real = (headscope.inspect(folder, cache=cache).to_dict() for cache in (True, False))
    assert known | {"is_shipped": False} == real
    return bool(known["is_shipped"])


@needs_its_facts
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("name", "fields", "older"),
    [
        ("Wav2Vec2ForSequenceClassification", {"use_weighted_layer_sum": True}, {}),
        ("Phi3ForSequenceClassification", {**PHI, "rope_scaling": LONG_ROPE}, {}),
        ("Phi3ForSequenceClassification", {**PHI, "rope_scaling": LONG_ROPE},
         {"rope_parameters": None, "rope_scaling": LONG_ROPE, "rope_theta": 10000.0}),
        ("Phi3ForTokenClassification", {**PHI, "hidden_size": 5120, "num_attention_heads": 40,
                                        "num_key_value_heads": 10, "max_position_embeddings": 4096}, {}),
        ("Dinov2ForImageClassification", DINO, {"_out_features": ["stage3"], "_out_indices": [3]}),
        ("BartForSequenceClassification", BART, {}),
    ],
    ids=["weighted sum", "long rope", "long rope of 4.x", "few keys", "kept features", "bart"],
)  # fmt: skip
def test_a_save_is_known(name: str, fields: dict[str, Any], older: dict[str, Any], dtype: str, place: Path) -> None:
    """With a count of classes and a type of problem that are drawn; `older` is what another version writes."""
    draw = random.Random(f"{name} {dtype} {older}")
    count, problem = draw.choice([2, 3, 28, 1000]), draw.choice(PROBLEMS) if "Token" not in name else None
    checkpoint = saved(name, fields, dtype, count, problem)
    config = {key: value for key, value in {**checkpoint.config, **older}.items() if value is not None}
    write(replace(checkpoint, config=config), place)
    assert is_known_as_traced(place), (count, problem)


@pytest.mark.parametrize(("width", "length"), [(3072, 47), (3072, 49), (2048, 48)])
def test_lists_of_another_length_are_not_known(width: int, length: int, place: Path) -> None:
    """Phi-3 refuses lists that haven't one number for each pair that it rotates."""
    checkpoint = saved("Phi3ForSequenceClassification", {**PHI, "hidden_size": width}, "float32", 3, None)
    scaling = {**LONG_ROPE, "long_factor": [1.0] * length}
    config = {name: value for name, value in checkpoint.config.items() if name != "rope_parameters"}
    write(replace(checkpoint, config={**config, "rope_scaling": scaling, "rope_theta": 10000.0}), place)
    with pytest.raises(HeadscopeError):
        headscope.inspect(place, cache=True)


def test_two_classes_that_a_configuration_does_not_name_are_known_as_mismatched(place: Path) -> None:
    """Transformers leaves `LABEL_0` and `LABEL_1` out, and then reads the family's default of three classes."""
    cls: Any = transformers.BartForSequenceClassification
    cls(cls.config_class(**BART, num_labels=2)).save_pretrained(place)
    _, info = cls.from_pretrained(place, ignore_mismatched_sizes=True, output_loading_info=True)
    report = headscope.inspect(place, cache=True)
    assert report.is_shipped is IS_MADE_HERE
    assert report.head is not None and report.head.status is HeadStatus.PARTLY_NEW
    assert {item.parameter for item in report.weights.mismatched} == {key for key, *_ in info["mismatched_keys"]}
    assert {(item.checkpoint_shape[0], item.model_shape[0]) for item in report.weights.mismatched} == {(2, 3)}
    assert is_known_as_traced(place) is IS_MADE_HERE
