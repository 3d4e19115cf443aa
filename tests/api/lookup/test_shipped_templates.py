"""Templates of facts: found from several documents, and filled again for sizes that none of them had."""

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

import pytest

from headscope.core.source.memory.templates import changed, filled
from scripts.shipped.template_fitting import Unfit, changes_between, fitted

SIZES = [
    {"width": 768, "heads": 12, "depth": 3, "words": 30522, "share": 0.1, "classes": 3, "dtype": "float32"},
    {"width": 1536, "heads": 24, "depth": 2, "words": 30529, "share": 0.2, "classes": 5, "dtype": "float16"},
    {"width": 384, "heads": 2, "depth": 5, "words": 30412, "share": 0.3, "classes": 1003, "dtype": "bfloat16"},
    {"width": 2304, "heads": 36, "depth": 4, "words": 31546, "share": 0.05, "classes": 12, "dtype": "float32"},
]
OTHER = {"width": 1024, "heads": 16, "depth": 24, "words": 50265, "share": 0.25, "classes": 77, "dtype": "float16"}


def found_again(make: Callable[[dict[str, Any]], Any], sizes: Sequence[dict[str, Any]] = SIZES) -> Any:
    """What the template of some documents gives for other sizes, which has to be what `make` gives."""
    template = fitted([(size, make(size)) for size in sizes])
    assert filled(template, OTHER) == make(OTHER)
    return template


@pytest.mark.parametrize(
    "make",
    [
        lambda it: 7,
        lambda it: it["width"],
        lambda it: 3 * it["width"],
        lambda it: it["words"] + 2,
        lambda it: 16 * it["depth"] + 5,
        lambda it: it["width"] // it["heads"],
        lambda it: it["width"] * it["classes"],
        lambda it: it["width"] * it["words"],
        lambda it: it["width"] + it["classes"],
        lambda it: 2 * it["width"] - it["heads"],
        lambda it: it["width"] + 2 * it["depth"] * (it["width"] // it["heads"]),
        lambda it: it["share"],
        lambda it: it["dtype"],
        lambda it: f"{it['words']:,} tokens",
        lambda it: f"p={it['share']}, inplace=False",
        lambda it: f"[batch, {it['width']}] -> [batch, {it['classes']}]",
        lambda it: {"shape": [it["width"], it["words"]], "name": "dense", "count": None},
        lambda it: [f"encoder.layer.{at}.weight" for at in range(it["depth"])],
        lambda it: ["full"] * it["depth"],
        lambda it: [("full", "part", "part")[at % 3] for at in range(it["depth"] + 5)],
        lambda it: list(range(2, it["depth"] + 4)),
        lambda it: ["stem", *(f"stage{at}" for at in range(1, it["depth"] + 1))],
        lambda it: [f"stage{it['depth']}"],
        lambda it: sqrt(1 / (3 * it["width"])),
        lambda it: ["first", *([f"h.{at}.a", [it["width"]]] for at in range(it["depth"])), "last"],
        lambda it: ["h.0.bias", *(f"h.{at}.{name}" for at in range(it["depth"]) for name in ("a", "b")), "head.weight"],
        lambda it: [
            *(f"decoder.{at}.x" for at in range(it["depth"])),
            *(f"encoder.{at}.y" for at in range(it["depth"])),
        ],
    ],
)
def test_a_template_holds_for_sizes_that_it_was_not_made_from(make: Callable[[dict[str, Any]], Any]) -> None:
    found_again(make)


@pytest.mark.parametrize(
    "make",
    [
        lambda it: it["width"] ** 3,
        lambda it: it["width"] % 7,
        lambda it: "one" if it["width"] > 800 else "other",
        lambda it: None if it["width"] > 800 else 1,
        lambda it: {"a": 1} if it["width"] > 800 else {"b": 1},
        lambda it: it["share"] * 3,
    ],
)
def test_what_no_template_tells_is_refused(make: Callable[[dict[str, Any]], Any]) -> None:
    with pytest.raises(Unfit):
        fitted([(size, make(size)) for size in SIZES])


def test_true_is_no_number() -> None:
    with pytest.raises(Unfit):
        fitted([(SIZES[0], True), (SIZES[1], 1), (SIZES[2], 1), (SIZES[3], 1)])


def test_a_line_of_a_source_is_asked_for() -> None:
    template = [{"@": ["models/x.py", "X.forward", 3, 20]}]
    assert filled(template, {}, lambda path, name, node, line: len(path) + len(name) + node + line) == [43]
    assert filled(template, {}) == template


def test_changes_lead_from_one_value_to_another() -> None:
    one = {"a": [1, {"b": 2}], "c": True, "d": [1, 2]}
    other = {"a": [1, {"b": 3}], "c": 1, "d": [1]}
    changes = list(changes_between(one, other))
    assert changes == [(["a", 1, "b"], 3), (["c"], 1), (["d"], [1])] or changed(one, changes) == other
    assert changed(one, changes) == other and one["c"] is True
    assert list(changes_between(one, one)) == []
