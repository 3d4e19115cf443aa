"""Token axes: by sizes that nothing else has, and by running the head on more tokens where sizes collide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from headscope.core.trace.slice.axes import TokenAxes, has_ambiguous_batch
from tests.trace.heads import LABELS, H, Run, Text, image, pixels, run


def axes_of_outputs(found: Run) -> list[tuple[str, tuple[int, ...]]]:
    """The axes of what each operation of the head makes."""
    return [(item.name, found.axes.of(item.outputs[0])) for item in found.head.operations]


def test_axes_are_known_by_size_but_those_of_hidden_states_by_place() -> None:
    hidden = torch.zeros(2, 2, 11)
    axes = TokenAxes({2, 11}, {id(hidden): (1,)})
    assert (axes.of(hidden), axes.first(hidden)) == ((1,), 1)
    other = torch.zeros(5, 11, 8, 2)
    assert (axes.of(other), axes.first(other)) == ((1, 3), 1)
    none = torch.zeros(5, 8)
    assert (axes.of(none), axes.first(none)) == ((), None)
    grown = TokenAxes({11}, {id(hidden): (1,)}, {id(other): (3,)})
    assert (grown.of(hidden), grown.of(other), grown.of(none)) == ((1,), (3,), ())


def test_texts_have_the_length_of_the_probe_flat_or_not() -> None:
    found = run(Text(lambda s, h, m: s.fc(s.dense(h.reshape(-1, H)).view(h.shape)[:, 0])))
    assert found.axes.sizes == {11, 55}
    assert found.axes.grown is None
    assert found.axes.of(found.head.hidden[0]) == (1,)
    assert axes_of_outputs(found) == [
        ("reshape", (0,)), ("linear", (0,)), ("view", (1,)), ("__getitem__", ()), ("linear", ()),
    ]  # fmt: skip


def test_patches_of_a_number_of_their_own_are_known_by_it() -> None:
    found = run(image(lambda s, h: s.fc(torch.relu(h).mean(1))), pixels(4, 4))
    assert found.axes.grown is None
    assert found.axes.sizes == {16}
    assert axes_of_outputs(found) == [("relu", (1,)), ("mean", ()), ("linear", ())]
    found = run(image(lambda s, h: s.fc(torch.relu(h).mean((2, 3))), as_tokens=False), pixels(4, 6))
    assert found.axes.sizes == {4, 6, 24}
    assert axes_of_outputs(found) == [("relu", (2, 3)), ("mean", ()), ("linear", ())]


COLLISIONS = [(2, 4), (1, 5), (1, 3), (1, 1)]
"""As many patches as features, as rows, as classes, and a single one."""


@pytest.mark.parametrize("size", COLLISIONS)
@pytest.mark.parametrize(
    ("pool", "as_tokens", "axes"),
    [
        (lambda h: torch.relu(h).mean(1), True, [("relu", (1,))]),
        (lambda h: torch.relu(h).mean((2, 3)), False, [("relu", (2, 3))]),
        (lambda h: h.flatten(2).transpose(1, 2).mean(1), False, [("flatten", (2,)), ("transpose", (1,))]),
    ],
    ids=["tokens", "both axes of a map", "a flat map"],
)
def test_a_number_of_patches_that_something_else_has_is_found_by_growing(
    pool: Callable[[Tensor], Tensor], as_tokens: bool, axes: list[tuple[str, tuple[int, ...]]], size: tuple[int, int]
) -> None:
    found = run(image(lambda s, h: s.fc(pool(h)), as_tokens=as_tokens), pixels(*size))
    assert found.axes.grown is not None
    assert axes_of_outputs(found) == [*axes, ("mean", ()), ("linear", ())]


@pytest.mark.parametrize("size", COLLISIONS)
def test_tokens_beside_their_features_are_no_axis_of_tokens(size: tuple[int, int]) -> None:
    width = H * size[0] * size[1]
    found = run(image(lambda s, h: s.fc(h.flatten(1)), width=width), pixels(*size))
    assert axes_of_outputs(found) == [("flatten", ()), ("linear", ())]
    found = run(image(lambda s, h: s.fc(torch.relu(h).reshape(-1, H)), width=H), pixels(*size))
    assert axes_of_outputs(found)[1:] == [("reshape", (0,)), ("linear", (0,))]


def test_a_stride_does_not_hide_the_axis() -> None:
    found = run(image(lambda s, h: s.fc(h[:, ::2].mean(1))), pixels(2, 4))
    assert axes_of_outputs(found) == [("__getitem__", (1,)), ("mean", ()), ("linear", ())]


def written(s: Any, h: Tensor) -> Tensor:
    changed = h.clone()
    changed[:, 0] = 0
    return s.fc(changed.max(1).values)


def test_writes_and_several_outputs_grow_too() -> None:
    found = run(image(written), pixels(2, 4))
    assert axes_of_outputs(found) == [("clone", (1,)), ("__setitem__", (1,)), ("max", ()), ("linear", ())]
    assert found.axes.grown is not None


def test_a_shape_written_into_the_head_leaves_the_sizes() -> None:
    found = run(image(lambda s, h: s.fc(h.view(-1, 8, H).mean(1))), pixels(2, 4))
    assert found.axes.grown is None
    assert found.axes.of(found.head.hidden[0]) == (1,)


@pytest.mark.parametrize(("size", "is_ambiguous"), [((1, 5), True), ((4, 4), False)])
def test_an_axis_of_the_batchs_size_is_noticed(size: tuple[int, int], is_ambiguous: bool) -> None:
    module = image(lambda s, h: s.fc(h.mean(1)))
    found = run(module, pixels(*size))
    assert found.execution.probe.batch == 5
    assert has_ambiguous_batch(found.head) is is_ambiguous


def test_scores_of_the_batchs_size_are_noticed_too() -> None:
    module = image(lambda s, h: torch.cat([s.fc(h.mean(1)), s.fc(h[:, 0])[:, :2]], -1))
    found = run(module, pixels(4, 4))
    assert found.execution.logits[0].shape == (5, LABELS + 2)
    assert has_ambiguous_batch(found.head)
