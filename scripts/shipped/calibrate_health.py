"""Fits the models of `inspect --health` to benchmarks/health_heads.csv and measures them on heads that were held out.

`python -m scripts.generate health` prints the constants of headscope/core/source/health/judging.py and writes the
numbers and the picture of docs/health.md; `--check` compares instead. `python -m benchmarks.health_heads` makes the
table.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np

from headscope.core.facts.health import (
    BiasStatistics,
    HealthBasis,
    HealthVerdict,
    InitialSpread,
    MatrixStatistics,
    Spectrum,
)
from headscope.core.model.tensors.head_statistics import top_z
from headscope.core.source.health.judging import (
    CHANGED,
    DECISIVE,
    FAR,
    LITTLE,
    Signs,
    judge_numbers,
    probability,
    signs_of,
    verdict_of,
)
from scripts.generated import with_part, write_or_compare

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "benchmarks" / "health_heads.csv"
PAGE = ROOT / "docs" / "health.md"
PICTURE = ROOT / "docs" / "images" / "health-roc.svg"
_RIDGE = 0.1
_EQUAL = 1e-3
_SMALL = 1e-9
_BINS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97, 1.0001)
Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Model = tuple[float, tuple[float, ...]]


@dataclass(frozen=True)
class Sample:
    """A head of the table: how it was made, and what headscope would measure."""

    row: dict[str, str]
    weight: MatrixStatistics
    bias: BiasStatistics | None
    initial: InitialSpread | None

    @property
    def steps(self) -> int:
        """Training steps that it was given."""
        return int(self.row["steps"])

    @property
    def moved(self) -> float:
        """How far its weight is from where it began, in parts of its initial size."""
        return float(self.row["moved"])

    @property
    def fold(self) -> str:
        """What is held out together: a family, frozen and whole; heads that were never trained in ten parts."""
        return self.row["group"] if self.row["family"] == "fresh" else f"{self.row['family']} {self.row['whole']}"

    @cached_property
    def signs(self) -> Signs:
        """What the models look at."""
        return signs_of(self.weight, self.bias, self.initial)

    @cached_property
    def settled(self) -> HealthVerdict | None:
        """The verdict that the numbers themselves give, such as an untouched draw; None where it takes the models."""
        found = judge_numbers(self.weight, self.bias, self.initial, None)
        return None if found.basis is HealthBasis.STATISTICS else found.verdict

    @property
    def kind(self) -> str:
        """What was done to it beside an ordinary training."""
        if self.row["frozen"] == "1" and not self.row["change"]:
            return "frozen bias"
        return {"": "plain", "prior": "bias set by code"}.get(self.row["change"], "changed weight")

    @property
    def is_fitted(self) -> bool:
        """Whether the models are fitted to it; the other kinds only show what they come to."""
        return self.kind == "plain" and self.settled is None

    @property
    def is_draw(self) -> bool:
        """Whether the numbers themselves show an untouched draw."""
        return self.settled is HealthVerdict.FRESH

    @property
    def tells_by_bias(self) -> bool:
        """Whether the bias shows if there was a step."""
        return self.signs.bias_moved > 0 or self.signs.bias_zero


def read_samples(table: Path = TABLE) -> list[Sample]:
    """The heads of the table."""
    with table.open(encoding="utf-8", newline="") as file:
        return [_sample(row) for row in csv.DictReader(file)]


def _sample(row: dict[str, str]) -> Sample:
    def number(name: str) -> float | None:
        return float(row[name]) if row[name] else None

    classes, features = int(row["classes"]), int(row["features"])
    default = 1 / math.sqrt(3 * features)
    known = row["known"] == "1"
    is_default = row["scheme"] == "linear"
    initial = InitialSpread(float(row["initial"]), default if is_default else 0.0) if known else None
    # All singular values are equal where the largest is the root of the larger axis, in parts of the spread.
    top = number("top_z")
    equal = top_z(math.sqrt(max(classes, features)), *sorted((classes, features))) if top is not None else None
    is_orthonormal = row["stored"] == "float32" and equal is not None and abs((top or 0) - equal) < _EQUAL
    weight = MatrixStatistics(
        name="weight",
        dtype=row["stored"],
        classes=classes,
        features=features,
        spread=float(row["spread"]),
        mean=float(row["mean"]),
        largest=float(row["largest"]),
        kurtosis=float(row["kurtosis"]),
        shape_z=float(row["shape_z"]),
        initial_spread=initial.weight if initial else None,
        spread_z=number("spread_z") if known else None,
        scheme="orthogonal" if is_orthonormal else "",
        scheme_z=float(row["scheme_z"]),
        mean_row=None,
        mean_row_expected=None,
        mean_row_z=number("mean_row_z"),
        cosine=0.0 if is_orthonormal else None,
        cosine_least=None,
        rows_z=number("rows_z"),
        columns_z=float(row["columns_z"]),
        spectrum=Spectrum((1.0, 1.0 if is_orthonormal else 0.0), 0.0, top),
        draw=row["draw"],
        draw_z=number("draw_z"),
        draw_share=float(row["draw_share"]),
        zeros=int(row["zeros"]),
        precision=row["precision"],
        distinct=float(row["distinct"]),
    )
    zeros = {"zero": classes, "none": 0}.get(row["bias"], 0)
    kind, largest = row["bias"], float(row["bias_largest"])
    stored = BiasStatistics("bias", zeros, classes, largest, 0.0, kind == "drawn", kind == "constant")
    return Sample(row, weight, None if kind == "none" else stored, initial)


def fitted(terms: Array, wanted: Array) -> Model:
    """A logistic model with a small ridge, by Newton's method; each kind of answer as the table has it."""
    inputs = np.column_stack((np.ones(len(terms)), terms))
    ridge = np.diag([0.0, *([_RIDGE] * terms.shape[1])])
    factors = np.zeros(inputs.shape[1])
    for _ in range(100):
        chance = 1 / (1 + np.exp(-np.clip(inputs @ factors, -50, 50)))
        slope = inputs.T @ (chance - wanted) + ridge @ factors
        curve = (inputs * (chance * (1 - chance))[:, None]).T @ inputs + ridge + 1e-9 * np.eye(len(factors))
        step = np.linalg.solve(curve, slope)
        factors -= step
        if float(np.abs(step).max()) < _SMALL:
            break
    return round(float(factors[0]), 4), tuple(round(float(item), 4) for item in factors[1:])


