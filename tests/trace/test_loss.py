"""The loss of a forward: named where it is exactly that function of the scores, open everywhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headscope.core.trace.batch.inputs import Sizes
from headscope.core.trace.batch.probe_batch import ProbeBatch
from headscope.core.trace.loss import observed_loss
from headscope.core.trace.record.execution import run_forward
from tests.trace.heads import LABELS, Encoder, H

Loss = Callable[[Tensor, Tensor], Tensor]
GIVEN = {"labels": torch.tensor([0, 1, 2, 0, 1])}


class Trained(nn.Module):
    """A classifier that computes its own loss."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.encoder, self.fc, self.loss = Encoder(), nn.Linear(H, LABELS), loss

    def forward(self, ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.fc(self.encoder(ids)[:, 0])
        return {"loss": self.loss(logits, labels), "logits": logits}

    def without_loss(self, ids: Tensor) -> dict[str, Tensor]:
        return {"logits": self.fc(self.encoder(ids)[:, 0])}


def loss_of(model: Trained, labels: dict[str, Tensor]) -> str:
    probe = ProbeBatch({"ids": torch.arange(10).reshape(5, 2)}, labels, Sizes(5, 2), ())
    return observed_loss(run_forward(model, probe, hint=""))


def one_hot(labels: Tensor) -> Tensor:
    return functional.one_hot(labels, LABELS).float()


def rows_with_labels(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """As DeBERTa does it."""
    at = (y >= 0).nonzero()
    return torch.gather(x, 0, at.expand(at.size(0), x.size(1))), torch.gather(y, 0, at.view(-1))


def focal(x: Tensor, y: Tensor) -> Tensor:
    each = functional.cross_entropy(x, y, reduction="none")
    return ((1 - (-each).exp()) ** 2 * each).mean()


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        (functional.cross_entropy, "CrossEntropyLoss"),
        (lambda x, y: nn.CrossEntropyLoss()(x.view(-1, LABELS), y.view(-1)), "CrossEntropyLoss"),
        (lambda x, y: functional.cross_entropy(x, y, reduction="sum") / 5, "CrossEntropyLoss"),
        (lambda x, y: functional.cross_entropy(x, y, reduction="none").mean(), "CrossEntropyLoss"),
        (lambda x, y: functional.nll_loss(x.log_softmax(-1), y), "CrossEntropyLoss"),
        (lambda x, y: (functional.cross_entropy(x, y) + functional.cross_entropy(x, 2 - y)) / 2, "CrossEntropyLoss"),
        (lambda x, y: functional.cross_entropy(*rows_with_labels(x, y)), "CrossEntropyLoss"),
        (lambda x, y: functional.mse_loss(x, one_hot(y)), "MSELoss"),
        (lambda x, y: functional.binary_cross_entropy_with_logits(x, one_hot(y)), "BCEWithLogitsLoss"),
        (lambda x, y: functional.cross_entropy(x[y > 0], y[y > 0]), "CrossEntropyLoss"),
        (lambda x, y: functional.cross_entropy(x[None].transpose(1, 2), y[None]), "CrossEntropyLoss"),
        (lambda x, y: functional.cross_entropy(x.half().float(), y), "CrossEntropyLoss"),
        (lambda x, y: functional.cross_entropy(x.detach(), y), ""),
        (lambda x, y: functional.cross_entropy(x.data, y), ""),
        (lambda x, y: functional.cross_entropy(x, y).detach(), ""),
        (lambda x, y: functional.nll_loss(x.log_softmax(0), y), ""),
        (lambda x, y: functional.cross_entropy(x.T, torch.zeros(LABELS, dtype=torch.long)), ""),
        (lambda x, y: functional.cross_entropy(x.reshape(LABELS, -1).transpose(0, 1), y), ""),
        (lambda x, y: functional.cross_entropy(x.clamp(-0.1, 0.1), y), ""),
        (lambda x, y: functional.cross_entropy(functional.dropout(x, 0.5), y), ""),
        (lambda x, y: functional.cross_entropy(x[:, :2], y.clamp(max=1)), ""),
        (lambda x, y: functional.cross_entropy(x[torch.randperm(5)], y), ""),
        (lambda x, y: functional.cross_entropy(x[:1], y[:1]), ""),
        (lambda x, y: functional.cross_entropy(x, y) / functional.cross_entropy(x, 2 - y), ""),
        (lambda x, y: functional.mse_loss(x[:, :2], one_hot(y)[:, :2]), ""),
        (functional.nll_loss, ""),
        (focal, ""),
        (lambda x, y: functional.relu(1 - x).mean() + 0.0 * functional.mse_loss(x, one_hot(y)), ""),
        (lambda x, y: functional.cross_entropy(x, y) + functional.mse_loss(x, one_hot(y)), ""),
        (lambda x, y: functional.cross_entropy(x, y) + x.pow(2).mean(), ""),
        (lambda x, y: functional.cross_entropy(x.tanh(), y), ""),
        (lambda x, y: functional.mse_loss(x.softmax(-1), one_hot(y)), ""),
        (lambda x, y: 1 / functional.cross_entropy(x, y), ""),
        (lambda x, y: x.mean(), ""),
    ],
)
def test_a_loss_is_named_where_it_is_that_function_of_the_scores(loss: Loss, name: str) -> None:
    assert loss_of(Trained(loss), GIVEN) == name


@pytest.mark.parametrize(
    ("forward", "labels", "said"),
    [
        # As in a class that calls its parent's forward.
        (lambda self, ids, **more: Trained.forward(self, ids, **more), GIVEN, "CrossEntropyLoss"),  # noqa: PLW0108
        (lambda self, ids, **more: self.without_loss(ids), GIVEN, "none"),
        (lambda self, ids, **more: self.without_loss(ids), {}, ""),
        (lambda self, ids, first_labels=None: self.without_loss(ids), GIVEN, ""),
        (lambda self, ids: self.without_loss(ids), GIVEN, "none"),
    ],
    ids=["forwarded", "unnamed", "unnamed and not given", "other labels", "no labels"],
)
def test_no_loss_is_claimed_only_of_a_forward_that_takes_no_labels(
    forward: Callable[..., Any], labels: dict[str, Tensor], said: str
) -> None:
    model = type("Taking", (Trained,), {"forward": forward})(functional.cross_entropy)
    assert loss_of(model, labels) == said
