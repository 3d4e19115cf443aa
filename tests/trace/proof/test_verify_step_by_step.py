"""The proof by gradients, one step of it after the other, on heads for which only that step decides."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from headscope.core.trace.pooling import collapse
from headscope.core.trace.pooling.pooling import PoolingRead
from headscope.core.trace.proof import gradients as verify
from headscope.core.trace.proof.claims import Influence
from headscope.core.trace.proof.gradients import measure_influence, verify_pooling, with_weighed_positions
from headscope.core.trace.replay.changed_inputs import ChangedInputs
from headscope.core.trace.replay.replay import replay_head
from headscope.core.trace.slice.axes import TokenAxes
from headscope.facts import HiddenSource, Pooling, PoolingKind, Positions, Where
from tests.trace.heads import (
    ALL,
    BY_ROW,
    EXAMPLES,
    FIRST,
    IDS,
    LAST,
    NON_PAD,
    PAIRS,
    Encoder,
    H,
    Head,
    Made,
    Run,
    Text,
    column,
    first,
    mean,
    of_frames,
    pooling,
    run,
    run_of,
    towers,
)

K = PoolingKind
Part = tuple[PoolingKind, Positions]


def agrees(found: Run, *parts: Part, tensors: verify.PartTensors = ()) -> bool | None:
    return verify_pooling(found.head, pooling(*parts), found.axes, tensors).agrees


def made(found: Run, name: str) -> Tensor:
    """The result of the one operation of that name; the hidden states for ""."""
    if not name:
        return found.head.hidden[0]
    operations = found.execution.graph.operations
    (output,) = (operation.outputs[0] for operation in operations if operation.name == name)
    return output


def influence(found: Run) -> Influence:
    measured = measure_influence(replay_head(found.head), found.axes)
    assert measured is not None
    return measured


def beside_the_first(h: Tensor, pooled: Tensor) -> Tensor:
    return torch.cat([pooled, h[:, 0]], -1)


def keep_two(h: Tensor, first: int = 3) -> Tensor:
    """All but two positions filled in, so that they can't be the largest."""
    numbers = torch.arange(h.shape[1])
    return h.masked_fill(((numbers < first) | (numbers > first + 1)).view(1, -1, 1), -1e9)


def keep_real(h: Tensor, m: Tensor) -> Tensor:
    return h.masked_fill(m.unsqueeze(-1) == 0, -1e9)


TWO, TWO_LATER = run_of(3, 5), run_of(6, 8)
EVERY_OTHER = (K.OTHER, ALL)  # which makes no claim: nothing but the part itself can be wrong
largest_and_first: Head = lambda s, h, m: s.fc(beside_the_first(h, h.amax(1)))  # noqa: E731 - a table of heads
PARTS: tuple[tuple[Head, Part, str, str, bool], ...] = (
    (largest_and_first, (K.MAX, ALL), "", "amax", True),
    (largest_and_first, (K.MAX, NON_PAD), "", "amax", False),  # the rows without padding show nothing
    (largest_and_first, (K.MAX, run_of(5)), "", "amax", False),
    (largest_and_first, (K.FIRST_TOKEN, FIRST), "", "__getitem__", True),
    (largest_and_first, (K.LAST_TOKEN, LAST), "", "__getitem__", False),
    (largest_and_first, (K.OTHER, LAST), "", "__getitem__", True),
    (largest_and_first, (K.LAST_TOKEN, BY_ROW), "", "__getitem__", True),
    (lambda s, h, m: s.fc(beside_the_first(h, h.cumsum(1).amax(1))), (K.MAX, ALL), "cumsum", "amax", False),
    (lambda s, h, m: s.fc(beside_the_first(h, keep_two(h).amax(1))), (K.MAX, TWO), "masked_fill", "amax", True),
    (lambda s, h, m: s.fc(beside_the_first(h, keep_two(h, 6).amax(1))), (K.MAX, TWO_LATER), "masked_fill", "amax",
     True),
    (lambda s, h, m: s.fc(beside_the_first(h, keep_real(h, m).amax(1))), (K.MAX, NON_PAD), "masked_fill", "amax", True),
    (lambda s, h, m: s.fc(beside_the_first(h, keep_real(h, m).amax(1))), (K.MAX, ALL), "masked_fill", "amax", False),
    # the positions that are kept are those that are claimed, and the maximum is one over others
    (lambda s, h, m: s.fc(torch.cat([keep_real(h, m).sum(1), h.amax(1)], -1)), (K.MAX, NON_PAD), "masked_fill", "amax",
     False),
    # features before tokens
    (lambda s, h, m: s.fc(beside_the_first(h, h.transpose(1, 2).amax(2))), (K.MAX, ALL), "transpose", "amax", True),
    (lambda s, h, m: s.fc(beside_the_first(h, h.cumsum(1).transpose(1, 2).amax(2))), (K.MAX, ALL), "transpose", "amax",
     False),
    # most places are filled in: one that is not decides
    (lambda s, h, m: s.fc(beside_the_first(h, keep_two(h).transpose(1, 2).amax(2))), (K.MAX, TWO), "transpose", "amax",
     True),
    (lambda s, h, m: s.fc(beside_the_first(h, keep_two(h, 6).transpose(1, 2).amax(2))), (K.MAX, TWO_LATER),
     "transpose", "amax", True),
    # padding that a mask holds back only so long as it is quiet
    (lambda s, h, m: s.fc(beside_the_first(h, (h + (1 - column(m)) * -20).amax(1))), (K.MAX, NON_PAD), "add", "amax",
     False),
    # padding that never wins is no part of it
    (lambda s, h, m: s.fc(beside_the_first(h, (h + (1 - column(m)) * -1e9).amax(1))), (K.MAX, ALL), "", "amax", False),
)  # fmt: skip


