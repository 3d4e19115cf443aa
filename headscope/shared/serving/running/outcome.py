"""Findings of a run on an engine's head: its scores for each kind of input, compared with those of Transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headscope.core.facts.heads.head import AS_IT_IS
from headscope.core.facts.heads.tasks import Activation
from headscope.shared.serving.answers import Answer, Answers
from headscope.shared.serving.comparing import ReferenceScores, compare_scores
from headscope.shared.serving.engine_facts import EngineEvidence, EngineHead
from headscope.shared.serving.explaining import SCORE_FUNCTIONS, Scores
from headscope.shared.serving.running.process import BatchScores, EngineAnswer, Resolution
from headscope.shared.serving.served_facts import ServedScores

DEFAULT, PLAIN, BATCH, LEFT, PADS, PAIRS, LONG = "default", "plain", "batch", "left", "pads", "pairs", "long"
"""The batches of a run: texts one by one with the engine's own function; then logits of texts one by one, in one batch
padded on the right or left, of texts that end in padding tokens, of pairs, of a text longer than the limit."""
_CLOSE = 1e-4
_NOT_LOOKED_AT = (
    "the checkpoint's own weights: the copy's are random",
    "more than the first layer of each kind",
    "the checkpoint's own tokenizer",
    "other precisions than float32",
)


@dataclass(frozen=True, slots=True)
class ExpectedScores:
    """Scores that Transformers gives for the batches: by name, and `padded` for those that it pads."""

    references: Mapping[str, ReferenceScores]
    padded: Mapping[str, Scores]


def head_in_run(cited: EngineHead, answer: EngineAnswer, names: Sequence[str], expected: ExpectedScores) -> EngineHead:
    """Makes the entry of an engine as its run shows it, instead of the one that its source shows.

    `names` are those of the answer's batches. `cited` says what a run doesn't show, if it is of the same version.
    """
    bare = _entry_without_findings(cited, answer)
    if answer.error:
        if cited.runs is False and cited.version == answer.version:
            return replace(bare, runs=False, reason=answer.error)
        reason = f"it refuses the small random copy, and may take the checkpoint: {answer.error}"
        return replace(bare, evidence=None, reason=reason)
    given = dict(zip(names, answer.batches, strict=True))
    plain, default = given[PLAIN], given[DEFAULT]
    asked = plain if not plain.error and plain.raw else default
    if not asked.is_finite:  # those of Transformers are
        return replace(bare, runs=True, same_head=False, reason="The scores are NaN or infinite.")
    if asked.error:
        return replace(bare, evidence=None, reason=asked.error)
    reference = expected.references[PLAIN]
    served = _compare_batch(reference, asked, answer.dtype)
    if served.same is None:
        return replace(bare, evidence=None, reason=served.reason)
    activation = _function_between(plain, default)
    if activation is None and asked is default:
        activation = served.explanation.activation if served.explanation is not None else reference.activation
    others = {
        name: _compare_batch(expected.references[name], item, answer.dtype)
        for name, item in given.items()
        if _is_comparable(name, item, expected)
    }
    pairs = others.get(PAIRS)
    ignores_segments = pairs is not None and pairs.explanation is not None and pairs.explanation.is_without_segments
    # The head is the same too if only the function on the scores differs.
    why = served.explanation
    is_own = (
        why is not None
        and why.variant == AS_IT_IS
        and why.order == tuple(range(len(why.order)))
        and (why.scale, why.offset) == (1, 0)
    )
    same_head = served.same or is_own
    in_batch = _differs_in_batch(BATCH, given, others, expected)
    rounded = f"The scores are equal within the rounding of {served.precision}."
    rounding = (rounded, *served.notes) if served.same and served.precision != "float32" else ()
    return replace(
        bare,
        runs=True,
        same_head=same_head and not in_batch,
        formula=served.explanation.formula if served.explanation is not None and not same_head else "",
        activation=activation,
        same_activation=None if activation is None else activation == reference.activation,
        is_constant=activation == Activation.SOFTMAX and asked.scores.shape[1] == 1,
        reads_padding=_has_other_scores(others.get(PADS)),
        drops=("segment IDs",) if ignores_segments else (),
        reason=_explain_difference(served, same_head, in_batch),
        notes=(*rounding, *_note_batches(given, others, expected), *answer.notes),
    )


def head_as_resolved(cited: EngineHead, found: Resolution) -> EngineHead:
    """Adds to the entry of an engine what its own resolution shows; `cited` is of the same version.

    That an engine takes a configuration doesn't show that it loads the weights, or which head it computes.
    """
    source = f"{cited.title} {found.version}, which resolved config.json without weights"
    if found.error:
        refused = replace(
            cited, runs=False, same_head=None, formula="", activation=None, same_activation=None, notes=()
        )
        return replace(refused, evidence=EngineEvidence.ASKED, source=source, reason=found.error)
    told = f"it resolves config.json to {found.implementation}, pooling {found.positions}, in {found.dtype} here"
    kept = replace(cited, dtype=f"{found.dtype} on this machine", notes=(*cited.notes, f"{told[0].upper()}{told[1:]}."))
    if cited.evidence is not None:
        return kept
    reason = f"{cited.reason}; {told}, and only --run shows the head"
    return replace(kept, positions=found.positions, evidence=EngineEvidence.ASKED, source=source, reason=reason)


def _entry_without_findings(cited: EngineHead, answer: EngineAnswer) -> EngineHead:
    """Makes the entry without what a run shows; what the source says of another version is left out."""
    is_cited = cited.version == answer.version and cited.evidence is not None
    kept = cited if is_cited else replace(cited, logits="", dtype="", float32_becomes="")
    return replace(
        kept,
        version=answer.version,
        runs=None, same_head=None, formula="", activation=None, same_activation=None, positions="", drops=(), notes=(),
        is_constant=False, reads_padding=False,
        evidence=EngineEvidence.RAN,
        source=f"{cited.title} {answer.version}, run on a random copy of the configuration",
        not_looked_at=_NOT_LOOKED_AT,
    )  # fmt: skip


def _compare_batch(reference: ReferenceScores, given: BatchScores, dtype: str) -> ServedScores:
    items = tuple(Answer(tuple(row)) for row in given.scores.tolist())
    return compare_scores(reference, Answers("", "", "", given.raw, items, dtype=dtype, is_run=True))


def _is_comparable(name: str, item: BatchScores, expected: ExpectedScores) -> bool:
    return name not in {DEFAULT, PLAIN} and not item.error and item.raw and name in expected.references


def _function_between(plain: BatchScores, default: BatchScores) -> str | None:
    """Finds the function that makes the engine's default scores of its logits; None where not exactly one does."""
    if plain.error or default.error or not plain.raw or plain.scores.shape != default.scores.shape:
        return None
    scale = max(float(np.abs(default.scores).max(initial=0.0)), 1e-3)
    fits = [
        item.name
        for item in SCORE_FUNCTIONS
        if np.abs(item.forward(plain.scores) - default.scores).max(initial=0.0) <= _CLOSE * scale
    ]
    return fits[0] if len(fits) == 1 else None


