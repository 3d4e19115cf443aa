"""Folding: names are written once only where nothing but one index differs."""

import pytest
from hypothesis import given, strategies as st

from headscope.core.words.fold import FoldedRow, few_keys, fold_keys, fold_rows, spell_run

FOLDED: tuple[tuple[list[str], list[str]], ...] = (
    (["layer.0.a", "layer.1.a", "layer.2.a"], ["layer.{0...2}.a"]),
    (["layer.0.a", "layer.1.a"], ["layer.{0,1}.a"]),
    (["layer.0.a", "layer.2.a", "layer.3.a", "layer.4.a"], ["layer.{0,2...4}.a"]),
    (["layer.0.a", "layer.1.a", "layer.0.b"], ["layer.{0,1}.a", "layer.0.b"]),
    (["x.0.e.0.w", "x.0.e.1.w", "x.1.e.0.w", "x.1.e.1.w"], ["x.{0,1}.e.{0,1}.w"]),
    (["x.0.e.0.w", "x.0.e.1.w", "x.1.e.0.w"], ["x.0.e.{0,1}.w", "x.1.e.0.w"]),
    (["a.bias", "a.weight"], ["a.{weight,bias}"]),
    (["layer.00.a", "layer.1.a"], ["layer.00.a", "layer.1.a"]),
    (["0", "1", "2"], ["{0...2}"]),
    ([], []),
)


@pytest.mark.parametrize(("keys", "folded"), FOLDED)
def test_keys_fold_exactly(keys: list[str], folded: list[str]) -> None:
    assert list(fold_keys(keys)) == folded


def test_the_rest_is_counted_in_keys() -> None:
    keys = ["a.bias", "a.weight", *(f"layer.{at}.{name}" for at in range(12) for name in ("w", "v"))]
    assert few_keys(keys) == "a.{weight,bias}, layer.{0...11}.{w,v}"
    assert few_keys(keys, 1) == "a.{weight,bias} and 24 more"
    assert few_keys(["a", "b", "c.x", "c.y"], 2, "others") == "a, b and 2 others"


def test_rows_that_differ_in_shape_stay_apart() -> None:
    rows = [FoldedRow((f"layer.{index}.w",), ((768, 3 if index == 1 else 2),)) for index in range(4)]
    assert [(row.names, row.count) for row in fold_rows(rows)] == [
        (("layer.{0,2,3}.w",), 3),
        (("layer.1.w",), 1),
    ]


def test_a_row_folds_with_its_checkpoint_keys() -> None:
    rows = [FoldedRow((f"m.layer.{index}.weight", f"layer.{index}.gamma")) for index in range(12)]
    assert fold_rows(rows) == (FoldedRow(("m.layer.{0...11}.weight", "layer.{0...11}.gamma"), (), 12),)


def test_equal_indices_at_two_places_are_told_apart() -> None:
    names = [f"layers.{layer}.experts.{expert}.w" for layer in range(3) for expert in range(3)]
    rows = [FoldedRow((f"model.{name}", f"0.{name}")) for name in names]
    both = "layers.{0...2}.experts.{0...2}.w"
    assert fold_rows(rows) == (FoldedRow((f"model.{both}", f"0.{both}"), (), len(names)),)


def test_a_row_whose_checkpoint_key_has_another_index_stays_apart() -> None:
    rows = (FoldedRow(("layer.0.w", "layer.0.w")), FoldedRow(("layer.1.w", "layer.7.w")))
    assert fold_rows(rows) == rows


_NAMES = st.lists(st.sampled_from(["layer", "0", "1", "2", "10", "w", "01"]), min_size=1, max_size=4).map(".".join)


@given(st.lists(st.tuples(_NAMES, st.integers(0, 1)), unique_by=lambda pair: pair[0], max_size=12))
def test_folding_loses_and_invents_nothing(pairs: list[tuple[str, int]]) -> None:
    folded = fold_rows(FoldedRow((name,), (same,)) for name, same in pairs)
    unfolded = [(name, row.same[0]) for row in folded for name in expand(row.names[0])]
    assert sorted(unfolded, key=str) == sorted(pairs, key=str)
    assert sum(row.count for row in folded) == len(pairs)


def expand(name: str) -> list[str]:
    """All names that a folded one stands for."""
    before, brace, rest = name.partition("{")
    if not brace:
        return [name]
    run, _, after = rest.partition("}")
    return [f"{before}{index}{tail}" for part in run.split(",") for index in spread(part) for tail in expand(after)]


def spread(part: str) -> range:
    first, _, last = part.partition("...")
    return range(int(first), int(last or first) + 1)


def test_a_run_is_spelled_by_its_ends() -> None:
    assert spell_run([3, 0, 1, 2, 7]) == "{0...3,7}"
