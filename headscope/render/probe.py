"""The screen of `probe`: the answer in a sentence, the scores, and the curve over the layers."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from headscope.facts import PoolingKind
from headscope.facts.counting import counted, few_of
from headscope.facts.probe import (
    Advised,
    Baseline,
    BaselineKind,
    Candidate,
    Input,
    LabelFacts,
    Metric,
    Opinion,
    OpinionKind,
    Precision,
    ProbeResult,
    Problem,
    Standing,
    Start,
    StartingLoss,
    Vector,
    VectorNumbers,
    Versus,
)
from headscope.render.document import Document, opening
from headscope.render.lines import Paragraph, align
from headscope.render.palette import QUIET, STRONG, TONE, Tone
from headscope.render.safe import label, safe
from headscope.render.words import POOLING

_MARGIN = 12
_HEIGHT = 9
_MOST_COLUMNS = 64
_WIDEST_STEP = 4
_FEWEST_LAYERS = 2
_CURVES = {Vector.FIRST_TOKEN: "F", Vector.MASKED_MEAN: "M", Vector.LAST_NON_PAD_TOKEN: "L"}
_SEVERAL = "*"
VECTORS = {
    Vector.FIRST_TOKEN: "first token",
    Vector.MASKED_MEAN: "mean over tokens",
    Vector.LAST_NON_PAD_TOKEN: "last token",
    Vector.EOS_TOKEN: "end-of-sequence token",
    Vector.MAX: "maximum over tokens",
    Vector.MEAN_AND_MAX: "mean and maximum over tokens",
    Vector.FIRST_LAST_MEAN: "mean over tokens, layers 1 and last",
    Vector.LAST_FOUR_CONCAT: "first token, last 4 layers, joined",
    Vector.LAST_FOUR_AVERAGE: "first token, last 4 layers, averaged",
    Vector.POOLER: "output of the pooler",
    Vector.HEAD: "input of the head",
}
_BASELINES = {
    BaselineKind.MAJORITY: "most frequent class",
    BaselineKind.MEAN: "mean of the numbers",
    BaselineKind.EVERY_LABEL: "every class for every {}",
    BaselineKind.TFIDF: "TF-IDF and a linear model",
    BaselineKind.CHECKPOINT: "predictions of the checkpoint itself",
}
CONSTANTS = (BaselineKind.MAJORITY, BaselineKind.MEAN, BaselineKind.EVERY_LABEL)
"""Predictions that are the same for every text."""
METRICS = {Metric.ACCURACY: "accuracy", Metric.MACRO_F1: "macro F1", Metric.R2: "R2"}
_OPINIONS = {OpinionKind.LOGME: "LogME", OpinionKind.KNN: "kNN"}
_METHODS = {
    Problem.SINGLE_LABEL: "logistic regression",
    Problem.MULTI_LABEL: "logistic regression for each class",
    Problem.REGRESSION: "ridge regression",
}
_ADVICE = {Advised.YES: "yes", Advised.NO: "no", Advised.OPEN: "not determined"}
_SUSPECTS = 5
_UNEVEN = 3


def probe_document(result: ProbeResult) -> Document:
    """The document of `probe`."""
    return {**opening("probe"), **result.to_dict()}


def probe_answer(result: ProbeResult) -> str:
    """The answer in one to three sentences: what `-q` shows."""
    return " ".join(filter(None, (_on_head(result), _on_constant(result), _on_words(result))))


def _on_head(result: ProbeResult) -> str:
    best = result.candidate(result.best)
    said = f"{_capital(name_of(best, input_of(result)))} is best: {METRICS[best.metric]} {_score(best)}"
    if result.head is None or result.head_input is None:
        return f"{said}."
    head = result.candidate(result.head)
    if result.best in (head.name, head.same_as):
        return f"{said}. The head of {safe(result.head_input.class_name)} reads it."
    versus = result.against(head.name)
    told = f"{said}; the head of {safe(result.head_input.class_name)} reads {_read_by(result)}: {head.mean:.3f}."
    return told if versus is None else f"{told} {_difference(versus, len(result.candidates))}"


def _read_by(result: ProbeResult) -> str:
    """What the head reads, in words."""
    assert result.head_input is not None
    kind = PoolingKind(result.head_input.pooling)
    words = POOLING[kind] if kind not in (PoolingKind.OTHER, PoolingKind.CONCAT, PoolingKind.NONE) else "another vector"
    article = "" if words.startswith(("another", "mean", "maximum", "all")) else "the "
    head = next((item for item in result.candidates if item.name == result.head), None)
    through = " through the pooler" if head is not None and head.same_as == Vector.POOLER.value else ""
    return f"{article}{words}{through}"


def _difference(versus: Versus, candidates: int) -> str:
    how = f"p = {chance(versus.p_value)}, paired, corrected for the choice among {candidates}"
    if versus.verdict is Standing.BETTER:
        return f"The difference is real ({how})."
    return f"They cannot be told apart ({how})."


def beats_constant(result: ProbeResult) -> bool:
    """Whether a vector is shown to predict the labels at all; what follows from the predictions needs that."""
    compared = [versus for kind in CONSTANTS if (versus := result.against(kind.value)) is not None]
    return all(versus.verdict is Standing.BETTER for versus in compared)


def _on_constant(result: ProbeResult) -> str:
    """Whether any vector is worth more than a prediction that reads nothing."""
    if beats_constant(result):
        return ""
    constant = next(item for item in result.baselines if item.name in CONSTANTS)
    versus = result.against(constant.name.value)
    assert versus is not None
    what = f"predicting the {words_of(constant, input_of(result))}"
    if versus.verdict is Standing.NOT_BETTER:
        return f"No vector beats {what}: {constant.mean:.3f}."
    return f"No vector is shown to beat {what} ({constant.mean:.3f}, p = {chance(versus.p_value)})."


def _on_words(result: ProbeResult) -> str:
    """Whether any vector is worth more than the words of the texts."""
    versus = result.against(BaselineKind.TFIDF.value)
    words = next((item for item in result.baselines if item.name is BaselineKind.TFIDF), None)
    if versus is None or words is None or versus.verdict is Standing.BETTER:
        return ""
    if versus.verdict is Standing.NOT_BETTER:
        return f"Nothing beats TF-IDF with a linear model: {words.mean:.3f}."
    return f"The best and TF-IDF ({words.mean:.3f}) cannot be told apart (p = {chance(versus.p_value)})."


def chance(value: float) -> str:
    """A probability with as many digits as it needs."""
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"  # noqa: PLR2004


def input_of(result: ProbeResult) -> Input:
    """What was classified."""
    return result.loading.input if result.loading else Input.TEXT


def vector_words(vector: Vector, input: Input) -> str:
    """A vector in words; images and sounds have positions, not tokens."""
    return VECTORS[vector] if input is Input.TEXT else VECTORS[vector].replace("over tokens", "over positions")


def name_of(candidate: Candidate, input: Input = Input.TEXT) -> str:
    """A candidate in words: `mean over tokens of layer 11`."""
    words = vector_words(candidate.pooling, input)
    return words if candidate.layer is None else f"{words} of layer {candidate.layer}"


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _score(item: Candidate | Baseline) -> str:
    return f"{item.mean:.3f} ({item.low:.3f} to {item.high:.3f})"


def probe_verdict(result: ProbeResult) -> RenderableType:
    """The answer alone."""
    return Paragraph(Text(probe_answer(result), TONE[_tone(result)]))


def _tone(result: ProbeResult) -> Tone:
    words = result.against(BaselineKind.TFIDF.value)
    is_better = words is None or words.verdict is Standing.BETTER
    return Tone.GOOD if is_better and beats_constant(result) else Tone.WARNING


def probe_screen(result: ProbeResult) -> RenderableType:
    """The whole result."""
    return Group(probe_verdict(result), Text(), *_table(result), *_curve(result), Text(), *_facts(result))


def _table(result: ProbeResult) -> Iterator[Text]:
    """Each pooling once, at its best layer, with the baselines between; the best first."""
    rows = rows_of(result)
    second = next((item.metric for item in rows[0].others), None)
    more = (METRICS[second],) if second else ()
    titles = (METRICS[rows[0].metric], "95% interval", *more, "size", "vector at its best layer, or baseline")
    lines = [[label(title, QUIET) for title in titles], *(_row(item, result) for item in rows)]
    yield from align(lines, right=frozenset({0, 2, 3} if more else {0, 2}))


def rows_of(result: ProbeResult) -> list[Candidate | Baseline]:
    """What the table shows, the best first."""
    shown = {id(item): item for item in map(_best_of, _by_pooling(result.candidates))}
    shown |= {id(item): item for item in result.candidates if item.name in (result.best, result.head)}
    return sorted([*shown.values(), *result.baselines], key=lambda item: -item.mean)


def words_of(item: Candidate | Baseline, input: Input = Input.TEXT) -> str:
    """A row of the table in words."""
    if isinstance(item, Baseline):
        return _BASELINES[item.name].format(input.noun)
    words = name_of(item, input)
    if item.same_as is not None:
        words += f" (same as {item.same_as})"
    return f"{words} (new weights)" if item.new else words


def facts_of(result: ProbeResult) -> Iterator[tuple[str, str]]:
    """The lines below the table: a word, and what it says."""
    for line in _facts(result):
        if isinstance(line, Paragraph):
            yield line.margin.plain, line.body.plain


def _by_pooling(candidates: Sequence[Candidate]) -> list[list[Candidate]]:
    groups: dict[Vector, list[Candidate]] = {}
    for item in candidates:
        groups.setdefault(item.pooling, []).append(item)
    return list(groups.values())


def _best_of(candidates: list[Candidate]) -> Candidate:
    return max(candidates, key=lambda item: item.mean)


def _row(item: Candidate | Baseline, result: ProbeResult) -> list[Text]:
    span = label(f"{item.low:.3f} to {item.high:.3f}", QUIET)
    more = [label(f"{score.mean:.3f}", QUIET) for score in item.others]
    if isinstance(item, Baseline):
        return [label(f"{item.mean:.3f}"), span, *more, Text(), label(words_of(item, input_of(result)), QUIET)]
    words = words_of(item, input_of(result))
    style = STRONG if item.name == result.best else ""
    return [label(f"{item.mean:.3f}", style), span, *more, label(str(item.size), QUIET), label(words, style)]


def _curve(result: ProbeResult) -> Iterator[Text]:
    """First token, mean and last token over the layers, as letters in a plot."""
    points = [item for item in result.candidates if item.pooling in _CURVES and item.layer is not None]
    layers = sorted({item.layer for item in points if item.layer is not None})
    if len(layers) < _FEWEST_LAYERS:
        return
    every = -(-len(layers) // _MOST_COLUMNS)
    step = max(1, min(_WIDEST_STEP, _MOST_COLUMNS // len(layers)))
    column = {layer: place // every * step for place, layer in enumerate(layers) if place % every == 0}
    low, high = min(item.mean for item in points), max(item.mean for item in points)
    grid = [[" "] * (max(column.values()) + 1) for _ in range(_HEIGHT)]
    for item in points:
        if item.layer in column:
            line = grid[round((high - item.mean) / (high - low or 1) * (_HEIGHT - 1))]
            at = column[item.layer]
            line[at] = _CURVES[item.pooling] if line[at] in (" ", _CURVES[item.pooling]) else _SEVERAL
    yield Text()
    for number, line in enumerate(grid):
        value = high - (high - low) * number / (_HEIGHT - 1)
        edge = f"{value:.3f} ┤" if number in (0, _HEIGHT // 2, _HEIGHT - 1) else "      │"
        yield Text(f"{edge} {''.join(line)}".rstrip(), overflow="fold")
    yield Text(f"      └{'─' * (max(column.values()) + 2)}", overflow="fold")
    yield Text(f"        {_ticks(column)}", overflow="fold")
    kinds = [kind for kind in _CURVES if any(item.pooling is kind for item in points)]
    named = ", ".join(f"{_CURVES[kind]} {vector_words(kind, input_of(result))}" for kind in kinds)
    yield label(f"        layer (0: the embeddings); {named}, {_SEVERAL} several", QUIET)


def _ticks(column: dict[int, int]) -> str:
    """The numbers of the layers below their columns, as far as they have room."""
    line = ""
    for layer, at in column.items():
        if not line or at > len(line):
            line = f"{line:<{at}}{layer}"
    return line


def _facts(result: ProbeResult) -> Iterator[RenderableType]:
    chosen, kind = result.selected, input_of(result).noun
    yield _line(
        "expect",
        f"{chosen.mean:.3f} ({chosen.low:.3f} to {chosen.high:.3f}) on new {kind}s: the vector chosen without the "
        f"{kind}s it is scored on. The score of the best is a little too good, because it was chosen by that score",
    )
    if result.opinions:
        yield _line("opinions", "; ".join(_opinion(item, result) for item in result.opinions))
    yield _line(f"{kind}s", f"{counted(result.texts, kind)} of {safe(result.data)}{_in_classes(result)}")
    if result.labels is not None:
        yield from _on_labels(result.labels, kind, has_suspects=beats_constant(result))
    if result.start is not None:
        yield _line("start", _on_start(result.start, result.problem))
    if result.probe_first is not None:
        yield _line("head first", f"{_ADVICE[result.probe_first.advised]}: {safe(result.probe_first.reason)}")
    yield _line("method", _method(result))
    yield from _numbers(result)
    if result.head_input is not None and result.head_input.new:
        yield _line(
            "head",
            f"its input passes newly initialized weights ({safe(few_of(result.head_input.new))}): its score is that of "
            "a random map, before any training",
        )
    for note in result.notes:
        yield _line("note", safe(note))
    for gap in result.left_out:
        yield _line("left out", f"{safe(gap.what)}: {safe(gap.reason)}")
    for gap in result.not_determined:
        yield _line("open", f"not determined: {safe(gap.what)}: {safe(gap.reason)}")


def _numbers(result: ProbeResult) -> Iterator[RenderableType]:
    """What the pass over the texts shows: the best vector, the first token of its layer, the dtype."""
    found = result.numbers
    if found is None:
        return
    numbers = next((item for item in found.vectors if item.name == result.best), None)
    if numbers is not None:
        size, kind = result.candidate(result.best).size, input_of(result).noun
        yield _line("vectors", _of_numbers(numbers, size, kind))
    sink = max(found.layers, key=lambda item: item.first_share, default=None)
    if sink is not None:
        least = min(found.layers, key=lambda item: item.cosine_without)
        yield _line(
            "first token",
            f"on average {sink.first_share:.0%} of the norms of a text's tokens in layer {sink.layer}, where that is "
            f"most; leaving it out of the mean keeps an average cosine of {least.cosine_without:.3f} in layer "
            f"{least.layer}, where that is least",
        )
    if found.reused:
        noun = input_of(result).noun
        yield _line("reused", f"the vectors are those of an earlier run with the same checkpoint, {noun}s and options")
    if {found.precision.dtype, found.precision.stored} != {"float32"} or found.precision.tolerance is not None:
        yield _line("dtype", _precision(found.precision, input_of(result).noun))


def _of_numbers(numbers: VectorNumbers, size: int, kind: str) -> str:
    """What the numbers of the best vector look like."""
    alike = "not determined (a vector is zero)" if numbers.anisotropy is None else f"{numbers.anisotropy:.3f}"
    dead = f"{numbers.dead:,} of {counted(size, 'dimension')} the same for every {kind}"
    padding = "" if numbers.padding is None else f"; padding changes it by {numbers.padding:.1g} of its largest number"
    return f"the best: mean cosine between two {kind}s {alike}; {dead}{padding}"


def _precision(found: Precision, kind: str) -> str:
    said = f"{found.dtype}; the weights are stored in {found.stored}"
    if found.tolerance is None:
        return said if found.dtype == "float32" else f"{said}; not compared with float32, which needs too much memory"
    change = "numbers that are not finite" if found.change is None else f"{found.change:.1%} at most"
    half = found.dtype if found.dtype != "float32" else found.stored
    held = found.change is not None and found.change <= found.tolerance
    verdict = "within" if held else "more than"
    return (
        f"{said}; {half} changes the vectors of {counted(found.texts, f'sample {kind}')} against float32 by {change}, "
        f"{verdict} the {found.tolerance:.0%} allowed"
    )


def _opinion(item: Opinion, result: ProbeResult) -> str:
    """Which candidate another score prefers, and how its ranks agree."""
    if item.best == result.best:
        said = f"{_OPINIONS[item.name]} prefers the same vector"
    else:
        said = f"{_OPINIONS[item.name]} prefers the {name_of(result.candidate(item.best), input_of(result))}"
    if item.rank_correlation is None:
        return said
    return f"{said} (rank correlation of all candidates {item.rank_correlation:.2f})"


def _in_classes(result: ProbeResult) -> str:
    sizes = sorted(result.classes, key=lambda item: -item.texts)
    if result.problem is Problem.REGRESSION:
        numbers = result.labels.numbers if result.labels else None
        if numbers is None:
            return ""
        return (
            f" with numbers from {numbers.lowest:g} to {numbers.highest:g} (mean {numbers.mean:.4g}, standard "
            f"deviation {numbers.deviation:.4g})"
        )
    several = f", any number of them for {input_of(result).one}" if result.problem is Problem.MULTI_LABEL else ""
    ratio = result.labels.ratio if result.labels else None
    uneven = f"; the largest is {ratio:.3g} times the smallest" if ratio is not None and ratio >= _UNEVEN else ""
    shown = few_of(f"{safe(item.label)} {item.texts:,}" for item in sizes)
    return f" in {counted(len(sizes), 'class', 'classes')}{several}: {shown}{uneven}"


def _on_labels(labels: LabelFacts, kind: str, *, has_suspects: bool) -> Iterator[RenderableType]:
    """What the labels look like; a vector that predicts nothing makes no row suspect."""
    if labels.contradicting:
        first = labels.contradictions[0]
        yield _line(
            "check",
            f"{counted(labels.contradicting, kind)} with different labels; the first: rows "
            f"{', '.join(str(row) for row in first.rows)} ({safe(few_of(first.labels))}): {safe(first.text)}",
        )
    if labels.suspects and has_suspects:
        yield _line(
            "suspects",
            f"the rows that the best vector predicts worst may be labeled wrongly (--json has {len(labels.suspects)}):",
        )
        for item in labels.suspects[:_SUSPECTS]:
            told = f"row {item.row:,}: {safe(item.given)}, predicted {safe(item.predicted)}: {safe(item.text)}"
            yield _line("", told)


def _on_start(start: StartingLoss, problem: Problem) -> str:
    """The loss before the first step, beside that of an untrained head."""
    guess = {
        Problem.SINGLE_LABEL: "the logarithm of the number of classes",
        Problem.MULTI_LABEL: "the logarithm of 2",
        Problem.REGRESSION: "the variance of the numbers",
    }[problem]
    head = "a new head" if start.new_head else "the checkpoint's head"
    stand = {
        Start.FRESH: "as large as",
        Start.BELOW: "clearly below",
        Start.ABOVE: "clearly above",
    }[start.standing]
    return (
        f"loss {start.loss:.3f} with {head}, before any training: {stand} the {start.uninformed:.3f} of an untrained "
        f"head ({guess})"
    )


def _method(result: ProbeResult) -> str:
    return (
        f"{_METHODS[result.problem]} on standardized vectors, {result.folds} folds, strength chosen inside them, seed "
        f"{result.seed}; intervals are bootstraps over the {input_of(result).noun}s"
    )


def _line(name: str, body: str) -> Paragraph:
    return Paragraph(label(body), Text(name, STRONG), _MARGIN)
