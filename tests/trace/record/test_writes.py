"""What a head writes in place: recorded as what it computes, or reported as not determined; never left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headscope.core.trace.proof.agreement import look_at
from headscope.core.trace.replay.picks import TokenNames
from headscope.core.trace.replay.replay import replay_head
from tests.trace.heads import FIRST, LABELS, Encoder, H, Text, at, first, run, trace


def written(change: Callable[[Tensor], Any]) -> Callable[[Text, Tensor, Tensor], Tensor]:
    """A head that changes the dense layer's output in place before it goes on."""

    def head(s: Text, h: Tensor, m: Tensor) -> Tensor:
        value = s.dense(h[:, 0])
        change(value)
        return s.fc(value)

    return head


def into_another(s: Text, h: Tensor, m: Tensor) -> Tensor:
    kept = h[:, 0].clone()
    torch.mul(h[:, 3], 2.0, out=kept)
    return s.fc(kept)


def of_the_hidden_states(s: Text, h: Tensor, m: Tensor) -> Tensor:
    h.mul_(3.0)
    return s.fc(h.mean(1))


def of_the_scores(s: Text, h: Tensor, m: Tensor) -> Tensor:
    scores = s.fc(h[:, 0])
    scores *= 2
    return scores


def into_a_buffer(s: Text, h: Tensor, m: Tensor) -> Tensor:
    scores = torch.zeros(h.shape[0], LABELS)
    scores[:] = s.fc(h[:, 0])
    return scores


def copied(s: Text, h: Tensor, m: Tensor) -> Tensor:
    value = h[:, 0].clone()
    value.copy_(h[:, 2])
    return s.fc(value)


def set_as_data(s: Text, h: Tensor, m: Tensor) -> Tensor:
    value = h[:, 0].clone()
    value.data = h[:, 2].clone()
    return s.fc(value)


def read_between(s: Text, h: Tensor, m: Tensor) -> Tensor:
    value = h[:, 0].clone()
    before = torch.tanh(value)
    value += h[:, 1]
    return s.fc(before - value)


def part_put_back(s: Text, h: Tensor, m: Tensor) -> Tensor:
    value = h.clone()
    value[:, 0] += value[:, 1]
    return s.fc(value[:, 0])


FOLLOWED = (
    (written(lambda x: functional.relu(x, inplace=True)), "fc(relu(dense(h[0])))"),
    (written(nn.SiLU(inplace=True)), "fc(silu(dense(h[0])))"),
    (written(lambda x: functional.hardswish(x, inplace=True)), "fc(hardswish(dense(h[0])))"),
    (written(torch.ops.aten.tanh_), "fc(tanh(dense(h[0])))"),
    (written(lambda x: x.__imul__(3)), "fc(dense(h[0]) * 3)"),
    (written(lambda x: x.__itruediv__(3)), "fc(dense(h[0]) / 3)"),
    (into_another, "fc(h[3] * 2)"),
    (of_the_hidden_states, "fc(mean(h * 3))"),
    (of_the_scores, "fc(h[0]) * 2"),
    (into_a_buffer, "fc(h[0])"),
    (copied, "fc(h[2])"),
    (set_as_data, "fc(h[2])"),
    (read_between, "fc(tanh(h[0]) - (h[0] + h[1]))"),
)


@pytest.mark.parametrize(("head", "text"), FOLLOWED)
def test_a_write_in_place_is_part_of_the_formula(head: Any, text: str) -> None:
    traced = trace(Text(head))
    assert traced.formula == f"logits = {text}"
    assert traced.not_determined == ()


@pytest.mark.parametrize("head", [*(head for head, _ in FOLLOWED), part_put_back])
def test_a_head_that_writes_gives_its_own_scores_again(head: Any) -> None:
    """The hidden states are those of the encoder run apart: the head's own tensors may be overwritten."""
    found = run(Text(head))
    model, inputs = found.execution.model, found.execution.probe.inputs
    with torch.no_grad():
        hidden, expected = model.encoder(inputs["ids"]), model(**inputs)
    again = replay_head(found.head, {id(found.head.hidden[0]): hidden})
    assert torch.allclose(again.logits[0], expected, atol=1e-6)


@pytest.mark.parametrize("head", [head for head, _ in FOLLOWED if head is not into_a_buffer])
def test_a_skeleton_writes_the_same(head: Any) -> None:
    real, skeleton = (trace(Text(head).to(device)) for device in ("cpu", "meta"))
    assert skeleton.formula == real.formula
    assert [stage.operation for stage in skeleton.stages] == [stage.operation for stage in real.stages]


