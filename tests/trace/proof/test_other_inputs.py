"""Formulas on other inputs than the traced ones: the caller's own, both sides of a branch, and where a run differs."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertForSequenceClassification
from transformers.modeling_outputs import SequenceClassifierOutput

import headscope
from headscope.core.trace.batch.examples import probe_as_given
from headscope.core.trace.formula.counterpart import Differs, find_counterpart
from headscope.core.trace.record.base import base_module
from headscope.core.trace.record.execution import run_forward
from headscope.core.trace.record.size_branches import SizeBranches
from headscope.core.trace.slice.axes import find_token_axes
from headscope.facts import PoolingKind
from tests.families import FAMILIES
from tests.trace.heads import EXAMPLES, Encoder, H, Head, Text, first, masked_mean, rows, run, trace
from tests.trace.proof.branching import halved


def batch_of(count: int, length: int, *kept: int) -> dict[str, Tensor]:
    """Texts of a length, padded on the right to the numbers of tokens that are kept."""
    mask = torch.ones(count, length, dtype=torch.long)
    for row, number in enumerate(kept):
        mask[row, number:] = 0
    return {"ids": torch.arange(count * length).reshape(count, length) % 37 + 3, "attention_mask": mask}


WRONG: dict[str, tuple[Head, dict[str, Tensor]]] = {
    "a single text": (lambda s, h, m: s.fc(h.mean(1) if len(h) > 1 else h[:, 0]), batch_of(1, 6)),
    "a long text": (lambda s, h, m: s.fc(h.mean(1) if h.size(1) < 100 else h[:, 0]), batch_of(2, 120)),
    "an even length": (lambda s, h, m: s.fc(h.mean(1) if h.size(1) % 2 else h[:, 0]), batch_of(2, 8)),
    "the first 64": (lambda s, h, m: s.fc((h * (torch.arange(h.shape[1]) < 64)[:, None]).sum(1)), batch_of(2, 100)),
    "the first 64 kept": (lambda s, h, m: s.fc(masked_mean(h, (m.cumsum(1) <= 64) & (m > 0))), batch_of(2, 100)),
    "at most 64": (lambda s, h, m: s.fc(h[rows(m), (m.sum(1) - 1).clamp(max=64)]), batch_of(2, 100)),
    "at least 4": (lambda s, h, m: s.fc(h[rows(m), (m.sum(1) - 1).clamp(min=4)]), batch_of(2, 6, 2, 3)),
    "no padding": (lambda s, h, m: s.fc(h.mean(1) if m.all() else h[:, 0]), batch_of(2, 6)),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_on_the_example_inputs_is_withheld(name: str) -> None:
    head, examples = WRONG[name]
    report = headscope.inspect(Text(head), example_inputs=examples)
    assert report.head.formula == ""
    assert report.head.pooling.kind in {PoolingKind.OTHER, PoolingKind.WEIGHTED}
    assert not report.head.pooling.rule.endswith("included")


@pytest.mark.parametrize("length", [6, H, 23, 64])
@pytest.mark.parametrize("count", [1, 2, 3, H])
@pytest.mark.parametrize(
    ("head", "formula"),
    [
        (lambda s, h, m: s.fc(h.mean(1)), "logits = fc(mean(h))"),
        (lambda s, h, m: s.fc(masked_mean(h, m)), "logits = fc(mean(h[non-pad]))"),
        (lambda s, h, m: s.fc(h[:, -1].to(h.dtype).contiguous()), "logits = fc(h[-1])"),
    ],
)
def test_a_formula_that_equals_the_scores_of_the_examples_stays(
    count: int, length: int, head: Head, formula: str
) -> None:
    report = headscope.inspect(Text(head), example_inputs=batch_of(count, length, length // 2))
    assert report.head.formula == formula
    assert report.not_determined == ()


def test_a_condition_is_said_with_the_lengths_that_hold() -> None:
    traced = trace(Text(lambda s, h, m: s.fc(h.mean(1) if h.size(1) < 100 else h[:, 0])))
    assert traced.formula == "logits = fc(mean(h))"
    (gap,) = traced.not_determined
    assert gap.topic == "pooling of long texts"
    assert re.search("100 tokens, .* other code.* 99 tokens$", gap.reason)


@pytest.mark.parametrize(
    "head",
    [
        lambda s, h, m: s.fc(halved(h[:, 0])),
        lambda s, h, m: s.fc(h[:, 0] if torch.equal(h, h * 2) else h[:, 1]),
        lambda s, h, m: s.fc(h[:, 0]) if h.mean() > -100 else s.fc(h.mean(1)),
    ],
)
def test_a_branch_on_values_leaves_the_formula_open(head: Head) -> None:
    traced = trace(Text(head))
    assert (traced.formula, traced.pooling.parts) == ("", ())
    assert [gap.topic for gap in traced.not_determined] == ["head path"]
    assert "branches on a floating-point value" in traced.not_determined[0].reason


def test_weights_by_position_are_a_weighted_sum() -> None:
    decay = trace(Text(lambda s, h, m: s.fc((h * torch.exp(-0.1 * torch.arange(h.shape[1]))[:, None]).sum(1))))
    divided = trace(Text(lambda s, h, m: s.fc((h / (1.0 + torch.arange(h.shape[1]))[:, None]).sum(1))))
    same = trace(Text(lambda s, h, m: s.fc((h * torch.full((h.shape[1], 1), 2.0)).sum(1))))
    assert decay.pooling.kind is divided.pooling.kind is PoolingKind.WEIGHTED
    assert same.pooling.rule == "sum over the positions"


def test_a_maximum_of_exponentials_is_no_contradiction() -> None:
    traced = trace(Text(lambda s, h, m: s.fc(h.exp().amax(1).log())))
    assert traced.pooling.kind is PoolingKind.MAX
    assert traced.not_determined == ()
    wrong = trace(Text(lambda s, h, m: s.fc((h * m[..., None]).exp().amax(1).log())))
    assert wrong.pooling.parts == ()


class _Branching(BertForSequenceClassification):
    """A model of Transformers with a head that another file defines; it needs no example inputs."""

    takes_mean: Any

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:  # type: ignore[override]
        hidden = self.bert(input_ids, attention_mask=attention_mask).last_hidden_state
        pooled = hidden.mean(1) if type(self).takes_mean(input_ids) else hidden[:, 0]
        return SequenceClassifierOutput(logits=self.classifier(pooled))


def branching(takes_mean: Any) -> Any:
    model_class = type("Taking", (_Branching,), {"takes_mean": staticmethod(takes_mean)})
    return model_class(FAMILIES["bert"].build_config(vocab_size=1000))


def test_a_class_of_transformers_with_a_head_of_its_own_is_tried_too() -> None:
    report = headscope.inspect(branching(lambda ids: ids.shape[0] <= 3))
    assert report.head.formula == ""
    assert "other code" in report.not_determined[-1].reason


def decisions(head: Head) -> SizeBranches:
    module = Text(head).eval()
    probe = run(module).execution.probe
    watched = SizeBranches(probe, base_module(module))
    with watched:
        run_forward(module, probe, hint="")
    return watched


@pytest.mark.parametrize(
    "has_token",
    [
        lambda ids: (ids == 13).any(),
        lambda ids: 13 in ids,
        lambda ids: torch.isin(ids, torch.tensor([13, 400])).any(),
        lambda ids: (ids > 900).sum() > 0,
        lambda ids: bool((ids == 13).sum(1).max()),
    ],
)
def test_a_branch_on_a_token_is_tried_with_that_token(has_token: Any) -> None:
    report = headscope.inspect(branching(has_token))
    assert (report.head.pooling.kind, report.head.formula) == (PoolingKind.OTHER, "")
    assert any("for texts with the token" in gap.reason for gap in report.not_determined)


def test_the_largest_of_as_many_as_a_text_has_are_a_mean_up_to_that_length() -> None:
    traced = trace(Text(lambda s, h, m: s.fc(h.topk(min(50, h.shape[1]), dim=1).values.mean(1))))
    assert traced.pooling.kind is PoolingKind.MEAN
    assert [gap.topic.value for gap in traced.not_determined] == ["pooling of long texts"]


def test_a_comparison_of_sizes_is_a_function_of_batch_and_length() -> None:
    (found,) = decisions(lambda s, h, m: s.fc(h[:, 0] if h.shape[1] // 2 - 3 < 20 else h[:, 1])).decisions
    assert [found[1](5, length) for length in (11, 45, 46, 100)] == [True, True, False, False]
    (found,) = decisions(lambda s, h, m: s.fc(h[:, 0] if 3 * m.size(0) > h.size(1) else h[:, 1])).decisions
    assert [found[1](batch, 11) for batch in (1, 3, 4, 9)] == [False, False, True, True]


def test_a_size_that_leaves_as_a_plain_number_brings_the_numbers_of_its_code() -> None:
    batch = decisions(lambda s, h, m: s.fc(h[:, 0] if len(h) > 77 else h[:, 1]))
    assert 77 in batch.batches
    kept = decisions(lambda s, h, m: s.fc(h[:, 0] if int(m.sum()) > 78 else h[:, 1]))
    assert 78 in kept.lengths - kept.batches
    share = decisions(lambda s, h, m: s.fc(h[:, 0] if h.size(1) / 79 > 1 else h[:, 1]))
    assert 79 in share.lengths - share.batches


def test_sizes_inside_the_base_model_are_no_decision_of_the_head() -> None:
    class Deciding(Encoder):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids) if ids.shape[1] < 500 else super().forward(ids) * 2

    module = Text(first)
    module.encoder = Deciding()
    assert trace(module).not_determined == ()


def counterpart_of(head: Head, examples: Any) -> Any:
    found = run(Text(head))
    model = found.execution.model
    other = run_forward(model, probe_as_given(model, examples), hint="")
    return find_counterpart(found.head, other), found


def test_each_tensor_of_a_head_has_one_in_another_run_whatever_the_sizes() -> None:
    same, found = counterpart_of(lambda s, h, m: s.fc(s.dense(h).tanh().mean(1)), batch_of(1, 3))
    assert [item.name for item in same.head.operations] == [item.name for item in found.head.operations]
    assert [tuple(item.shape) for item in same.head.hidden] == [(1, 3, H)]
    axes = find_token_axes(found.head)
    assert same.axes(axes).of(same.head.hidden[0]) == (1,)
    assert same.axes(axes).of(same.other.logits[0]) == ()


@pytest.mark.parametrize(
    "head",
    [
        lambda s, h, m: s.fc(h.mean(1)) if len(h) > 1 else s.fc(h.amax(1)),
        lambda s, h, m: s.fc(h[:, 0]) if len(h) > 1 else s.attention(h[:, 0]).expand(-1, 3),
        lambda s, h, m: s.fc(s.norm(h)[:, 0]) if len(h) > 1 else s.fc(h[:, 0]),
        lambda s, h, m: s.fc(h[:, 0] + (h if len(h) > 1 else s.dense(h))[:, 0]),
    ],
)
def test_another_operation_or_module_is_another_path(head: Head) -> None:
    with pytest.raises(Differs, match="other code"):
        counterpart_of(head, batch_of(1, 3))


def test_padding_of_the_examples_is_read_from_their_mask() -> None:
    model = Text(first)
    assert [(row.first, row.last) for row in probe_as_given(model, batch_of(2, 6, 4)).rows] == [(0, 3), (0, 5)]
    holes = batch_of(2, 6)
    holes["attention_mask"][0, 2] = 0
    assert probe_as_given(model, holes).rows == ()
    assert probe_as_given(model, EXAMPLES).inputs["ids"] is EXAMPLES["ids"]
