"""Parameters that a model puts at the first positions: held against what a change of their values reaches first."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headscope.core.trace.batch.probe_batch import build_probe
from headscope.core.trace.slice.learned_tokens import learned_tokens
from headscope.facts import Task
from scripts.pages.write_atlas import read_atlas
from tests.trace.heads import Made, run
from tests.trace.small import small_model

NAMED = [
    (entry.class_name, entry.model_type, entry.task, part.positions.index, part.positions.parameter)
    for entry in read_atlas().entries
    if entry.head is not None
    for part in entry.head.pooling.parts
    if part.positions.parameter
]


def test_the_classes_that_begin_with_a_parameter() -> None:
    names = {name.removesuffix("ForImageClassification") for name, *_ in NAMED}
    assert names >= {"ViT", "DeiT", "Dinov2", "Dinov2WithRegisters", "ViTMSN", "Cvt", "Pvt"}


@pytest.mark.parametrize(("class_name", "model_type", "task", "index", "parameter"), NAMED)
def test_a_change_of_the_parameter_reaches_that_position_first(
    class_name: str, model_type: str, task: Task, index: int, parameter: str
) -> None:
    model = small_model(class_name, model_type)
    inputs = build_probe(model, task, with_labels=False).inputs
    given: list[Tensor] = []

    def keep(module: nn.Module, arguments: tuple[object, ...]) -> None:
        given.extend(item for item in arguments if isinstance(item, Tensor) and item.dim() == 3)

    for module in model.modules():
        module.register_forward_pre_hook(keep)
    with torch.no_grad():
        model(**inputs)
        before, given[:] = list(given), []
        model.get_parameter(parameter).add_(1)
        model(**inputs)
    changes = ((one - other).abs().amax(dim=(0, 2)).nonzero() for one, other in zip(before, given, strict=True))
    assert next(change for change in changes if len(change)).flatten().tolist() == [index]


def one(model: Any, h: Tensor) -> Tensor:
    """The first parameter for each row."""
    return model.one.expand(len(h), -1, -1)


@pytest.mark.parametrize(
    ("join", "named"),
    [
        (lambda s, h: torch.cat([one(s, h), h], 1) + s.places, ("one",)),
        # Dinov2's positions, if they are interpolated for an image of another size.
        (lambda s, h: torch.cat([one(s, h), h], 1) + torch.cat([s.places[:, :1], s.places[:, 1:] * 2], 1), ("one",)),
        (lambda s, h: torch.cat([one(s, h), s.two.repeat(len(h), 1, 1), h], dim=1), ("one", "two")),
        (
            lambda s, h: torch.cat([torch.cat([s.one, s.two], 1).repeat(len(h), 2, 1), h], 1),
            ("one", "two", "one", "two"),
        ),
        (lambda s, h: torch.cat([torch.cat([one(s, h), h], 1)[:, :1], h[:, 2:]], 1), ("one",)),
        # TimeSformer's layers join what they add, and the token itself again.
        (
            lambda s, h: (
                torch.cat([torch.cat([one(s, h), h], 1)[:, 0].unsqueeze(1), h], 1)
                + torch.cat([s.layer(torch.cat([one(s, h), h], 1)).mean(1, True), h], 1)
            ),
            ("one",),
        ),
        # What is joined there knows nothing of the parameter: a mean of the patches is at that position, too.
        (lambda s, h: torch.cat([one(s, h), h], 1) + torch.cat([h.mean(1, True), h], 1), ()),
        (lambda s, h: torch.cat([h, one(s, h)], 1), ()),  # at the end
        (lambda s, h: torch.cat([h, one(s, h)], 1).flip(1), ()),  # positions are moved, which isn't followed
        (lambda s, h: torch.cat([one(s, h) + s.two, h], 1), ()),  # two parameters
        (lambda s, h: torch.cat([one(s, h) * h[:, :1], h], 1), ()),  # of the inputs, too
        (lambda s, h: h + s.places[:, 1:], ()),  # nothing is joined
        (lambda s, h: torch.cat([one(s, h).expand(-1, 8, -1)[..., :4], h[..., 4:]], -1), ()),  # along the features
    ],
)
def test_what_is_put_there_is_named_and_nothing_else(
    join: Callable[[Any, Tensor], Tensor], named: tuple[str, ...]
) -> None:
    """A classifier of images whose base model makes a sequence in one of several ways."""

    def scores(s: Any, pixel_values: Tensor) -> Tensor:
        h = join(s, s.patches(pixel_values))
        return s.classifier((h + s.layer(h))[:, 0])

    layers = {"patches": nn.Linear(12, 16), "layer": nn.Linear(16, 16), "classifier": nn.Linear(16, 3)}
    lengths = {"one": 1, "two": 1, "places": 9}
    tokens = {name: nn.Parameter(torch.randn(1, length, 16)) for name, length in lengths.items()}
    found = run(Made(scores, **layers, **tokens), {"pixel_values": torch.randn(5, 8, 12)})
    assert learned_tokens(found.head) == named
