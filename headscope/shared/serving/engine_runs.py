"""Engines that are run on a small random copy of a checkpoint's configuration, next to Transformers."""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from headscope.core.facts import PoolingKind, Task
from headscope.core.facts.heads.head import AS_IT_IS
from headscope.core.facts.heads.tasks import Activation
from headscope.core.facts.stored.location import Location
from headscope.core.model.classes.random_copy import RandomCopy, save_random_copy
from headscope.core.source.checkpoint import Checkpoint
from headscope.errors import Unsupported
from headscope.shared.serving.answers import Answer, Answers, TextOrPair
from headscope.shared.serving.comparing import ReferenceScores, compare_scores
from headscope.shared.serving.engine_facts import EngineEvidence, EngineHead
from headscope.shared.serving.explaining import SCORE_FUNCTIONS, Scores
from headscope.shared.serving.judging import own_activation
from headscope.shared.serving.reference_scores import TextScorer, check_scores_texts
from headscope.shared.serving.running.process import BatchScores, EngineAnswer, EngineInput, InputBatch, run_engine
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
_LENGTHS = (1, 3, 2, 5, 9, 4, 7, 14, 6, 11, 20, 8)
"""Words of the texts: an explanation is chosen on six and confirmed on six."""
_PADDED, _LONGER = 3, 8
"""Padding tokens at the end of a text, and words beyond the limit."""
_SIDES = {BATCH: "right", LEFT: "left"}
_SEED = 29
GIVE_TOKENS = ("onnx-runtime", "transformers-js", "vllm")
"""The engines that give the scores of every label for each token."""


@dataclass(frozen=True, slots=True)
class EngineTrial:
    """A random copy in a folder, the inputs to run on it, and the scores that Transformers gives.

    Those are by the name of the batch; `padded` has them for the batches that Transformers pads too.
    """

    folder: Path
    batches: tuple[InputBatch, ...]
    references: Mapping[str, ReferenceScores]
    padded: Mapping[str, Scores]
    is_of_tokens: bool

    def head(self, cited: EngineHead, python: str | None) -> EngineHead:
        """Runs an engine and gives its entry as the run shows it. Raises Unsupported if the engine can't be run."""
        if self.is_of_tokens and cited.engine not in GIVE_TOKENS:
            raise Unsupported(f"{cited.title} gives no scores of all labels for each token", "")
        with TemporaryDirectory(prefix="headscope-") as scratch:
            return self.head_of(cited, run_engine(cited.engine, self.folder, Path(scratch), self.batches, python))

    def head_of(self, cited: EngineHead, answer: EngineAnswer) -> EngineHead:
        """Gives the entry of an engine as its answer shows it.

        `cited` says what a run doesn't show, if it is of the same version.
        """
        bare = _entry_without_findings(cited, answer)
        if not answer.error:
            return _judge_run(bare, answer, self)
        if cited.runs is False and cited.version == answer.version:
            return replace(bare, runs=False, reason=answer.error)
        reason = f"it refuses the small random copy, and may take the checkpoint: {answer.error}"
        return replace(bare, evidence=None, reason=reason)


@contextmanager
def engine_trial(checkpoint: Checkpoint) -> Iterator[EngineTrial]:
    """Makes the random copy, the inputs and the expected scores that engines are compared with.

    The folder exists as long as the context is open. Raises Unsupported if the model scores neither texts nor their
    tokens, or if no small copy of it can be made.
    """
    check_scores_texts(checkpoint, or_tokens=True)
    report = checkpoint.report
    choice, own = checkpoint.choice, own_activation(report, checkpoint.manifest)
    reads_end = report.head is not None and report.head.pooling.kind in {
        PoolingKind.LAST_TOKEN,
        PoolingKind.LAST_NON_PAD_TOKEN,
    }
    with TemporaryDirectory(prefix="headscope-") as name:
        folder = Path(name)
        copy = save_random_copy(choice, folder, ends_text=not reads_end)
        scorer = TextScorer(
            replace(choice, config=copy.model.config), Location(str(folder)), copy.tokenizer, copy.model, len(_LENGTHS)
        )
        texts = _texts_of(copy)
        batches = tuple(_batch_of(kind, texts[kind], copy) for kind in texts)
        references = {kind: scorer.reference(found, report.model.labels, own) for kind, found in texts.items()}
        padded = {kind: scorer.padded_scores(texts[kind], side) for kind, side in _SIDES.items() if kind in texts}
        is_of_tokens = report.model.task is Task.TOKEN_CLASSIFICATION
        yield EngineTrial(folder, batches, references, padded, is_of_tokens)


