"""Compares the scores of an engine with a card of headscope: python reader.py CARD SCORES [PRECISION].

SCORES is JSON: rows in the order of the card's inputs, or an object with `scores` or `logits`, and `input_ids` if the
engine has its own tokenizer. Exit codes: 0 the same, 1 different, 3 not determined or unusable files.
"""

import json
import math
import sys
from pathlib import Path

# How many tolerances apart scores have to lie so that rounding can't be what makes them differ.
FAR = 10
# How many times smaller the squared error has to be when the model in half precision is what is compared with: half of
# the error, squared. Rounding that happens elsewhere leaves more than half, and so do other weights.
CLOSER = 4


def softmax(row):
    top = max(row)
    powers = [math.exp(value - top) for value in row]
    total = sum(powers)
    return [power / total for power in powers]


sigmoid = lambda row: [1 / (1 + math.exp(min(-value, 700))) for value in row]  # math.exp raises an error above 709
FUNCTIONS = {"none": list, "softmax": softmax, "sigmoid": sigmoid}
FUNCTIONS["softmax of softmax"] = lambda row: softmax(softmax(row))
FUNCTIONS["sigmoid of sigmoid"] = lambda row: sigmoid(sigmoid(row))
is_number = lambda value: type(value) in (int, float) and math.isfinite(value)  # the type of True is bool


def need(is_met, found):
    if not is_met:
        raise ValueError(found)


def read(name):
    """Reads JSON, with each number as a float. Refuses numbers that are not finite, and a key that is there twice."""
    finite = lambda text: need(math.isfinite(float(text)), f"{text[:20]} is not a finite number") or float(text)
    unique = lambda pairs: need(len(dict(pairs)) == len(pairs), "a key is there twice") or dict(pairs)
    text = Path(name).read_text(encoding="utf-8-sig")
    return json.loads(text, parse_int=finite, parse_float=finite, parse_constant=finite, object_pairs_hook=unique)


def numbers(card, what, rows):
    """Gives rows of numbers, one for each input and class; a number alone is a row."""
    count, width = len(card["inputs"]), len(card["labels"])
    rows = [row if isinstance(row, list) else [row] for row in rows] if isinstance(rows, list) else []
    fit = all(len(row) == width and all(map(is_number, row)) for row in rows)
    need(fit and len(rows) == count > 0 < width, f"{what}: {count} rows of {width} numbers were expected")
    return rows


def difference(rows, others):
    """Gives the largest difference of a number."""
    return max(abs(a - b) for row, other in zip(rows, others) for a, b in zip(row, other))


def squared_error(rows, others, centered):
    """Sums the squared differences; with `centered`, after each class's mean difference is taken off."""
    gaps = [[a - b for a, b in zip(row, other)] for row, other in zip(rows, others)]
    means = [sum(column) / len(column) if centered else 0.0 for column in zip(*gaps)]
    return sum((gap - mean) ** 2 for row in gaps for gap, mean in zip(row, means))


def is_rounding(given, expected, model):
    """True if scores are off from the expected ones as those of the model in half precision are, text by text."""
    left, whole = ([squared_error(given, rows, centered) for centered in (False, True)] for rows in (model, expected))
    return all(CLOSER * one <= other for one, other in zip(left, whole))


def explanations(heads, given, tolerance):
    """Yields what gives all the scores: a head of the card, a function on its logits, and an order of the classes."""
    plain = list(range(len(given[0])))
    for head, name in ((head, name) for head in heads for name in FUNCTIONS):
        rows, order = [FUNCTIONS[name](row) for row in heads[head]], plain
        # The order of the classes is searched for only where each text has the same scores in some order.
        if difference(rows, given) > tolerance >= difference(map(sorted, rows), map(sorted, given)):
            gap = lambda at, to, rows=rows: max(abs(one[at] - row[to]) for one, row in zip(given, rows))
            order = [min(plain, key=lambda to: gap(at, to)) for at in plain]
        if sorted(order) == plain and difference([[row[at] for at in order] for row in rows], given) <= tolerance:
            yield f"{head}, then {name}{'' if order == plain else f', classes in the order {order}'}"


