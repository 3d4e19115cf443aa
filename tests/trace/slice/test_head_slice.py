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
from headscope.core.trace.slice.head_slice import (
    HeadSlice,
    has_token_axis,
    last_hidden_state,
    locate_head,
    read_sources,
)
from tests.trace.heads import (
    EXAMPLES,
    IDS,
    LABELS,
    PAIRS,
    Encoder,
    H,
    Layers,
    Made,
    Run,
    Text,
    deep,
    first,
    run,
    towers,
)


def names(head: HeadSlice) -> list[str]:
    return [operation.name for operation in head.operations]


def makers(found: Run) -> list[str]:
    """The operations that made the hidden states; "" for one that none made."""
    made = (found.execution.graph.maker(tensor) for tensor in found.head.hidden)
    return ["" if operation is None else operation.name for operation in made]


def test_a_head_begins_at_what_its_encoder_returns() -> None:
    found = run(Text(lambda s, h, m: s.fc(torch.tanh(s.dense(h[:, 0])))))
    assert names(found.head) == ["__getitem__", "linear", "tanh", "linear"]
    (hidden,) = found.head.hidden
    assert hidden is found.execution.graph.returned[found.execution.model.encoder]
    assert found.head.base is found.execution.model.encoder
    outputs = {id(output) for operation in found.head.operations for output in operation.outputs}
    assert found.head.derived == outputs | {id(hidden)}
    layers = {f"{layer}.{part}" for layer in ("encoder.mix", "dense", "fc") for part in ("weight", "bias")}
    assert found.head.live == layers | {"encoder.embed.weight"}


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


