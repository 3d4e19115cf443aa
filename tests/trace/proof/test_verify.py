"""The proof by gradients: right claims agree, wrong claims do not, and what was seen is said in words."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from headscope.core.trace.proof.gradients import measure_influence, verify_pooling
from headscope.core.trace.replay import replay
from headscope.facts import Pooling, PoolingKind, Positions, Verification, Where
from tests.trace.heads import (
    ALL,
    BY_ROW,
    EACH,
    FIRST,
    LAST,
    LAST_NON_PAD,
    NON_PAD,
    H,
    Head,
    Text,
    at,
    first,
    image,
    last_real,
    masked_mean,
    mean,
    pixels,
    pooling,
    rows,
    run,
    trace,
)

K = PoolingKind
EVERY = tuple(range(11))
ROWS = ((0, 10), (0, 8), (3, 10), (0, 6), (1, 10))
"""First and last real position of each row of the probe, as `headscope.core.trace.batch.probe_batch` pads them."""
EOS = (8, 6, 8, 4, 8)


last: Head = lambda s, h, m: s.fc(h[:, -1])  # noqa: E731 - a table of heads
fourth: Head = lambda s, h, m: s.fc(h[:, 3])  # noqa: E731
last_non_pad: Head = lambda s, h, m: s.fc(h[rows(m), last_real(m)])  # noqa: E731
first_non_pad: Head = lambda s, h, m: s.fc(h[rows(m), m.argmax(1)])  # noqa: E731
after: Head = lambda s, h, m: s.fc(h[rows(m), (last_real(m) + 1).clamp(max=10)])  # noqa: E731
eos: Head = lambda s, h, m: s.fc(h[rows(m), last_real(m) - 2])  # noqa: E731
tail: Head = lambda s, h, m: s.fc(h[:, 1:].mean(1))  # noqa: E731
masked: Head = lambda s, h, m: s.fc(masked_mean(h, m))  # noqa: E731
masked_sum: Head = lambda s, h, m: s.fc((h * m.unsqueeze(-1)).sum(1))  # noqa: E731
uneven: Head = lambda s, h, m: s.fc((h * torch.arange(1, 12).view(1, -1, 1)).sum(1) / 66)  # noqa: E731
uneven_masked: Head = lambda s, h, m: s.fc(masked_mean(h, m * torch.arange(1, 12)))  # noqa: E731
largest: Head = lambda s, h, m: s.fc(h.amax(1))  # noqa: E731
zeros: Head = lambda s, h, m: s.fc((h * m.unsqueeze(-1)).amax(1))  # noqa: E731
each: Head = lambda s, h, m: s.fc(h)  # noqa: E731
mixed: Head = lambda s, h, m: s.fc(h - h.mean(1, keepdim=True))  # noqa: E731
both: Head = lambda s, h, m: s.fc(torch.cat([h[:, 0], h[:, -1]], -1)[:, 4:12])  # noqa: E731
constant: Head = lambda s, h, m: s.fc((h * 0).mean(1))  # noqa: E731


def verified(head: Head, *parts: tuple[K, Positions]) -> Verification:
    found = run(Text(head))
    return verify_pooling(found.head, pooling(*parts), found.axes)


RIGHT = [
    (first, (K.FIRST_TOKEN, FIRST)),
    (last, (K.LAST_TOKEN, LAST)),
    (fourth, (K.TOKEN_AT, at(3))),
    (last_non_pad, (K.LAST_NON_PAD_TOKEN, LAST_NON_PAD)),
    (first_non_pad, (K.FIRST_TOKEN, Positions(Where.FIRST_NON_PAD))),
    (after, (K.LAST_NON_PAD_TOKEN, Positions(Where.AFTER_LAST_NON_PAD))),
    (eos, (K.EOS_TOKEN, Positions(Where.EOS))),
    (mean, (K.MEAN, ALL)),
    (tail, (K.MEAN, Positions(Where.RANGE, 1))),
    (masked, (K.MASKED_MEAN, NON_PAD)),
    (largest, (K.MAX, ALL)),
    (each, (K.NONE, EACH)),
    (mean, (K.FLATTEN, ALL)),
]
WRONG = [
    (first, (K.LAST_TOKEN, LAST)),
    (last, (K.FIRST_TOKEN, FIRST)),
    (last, (K.LAST_NON_PAD_TOKEN, LAST_NON_PAD)),
    (last_non_pad, (K.LAST_TOKEN, LAST)),
    (last_non_pad, (K.EOS_TOKEN, Positions(Where.EOS))),
    (after, (K.LAST_NON_PAD_TOKEN, LAST_NON_PAD)),
    (first, (K.MEAN, ALL)),
    (mean, (K.FIRST_TOKEN, FIRST)),
    (mean, (K.MASKED_MEAN, NON_PAD)),
    (mean, (K.MEAN, Positions(Where.RANGE, 1))),
    (tail, (K.MEAN, ALL)),
    (masked, (K.MEAN, ALL)),
    (masked_sum, (K.MASKED_MEAN, NON_PAD)),
    (uneven, (K.MEAN, ALL)),
    (uneven_masked, (K.MASKED_MEAN, NON_PAD)),
    (zeros, (K.MAX, NON_PAD)),
    (mixed, (K.NONE, EACH)),
    (first, (K.NONE, EACH)),
    (each, (K.FIRST_TOKEN, FIRST)),
    (constant, (K.MAX, ALL)),
]
OPEN = [
    (first, (K.OTHER, FIRST)),
    (first, (K.FIRST_TOKEN, BY_ROW)),
    (mean, (K.WEIGHTED, ALL)),
    (each, (K.OTHER, EACH)),
]


@pytest.mark.parametrize(
    ("head", "part", "is_right"), [*((*row, True) for row in RIGHT), *((*row, False) for row in WRONG)]
)
def test_a_right_claim_agrees_and_a_wrong_one_does_not(head: Head, part: tuple[K, Positions], is_right: bool) -> None:
    found = verified(head, part)
    assert found.agrees is is_right
    assert found.told.startswith("agrees " if is_right else "disagrees ")


@pytest.mark.parametrize(("head", "part"), OPEN)
def test_a_rule_that_names_no_positions_is_left_open(head: Head, part: tuple[K, Positions]) -> None:
    found = verified(head, part)
    assert found.agrees is None
    assert len(found.positions) == 5


def test_several_parts_claim_their_positions_together() -> None:
    assert verified(both, (K.FIRST_TOKEN, FIRST), (K.LAST_TOKEN, LAST)).agrees is True
    assert verified(both, (K.LAST_TOKEN, LAST), (K.FIRST_TOKEN, FIRST)).agrees is True
    assert verified(both, (K.FIRST_TOKEN, FIRST), (K.MEAN, ALL)).agrees is False
    assert verified(both, (K.FIRST_TOKEN, FIRST), (K.MAX, ALL)).agrees is None
    assert verified(both, (K.FIRST_TOKEN, FIRST), (K.OTHER, ALL)).agrees is None
    found = run(Text(first))
    nothing = Pooling(K.OTHER, (), "", (), ())
    assert verify_pooling(found.head, nothing, found.axes).agrees is None


def by_row(h: Tensor, m: Tensor) -> Tensor:
    """All positions of the first row, the first position of the others."""
    weights = torch.zeros(*m.shape, 1)
    weights[:, 0] = 1
    weights[0] = 1
    return (h * weights).sum(1)


diagonal: Head = lambda s, h, m: s.fc(h[rows(m), rows(m)])  # noqa: E731
WORDS = [
    (last, "only the last position, padding or not"),
    (first, "only the first position, padding or not"),
    (last_non_pad, "only the last position that is not padding"),
    (eos, "only the position of the end token"),
    (after, "only the position after the last that is not padding"),
    (first_non_pad, "only the first position that is not padding"),
    (masked, "exactly the positions that are not padding"),
    (mean, "all 11 positions"),
    (fourth, "only position 3 of 11"),
    (tail, "10 of 11 positions a row"),
    (each, "the score of each position depends on that position alone"),
    (mixed, "all 11 positions"),
    (diagonal, "1 of 11 positions a row"),
    (lambda s, h, m: s.fc(h[:, 0] + h[:, 5]), "2 of 11 positions a row"),
    (lambda s, h, m: s.fc(by_row(h, m)), "1 or 11 of 11 positions a row"),
]


@pytest.mark.parametrize(("head", "words"), WORDS)
def test_what_the_gradients_show_is_said_in_words(head: Head, words: str) -> None:
    assert verified(head, (K.OTHER, ALL)).told.endswith(f"by gradient: {words}")


@pytest.mark.parametrize(
    ("head", "positions"),
    [
        (first, ((0,),) * 5),
        (mean, (EVERY,) * 5),
        (last_non_pad, tuple((row[1],) for row in ROWS)),
        (eos, tuple((position,) for position in EOS)),
        (masked, tuple(tuple(range(start, end + 1)) for start, end in ROWS)),
        (both, ((0, 10),) * 5),
        (constant, ((),) * 5),
        (diagonal, tuple((row,) for row in range(5))),
        (lambda s, h, m: s.fc(h[:, 0] + 1e-13 * h[:, 1]), ((0,),) * 5),  # far below what counts
        (lambda s, h, m: s.fc(h[:, 0] + 1e-3 * h[:, 1]), ((0, 1),) * 5),
        (lambda s, h, m: torch.cat([s.fc(h[:, 0]), -s.fc(h[:, 0])], -1), ((0,),) * 5),  # the sum of all scores is 0
        (lambda s, h, m: s.fc(h[:, 4])[:, 0], ((4,),) * 5),
    ],
)
def test_influence_is_measured_for_every_row(head: Head, positions: tuple[tuple[int, ...], ...]) -> None:
    found = run(Text(head))
    measured = measure_influence(replay.replay_head(found.head), found.axes)
    assert (measured.length, measured.rows) == (11, positions)


def test_own_positions_are_those_of_every_row() -> None:
    def is_own_only(head: Head) -> bool:
        found = run(Text(head))
        measured = measure_influence(replay.replay_head(found.head), found.axes)
        return measured is not None and measured.is_own_only

    assert is_own_only(each)
    assert not is_own_only(mixed)
    assert not is_own_only(first)
    assert not is_own_only(lambda s, h, m: s.fc(h.flip(1)))
    assert is_own_only(lambda s, h, m: s.fc(torch.relu(s.dense(h))))


def test_images_have_no_rows_to_name() -> None:
    found = run(image(lambda s, h: s.fc(h[:, 0])), pixels(4, 4))
    sentence = verify_pooling(found.head, pooling((K.FIRST_TOKEN, FIRST)), found.axes)
    assert sentence.agrees is True and sentence.told.endswith(": only the first position")
    masked_mean = verify_pooling(found.head, pooling((K.MASKED_MEAN, NON_PAD)), found.axes)
    assert masked_mean.agrees is False
    found = run(image(lambda s, h: s.fc(h.mean((2, 3))), as_tokens=False), pixels(4, 4))
    assert verify_pooling(found.head, pooling((K.SPATIAL_MEAN, ALL)), found.axes).agrees is True


def test_nothing_is_claimed_where_nothing_can_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = nn.Sequential(nn.Linear(H, H), nn.Linear(H, 3))
    found = run(plain, {"input": torch.randn(2, H)})
    sentence = verify_pooling(found.head, pooling((K.FIRST_TOKEN, FIRST)), found.axes)
    assert (sentence.agrees, sentence.positions) == (None, ())
    assert "token axis" in sentence.told
    found = run(Text(first))
    monkeypatch.setattr(replay, "MOST_RUN_AGAIN", 1)
    sentence = verify_pooling(found.head, pooling((K.FIRST_TOKEN, FIRST)), found.axes)
    assert (sentence.agrees, sentence.positions) == (None, ())
    assert "the head holds" in sentence.told


def straight_through(value: Tensor, chosen: Tensor) -> Tensor:
    return value + (chosen - value).detach()


WITHOUT_GRADIENT: dict[str, tuple[Head, tuple[K, Positions]]] = {
    "rounded": (lambda s, h, m: s.fc(h[:, 0].round()), (K.FIRST_TOKEN, FIRST)),
    "signs": (lambda s, h, m: s.fc(h.sign().mean(1)), (K.MEAN, ALL)),
    "masked signs": (
        lambda s, h, m: s.fc((h.sign() * m.unsqueeze(-1)).sum(1) / m.sum(1, keepdim=True)), (K.MASKED_MEAN, NON_PAD)
    ),
    "largest floor": (lambda s, h, m: s.fc(h.floor().amax(1)), (K.MAX, ALL)),
    "straight through": (lambda s, h, m: s.fc(straight_through(h, h.sign()).mean(1)), (K.MEAN, ALL)),
    "each rounded": (lambda s, h, m: s.fc(h).round(), (K.NONE, EACH)),
}  # fmt: skip


@pytest.mark.parametrize("name", WITHOUT_GRADIENT)
def test_what_depends_on_a_position_without_a_gradient_is_no_contradiction(name: str) -> None:
    head, part = WITHOUT_GRADIENT[name]
    found = verified(head, part)
    assert found.agrees is None
    assert "no gradient" in found.told


@pytest.mark.parametrize(
    ("head", "part"),
    [
        (lambda s, h, m: s.fc(h[:, -1].round()), (K.FIRST_TOKEN, FIRST)),
        (lambda s, h, m: s.fc(h[:, 1:].sign().mean(1)), (K.MEAN, ALL)),
        (lambda s, h, m: s.fc(h.mean(1) + h[:, 0].round()), (K.FIRST_TOKEN, FIRST)),
    ],
)
def test_a_claim_that_no_value_bears_out_is_still_contradicted(head: Head, part: tuple[K, Positions]) -> None:
    assert verified(head, part).agrees is False


UNREACHED = "no gradient reaches the hidden states from a part of the head"


@pytest.mark.parametrize(
    ("pooled", "width", "told"),
    [
        (lambda h: h[:, 0].round() + h[:, -1], H, "no gradient leads to"),
        (lambda h: h[:, 0] + (h > 0).float().mean(1), H, UNREACHED),
        (lambda h: torch.cat([h[:, 0], (h > 0).float().mean(1)], -1), 2 * H, UNREACHED),
    ],
)
def test_a_part_without_a_gradient_keeps_its_name_beside_another(
    pooled: Callable[[Tensor], Tensor], width: int, told: str
) -> None:
    traced = trace(Text(lambda s, h, m: s.fc(pooled(h)), width))
    assert (traced.verification.agrees, traced.pooling.kind) == (None, K.CONCAT)
    assert told in traced.verification.told
    assert traced.not_determined == ()
