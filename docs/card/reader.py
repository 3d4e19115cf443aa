"""Compares the scores of an engine with a card of headscope: python reader.py CARD SCORES [PRECISION].

SCORES is JSON: rows in the order of the card's inputs, or an object with `scores` or `logits`, and `input_ids` if the
engine has its own tokenizer. Exit codes: 0 the same, 1 different, 2 unusable files, 3 not determined.
"""

import json
import math
import sys
from pathlib import Path


def softmax(row):
    powers = [math.exp(value - max(row)) for value in row]
    return [power / sum(powers) for power in powers]


def sigmoid(row):
    return [1 / (1 + math.exp(-value)) if value > -700 else 0.0 for value in row]


FUNCTIONS = {
    "none": list,
    "softmax": softmax,
    "sigmoid": sigmoid,
    "softmax of softmax": lambda row: softmax(softmax(row)),
    "sigmoid of sigmoid": lambda row: sigmoid(sigmoid(row)),
}


def difference(rows, others):
    return max((abs(a - b) for one, other in zip(rows, others) for a, b in zip(one, other)), default=0.0)


def nearest_order(rows, given):
    """For each class of the engine, the class of the card with the nearest scores."""
    size = range(len(given[0]))
    gap = lambda at, to: max(abs(one[at] - row[to]) for one, row in zip(given, rows))
    return [min(size, key=lambda to: gap(at, to)) for at in size]


def explanations(card, places, given, tolerance):
    """Yields what gives all the scores: a head of the card, a function on its logits, and an order of the classes."""
    for head in [{"name": "as it is", "logits": card["logits"]}, *card["alternatives"]]:
        for name, function in FUNCTIONS.items():
            rows = [function(head["logits"][at]) for at in places]
            plain, nearest = list(range(len(rows[0]))), nearest_order(rows, given)
            for order in [plain, nearest] if sorted(nearest) == plain else [plain]:
                if difference([[row[at] for at in order] for row in rows], given) <= tolerance:
                    in_order = "" if order == plain else f", classes in the order {order}"
                    yield f"{head['name']}, then {name}{in_order}"
                    break


def compare(card, given, precision="float32"):
    """Gives the exit code and a sentence."""
    if card["format"] != "headscope-card" or card["version"] != 1:
        return 2, "not a card of version 1"
    given = given if isinstance(given, dict) else {"scores": given}
    kind = "logits" if "logits" in given else "scores"
    if given.get("labels", card["labels"]) != card["labels"]:
        return 2, "other labels than the card's, or in another order: put the scores into the order of the card"
    rows = [row if isinstance(row, list) else [row] for row in given[kind]]
    shape = len(card["inputs"]), len(card["labels"])
    if len(rows) != shape[0] or any(len(row) != shape[1] for row in rows):
        return 2, f"{shape[0]} rows of {shape[1]} numbers were expected"
    if not all(math.isfinite(value) for row in rows for value in row):
        return 1, "numbers that are not finite"
    limits = {item["precision"]: item[kind] for item in card["tolerances"]}
    if limits.get(precision) is None or card[kind] is None:
        return 2, f"{kind} were not measured in {precision}"
    tokens = [[id for id, kept in zip(item["input_ids"], item["attention_mask"]) if kept] for item in card["inputs"]]
    ids = given.get("input_ids", tokens)
    others = [at for at, item in enumerate(card["inputs"]) if ids[at] not in (tokens[at], item["input_ids"])]
    places = [at for at in range(shape[0]) if at not in others]
    tokenizer = f"the tokenizer differs on inputs {others}; " if others else ""
    if not places:
        return 1, f"{tokenizer}the head was not compared"
    given, expected = [rows[at] for at in places], [card[kind][at] for at in places]
    off, tolerance = difference(given, expected), limits[precision]
    if all(max(column) - min(column) < 2 * tolerance for column in zip(*expected)):
        return 3, f"{tokenizer}the expected scores hardly differ, so equal ones show nothing"
    if off <= tolerance:
        return int(
            difference(rows, card[kind]) > tolerance
        ), f"{tokenizer}the same {kind} within {precision} (off by {off:.2g})"
    found = list(explanations(card, places, given, tolerance))
    cause = found[0] if len(found) == 1 else "several causes fit" if found else "cause not in the card"
    near = [f"; within the rounding of {name}" for name, most in limits.items() if most is not None and off <= most]
    return 1, f"{tokenizer}other {kind}, off by {off:.2g}: {cause}{''.join(near[:1])}"


if __name__ == "__main__":
    try:
        files = [json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:3]]
        code, sentence = compare(files[0], files[1], *sys.argv[3:4])
    except (OSError, ValueError, KeyError, IndexError, TypeError, OverflowError, RecursionError) as err:
        code, sentence = 2, f"unusable: {type(err).__name__} {err}"
    print(f"{('PASS', 'FAIL', 'UNUSABLE', 'NOT DETERMINED')[code]}: {sentence}")
    sys.exit(code)
