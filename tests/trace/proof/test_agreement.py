"""What one run cannot tell: numbers that equal its sizes, positions that follow the length, values of a caller."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    Qwen3NextConfig,
    Qwen3NextForSequenceClassification,
    ZambaConfig,
    ZambaForSequenceClassification,
)

from headscope.core.model.classes.reduced_config import shallow_twins
from headscope.core.trace import head as tracing, trace_head
from headscope.core.trace.formula.formula import Formula
from headscope.core.trace.proof.agreement import Agreement, Look, agree, look_at
from headscope.core.trace.record import execution
from headscope.core.trace.record.execution import run_on_probe
from headscope.core.trace.record.recorder import Guess
from headscope.core.trace.replay.picks import TokenNames
from headscope.errors import Unsupported
from headscope.facts import PoolingKind, Positions, Shape, Task, Verification, Where
from tests.families import FAMILIES
from tests.trace.heads import ALL, FIRST, LAST, H, Text, at, masked_mean, run, run_of, trace

K = PoolingKind


COINCIDENCES = [
    (lambda s, h, m: s.fc(h[:, 0] * 5), K.FIRST_TOKEN, FIRST, "fc(h[0] * 5)"),
    (lambda s, h, m: s.fc(h[:, 0] / 11), K.FIRST_TOKEN, FIRST, "fc(h[0] / 11)"),
    (lambda s, h, m: s.fc(h[:, 0].clamp(-5, 5)), K.FIRST_TOKEN, FIRST, "fc(clamp(h[0], -5, 5))"),
    (lambda s, h, m: s.fc(h.sum(1) / 11), K.OTHER, ALL, "fc(sum(h) / 11)"),
    (lambda s, h, m: s.fc(h.sum(1) / h.shape[1]), K.MEAN, ALL, "fc(mean(h))"),
    (lambda s, h, m: s.fc(h[:, 10]), K.TOKEN_AT, at(10), "fc(h[10])"),
    (lambda s, h, m: s.fc(h[:, :20].mean(1)), K.MEAN, run_of(0, 20), "fc(mean(h[:20]))"),
]


@pytest.mark.parametrize(("head", "kind", "positions", "formula"), COINCIDENCES, ids=[row[3] for row in COINCIDENCES])
def test_a_number_of_the_head_is_no_size_of_a_run(
    head: Any, kind: PoolingKind, positions: Positions, formula: str
) -> None:
    traced = trace(Text(head))
    assert traced.pooling.kind is kind
    assert [part.positions for part in traced.pooling.parts] == [positions]
    assert traced.formula == f"logits = {formula}"
    assert traced.not_determined == ()


BY_LENGTH = [
    lambda s, h, m: s.fc(h[:, h.shape[1] // 2]),
    lambda s, h, m: s.fc(h[:, : h.shape[1] // 2].mean(1)),
    lambda s, h, m: s.fc(h[:, h.shape[1] - 2]),
    lambda s, h, m: s.fc(h[:, int(m[0].sum()) - 1]),
    lambda s, h, m: s.fc(h.sum(1) / math.sqrt(h.shape[1])),
]


@pytest.mark.parametrize("head", BY_LENGTH)
def test_what_depends_on_the_length_is_not_determined(head: Any) -> None:
    traced = trace(Text(head))
    assert traced.formula == ""
    assert [gap.topic for gap in traced.not_determined] == ["pooling"]
    assert traced.pooling.parts == ()


def test_a_head_that_changes_its_operations_with_the_length_is_not_determined() -> None:
    traced = trace(Text(lambda s, h, m: s.fc(h[:, 0]) if h.shape[1] > 20 else s.fc(h.mean(1))))
    assert "head path" in [gap.topic for gap in traced.not_determined]


def test_the_largest_number_of_kept_tokens_is_not_the_length() -> None:
    traced = trace(Text(lambda s, h, m: s.fc(h.sum(1) / m.sum(1).max())))
    assert traced.formula != "logits = fc(mean(h))"
    assert traced.pooling.parts == ()


class OfTokens(Text):
    """A head that looks at the token ids, which the caller gave."""

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.head(self, self.encoder(ids), ids)


@pytest.mark.parametrize(
    "head",
    [
        lambda s, h, i: s.fc(h[torch.arange(len(h)), (i != 0).sum(1) - 1]),
        lambda s, h, i: s.fc(h[torch.arange(len(h)), (i == 2).int().argmax(1)]),
    ],
)
def test_positions_found_by_the_callers_own_tokens_have_no_name(head: Any) -> None:
    pooling = trace(OfTokens(head)).pooling
    assert (pooling.kind, [part.positions.where for part in pooling.parts]) == (K.OTHER, [Where.BY_ROW])


def test_a_mean_over_the_callers_own_tokens_is_no_mean_over_all() -> None:
    assert trace(OfTokens(lambda s, h, i: s.fc(masked_mean(h, i != 0)))).pooling.kind is K.OTHER


@pytest.mark.parametrize("moved", [lambda h: h.flip(1), lambda h: h.roll(1, 1)])
def test_each_part_is_held_against_its_own_gradients(moved: Callable[[Tensor], Tensor]) -> None:
    traced = trace(Text(lambda s, h, m: s.fc(torch.cat([moved(h)[:, 0], h.amax(1)], -1)), 2 * H))
    assert traced.verification.agrees is False
    assert traced.pooling.parts == ()


def test_a_maximum_over_sums_is_no_maximum_over_positions() -> None:
    assert trace(Text(lambda s, h, m: s.fc(h.cumsum(1).amax(1)))).pooling.parts == ()


def skeleton(family: str, **changes: int) -> Any:
    with torch.device("meta"):
        return FAMILIES[family].build(FAMILIES[family].classifier, **changes)


def test_labels_are_no_sizes() -> None:
    """From 23 labels on, the numbers of the labels once left no size for the probe."""
    model = skeleton("bert", hidden_size=55, num_attention_heads=5, num_labels=100)
    assert trace_head(model, Task.SEQUENCE_CLASSIFICATION).trace.hidden_shape == ("batch", "sequence", 55)


def test_a_twin_of_one_layer_confirms_a_deep_model_without_a_third_run(monkeypatch: pytest.MonkeyPatch) -> None:
    depths: list[int] = []

    def run(model: Any, *arguments: Any, **options: Any) -> Any:
        depths.append(len(model.bert.encoder.layer))
        return run_on_probe(model, *arguments, **options)

    monkeypatch.setattr(tracing, "run_on_probe", run)
    model = skeleton("bert", num_hidden_layers=3)
    traced = trace_head(model, Task.SEQUENCE_CLASSIFICATION, twins=lambda: shallow_twins(model)).trace
    assert depths == [3, 1]
    assert (traced.pooling.kind, traced.not_determined) == (K.FIRST_TOKEN, ())


def test_a_deep_model_that_needs_a_pad_token_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """That it fails without one is seen on its twin."""
    ran: list[tuple[int, int | None]] = []
    attempt = execution._try_forward

    def counted(model: Any, probe: Any, output: Any, token: int | None = None) -> Any:
        ran.append((len(model.transformer.h), token))
        return attempt(model, probe, output, token)

    monkeypatch.setattr(execution, "_try_forward", counted)
    model = skeleton("gpt2", n_layer=8)
    alone = trace_head(model, Task.SEQUENCE_CLASSIFICATION).trace
    assert (8, None) in ran
    ran.clear()
    traced = trace_head(model, Task.SEQUENCE_CLASSIFICATION, twins=lambda: shallow_twins(model)).trace
    assert [run for run in ran if run[0] == 8] == [(8, 98)]
    assert "ValueError: Cannot handle batch sizes > 1" in traced.notes[0]
    assert (traced.notes, traced.pooling, traced.formula) == (alone.notes, alone.pooling, alone.formula)


def test_the_twin_of_a_hybrid_has_a_layer_of_each_kind() -> None:
    def depths(cls: Any, config: Any, kinds: str) -> list[tuple[int, set[str]]]:
        with torch.device("meta"):
            model = cls(config)
        return [(len(twin.model.layers), set(getattr(twin.config, kinds))) for twin in shallow_twins(model)]

    narrow = {"vocab_size": 90, "hidden_size": 32, "intermediate_size": 20, "num_attention_heads": 4}
    hybrid = Qwen3NextConfig(**narrow, num_hidden_layers=16, num_experts=4, moe_intermediate_size=8)
    both = {"linear_attention", "full_attention"}
    assert (4, both) in depths(Qwen3NextForSequenceClassification, hybrid, "layer_types")
    # Layers that share weights with the first of their kind need one more to share them with.
    found = depths(ZambaForSequenceClassification, ZambaConfig(vocab_size=90, hidden_size=32), "layers_block_type")
    assert min(found)[0] < ZambaConfig().num_hidden_layers / 4
    assert min(found)[1] == set(ZambaConfig().layers_block_type)


@pytest.fixture(name="look", scope="module")
def one_look() -> Look:
    """A run of a head on the first token, from which the looks below are made by hand."""
    found = run(Text(lambda s, h, m: s.fc(torch.tanh(s.dense(h[:, 0])))))
    return look_at(found.head, TokenNames())


def with_formulas(look: Look, *texts: str) -> Look:
    """A look that shows these formulas, plainest first; one that ends in a question mark is the reason why not."""
    made = [Formula("", text) if text.endswith("?") else Formula(text) for text in texts]
    return replace(look, formulas=iter(made), _tried_formulas=[])


def agreement(*looks: Look | None, prove: bool = False) -> tuple[Agreement, list[int]]:
    """What these runs agree on, and which were asked for; None is a run that fails."""
    asked: list[int] = []

    def again(turn: int) -> Look:
        asked.append(turn)
        found = looks[turn]
        if found is None:
            raise Unsupported("the forward fails", "")
        return found

    assert looks[0] is not None
    return agree(looks[0], again, prove=prove), asked


DIFFER = "runs of different sizes show different formulas"


@pytest.mark.parametrize(
    ("runs", "text", "reason", "asked"),
    [
        ([["a"], ["a"]], "a", "", [1]),
        ([["a", "b"], ["b"]], "b", "", [1]),
        ([["b"], ["a", "b"]], "b", "", [1]),
        ([["one?", "a"], ["two?", "a"]], "a", "", [1]),
        ([["one?"], ["two?"]], "", "one?", [1]),
        ([["one?", "too?", "one?"], ["two?"]], "", "one?; too?", [1]),
        ([["one?"], ["a"]], "", "one?", [1]),
        ([["a"], ["two?"]], "", "two?", [1]),
        ([["a"], ["b"], ["b"]], "b", "", [1, 2]),
        ([["a"], ["b"], ["c", "a"]], "a", "", [1, 2]),
        ([["a"], ["b"], ["c"]], "", DIFFER, [1, 2]),
        ([["a"], ["b"], None], "", DIFFER, [1, 2]),
    ],
)
def test_the_plainest_formula_that_two_runs_prove_is_shown(
    look: Look, runs: Sequence[list[str] | None], text: str, reason: str, asked: list[int]
) -> None:
    found, turns = agreement(*(None if texts is None else with_formulas(look, *texts) for texts in runs))
    assert (found.formula.expression, found.formula.reason) == (text, reason)
    assert turns == asked


def test_later_formulas_are_not_evaluated_where_the_plainest_agree(look: Look) -> None:
    first, second = (with_formulas(look, "a", "b") for _ in range(2))
    agreement(first, second)
    assert [item.expression for item in (*first.formulas, *second.formulas)] == ["b", "b"]


def of_pooling(look: Look, rule: str, position: Positions = FIRST) -> Look:
    part = replace(look.read.parts[0], positions=position, rule=rule, details=(rule,))
    return replace(with_formulas(look, "a"), read=replace(look.read, parts=(part,)))


@pytest.mark.parametrize(
    ("rules", "claimed", "gaps"),
    [
        (["one", "one"], "one", []),
        (["one", "two", "one"], "one", []),
        (["one", "two", "two"], "two", []),
        (["one", "two", "three"], "", ["runs of different sizes read different positions: one; two; three"]),
        (["one", "two", None], "", ["runs of different sizes read different positions: one; two"]),
        (["one", None], "one", ["read from one run alone: a run with other sizes fails (the forward fails)"]),
    ],
)
def test_a_pooling_is_claimed_where_two_runs_read_the_same(
    look: Look, rules: Sequence[str | None], claimed: str, gaps: list[str]
) -> None:
    found, _ = agreement(*(None if rule is None else of_pooling(look, rule) for rule in rules))
    assert [gap.reason for gap in found.gaps] == gaps
    assert {gap.topic for gap in found.gaps} <= {"pooling"}
    assert found.pooling.rule == (claimed or "not determined")
    assert len(found.pooling.parts) == bool(claimed)
    assert (found.pooling.kind is K.OTHER) is not bool(claimed)
    if rules[-1] is None and len(rules) == 2:
        assert (found.formula.expression, found.formula.reason) == ("", gaps[0])
        assert found.stages == look.stages
        assert found.hidden_shape == look.hidden_shape


def test_the_same_rule_for_other_positions_or_another_kind_is_another_pooling(look: Look) -> None:
    assert agreement(*[of_pooling(look, "one")] * 2)[1] == [1]
    assert agreement(of_pooling(look, "one"), of_pooling(look, "one", LAST), None)[1] == [1, 2]
    other = of_pooling(look, "one")
    other = replace(other, read=replace(other.read, parts=(replace(other.read.parts[0], kind=K.OTHER),)))
    assert agreement(of_pooling(look, "one"), other, None)[1] == [1, 2]


def test_other_words_for_the_same_rule_are_the_same_pooling(look: Look) -> None:
    one = of_pooling(look, "one")
    reworded = replace(one, read=replace(one.read, parts=(replace(one.read.parts[0], rule="in other words"),)))
    assert one.pooling.rule != reworded.pooling.rule
    assert agreement(one, reworded)[1] == [1]
    assert agreement(one, of_pooling(look, "two"), None)[1] == [1, 2]


def of_layer(look: Look, module: str, layer: int | None = None) -> Look:
    sources = (replace(look.read.sources[0], module=module, layer=layer),)
    return replace(with_formulas(look, "a"), read=replace(look.read, sources=sources))


def test_the_number_of_the_last_layer_may_differ_and_nothing_else(look: Look) -> None:
    """A shallow twin has another number of layers; which layer the head reads is counted from the end."""
    deep = of_layer(look, "bert.layer.11.norm")
    assert agreement(deep, of_layer(look, "bert.layer.0.norm"))[1] == [1]
    assert agreement(deep, of_layer(look, "bert.layer.0.dense"), None)[1] == [1, 2]
    assert agreement(deep, of_layer(look, "bert.layer.11.norm", -2), None)[1] == [1, 2]


@pytest.mark.parametrize(
    ("proofs", "agrees"),
    [
        ([True, True], True),
        ([True, None], True),
        ([None, True], None),
        ([True, False], False),
        ([False, True], False),
        ([True, True, False], False),
    ],
)
def test_a_contradiction_in_one_run_is_enough(
    look: Look, proofs: list[bool | None], agrees: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {f"rule {turn}": Verification(proof, "", ()) for turn, proof in enumerate(proofs)}
    monkeypatch.setattr(Look, "verify", lambda self: told[self.pooling.rule])
    seen = [of_pooling(look, rule) for rule in told]
    found, _ = agreement(*seen, *[None] * (3 - len(seen)), prove=True)
    assert found.verification.agrees is agrees
    alone, _ = agreement(seen[0], None, prove=True)
    assert alone.verification == told["rule 0"]
    assert agreement(*seen, None)[0].verification is None
    assert agreement(seen[0], None)[0].verification is None


def of_shapes(look: Look, *shapes: Shape) -> Look:
    stages = tuple(
        replace(stage, input_shapes=(shape,), output_shape=shape)
        for stage, shape in zip(look.stages, shapes, strict=False)
    )
    return replace(with_formulas(look, "a"), stages=stages)


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (("batch", "sequence", 8), ("batch", "sequence", 8), ("batch", "sequence", 8)),
        (("batch", 12, 8), ("batch", 24, 8), ("batch", "varies", 8)),
        (("batch", "sequence"), ("batch", 8), ("batch", 8)),
        (("batch", 8), ("batch", "sequence"), ("batch", 8)),
        (("batch", "sequence"), ("batch", "batch"), ("batch", "varies")),
        (("batch", 8), ("batch", 1, 8), ("batch", 8)),
    ],
)
def test_a_size_is_shown_as_two_runs_have_it(look: Look, one: Shape, other: Shape, both: Shape) -> None:
    found, _ = agreement(of_shapes(look, one, one), of_shapes(look, other, other))
    assert [(stage.input_shapes, stage.output_shape) for stage in found.stages] == [((both,), both)] * 2
    assert found.gaps == ()


def test_runs_through_different_operations_leave_the_head_path_open(look: Look) -> None:
    whole, less = of_shapes(look, (1,), (2,)), of_shapes(look, (1,))
    found, _ = agreement(whole, less)
    [gap] = found.gaps
    assert gap.topic == "head path" and "different operations" in gap.reason
    assert found.stages == whole.stages
    elsewhere = replace(less, stages=(replace(less.stages[0], module="elsewhere"),))
    assert [gap.topic for gap in agreement(less, elsewhere)[0].gaps] == ["head path"]


def with_guesses(look: Look, *guesses: Guess, unfaithful: tuple[str, ...] = ()) -> Look:
    execution = replace(look.execution, graph=replace(look.execution.graph, guesses=list(guesses)))
    return replace(with_formulas(look, "a"), head=replace(look.head, execution=execution), unfaithful=unfaithful)


def test_a_guess_leaves_the_head_path_open_unless_it_was_taken_before_the_hidden_states(look: Look) -> None:
    def lines(*looks: Look | None) -> list[str]:
        gaps = agreement(*looks)[0].gaps
        assert all(gap.topic == "head path" for gap in gaps if "value at" in gap.reason)
        return [gap.reason.split("value at ")[1].split(",")[0] for gap in gaps if "value at" in gap.reason]

    assert look.head.base is not None
    plain, model = with_guesses(look), look.execution.model
    inside = Guess((model, look.head.base), "model.py", 3)
    pooler = Guess((model, look.head.base), "model.py", 2, before=len(look.execution.graph.operations))
    branch = Guess((model,), "model.py", 4)
    write = Guess((model,), "model.py", 5, is_branch=False)
    assert lines(plain, plain) == []
    assert lines(with_guesses(look, inside), with_guesses(look, inside)) == []
    assert lines(with_guesses(look, pooler), with_guesses(look, pooler)) == ["model.py:2"]
    assert lines(with_guesses(look, branch), with_guesses(look, branch)) == ["model.py:4"]
    assert lines(plain, with_guesses(look, inside, branch)) == ["model.py:4"]
    assert lines(with_guesses(look, write), plain) == ["model.py:5"]
    assert lines(plain, with_guesses(look, write)) == []  # the first run had real weights, and wrote what it had
    assert lines(with_guesses(look, write, branch), None) == ["model.py:5", "model.py:4"]
    without = with_guesses(replace(look, head=replace(look.head, base=None)), inside)
    assert lines(without, without) == ["model.py:3"]


def test_a_run_that_cannot_be_trusted_leaves_the_head_path_open(look: Look) -> None:
    plain, doubted = with_guesses(look), with_guesses(look, unfaithful=("it is stale",))
    other = replace(doubted, read=of_pooling(look, "another").read)
    for found, _ in (agreement(plain, doubted, None), agreement(doubted, other, None), agreement(doubted, None)):
        assert (found.gaps[0].topic, found.gaps[0].reason) == ("head path", "it is stale")
        assert [gap.reason for gap in found.gaps if "positions" in gap.reason] == []