def same_tokens(card, file):
    """Lists the places of the inputs that the engine's tokenizer gave the IDs of the card, with or without padding."""
    inputs = card["inputs"]
    tokens = [[id for id, kept in zip(item["input_ids"], item["attention_mask"]) if kept] for item in inputs]
    ids = file.get("input_ids", tokens)
    is_list = lambda row: isinstance(row, list) and all(is_number(id) and id % 1 == 0 for id in row)
    fit = isinstance(ids, list) and len(ids) == len(inputs) and all(map(is_list, ids))
    need(fit, "input_ids: lists of IDs were expected")
    return [at for at, item in enumerate(inputs) if ids[at] in (tokens[at], item["input_ids"])]


def compare(card, file, precision="float32"):
    """Gives the first word and a sentence. Raises an error for files that can't be used."""
    version = card.get("version")
    need(card.get("format") == "headscope-card" and version == 1 and version is not True, "not a card of version 1")
    file = {"scores": file} if isinstance(file, list) else {name: file[name] for name in file if file[name] is not None}
    need(("scores" in file) != ("logits" in file), "either scores or logits were expected")
    need(file.get("labels", card["labels"]) == card["labels"], "other labels than the card's, or in another order")
    kind = "logits" if "logits" in file else "scores"
    function = "none" if kind == "logits" else card["activation"]
    rows, all_expected = numbers(card, kind, file[kind]), numbers(card, f"the card's {kind}", card[kind])
    limits = {item["precision"]: item[kind] for item in card["tolerances"] if item[kind] is not None}
    need(precision in limits, f"{kind} were not measured in {precision}")
    tolerance, places = limits[precision], same_tokens(card, file)
    others = [at for at in range(len(rows)) if at not in places]
    tokenizer = f"the tokenizer differs on inputs {others}; " if others else ""

    # The same scores for other tokens are the same. Other scores are compared where the tokens are the same.
    is_same = difference(rows, all_expected) <= tolerance
    if not places and not is_same:
        return "FAIL", f"{tokenizer}the head was not compared"
    only = lambda rows: rows if is_same else [rows[at] for at in places]
    given, expected = only(rows), only(all_expected)
    off = difference(given, expected)
    if off <= tolerance:
        # The tolerance in half precision is four times the rounding already.
        margin = (FAR if precision == "float32" else 2) * tolerance
        # At the ends of a function, which are whole numbers, other logits give the same scores.
        is_telling = lambda row: function == "none" or any(abs(value - round(value)) > margin for value in row)
        if is_same and all(max(column) - min(column) < margin for column in zip(*filter(is_telling, expected))):
            return "NOT DETERMINED", f"{tokenizer}the expected {kind} hardly differ, so equal ones show nothing"
        runs = [list(map(FUNCTIONS[function], only(run["logits"]))) for run in card["runs"] if run["name"] == precision]
        if off > limits.get("float32", 0) and not all(is_rounding(given, expected, run) for run in runs):
            return "NOT DETERMINED", f"{tokenizer}off by {off:.2g}: rounding of {precision}, or slightly other weights"
        return "PASS" if is_same else "FAIL", f"{tokenizer}the same {kind} within {precision} (off by {off:.2g})"

    heads = {"as it is": only(numbers(card, kind, card["logits"]))}
    heads |= {item["name"]: only(numbers(card, item["name"], item["logits"])) for item in card["alternatives"]}
    fits = list(explanations(heads, given, tolerance))
    # In half precision, where rounding may hide the cause, all other causes have to be far away.
    near = fits if precision == "float32" else list(explanations(heads, given, FAR * tolerance))
    cause = fits[0] if len(fits) == 1 and near == fits else "several causes fit" if fits else "cause not in the card"
    within = [f"; within the rounding of {name}" for name, most in limits.items() if off <= most]
    return "FAIL", f"{tokenizer}other {kind}, off by {off:.2g}: {cause}{''.join(within[:1])}"


if __name__ == "__main__":
    try:
        word, sentence = compare(read(sys.argv[1]), read(sys.argv[2]), *sys.argv[3:4])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as err:
        word, sentence = "UNUSABLE", f"{type(err).__name__}: {err}"
    print(f"{word}: {sentence}")
    sys.exit({"PASS": 0, "FAIL": 1}.get(word, 3))
