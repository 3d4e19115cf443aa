"""Hidden states that are changed on purpose: what is changed in them, and what equal vectors tell of a mean."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headscope.core.trace.replay.changed_inputs import ChangedInputs, constant_hidden, keeps_equal_vectors
from headscope.core.trace.replay.replay import replay_head
from headscope.core.trace.slice.axes import TokenAxes
from tests.trace.heads import PAIRS, H, Made, Run, Text, mean, run, towers


def changed(found: Run) -> ChangedInputs:
    return ChangedInputs(found.axes, replay_head(found.head))


def test_loud_padding_is_a_hundred_times_as_large_of_either_sign_and_the_text_is_untouched() -> None:
    found = run(Text(mean))
    runs = changed(found)
    (usual,) = runs.usual.hidden
    for factor, loud in zip((100, -100), runs.loud, strict=True):
        (hidden,) = loud.hidden
        for at, row in enumerate(found.execution.probe.rows):
            factors = torch.tensor([1 if row.first <= k <= row.last else factor for k in range(usual.shape[1])])
            assert torch.equal(hidden[at], usual[at] * factors.unsqueeze(-1).to(usual.dtype))
    assert {row.first > 0 for row in found.execution.probe.rows} == {True, False}
    assert {row.last < usual.shape[1] - 1 for row in found.execution.probe.rows} == {True, False}


def test_only_hidden_states_of_the_text_hold_padding() -> None:
    """Beside them: those of each row as one vector, of other texts, and of five tokens."""

    def scores(s: Any, ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden, few, five = (s.encoder["text"](part) for part in (ids, ids[:2], ids[:, :5]))
        others = few.mean((0, 1)).expand(len(ids), H)
        return s.fc(torch.cat([hidden[:, 0], s.encoder["row"](hidden[:, 0]), others, five.mean(1)], -1))

    torch.manual_seed(0)
    encoder = nn.ModuleDict({"text": nn.Embedding(40, H), "row": nn.Linear(H, H)})
    found = run(Made(scores, encoder=encoder, fc=nn.Linear(4 * H, 3)))
    runs = changed(found)
    shapes = {tuple(item.shape) for item in runs.usual.hidden}
    rows, length = found.execution.probe.batch, found.execution.probe.length
    assert {(rows, length, H), (2, length, H), (rows, 5, H)} <= shapes
    for usual, loud in zip(runs.usual.hidden, runs.loud[0].hidden, strict=True):
        if usual.dim() < 3 or usual.shape[1] == 5:
            assert torch.equal(usual, loud)
        else:
            assert not torch.equal(usual, loud)


def test_constant_hidden_states_hold_one_vector_everywhere() -> None:
    found = run(towers(lambda s, a, b: s.fc(torch.cat([a.mean(1), b.mean(1)], -1)), 2 * H), PAIRS)
    given = constant_hidden(found.head, found.axes)
    assert [given[id(tensor)].shape for tensor in found.head.hidden] == [tensor.shape for tensor in found.head.hidden]
    vectors = []
    for tensor in given.values():
        assert torch.equal(tensor, tensor[:1, :1].expand_as(tensor))
        assert len(tensor[0, 0].unique()) == H
        vectors.append(tensor[0, 0])
    assert not torch.equal(vectors[0], vectors[1])
    assert all(
        torch.equal(a, b) for a, b in zip(given.values(), constant_hidden(found.head, found.axes).values(), strict=True)
    )


def test_the_constant_run_scores_every_row_alike() -> None:
    (scores,) = changed(run(Text(mean))).constant.logits
    assert torch.allclose(scores, scores[:1].expand_as(scores))
    assert len(scores[0].unique()) > 1


def test_without_a_token_axis_only_rows_are_alike() -> None:
    found = run(Text(mean))
    (tensor,) = constant_hidden(found.head, TokenAxes(set(), {})).values()
    assert torch.equal(tensor, tensor[:1].expand_as(tensor))
    assert not torch.equal(tensor[:, 0], tensor[:, 1])


VECTOR = torch.tensor([1.0, -2.0, 3.0])
EVERY = ((0, 1, 2, 3), (0, 1, 2, 3))


def same(rows: int = 2, length: int = 4) -> Tensor:
    return VECTOR.expand(rows, length, 3).clone()


def other_at(*positions: int) -> Tensor:
    """The same vector but in these positions of the second row."""
    value = same()
    value[1, list(positions)] = 9.0
    return value


ENDS = VECTOR.expand(2, 3)
WRONG = torch.stack([VECTOR, 2 * VECTOR])
CASES: dict[str, tuple[Tensor, Tensor, tuple[int, ...], tuple[tuple[int, ...], ...], bool]] = {
    "a mean": (same(), ENDS, (1,), EVERY, True),
    "a sum": (same(), 4 * ENDS, (1,), EVERY, False),
    "nearly a mean": (same(), 1.01 * ENDS, (1,), EVERY, False),
    "as exact as floats are": (same(), (1 + 1e-5) * ENDS, (1,), EVERY, True),
    "wrong in the second row alone": (same(), WRONG, (1,), EVERY, False),
    "other vectors outside of what is claimed": (other_at(3), WRONG, (1,), (EVERY[0], (0, 1, 2)), False),
    "other vectors within what is claimed": (other_at(3), WRONG, (1,), EVERY, True),
    "features before tokens": (same().transpose(1, 2), 2 * ENDS, (2,), EVERY, False),
    "a map of features": (same().reshape(2, 2, 2, 3), 2 * ENDS, (1, 2), EVERY, False),
    "a map of features, as it should be": (same().reshape(2, 2, 2, 3), ENDS, (1, 2), EVERY, True),
    "a map of which some positions are claimed": (same().reshape(2, 2, 2, 3), 2 * ENDS, (1, 2), ((0, 1),) * 2, False),
    "an axis of length one that is kept": (same(), 2 * ENDS.unsqueeze(1), (1,), EVERY, False),
    "no token axis": (same(), 2 * ENDS, (), EVERY, True),
    "an axis of rows": (same(), 2 * ENDS, (0,), EVERY, True),
    "an axis of rows too": (same(), 2 * ENDS, (0, 1), EVERY, True),
    "other rows before": (same(3), 2 * ENDS, (1,), EVERY, True),
    "other rows after": (same(), 2 * VECTOR.expand(3, 3), (1,), EVERY, True),
    "other features": (same(), torch.zeros(2, 5), (1,), EVERY, True),
    "fewer positions than are claimed": (same(length=3), 2 * ENDS, (1,), EVERY, True),
    "one position": (same(length=1), 2 * ENDS, (1,), ((0,), (0,)), False),
    "a map with fewer positions than are claimed": (same().reshape(2, 2, 2, 3), 2 * ENDS, (1, 2), ((0, 8),) * 2, False),
    "no positions": (same(length=0), 2 * ENDS, (1,), ((), ()), True),
    "none claimed": (same(), 2 * ENDS, (1,), ((), ()), True),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_equal_vectors_are_kept(name: str) -> None:
    before, after, where, claimed, is_kept = CASES[name]
    assert keeps_equal_vectors(before, after, where, claimed) is is_kept


def test_a_row_that_cannot_be_told_hides_no_wrong_one() -> None:
    before = same()
    before[0, 2] = 9.0
    assert keeps_equal_vectors(before, WRONG, (1,), EVERY) is False
    claimed = ((0, 1, 2, 7), (0, 1, 2, 3))
    assert keeps_equal_vectors(same(), WRONG, (1,), claimed) is False
    before = same(length=5)
    assert keeps_equal_vectors(before, WRONG, (1,), ((0, 9), (0, 1, 2, 3))) is False
