"""Facts on the screen of `probe` below the scores: rows of a word and its text, the most important ones or all."""

import shlex
from collections.abc import Iterator

from headscope.core.facts.counting import counted, few_of
from headscope.core.facts.stored.checkpoint import told_gaps
from headscope.core.words.safe import safe
from headscope.slices.probe.facts.data import Precision, Suspect
from headscope.slices.probe.facts.result import (
    Advised,
    HeadLayout,
    Opinion,
    OpinionKind,
    ProbeResult,
    Problem,
    Standing,
    Start,
    StartingLoss,
)
from headscope.slices.probe.screen.words import beats_constant, candidate_words, chance, input_words

FactRow = tuple[str, str]
"""A word and its text; "" continues the row above."""

_OPINIONS = {OpinionKind.LOGME: "LogME", OpinionKind.KNN: "kNN"}
_METHODS = {
    Problem.SINGLE_LABEL: "logistic regression",
    Problem.MULTI_LABEL: "logistic regression for each class",
    Problem.REGRESSION: "ridge regression",
}
_ADVICE = {Advised.YES: "yes", Advised.NO: "no", Advised.OPEN: "not determined"}


def first_facts(result: ProbeResult) -> Iterator[FactRow]:
    """Lists what to know before the answer is used."""
    chosen, kind = result.selected, input_words(result).noun
    yield "expect", f"{chosen.mean:.3f} ({chosen.low:.3f} to {chosen.high:.3f}) on new {kind}s"
    yield _texts_fact(result)
    yield from _written_facts(result)
    yield from _contradiction_facts(result)
    if result.probe_first is not None:
        yield "head first", _ADVICE_IN_SHORT[result.probe_first.advised]
    yield from _new_weights_facts(result)
    first, others = result.notes[:1], result.notes[1:]
    yield from (("note", safe(note)) for note in (*first, "; ".join(others)) if note)
    yield from _gap_facts(result)
    yield from _next_command(result)


_ADVICE_IN_SHORT = {
    Advised.YES: "yes: train the head alone first; what that gains was not measured",
    Advised.NO: "no: train the whole model from the start",
    Advised.OPEN: "not determined",
}


def detailed_facts(result: ProbeResult) -> Iterator[FactRow]:
    """Lists everything that was measured."""
    chosen, kind = result.selected, input_words(result).noun
    yield (
        "expect",
        f"{chosen.mean:.3f} ({chosen.low:.3f} to {chosen.high:.3f}) on new {kind}s: the vector chosen without the "
        f"{kind}s it is scored on. The score of the best is a little too good, because it was chosen by that score",
    )
    if result.opinions:
        yield "opinions", "; ".join(_describe_opinion(item, result) for item in result.opinions)
    yield _texts_fact(result)
    yield from _written_facts(result)
    yield from _contradiction_facts(result)
    yield from _suspect_facts(result)
    if result.start is not None:
        yield "start", _describe_start(result.start, result.problem)
    if result.probe_first is not None:
        yield "head first", f"{_ADVICE[result.probe_first.advised]}: {safe(result.probe_first.reason)}"
    yield (
        "method",
        f"{_METHODS[result.problem]} on standardized vectors, {result.folds} folds, strength chosen inside them, seed "
        f"{result.seed}; intervals are bootstraps over the {kind}s",
    )
    yield from _number_facts(result)
    yield from _new_weights_facts(result)
    for note in result.notes:
        yield "note", safe(note)
    yield from _gap_facts(result)
    for gap in result.left_out:
        yield "left out", f"{safe(gap.topic)}: {safe(gap.reason)}"
    yield from _next_command(result)


def _texts_fact(result: ProbeResult) -> FactRow:
    kind = input_words(result).noun
    return f"{kind}s", f"{counted(result.texts, kind)} of {safe(result.data)}{_describe_classes(result)}"


def _written_facts(result: ProbeResult) -> Iterator[FactRow]:
    """Reports the classifier that was written, and how it was verified."""
    found = result.written
    if found is None:
        return
    if found.failure:
        yield "not written", f"{safe(found.folder)}: {safe(found.failure)}"
        return
    what = candidate_words(result.candidate(found.vector), result)
    where = "a checkpoint of the class" if found.layout is HeadLayout.OWN else "a Python module with weights"
    noun = input_words(result).noun
    yield (
        "written",
        f"{safe(found.folder)}: {where}, a classifier on {what}, fitted on all {noun}s; {found.score.mean:.3f} "
        f"({found.score.low:.3f} to {found.score.high:.3f}) on {noun}s that it wasn't fitted on. In a separate "
        f"process, it gave {counted(found.inputs, noun)} the same scores within {found.max_difference or 0:.1e}",
    )
    if found.why_module:
        yield "", f"not in the class's own parameters: {safe(found.why_module)}"
    versus, best = result.against(found.vector), result.candidate(result.best)
    if versus is not None and versus.verdict is Standing.BETTER:
        yield (
            "",
            f"not the best vector: the {candidate_words(best, result)} is significantly better, "
            f"{best.mean:.3f} against {result.candidate(found.vector).mean:.3f} (p = {chance(versus.p_value)}). "
            "`-o FILE.py` writes a module that trains a classifier on it",
        )


def _next_command(result: ProbeResult) -> Iterator[FactRow]:
    """Gives the command that checks what was written."""
    found = result.written
    if found is not None and not found.failure:
        is_own, place = found.layout is HeadLayout.OWN, shlex.quote(found.folder)
        yield "next", safe(f"headscope check {place} --for inference" if is_own else f"python {place}/classifier.py")