def _texts_of(copy: RandomCopy) -> Mapping[str, Sequence[TextOrPair]]:
    """Draws the texts of each batch; those with padding only if the model has a padding token."""
    draw = random.Random(_SEED)

    def words(count: int) -> str:
        return " ".join(draw.choices(copy.words, k=count))

    plain = [(words(count),) for count in _LENGTHS]
    pairs = [(words(3 + count % 5), words(2 + count % 7)) for count in _LENGTHS]
    found: dict[str, Sequence[TextOrPair]] = {DEFAULT: plain, PLAIN: plain, PAIRS: pairs}
    pad = copy.tokenizer.pad_token
    if pad is not None:
        end = f" {pad}" * _PADDED
        found |= {BATCH: plain, LEFT: plain, PADS: [(f"{text}{end}",) for (text,) in plain]}
    if copy.limit is not None:
        found[LONG] = [(words(copy.limit + _LONGER),)]
    return found


def _batch_of(kind: str, texts: Sequence[TextOrPair], copy: RandomCopy) -> InputBatch:
    items = []
    for text in texts:
        encoded = copy.tokenizer(*text, truncation=False, verbose=False)
        types = encoded.get("token_type_ids")
        pair = text[1] if len(text) > 1 else None
        items.append(EngineInput(text[0], pair, tuple(encoded["input_ids"]), None if types is None else tuple(types)))
    return InputBatch(kind, tuple(items), raw=kind != DEFAULT, padding=_SIDES.get(kind))


def _judge_run(bare: EngineHead, answer: EngineAnswer, trial: EngineTrial) -> EngineHead:
    """Adds to an entry what the scores of a run show."""
    given = {batch.name: item for batch, item in zip(trial.batches, answer.batches, strict=True)}
    plain, default = given[PLAIN], given[DEFAULT]
    asked = plain if not plain.error and plain.raw else default
    if not asked.is_finite:  # those of Transformers are
        return replace(bare, runs=True, same_head=False, reason="The scores are NaN or infinite.")
    if asked.error:
        return replace(bare, evidence=None, reason=asked.error)
    reference = trial.references[PLAIN]
    served = _compare_batch(reference, asked, answer.dtype)
    if served.same is None:
        return replace(bare, evidence=None, reason=served.reason)
    activation = _function_between(plain, default)
    if activation is None and asked is default:
        activation = served.explanation.activation if served.explanation is not None else reference.activation
    others = {
        name: _compare_batch(trial.references[name], item, answer.dtype)
        for name, item in given.items()
        if name not in {DEFAULT, PLAIN} and not item.error and item.raw
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
    in_batch = _differs_in_batch(BATCH, given, others, trial)
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
        notes=(*rounding, *_note_batches(given, others, trial), *answer.notes),
    )


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
    name: str, given: Mapping[str, BatchScores], others: Mapping[str, ServedScores], trial: EngineTrial
) -> bool:
    """True if a batch differs from its texts alone, and from what Transformers gives for the same padding."""
    found = others.get(name)
    if found is None or not _has_other_scores(found) or found.tolerance is None:
        return False
    return float(np.abs(given[name].scores - trial.padded[name]).max()) > found.tolerance


def _explain_difference(served: ServedScores, same_head: bool, in_batch: bool) -> str:
    if same_head:
        return "In a batch that is padded, the scores of a text change." if in_batch else ""
    if served.explanation is None:
        return f"Scores differ by up to {served.max_difference:.3g}; {served.reason}."
    is_own = served.explanation.variant == AS_IT_IS
    change = "another order, factor or offset of the scores" if is_own else served.explanation.variant
    return f"Scores differ by up to {served.max_difference:.3g}: {change}."


def _note_batches(
    given: Mapping[str, BatchScores], others: Mapping[str, ServedScores], trial: EngineTrial
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
            is_fault = name not in {BATCH, LEFT} or _differs_in_batch(name, given, others, trial)
            found += [f"{words} gets scores that differ by up to {served.max_difference:.3g}."] if is_fault else []
        elif name == LONG and served is not None and served.same:
            found.append(f"{words} is truncated.")
    return tuple(found)