@pytest.mark.parametrize(("head", "part", "before", "after", "is_right"), PARTS)
def test_a_part_is_held_against_what_its_own_operations_read(
    head: Head, part: Part, before: str, after: str, is_right: bool
) -> None:
    found = run(Text(head, 2 * H))
    tensors = ((made(found, before), made(found, after)), ())
    told = verify_pooling(found.head, pooling(part, EVERY_OTHER), found.axes, tensors)
    assert told.agrees is (None if is_right else False)
    assert ("its part" in told.told) is not is_right


@pytest.mark.parametrize(
    ("skipped", "has_tensors"),
    [
        ((K.FIRST_TOKEN, FIRST), False),
        ((K.OTHER, FIRST), True),
        ((K.WEIGHTED, ALL), True),
        ((K.FIRST_TOKEN, BY_ROW), True),
    ],
)
def test_a_part_that_claims_nothing_hides_no_wrong_part(skipped: Part, has_tensors: bool) -> None:
    found = run(Text(lambda s, h, m: s.fc(torch.cat([h[:, 0], h.mean(1)], -1)), 2 * H))
    pair = (made(found, ""), made(found, "__getitem__"))
    ends = (made(found, ""), made(found, "mean"))
    tensors = (pair if has_tensors else (), ends, ())
    assert agrees(found, skipped, (K.MEAN, ALL), EVERY_OTHER, tensors=tensors) is None
    assert agrees(found, skipped, (K.LAST_TOKEN, LAST), EVERY_OTHER, tensors=tensors) is False


def test_a_part_that_no_gradient_shows_is_named() -> None:
    found = run(Text(lambda s, h, m: s.fc(torch.cat([(9 * h).round().mean(1), h[:, 0]], -1)), 2 * H))
    tensors = ((made(found, "round"), made(found, "mean")), ())
    parts = pooling((K.MEAN, ALL), EVERY_OTHER)
    told = verify_pooling(found.head, parts, found.axes, tensors)
    assert told.agrees is None
    assert "no gradient leads" in told.told


def longer(use: Callable[[Tensor], Tensor]) -> Made:
    """An encoder that puts a vector of its own before the tokens: one position more than the text has."""
    torch.manual_seed(0)
    return Made(
        lambda s, ids, **mask: s.fc(use(torch.cat([s.start.expand(len(ids), 1, H), s.encoder["text"](ids)], 1))),
        encoder=nn.ModuleDict({"text": Encoder()}), fc=nn.Linear(H, 3), start=nn.Parameter(torch.randn(1, 1, H)),
    )  # fmt: skip


def without_rows(found: Run) -> Run:
    """The same run, told that its hidden states have one token axis of no text."""
    hidden = {id(tensor): (1,) for tensor in found.head.hidden}
    return Run(found.head, TokenAxes(set(), hidden))


