"""Configurations of Transformers whose heads are easy to read wrongly, against a reading of their modeling source."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers import BertConfig, BertModel

import headscope
from headscope.core.model.quiet import quiet
from headscope.core.trace import TokenNames, trace_head
from headscope.facts import HeadTrace, PoolingKind, Task

_XLNET = {"vocab_size": 90, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 40}
_BEIT = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40, "patch_size": 16,
}  # fmt: skip
_WAV2VEC2 = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "classifier_proj_size": 24, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A class at a configuration, and what a person reads in its source."""

    name: str
    task: Task
    kind: PoolingKind
    tokens: tuple[str, ...]
    formula: str
    config: dict[str, Any] = field(default_factory=dict)


IMAGE, TEXT, AUDIO = Task.IMAGE_CLASSIFICATION, Task.SEQUENCE_CLASSIFICATION, Task.AUDIO_CLASSIFICATION
CASES = (
    Case(  # XLNetSequenceSummary.forward: cls_index defaults to the last position
        "XLNetForSequenceClassification", TEXT, PoolingKind.LAST_TOKEN, ("-1",), "logits_proj(tanh(summary(h[-1])))",
        _XLNET | {"summary_type": "cls_index"},
    ),
    Case(  # hidden_states[:, 0]; XLNet puts <cls> last, so index 0 has no name
        "XLNetForSequenceClassification", TEXT, PoolingKind.FIRST_TOKEN, ("0",), "logits_proj(tanh(summary(h[0])))",
        _XLNET | {"summary_type": "first"},
    ),
    Case(  # hidden_states.mean(dim=1)
        "XLNetForSequenceClassification", TEXT, PoolingKind.MEAN, ("all",), "logits_proj(tanh(summary(mean(h))))",
        _XLNET | {"summary_type": "mean"},
    ),
    Case(  # BeitPooler: patch_tokens = hidden_states[:, 1:, :]; 4 patches and a first token, as many as examples
        "BeitForImageClassification", IMAGE, PoolingKind.MEAN, ("1:",), "classifier(layernorm(mean(h[1:])))",
        _BEIT | {"image_size": 32},
    ),
    Case(
        "Data2VecVisionForImageClassification", IMAGE, PoolingKind.MEAN, ("1:",),
        "classifier(layernorm(mean(h[1:])))", _BEIT | {"image_size": 32},
    ),
    Case(  # 25 tokens and 25 features
        "ViTForImageClassification", IMAGE, PoolingKind.FIRST_TOKEN, ("cls_token",), "classifier(h[cls_token])",
        _BEIT | {"image_size": 80, "hidden_size": 26, "num_attention_heads": 2, "patch_size": 16},
    ),
    Case(  # LevitForImageClassification: sequence_output.mean(1), of one token at this image size
        "LevitForImageClassification", IMAGE, PoolingKind.MEAN, ("all",), "linear(batch_norm(mean(h)))",
        {"image_size": 64},
    ),
    Case(  # nn.MaxPool2d over the whole map
        "EfficientNetForImageClassification", IMAGE, PoolingKind.MAX, ("all",), "classifier(max(h))",
        {"pooling_type": "max"},
    ),
    Case(  # norm_weights * stack of all layers, summed; then a mean over frames
        "Wav2Vec2ForSequenceClassification", AUDIO, PoolingKind.MASKED_MEAN, ("all non-pad",),
        "classifier(mean(projector(sum(stack(h[-3], h[-2], h[-1]) * softmax(layer_weights), dim=1))[non-pad]))",
        _WAV2VEC2 | {"use_weighted_layer_sum": True},
    ),
)  # fmt: skip


def trace(case: Case) -> HeadTrace:
    cls = getattr(transformers, case.name)
    config = cls.config_class(**case.config, num_labels=3)
    with quiet(), torch.device("meta"):
        model = cls(config)
    with quiet():
        return trace_head(model, case.task, TokenNames(), prove=True).trace


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}-{case.kind}-{len(case.config)}")
def test_the_head_is_what_the_source_says(case: Case) -> None:
    traced = trace(case)
    assert (traced.pooling.kind, traced.pooling.tokens) == (case.kind, case.tokens)
    assert traced.formula == f"logits = {case.formula}"
    assert traced.verification.agrees is True
    assert traced.not_determined == ()