def _has_other_scores(found: ServedScores | None) -> bool:
    return found is not None and found.same is False


def _differs_in_batch(
    name: str, given: Mapping[str, BatchScores], others: Mapping[str, ServedScores], expected: ExpectedScores
) -> bool:
    """True if a batch differs from its texts alone, and from what Transformers gives for the same padding."""
    found = others.get(name)
    if found is None or not _has_other_scores(found) or found.tolerance is None:
        return False
    own = expected.padded.get(name)
    return own is None or float(np.abs(given[name].scores - own).max()) > found.tolerance


def _explain_difference(served: ServedScores, same_head: bool, in_batch: bool) -> str:
    if same_head:
        return "In a batch that is padded, the scores of a text change." if in_batch else ""
    if served.explanation is None:
        return f"Scores differ by up to {served.max_difference:.3g}; {served.reason}."
    is_own = served.explanation.variant == AS_IT_IS
    change = "another order, factor or offset of the scores" if is_own else served.explanation.variant
    return f"Scores differ by up to {served.max_difference:.3g}: {change}."


def _note_batches(
    given: Mapping[str, BatchScores], others: Mapping[str, ServedScores], expected: ExpectedScores
) -> tuple[str, ...]:
    """Gives notes on each kind of input whose scores aren't as expected."""
    found = []
    for name, words in {
        BATCH: "A batch that is padded on the right",
        LEFT: "A batch that is padded on the left",
        PADS: "A text that ends in padding tokens",
        PAIRS: "A pair",
        LONG: "A text that is longer than the limit",
    }.items():
        served = others.get(name)
        if name in given and given[name].error:
            found.append(f"{words} is refused: {given[name].error}")
        elif served is not None and _has_other_scores(served):
            is_fault = name not in {BATCH, LEFT} or _differs_in_batch(name, given, others, expected)
            found += [f"{words} gets scores that differ by up to {served.max_difference:.3g}."] if is_fault else []
        elif name == LONG and served is not None and served.same:
            found.append(f"{words} is truncated.")
    return tuple(found)
