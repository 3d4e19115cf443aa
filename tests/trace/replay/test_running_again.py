"""What a head is run again on: which numbers are kept, which are made up, and which operations run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headscope.core.trace.replay import replay
from headscope.core.trace.replay.replay import replay_head, unfaithful_reasons
from headscope.errors import Unsupported
from tests.trace.heads import LABELS, Head, Run, Text, first, on_meta, run


def gradient(found: Run) -> Tensor:
    """What the scores of a run again owe to its hidden states."""
    again = replay_head(found.head)
    (gradient,) = torch.autograd.grad(again.logits[0].sum(), again.hidden[0])
    return gradient


@pytest.mark.parametrize("head", [lambda s, h, m: s.fc(h.detach()[:, 0]), lambda s, h, m: s.fc(h.data[:, 0])])
def test_a_detached_tensor_depends_on_the_hidden_states_all_the_same(head: Head) -> None:
    found = gradient(run(Text(head)))
    assert bool((found[:, 0] != 0).all())
    assert bool((found[:, 1:] == 0).all())


def test_what_takes_only_the_shape_of_a_tensor_leaves_its_numbers_alone() -> None:
    def head(s: Text, h: Tensor, m: Tensor) -> Tensor:
        pooled = s.dense(h[:, 0])
        return s.fc(pooled + torch.zeros_like(pooled))

    assert bool((gradient(on_meta(Text(head)))[:, 0] != 0).all())
    assert bool((gradient(run(Text(head)))[:, 0] != 0).all())


def test_a_tensor_keeps_its_history_where_it_is_asked_for() -> None:
    found = run(Text(lambda s, h, m: s.fc(torch.tanh(h[:, 0]))))
    again = replay_head(found.head)
    tanh = found.head.operations[1]
    expected = torch.tanh(again.hidden[0][:, 0])
    assert torch.equal(again.differentiable(tanh.outputs[0]), expected)
    assert again.differentiable(tanh.outputs[0]).requires_grad
    assert torch.equal(again.value(tanh.outputs[0]), expected)
    assert not again.value(tanh.outputs[0]).requires_grad


def test_other_values_stand_for_results_and_for_leaves() -> None:
    found = on_meta(Text(lambda s, h, m: s.fc(torch.tanh(s.dense(h[:, 0])))))
    again = replay_head(found.head)
    pick, dense, tanh = found.head.operations[:3]
    weight, bias = found.execution.model.dense.weight, found.execution.model.dense.bias
    assert [id(item) in again.leaves for item in (weight, bias)] == [True, True]
    given = {id(pick.outputs[0]): torch.ones(pick.outputs[0].shape), id(weight): torch.zeros(weight.shape)}
    got = again.run_again((dense, tanh), given, tanh.outputs[0])
    assert torch.allclose(got, torch.tanh(again.leaves[id(bias)]).expand_as(got), atol=1e-6)
    picked = again.value(pick.outputs[0])
    assert torch.equal(picked, again.hidden[0][:, 0])
    assert bool((again.leaves[id(weight)] != 0).any())
    scores = again.run_again(found.head.operations[1:], {}, found.execution.logits[0])
    assert torch.equal(scores, again.logits[0])


def ran(found: Run) -> list[str]:
    results = replay_head(found.head).results
    return [item.name for item in found.execution.graph.operations if id(item.outputs[0]) in results]


def test_only_what_has_no_numbers_yet_runs_beside_the_head() -> None:
    def head(s: Text, h: Tensor, m: Tensor) -> Tensor:
        return s.fc(h[:, 0] * s.query.exp()[0, 0] / m.float().sum(1, keepdim=True))

    assert ran(run(Text(head))) == ["__getitem__", "mul", "div", "linear"]
    skeleton = on_meta(Text(head))
    assert ran(skeleton) == ["__getitem__", "exp", "__getitem__", "mul", "div", "linear"]


def test_made_up_numbers_are_small_and_of_either_sign() -> None:
    found = on_meta(Text(lambda s, h, m: s.fc(h.mean(1))))
    again = replay_head(found.head)
    hidden = again.hidden[0].detach()
    assert abs(float(hidden.mean())) < 0.1
    assert 0.4 < float(hidden.std()) < 0.6
    weight = again.leaves[id(found.execution.model.fc.weight)]
    assert float(weight.min()) < 0 < float(weight.max())
    assert float(weight.abs().max()) < 2.5


def spectral(use: Callable[[Any, Tensor], Tensor], device: str = "cpu") -> Run:
    """A head beside a complex filter, a whole number and constants, all of them stored."""
    model = Text(lambda s, h, m: s.fc(use(s, h)))
    model.filter = nn.Parameter(torch.ones(8, dtype=torch.complex64))
    model.number = nn.Parameter(torch.zeros(1, 1, dtype=torch.long), requires_grad=False)
    model.register_buffer("nothing", torch.zeros(1, 8))
    model.register_buffer("place", torch.tensor([2]))
    return run(model.to(device))


def test_whole_numbers_of_a_skeleton_are_zero_and_complex_ones_are_not() -> None:
    found = gradient(spectral(lambda s, h: h.index_select(1, s.place).squeeze(1), "meta"))
    assert [int(at) for at in found[0].abs().sum(1).nonzero().flatten()] == [0]
    found = gradient(spectral(lambda s, h: h[:, 3] * s.filter.abs(), "meta"))
    assert bool((found[:, 3] != 0).all())


def test_stored_numbers_are_kept_where_they_hide_nothing() -> None:
    found = spectral(lambda s, h: h[:, 0] + s.nothing + s.number)
    again = replay_head(found.head)
    model = found.execution.model
    assert not {id(model.nothing), id(model.number)} & set(again.leaves)
    assert torch.allclose(again.logits[0], model.fc(again.hidden[0][:, 0]), atol=1e-6)


def test_a_value_that_is_gone_cannot_be_read_again() -> None:
    def head(s: Text, h: Tensor, m: Tensor) -> Tensor:
        offset = torch.ones(LABELS)
        scores = s.fc(h[:, 0]) + offset
        offset.view(-1).zero_()
        return scores

    found = run(Text(head))
    with pytest.raises(Unsupported, match="overwritten"):
        replay_head(found.head)
    assert unfaithful_reasons(found.head) == ()


def behind_its_back(s: Text, h: Tensor, m: Tensor) -> Tensor:
    kept = h.clone()
    kept.detach().zero_()
    return s.fc(kept[:, 0])


def test_memory_that_was_written_behind_a_tensor_is_named_with_the_line_that_reads_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = run(Text(behind_its_back))
    line = behind_its_back.__code__.co_firstlineno + 3
    words = f"tests/trace/replay/test_running_again.py:{line} uses memory"
    with pytest.raises(Unsupported, match=words):
        replay_head(found.head)
    (reason,) = unfaithful_reasons(found.head)
    assert reason.startswith(words)
    monkeypatch.setattr(replay, "_MOST_SIDE_OPERATIONS", -100)  # it cannot be run again: only the head itself is seen
    assert unfaithful_reasons(found.head) == (reason,)
    other = run(Text(first))
    assert unfaithful_reasons(other.head) == ()


def test_all_scores_must_be_close_in_the_same_order() -> None:
    one, other = torch.zeros(2), torch.ones(2)
    assert replay._all_close((one, other), (one, other))
    assert not replay._all_close((one, other), (one, one))
    assert not replay._all_close((one, other), (other, other))
    with pytest.raises(ValueError):
        replay._all_close((one, other), (one,))


def test_two_thousand_operations_beside_the_head_and_sixty_million_numbers_in_it_are_the_most() -> None:
    def beside(count: int) -> Run:
        def head(s: Text, h: Tensor, m: Tensor) -> Tensor:
            query = s.query
            for _ in range(count):
                query = query * 1
            return s.fc((h * query).sum(1))

        return on_meta(Text(head))

    most, more = beside(2000), beside(2001)
    replay_head(most.head)
    with pytest.raises(Unsupported, match="base model"):
        replay_head(more.head)

    def check(numbers: int) -> None:
        inputs = (torch.empty(numbers - 5, device="meta"),)
        operation = replace(most.head.operations[0], inputs=inputs, outputs=(torch.ones(5),))
        replay_head(replace(most.head, operations=(operation,)))

    check(60_000_000)
    with pytest.raises(Unsupported, match="holds 60,000,001 numbers"):
        check(60_000_001)