class Pooled(Encoder):
    """An encoder that returns what `kind` says: its states with a pooled vector, or the pooled vector alone."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.pool, self.kind = nn.Linear(H, H), kind

    def forward(self, ids: Tensor) -> Any:
        hidden = torch.relu(super().forward(ids))
        pooled = torch.tanh(self.pool(hidden[:, 0]))
        return {
            "mapping": {"pooler_output": pooled, "last_hidden_state": hidden},
            "tuple": (hidden, pooled),
            "list": [hidden, pooled],
            "alone": pooled,
            "unnamed": {"pooled": pooled, "states": hidden},
            "wrong order": (pooled, hidden),
        }[self.kind]


def on(encoder: nn.Module, use: Callable[[Any], Tensor]) -> Made:
    """A linear layer on what is made of the results of an encoder."""
    return Made(lambda s, **inputs: s.fc(use(s.encoder(*inputs.values()))), encoder=encoder, fc=nn.Linear(H, LABELS))


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
    found = run(on(Pooled(kind), use), IDS)
    assert names(found.head) == ["__getitem__", "linear", "tanh", "linear"]
    assert makers(found) == ["relu"]
    last = last_hidden_state(found.execution, found.head.base)
    assert (last is found.head.hidden[0]) is (kind in {"mapping", "tuple", "list"})


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
        # scores that are some columns of a language model's last layer
        (lambda s, h, m: s.words(h)[:, -1][:, [3, 5]], ["linear", "__getitem__", "__getitem__"], "tanh"),
        (lambda s, h, m: s.words(h).softmax(-1)[:, -1][:, [3, 5]],
         ["linear", "softmax", "__getitem__", "__getitem__"], "tanh"),
        (lambda s, h, m: s.words(h)[:, -1][:, [3, 5]] - s.dense(h)[:, 0].index_select(1, s.pair) * m[:, :1],
         ["linear", "__getitem__", "__getitem__", "linear", "__getitem__", "index_select", "mul", "sub"], "tanh"),
        (lambda s, h, m: s.words(h)[:, -1][:, [3, 5]] - s.words(h)[:, -1].logsumexp(-1, keepdim=True),
         ["linear", "__getitem__", "__getitem__", "linear", "__getitem__", "logsumexp", "sub"], "tanh"),
        (lambda s, h, m: torch.index_select(
            input=functional.linear(input=h, weight=s.words.weight)[:, -1], dim=1, index=s.pair),
         ["linear", "__getitem__", "index_select"], "tanh"),
    ],
)  # fmt: skip
def test_without_a_base_model_a_head_begins_where_the_tokens_disappear(
    head: Callable[[Any, Tensor, Tensor], Tensor], operations: list[str], maker: str
) -> None:
    """No module is an encoder: embeddings, an activation and a head are written beside each other."""
    bare = Made(
        lambda s, ids, attention_mask: head(s, torch.tanh(s.embed(ids)), attention_mask),
        embed=nn.Embedding(40, H), score=nn.Linear(H, LABELS), dense=nn.Linear(H, H), gain=nn.Parameter(torch.ones(H)),
        words=nn.Linear(H, 40), pair=torch.tensor([1, 2]),
    )  # fmt: skip
    found = run(bare)
    assert found.head.base is None
    assert names(found.head) == operations
    assert makers(found) == [maker]


def test_every_layer_that_is_read_is_a_beginning() -> None:
    found = run(deep(lambda s, h, m: s.fc(torch.cat([h[-1][:, 0], h[-3][:, 0]], -1)), 2 * H))
    states = found.execution.graph.returned[found.head.base]["hidden_states"]
    assert {id(tensor) for tensor in found.head.hidden} == {id(states[-1]), id(states[-3])}
    assert names(found.head) == ["__getitem__", "__getitem__", "cat", "linear"]


def test_a_base_model_that_runs_twice_is_read_twice() -> None:
    found = run(towers(lambda s, a, b: s.fc(a[:, 0] - b[:, 0])), PAIRS)
    assert len(found.head.hidden) == 2
    assert names(found.head) == ["__getitem__", "__getitem__", "sub", "linear"]


class Returned(Layers):
    """An encoder that returns its layers in another form."""

    def __init__(self, form: Callable[[tuple[Tensor, ...]], Any]) -> None:
        super().__init__()
        self.form = form

    def forward(self, ids: Tensor) -> Any:
        return self.form(super().forward(ids)["hidden_states"])


@pytest.mark.parametrize(
    ("module", "examples", "texts"),
    [
        (deep(lambda s, h, m: s.fc(h[-1][:, 0] + h[-3][:, 0])), EXAMPLES, ["h[-3]", "h[-1]"]),
        (towers(lambda s, a, b: s.fc(b[:, 0] - a[:, 0])), PAIRS, ["h1", "h2"]),
        # `return_dict=False`
        (on(Returned(lambda states: (states[-1], states)), lambda out: out[1][-2][:, 0]), IDS, ["h[-2]"]),
        # the layers of an encoder and of a decoder: two are the last but one
        (on(Returned(lambda states: {"encoder": states[:2], "decoder": states[2:]}),
            lambda out: out["encoder"][-2][:, 0] + out["decoder"][-2][:, 0]), IDS, ["h1", "h2"]),
        # what stands beside another thing is no layer
        (on(Returned(lambda states: {"states": (states[-2], states[-1][:, 0])}), lambda out: out["states"][0][:, 0]),
         IDS, ["h"]),
        (on(Returned(lambda states: {"states": (states[-2], None)}), lambda out: out["states"][0][:, 0]), IDS, ["h"]),
    ],
)  # fmt: skip
def test_hidden_states_are_named_by_their_layers_and_numbered_where_layers_do_not_tell_them_apart(
    module: nn.Module, examples: dict[str, Tensor], texts: list[str]
) -> None:
    found = run(module, examples)
    named = zip(found.head.hidden, read_sources(found.head), strict=True)
    in_order = sorted(named, key=lambda pair: found.execution.graph.producer(pair[0]))
    assert [source.text for _, source in in_order] == texts


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
    found = run(Text(first))
    alone = locate_head(found.execution, None)
    assert names(alone) == ["__getitem__", "linear"]
    assert alone.live == found.head.live


def test_the_first_operation_may_make_the_hidden_states() -> None:
    for use, begins in ((lambda s, ids: s.score(s.embed(ids).mean(1)), "mean"),
                        (lambda s, ids: s.score(s.embed(ids)[:, 0]), "__getitem__")):  # fmt: skip
        found = run(Made(use, embed=nn.Embedding(40, H), score=nn.Linear(H, LABELS)), IDS)
        assert names(found.head) == [begins, "linear"]
        assert makers(found) == ["embedding"]
        assert found.head.live == {"embed.weight", "score.weight", "score.bias"}


@pytest.mark.parametrize("width", [H, LABELS])
def test_inputs_that_no_operation_made_are_no_hidden_states(width: int) -> None:
    """Features of a caller, scored; they may be as many as there are classes."""
    model = Made(lambda s, features: s.score(features).mean(1), score=nn.Linear(width, LABELS))
    found = run(model, {"features": torch.randn(2, 6, width)})
    assert found.head.hidden == ()
    assert found.head.operations == ()
    assert found.head.live == {"score.weight", "score.bias"}


def test_what_lives_has_its_first_name_and_what_is_not_saved_has_none() -> None:
    """A weight with two names, a persistent buffer and one that is made again at every start."""
    one, other = nn.Linear(H, LABELS, bias=False), nn.Linear(H, LABELS, bias=False)
    other.weight = one.weight
    model = Made(
        lambda s, ids: s.other(s.encoder(ids)[:, 0]) * s.kept * s.made, encoder=Encoder(), one=one, other=other
    )
    model.register_buffer("kept", torch.ones(LABELS))
    model.register_buffer("made", torch.ones(LABELS), persistent=False)
    head = run(model, IDS).head
    assert {name for name in head.live if not name.startswith("encoder.")} == {"one.weight", "kept"}


def test_embeddings_may_be_scores_already() -> None:
    found = run(Made(lambda s, ids: s.votes(ids).mean(1), votes=nn.Embedding(40, LABELS)), IDS)
    assert (names(found.head), makers(found)) == (["mean"], ["embedding"])
    some = run(Made(lambda s, ids: s.votes(ids).mean(1)[:, [1, 3]], votes=nn.Embedding(40, H)), IDS)
    assert (names(some.head), makers(some)) == (["mean", "__getitem__"], ["embedding"])


class Beyond(Encoder):
    """An encoder that goes on after its last hidden states, and hands its mask over."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.Linear(H, H)

    def forward(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        hidden = torch.relu(super().forward(ids))
        kept = mask.float().unsqueeze(-1)
        return {"last_hidden_state": hidden, "pooled": torch.tanh(self.pool(hidden)).mean(1), "mask": kept}


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
    found = run(on(Beyond(), use))
    assert names(found.head) == operations
    assert makers(found) == ["relu"]


def test_a_base_model_that_returns_no_hidden_states_of_its_own_is_left_at_its_last_tensor_of_tokens() -> None:
    class Silent(Encoder):
        def forward(self, ids: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
            return {"tokens": torch.relu(super().forward(ids))}

    found = run(on(Silent(), lambda out: torch.tanh(out["tokens"])[:, 0]), IDS)
    assert last_hidden_state(found.execution, found.head.base) is None
    assert names(found.head) == ["tanh", "__getitem__", "linear"]
    assert makers(found) == ["relu"]
