"""Where a head begins: at the hidden states that the base model hands over, or where the tokens disappear."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headscope.core.trace.batch.inputs import ProbeRow, Sizes
from headscope.core.trace.batch.probe_batch import ProbeBatch
from headscope.core.trace.record.execution import Execution
from headscope.core.trace.record.recorder import Graph
from headscope.core.trace.slice.head_slice import HeadSlice, has_token_axis, last_hidden_state, locate_head
from tests.trace.heads import EXAMPLES, LABELS, Deep, Encoder, H, Run, Text, Towers, run


def names(head: HeadSlice) -> list[str]:
    return [operation.name for operation in head.operations]


def makers(found: Run) -> list[str]:
    """The operations that made the hidden states."""
    graph = found.execution.graph
    return [graph.operations[graph.producer(tensor)].name for tensor in found.head.hidden]


def test_a_head_begins_at_what_its_encoder_returns() -> None:
    found = run(Text(lambda s, h, m: s.fc(torch.tanh(s.dense(h[:, 0])))))
    assert names(found.head) == ["__getitem__", "linear", "tanh", "linear"]
    (hidden,) = found.head.hidden
    assert hidden is found.execution.graph.returned[found.execution.model.encoder]
    assert found.head.base is found.execution.model.encoder
    outputs = {id(output) for operation in found.head.operations for output in operation.outputs}
    assert found.head.derived == outputs | {id(hidden)}
    assert found.head.live == {
        "encoder.embed.weight", "encoder.mix.weight", "encoder.mix.bias", "dense.weight", "dense.bias", "fc.weight",
        "fc.bias",
    }  # fmt: skip


def test_what_is_computed_beside_the_scores_is_no_part_of_the_head() -> None:
    def head(s: Text, h: Tensor, m: Tensor) -> Tensor:
        s.attention(h).softmax(1)
        m.sum(1)
        return s.fc(h[:, 0])

    found = run(Text(head))
    assert names(found.head) == ["__getitem__", "linear"]
    assert "attention.weight" not in found.head.live


def test_masks_are_fed_in_from_beside() -> None:
    found = run(Text(lambda s, h, m: s.fc((h * m.unsqueeze(-1)).sum(1) / m.sum(1, keepdim=True))))
    assert names(found.head) == ["mul", "sum", "div", "linear"]


class Pooled(nn.Module):
    """An encoder that returns what `kind` says: its states with a pooled vector, or the pooled vector alone."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.embed, self.mix, self.pool = nn.Embedding(40, H), nn.Linear(H, H), nn.Linear(H, H)
        self.kind = kind

    def forward(self, ids: Tensor) -> Any:
        hidden = torch.relu(self.mix(self.embed(ids)))
        pooled = torch.tanh(self.pool(hidden[:, 0]))
        return {
            "mapping": {"pooler_output": pooled, "last_hidden_state": hidden},
            "tuple": (hidden, pooled),
            "list": [hidden, pooled],
            "alone": pooled,
            "unnamed": {"pooled": pooled, "states": hidden},
            "wrong order": (pooled, hidden),
        }[self.kind]


