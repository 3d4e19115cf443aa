"""Plans of classes, and chains of them: the composition of edits equals the direct one."""

import math
import random
from pathlib import Path

import pytest
import torch

from headscope.copies.class_rows import edited_tensor, promised_scores
from headscope.copies.facts import EditedLabel, LabelOrigin
from headscope.errors import Unsupported, UsageError
from headscope.shell.values import read_pairs
from headscope.slices.edit.plan import LabelChanges, plan_labels, read_additions, read_changes_file, read_merges


def edited_head(
    weight: torch.Tensor, bias: torch.Tensor, labels: tuple[EditedLabel, ...], temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return (
        edited_tensor(weight, 0, labels, temperature=temperature),
        edited_tensor(bias, 0, labels, temperature=temperature, takes_shift=True),
    )


def drawn_changes(names: list[str], draw: random.Random, step: int) -> LabelChanges:
    """One change of each kind, or none, that can be made."""
    dropped = draw.sample(names, k=draw.randint(0, max(0, len(names) - 4)))
    left = [name for name in names if name not in dropped]
    merged = draw.sample(left, k=2) if draw.random() < 0.3 else []
    left = [name for name in left if name not in merged[1:]]
    merge = {f"m{step}": merged} if merged else {}
    left = [f"m{step}" if merged and name == merged[0] else name for name in left]
    add = {f"a{step}": draw.choice(("zero", "mean", f"copy:{left[0]}"))} if draw.random() < 0.7 else {}
    left += list(add)
    order = draw.sample(left, k=len(left)) if draw.random() < 0.7 else None
    bias = {draw.choice(left): draw.uniform(-1, 1)} if draw.random() < 0.5 else {}
    threshold = {draw.choice(left): draw.uniform(0.1, 0.9)} if draw.random() < 0.5 else {}
    return LabelChanges(drop=dropped, merge=merge, add=add, order=order, bias=bias, threshold=threshold)


@pytest.mark.parametrize("seed", range(200))
def test_a_chain_of_edits_gives_the_scores_that_its_promises_compose_to(seed: int) -> None:
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    weight = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    bias = torch.randn(6, generator=generator, dtype=torch.float64)
    hidden = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    names = [f"c{at}" for at in range(6)]
    promised = hidden @ weight.T + bias
    for step in range(4):
        changes, temperature = drawn_changes(names, draw, step), draw.choice((1.0, 2.0, 0.7))
        labels = plan_labels(names, changes, is_softmax=True)
        promised = promised_scores(promised, labels, temperature)
        weight, bias = edited_head(weight, bias, labels, temperature)
        names = [label.name for label in labels]
    torch.testing.assert_close(hidden @ weight.T + bias, promised, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("axis", [0, 1])
def test_kept_rows_are_equal_bit_by_bit_on_any_axis(axis: int) -> None:
    tensor = torch.tensor([[1.0, float("nan")], [-0.0, 1e-40], [3.0, float("inf")]], dtype=torch.float16)
    tensor = tensor if axis == 0 else tensor.T.contiguous()
    labels = plan_labels(["a", "b", "c"], LabelChanges(add={"d": "zero"}, order=["c", "d", "b", "a"]), is_softmax=True)
    found = edited_tensor(tensor, axis, labels).movedim(axis, 0)
    rows = tensor.movedim(axis, 0)
    for at, source in ((0, 2), (2, 1), (3, 0)):
        assert torch.equal(found[at].view(torch.int16), rows[source].contiguous().view(torch.int16))
    assert not found[1].any() and found.dtype is torch.float16


def test_changes_apply_in_order_and_name_what_those_before_left() -> None:
    changes = LabelChanges(
        rename={"a": "A"}, drop=["b"], merge={"cd": ["c", "d"]}, add={"e": "copy:A"}, order=["e", "cd", "A"],
        bias={"A": 1.0}, threshold={"A": 0.5},
    )  # fmt: skip
    labels = plan_labels(["a", "b", "c", "d"], changes, is_softmax=True)
    assert [(label.name, label.origin.value, label.source, label.merged) for label in labels] == [
        ("e", "copied", 0, ()), ("cd", "merged", None, (2, 3)), ("A", "kept", 0, ())
    ]  # fmt: skip
    assert [label.shift for label in labels] == [0.0, pytest.approx(math.log(2)), 1.0]


def test_names_can_be_swapped() -> None:
    labels = plan_labels(["a", "b"], LabelChanges(rename={"a": "b", "b": "a"}), is_softmax=True)
    assert [label.name for label in labels] == ["b", "a"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("new", ("new", "zero")), ("new=mean", ("new", "mean")), ("a=b=zero", ("a=b", "zero")),
        ("a=b=copy:c=d", ("a=b", "copy:c=d")), ("x=copy:y", ("x", "copy:y")), ("=mean", ("", "mean")),
    ],
)  # fmt: skip
def test_additions_are_read(text: str, expected: tuple[str, str]) -> None:
    assert read_additions([text]) == dict([expected])


@pytest.mark.parametrize("given", [["x", "x=mean"], ["x=Mean"], ["a=b"]])
def test_a_class_that_is_added_twice_or_with_an_unknown_filling_is_refused(given: list[str]) -> None:
    with pytest.raises(UsageError):
        read_additions(given)


def test_two_merges_into_one_name_and_a_class_that_is_merged_twice_are_refused() -> None:
    with pytest.raises(UsageError, match="makes x twice"):
        read_merges(["a+b=x", "c+d=x"])
    with pytest.raises(UsageError, match="a class twice"):
        plan_labels(["a", "b"], LabelChanges(merge={"x": ["a", "a", "b"]}), is_softmax=True)


@pytest.mark.parametrize(
    ("dtype", "temperature", "shift"),
    [
        (torch.bfloat16, 1.0, 0.0002), (torch.bfloat16, 1.001, 0.0), (torch.float16, 1e6, 0.0),
        (torch.float32, 1e42, 0.0), (torch.float32, 1.0, 1e39), (torch.float16, 1.0, 70000.0),
    ],
)  # fmt: skip
def test_a_change_that_the_number_format_loses_is_refused(dtype: torch.dtype, temperature: float, shift: float) -> None:
    bias = torch.tensor([0.5, -0.25, 0.125]).to(dtype)
    labels = [EditedLabel(name, LabelOrigin.KEPT, at, name, shift=shift) for at, name in enumerate("abc")]
    with pytest.raises(Unsupported, match=r"too large or too small|is lost") as caught:
        edited_tensor(bias, 0, labels, temperature=temperature, takes_shift=True)
    assert ("--dtype float32" in caught.value.hint) is (dtype != torch.float32)
    assert "choose another number" in caught.value.hint
    kept = edited_tensor(bias, 0, labels, temperature=2.0 if temperature != 1.0 else 1.0, takes_shift=False)
    assert kept.dtype == dtype


def test_pairs_and_merges_are_read() -> None:
    assert read_pairs(["a=b=c", "x=y"], "--rename") == {"a=b": "c", "x": "y"}
    assert read_merges(["a+b=c"]) == {"c": ("a", "b")}
    assert read_pairs(None, "--bias") is None
    for wrong in (["a"], ["a=b", "a=c"]):
        with pytest.raises(UsageError):
            read_pairs(wrong, "--rename")


@pytest.mark.parametrize(
    "text",
    ["", "3", '"a"', '{"nosuch": []}', '{"drop": {}}', '{"order": [1]}', '{"merge": {"a": "bc"}}', '{"add": {"a": 1}}',
     "[" * 100_000, '{"bias": [1]}'],
)  # fmt: skip
def test_a_file_of_changes_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "labels.json"
    file.write_text(text)
    with pytest.raises(UsageError):
        read_changes_file(file)


def test_a_list_in_a_file_is_the_order(tmp_path: Path) -> None:
    file = tmp_path / "labels.json"
    file.write_text('["b", "a"]')
    assert read_changes_file(file) == {"order": ["b", "a"]}
