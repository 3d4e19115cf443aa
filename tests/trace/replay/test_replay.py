"""The head run again: the same as the module itself on the same values, and nothing else changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headscope.core.trace.replay import replay
from headscope.core.trace.replay.replay import replay_head, unfaithful_reasons
from headscope.errors import Unsupported
from tests.trace.heads import LABELS, PAIRS, H, Head, Run, Text, deep, first, image, on_meta, pixels, run, towers

HEADS: tuple[Head, ...] = (
    lambda s, h, m: s.fc(h[:, 0]),
    lambda s, h, m: s.fc((h * m.unsqueeze(-1)).sum(1) / m.sum(1, keepdim=True)),
    lambda s, h, m: s.fc(h.masked_fill(m.unsqueeze(-1) == 0, -math.inf).max(1).values),
    lambda s, h, m: s.fc(s.norm(torch.relu(s.dense(h.mean(1))))),
    lambda s, h, m: s.fc(s.lstm(h)[1][0][-1]),
    lambda s, h, m: s.fc(torch.cat([part.mean(1) for part in h.chunk(2, 1)], -1)[:, :H]),
    lambda s, h, m: s.fc(h.clone().mul_(2).add_(1)[:, 0]),
    lambda s, h, m: s.fc(h.to(torch.float64).to(torch.float32)[:, 0]) * s.scale,
    lambda s, h, m: s.fc(h[:, 0] + torch.zeros(H, device=h.device)),
    lambda s, h, m: s.fc((h * 10).to(torch.int64).to(torch.float32)[:, 0]),
    lambda s, h, m: s.fc(h.to(h.device).to(torch.float32)[:, 0]),
    lambda s, h, m: s.fc(h[torch.arange(h.shape[0]), (m * torch.arange(m.shape[1])).argmax(1)]),
)


def own_numbers(found: Run) -> dict[int, Tensor]:
    """The values that the run itself had, for its hidden states."""
    return {id(tensor): tensor.detach() for tensor in found.head.hidden}


@pytest.mark.parametrize("head", HEADS)
def test_a_replay_on_the_runs_own_numbers_gives_its_own_scores(head: Head) -> None:
    found = run(Text(head))
    again = replay_head(found.head, own_numbers(found))
    for one, other in zip(again.logits, found.execution.logits, strict=True):
        assert torch.allclose(one, other, atol=1e-6)
    for one, other in zip(again.hidden, found.head.hidden, strict=True):
        assert torch.equal(one, other)


def written(s: Text, h: Tensor, m: Tensor) -> Tensor:
    changed = h.clone()
    changed[m == 0] = 0
    changed += 1
    return s.fc(changed.sum(1))


def test_what_is_written_in_place_is_written_again_and_only_there() -> None:
    found = run(Text(written))
    before = [tensor.clone() for operation in found.head.operations for tensor in operation.inputs]
    again = replay_head(found.head, own_numbers(found))
    assert torch.allclose(again.logits[0], found.execution.logits[0], atol=1e-6)
    after = [tensor for operation in found.head.operations for tensor in operation.inputs]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize("head", HEADS)
def test_a_skeleton_runs_again_on_made_up_numbers(head: Head) -> None:
    found = on_meta(Text(head))
    one, other = (replay_head(found.head) for _ in range(2))
    assert not one.logits[0].is_meta
    assert one.logits[0].shape == found.execution.logits[0].shape
    assert torch.equal(one.logits[0], other.logits[0])
    assert len(set(one.hidden[0].flatten().tolist())) > 100
    assert one.hidden[0].requires_grad


def test_a_replay_keeps_the_parameters_of_the_module_and_makes_up_those_of_a_skeleton() -> None:
    found = run(Text(first))
    again = replay_head(found.head)
    model = found.execution.model
    expected = nn.functional.linear(again.hidden[0][:, 0], model.fc.weight, model.fc.bias)
    assert torch.allclose(again.logits[0], expected, atol=1e-6)
    assert not torch.equal(again.hidden[0], found.head.hidden[0])
    skeleton = on_meta(Text(first))
    given = {id(skeleton.execution.model.fc.weight): torch.zeros(LABELS, H)}
    bias = replay_head(skeleton.head, given).logits[0]
    assert torch.equal(bias, bias[:1].expand_as(bias))
    assert bool((bias != 0).all())


def test_a_buffer_may_be_a_variance() -> None:
    module = image(lambda s, h: s.fc(s.bn(h).mean((2, 3))), as_tokens=False)
    module.bn = nn.BatchNorm2d(H)
    module.to("meta")
    found = run(module, {"pixels": pixels(2, 2)["pixels"].to("meta")})
    again = replay_head(found.head)
    variance = again.leaves[id(module.bn.running_var)]
    assert float(variance.min()) >= 0.5
    assert float(again.leaves[id(module.bn.weight)].min()) < 0
    assert bool(again.logits[0].isfinite().all())


def test_global_random_state_is_untouched() -> None:
    found = on_meta(Text(first))
    before = torch.get_rng_state()
    replay_head(found.head)
    assert torch.equal(torch.get_rng_state(), before)


def test_side_branches_are_run_again_where_their_values_were_not_computed() -> None:
    def head(s: Text, h: Tensor, m: Tensor) -> Tensor:
        weights = (s.query * 2).tanh()
        return s.fc((h * weights).sum(1) / m.to(h.dtype).sum(1, keepdim=True))

    found = on_meta(Text(head))
    again = replay_head(found.head)
    query = again.leaves[id(found.execution.model.query)]
    mask = found.execution.probe.inputs["attention_mask"]
    expected = (again.hidden[0] * (query * 2).tanh()).sum(1) / mask.sum(1, keepdim=True)
    weight, bias = (again.leaves[id(item)] for item in found.execution.model.fc.parameters())
    assert torch.allclose(again.logits[0], nn.functional.linear(expected, weight, bias), atol=1e-5)


class Early(Text):
    """What the head reads beside the hidden states is computed before anything else."""

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        query = self.query * 2
        return self.fc((self.encoder(ids) * query).sum(1))


def test_the_first_operation_of_a_forward_may_be_a_side_branch() -> None:
    found = on_meta(Early(HEADS[0]))
    again = replay_head(found.head)
    leaves, model = again.leaves, found.execution.model
    expected = (again.hidden[0] * leaves[id(model.query)] * 2).sum(1)
    scores = nn.functional.linear(expected, leaves[id(model.fc.weight)], leaves[id(model.fc.bias)])
    assert torch.allclose(again.logits[0], scores, atol=1e-4)


def test_too_many_numbers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(Text(first))
    batch = found.execution.probe.batch
    numbers = batch * 11 * H + batch * H + H * LABELS + LABELS + batch * LABELS
    monkeypatch.setattr(replay, "MOST_RUN_AGAIN", numbers)
    replay_head(found.head)
    monkeypatch.setattr(replay, "MOST_RUN_AGAIN", numbers - 1)
    with pytest.raises(Unsupported, match=f"holds {numbers} numbers"):
        replay_head(found.head)


def test_an_operation_that_fails_is_named() -> None:
    found = run(Text(lambda s, h, m: s.fc(h.reshape(h.shape[0], -1)[:, :H])))
    operation = found.head.operations[0]
    operation.args = (operation.args[0], 7, 7)
    with pytest.raises(Unsupported, match=r"^reshape "):
        replay_head(found.head)


def test_operations_run_again_with_other_values_and_the_first_run_stays() -> None:
    found = run(Text(lambda s, h, m: s.fc(torch.tanh(s.dense(h[:, 0])))))
    again = replay_head(found.head)
    dense, tanh = found.head.operations[1:3]
    (entering,) = (tensor for tensor in dense.inputs if tensor.dim() == 2 and tensor.shape[0] != H)
    zeros = torch.zeros(entering.shape)
    got = again.run_again((dense, tanh), {id(entering): zeros}, tanh.outputs[0])
    model = found.execution.model
    assert torch.allclose(got, torch.tanh(model.dense.bias).expand_as(got), atol=1e-6)
    first = again.value(tanh.outputs[0])
    assert torch.allclose(first, torch.tanh(model.dense(again.hidden[0][:, 0])), atol=1e-6)
    assert not first.requires_grad
    hidden = found.head.hidden[0]
    other = again.run_again((found.head.operations[0],), {id(hidden): torch.ones(hidden.shape)}, entering)
    assert torch.equal(other, torch.ones(entering.shape))
    assert torch.equal(again.value(hidden), again.hidden[0])


def test_layers_get_numbers_of_their_own() -> None:
    found = run(deep(lambda s, h, m: s.fc(h[-1][:, 0] + h[-2][:, 0])))
    one, other = replay_head(found.head).hidden
    assert not torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_numbers_are_single_precision_whatever_the_module_has(dtype: torch.dtype) -> None:
    found = run(Text(lambda s, h, m: s.fc(h.mean(1).to(dtype))).to(dtype))
    assert replay_head(found.head).logits[0].dtype is torch.float32


def test_numbers_are_made_on_the_cpu_whatever_default_device_the_caller_has_set() -> None:
    """As after `torch.set_default_device("cuda")`."""
    for head in (lambda s, h, m: s.fc(h[:, 0] + torch.zeros(H, device=h.device)), lambda s, h, m: s.fc(h.mean(1))):
        found = on_meta(Text(head))
        expected = replay_head(found.head).logits[0]
        with torch.device("meta"):
            again = replay_head(found.head).logits[0]
        assert torch.equal(again, expected)


def reasons(module: nn.Module) -> tuple[str, ...]:
    found = run(module)
    return unfaithful_reasons(found.head)


def behind(head: Head, change: Callable[[Tensor], None]) -> Head:
    """A head whose scores are changed through memory that PyTorch shares with other code."""

    def changed(s: Text, h: Tensor, m: Tensor) -> Tensor:
        scores = head(s, h, m)
        change(scores)
        return scores

    return changed


def added(amount: float) -> Callable[[Tensor], None]:
    def change(scores: Tensor) -> None:
        scores.numpy()[0, 0] += amount

    return change


large: Head = lambda s, h, m: s.fc(h[:, 0]) + torch.tensor([0.0, 0.0, 1000.0])  # noqa: E731 - a table of heads
masked: Head = lambda s, h, m: s.fc(h[:, 0]) + torch.tensor([0.0, 0.0, -math.inf])  # noqa: E731
without_any: Head = lambda s, h, m: s.fc(h[:, 0]) * math.nan  # noqa: E731


@pytest.mark.parametrize(
    ("head", "amount", "is_faithful"),
    [
        (first, 0, True),
        (first, 0.01, False),
        (first, -3, False),
        (first, math.nan, False),
        (first, math.inf, False),
        (large, 0.01, True),  # as much as single precision may lose beside a thousand
        (large, 10, False),
        (masked, 0, True),
        (masked, 0.01, False),
        (without_any, 0, True),
    ],
)
def test_scores_that_were_changed_behind_the_recording_are_noticed(
    head: Head, amount: float, is_faithful: bool
) -> None:
    found = reasons(Text(behind(head, added(amount))))
    assert found == (() if is_faithful else (replay._DIFFERENT,))


def test_scores_are_compared_in_single_and_double_precision_only() -> None:
    changed = behind(first, added(1))
    assert reasons(Text(changed)) == reasons(Text(changed).double()) == (replay._DIFFERENT,)
    assert reasons(Text(behind(first, added(1))).half()) == ()
    module = Text(lambda s, h, m: s.fc((h * h.exp()).sum(1)))
    assert reasons(module.to(torch.bfloat16)) == ()  # it rounds, and the replay does not
    assert reasons(module.to("meta")) == reasons(Text(first).to("meta")) == ()


def test_scores_that_the_head_itself_rounds_are_not_compared() -> None:
    assert reasons(Text(lambda s, h, m: s.fc(h[:, 0]).to(torch.bfloat16).float())) == ()
    assert reasons(Text(behind(lambda s, h, m: s.fc(h[:, 0].half().float()), added(1)))) == ()
    exact: Head = lambda s, h, m: s.fc(h[:, 0]) + h.argmax(1)[:, :LABELS]  # noqa: E731 - whole numbers are exact
    assert reasons(Text(behind(exact, added(1)))) == (replay._DIFFERENT,)


def test_scores_that_are_drawn_at_random_are_not_compared() -> None:
    assert reasons(Text(lambda s, h, m: s.fc(nn.functional.dropout(h[:, 0], 0.5, training=True)))) == ()


def test_scores_are_not_compared_where_some_hidden_states_are_not_known_any_more() -> None:
    """With made-up numbers in their place a head may give other scores than it gave."""

    def head(s: Any, a: Tensor, b: Tensor) -> Tensor:
        scores = s.fc(a[:, 0]) + (b[:, 0, :LABELS] > 50)
        b.view(-1).zero_()
        return scores

    module = towers(head)
    module.encoder.mix.bias.data.fill_(100)
    found = run(module, PAIRS)
    assert len(found.head.hidden) == 2
    assert unfaithful_reasons(found.head) == ()


@pytest.mark.parametrize(
    ("weight", "bias", "is_kept"),
    [
        (1.0, 1.0, (True, True)),
        (0.0, 0.0, (False, True)),
        (math.nan, 1.0, (False, True)),
        (math.inf, math.nan, (False, False)),
    ],
)
def test_a_parameter_that_hides_what_the_head_reads_is_made_up(
    weight: float, bias: float, is_kept: tuple[bool, bool]
) -> None:
    """A matrix of zeros stops gradients, and NaN equals nothing; biases are often 0."""
    module = Text(first)
    module.fc.weight.data[:] = 0 if weight == 0 else module.fc.weight.data
    module.fc.weight.data[0, 0] = weight
    module.fc.bias.data.fill_(bias)
    found = run(module)
    again = replay_head(found.head)
    made_up = [id(item) in again.leaves for item in (module.fc.weight, module.fc.bias)]
    assert tuple(not item for item in made_up) == is_kept
    assert bool(again.logits[0].isfinite().all())
    (gradient,) = torch.autograd.grad(again.logits[0].sum(), again.hidden[0])
    assert bool((gradient[:, 0] != 0).all())
