"""What an indexing expression reads: every function on expressions written by hand."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from headscope.core.trace.batch.inputs import ProbeRow, Sizes
from headscope.core.trace.batch.probe_batch import ProbeBatch
from headscope.core.trace.record.execution import Execution
from headscope.core.trace.record.indexing import index_items, index_operation, spell_index
from headscope.core.trace.record.recorder import Graph, Operation
from headscope.core.trace.replay.picks import (
    HeadSteps,
    Picked,
    TokenNames,
    explain_pick,
    is_mask_of_rows,
    kept_positions,
    picked_positions,
    read_pick,
    sliced_positions,
)
from headscope.core.trace.slice.axes import TokenAxes
from headscope.core.trace.slice.head_slice import HeadSlice
from headscope.core.trace.slice.stages import Step
from headscope.facts import Positions, Where
from tests.trace.heads import ALL, at, run_of

BATCH, LENGTH, WIDTH = 3, 11, 8
ROWS = (ProbeRow(0, 10, 7), ProbeRow(2, 10, 6), ProbeRow(0, 8, 5))
"""First, last and end token of a row without, with left and with right padding."""
PROBE = ProbeBatch({}, {}, Sizes(BATCH, LENGTH), ROWS)
IMAGES = ProbeBatch({}, {}, Sizes(BATCH, 0), ())
AXES = TokenAxes({LENGTH}, {})
HIDDEN = torch.zeros(BATCH, LENGTH, WIDTH)
E: Any = np.s_
"""`E[:, 0]` is the tuple between the brackets."""


def getitem(items: Any, source: Tensor = HIDDEN) -> Operation:
    """`source[items]` as it is recorded."""
    return operation("__getitem__", Tensor.__getitem__, source, items)


def operation(name: str, function: Any, *args: Any, **kwargs: Any) -> Operation:
    inputs = tuple(item for item in (*args, *kwargs.values()) if isinstance(item, Tensor))
    return Operation(0, function, name, args, kwargs, inputs, (function(*args, **kwargs),), (), 0, "", 0)


WHOLE = slice(None)


@pytest.mark.parametrize(
    ("items", "spelled"),
    [
        (E[0], (0,)),
        (E[:, 0], (WHOLE, 0)),
        (E[..., 0], (WHOLE, WHOLE, 0)),
        (E[:, ..., 0], (WHOLE, WHOLE, 0)),
        (E[0, ...], (0, WHOLE, WHOLE)),
        (E[None, ..., 0], (None, WHOLE, WHOLE, 0)),
        (E[0, 1, ..., 2], (0, 1, 2)),
    ],
)
def test_an_ellipsis_stands_for_the_axes_that_are_left(items: Any, spelled: tuple[Any, ...]) -> None:
    assert index_items(getitem(items)) == spelled


def test_a_boolean_mask_takes_as_many_axes_as_it_has() -> None:
    mask = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    assert index_items(getitem(E[mask, ...]))[1:] == (WHOLE,)
    assert index_items(getitem(E[..., torch.ones(WIDTH, dtype=torch.bool)]))[:2] == (WHOLE, WHOLE)


@pytest.mark.parametrize(
    ("items", "name", "text"),
    [
        (E[:, 0], "select", "[:, 0]"),
        (E[0], "select", "[0]"),
        (E[:, -1, None], "select", "[:, -1, None]"),
        (E[..., 0, :], "select", "[..., 0, :]"),
        (E[:, 1:], "slice", "[:, 1:]"),
        (E[:, :-1], "slice", "[:, :-1]"),
        (E[:, ::2], "slice", "[:, ::2]"),
        (E[:, 1:5:2], "slice", "[:, 1:5:2]"),
        (E[:, None], "unsqueeze", "[:, None]"),
        (E[:, [0]], "index", "[:, [0]]"),
        (E[:, torch.tensor([2])], "index", "[:, indices]"),
        (E[torch.ones(BATCH, LENGTH, dtype=torch.bool)], "index", "[mask]"),
    ],
)
def test_an_expression_has_the_name_of_what_it_does(items: Any, name: str, text: str) -> None:
    assert index_operation(getitem(items)) == name
    assert spell_index(getitem(items)) == text


LAST_REAL = torch.tensor([10, 10, 8])
PICKS = [
    (E[:, 0], Picked((0, 0, 0), 0, LENGTH)),
    (E[:, 4], Picked((4, 4, 4), 4, LENGTH)),
    (E[:, -1], Picked((10, 10, 10), -1, LENGTH)),
    (E[None, :, -2], Picked((9, 9, 9), -2, LENGTH)),
    (E[..., 0, :], Picked((0, 0, 0), 0, LENGTH)),
    (E[torch.arange(BATCH), LAST_REAL], Picked((10, 10, 8), None, LENGTH)),
    (E[torch.arange(BATCH), LAST_REAL - LENGTH], Picked((10, 10, 8), None, LENGTH)),
    (E[:, torch.tensor([3])], Picked((3, 3, 3), 3, LENGTH)),
    (E[:, torch.tensor([3, 4])], None),
    (E[:, [0]], Picked((0, 0, 0), 0, LENGTH)),
    (E[:, :1], Picked((0, 0, 0), 0, LENGTH)),
    (E[:, -1:], Picked((10, 10, 10), -1, LENGTH)),
    (E[:, 2:3], Picked((2, 2, 2), 2, LENGTH)),
    (E[:, :0], None),
    (E[:, 2:4], None),
    (E[:, [1, 2, 3]], None),
    (E[:, torch.tensor([1, 2, 3])], None),
    (E[torch.tensor([1, 0, 2]), LAST_REAL], None),
    (E[0], None),
    (E[:, :, 0], None),
    (E[torch.arange(BATCH)], None),
    (E[:, torch.tensor([0], device="meta")], None),
]


@pytest.mark.parametrize(("items", "picked"), PICKS, ids=lambda value: str(value)[:40])
def test_the_positions_of_an_expression(items: Any, picked: Picked | None) -> None:
    parts = items if isinstance(items, tuple) else (items,)
    source = HIDDEN.to("meta") if any(isinstance(item, Tensor) and item.is_meta for item in parts) else HIDDEN
    found = getitem(items, source)
    assert picked_positions(found, index_operation(found), PROBE, AXES) == picked


def mask_of(*positions: Sequence[int]) -> Tensor:
    mask = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    for row, kept in enumerate(positions):
        mask[row, list(kept)] = True
    return mask


def test_the_positions_of_a_boolean_mask_are_the_last_that_it_keeps() -> None:
    def read(mask: Tensor) -> Picked | None:
        return picked_positions(getitem(mask), "index", PROBE, AXES)

    assert read(mask_of((1,), (2, 5), (0, 8))) == Picked((1, 5, 8), None, LENGTH)
    assert read(mask_of((1,), (), (0,))) is None
    assert read(torch.ones(BATCH, dtype=torch.bool)) is None
    shorter = getitem(mask_of((0, 1), (2,), (4, 5))[:, :-1], HIDDEN[:, :-1])  # positions of a part of the row
    assert picked_positions(shorter, "index", PROBE, AXES) is None
    found = getitem(mask_of((1,), (2,), (3,)))
    found.args = (HIDDEN, mask_of((1,), (2,), (3,)).to("meta"))
    assert picked_positions(found, "index", PROBE, AXES) is None


def test_the_positions_of_select() -> None:
    def read(*args: Any, **kwargs: Any) -> Picked | None:
        found = operation("select", torch.select, HIDDEN, *args, **kwargs)
        return picked_positions(found, "select", PROBE, AXES)

    assert read(1, 0) == Picked((0, 0, 0), 0, LENGTH)
    assert read(-2, -1) == Picked((10, 10, 10), -1, LENGTH)
    assert read(dim=1, index=3) == Picked((3, 3, 3), 3, LENGTH)
    assert read(2, 0) is None
    assert read(0, 1) is None


def test_the_positions_of_gather() -> None:
    def read(index: Tensor, name: str = "gather") -> Picked | None:
        found = operation("gather", torch.gather, HIDDEN, 1, index)
        return picked_positions(found, name, PROBE, AXES)

    same = LAST_REAL.view(-1, 1, 1).expand(-1, 1, WIDTH)
    assert read(same) == Picked((10, 10, 8), None, LENGTH)
    assert read(same, "take_along_dim") == Picked((10, 10, 8), None, LENGTH)
    assert read(same, "index_add") is None
    differing = same.clone()
    differing[0, 0, 3] = 2
    assert read(differing) is None
    assert read(same[:2]) is None
    found = operation("gather", torch.gather, HIDDEN.to("meta"), 1, same.to("meta"))
    assert picked_positions(found, "gather", PROBE, AXES) is None


NAMES = TokenNames("[CLS]", "</s>")


@pytest.mark.parametrize(
    ("picked", "positions"),
    [
        (Picked((0, 0, 0), 0, LENGTH), Positions(Where.INDEX, 0, token="[CLS]")),
        (Picked((10, 10, 10), -1, LENGTH), at(-1)),
        (Picked((10, 10, 10), None, LENGTH), at(-1)),
        (Picked((10, 10, 8), None, LENGTH), Positions(Where.LAST_NON_PAD)),
        (Picked((7, 6, 5), None, LENGTH), Positions(Where.EOS, token="</s>")),
        (Picked((0, 2, 0), None, LENGTH), Positions(Where.FIRST_NON_PAD, token="[CLS]")),
        (Picked((10, 10, 9), None, LENGTH), Positions(Where.AFTER_LAST_NON_PAD)),
        (Picked((4, 4, 4), 4, LENGTH), at(4)),
        (Picked((9, 9, 9), -2, LENGTH), at(-2)),
        (Picked((4, 4, 5), None, LENGTH), Positions(Where.BY_ROW)),
        (Picked((0, 1, 0), None, LENGTH), Positions(Where.BY_ROW)),
        # Of another length: patches and entities are no tokens of the text.
        (Picked((0, 0, 0), 0, 5), at(0)),
        (Picked((4, 4, 4), -1, 5), at(-1)),
        (Picked((2, 2, 2), None, 5), at(2)),
        (Picked((2, 2, 3), None, 5), Positions(Where.BY_ROW)),
        (Picked((2, 2, 3), 2, 5), at(2)),
        (Picked((0, 0, 0), -1, 1), at(0)),
        (Picked((10, 10, 8), None, 12), Positions(Where.BY_ROW)),
    ],
    ids=str,
)
def test_the_plainest_rule_explains_the_positions(picked: Picked, positions: Positions) -> None:
    assert explain_pick(picked, PROBE, NAMES) == positions


def test_names_of_tokens_are_only_written_where_there_are_some() -> None:
    assert explain_pick(Picked((0, 0, 0), 0, LENGTH), PROBE, TokenNames()) == at(0)
    assert explain_pick(Picked((7, 6, 5), None, LENGTH), PROBE, TokenNames()) == Positions(Where.EOS)
    assert explain_pick(Picked((0, 2, 0), None, LENGTH), PROBE, TokenNames()) == Positions(Where.FIRST_NON_PAD)


def test_reading_a_pick_is_both_steps() -> None:
    execution = Execution(nn.Module(), PROBE, Graph(), (), None)
    known = HeadSteps(HeadSlice(execution, (), (), frozenset(), frozenset(), None), (), AXES, NAMES, ())
    assert read_pick(Step((getitem(E[:, 0]),), "select"), known) == Positions(Where.INDEX, 0, token="[CLS]")
    assert read_pick(Step((getitem(E[0]),), "select"), known) is None


@pytest.mark.parametrize(
    ("items", "before", "after"),
    [
        (E[:, 1:], ALL, run_of(1)),
        (E[:, 1:-1], ALL, run_of(1, -1)),
        (E[:, :5], ALL, run_of(0, 5)),
        (E[:, 2:5], ALL, run_of(2, 5)),
        (E[:, 1:20], ALL, run_of(1)),
        (E[:, :LENGTH], ALL, ALL),
        (E[:, :10], ALL, run_of(0, 10)),
        (E[:, :], ALL, ALL),
        (E[:, 0:], ALL, ALL),
        (E[:, ::1], ALL, ALL),
        (E[:, 1::1], ALL, run_of(1)),
        (E[:, ::2], ALL, None),
        (E[:, 1::2], ALL, None),
        (E[:, -3:], ALL, None),
        (E[:, :, 1:], ALL, ALL),
        (E[1:], ALL, ALL),
        (E[None, :, 1:], ALL, run_of(1)),
        (E[..., 1:, :], ALL, run_of(1)),
        (E[:, 1:], run_of(1), run_of(2)),
        (E[:, 2:5], run_of(1), run_of(3, 6)),
        (E[:, :-1], run_of(1), run_of(1, -1)),
        (E[:, :], run_of(1), run_of(1)),
        (E[:, 1:], run_of(1, -1), None),
        (E[:, 1:], Positions(Where.NON_PAD), None),
        (E[:, :], Positions(Where.NON_PAD), Positions(Where.NON_PAD)),
        (E[:, torch.tensor(1) :], ALL, None),
    ],
)
def test_a_slice_leaves_a_run_of_positions(items: Any, before: Positions, after: Positions | None) -> None:
    assert sliced_positions(getitem(items), AXES, before) == after


def test_a_slice_of_a_tensor_without_tokens_changes_nothing() -> None:
    assert sliced_positions(getitem(E[:, 1:], torch.zeros(3, 8, 8)), AXES, ALL) == ALL
    narrow = operation("narrow", torch.narrow, HIDDEN, 1, 0, 4)
    assert sliced_positions(narrow, AXES, ALL) == run_of(0, 4)


EVERY = list(range(LENGTH))


@pytest.mark.parametrize(
    ("positions", "kept"),
    [
        (at(0), [[0]] * 3),
        (at(-2), [[9]] * 3),
        (run_of(1), [EVERY[1:]] * 3),
        (run_of(0, -1), [EVERY[:-1]] * 3),
        (run_of(2, 5), [[2, 3, 4]] * 3),
        (ALL, [EVERY] * 3),
        (Positions(Where.EACH), [EVERY] * 3),
        (Positions(Where.FIRST_NON_PAD), [[0], [2], [0]]),
        (Positions(Where.LAST_NON_PAD), [[10], [10], [8]]),
        (Positions(Where.AFTER_LAST_NON_PAD), [[10], [10], [9]]),
        (Positions(Where.EOS), [[7], [6], [5]]),
        (Positions(Where.NON_PAD), [EVERY, EVERY[2:], EVERY[:9]]),
    ],
)
def test_positions_name_indices_of_every_row(positions: Positions, kept: list[list[int]]) -> None:
    assert kept_positions(positions, PROBE, LENGTH) == kept


def test_positions_of_inputs_without_rows_are_those_of_the_batch() -> None:
    assert kept_positions(at(-1), IMAGES, 4) == [[3]] * BATCH
    assert kept_positions(run_of(1), IMAGES, 4) == [[1, 2, 3]] * BATCH
    assert kept_positions(ALL, IMAGES, 2) == [[0, 1]] * BATCH


@pytest.mark.parametrize("where", [Where.NON_PAD, Where.LAST_NON_PAD, Where.EOS])
def test_padding_is_only_known_of_texts_of_that_length(where: Where) -> None:
    with pytest.raises(ValueError, match="rows of tokens"):
        kept_positions(Positions(where), IMAGES, 4)
    with pytest.raises(ValueError, match="rows of tokens"):
        kept_positions(Positions(where), PROBE, LENGTH + 1)


def test_a_rule_that_was_not_recognized_names_no_positions() -> None:
    with pytest.raises(ValueError, match="by_row"):
        kept_positions(Positions(Where.BY_ROW), PROBE, LENGTH)


REAL = mask_of(EVERY, EVERY[2:], EVERY[:9])


def test_the_mask_of_a_text_keeps_exactly_what_is_not_padding() -> None:
    assert is_mask_of_rows(REAL, PROBE)
    assert is_mask_of_rows(REAL.long().unsqueeze(-1), PROBE)
    assert is_mask_of_rows(REAL.float()[:, None, None], PROBE)
    assert not is_mask_of_rows(~REAL, PROBE)
    assert not is_mask_of_rows(mask_of(EVERY, EVERY, EVERY[:9]), PROBE)
    assert not is_mask_of_rows(mask_of(EVERY, EVERY[2:], EVERY[1:9]), PROBE)
    assert not is_mask_of_rows(mask_of(EVERY, EVERY[2:], EVERY[:10]), PROBE)
    assert not is_mask_of_rows(REAL[:2], PROBE)
    assert not is_mask_of_rows(REAL[:, :10], PROBE)
    assert not is_mask_of_rows(REAL, IMAGES)


def test_a_mask_of_rows_may_repeat_itself_for_every_feature() -> None:
    wide = REAL.unsqueeze(-1).expand(-1, -1, 4)
    assert is_mask_of_rows(wide, PROBE)
    assert is_mask_of_rows(wide.reshape(BATCH, LENGTH, 2, 2), PROBE)
    one_more = wide.clone()
    one_more[2, 10, 3] = True
    assert not is_mask_of_rows(one_more, PROBE)
    assert not is_mask_of_rows(wide[:, :-1], PROBE)
    assert not is_mask_of_rows(wide.transpose(0, 1), PROBE)
    assert not is_mask_of_rows(REAL.to("meta"), PROBE)
    assert not is_mask_of_rows(torch.zeros(0, 0).bool(), IMAGES)
