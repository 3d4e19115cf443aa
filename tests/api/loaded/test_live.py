"""People's own modules: the heads they write are told for what they are, and nothing of theirs is changed."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BertForSequenceClassification, BertModel

import headscope
from headscope.core.trace.record import execution
from headscope.errors import Unsupported, UsageError
from headscope.facts import CheckpointKind, PoolingKind
from tests.families import FAMILIES

BERT = FAMILIES["bert"]
H, LABELS = BERT.config["hidden_size"], 3
EXAMPLES = {"input_ids": torch.randint(3, 40, (2, 6)), "attention_mask": torch.ones(2, 6, dtype=torch.long)}
Pool = Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]


def encoder() -> BertModel:
    torch.manual_seed(0)
    return BertModel(BERT.build_config(num_hidden_layers=4), add_pooling_layer=False)


class Custom(nn.Module):
    """An encoder, a pooling written by hand, and a linear classifier."""

    def __init__(self, pool: Pool, width: int = H) -> None:
        super().__init__()
        self.encoder = encoder()
        self.attention = nn.Linear(H, 1)
        self.dropouts = nn.ModuleList(nn.Dropout(0.1 * number) for number in range(1, 4))
        self.hidden = nn.Linear(H, H)
        self.classifier = nn.Linear(width, LABELS)
        self.pool = pool

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        out = self.encoder(input_ids, attention_mask=attention_mask, output_hidden_states=True)
        return self.classifier(self.pool(self, out.hidden_states, attention_mask))


def masked_mean(self: nn.Module, hidden: tuple[Tensor, ...], mask: Tensor) -> Tensor:
    weights = mask.unsqueeze(-1).float()
    return (hidden[-1] * weights).sum(1) / weights.sum(1).clamp(min=1e-9)


def plain_mean(self: nn.Module, hidden: tuple[Tensor, ...], mask: Tensor) -> Tensor:
    return hidden[-1].mean(dim=1)


def last_four(self: nn.Module, hidden: tuple[Tensor, ...], mask: Tensor) -> Tensor:
    return torch.cat([layer[:, 0] for layer in hidden[-4:]], dim=-1)


def attention(self: nn.Module, hidden: tuple[Tensor, ...], mask: Tensor) -> Tensor:
    scores = self.attention(hidden[-1]).masked_fill(mask.unsqueeze(-1) == 0, -1e9)
    return (hidden[-1] * scores.softmax(dim=1)).sum(dim=1)


def residual(self: nn.Module, hidden: tuple[Tensor, ...], mask: Tensor) -> Tensor:
    first = hidden[-1][:, 0]
    return first + torch.relu(self.hidden(first))


def many_dropouts(self: nn.Module, hidden: tuple[Tensor, ...], mask: Tensor) -> Tensor:
    return torch.stack([self.hidden(dropout(hidden[-1][:, 0])) for dropout in self.dropouts]).mean(0)


HEADS: list[tuple[Pool, int, PoolingKind]] = [
    (masked_mean, H, PoolingKind.MASKED_MEAN),
    (plain_mean, H, PoolingKind.MEAN),
    (last_four, 4 * H, PoolingKind.CONCAT),
    (attention, H, PoolingKind.WEIGHTED),
    (residual, H, PoolingKind.FIRST_TOKEN),
    (many_dropouts, H, PoolingKind.FIRST_TOKEN),
]


@pytest.mark.parametrize(("pool", "width", "kind"), HEADS, ids=[row[0].__name__ for row in HEADS])
def test_a_head_written_by_hand_is_told_for_what_it_is(pool: Pool, width: int, kind: PoolingKind) -> None:
    report = headscope.inspect(Custom(pool, width), example_inputs=EXAMPLES, prove=True)
    assert report.head.pooling.kind is kind, report.head.pooling
    assert report.head.stages[-1].output_shape == ("batch", LABELS)
    assert report.head.verification.agrees is not False, report.head.verification


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = encoder()
        self.classifier = nn.Linear(H, LABELS)

    def forward(self, one: Tensor, other: Tensor) -> dict[str, Tensor]:
        u, v = (self.encoder(ids).last_hidden_state[:, 0] for ids in (one, other))
        return {"logits": self.classifier((u - v).abs())}


def test_two_towers_are_told() -> None:
    ids = EXAMPLES["input_ids"]
    report = headscope.inspect(Towers(), example_inputs=(ids, ids.flip(0)), labels=("a", "b", "c"))
    assert report.head.pooling.kind is PoolingKind.CONCAT
    assert report.head.pooling.rule.startswith("subtracted")
    assert report.model.labels == ("a", "b", "c")


def test_a_model_of_transformers_needs_no_examples_and_is_not_changed() -> None:
    model: Any = BERT.build(BERT.classifier, num_labels=LABELS).train()
    model.bert.encoder.eval()
    model.classifier.weight.grad = torch.ones_like(model.classifier.weight)
    before, state = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()
    report = headscope.inspect(model, prove=True)
    assert report.checkpoint.kind is CheckpointKind.MEMORY
    assert report.head.pooling.kind is PoolingKind.FIRST_TOKEN
    assert (model.training, model.bert.encoder.training) == (True, False)
    assert torch.equal(torch.get_rng_state(), state)
    assert bool((model.classifier.weight.grad == 1).all())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert "in memory" in str(report)


def test_what_cannot_be_run_says_what_was_tried() -> None:
    with pytest.raises(UsageError, match="inputs"):
        headscope.inspect(Custom(plain_mean))
    with pytest.raises(Unsupported, match=r"wrong \[2, 3\]; .* wrong \[\d+, 3\]"):
        headscope.inspect(Custom(plain_mean), example_inputs={"wrong": torch.zeros(2, 3)})
    with pytest.raises(Unsupported, match=r"input_ids \[2, 4\]; "):
        headscope.inspect(Masked(), example_inputs=torch.zeros(2, 4, dtype=torch.long))
    with pytest.raises(Unsupported, match="attention_mask"):
        headscope.inspect(Masked(), example_inputs=EXAMPLES["input_ids"])
    with pytest.raises(UsageError, match="no tensor"):
        headscope.inspect(Custom(plain_mean), example_inputs={})


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.fc = nn.Embedding(50, H), nn.Linear(H, LABELS)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        mask = attention_mask.unsqueeze(-1)  # type: ignore[union-attr]
        return self.fc((self.embedding(input_ids) * mask).sum(1) / mask.sum(1))


class Silent(Custom):
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        return {"answer": "none"}


def test_a_module_without_scores_is_said() -> None:
    with pytest.raises(Unsupported, match="scores"):
        headscope.inspect(Silent(plain_mean), example_inputs=EXAMPLES)


def _with_own_hook(model: Any) -> None:
    model.classifier.register_forward_hook(lambda module, given, found: found * 2)


def _with_wrapped_hook(model: Any) -> None:
    """A hook that is called like a function of Transformers."""

    @functools.wraps(BertForSequenceClassification.forward)
    def hook(module: nn.Module, given: Any, found: Tensor) -> Tensor:
        return found * 2

    model.classifier.register_forward_hook(hook)


def _with_own_forward(model: Any) -> None:
    model.classifier.forward = functools.partial(type(model.classifier).forward, model.classifier)


def _with_own_module(model: Any) -> None:
    class Doubled(nn.Linear):
        def forward(self, given: Tensor) -> Tensor:
            return super().forward(given) * 2

    model.classifier = Doubled(H, LABELS)


@pytest.mark.parametrize(
    ("change", "is_by_shape"),
    [
        (None, True),
        (_with_own_hook, False),
        (_with_own_forward, False),
        (_with_own_module, False),
        (_with_wrapped_hook, False),
    ],
)
def test_only_known_code_is_traced_without_values(
    change: Callable[[Any], None] | None, is_by_shape: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that eleven large images take no memory; the other models run as they are."""
    recorded, record = list[bool](), execution._record_forward

    def note(model: nn.Module, *given: Any) -> Any:
        recorded.append(execution.is_shape_only(model))
        return record(model, *given)

    monkeypatch.setattr(execution, "_record_forward", note)
    model: Any = BERT.build(BERT.classifier, num_labels=LABELS)
    if change is not None:
        change(model)
    report = headscope.inspect(model)
    assert report.head is not None and report.head.pooling.kind is PoolingKind.FIRST_TOKEN
    assert recorded[0] is is_by_shape  # later runs may be of a copy


def test_a_forward_that_only_fails_with_values_fails() -> None:
    model: Any = BERT.build(BERT.classifier, pad_token_id=49)
    model.bert.embeddings.word_embeddings = nn.Embedding(49, H)  # without a row for the pad token
    with pytest.raises(Unsupported, match="index out of range"):
        headscope.inspect(model)
