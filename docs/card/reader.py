"""Compares the scores of an engine with a card of headscope: python reader.py CARD SCORES [PRECISION].

SCORES is JSON: rows in the order of the card's inputs, or an object with `scores` or `logits`, and `input_ids` if the
engine has its own tokenizer. Exit codes: 0 the same, 1 different, 3 not determined or unusable files.
"""

import json
import math
import sys
from pathlib import Path

shares = lambda powers: [power / total for total in [sum(powers)] for power in powers]
FUNCTIONS = {
    "none": list,
    "softmax": lambda row: shares([math.exp(value - top) for top in [max(row)] for value in row]),
    "sigmoid": lambda row: [1 / (1 + math.exp(min(-value, 700))) for value in row],
}
difference = lambda rows, others: max(abs(a - b) for one, other in zip(rows, others) for a, b in zip(one, other))
FUNCTIONS |= {f"{name} of {name}": lambda row, f=FUNCTIONS[name]: f(f(row)) for name in ("softmax", "sigmoid")}
gaps = lambda rows, others: [[a - b for a, b in zip(*pair)] for pair in zip(zip(*rows), zip(*others))]  # by class
spread = lambda one, two, by: sum(sum(a * a for a in gap) - by * sum(gap) ** 2 / len(gap) for gap in gaps(one, two))
need = lambda is_met, found: is_met or (_ for _ in ()).throw(ValueError(found))


def read(name):
    finite = lambda text: need(math.isfinite(float(text)), f"{text[:20]} is not a finite number") and float(text)
    unique = lambda pairs: need(len(dict(pairs)) == len(pairs), "a key is there twice") and dict(pairs)
    hooks = dict.fromkeys(("parse_int", "parse_float", "parse_constant"), finite)
    return json.loads(Path(name).read_text(encoding="utf-8-sig"), object_pairs_hook=unique, **hooks)


def numbers(card, what, rows):
    """Gives rows of numbers, one for each input and class; a number alone is a row."""
    count, width = len(card["inputs"]), len(card["labels"])
    rows = [row if isinstance(row, list) else [row] for row in rows] if isinstance(rows, list) else []
    fit = all(len(row) == width and all(isinstance(value, float) for value in row) for row in rows)
    need(fit and len(rows) == count > 0 < width, f"{what}: {count} rows of {width} numbers were expected")
    return rows


def explanations(heads, given, tolerance):
    """Yields what gives all the scores: a head of the card, a function on its logits, and an order of the classes."""
    size = range(len(given[0]))
    gap = lambda rows, at, to: max(abs(one[at] - row[to]) for one, row in zip(given, rows))
    for head, name in ((head, name) for head in heads for name in FUNCTIONS):
        rows, order = [FUNCTIONS[name](row) for row in heads[head]], list(size)
        if difference(rows, given) > tolerance >= difference(map(sorted, rows), map(sorted, given)):
            order = [min(size, key=lambda to: gap(rows, at, to)) for at in size]
        if sorted(order) == list(size) and difference([[row[at] for at in order] for row in rows], given) <= tolerance:
            yield f"{head}, then {name}{'' if order == list(size) else f', classes in the order {order}'}"


def compare(card, file, precision="float32"):
    """Gives the first word and a sentence. Raises an error for files that can't be used."""
    need((card.get("format"), str(card.get("version"))) == ("headscope-card", "1.0"), "not a card of version 1")
    file = {"scores": file} if isinstance(file, list) else {name: file[name] for name in file if file[name] is not None}
    need(("scores" in file) != ("logits" in file), "either scores or logits were expected")
    need(file.get("labels", card["labels"]) == card["labels"], "other labels than the card's, or in another order")
    kind = "logits" if "logits" in file else "scores"
    rows, all_expected = numbers(card, kind, file[kind]), numbers(card, f"the card's {kind}", card[kind])
    limits = {item["precision"]: item[kind] for item in card["tolerances"] if item[kind] is not None}
    need(precision in limits, f"{kind} were not measured in {precision}")
    tokens = [[id for id, kept in zip(item["input_ids"], item["attention_mask"]) if kept] for item in card["inputs"]]
    ids, tolerance = file.get("input_ids", tokens), limits[precision]
    is_list = lambda row: isinstance(row, list) and all(isinstance(id, float) and id.is_integer() for id in row)
    need(ids is tokens or (len(ids) == len(rows) and all(map(is_list, ids))), "input_ids: lists of IDs were expected")
    is_same = difference(rows, all_expected) <= tolerance
    places = [at for at, item in enumerate(card["inputs"]) if ids[at] in (tokens[at], item["input_ids"])]
    others = [at for at in range(len(rows)) if at not in places]
    tokenizer = f"the tokenizer differs on inputs {others}; " if others else ""
    if not places and not is_same:
        return "FAIL", f"{tokenizer}the head was not compared"
    only = lambda rows: rows if is_same else [rows[at] for at in places]
    given, expected = only(rows), only(all_expected)
    off, margin = difference(given, expected), (10 if precision == "float32" else 2) * tolerance
    if off <= tolerance:
        apply = FUNCTIONS["none" if kind == "logits" else card["activation"]]
        telling = [row for row in expected if apply is list or any(abs(value - round(value)) > margin for value in row)]
        if is_same and all(max(column) - min(column) < margin for column in zip(*telling)):
            return "NOT DETERMINED", f"{tokenizer}the expected {kind} hardly differ, so equal ones show nothing"
        twin = [apply(row) for run in card["runs"] if run["name"] == precision for row in only(run["logits"])]
        if off > limits["float32"] and any(4 * spread(given, twin, by) > spread(given, expected, by) for by in (0, 1)):
            return "NOT DETERMINED", f"{tokenizer}off by {off:.2g}: rounding of {precision}, or slightly other weights"
        return "PASS" if is_same else "FAIL", f"{tokenizer}the same {kind} within {precision} (off by {off:.2g})"
    heads = {item["name"]: only(numbers(card, item["name"], item["logits"])) for item in card["alternatives"]}
    heads = {"as it is": only(numbers(card, kind, card["logits"])), **heads}
    far = tolerance if precision == "float32" else 10 * tolerance  # in half precision, the other causes have to be far
    found, near = (list(explanations(heads, given, most)) for most in (tolerance, far))
    cause = near[0] if near and near == found[:1] else "several causes fit" if found else "cause not in the card"
    within = [f"; within the rounding of {name}" for name, most in limits.items() if off <= most]
    return "FAIL", f"{tokenizer}other {kind}, off by {off:.2g}: {cause}{''.join(within[:1])}"


if __name__ == "__main__":
    try:
        word, sentence = compare(read(sys.argv[1]), read(sys.argv[2]), *sys.argv[3:4])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as err:
        word, sentence = "UNUSABLE", f"{type(err).__name__}: {err}"
    sys.exit(print(f"{word}: {sentence}") or {"PASS": 0, "FAIL": 1}.get(word, 3))