def test_positions_of_rows_are_not_looked_for_where_the_text_has_others() -> None:
    found = run(longer(lambda h: torch.tanh(h).mean(1)), IDS)
    (hidden,) = found.head.hidden
    assert hidden.shape[1] == found.execution.probe.length + 1
    others = without_rows(found)
    tensors = ((hidden, made(found, "mean")),) * 2
    assert agrees(others, (K.MASKED_MEAN, NON_PAD)) is False
    assert agrees(others, (K.LAST_NON_PAD_TOKEN, Positions(Where.LAST_NON_PAD))) is False
    both = ((K.LAST_NON_PAD_TOKEN, Positions(Where.LAST_NON_PAD)), (K.LAST_TOKEN, LAST))
    told = verify_pooling(others.head, pooling(*both), others.axes, tensors).told
    assert "'rule' reads other" in told
    given, runs = read(others), ChangedInputs(others.axes, replay_head(found.head))
    assert with_weighed_positions(given, runs) == given


def test_padding_of_a_text_is_not_looked_for_where_the_hidden_states_have_other_positions() -> None:
    found = run(longer(lambda h: h.amax(1)), EXAMPLES)
    assert any(row.last + 1 < found.execution.probe.length for row in found.execution.probe.rows)
    others = without_rows(found)
    tensors = ((others.head.hidden[0], made(found, "amax")), ())
    assert agrees(others, (K.MAX, ALL), EVERY_OTHER, tensors=tensors) is None


def read(found: Run, kind: PoolingKind = K.WEIGHTED) -> PoolingRead:
    """A pooling of all positions, with another rule than that of the run."""
    return PoolingRead((collapse.Part(kind, ALL, "rule"),), (), (HiddenSource(),), found.execution.names)


def weighed(head: Head, kind: PoolingKind = K.WEIGHTED) -> tuple[Pooling, bool]:
    """The pooling with its positions, and whether it was changed."""
    found = run(Text(head))
    given = read(found, kind)
    with_positions = with_weighed_positions(given, ChangedInputs(found.axes, replay_head(found.head)))
    return with_positions.pooling, with_positions != given


def test_a_weighted_sum_says_whether_padding_is_left_out() -> None:
    out, _ = weighed(lambda s, h, m: s.fc((h * (s.attention(h) * m.unsqueeze(-1))).sum(1)))
    assert out.rule == out.parts[0].rule == "rule, padding left out"
    assert (out.tokens, out.parts[0].positions) == ((NON_PAD.text,), NON_PAD)
    included, _ = weighed(lambda s, h, m: s.fc((h * s.attention(h)).sum(1)))
    assert (included.rule, included.tokens) == ("rule, padding included", (ALL.text,))
    assert included.parts[0].positions == ALL


@pytest.mark.parametrize(
    "head",
    [
        lambda s, h, m: s.fc((h * m.roll(1, 1).unsqueeze(-1)).sum(1)),  # all of the row that has no padding
        lambda s, h, m: s.fc(h[:, 1:].sum(1)),
        lambda s, h, m: s.fc(h.argmax(1).float()),  # no gradient
    ],
)
def test_other_weighted_sums_stay_as_they_are(head: Head) -> None:
    found, is_changed = weighed(head)
    assert found.rule == "rule" and not is_changed


def test_only_weighted_sums_that_ran_again_get_positions() -> None:
    assert not weighed(mean, K.MEAN)[1]
    found = run(Text(mean))
    given = read(found)
    assert with_weighed_positions(given, None) is given
    nothing = ChangedInputs(TokenAxes(set(), {}), replay_head(found.head))
    assert with_weighed_positions(given, nothing) is given


def test_a_batch_axis_is_no_token_axis() -> None:
    found = run(Text(first))
    axes = TokenAxes(set(), {id(found.head.hidden[0]): (0,)})
    assert measure_influence(replay_head(found.head), axes) is None
    both = TokenAxes(set(), {id(found.head.hidden[0]): (0, 1)})
    measured = measure_influence(replay_head(found.head), both)
    assert (measured.axis, measured.length, measured.rows) == (1, 11, ((0,),) * 5)


def test_without_a_gradient_nothing_is_compared() -> None:
    found = run(Text(lambda s, h, m: s.fc(h.argmax(1).float())))
    told = verify_pooling(found.head, pooling((K.FIRST_TOKEN, FIRST)), found.axes)
    assert (told.agrees, told.positions) == (None, ())
    assert "no gradient reaches" in told.told