@pytest.mark.parametrize("name", ["BeitForImageClassification", "Data2VecVisionForImageClassification"])
def test_the_batch_is_told_from_as_many_patches(name: str) -> None:
    [case] = [case for case in CASES if case.name == name]
    assert trace(case).hidden_shape == ("batch", 5, 32)


class LastFour(nn.Module):
    """The classic: the first token of the last four layers, side by side."""

    def __init__(self, layers: tuple[int, ...]) -> None:
        super().__init__()
        config = BertConfig(
            vocab_size=90, hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=20
        )
        self.bert = BertModel(config, add_pooling_layer=False)
        self.fc = nn.Linear(16 * len(layers), 3)
        self.layers = layers

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        states = self.bert(input_ids, attention_mask=attention_mask, output_hidden_states=True).hidden_states
        return self.fc(torch.cat([states[layer][:, 0] for layer in self.layers], -1))


class Towers(nn.Module):
    """Two texts, one encoder, and the classic triple: both vectors and their absolute difference."""

    def __init__(self) -> None:
        super().__init__()
        self.bert = LastFour((-1,)).bert
        self.fc = nn.Linear(48, 3)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        one = self.bert(input_ids, attention_mask=attention_mask).last_hidden_state[:, 0]
        two = self.bert(input_ids.flip(0), attention_mask=attention_mask.flip(0)).last_hidden_state[:, 0]
        return self.fc(torch.cat([one, two, (one - two).abs()], -1))


def formula_of(module: nn.Module) -> str:
    ids = torch.arange(12).reshape(2, 6)
    report = headscope.inspect(module.eval(), example_inputs={"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    return report.head.formula


@pytest.mark.parametrize(
    ("layers", "formula"),
    [
        ((-1,), "fc(h[0])"),
        ((-2,), "fc(h[-2][0])"),
        ((0,), "fc(h[-5][0])"),  # the embeddings, counted from the end: four layers follow
        ((-1, -2, -3, -4), "fc([h[-1][0]; h[-2][0]; h[-3][0]; h[-4][0]])"),
    ],
)
def test_every_layer_that_is_read_is_named(layers: tuple[int, ...], formula: str) -> None:
    assert formula_of(LastFour(layers)) == f"logits = {formula}"


def test_two_towers_keep_their_names() -> None:
    assert formula_of(Towers()) == "logits = fc([h1[0]; h2[0]; abs(h1[0] - h2[0])])"


class Encoder(nn.Module):
    """Hidden states of tokens, each from its own token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.dense = nn.Linear(16, 16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.dense(self.embedding(ids)))


class Pooled(nn.Module):
    """A classifier whose head begins with one function of the hidden states."""

    def __init__(self, pool: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.encoder, self.pool, self.classifier = Encoder(), pool, nn.Linear(16, 3)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.pool(self.encoder(input_ids)))


MAXIMA = {
    "over the positions": (lambda h: h.amax(1), "largest value of each feature over the positions, padding included"),
    "without the first": (lambda h: h[:, 1:].amax(1), "largest value of each feature over all positions but the first"),
    "over windows": (lambda h: h.unfold(1, 3, 1).mean(-1).amax(1), "not determined"),
    "over averages": (lambda h: nn.functional.avg_pool1d(h.transpose(1, 2), 3).amax(-1), "not determined"),
}


@pytest.mark.parametrize("name", MAXIMA)
def test_a_maximum_is_one_over_positions_as_they_are(name: str) -> None:
    pool, rule = MAXIMA[name]
    report = headscope.inspect(Pooled(pool), example_inputs=torch.randint(1, 50, (2, 9)))
    assert report.head.pooling.rule == rule
