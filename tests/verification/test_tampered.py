"""Tables of loads and saves that were tampered with, and of healthy ones, over families, formats and dtypes.

Every load is made by Transformers or PEFT. Whether a case is healthy is told by `torch.equal` on the state dicts that
these libraries load, not by headscope.
"""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    LlamaForSequenceClassification,
    ResNetConfig,
    ResNetForImageClassification,
    Wav2Vec2Config,
    Wav2Vec2ForPreTraining,
    Wav2Vec2ForSequenceClassification,
)

import headscope
from headscope.core.facts.verdict import Verdict
from headscope.shared.loaded.facts import TensorStatus
from tests.families import FAMILIES
from tests.verification.tiny import TINY, ids, loaded, lost_in_a_load, reloaded

KINDS = ("bert", "roberta", "distilbert", "gpt2", "t5", "llama", "deberta-v2", "modernbert", "vit")

# Healthy loads: each family in each dtype; tests/verification/test_loaded_models.py has the formats.

SINGLE, BRAIN, HALF, DOUBLE = torch.float32, torch.bfloat16, torch.float16, torch.float64
CASTS = [(name, SINGLE, live) for name in KINDS for live in (BRAIN, HALF)]
CASTS += [
    (name, stored, live) for name in ("bert", "llama") for stored in (BRAIN, HALF, DOUBLE) for live in (SINGLE, BRAIN)
]


@pytest.mark.parametrize(("name", "stored", "live"), CASTS, ids=str)
def test_a_load_in_another_dtype_passes_whole(
    name: str, stored: torch.dtype, live: torch.dtype, tmp_path: Path
) -> None:
    family = FAMILIES[name]
    model = reloaded(family.build(family.classifier).to(stored), tmp_path, dtype=live)
    result = headscope.verify(model, tmp_path)
    assert (result.verdict, ids(result)) == (Verdict.PASSED, []), str(result)
    assert result.scope.compared == result.scope.tensors
    assert not result.scope.head_only
    own = {item for item, _ in (*model.named_parameters(), *model.named_buffers())}
    assert own <= {item.name for item in result.tensors}
    if (stored.itemsize, live) == (2, SINGLE):  # longer numbers hold the shorter ones
        assert {item.max_error for item in result.tensors if item.status is TensorStatus.CAST} == {0.0}


@pytest.mark.parametrize("name", KINDS)
def test_a_checkpoint_of_another_class_drops_nothing_that_the_base_needs(name: str, tmp_path: Path) -> None:
    """The heads of pretraining, a pooler and a decoder are left out in every such load: no layer is missing."""
    family = FAMILIES[name]
    for source in (family.base, family.language_model):
        if source is None:
            continue
        family.build(source).save_pretrained(tmp_path / source)
        for target in (family.classifier, family.base):
            model = getattr(transformers, target).from_pretrained(tmp_path / source)
            result = headscope.verify(model, tmp_path / source)
            assert not {"HS701", "HS703", "HS705", "HS707"} & set(ids(result)), str(result)