def _new_weights_facts(result: ProbeResult) -> Iterator[FactRow]:
    """Warns if the head's input passes weights that were never trained."""
    if result.head_input is not None and result.head_input.new:
        yield (
            "head",
            f"its input passes newly initialized weights ({safe(few_of(result.head_input.new))}): its score is that of "
            "a random map, before any training",
        )


def _gap_facts(result: ProbeResult) -> Iterator[FactRow]:
    for gap in told_gaps(result.not_determined):
        yield "unknown", safe(gap)


def _number_facts(result: ProbeResult) -> Iterator[FactRow]:
    """Reports what was measured while the texts were run: the best vector, the share of the first token, the dtype."""
    found = result.numbers
    if found is None:
        return
    numbers = next((item for item in found.vectors if item.name == result.best), None)
    if numbers is not None:
        size, kind = result.candidate(result.best).size, input_words(result).noun
        alike = "not determined (a vector is zero)" if numbers.anisotropy is None else f"{numbers.anisotropy:.3f}"
        dead = f"{numbers.dead:,} of {counted(size, 'dimension')} the same for every {kind}"
        effect = numbers.padding
        padding = "" if effect is None else f"; padding changes it by {effect:.1g} of its largest number"
        yield ("vectors", f"the best: mean cosine between two {kind}s {alike}; {dead}{padding}")
    # As in "attention sink": in some models, the first token takes a large share of all norms.
    sink = max(found.layers, key=lambda item: item.first_share, default=None)
    if sink is not None:
        least = min(found.layers, key=lambda item: item.cosine_without)
        yield (
            "first token",
            f"on average {sink.first_share:.0%} of the norms of a text's tokens in layer {sink.layer}, where that is "
            f"most; leaving it out of the mean keeps an average cosine of {least.cosine_without:.3f} in layer "
            f"{least.layer}, where that is least",
        )
    if found.reused:
        noun = input_words(result).noun
        yield ("reused", f"the vectors are those of an earlier run with the same checkpoint, {noun}s and options")
    if {found.precision.dtype, found.precision.stored} != {"float32"} or found.precision.tolerance is not None:
        yield ("dtype", _describe_precision(found.precision, input_words(result).noun))


def _describe_precision(found: Precision, kind: str) -> str:
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


def _describe_opinion(item: Opinion, result: ProbeResult) -> str:
    """Says which candidate another score prefers, and how its ranks agree with ours."""
    best = result.candidate(item.best)
    said = f"{_OPINIONS[item.name]} prefers the "
    said += "same vector" if item.best == result.best else candidate_words(best, result)
    if item.rank_correlation is None:
        return said
    return f"{said} (rank correlation of all candidates {item.rank_correlation:.2f})"


def _describe_classes(result: ProbeResult) -> str:
    sizes = sorted(result.classes, key=lambda item: -item.texts)
    if result.problem is Problem.REGRESSION:
        numbers = result.labels.numbers if result.labels else None
        if numbers is None:
            return ""
        return (
            f" with numbers from {numbers.lowest:g} to {numbers.highest:g} (mean {numbers.mean:.4g}, standard "
            f"deviation {numbers.deviation:.4g})"
        )
    several = f", any number of them for {input_words(result).one}" if result.problem is Problem.MULTI_LABEL else ""
    ratio = result.labels.ratio if result.labels else None
    uneven = f"; the largest is {ratio:.3g} times the smallest" if ratio is not None and ratio >= 3 else ""
    shown = few_of(f"{safe(item.label)} {item.texts:,}" for item in sizes)
    return f" in {counted(len(sizes), 'class', 'classes')}{several}: {shown}{uneven}"


def _contradiction_facts(result: ProbeResult) -> Iterator[FactRow]:
    """Reports texts that occur with different labels."""
    labels, kind = result.labels, input_words(result).noun
    if labels is not None and labels.contradicting:
        first = labels.contradictions[0]
        yield (
            "check",
            f"{counted(labels.contradicting, kind)} with different labels; the first: rows "
            f"{', '.join(str(row) for row in first.rows)} ({safe(few_of(first.labels))}): {safe(first.text)}",
        )


def suspects_of(result: ProbeResult) -> tuple[Suspect, ...]:
    """Gives the rows that may be labeled wrongly; none if the vector predicts nothing."""
    return result.labels.suspects if result.labels is not None and beats_constant(result) else ()


def _suspect_facts(result: ProbeResult) -> Iterator[FactRow]:
    """Lists the rows that are predicted worst."""
    found = suspects_of(result)
    if found:
        yield (
            "suspects",
            f"the rows that the best vector predicts worst may be labeled wrongly (--json has {len(found)}):",
        )
    for item in found[:5]:
        yield "", f"row {item.row:,}: {safe(item.given)}, predicted {safe(item.predicted)}: {safe(item.text)}"


def _describe_start(start: StartingLoss, problem: Problem) -> str:
    """Compares the loss before the first step with the loss of an untrained head."""
    guess = {
        Problem.SINGLE_LABEL: "the logarithm of the number of classes",
        Problem.MULTI_LABEL: "the logarithm of 2",
        Problem.REGRESSION: "the variance of the numbers",
    }[problem]
    head = "a new head" if start.new_head else "the checkpoint's head"
    stand = {Start.FRESH: "as large as", Start.BELOW: "clearly below", Start.ABOVE: "clearly above"}[start.standing]
    return (
        f"loss {start.loss:.3f} with {head}, before any training: {stand} the {start.uninformed:.3f} of an untrained "
        f"head ({guess})"
    )
