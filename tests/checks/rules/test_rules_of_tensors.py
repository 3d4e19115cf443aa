"""The rules on loads and saves, written by hand: each on what it reports, and beside it on what it leaves.

Words that begin with ^ begin the message.
"""

from dataclasses import replace
from typing import Any

import pytest

from headscope.checks.rules.rule import every_rule
from headscope.core.facts.stored.unplaced import Unplaced, UnplacedReason
from headscope.facts import Severity
from headscope.shared.loaded.facts import (
    HeadMove,
    LoadedModel,
    SavedModel,
    ScoreComparison,
    Standstill,
    TensorCheck,
    TensorStatus as S,
)

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE


def tensor(status: S, *, head: bool = True, name: str = "", **facts: Any) -> TensorCheck:
    return TensorCheck(
        name or f"{'head' if head else 'base'}.{status}", status, (2, 2), "float32", is_head=head, **facts
    )


def heads(*statuses: S) -> dict[str, Any]:
    return {"tensors": tuple(map(tensor, statuses))}


def bases(*statuses: S) -> dict[str, Any]:
    return {"tensors": tuple(tensor(status, head=False) for status in statuses)}


OF_BASE = {status: tensor(status, head=False) for status in S}
OF_HEAD = {status: tensor(status) for status in S}
SCORES = ScoreComparison(inputs=4, differing=2, largest=0.5, bound=0.001)
DIFFER = {"scores": SCORES}
RAISES = ScoreComparison(live_error="ValueError: x")
UNPLACED = tuple(Unplaced(reason, (f"{reason}.weight",), reason, "") for reason in UnplacedReason)
ALONE = tensor(S.DROPPED, name="unknown.weight")

ON_LOADS: dict[str, list[tuple[str, dict[str, Any], list[tuple[Severity, str]]]]] = {
    "HS701": [
        ("head", {"tensors": (replace(OF_HEAD[S.DIFFERENT], max_error=0.25, reason="x"), OF_HEAD[S.DIFFERENT])},
         [(ERROR, "head.different hold other values than the checkpoint (x); the largest difference is 0.25: the")]),
        ("unmeasured", heads(S.DIFFERENT), [(ERROR, "holds other values than the checkpoint: the")]),
        ("base", bases(S.DIFFERENT), []),
    ],
    "HS702": [("head", heads(S.RANDOM), [(ERROR, "nothing for head.random")]),
              ("base", bases(S.RANDOM), [])],
    "HS703": [("head", heads(S.DROPPED), [(ERROR, "no tensor of the Model took it")]),
              ("base", bases(S.DROPPED), [])],
    "HS704": [("head", heads(S.PLACEHOLDER), [(ERROR, "head.placeholder is a placeholder")]),
              ("base", bases(S.PLACEHOLDER), [])],
    "HS705": [
        ("both", bases(S.DIFFERENT, S.PLACEHOLDER),
         [(ERROR, "1 tensor differs from the checkpoint"), (ERROR, "1 tensor holds no usable numbers")]),
        ("head", heads(S.DIFFERENT, S.PLACEHOLDER), []),
        ("beside a head", {"tensors": (OF_HEAD[S.EQUAL], OF_BASE[S.DIFFERENT])}, [(ERROR, "1 tensor outside")]),
    ],
    "HS706": [
        ("live", {"tensors": (OF_BASE[S.RANDOM], tensor(S.RANDOM, head=False, name="idle", is_live=False))},
         [(ERROR, "for 2 tensors: base.random; what the model returns depends on random values")]),
        ("idle", {"tensors": (tensor(S.RANDOM, head=False, is_live=False), OF_HEAD[S.EQUAL])},
         [(WARNING, "the scores do not depend on them")]),
        ("head", heads(S.RANDOM), []),
    ],
    "HS707": [
        ("live", bases(S.DROPPED), [(ERROR, "1 tensor of its base model")]),
        ("idle", {"tensors": (tensor(S.DROPPED, head=False, is_live=False),)}, []),
        ("head", heads(S.DROPPED), []),
    ],
    "HS724": [
        ("unknown alone", {"unplaced": UNPLACED}, [(ERROR, "1 tensor of the checkpoint finds no place in Model")]),
        ("reported as head", {"unplaced": UNPLACED, "tensors": (replace(ALONE, is_live=False),)}, []),
        ("of the base", {"unplaced": UNPLACED, "tensors": (replace(ALONE, is_head=False),)}, []),
        ("idle", {"unplaced": UNPLACED, "tensors": (replace(ALONE, is_head=False, is_live=False),)}, [(ERROR, "")]),
        ("none", {}, []),
    ],
    "HS708": [("untried", {}, [])],
    "HS709": [
        ("differ", DIFFER, [(ERROR, "On 2 of 4 random inputs the scores differ from those of a fresh "
          "load of the checkpoint, by up to 0.5 (rounding explains 0.001). The tensors are equal")]),
        ("open", DIFFER | heads(S.UNKNOWN), [(ERROR, "that could not be compared, or")]),
        ("not finite", {"scores": replace(SCORES, largest=None)}, [(ERROR, "one of the two gives NaN or infinity.")]),
        ("random calls", {"scores": replace(SCORES, repeats_equal=False)}, [(ERROR, "Called twice")]),
        ("raises", {"scores": RAISES}, [(ERROR, "the model in memory raises ValueError: x")]),
        ("fresh raises", {"scores": ScoreComparison(fresh_error="OSError: y")}, [(ERROR, "raises OSError: y")]),
        ("both raise", {"scores": replace(RAISES, fresh_error=RAISES.live_error, differing=1)}, []),
        ("both raise beside", {"scores": replace(SCORES, live_error="E", fresh_error="E")}, [(ERROR, "On 2 of 4")]),
        ("not compared", {"scores": replace(SCORES, reason="x")}, []),
        ("equal", {"scores": replace(SCORES, differing=0)}, []),
        ("known cause", {"scores": SCORES, "tensors": (tensor(S.RANDOM, is_live=False), OF_HEAD[S.EQUAL])}, []),
        ("cause in the base", DIFFER | bases(S.DROPPED, S.EQUAL), []),
        ("idle", DIFFER | {"tensors": (tensor(S.RANDOM, head=False, is_live=False),)}, [(ERROR, "On 2 of 4")]),
    ],
}  # fmt: skip

