"""A head that is folded: its layers, its tensors, and the library that scores texts with it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from headscope.copies.facts import FoldKind
from headscope.core.facts import Positions, ScoreHead, Where
from headscope.core.facts.report import find_missing
from headscope.core.facts.stored.location import Location
from headscope.core.model.classes.model_request import Choice
from headscope.core.model.classes.token_rows import with_few_tokens
from headscope.core.model.loading.inference import load_model
from headscope.core.model.quiet import quiet
from headscope.core.source.checkpoint import Checkpoint
from headscope.core.trace.layers import HeadLayer, LayeredHead, LayerKind, read_layers
from headscope.core.upstream.torch import on_meta
from headscope.errors import Unsupported, UsageError
from headscope.slices.edit.folding.arithmetic import DoesNotFold, Values

DIFFERENCE = "yes - no"
"""The name of the matrix that makes one score of two."""


@dataclass(frozen=True, slots=True, eq=False)
class FoldSource:
    """A head, the names of the scores that the fold keeps."""

    kind: FoldKind
    head: LayeredHead
    labels: tuple[str, ...]
    rows: tuple[int, ...] = ()
    """The tokens whose logits are the scores."""
    is_difference: bool = False
    """Whether one score, the difference of those of two tokens, stands for both."""


def read_source(checkpoint: Checkpoint, scores: int | None) -> FoldSource:
    """Reads the layers of a checkpoint's head; `scores` is how many the fold of two tokens is to have.

    Raises DoesNotFold for scores that no class has, Unsupported for a head that is not known or not whole.
    """
    choice, report = checkpoint.choice, checkpoint.report
    pipeline = checkpoint.manifest.sentence
    if pipeline is not None and pipeline.classifier and checkpoint.request.model_class is None:
        what = pipeline.head.class_name if pipeline.head is not None else ""
        raise DoesNotFold(f"the scores are those of {pipeline.classifier} ({what or 'a pickle'}), which isn't folded")
    missing = find_missing(report)
    if missing.head or missing.elsewhere:
        name = (*missing.head, *missing.elsewhere)[0]
        raise Unsupported(f"the checkpoint doesn't give {name}, so its scores are random", "train the head first")
    if scores is not None and not choice.rows:
        raise UsageError("--scores counts the scores of two tokens", "leave it out, or add --tokens NO,YES")
    if choice.rows:
        return _source_of_tokens(checkpoint, scores)
    chain = choice.chain
    if chain is not None and not chain.score_count:
        raise DoesNotFold("the chain gives an embedding and no scores: no class of Transformers returns one")
    if chain is not None:
        return FoldSource(FoldKind.CHAIN, _read_head(checkpoint, choice.cls, choice.config), report.model.labels)
    if choice.head is None:
        return FoldSource(FoldKind.CLASS, _read_head(checkpoint, choice.cls, choice.config), report.model.labels)
    if not isinstance(choice.head, ScoreHead) or choice.head.name == "lm_head":
        raise DoesNotFold("the head scores each token, and which of them is read isn't in the checkpoint")
    head = _read_head(checkpoint, choice.cls, choice.config)
    # TRL, LlamaFactory and OpenRLHF take the value of the last token that is not padding as the reward.
    return FoldSource(FoldKind.VALUE, replace(head, positions=Positions(Where.LAST_NON_PAD)), report.model.labels)


def _read_head(checkpoint: Checkpoint, cls: Any, config: Any) -> LayeredHead:
    with quiet(), on_meta():
        model = cls(config).train(False)
    try:
        return read_layers(model, checkpoint.choice.task)
    except DoesNotFold:
        raise
    except Unsupported as err:
        chain = checkpoint.choice.chain
        which = f"Pooling {', '.join(chain.pooling)}: " if chain is not None and chain.pooling else ""
        raise DoesNotFold(f"{which}{err.message}") from err


def _source_of_tokens(checkpoint: Checkpoint, scores: int | None) -> FoldSource:
    """Reads the head of a language model: the rows of one or two tokens."""
    choice, labels = checkpoint.choice, checkpoint.report.model.labels
    small, config, _ = with_few_tokens(choice.cls, choice.config, len(choice.rows))
    head = _read_head(checkpoint, small, config)
    rows = tuple(row.id for row in choice.rows)
    if (scores or 1) > len(rows) or scores == 0:
        raise UsageError(f"--scores {scores} is not 1 or the number of tokens, {len(rows)}", "leave it out for one")
    head = replace(head, layers=_with_picked_rows(head.layers, rows))
    # sentence-transformers' LogitScore subtracts too, and the softmax of two logits is the sigmoid of the difference.
    is_pair = len(rows) == 2 and scores != 2
    if is_pair:
        difference = HeadLayer(LayerKind.LINEAR, DIFFERENCE, DIFFERENCE)
        head = replace(head, layers=(*head.layers, difference))
    named = checkpoint.manifest.sentence is not None and not checkpoint.request.tokens
    kind = FoldKind.CHAIN if named else FoldKind.TOKENS
    if named and scores == 2:
        raise UsageError("the CrossEncoder has one score, yes minus no", "leave out --scores")
    return FoldSource(kind, head, labels[1:] if is_pair else labels, rows, is_pair)


def _with_picked_rows(layers: tuple[HeadLayer, ...], rows: tuple[int, ...]) -> tuple[HeadLayer, ...]:
    """Picks the rows in the matrix of the vocabulary, where factors and functions of single scores come after it."""
    found = [replace(layer, rows=rows) if layer.kind is LayerKind.LINEAR else layer for layer in layers]
    return tuple(layer for layer in found if layer.kind is not LayerKind.ROWS)


def read_values(choice: Choice, place: Location) -> Values:
    """Loads the tensors of a checkpoint, by the names that they have in the class that headscope reads it as."""
    values: Values = load_model(choice, place, torch.device("cpu")).state_dict()
    return {**values, DIFFERENCE: torch.tensor([[-1.0, 1.0]])}
