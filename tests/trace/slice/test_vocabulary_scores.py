"""Where a head begins whose scores are made of a vocabulary's scores: where a language model's last layer reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.families import FAMILIES
from tests.trace.heads import IDS, LABELS, PAIRS, Encoder, H, Made, Run, run

TOKENS = torch.tensor([3, 5])


def operation_names(found: Run) -> list[str]:
    return [operation.name for operation in found.head.operations]


def makers_of_hidden(found: Run) -> list[str]:
    """The operations that made the hidden states; "" for one that none made."""
    made = (found.execution.graph.maker(tensor) for tensor in found.head.hidden)
    return ["" if operation is None else operation.name for operation in made]


@pytest.mark.parametrize(
    ("score", "operations"),
    [
        (lambda s, a, b: s.words(a).softmax(-1)[:, -1][:, [3, 5]] - s.words(b).softmax(-1)[:, -1][:, [3, 5]],
         [*["linear", "softmax", "__getitem__", "__getitem__"] * 2, "sub"]),
        (lambda s, a, b: (s.words(a).softmax(-1) - s.words(b).softmax(-1))[:, -1][:, [3, 5]],
         [*["linear", "softmax"] * 2, "sub", "__getitem__", "__getitem__"]),
    ],
)  # fmt: skip
def test_each_of_two_texts_that_a_language_model_scores_has_hidden_states_of_its_own(
    score: Callable[[Any, Tensor, Tensor], Tensor], operations: list[str]
) -> None:
    found = run(Made(
        lambda s, ids, other: score(s, torch.tanh(s.embed(ids)), torch.tanh(s.embed(other))),
        embed=nn.Embedding(40, H), words=nn.Linear(H, 40),
    ), PAIRS)  # fmt: skip
    assert makers_of_hidden(found) == ["tanh", "tanh"]
    assert operation_names(found) == operations


@pytest.mark.parametrize(
    ("use", "operations"),
    [
        (lambda words: words.softmax(-1)[..., [3, 5]], ["softmax", "__getitem__"]),
        (lambda words: words[..., [3, 5]].log_softmax(-1), ["__getitem__", "log_softmax"]),
    ],
)
def test_what_a_base_model_makes_of_a_language_models_scores_belongs_to_the_head(
    use: Callable[[Tensor], Tensor], operations: list[str]
) -> None:
    base = Made(lambda s, ids: use(s.words(s.encoder(ids).tanh())), encoder=Encoder(), words=nn.Linear(H, 40))
    found = run(Made(lambda s, ids: s.base(ids=ids)[:, -1], base=base), IDS)
    assert found.head.base is base
    assert makers_of_hidden(found) == ["tanh"]
    assert operation_names(found) == ["linear", *operations, "__getitem__"]


@pytest.mark.parametrize("pick", [
    lambda h: h[:, 0, :LABELS], lambda h: h[:, -1].narrow(-1, 2, LABELS), lambda h: h[:, 0].split(4, -1)[0],
    lambda h: h[:, 0].gather(1, TOKENS.expand(len(h), 2)), lambda h: h[:, 1:3].mean(1),
    lambda h: h.gather(1, torch.zeros(len(h), 1, H, dtype=torch.long))[:, 0],
    lambda h: h.mean(1)[..., None].squeeze(-1),
])  # fmt: skip
@pytest.mark.parametrize("has_classifier", [True, False])
def test_some_features_or_tokens_of_an_encoder_begin_at_its_hidden_states(
    pick: Callable[[Tensor], Tensor], has_classifier: bool
) -> None:
    fc = nn.LazyLinear(LABELS) if has_classifier else nn.Tanh()
    module = Made(lambda s, ids: s.fc(pick(s.base(ids))), base=Encoder(), fc=fc)
    module(**IDS)  # gives the lazy layer its shape
    found = run(module, IDS)
    assert [tensor.shape[-1] for tensor in found.head.hidden] == [H]
    assert found.head.hidden[0] is found.execution.graph.returned[found.head.base]


@pytest.mark.parametrize(
    ("family", "name", "prefix"), [("gpt2", "GPT2LMHeadModel", "transformer"), ("bert", "BertForMaskedLM", "bert")]
)
@pytest.mark.parametrize(
    "score",
    [
        lambda s, words: words[:, -1, 3:6],
        lambda s, words: words[:, -1].gather(1, TOKENS.expand(len(words), 2)),
        lambda s, words: words[:, -1] @ functional.one_hot(TOKENS, words.shape[-1]).float().T,
        lambda s, words: s.fc(words[:, -1, [3, 5, 7]]),
        lambda s, words: s.fc(words[:, -1, :3])[:, [0, 1]],
    ],
)
def test_a_language_model_of_transformers_is_left_at_the_last_hidden_state(
    score: Callable[[Any, Tensor], Tensor], family: str, name: str, prefix: str
) -> None:
    base = FAMILIES[family].build(name)
    model = Made(lambda s, ids: score(s, s.base(ids).logits), base=base, fc=nn.Linear(3, LABELS))
    found = run(model, IDS)
    assert found.head.base is base
    (hidden,) = found.head.hidden
    assert hidden is found.execution.graph.returned[getattr(base, prefix)].last_hidden_state


@pytest.mark.parametrize(
    "pick",
    [
        lambda words: words[:, -1, [3, 5]],
        lambda words: words[:, -1].index_select(dim=1, index=TOKENS),
    ],
)
def test_a_language_model_of_transformers_that_is_picked_from_is_left_before_its_last_layer(
    pick: Callable[[Tensor], Tensor],
) -> None:
    model = Made(lambda s, ids: pick(s.base(ids).logits), base=FAMILIES["gpt2"].build("GPT2LMHeadModel"))
    found = run(model, IDS)
    (hidden,) = found.head.hidden
    last = found.execution.graph.returned[model.base.transformer].last_hidden_state
    assert torch.equal(hidden, last) and hidden.shape == last.shape
    assert operation_names(found)[0] == "linear"


def test_an_encoder_that_ends_in_a_gate_ends_behind_it() -> None:
    def gated(s: Any, ids: Tensor) -> Tensor:
        one, other = s.wide(s.encoder(ids)).chunk(2, -1)
        return one * other.sigmoid()

    base = Made(gated, encoder=Encoder(), wide=nn.Linear(H, 2 * H))
    found = run(Made(lambda s, ids: s.fc(s.base(ids=ids).mean(1)), base=base, fc=nn.Linear(H, LABELS)), IDS)
    assert found.head.base is base
    assert operation_names(found) == ["mean", "linear"]


def test_two_texts_of_a_language_model_of_transformers_have_hidden_states_of_their_own() -> None:
    model = Made(
        lambda s, ids, other: s.lm(ids).logits[:, -1, 3:6] - s.lm(other).logits[:, -1, 3:6],
        lm=FAMILIES["gpt2"].build("GPT2LMHeadModel"),
    )
    width = model.lm.config.hidden_size
    assert [tensor.shape[-1] for tensor in run(model, PAIRS).head.hidden] == [width, width]