LABELS = {"labels": ("no", "yes")}
MOVED, STILL = HeadMove("out.weight", 1, 2), HeadMove("dense.weight", 1, 1, Standstill.FROZEN)
NEW = replace(STILL, is_new=True)
BIAS = HeadMove("dense.bias", 1, 1, Standstill.ZERO_GRADIENT, is_matrix=False)

ON_SAVES: dict[str, list[tuple[str, dict[str, Any], list[tuple[Severity, str]]]]] = {
    "HS711": [
        ("model", heads(S.RANDOM), [(ERROR, "head.random: the next load makes it random")]),
        ("adapter", heads(S.RANDOM) | {"is_adapter": True}, []),
        ("base", bases(S.RANDOM), []),
    ],
    "HS712": [("head", {"tensors": (replace(OF_HEAD[S.RENAMED], keys=("k",)),)}, [(ERROR, "head.renamed as k")]),
              ("equal", heads(S.EQUAL), [])],
    "HS713": [
        ("head", heads(S.DIFFERENT), [(ERROR, "differs from the live model: the save")]),
        ("behind", heads(S.DIFFERENT) | {"steps_behind": 2}, [(WARNING, "made 2 steps before the end")]),
        ("base", bases(S.DIFFERENT), []),
    ],
    "HS714": [
        ("adapter", heads(S.RANDOM) | {"is_adapter": True}, [(ERROR, "does not hold head.random: ")]),
        ("model", heads(S.RANDOM), []),
        ("base", bases(S.RANDOM) | {"is_adapter": True}, []),
        ("whole adapter", heads(S.EQUAL) | {"is_adapter": True}, []),
    ],
    "HS715": [
        ("others", LABELS | {"saved_labels": ("a", "b")}, [(ERROR, "no, yes, and the saved config.json names a, b")]),
        ("none", LABELS | {"saved_labels": ()}, [(ERROR, "config.json names none")]),
        ("no file", LABELS, [(NOTE, "has no config.json")]),
        ("same", LABELS | {"saved_labels": ("no", "yes")}, []),
        ("adapter", LABELS | {"is_adapter": True}, []),
        ("numbered", {"saved_labels": ("a", "b")}, []),
    ],
    "HS716": [
        ("cast", {"tensors": (replace(OF_HEAD[S.CAST], reason="float16 in the save", max_error=0.5),)},
         [(WARNING, "float32 in memory, float16 in the save; rounding changed a number by up to 0.5.")]),
        ("exact", {"tensors": (replace(OF_HEAD[S.CAST], reason="float64 in the save", max_error=0.0),)},
         [(WARNING, "float32 in memory, float64 in the save.")]),
        ("equal", heads(S.EQUAL), []),
    ],
    "HS717": [("shard", {"missing_shards": ("a", "b")}, [(ERROR, "2 shards that are not there: a, b")]),
              ("hollow", {"hollow": ("k",)}, [(ERROR, "holds k without elements")]), ("whole", {}, [])],
    "HS719": [
        ("lost", bases(S.RANDOM), [(ERROR, "outside the head: base.random: the next")]),
        ("adapter", {"tensors": (replace(OF_BASE[S.RANDOM], reason="x"),), "is_adapter": True}, [(ERROR, "(x): ")]),
        ("differs", bases(S.DIFFERENT), [(ERROR, "outside the head (base.different) differs")]),
        ("head", heads(S.RANDOM, S.DIFFERENT), []),
    ],
    "HS720": [
        ("numbers", heads(S.PLACEHOLDER), [(ERROR, "head.placeholder has no usable numbers")]),
        ("hollow", {"tensors": (replace(OF_HEAD[S.PLACEHOLDER], keys=("k",)),), "hollow": ("k",)}, []),
    ],
    "HS710": [("settings", {"settings": ("lora_alpha",)}, [(ERROR, "lora_alpha: a load")]), ("same", {}, [])],
    "HS721": [
        ("differ", DIFFER, [(ERROR, "differ from those of a fresh load of the save, by up to 0.5")]),
        ("behind", {"scores": SCORES, "steps_behind": 1}, []),
        ("not compared", {"scores": replace(SCORES, reason="x")}, []),
        ("nobody asked", {}, []),
    ],
    "HS722": [("five", {"fields": tuple("abcde")}, [(ERROR, "a; b; c; d and 1 more.")]),
              ("four", {"fields": tuple("abcd")}, [(ERROR, "a; b; c; d.")]), ("same", {}, [])],
    "HS723": [("one", {"unfilled": ("x",)}, [(ERROR, "makes it random: x.")]), ("none", {}, [])],
    "HS718": [
        ("frozen alone", {"moves": (STILL,)}, [(WARNING, "^No tensor of the head was trained. 1 tensor")]),
        ("frozen beside", {"moves": (MOVED, STILL)}, []),
        ("new", {"moves": (NEW,)}, [(ERROR, "^No tensor of the head was trained. 1 tensor")]),
        ("new beside", {"moves": (MOVED, NEW)}, [(ERROR, "^1 tensor of the head still holds its random")]),
        ("new and too small", {"moves": (replace(NEW, still=Standstill.TOO_SMALL),)}, [(WARNING, "has not changed")]),
        ("new and old", {"moves": (NEW, STILL)},
         [(ERROR, "^No tensor of the head was trained. 1 tensor"), (WARNING, "^1 tensor of the head has not changed")]),
        ("bias beside", {"moves": (MOVED, BIAS)}, []),
        ("bias alone", {"moves": (BIAS,)}, [(WARNING, "has not changed (dense.bias: its gradient was zero")]),
        ("matrix beside", {"moves": (MOVED, replace(BIAS, is_matrix=True))}, [(WARNING, "^1 tensor")]),
        ("bias left out", {"moves": (MOVED, replace(BIAS, still=Standstill.LEFT_OUT))}, [(WARNING, "optimizer")]),
        ("trained", {"moves": (MOVED,)}, []),
    ],
}  # fmt: skip
CASES = [
    pytest.param(kind, identifier, facts, findings, id=f"{identifier}-{name}")
    for kind, table in ((LoadedModel, ON_LOADS), (SavedModel, ON_SAVES))
    for identifier, cases in table.items()
    for name, facts, findings in cases
]


@pytest.mark.parametrize(("kind", "identifier", "facts", "findings"), CASES)
def test_a_rule_reports_its_fault_and_leaves_the_others(
    kind: type[LoadedModel | SavedModel], identifier: str, facts: dict[str, Any], findings: list[tuple[Severity, str]]
) -> None:
    rule = every_rule()[identifier]
    found = list(rule.judge(rule, kind("place", "Model", **({"tensors": ()} | facts))))
    assert [item.severity for item in found] == [severity for severity, _ in findings]
    for item, (_, words) in zip(found, findings, strict=True):
        assert item.message.startswith(words[1:]) if words.startswith("^") else words in item.message


def test_every_rule_on_loads_and_saves_is_in_the_table() -> None:
    rules = {item.id for item in every_rule().values() if item.command in ("verify", "verify_save")}
    assert rules == {*ON_LOADS, *ON_SAVES}