def test_speech_is_compared_whole_and_what_only_pretraining_needs_is_not_missed(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 37}
    convolutions = {"conv_dim": (8, 8), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_feat_extract_layers": 2}
    others = {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "codevector_dim": 8}
    config = Wav2Vec2Config(**sizes, **convolutions, **others, proj_codevector_dim=8, classifier_proj_size=8)
    model = reloaded(Wav2Vec2ForSequenceClassification(config), tmp_path / "own")
    for result in (headscope.verify(model, tmp_path / "own"), headscope.verify_save(model, tmp_path / "own")):
        assert (result.verdict, ids(result)) == (Verdict.PASSED, []), str(result)
        assert result.scope.compared == result.scope.tensors
    with torch.no_grad():
        model.wav2vec2.encoder.layers[1].attention.k_proj.weight.zero_()
    assert ids(headscope.verify(model, tmp_path / "own")) == ["HS705"]
    Wav2Vec2ForPreTraining(config).save_pretrained(tmp_path / "pretrained")
    model = Wav2Vec2ForSequenceClassification.from_pretrained(tmp_path / "pretrained")
    assert ids(headscope.verify(model, tmp_path / "pretrained")) == ["HS702"]


def test_a_model_without_a_head_is_compared_whole(tmp_path: Path) -> None:
    model = reloaded(BertModel(BertConfig(**TINY)), tmp_path)
    for head in (False, True):
        result = headscope.verify(model, tmp_path, head=head)
        assert result.verdict is Verdict.PASSED
        assert not any(item.is_head for item in result.tensors)
        assert result.scope.compared == result.scope.tensors == 41
        assert any("every tensor was compared" in note for note in result.notes) == head
        assert not result.scope.head_only
    with torch.no_grad():
        model.embeddings.word_embeddings.weight.normal_()
    result = headscope.verify(model, tmp_path)
    assert ids(result) == ["HS705"]
    assert "outside" not in result.findings[0].message


# Tampered loads.


def redraw(name: str) -> Callable[[Any], object]:
    return lambda model: model.get_parameter(name).normal_()


def zero_a_layer(model: Any) -> None:
    for item in model.bert.encoder.layer[1].parameters():
        item.zero_()


def remove_a_layer_and_say_so(model: Any) -> None:
    model.bert.encoder.layer.pop(1)
    model.config.num_hidden_layers = 1


def swap_layers(model: Any) -> None:
    layers = model.bert.encoder.layer
    layers[0], layers[1] = layers[1], layers[0]


def one_class(model: Any) -> None:
    model.classifier = nn.Linear(32, 1)
    model.config.num_labels = 1


QUERY, DENSE = "bert.encoder.layer.0.attention.self.query.weight", "bert.encoder.layer.0.output.dense.weight"
NAN, INFINITE = float("nan"), float("inf")
LOADS: dict[str, tuple[Callable[[Any], object], set[str]]] = {
    "word embeddings redrawn": (redraw("bert.embeddings.word_embeddings.weight"), {"HS705"}),
    "position embeddings redrawn": (redraw("bert.embeddings.position_embeddings.weight"), {"HS705"}),
    "a query redrawn": (redraw(QUERY), {"HS705"}),
    "a bias redrawn": (redraw("bert.encoder.layer.1.output.dense.bias"), {"HS705"}),
    "the pooler redrawn": (redraw("bert.pooler.dense.weight"), {"HS701"}),
    "the classifier redrawn": (redraw("classifier.weight"), {"HS701"}),
    "a layer zeroed": (zero_a_layer, {"HS705"}),
    "a layer removed": (lambda model: model.bert.encoder.layer.pop(1), {"HS707"}),
    "a layer removed, config too": (remove_a_layer_and_say_so, {"HS707"}),
    "all layers removed": (lambda model: model.bert.encoder.add_module("layer", nn.ModuleList()), {"HS707"}),
    "layers swapped": (swap_layers, {"HS705"}),
    "attention heads swapped": (
        lambda model: model.get_parameter(QUERY).copy_(model.get_parameter(QUERY).roll(16, 0)), {"HS705"},
    ),
    "transposed": (lambda model: model.bert.encoder.layer[0].attention.self.key.weight.t_(), {"HS705"}),
    "through bfloat16": (lambda model: model.bfloat16().float(), {"HS701", "HS705"}),
    "through float16": (lambda model: model.half().float(), {"HS701", "HS705"}),
    "one number of the base": (lambda model: model.bert.embeddings.LayerNorm.bias[3].add_(1e-6), {"HS705"}),
    "NaN in the base": (lambda model: model.get_parameter(DENSE)[0, 0].fill_(NAN), {"HS705"}),
    "infinity in the base": (lambda model: model.get_parameter(DENSE)[0, 0].fill_(INFINITE), {"HS705"}),
    "five classes": (lambda model: model.add_module("classifier", nn.Linear(32, 5)), {"HS701"}),
    "one class": (one_class, {"HS701"}),
    "a parameter more in the classifier": (
        lambda model: model.classifier.register_parameter("scale", nn.Parameter(torch.ones(3))), {"HS702"},
    ),
    "a layer more than the file": (
        lambda model: model.bert.encoder.layer.append(deepcopy(model.bert.encoder.layer[0])), {"HS706"},
    ),
    "rows of the classifier permuted": (
        lambda model: model.classifier.weight.copy_(model.classifier.weight.flip(0)), {"HS701"},
    ),
    "one number of the head": (lambda model: model.classifier.weight[0, 0].add_(1e-6), {"HS701"}),
    "the pooler transposed": (lambda model: model.bert.pooler.dense.weight.t_(), {"HS701"}),
    "infinity in the head": (lambda model: model.classifier.bias[1].fill_(INFINITE), {"HS701", "HS708"}),
    "NaN in the head": (lambda model: model.classifier.bias[1].fill_(NAN), {"HS704", "HS708"}),
    "the classifier zeroed": (lambda model: model.classifier.weight.zero_(), {"HS704", "HS708"}),
    "the classifier emptied": (
        lambda model: model.classifier.register_parameter("weight", nn.Parameter(torch.empty(0))), {"HS704"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LOADS)
def test_a_load_that_was_tampered_with_fails(case: str, model: Any, saved: Path) -> None:
    change, rules = LOADS[case]
    with torch.no_grad():
        change(model)
    result = headscope.verify(model, saved)
    assert result.verdict is Verdict.FAILED, str(result)
    assert set(ids(result)) == rules, str(result)
    healthy = (TensorStatus.EQUAL, TensorStatus.COMPUTED)
    assert {item.name for item in result.tensors if item.status not in healthy} == lost_in_a_load(saved, model)


def test_what_went_through_shorter_numbers_is_named(model: Any, saved: Path) -> None:
    result = headscope.verify(model.bfloat16().float(), saved)
    assert "rounded to bfloat16" in result.findings[0].message
    assert TensorStatus.CAST not in {item.status for item in result.tensors}


@pytest.mark.parametrize("keep", [torch.float32, torch.bfloat16], ids=str)
def test_another_class_count_is_a_finding_in_every_dtype(saved: Path, keep: torch.dtype) -> None:
    model = loaded(saved, num_labels=7, ignore_mismatched_sizes=True, dtype=keep)
    result = headscope.verify(model, saved)
    assert ids(result) == ["HS701"]
    assert set(result.findings[0].parameters) == {"classifier.weight", "classifier.bias"}


def test_fewer_layers_than_the_file_fail_in_every_family(tmp_path: Path) -> None:
    for name, field in (("llama", "num_hidden_layers"), ("gpt2", "n_layer"), ("t5", "num_layers")):
        family = FAMILIES[name]
        model = reloaded(family.build(family.classifier), tmp_path / name, **{field: 1})
        result = headscope.verify(model, tmp_path / name)
        assert ids(result) == ["HS707"], (name, str(result))


def test_a_bias_that_the_configuration_switches_off_is_dropped(tmp_path: Path) -> None:
    FAMILIES["llama"].build("LlamaForSequenceClassification", attention_bias=True).save_pretrained(tmp_path)
    model, info = LlamaForSequenceClassification.from_pretrained(
        tmp_path, attention_bias=False, output_loading_info=True
    )
    result = headscope.verify(model, tmp_path)
    assert ids(result) == ["HS707"]
    assert set(result.findings[0].parameters) == set(info["unexpected_keys"])


def test_running_statistics_that_changed_are_seen(tmp_path: Path) -> None:
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], num_labels=3)
    model = reloaded(ResNetForImageClassification(config), tmp_path / "r")
    assert headscope.verify(model, tmp_path / "r").verdict is Verdict.PASSED
    assert headscope.verify_save(model, tmp_path / "r").verdict is Verdict.PASSED
    model.train()(pixel_values=torch.randn(2, 3, 32, 32))
    assert ids(headscope.verify(model, tmp_path / "r")) == ["HS705"]
    assert "HS719" in ids(headscope.verify_save(model, tmp_path / "r"))


def test_a_tie_that_code_broke_is_seen(tmp_path: Path) -> None:
    model = reloaded(FAMILIES["t5"].build("T5ForSequenceClassification"), tmp_path)
    encoder = model.transformer.encoder
    encoder.embed_tokens.weight = nn.Parameter(encoder.embed_tokens.weight + 1)
    assert headscope.verify(model, tmp_path).verdict is Verdict.FAILED
    assert headscope.verify_save(model, tmp_path).verdict is Verdict.FAILED


def test_wrappers_change_nothing(model: Any, saved: Path) -> None:
    for wrapped in (torch.compile(model), nn.DataParallel(model)):
        for look in (headscope.verify, headscope.verify_save):
            result = look(wrapped, saved)
            assert (result.verdict, ids(result)) == (Verdict.PASSED, []), str(result)
    with torch.no_grad():
        swap_layers(model)
    for wrapped in (torch.compile(model), nn.DataParallel(model)):
        assert ids(headscope.verify(wrapped, saved)) == ["HS705"]
