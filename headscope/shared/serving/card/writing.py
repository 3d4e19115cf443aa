"""A card written from a checkpoint: its inputs, its scores, and those of every alternative that could be computed."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from transformers.utils.hub import cached_file

from headscope.core.checkpoints.formats.config_file import parse_object
from headscope.core.facts.counting import counted
from headscope.core.facts.environment import tool_version
from headscope.core.facts.heads.head import AS_IT_IS
from headscope.core.facts.plain import to_dict
from headscope.core.facts.stored.checkpoint import CheckpointKind, Gap
from headscope.core.source.checkpoint import Checkpoint
from headscope.core.source.environment import environment
from headscope.errors import Malformed, UsageError
from headscope.shared.serving.answers import TextOrPair
from headscope.shared.serving.card.facts import (
    CARD_FORMAT,
    CARD_VERSION,
    IN_SINGLE,
    LARGEST_CARD,
    Card,
    CardAlternative,
    CardFile,
    CardInput,
    CardRows,
    CardRun,
)
from headscope.shared.serving.card.reading import measure_tolerances, reference_of
from headscope.shared.serving.comparing import VariantScores
from headscope.shared.serving.explaining import FORWARD_BY_NAME, SINGLE_PRECISION, Scores
from headscope.shared.serving.reference_scores import InputLayout, TextScorer
from headscope.shared.serving.sample_texts import CARD_PAIRS, CARD_TEXTS, SAMPLE_TEXTS

_COUNT, _PADDED, _IN_BATCH = 32, 8, 4
_LONGEST_INPUT = 512
"""Tokens: a longer text at the tokenizer's limit would make the card several times as large."""
_MOST_BYTES = 200_000
"""Of all alternatives, as far as there is room for more than one: a card is kept in a repository."""
_BYTES_OF_NUMBER = 12
_PRECISIONS = ("float64", "float16", "bfloat16")


def make_card(checkpoint: Checkpoint, activation: str, texts: Sequence[TextOrPair], batch_size: int) -> Card:
    """Computes a card of a checkpoint for texts, () for those of headscope; the checkpoint has to be comparable.

    Raises Unsupported where the checkpoint can't be run.
    """
    scorer = TextScorer.load(checkpoint, batch_size)
    report, manifest, gaps = checkpoint.report, checkpoint.manifest, list[Gap]()
    if not texts:
        texts, gaps = _choose_texts(scorer)
    own = scorer.reference(texts, report.model.labels, activation)
    scorer, layout, reason = _lay_out(scorer, texts, own.logits)
    gaps += [Gap("padded inputs", reason)] if reason else []
    others = {name: own.rounded(name) for name in _PRECISIONS}
    others["eager"] = scorer.scores_with_attention(texts, "eager")
    others["padded"] = scorer.scores_in_batches(texts) if scorer.layout is not None and scorer.layout.padded else None
    # The model's other runs, as far as it can be run so.
    runs = {name: logits for name, logits in others.items() if logits is not None}
    own = replace(own, rounded=runs.get, in_single=IN_SINGLE)
    gaps += [Gap(f"rounding in {name}", "the model can't be run in it") for name in _PRECISIONS if name not in runs]
    formula = report.head.expression if report.head is not None else ""
    gaps += [] if formula else [Gap("formula", "the head has no proven expression, so it has no variants")]
    variants = scorer.find_variants(texts, own.logits)
    kept = tuple(_few_alternatives(variants))
    score = FORWARD_BY_NAME.get(activation)
    files, missing = _digest_files(checkpoint)
    count = own.logits.shape[1]
    labels = report.model.labels if len(report.model.labels) == count else [f"LABEL_{at}" for at in range(count)]
    return Card(
        format=CARD_FORMAT,
        version=CARD_VERSION,
        tool_version=tool_version(),
        environment=environment(),
        checkpoint=manifest.reference if manifest.kind is CheckpointKind.HUB else "",
        commit=manifest.commit,
        weights=files,
        model_class=report.model.class_name,
        formula=formula or None,
        activation=activation,
        labels=tuple(labels),
        most_tokens=scorer.limit,
        padding_side=layout.side if layout.padded else None,
        inputs=tuple(_encode_inputs(scorer, layout, texts)),
        logits=_rows_of(own.logits),
        scores=None if score is None else _rows_of(score(own.logits)),
        tolerances=measure_tolerances(own),
        runs=tuple(CardRun(name, _rows_of(logits)) for name, logits in runs.items()),
        alternatives=kept,
        alternatives_left_out=len(variants) - 1 - len(kept),
        not_determined=(*gaps, *missing),
    )


def fit_card(card: Card) -> tuple[Card, str]:
    """Writes a card as JSON that can be read back: of thousands of classes without alternatives, then without runs.

    Raises UsageError for a card that is too large without them.
    """
    smaller = card
    for shrink in (lambda whole: whole, _without_alternatives, _without_runs):
        smaller = shrink(smaller)
        # ASCII, with a line for each row, input or alternative.
        fields = []
        for name, value in to_dict(smaller).items():
            is_long = isinstance(value, list) and any(isinstance(item, list | dict) for item in value)
            items = value if is_long else [value]
            lines = ",\n".join(json.dumps(item, separators=(",", ":"), allow_nan=False) for item in items)
            fields.append(f"{json.dumps(name)}: [\n{lines}\n]" if is_long else f"{json.dumps(name)}: {lines}")
        text = "{\n" + ",\n".join(fields) + "\n}\n"
        try:
            parse_object(text.encode("ascii"), "the card", LARGEST_CARD)
        except Malformed as err:
            reason = err.message
        else:
            return smaller, text
    raise UsageError(reason, "give fewer or shorter inputs with --text or --data")