def view_of_a_position(s: Text, h: Tensor, m: Tensor) -> Tensor:
    first = h[:, 0]
    first.mul_(3.0)
    return s.fc(h.mean(1))


def transposed(s: Text, h: Tensor, m: Tensor) -> Tensor:
    turned = h.transpose(1, 2)
    turned[:, :, 1:] = 0
    return s.fc(h.sum(1))


def view_of_a_copy(s: Text, h: Tensor, m: Tensor) -> Tensor:
    value = h.clone()
    first = value[:, 0]
    first += value[:, 1]
    return s.fc(value[:, 0])


def as_data(s: Text, h: Tensor, m: Tensor) -> Tensor:
    value = h.clone()
    value.data[:, 1:] = 0
    return s.fc(value.sum(1))


def through_out(s: Text, h: Tensor, m: Tensor) -> Tensor:
    value = h.clone()
    torch.mul(h[:, 3], 2.0, out=value[:, 0])
    return s.fc(value[:, 0])


def put_elsewhere(s: Text, h: Tensor, m: Tensor) -> Tensor:
    value = h.clone()
    first = value[:, 0]
    first *= 3
    value[:, 1] = first
    return s.fc(value[:, 0])


def scores_through_a_view(s: Text, h: Tensor, m: Tensor) -> Tensor:
    scores = s.fc(h[:, 0])
    scores.view(-1)[0] = 5.0
    return scores


LOST = (
    view_of_a_position, transposed, view_of_a_copy, as_data, through_out, put_elsewhere, scores_through_a_view,
)  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("head", LOST)
def test_a_write_through_another_tensor_leaves_the_head_path_open(head: Any, device: str) -> None:
    traced = trace(Text(head).to(device))
    assert traced.formula == ""
    assert traced.pooling.tokens == ()
    [gap] = traced.not_determined
    assert gap.topic == "head path" and "in place" in gap.reason


def test_a_write_inside_the_encoder_leaves_the_head_as_it_is() -> None:
    class Writing(Encoder):
        def forward(self, ids: Tensor) -> Tensor:
            hidden = super().forward(ids)
            hidden[:, 0].mul_(2)
            return hidden + 0 * hidden.transpose(1, 2).transpose(1, 2)

    module = Text(first)
    module.encoder = Writing()
    traced = trace(module)
    assert traced.formula == "logits = fc(h[0])"
    assert traced.pooling.parts[0].positions == FIRST


def test_a_mask_keeps_the_values_that_it_had_when_it_was_read() -> None:
    def head(s: Text, h: Tensor, m: Tensor) -> Tensor:
        mask = m.clone().unsqueeze(-1).float()
        everything = h * mask
        mask[:, 1:] = 0
        return s.fc((everything - h * mask).sum(1))

    found = run(Text(head))
    again = replay_head(found.head, {id(found.head.hidden[0]): found.head.hidden[0].detach()})
    assert torch.allclose(again.logits[0], found.execution.logits[0], atol=1e-6)


def test_scores_that_the_recorded_operations_do_not_give_leave_the_head_path_open() -> None:
    found = run(Text(first))
    assert look_at(found.head, TokenNames()).unfaithful == ()
    found.execution.logits[0].data.add_(1)
    seen = look_at(found.head, TokenNames())
    assert seen.formula.text == ""
    assert "other scores" in seen.unfaithful[0]


@pytest.mark.parametrize("cut", [Tensor.detach, lambda value: value.data])
def test_values_without_a_gradient_are_read_all_the_same(cut: Callable[[Tensor], Tensor]) -> None:
    traced = trace(Text(lambda s, h, m: s.fc(cut(h[:, 2]))))
    assert traced.formula == "logits = fc(h[2])"
    assert traced.pooling.parts[0].positions == at(2)
    assert traced.verification.agrees is True


def test_scores_without_any_gradient_are_not_compared() -> None:
    traced = trace(Text(lambda s, h, m: functional.one_hot(s.fc(h[:, 0]).argmax(-1), LABELS).float()))
    assert traced.verification.agrees is None
    assert "no gradient reaches" in traced.verification.told


def test_rows_that_a_loop_takes_one_by_one_are_recorded() -> None:
    found = run(Text(lambda s, h, m: s.fc(torch.stack([row[0] for row in h]))))
    assert found.head.operations[0].name == "unbind"
    assert found.head.hidden[0].shape[-1] == H