def fit_changed(samples: Sequence[Sample]) -> Model:
    """The model of whether a classifier changed at all."""
    some = [item for item in samples if item.is_fitted and not item.signs.bias_zero]
    return fitted(
        np.array([item.signs.of_change for item in some], float), np.array([item.steps > 0 for item in some], float)
    )


def fit_far(samples: Sequence[Sample]) -> Model:
    """The model of whether a classifier that changed did so by more than a little."""
    some = [item for item in samples if item.steps > 0 and item.is_fitted]
    return fitted(
        np.array([item.signs.of_size for item in some], float), np.array([item.moved >= LITTLE for item in some], float)
    )


@dataclass(frozen=True)
class Judged:
    """A held-out head with the probabilities of models that never saw its family."""

    sample: Sample
    changed: float
    far: float

    @property
    def truth(self) -> HealthVerdict:
        """What it is."""
        if self.sample.steps == 0:
            return HealthVerdict.FRESH
        return HealthVerdict.TRAINED if self.sample.moved >= LITTLE else HealthVerdict.BRIEFLY_TRAINED

    @property
    def verdict(self) -> HealthVerdict:
        """What headscope would say."""
        return self.sample.settled or verdict_of(self.sample.signs, self.changed, self.far)[0]


def held_out(samples: Sequence[Sample]) -> list[Judged]:
    """Every head judged by models that were fitted without its family."""
    found = []
    for fold in sorted({item.fold for item in samples}):
        rest = [item for item in samples if item.fold != fold]
        changed_model, far_model = fit_changed(rest), fit_far(rest)
        for item in (item for item in samples if item.fold == fold):
            changed = 0.001 if item.is_draw else probability(changed_model, item.signs.of_change, item.signs.of_zeros)
            found.append(Judged(item, changed, changed * probability(far_model, item.signs.of_size)))
    return found


def area(scores: Sequence[float], positive: Sequence[bool]) -> float:
    """The area under the ROC: the chance that a trained head has the higher score; equal scores count half."""
    order = np.argsort(np.asarray(scores), kind="stable")
    ranks, values = np.empty(len(scores)), np.asarray(scores)[order]
    starts = np.flatnonzero(np.r_[True, values[1:] != values[:-1]])
    ends = np.r_[starts[1:], len(values)]
    for start, end in zip(starts, ends, strict=True):
        ranks[order[start:end]] = (start + end + 1) / 2
    many = sum(positive)
    return float((ranks[np.asarray(positive)].sum() - many * (many + 1) / 2) / (many * (len(scores) - many)))