def _without_alternatives(card: Card) -> Card:
    classes = counted(len(card.labels), "class", "classes")
    gap = Gap("alternatives", f"with {classes} and these inputs, there is no room for them in a card that can be read")
    left_out = card.alternatives_left_out + len(card.alternatives)
    return replace(card, alternatives=(), alternatives_left_out=left_out, not_determined=(*card.not_determined, gap))


def _without_runs(card: Card) -> Card:
    gap = Gap("runs", "there is no room for them either, so the tolerance in float32 is that of any model")
    bare = replace(card, runs=(), not_determined=(*card.not_determined, gap))
    return replace(bare, tolerances=measure_tolerances(reference_of(bare, range(len(bare.inputs)))))


def _choose_texts(scorer: TextScorer) -> tuple[list[TextOrPair], list[Gap]]:
    """Chooses the inputs: texts, half of them pairs where the tokenizer marks pairs, and one at its limit."""
    most, gaps = scorer.limit, list[Gap]()
    texts: list[TextOrPair] = [(text,) for text in CARD_TEXTS]
    if most is None or most > _LONGEST_INPUT:
        limit = "no limit" if most is None else f"a limit of {most} tokens"
        gaps.append(Gap("truncation", f"the tokenizer has {limit}, and no input of the card is that long"))
    else:
        long = " ".join(SAMPLE_TEXTS)
        at = _COUNT // 2 - 1
        texts[at] = (" ".join([long] * (1 + 2 * most // scorer.count_tokens([(long,)])[0])),)
    if not scorer.joins_pairs:
        gaps.append(Gap("pairs", "the tokenizer doesn't mark where the second text of a pair begins"))
        return texts, gaps
    half, first = _COUNT // 2, _PADDED // 2
    pairs: tuple[TextOrPair, ...] = CARD_PAIRS
    return [*texts[:first], *pairs[:first], *texts[first:half], *pairs[first:half]], gaps


def _lay_out(scorer: TextScorer, texts: Sequence[TextOrPair], own: Scores) -> tuple[TextScorer, InputLayout, str]:
    """Chooses which inputs are padded, and where; the reason if none is.

    Padding that changes a model's scores has no right answer: engines count positions in different ways.
    """
    tolerance = SINGLE_PRECISION * max(float(np.abs(own).max()), 1.0)
    padded, reason = min(_PADDED, len(texts) // _IN_BATCH * _IN_BATCH), "the tokenizer or the model has no pad token"
    for side in dict.fromkeys((scorer.own_side, "right")) if scorer.can_pad and padded else ():
        layout = InputLayout(padded, _IN_BATCH, side)
        off = np.abs(replace(scorer, layout=layout).scores_in_batches(texts) - own).max(1)
        if off[:padded].max() <= tolerance:
            # Where padding on the right changes scores, the texts that are alone can't share a batch.
            size = scorer.batch_size if off.max() <= tolerance else 1
            return replace(scorer, layout=layout, batch_size=size), layout, ""
        reason = f"padding changes the scores by up to {off[:padded].max():.2g}"
    layout = InputLayout(0, _IN_BATCH, "right")
    return replace(scorer, layout=layout, batch_size=1), layout, reason


def _encode_inputs(scorer: TextScorer, layout: InputLayout, texts: Sequence[TextOrPair]) -> Iterator[CardInput]:
    counts, at = scorer.count_tokens(texts), 0
    for number, batch in enumerate(scorer.encode_inputs(texts, layout)):
        rows = {name: value.tolist() for name, value in batch.items()}
        masks = rows.get("attention_mask", [[1] * len(ids) for ids in rows["input_ids"]])
        for row, ids in enumerate(rows["input_ids"]):
            types = rows["token_type_ids"][row] if "token_type_ids" in rows else None
            yield CardInput(
                text=texts[at][0],
                text_pair=texts[at][1] if len(texts[at]) > 1 else None,
                input_ids=tuple(ids),
                attention_mask=tuple(masks[row]),
                token_type_ids=None if types is None else tuple(types),
                batch=number if at < layout.padded else None,
                is_truncated=scorer.limit is not None and counts[at] > scorer.limit,
            )
            at += 1


def _few_alternatives(variants: Mapping[str, VariantScores]) -> Iterator[CardAlternative]:
    """Yields as many alternatives as a card should hold, those with the fewest changes first."""
    size = variants[AS_IT_IS].logits.size * _BYTES_OF_NUMBER
    names = sorted(variants.keys() - {AS_IT_IS}, key=lambda name: (name.count(", "), list(variants).index(name)))
    for name in names[: max(1, _MOST_BYTES // size)]:
        item = variants[name]
        yield CardAlternative(name, item.formula, item.is_sum, _rows_of(item.logits))


def _digest_files(checkpoint: Checkpoint) -> tuple[tuple[CardFile, ...], list[Gap]]:
    """Gives the SHA-256 of each weight file, and the files that could not be read."""
    found, missing, place = [], [], checkpoint.location
    for file in checkpoint.manifest.files:
        try:
            path: Any = cached_file(place.reference, file.name, **place.keywords())
            with Path(path).open("rb") as data:
                found.append(CardFile(file.name, hashlib.file_digest(data, "sha256").hexdigest()))
        except (OSError, TypeError) as err:
            missing.append(Gap(f"the digest of {file.name}", f"it can't be read: {type(err).__name__}"))
    return tuple(found), missing


def _rows_of(values: Scores) -> CardRows:
    """Gives numbers with the digits that float32 needs."""
    return tuple(tuple(float(str(np.float32(value))) for value in row) for row in values)
