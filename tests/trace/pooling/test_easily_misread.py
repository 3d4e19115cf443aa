"""Configurations of Transformers whose heads are easy to read wrongly, against a reading of their modeling source."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import headscope
from headscope.core.model.quiet import quiet
from headscope.core.trace import TokenNames, trace_head
from headscope.facts import HeadTrace, PoolingKind, Task
from tests.families import FAMILIES
from tests.trace.heads import EXAMPLES, H, Made, Text, bert

_XLNET = FAMILIES["xlnet"].config
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
    assert traced.hidden_shape[0] == "batch"
    assert "batch" not in traced.hidden_shape[1:]  # as many patches as examples are none
    if case.config == _BEIT | {"image_size": 32}:
        assert traced.hidden_shape == ("batch", 5, 32)


def formula_of(head: Callable[..., torch.Tensor], width: int) -> str:
    """The formula of a head on a BERT of four layers."""
    model = Made(head, bert=bert(num_hidden_layers=4), fc=nn.Linear(width, 3)).eval()
    return headscope.inspect(model, example_inputs=EXAMPLES).head.formula


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
    """The classic is the first token of the last four layers, side by side."""

    def first_of_each(s: Any, ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        states = s.bert(ids, attention_mask=attention_mask, output_hidden_states=True).hidden_states
        return s.fc(torch.cat([states[layer][:, 0] for layer in layers], -1))

    assert formula_of(first_of_each, H * len(layers)) == f"logits = {formula}"


def test_two_towers_keep_their_names() -> None:
    """Two texts, one encoder, and the classic triple: both vectors and their absolute difference."""

    def triple(s: Any, ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        one = s.bert(ids, attention_mask=attention_mask).last_hidden_state[:, 0]
        two = s.bert(ids.flip(0), attention_mask=attention_mask.flip(0)).last_hidden_state[:, 0]
        return s.fc(torch.cat([one, two, (one - two).abs()], -1))

    assert formula_of(triple, 3 * H) == "logits = fc([h1[0]; h2[0]; abs(h1[0] - h2[0])])"


@pytest.mark.parametrize(
    "pool",
    [lambda h: h.unfold(1, 3, 1).mean(-1).amax(1), lambda h: nn.functional.avg_pool1d(h.transpose(1, 2), 3).amax(-1)],
)
def test_a_maximum_over_windows_is_none_over_positions(pool: Callable[[torch.Tensor], torch.Tensor]) -> None:
    report = headscope.inspect(Text(lambda s, h, m: s.fc(pool(h))), example_inputs=EXAMPLES)
    assert report.head.pooling.rule == "not determined"