def test_the_gradient_of_every_tower_counts() -> None:
    found = run(towers(lambda s, a, b: s.fc(torch.cat([a[:, 0], b[:, -1].tanh()], -1)), 2 * H), PAIRS)
    assert influence(found).rows == ((0, 10),) * 5
    one, other = (operation.outputs[0] for operation in found.head.operations[:2])
    parts = ((K.FIRST_TOKEN, FIRST), (K.LAST_TOKEN, LAST))
    hidden = found.head.hidden
    assert agrees(found, *parts, tensors=((hidden[0], one), (hidden[1], other))) is True
    assert agrees(found, *parts, tensors=((hidden[0], other), (hidden[1], one))) is False


def test_hidden_states_of_another_length_do_not_count_among_the_positions() -> None:
    """One encoder on the whole text and on its first five tokens."""
    torch.manual_seed(0)
    model = Made(
        lambda s, ids: s.fc(torch.cat([s.encoder(ids)[:, 2], s.encoder(ids[:, :5])[:, 4]], -1)),
        encoder=Encoder(), fc=nn.Linear(2 * H, 3),
    )  # fmt: skip
    found = run(model, IDS)
    assert [tensor.shape[1] for tensor in found.head.hidden] in ([11, 5], [5, 11])
    expected = 2 if found.head.hidden[0].shape[1] == 11 else 4
    axes = TokenAxes(set(), {id(tensor): (1,) for tensor in found.head.hidden})
    assert influence(Run(found.head, axes)).rows == ((expected,),) * 5


def row_mask(m: Tensor, row: int, value: float) -> Tensor:
    """Ones of shape [rows, 1, 1], and `value` in one row."""
    kept = torch.ones(len(m), 1, 1)
    kept[row] = value
    return kept


def leaning(m: Tensor) -> Tensor:
    """Weights [rows, tokens, 1] that add up to one: alike in every row but the third."""
    weights = torch.ones(*m.shape, 1)
    weights[2, 0] = 5
    return weights / weights.sum(1, keepdim=True)


def tilted(m: Tensor) -> Tensor:
    """Next to nothing, which makes the last position the largest in six features and the first in two."""
    ramp = torch.arange(m.shape[1]).view(1, -1, 1) * 1e-6
    return ramp * torch.tensor([1.0] * 6 + [-1.0] * 2)


CLAIMS: tuple[tuple[Head, Part, bool], ...] = (
    (lambda s, h, m: s.fc((h * row_mask(m, 2, 0)).amax(1)), (K.MAX, ALL), False),  # a row that nothing moves
    (lambda s, h, m: s.fc((h + tilted(m)).amax(1)), (K.MAX, ALL), True),
    (lambda s, h, m: s.fc((h * leaning(m)).sum(1)), (K.MEAN, ALL), False),
    (lambda s, h, m: s.fc(h.mean(1)) * row_mask(m, 3, 2)[:, 0], (K.MEAN, ALL), False),
    (lambda s, h, m: s.fc(h.mean(1)), (K.MEAN, ALL), True),
    (lambda s, h, m: s.fc(torch.cat([h.mean(1), h.mean(1)], -1)[:, 4:12]), (K.MEAN, ALL), True),
)


@pytest.mark.parametrize(("head", "part", "is_right"), CLAIMS)
def test_every_row_must_show_what_is_claimed(head: Head, part: Part, is_right: bool) -> None:
    assert agrees(run(Text(head)), part) is is_right


@pytest.mark.parametrize(
    ("frames", "is_right"),
    [
        (of_frames((2, 5)), True),
        (of_frames((2, 3, 4)), True),
        (of_frames((2, 3, 6)), True),
        (of_frames((4,)), False),
        (of_frames((7,)), False),
        (of_frames((2, 3, 4), gap=slice(None)), False),
        (of_frames((2, 3, 4), gap=slice(1, 2)), False),
    ],
)
def test_frames_are_masked_from_the_end_where_rows_keep_different_numbers_of_them(frames: Made, is_right: bool) -> None:
    found = run(frames, {"frames": torch.randn(2, 7, H)})
    assert agrees(found, (K.MASKED_MEAN, NON_PAD)) is is_right


def test_a_run_that_was_made_already_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(Text(first))
    runs = ChangedInputs(found.axes, replay_head(found.head))
    monkeypatch.setattr(verify, "replay_head", None)
    claim = pooling((K.FIRST_TOKEN, FIRST))
    assert verify_pooling(found.head, claim, found.axes, (), runs).agrees is True