_STRATA: tuple[tuple[str, Callable[[Sample], bool]], ...] = (
    ("initialized, and trained or not", lambda item: item.kind == "plain"),
    ("bias that begins at zero", lambda item: item.kind == "plain" and item.tells_by_bias),
    ("no such bias", lambda item: item.kind == "plain" and not item.tells_by_bias),
    ("no such bias, float32", lambda item: item.kind == "plain" and not item.tells_by_bias and not _is_half(item)),
    (
        "no such bias, bfloat16 or float16",
        lambda item: item.kind == "plain" and not item.tells_by_bias and _is_half(item),
    ),
    ("every kind", lambda item: True),
)


def _is_half(item: Sample) -> bool:
    return item.weight.dtype != "float32"


def areas(judged: Sequence[Judged], steps: Sequence[int] = (1, 10, 50, 200, 1000)) -> dict[str, list[float]]:
    """By kind of head: the areas for heads trained for at least that many steps against fresh ones."""
    return {
        name: [_area_from([item for item in judged if holds(item.sample)], least) for least in steps]
        for name, holds in _STRATA
    }


def _area_from(judged: Sequence[Judged], least: int) -> float:
    some = [item for item in judged if item.sample.steps == 0 or item.sample.steps >= least]
    return area([item.changed for item in some], [item.sample.steps > 0 for item in some])


def reliability(judged: Sequence[Judged]) -> list[tuple[float, float, int, float, float]]:
    """For bins of the probability of a change: bounds, heads, mean probability, and the part that had changed."""
    found = []
    for low, high in pairwise(_BINS):
        some = [item for item in judged if low <= item.changed < high]
        if some:
            mean = sum(item.changed for item in some) / len(some)
            found.append((low, high, len(some), mean, sum(item.sample.steps > 0 for item in some) / len(some)))
    return found


def verdicts(judged: Sequence[Judged]) -> dict[tuple[HealthVerdict, HealthVerdict], int]:
    """How many heads of each truth got each verdict."""
    found: dict[tuple[HealthVerdict, HealthVerdict], int] = {}
    for item in judged:
        found[item.truth, item.verdict] = found.get((item.truth, item.verdict), 0) + 1
    return found


LIMITS = (0.99, 0.995, 0.999)
_ONE_IN = 1000


def called_fresh(judged: Sequence[Judged], limit: float) -> tuple[int, int, int, int]:
    """Trained heads that are called fresh with at least this confidence, and all of them; the same of fresh heads."""
    sure = [item.verdict is HealthVerdict.FRESH and 1 - item.changed >= limit for item in judged]
    trained = [found for found, item in zip(sure, judged, strict=True) if item.sample.steps > 0]
    fresh = [found for found, item in zip(sure, judged, strict=True) if item.sample.steps == 0]
    return sum(trained), len(trained), sum(fresh), len(fresh)


def decisive(judged: Sequence[Judged]) -> float:
    """The lowest limit at which at most one trained head of a thousand is called fresh."""
    rates = ((limit, called_fresh(judged, limit)) for limit in LIMITS)
    return next(limit for limit, (wrong, trained, *_) in rates if wrong * _ONE_IN <= trained)


def _of_decisions(judged: Sequence[Judged]) -> str:
    limit = decisive(judged)
    wrong, trained, found, fresh = called_fresh(judged, limit)
    return (
        f"Decisive is an untouched draw, or a confidence of {limit:.0%} or more: of {trained:,} trained heads {wrong} "
        f"{'is' if wrong == 1 else 'are'} called fresh so ({wrong / trained:.2%}), of {fresh:,} fresh ones {found:,}."
    )


