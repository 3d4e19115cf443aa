"""The head path of many families against a reading of their modeling source."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch

from headscope.core.model.classes.catalog import task_of_class
from headscope.core.trace import TokenNames, trace_head
from headscope.facts import HeadTrace, PoolingKind
from tests.families import FAMILIES

CLASSIFICATION_HEAD = (  # RobertaClassificationHead.forward, XLMRobertaClassificationHead.forward
    ("select", "classifier"),
    ("dropout", "classifier.dropout"),
    ("linear", "classifier.dense"),
    ("tanh", "classifier"),
    ("dropout", "classifier.dropout"),
    ("linear", "classifier.out_proj"),
)
EOS_HEAD = (  # BartForSequenceClassification.forward with BartClassificationHead.forward; T5 alike
    ("index", ""),
    ("view", ""),
    ("select", ""),
    ("dropout", "classification_head.dropout"),
    ("linear", "classification_head.dense"),
    ("tanh", "classification_head"),
    ("dropout", "classification_head.dropout"),
    ("linear", "classification_head.out_proj"),
)
SCORE_EVERY_TOKEN = (("linear", "score"), ("index", ""))  # GenericForSequenceClassification.forward, GPT2
MODERNBERT_HEAD = (  # ModernBertPredictionHead.forward, then drop and classifier
    ("linear", "head.dense"),
    ("gelu", "head.act"),
    ("layer_norm", "head.norm"),
    ("dropout", "drop"),
    ("linear", "classifier"),
)


@dataclass(frozen=True)
class Reading:
    """What a person reads in the modeling source of one family."""

    family: str
    kind: str
    stages: tuple[tuple[str, str], ...]
    formula: str
    changes: tuple[tuple[str, Any], ...] = ()


READINGS = (
    Reading(
        "bert",  # BertPooler.forward inside BertModel, then dropout and classifier
        "first_token",
        (
            ("select", "bert.pooler"),
            ("linear", "bert.pooler.dense"),
            ("tanh", "bert.pooler.activation"),
            ("dropout", "dropout"),
            ("linear", "classifier"),
        ),
        "logits = classifier(tanh(dense(h[CLS])))",
    ),
    Reading("roberta", "first_token", CLASSIFICATION_HEAD, "logits = out_proj(tanh(dense(h[CLS])))"),
    Reading("xlm-roberta", "first_token", CLASSIFICATION_HEAD, "logits = out_proj(tanh(dense(h[CLS])))"),
    Reading(
        "distilbert",  # hidden_state[:, 0], pre_classifier, nn.ReLU()(...), dropout, classifier
        "first_token",
        (
            ("select", ""),
            ("linear", "pre_classifier"),
            ("relu", ""),
            ("dropout", "dropout"),
            ("linear", "classifier"),
        ),
        "logits = classifier(relu(pre_classifier(h[CLS])))",
    ),
    Reading(
        "albert",  # AlbertModel.forward: pooler_activation(pooler(sequence_output[:, 0]))
        "first_token",
        (
            ("select", "albert"),
            ("linear", "albert.pooler"),
            ("tanh", "albert.pooler_activation"),
            ("dropout", "dropout"),
            ("linear", "classifier"),
        ),
        "logits = classifier(tanh(pooler(h[CLS])))",
    ),
    Reading(
        "electra",  # ElectraClassificationHead.forward uses gelu, not tanh
        "first_token",
        (
            ("select", "classifier"),
            ("dropout", "classifier.dropout"),
            ("linear", "classifier.dense"),
            ("gelu", "classifier.activation"),
            ("dropout", "classifier.dropout"),
            ("linear", "classifier.out_proj"),
        ),
        "logits = out_proj(gelu(dense(h[CLS])))",
    ),
    Reading(
        "deberta-v2",  # ContextPooler.forward outside the base model
        "first_token",
        (
            ("select", "pooler"),
            ("dropout", "pooler.dropout"),
            ("linear", "pooler.dense"),
            ("gelu", "pooler"),
            ("dropout", "dropout"),
            ("linear", "classifier"),
        ),
        "logits = classifier(gelu(dense(h[CLS])))",
    ),
    Reading(
        "xlnet",  # XLNetSequenceSummary.forward with summary_type "last"
        "last_token",
        (
            ("select", "sequence_summary"),
            ("linear", "sequence_summary.summary"),
            ("tanh", "sequence_summary.activation"),
            ("dropout", "sequence_summary.last_dropout"),
            ("linear", "logits_proj"),
        ),
        "logits = logits_proj(tanh(summary(h[-1])))",
    ),
    Reading("bart", "eos_token", EOS_HEAD, "logits = out_proj(tanh(dense(h[</s>])))"),
    Reading("t5", "eos_token", EOS_HEAD, "logits = out_proj(tanh(dense(h[</s>])))"),
    Reading("gpt2", "last_non_pad_token", SCORE_EVERY_TOKEN, "logits = score(h)[last non-pad]"),
    Reading("llama", "last_non_pad_token", SCORE_EVERY_TOKEN, "logits = score(h)[last non-pad]"),
    Reading("mistral", "last_non_pad_token", SCORE_EVERY_TOKEN, "logits = score(h)[last non-pad]"),
    Reading("qwen2", "last_non_pad_token", SCORE_EVERY_TOKEN, "logits = score(h)[last non-pad]"),
    Reading(
        "modernbert",
        "first_token",
        (("select", ""), *MODERNBERT_HEAD),
        "logits = classifier(norm(gelu(dense(h[CLS]))))",
        (("classifier_pooling", "cls"),),
    ),
    Reading(
        "modernbert",  # (last_hidden_state * mask).sum(dim=1) / mask.sum(dim=1)
        "masked_mean",
        (("mul", ""), ("sum", ""), ("div", ""), *MODERNBERT_HEAD),
        "logits = classifier(norm(gelu(dense(mean(h[non-pad])))))",
        (("classifier_pooling", "mean"),),
    ),
    Reading("vit", "first_token", (("select", ""), ("linear", "classifier")), "logits = classifier(h[cls_token])"),
)


@cache
def trace(family_name: str, **changes: Any) -> HeadTrace:
    """A trace by shapes: facts that nobody changes, so that one does for all who ask for the same."""
    family = FAMILIES[family_name]
    with torch.device("meta"):
        model = family.build(family.classifier, **({"num_labels": 3} | changes))
    task = task_of_class(family.classifier)
    assert task is not None
    return trace_head(model, task, TokenNames("[CLS]", "</s>")).trace


@pytest.mark.parametrize("reading", READINGS, ids=lambda item: f"{item.family}-{item.kind}")
def test_the_traced_head_is_what_the_source_says(reading: Reading) -> None:
    traced = trace(reading.family, **dict(reading.changes))
    assert tuple((stage.operation, stage.module) for stage in traced.stages) == reading.stages
    assert traced.pooling.kind is PoolingKind(reading.kind)
    assert traced.formula == reading.formula
    assert traced.not_determined == ()


@pytest.mark.parametrize(
    "changes", [{"num_labels": 5, "hidden_size": 44, "num_attention_heads": 11, "vocab_size": 13}, {"num_labels": 3}]
)
def test_shapes_carry_the_names_of_the_axes_that_vary_even_where_others_are_as_small(changes: dict[str, int]) -> None:
    traced, width = trace("roberta", **changes), changes.get("hidden_size", 32)
    assert traced.hidden_shape == ("batch", "sequence", width)
    assert traced.stages[0].input_shapes == (("batch", "sequence", width),)
    assert traced.stages[-1].output_shape == ("batch", changes["num_labels"])


def test_a_pooler_inside_the_base_model_belongs_to_the_head_and_is_live() -> None:
    traced = trace("bert")
    assert "bert.pooler.dense.weight" in traced.parameters
    assert "bert.pooler.dense.weight" in traced.live


@pytest.mark.parametrize(
    ("changes", "loss"),
    [
        ({"num_labels": 3}, "CrossEntropyLoss"),
        ({"num_labels": 1}, "MSELoss"),
        ({"num_labels": 4, "problem_type": "multi_label_classification"}, "BCEWithLogitsLoss"),
        ({"num_labels": 2, "problem_type": "regression"}, "MSELoss"),
    ],
)
def test_the_loss_is_the_one_that_the_forward_ran(changes: dict[str, Any], loss: str) -> None:
    assert trace("roberta", **changes).loss == loss


@pytest.mark.parametrize(("summary_type", "kind"), [("last", "last_token"), ("first", "first_token"), ("mean", "mean")])
def test_a_sequence_summary_follows_its_configuration(summary_type: str, kind: str) -> None:
    pooling = trace("xlnet", summary_type=summary_type).pooling
    assert pooling.kind is PoolingKind(kind)
    assert pooling.rule.startswith("summary: ")
