"""Engines that are run on a small random copy of a checkpoint's configuration, next to Transformers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from headscope.core.facts import PoolingKind, Task
from headscope.core.facts.stored.location import Location
from headscope.errors import Unsupported
from headscope.shared.serving.answers import TextOrPair
from headscope.shared.serving.engine_facts import EngineHead
from headscope.shared.serving.judging import own_activation
from headscope.shared.serving.reference_scores import TextScorer, check_scores_texts
from headscope.shared.serving.running.outcome import (
    BATCH,
    DEFAULT,
    LEFT,
    LONG,
    PADS,
    PAIRS,
    PLAIN,
    ExpectedScores,
    head_in_run,
)
from headscope.shared.serving.running.process import EngineAnswer, EngineInput, InputBatch, run_engine

if TYPE_CHECKING:
    from headscope.core.model.classes.random_copy import RandomCopy
    from headscope.core.source.checkpoint import Checkpoint

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
    """A random copy in a folder, the inputs to run on it, and the scores that Transformers gives."""

    folder: Path
    batches: tuple[InputBatch, ...]
    expected: ExpectedScores

    is_of_tokens: bool

    def head(self, cited: EngineHead, python: str | None) -> EngineHead:
        """Runs an engine and gives its entry as the run shows it. Raises Unsupported if the engine can't be run."""
        if self.is_of_tokens and cited.engine not in GIVE_TOKENS:
            raise Unsupported(f"{cited.title} gives no scores of all labels for each token", "")
        with TemporaryDirectory(prefix="headscope-") as scratch:
            return self.head_of(cited, run_engine(cited.engine, self.folder, Path(scratch), self.batches, python))

    def head_of(self, cited: EngineHead, answer: EngineAnswer) -> EngineHead:
        """Gives the entry of an engine as its answer shows it."""
        return head_in_run(cited, answer, [batch.name for batch in self.batches], self.expected)


@contextmanager
def engine_trial(checkpoint: Checkpoint) -> Iterator[EngineTrial]:
    """Makes the random copy, the inputs and the expected scores that engines are compared with.

    The folder exists as long as the context is open. Raises Unsupported if the model scores neither texts nor their
    tokens, or if no small copy of it can be made.
    """
    from headscope.core.model.classes.random_copy import save_random_copy

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
        yield EngineTrial(folder, batches, ExpectedScores(references, padded), is_of_tokens)


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