def report(samples: Sequence[Sample], judged: Sequence[Judged]) -> str:
    """The measured part of the page."""
    fresh = sum(item.steps == 0 for item in samples)
    lines = [
        f"{len(samples):,} heads, {fresh:,} of them fresh, in {len({item.fold for item in samples})} groups, each "
        "held out in turn.",
        "",
        "Area under the ROC, fresh against trained for at least that many steps:",
        "",
        "| heads | fresh | 1 | 10 | 50 | 200 | 1,000 |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, values in areas(judged).items():
        holds = dict(_STRATA)[name]
        count = sum(item.steps == 0 and holds(item) for item in samples)
        lines.append(f"| {name} | {count:,} | {' | '.join(f'{value:.3f}' for value in values)} |")
    lines += [
        "",
        "![ROC](images/health-roc.svg)",
        "",
        "Reliability of the probability that a head was trained, where nothing else was done to it:",
        "",
    ]
    lines += ["| probability | heads | mean | trained |", "|---|---|---|---|"]
    lines += [
        f"| {low:.2f} to {min(high, 1):.2f} | {count:,} | {mean:.3f} | {part:.3f} |"
        for low, high, count, mean, part in reliability([item for item in judged if item.sample.kind == "plain"])
    ]
    kinds = [*(kind for kind in HealthVerdict if kind is not HealthVerdict.COLLAPSED)]
    lines += ["", "Verdicts on held-out heads, by what they are:", ""]
    lines += [f"| heads | truth | {' | '.join(_word(kind) for kind in kinds)} |", f"|---|---|{'---|' * len(kinds)}"]
    for made in ("plain", "changed weight", "bias set by code", "frozen bias"):
        table = verdicts([item for item in judged if item.sample.kind == made])
        for truth in (truth for truth in kinds[:-1] if any(table.get((truth, kind)) for kind in kinds)):
            counts = " | ".join(str(table.get((truth, kind), 0)) for kind in kinds)
            lines.append(f"| {made} | {_word(truth)} | {counts} |")
    lines += ["", _of_decisions(judged)]
    lines += ["", "Constants:", "", "```text", *constants(samples), "```"]
    return "\n".join(lines) + "\n"


def _word(kind: HealthVerdict) -> str:
    return kind.value.replace("_", " ")


def constants(samples: Sequence[Sample]) -> tuple[str, str]:
    """The two models as headscope/core/source/health/judging.py has them."""
    return f"CHANGED = {fit_changed(samples)}", f"FAR = {fit_far(samples)}"


_STYLES = (("#1f6feb", ""), ("#1a7f37", "6 3"), ("#bf3989", "2 3"))


def picture(judged: Sequence[Judged], least: int = 50) -> str:
    """The ROC from `least` steps on, as SVG."""
    size, edge = 320, 44
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size + 340} {size + 2 * edge}" role="img" '
        'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="11">',
        f"<title>ROC of fresh heads against heads trained for at least {least} steps</title>",
        f'<rect width="100%" height="100%" fill="#fff"/><rect x="{edge}" y="{edge / 2}" width="{size}" height="{size}" '
        'fill="none" stroke="#57606a"/>',
        f'<text x="{edge + size / 2}" y="{size + edge + 8}" text-anchor="middle">fresh heads called trained</text>',
        f'<text transform="translate(14 {size / 2 + edge / 2}) rotate(-90)" text-anchor="middle">'
        "trained heads called trained</text>",
        f'<text x="{edge}" y="{size + edge / 2 + 14}" text-anchor="middle">0</text>',
        f'<text x="{edge + size}" y="{size + edge / 2 + 14}" text-anchor="middle">1</text>',
        f'<text x="{edge - 8}" y="{edge / 2 + 8}" text-anchor="end">1</text>',
    ]
    for number, ((name, holds), (color, dashes)) in enumerate(zip(_STRATA[:3], _STYLES, strict=True)):
        some = [
            item for item in judged if holds(item.sample) and (item.sample.steps == 0 or item.sample.steps >= least)
        ]
        points = " ".join(f"{edge + x * size:.1f},{edge / 2 + (1 - y) * size:.1f}" for x, y in _curve(some))
        line = f'fill="none" stroke="{color}" stroke-width="2" stroke-dasharray="{dashes}"'
        top = edge + 24 * number
        parts.append(f'<polyline points="{points}" {line}/>')
        parts.append(f'<line x1="{size + edge + 16}" x2="{size + edge + 44}" y1="{top}" y2="{top}" {line}/>')
        parts.append(f'<text x="{size + edge + 52}" y="{top + 4}">{name}: area {_area_from(some, least):.3f}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _curve(judged: Sequence[Judged]) -> list[tuple[float, float]]:
    positive = sum(item.sample.steps > 0 for item in judged)
    points, x, y = [(0.0, 0.0)], 0, 0
    ordered = sorted(judged, key=lambda item: -item.changed)
    for number, item in enumerate(ordered):
        x, y = x + (item.sample.steps == 0), y + (item.sample.steps > 0)
        if number + 1 == len(ordered) or ordered[number + 1].changed != item.changed:
            points.append((x / (len(ordered) - positive), y / positive))
    return points


def main(arguments: list[str]) -> int:
    """Prints the constants, and writes or compares the page and the picture."""
    samples = read_samples()
    judged = held_out(samples)
    sys.stdout.write("\n".join((*constants(samples), f"DECISIVE = {decisive(judged)}")) + "\n")
    if (fit_changed(samples), fit_far(samples), decisive(judged)) != (CHANGED, FAR, DECISIVE):
        sys.stderr.write("headscope/core/source/health/judging.py has other constants\n")
        return 1
    page = with_part(PAGE, "shipped/calibrate_health.py", report(samples, judged))
    return write_or_compare(PAGE, page, arguments) | write_or_compare(PICTURE, picture(judged), arguments)
