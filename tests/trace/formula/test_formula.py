"""Formulas: how a tree is written, what is evaluated, and what is withheld with its reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headscope.core.trace.formula.evaluate import equals_head
from headscope.core.trace.formula.expression import (
    Arithmetic,
    Cut,
    Expression,
    Hidden,
    Joined,
    Number,
    Pick,
    Pooled,
    Side,
    Sign,
    TooLong,
    spell,
)
from headscope.core.trace.replay.replay import MaskKind, replay_head
from headscope.facts import HiddenSource, Positions, Where
from tests.trace.heads import (
    ALL,
    EXAMPLES,
    FIRST,
    IDS,
    LAST,
    LAST_NON_PAD,
    NON_PAD,
    Encoder,
    H,
    Made,
    Run,
    Text,
    column,
    deep,
    image,
    pixels,
    run,
    trace,
    without_first,
)

NONE = torch.empty(())
PLAIN = (NONE, NONE)
MASK = torch.ones(1)


def hidden(layer: int | None = None, number: int = 0) -> Hidden:
    return Hidden(number, HiddenSource() if layer is None else HiddenSource(f"h[{layer}]", layer))


def arithmetic(left: Expression, sign: str, right: Expression) -> Arithmetic:
    return Arithmetic(Sign(f" {sign} "), left, right, PLAIN)


A, B, C = Number(1), Number(2.5), hidden()
LAYERS = tuple(hidden(layer) for layer in (-5, -4, -3, -2, -1))


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (A, "1"),
        (B, "2.5"),
        (C, "h"),
        (hidden(-2), "h[-2]"),
        (Side("mask", MASK), "mask"),
        (Pick(C, FIRST, 1), "h[0]"),
        (Pick(C, Positions(Where.INDEX, 0, token="[CLS]"), 1), "h[CLS]"),
        (Pick(C, Positions(Where.EOS, token="</s>"), 1), "h[</s>]"),
        (Pick(C, LAST_NON_PAD, 1), "h[last non-pad]"),
        (Cut(C, Positions(Where.RANGE, 1), 1), "h[1:]"),
        (Cut(C, Positions(Where.RANGE, 0, 5), 1), "h[:5]"),
        (Cut(C, Positions(Where.RANGE, 1, -1), 1), "h[1:-1]"),
        (Pooled("mean", C, ALL, (1,)), "mean(h)"),
        (Pooled("mean", C, NON_PAD, (1,)), "mean(h[non-pad])"),
        (Pooled("max", arithmetic(A, "+", C), NON_PAD, (1,)), "max((1 + h)[non-pad])"),
        (arithmetic(A, "+", B), "1 + 2.5"),
        (arithmetic(arithmetic(A, "+", B), "+", C), "1 + 2.5 + h"),
        (arithmetic(A, "+", arithmetic(B, "+", C)), "1 + (2.5 + h)"),
        (arithmetic(A, "-", arithmetic(B, "-", C)), "1 - (2.5 - h)"),
        (arithmetic(arithmetic(A, "-", B), "-", C), "(1 - 2.5) - h"),
        (arithmetic(A, "+", arithmetic(B, "*", C)), "1 + 2.5 * h"),
        (arithmetic(arithmetic(A, "*", B), "+", C), "1 * 2.5 + h"),
        (arithmetic(arithmetic(A, "+", B), "*", C), "(1 + 2.5) * h"),
        (arithmetic(arithmetic(A, "*", B), "*", C), "1 * 2.5 * h"),
        (arithmetic(arithmetic(A, "/", B), "/", C), "(1 / 2.5) / h"),
        (arithmetic(A, "/", arithmetic(B, "*", C)), "1 / (2.5 * h)"),
        (Pick(arithmetic(A, "+", C), FIRST, 1), "(1 + h)[0]"),
        (Joined("cat", (A, C), 1, PLAIN, along_features=True), "[1; h]"),
        (Joined("cat", (A, C), 0, PLAIN, along_features=False), "cat(1, h)"),
        (Joined("stack", LAYERS[:3], 0, (NONE,) * 3, along_features=False), "stack(h[-5], h[-4], h[-3])"),
        (Joined("stack", LAYERS[:4], 0, (NONE,) * 4, along_features=False), "stack(h[-5], ..., h[-2])"),
        (Joined("cat", LAYERS, 1, (NONE,) * 5, along_features=True), "[h[-5]; ...; h[-1]]"),
        (Joined("cat", (LAYERS[0], LAYERS[2], LAYERS[3]), 1, (NONE,) * 3, along_features=True),
         "[h[-5]; h[-3]; h[-2]]"),
    ],
)  # fmt: skip
def test_a_tree_is_written_with_no_more_parentheses_than_it_needs(node: Expression, text: str) -> None:
    assert spell(node) == text


def test_a_text_beyond_the_limit_is_refused() -> None:
    assert spell(arithmetic(A, "+", B), longest=7) == "1 + 2.5"
    with pytest.raises(TooLong):
        spell(arithmetic(A, "+", B), longest=6)
    node: Expression = C
    for _ in range(200):
        node = arithmetic(node, "*", node)
    with pytest.raises(TooLong):
        spell(node, longest=1000)


def judged(found: Run, node: Expression) -> str:
    """Why a formula for the bare hidden states is not what the head gives."""
    return equals_head(replay_head(found.head), (node,))


PICKED = Pick(C, FIRST, 1)


@pytest.mark.parametrize(
    ("head", "right", "wrong"),
    [
        (lambda s, h, m: h[:, 0], Pick(C, FIRST, 1), Pick(C, LAST, 1)),
        (lambda s, h, m: h[torch.arange(len(h)), (m * torch.arange(11)).argmax(1)], Pick(C, LAST_NON_PAD, 1), PICKED),
        (lambda s, h, m: h.mean(1), Pooled("mean", C, ALL, (1,)), Pooled("sum", C, ALL, (1,))),
        (lambda s, h, m: h.sum(1), Pooled("sum", C, ALL, (1,)), Pooled("max", C, ALL, (1,))),
        (lambda s, h, m: h.amax(1), Pooled("max", C, ALL, (1,)), Pooled("mean", C, ALL, (1,))),
        (lambda s, h, m: h[:, 1:].mean(1), Pooled("mean", C, Positions(Where.RANGE, 1), (1,)),
         Pooled("mean", C, ALL, (1,))),
        (lambda s, h, m: h[:, 1:-1].amax(1), Pooled("max", Cut(C, Positions(Where.RANGE, 1, -1), 1), ALL, (1,)),
         Pooled("max", Cut(C, Positions(Where.RANGE, 1), 1), ALL, (1,))),
        (lambda s, h, m: (h * m.unsqueeze(-1)).sum(1) / m.sum(1, keepdim=True), Pooled("mean", C, NON_PAD, (1,)),
         Pooled("mean", C, ALL, (1,))),
        (lambda s, h, m: h[:, 0] * 2.5, arithmetic(Pick(C, FIRST, 1), "*", B), arithmetic(Pick(C, FIRST, 1), "+", B)),
        (lambda s, h, m: 1 - h[:, 0], arithmetic(A, "-", Pick(C, FIRST, 1)), arithmetic(Pick(C, FIRST, 1), "-", A)),
        (lambda s, h, m: h[:, 0] / 2.5, arithmetic(Pick(C, FIRST, 1), "/", B), arithmetic(Pick(C, FIRST, 1), "*", B)),
    ],
)  # fmt: skip
def test_a_formula_is_equal_to_its_head_or_is_refused(head: Any, right: Expression, wrong: Expression) -> None:
    found = run(Text(head))
    shaped = [_with_shapes(node, found) for node in (right, wrong)]
    assert judged(found, shaped[0]) == ""
    assert "differs" in judged(found, shaped[1])


def _with_shapes(node: Expression, found: Run) -> Expression:
    """Arithmetic on the picked vectors of a batch."""
    if not isinstance(node, Arithmetic):
        return node
    scores = found.execution.logits[0]
    recorded = [NONE if isinstance(item, Number) else scores for item in (node.left, node.right)]
    return Arithmetic(node.sign, node.left, node.right, (recorded[0], recorded[1]))


def test_small_differences_are_rounding_and_larger_ones_are_not() -> None:
    def differing(factor: float) -> str:
        found = run(Text(lambda s, h, m: h[:, 0]))
        scores = found.execution.logits[0]
        return judged(found, Arithmetic(Sign.MUL, PICKED, Number(factor), (scores, NONE)))

    assert differing(1 + 1e-5) == ""
    assert "differs" in differing(1.01)
    assert "differs" in differing(-1)


def test_a_formula_of_another_shape_or_without_an_answer_is_refused() -> None:
    found = run(Text(lambda s, h, m: h[:, 0]))
    assert re.search(r"\(5, 11, 8\).* \(5, 8\)", judged(found, C))
    assert "(by_row " in judged(found, Pick(C, Positions(Where.BY_ROW), 1))
    images = run(image(lambda s, h: h.mean(1)), pixels(4, 4))
    assert "(no mask " in judged(images, Pooled("mean", C, NON_PAD, (1,)))


def test_a_mask_that_keeps_padding_makes_no_mean_over_real_positions() -> None:
    found = run(Text(lambda s, h, m: (h * m.unsqueeze(-1)).sum(1) / m.sum(1, keepdim=True)))
    mask = found.execution.probe.inputs["attention_mask"]
    assert judged(found, Pooled("mean", C, NON_PAD, (1,), Side("mask", mask, MaskKind.KEPT))) == ""
    assert judged(found, Pooled("mean", C, NON_PAD, (1,), Side("~mask", 1 - mask, MaskKind.PADDING))) == ""
    every = Side("mask", torch.ones_like(mask), MaskKind.KEPT)
    assert "the mask " in judged(found, Pooled("mean", C, NON_PAD, (1,), every))


def test_infinite_scores_are_compared_where_they_are_finite() -> None:
    found = run(Text(lambda s, h, m: h[:, 0] / 0))
    scores = found.execution.logits[0]
    assert judged(found, Arithmetic(Sign.DIV, PICKED, Number(0), (scores, NONE))) == ""


def formula(head: Callable[..., Tensor]) -> tuple[str, str]:
    """The formula of a head, and why there is none."""
    traced = trace(Text(head))
    return traced.formula, traced.verification.formula_reason


def test_what_is_no_value_of_the_model_has_no_name() -> None:
    written, reason = formula(lambda s, h, m: s.fc((h * torch.arange(h.shape[1]).view(1, -1, 1)).sum(1)))
    assert written == "" and " arange " in reason


def test_a_learned_number_is_written_by_its_name() -> None:
    def head(s: Any, h: tuple[Tensor, ...], m: Tensor) -> Tensor:
        mix = s.weights.softmax(0)
        return s.fc((mix[0] * h[-1] + mix[1] * h[-2])[:, 0])

    traced = trace(deep(head))
    assert traced.formula == "logits = fc((softmax(weights)[0] * h[-1] + softmax(weights)[1] * h[-2])[0])"


@pytest.mark.parametrize(
    "repeated", [lambda first: first.unsqueeze(1).expand(-1, 2, -1), lambda first: first.expand(2, *first.shape)]
)
def test_rows_that_a_reshape_repeats_are_not_left_out(repeated: Callable[[Tensor], Tensor]) -> None:
    written, reason = formula(lambda s, h, m: s.fc(repeated(h[:, 0]).reshape(-1, H))[: h.shape[0]])
    assert written == "" and "repeats the rows" in reason


def test_a_formula_that_nobody_could_read_is_withheld() -> None:
    def head(s: Text, h: Tensor, m: Tensor) -> Tensor:
        value = h[:, 0]
        for _ in range(12):
            value = value * torch.tanh(value)
        return s.fc(value)

    written, reason = formula(head)
    assert written == "" and "too long" in reason


def test_the_columns_of_a_split_are_one_formula() -> None:
    """Start and end scores, as question answering has them."""

    def spans(s: Any, ids: Tensor) -> dict[str, Tensor]:
        start, end = s.qa(s.encoder(ids)).split(1, dim=-1)
        return {"start_logits": start.squeeze(-1), "end_logits": end.squeeze(-1)}

    assert trace(Made(spans, encoder=Encoder(), qa=nn.Linear(H, 2)), IDS).formula == "logits = qa(h)"


def test_names_that_say_little_are_written_in_full() -> None:
    """The last names of these layers are numbers, or occur twice."""
    model = Made(
        lambda s, ids: s.two["out"](s.one["out"](s.stack(s.encoder(ids)[:, 0]))), encoder=Encoder(),
        stack=nn.Sequential(nn.Linear(H, H), nn.ReLU()), one=nn.ModuleDict({"out": nn.Linear(H, H)}),
        two=nn.ModuleDict({"out": nn.Linear(H, 3)}),
    )  # fmt: skip
    assert trace(model, IDS).formula == "logits = two.out(one.out(relu(stack.0(h[0]))))"


@pytest.mark.parametrize(
    ("head", "text"),
    [
        (lambda s, h, m: s.fc(h[:, 0]).softmax(-1), "softmax(fc(h[0]))"),
        (lambda s, h, m: s.fc(h[:, 0] ** 2), "fc(pow(h[0], 2))"),
        (lambda s, h, m: s.fc(h[:, 0].clamp(min=0.5)), "fc(clamp(h[0], min=0.5))"),
        (lambda s, h, m: s.fc(nn.functional.dropout(h[:, 0], 0.1, training=False)), "fc(h[0])"),
        (lambda s, h, m: s.fc(nn.functional.normalize(h[:, 0])), "fc(normalize(h[0], p=2, dim=1, eps=1e-12))"),
        (lambda s, h, m: s.fc(s.dense(s.dense(h[:, 0]))), "fc(dense(dense(h[0])))"),
        (lambda s, h, m: s.fc(h[:, 0] @ s.dense.weight), "fc(h[0] @ dense.weight)"),
        (lambda s, h, m: nn.functional.linear(h[:, 0], s.fc.weight), "linear(h[0], fc.weight)"),
        (lambda s, h, m: s.fc(h[:, 0] * s.query[0]), "fc(h[0] * query[0])"),
        (lambda s, h, m: s.fc(torch.where(h[:, 0] > 0, h[:, 0], h[:, 1])), "fc(where(gt(h[0], 0), h[0], h[1]))"),
        (lambda s, h, m: s.fc(h[:, 0]) + s.fc(h[:, 1]), "fc(h[0]) + fc(h[1])"),
        (lambda s, h, m: s.fc(h.mean(1).mul(2).sub(1)), "fc(mean(h) * 2 - 1)"),
        (lambda s, h, m: s.fc(torch.add(h[:, 0], h[:, 1], alpha=2)), "fc(add(h[0], h[1], alpha=2))"),
        (lambda s, h, m: s.fc(h[:, 0, :4].repeat(1, 2)), ""),
        (lambda s, h, m: s.fc(h[:, 0] * m.sum(1, keepdim=True)), "fc(h[0] * sum(mask, 1))"),
        (lambda s, h, m: s.fc(h[:, 0] / m.float().sum(1, keepdim=True).clamp(min=1)),
         "fc(h[0] / clamp(sum(mask, 1), min=1))"),
        (lambda s, h, m: s.fc(h[:, 0]).split([2, 1], -1)[0], "fc(h[0])[:, :2]"),
        (lambda s, h, m: s.fc(h[:, 0]).split([2, 1], -1)[1], "fc(h[0])[:, 2:]"),
        (lambda s, h, m: s.fc(h[:, 0])[:, [2, 0, 1]], "fc[[2, 0, 1]](h[0])"),
        (lambda s, h, m: s.fc(h[:, 0])[:, torch.tensor([2, 0, 1])], ""),
        (lambda s, h, m: s.fc(h[:, 0].gather(1, h[:, 0].argsort(1))), "fc(gather(h[0], 1, argsort(h[0], 1)))"),
        (lambda s, h, m: s.fc(torch.div(h[:, 0], h[:, 1], rounding_mode="floor")),
         "fc(div(h[0], h[1], rounding_mode='floor'))"),
        (lambda s, h, m: s.fc(torch.einsum("bth,bt->bh", h, m.float())), "fc(einsum('bth,bt->bh', h, mask))"),
        (lambda s, h, m: s.fc(h.sort(1, descending=True).values[:, 2]), "fc(sort[0](h, 1, descending=True)[2])"),
        (lambda s, h, m: s.fc(h[:, 0].roll((1, 2), (0, 1))), "fc(roll(h[0], (1, 2), (0, 1)))"),
        (lambda s, h, m: s.fc(nn.functional.gelu(h[:, 0], approximate="tanh")), "fc(gelu(h[0], approximate='tanh'))"),
        (lambda s, h, m: s.fc(nn.functional.gelu(h[:, 0])), "fc(gelu(h[0]))"),
        (lambda s, h, m: s.fc(nn.functional.layer_norm(h[:, 0], (H,), eps=1.0)), "fc(layer_norm(h[0], eps=1))"),
        (lambda s, h, m: s.fc(h[:, 0].std(1, unbiased=False, keepdim=True) * h[:, 1]),
         "fc(std(h[0], 1, unbiased=False) * h[1])"),
        (lambda s, h, m: s.fc(h[:, 0]).softmax(0), "softmax(fc(h[0]), dim=0)"),
        (lambda s, h, m: s.fc(h[:, 0]).log_softmax(1), "log_softmax(fc(h[0]))"),
        (lambda s, h, m: s.fc((h * s.attention(h).softmax(0)).sum(1)), "fc(sum(h * softmax(attention(h), dim=0)))"),
        (lambda s, h, m: s.fc((h * s.attention(h).softmax(2)).sum(1)), "fc(sum(h * softmax(attention(h), dim=2)))"),
        (lambda s, h, m: s.fc((h * h.softmax(1)).sum(1)), "fc(sum(h * softmax(h, dim=1)))"),
        (lambda s, h, m: s.fc((h * h.softmax(2)).sum(1)), "fc(sum(h * softmax(h)))"),
        (lambda s, h, m: s.fc(2 / (h[:, 0] + 1)), "fc(2 / (h[0] + 1))"),
        (lambda s, h, m: s.fc(2 ** h[:, 0]), "fc(pow(2, h[0]))"),
        (lambda s, h, m: s.fc(torch.rsub(h[:, 0], h[:, 1])), "fc(h[1] - h[0])"),
        (lambda s, h, m: s.fc(torch.ops.aten.tanh.default(h[:, 0])), "fc(tanh(h[0]))"),
        (lambda s, h, m: s.fc(h[:, 0] @ s.dense.weight.T), "fc(h[0] @ dense.weight.T)"),
        (lambda s, h, m: s.fc(h.sum(1) / m.sum()), "fc(sum(h) / sum(mask))"),
        (lambda s, h, m: s.fc((h * m.flip(1).unsqueeze(-1)).sum(1)), "fc(sum(h * flip(mask, 1)))"),
        (lambda s, h, m: s.fc((h * (m == 0).unsqueeze(-1)).sum(1)), "fc(sum(h * ~mask))"),
        (lambda s, h, m: s.fc((h * (1 - m).unsqueeze(-1)).sum(1)), "fc(sum(h * ~mask))"),
        (lambda s, h, m: s.fc((h * without_first(m)).sum(1)), "fc(sum(h * index_put(mask, [:, 0], 0)))"),
        (lambda s, h, m: s.fc((h * m.unsqueeze(-1).expand(h.shape)).sum(1)), "fc(sum(h * mask))"),
        (lambda s, h, m: s.fc(h.flatten(0, 1).mean(0, keepdim=True)).expand(len(h), -1), ""),
    ],
)  # fmt: skip
def test_a_formula_leaves_nothing_out_that_changes_the_scores(head: Callable[..., Tensor], text: str) -> None:
    written, reason = formula(head)
    assert written == (f"logits = {text}" if text else "")
    assert bool(reason) is not bool(text)


@pytest.mark.parametrize(
    ("head", "text"),
    [
        (lambda s, h: s.fc(h[:, 0] * s.one.scale * s.two.scale), "fc(h[0] * one.scale * two.scale)"),
        (lambda s, h: s.fc(h[:, 0] * s.one.scale), "fc(h[0] * scale)"),
        (lambda s, h: s.fc(s.mean(s.tanh(h[:, 0]))), "fc(self.mean(self.tanh(h[0])))"),
        (lambda s, h: s.fc(s.norm(h).mean(1).tanh()), "fc(tanh(mean(norm(h))))"),
    ],
)  # fmt: skip
def test_two_things_are_never_called_alike(head: Callable[[Any, Tensor], Tensor], text: str) -> None:
    """Names that end alike, and layers with the names of operations that they are not."""
    model = Made(
        lambda s, ids: head(s, s.encoder(ids)), encoder=Encoder(), one=nn.ParameterDict({"scale": torch.randn(H)}),
        two=nn.ParameterDict({"scale": torch.randn(H)}), tanh=nn.Linear(H, H), mean=nn.Linear(H, H),
        norm=nn.LayerNorm(H), fc=nn.Linear(H, 3),
    )  # fmt: skip
    assert trace(model, IDS).formula == f"logits = {text}"


@pytest.mark.parametrize("special", [[0] * 6, [1, 0, 0, 0, 0, 1]])
def test_two_masks_are_told_apart(special: list[int]) -> None:
    def scores(s: Any, ids: Tensor, attention_mask: Tensor, special_tokens_mask: Tensor) -> Tensor:
        kept = attention_mask * (1 - special_tokens_mask)
        return s.fc((s.encoder(ids) * column(kept)).sum(1))

    inputs = EXAMPLES | {"special_tokens_mask": torch.tensor([special] * 2)}
    traced = trace(Made(scores, encoder=Encoder(), fc=nn.Linear(H, 3)), inputs)
    assert traced.formula == "logits = fc(sum(h * (mask * (1 - special_tokens_mask))))"


@pytest.mark.parametrize(
    ("head", "features"),
    [
        (lambda s, h, m: s.fc(h[:, 0]), "h[0]"),
        (lambda s, h, m: s.fc(h)[:, 0], "h[0]"),
        (lambda s, h, m: s.fc(h.mean(1)), "mean(h)"),
        (lambda s, h, m: s.fc(h[:, 0] + h[:, 1]), "h[0] + h[1]"),
        (lambda s, h, m: s.fc(h + h * 2)[:, 0], "(h + h * 2)[0]"),
        (lambda s, h, m: s.fc(torch.tanh(h[:, 0])), "tanh(h[0])"),
        (lambda s, h, m: torch.tanh(s.fc(h[:, 0])), ""),
        (lambda s, h, m: s.fc(h).mean(1), ""),
        (lambda s, h, m: (s.fc(h[:, 0]) + s.fc(h[:, 1])) / 2, ""),
        (lambda s, h, m: s.fc(h[:, 0]) * s.fc(h[:, 1]), ""),
    ],
)
def test_the_features_are_what_the_linear_layer_at_the_end_reads(head: Any, features: str) -> None:
    traced = trace(Text(head))
    assert traced.formula
    assert traced.features == features


def _last(m: Tensor) -> Tensor:
    return (m.sum(1) - 1)[:, None, None].expand(-1, 1, H)


BY_NAME: list[tuple[Callable[..., Tensor], Callable[..., Tensor]]] = [
    (lambda s, h, m: s.fc(h.select(1, 0)), lambda s, h, m: s.fc(torch.select(input=h, dim=1, index=0))),
    (lambda s, h, m: s.fc(h.select(1, 0)), lambda s, h, m: s.fc(input=h.select(dim=1, index=0))),
    (lambda s, h, m: s.fc(h.narrow(1, 0, 1).squeeze(1)),
     lambda s, h, m: s.fc(torch.squeeze(input=torch.narrow(input=h, dim=1, start=0, length=1), dim=1))),
    (lambda s, h, m: s.fc(h.gather(1, _last(m)).squeeze(1)),
     lambda s, h, m: s.fc(torch.gather(h, dim=1, index=_last(m)).squeeze(1))),
    (lambda s, h, m: s.fc(h.gather(1, _last(m)).squeeze(1)),
     lambda s, h, m: s.fc(torch.gather(input=h, dim=1, index=_last(m)).squeeze(1))),
    (lambda s, h, m: s.fc(torch.index_select(h, 1, torch.tensor([0])).squeeze(1)),
     lambda s, h, m: s.fc(torch.index_select(input=h, dim=1, index=torch.tensor([0])).squeeze(1))),
    (lambda s, h, m: s.fc(h[:, 0] + h[:, 1]), lambda s, h, m: s.fc(torch.add(input=h[:, 0], other=h[:, 1]))),
    (lambda s, h, m: s.fc(h[:, 0] * s.scale), lambda s, h, m: s.fc(h[:, 0].mul(other=s.scale))),
    (lambda s, h, m: s.fc(torch.sub(h[:, 0], h[:, 1], alpha=2)),
     lambda s, h, m: s.fc(torch.sub(input=h[:, 0], other=h[:, 1], alpha=2))),
    (lambda s, h, m: h[:, 0] @ s.fc.weight.T, lambda s, h, m: torch.matmul(other=s.fc.weight.T, input=h[:, 0])),
    (lambda s, h, m: s.fc(h.masked_fill(m[..., None] == 0, value=-1e9).amax(1)),
     lambda s, h, m: s.fc(torch.masked_fill(input=h, mask=m[..., None] == 0, value=-1e9).amax(1))),
    (lambda s, h, m: s.fc((h * m[..., None]).sum(1) / m.sum(1, keepdim=True)),
     lambda s, h, m: s.fc(torch.div(torch.sum(input=torch.mul(input=h, other=m[..., None]), dim=1),
                                    other=torch.sum(input=m, dim=1, keepdim=True)))),
    (lambda s, h, m: s.fc(torch.stack([h[:, 0], h[:, 1]]).mean(0)),
     lambda s, h, m: s.fc(torch.stack(tensors=[h[:, 0], h[:, 1]]).mean(0))),
    (lambda s, h, m: nn.functional.linear(h[:, 0], s.fc.weight, s.fc.bias),
     lambda s, h, m: nn.functional.linear(bias=s.fc.bias, weight=s.fc.weight, input=h[:, 0])),
    # other orders, NumPy's names and those of the dispatcher's operators
    (lambda s, h, m: s.fc(h.select(1, 0)), lambda s, h, m: s.fc(h.select(index=0, dim=1))),
    (lambda s, h, m: s.fc(h.select(1, 0)), lambda s, h, m: s.fc(torch.select(x=h, dim=1, index=0))),
    (lambda s, h, m: s.fc(h.select(1, 0)), lambda s, h, m: s.fc(torch.ops.aten.select.int(self=h, dim=1, index=0))),
    (lambda s, h, m: s.fc(h[:, 0] - s.scale), lambda s, h, m: s.fc(torch.sub(x2=s.scale, x1=h[:, 0]))),
    (lambda s, h, m: torch.mm(h[:, 0], s.fc.weight.T),
     lambda s, h, m: torch.ops.aten.mm.default(mat2=s.fc.weight.T, self=h[:, 0])),
    (lambda s, h, m: s.fc(torch.pow(2, h[:, 0])), lambda s, h, m: s.fc(torch.pow(exponent=h[:, 0], self=2))),
    (lambda s, h, m: s.fc(h.mean(1)), lambda s, h, m: s.fc(torch.mean(a=h, axis=1))),
    (lambda s, h, m: s.fc(h.sum(1) / 4), lambda s, h, m: s.fc(torch.div(h.sum(1), other=4))),
    (lambda s, h, m: s.fc(torch.clamp(h[:, 0], None, s.scale)), lambda s, h, m: s.fc(h[:, 0].clamp(max=s.scale))),
    (lambda s, h, m: s.fc(torch.where(m[..., None] > 0, h, s.scale).amax(1)),
     lambda s, h, m: s.fc(h.where(other=s.scale, condition=m[..., None] > 0).amax(1))),
]  # fmt: skip


@pytest.mark.parametrize(("by_place", "by_name"), BY_NAME)
def test_arguments_given_by_name_are_read_as_by_place(
    by_place: Callable[..., Tensor], by_name: Callable[..., Tensor]
) -> None:
    model = Text(by_name)
    one, other = trace(Text(by_place), EXAMPLES), trace(model, EXAMPLES)
    assert torch.equal(model(**EXAMPLES), Text(by_place)(**EXAMPLES))
    assert one.formula
    assert (other.formula, other.pooling.kind, other.pooling.rule) == (one.formula, one.pooling.kind, one.pooling.rule)
    assert [stage.operation for stage in other.stages] == [stage.operation for stage in one.stages]


def test_a_limit_on_one_side_is_not_written_as_the_other() -> None:
    texts = [
        formula(lambda s, h, m: s.fc(h[:, 0].clamp(min=s.scale)))[0],
        formula(lambda s, h, m: s.fc(h[:, 0].clamp(max=s.scale)))[0],
        formula(lambda s, h, m: s.fc(h[:, 0].clamp(None, 0.5)))[0],
    ]
    inside = [text.removeprefix("logits = fc(clamp(").removesuffix("))") for text in texts]
    assert inside == ["h[0], scale", "h[0], None, scale", "h[0], None, 0.5"]