class OnPooled(nn.Module):
    def __init__(self, kind: str, use: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.encoder, self.fc, self.use = Pooled(kind), nn.Linear(H, LABELS), use

    def forward(self, ids: Tensor) -> Tensor:
        return self.fc(self.use(self.encoder(ids)))


@pytest.mark.parametrize(
    ("kind", "use"),
    [
        ("mapping", lambda out: out["pooler_output"]),
        ("tuple", lambda out: out[1]),
        ("list", lambda out: out[1]),
        ("alone", lambda out: out),
        ("unnamed", lambda out: out["pooled"]),
        ("wrong order", lambda out: out[0]),
    ],
)
def test_a_pooler_inside_the_base_model_belongs_to_the_head(kind: str, use: Callable[[Any], Tensor]) -> None:
    found = run(OnPooled(kind, use), {"ids": EXAMPLES["ids"]})
    assert names(found.head) == ["__getitem__", "linear", "tanh", "linear"]
    assert makers(found) == ["relu"]
    last = last_hidden_state(found.execution, found.head.base)
    assert (last is found.head.hidden[0]) is (kind in {"mapping", "tuple", "list"})


class Bare(nn.Module):
    """No module is an encoder: embeddings, an activation and a head written beside each other."""

    def __init__(self, head: Callable[[Bare, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.embed, self.score, self.dense = nn.Embedding(40, H), nn.Linear(H, LABELS), nn.Linear(H, H)
        self.gain = nn.Parameter(torch.ones(H))
        self.head = head

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.head(self, torch.tanh(self.embed(ids)), attention_mask)


@pytest.mark.parametrize(
    ("head", "operations", "maker"),
    [
        (lambda s, h, m: s.score(h[:, 0]), ["__getitem__", "linear"], "tanh"),
        (lambda s, h, m: s.score(h.mean(1)), ["mean", "linear"], "tanh"),
        (lambda s, h, m: s.score((h * m.unsqueeze(-1)).sum(1)), ["mul", "sum", "linear"], "tanh"),
        (lambda s, h, m: s.score(h.masked_fill(m.unsqueeze(-1) == 0, 0).sum(1)), ["masked_fill", "sum", "linear"],
         "tanh"),
        (lambda s, h, m: s.score(torch.where(m.unsqueeze(-1) > 0, h, 0.0).sum(1)), ["where", "sum", "linear"], "tanh"),
        (lambda s, h, m: s.score(((h * m.unsqueeze(-1)) * m.unsqueeze(-1)).sum(1)), ["mul", "mul", "sum", "linear"],
         "tanh"),
        (lambda s, h, m: s.score((h * s.gain).sum(1)), ["sum", "linear"], "mul"),
        (lambda s, h, m: s.score((h * s.dense(h)).sum(1)), ["sum", "linear"], "mul"),
        (lambda s, h, m: s.score((h * s.dense(h)[..., :1]).sum(1)), ["sum", "linear"], "mul"),
        (lambda s, h, m: s.score(torch.where(m.unsqueeze(-1) > 0, h, s.dense(h[:, :1])).sum(1)), ["sum", "linear"],
         "where"),
        (lambda s, h, m: s.score(h.masked_fill(s.dense(h) > 0, 0).sum(1)), ["sum", "linear"], "masked_fill"),
        (lambda s, h, m: s.score((h * 2).sum(1)), ["mul", "sum", "linear"], "tanh"),
        (lambda s, h, m: s.score((h * h.detach()).sum(1)), ["sum", "linear"], "mul"),
        (lambda s, h, m: s.score((h[:, :1] * m.unsqueeze(-1)).sum(1)), ["sum", "linear"], "mul"),
        (lambda s, h, m: s.score(s.dense(h)[:, 0] + s.gain), ["__getitem__", "add", "linear"], "linear"),
        (lambda s, h, m: s.score((h + 1).sum(1)), ["sum", "linear"], "add"),
        (lambda s, h, m: s.score(h).mean(1), ["linear", "mean"], "tanh"),
        (lambda s, h, m: s.score(h), ["linear"], "tanh"),
        (lambda s, h, m: s.score(s.dense(h)), ["linear"], "linear"),
        (lambda s, h, m: s.score(h) * 2, ["linear", "mul"], "tanh"),
        (lambda s, h, m: torch.add(s.score.bias, functional.linear(h, s.score.weight)), ["linear", "add"], "tanh"),
        (lambda s, h, m: s.score((h * m.float().unsqueeze(-1)).sum(1) / m.float().sum(1, keepdim=True)),
         ["mul", "sum", "div", "linear"], "tanh"),
    ],
)  # fmt: skip
def test_without_a_base_model_a_head_begins_where_the_tokens_disappear(
    head: Callable[[Bare, Tensor, Tensor], Tensor], operations: list[str], maker: str
) -> None:
    found = run(Bare(head))
    assert found.head.base is None
    assert names(found.head) == operations
    assert makers(found) == [maker]


def test_every_layer_that_is_read_is_a_beginning() -> None:
    found = run(Deep(lambda s, h, m: s.fc(torch.cat([h[-1][:, 0], h[-3][:, 0]], -1)), 2 * H))
    states = found.execution.graph.returned[found.head.base]["hidden_states"]
    assert {id(tensor) for tensor in found.head.hidden} == {id(states[-1]), id(states[-3])}
    assert names(found.head) == ["__getitem__", "__getitem__", "cat", "linear"]


def test_a_base_model_that_runs_twice_is_read_twice() -> None:
    examples = {"ids": EXAMPLES["ids"], "other": EXAMPLES["ids"] + 1}
    found = run(Towers(lambda s, a, b: s.fc(a[:, 0] - b[:, 0])), examples)
    assert len(found.head.hidden) == 2
    assert names(found.head) == ["__getitem__", "__getitem__", "sub", "linear"]


def test_an_integer_or_a_matrix_is_no_hidden_state() -> None:
    def last(returned: Any) -> Tensor | None:
        base, graph = nn.Linear(1, 1), Graph()
        graph.returned[base] = returned
        return last_hidden_state(_execution(graph), base)

    states = torch.zeros(BATCH, LENGTH, H)
    assert last(states) is states
    assert last([states]) is states
    assert last(()) is None
    assert last({"last_hidden_state": states.long()}) is None
    assert last({"other": states}) is None
    assert last(torch.zeros(BATCH, H)) is None
    assert last(torch.zeros(4, 1, H)) is None
    single = torch.zeros(BATCH, 1, H)
    assert last(single) is single
    assert last_hidden_state(_execution(Graph()), None) is None


BATCH, LENGTH = 5, 11


def _execution(graph: Graph, length: int = LENGTH) -> Execution:
    rows = (ProbeRow(0, 10, 8),) * BATCH if length else ()
    return Execution(nn.Module(), ProbeBatch({}, {}, Sizes(BATCH, length), rows), graph, (), None)


@pytest.mark.parametrize(
    ("shape", "of_text", "of_image"),
    [
        ((BATCH, LENGTH, H), True, True),
        ((BATCH * LENGTH, H), True, False),
        ((BATCH, LENGTH), True, False),
        ((BATCH, H), False, False),
        ((BATCH, 1, H), False, False),
        ((BATCH, H, 1, 1), False, False),
        ((BATCH, H, 7, 7), True, True),
        ((BATCH, 4, H), True, True),
        ((BATCH, 2, H), True, True),
    ],
)
def test_a_token_axis_is_one_more_than_batch_and_features(
    shape: tuple[int, ...], of_text: bool, of_image: bool
) -> None:
    assert has_token_axis(_execution(Graph()), torch.zeros(shape)) is of_text
    assert has_token_axis(_execution(Graph(), 0), torch.zeros(shape)) is of_image
    assert not has_token_axis(_execution(Graph()), torch.zeros(shape, dtype=torch.long))


def test_the_slice_does_not_depend_on_a_base_model_that_is_given() -> None:
    found = run(Text(lambda s, h, m: s.fc(h[:, 0])))
    alone = locate_head(found.execution, None)
    assert names(alone) == ["__getitem__", "linear"]
    assert alone.live == found.head.live


class Embedded(nn.Module):
    """The first operation of all makes the hidden states."""

    def __init__(self, use: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.embed, self.score, self.use = nn.Embedding(40, H), nn.Linear(H, LABELS), use

    def forward(self, ids: Tensor) -> Tensor:
        return self.score(self.use(self.embed(ids)))


def test_the_first_operation_may_make_the_hidden_states() -> None:
    for use, first in ((lambda h: h.mean(1), "mean"), (lambda h: h[:, 0], "__getitem__")):
        found = run(Embedded(use), {"ids": EXAMPLES["ids"]})
        assert names(found.head) == [first, "linear"]
        assert makers(found) == ["embedding"]
        assert found.head.live == {"embed.weight", "score.weight", "score.bias"}


@pytest.mark.parametrize("width", [H, LABELS])
def test_inputs_that_no_operation_made_are_no_hidden_states(width: int) -> None:
    class Scores(nn.Module):
        """Features of a caller, scored; they may be as many as there are classes."""

        def __init__(self) -> None:
            super().__init__()
            self.score = nn.Linear(width, LABELS)

        def forward(self, features: Tensor) -> Tensor:
            return self.score(features).mean(1)

    found = run(Scores(), {"features": torch.randn(2, 6, width)})
    assert found.head.hidden == ()
    assert found.head.operations == ()
    assert found.head.live == {"score.weight", "score.bias"}


class Shared(nn.Module):
    """A weight with two names, a persistent buffer and one that is made again at every start."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.one, self.other = nn.Linear(H, LABELS, bias=False), nn.Linear(H, LABELS, bias=False)
        self.other.weight = self.one.weight
        self.register_buffer("kept", torch.ones(LABELS))
        self.register_buffer("made", torch.ones(LABELS), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.other(self.encoder(ids)[:, 0]) * self.kept * self.made


def test_what_lives_has_its_first_name_and_what_is_not_saved_has_none() -> None:
    head = run(Shared(), {"ids": EXAMPLES["ids"]}).head
    assert {name for name in head.live if not name.startswith("encoder.")} == {"one.weight", "kept"}


def test_embeddings_may_be_scores_already() -> None:
    class Votes(nn.Module):
        """Each token votes for the classes."""

        def __init__(self) -> None:
            super().__init__()
            self.votes = nn.Embedding(40, LABELS)

        def forward(self, ids: Tensor) -> Tensor:
            return self.votes(ids).mean(1)

    found = run(Votes(), {"ids": EXAMPLES["ids"]})
    assert (names(found.head), makers(found)) == (["mean"], ["embedding"])


class Beyond(nn.Module):
    """An encoder that goes on after its last hidden states, and hands its mask over."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.pool = nn.Embedding(40, H), nn.Linear(H, H), nn.Linear(H, H)

    def forward(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        hidden = torch.relu(self.mix(self.embed(ids)))
        kept = mask.float().unsqueeze(-1)
        return {"last_hidden_state": hidden, "pooled": torch.tanh(self.pool(hidden)).mean(1), "mask": kept}


class OnBeyond(nn.Module):
    def __init__(self, use: Callable[[dict[str, Tensor]], Tensor]) -> None:
        super().__init__()
        self.encoder, self.fc, self.use = Beyond(), nn.Linear(H, LABELS), use

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.fc(self.use(self.encoder(ids, attention_mask)))


@pytest.mark.parametrize(
    ("use", "operations"),
    [
        (lambda out: out["pooled"], ["linear", "tanh", "mean", "linear"]),
        (lambda out: out["pooled"] + out["last_hidden_state"][:, 0], ["linear", "tanh", "mean", "__getitem__", "add",
                                                                      "linear"]),
        (lambda out: (out["last_hidden_state"] * out["mask"]).sum(1), ["mul", "sum", "linear"]),
        (lambda out: out["pooled"] * out["mask"].mean(1), ["linear", "tanh", "mean", "mul", "linear"]),
    ],
)  # fmt: skip
def test_what_the_base_model_makes_of_its_last_hidden_states_belongs_to_the_head(
    use: Callable[[dict[str, Tensor]], Tensor], operations: list[str]
) -> None:
    """A mask that it hands over is no hidden state, though it has an entry per token."""
    found = run(OnBeyond(use))
    assert names(found.head) == operations
    assert makers(found) == ["relu"]


def test_a_base_model_that_returns_no_hidden_states_of_its_own_is_left_at_its_last_tensor_of_tokens() -> None:
    class Silent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.mix = nn.Embedding(40, H), nn.Linear(H, H)

        def forward(self, ids: Tensor) -> dict[str, Tensor]:
            return {"tokens": torch.relu(self.mix(self.embed(ids)))}

    class OnSilent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.fc = Silent(), nn.Linear(H, LABELS)

        def forward(self, ids: Tensor) -> Tensor:
            return self.fc(torch.tanh(self.encoder(ids)["tokens"])[:, 0])

    found = run(OnSilent(), {"ids": EXAMPLES["ids"]})
    assert last_hidden_state(found.execution, found.head.base) is None
    assert names(found.head) == ["tanh", "__getitem__", "linear"]
    assert makers(found) == ["relu"]
