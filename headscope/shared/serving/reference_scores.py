"""The scores of a checkpoint that those of an engine are compared with: one text at a time, in single precision."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.utils.hub import cached_file

from headscope.core.checkpoints.contents.sentence import LIBRARY
from headscope.core.checkpoints.formats.config_file import parse_object
from headscope.core.facts import Task
from headscope.core.facts.counting import shortened
from headscope.core.facts.heads.head import AS_IT_IS
from headscope.core.facts.report import find_missing
from headscope.core.facts.stored.sentence import read_prompts
from headscope.core.model.classes.model_request import Choice
from headscope.core.model.loading.inference import (
    NO_LIMIT,
    encode_batches,
    limit_length,
    load_model,
    open_tokenizer,
    score_texts,
)
from headscope.core.source.checkpoint import Checkpoint
from headscope.core.source.reading.reading import WITHOUT_WEIGHTS
from headscope.core.trace.variants import head_variants
from headscope.core.upstream.transformers import attention_of_kind
from headscope.errors import Malformed, Unsupported
from headscope.shared.serving.answers import TextOrPair
from headscope.shared.serving.comparing import ReferenceScores, VariantScores
from headscope.shared.serving.explaining import Scores

_NO_SEGMENTS = "segment IDs 0"
_CLOSE = 1e-4
"""Single precision, in relation to the largest score."""
_SHORT_LIMITS = (128, 256, 512)
"""Where engines truncate, by their own default or by a setting of sentence-transformers."""
_MOST_PROMPTS = 8
_TOKENS_AT_ONCE = 2048
"""Tokens of a batch whose operations are all recorded: about 1 GB for a base model of twelve layers."""


def check_comparable(checkpoint: Checkpoint) -> None:
    """Raises Unsupported if a checkpoint has no scores to compare with."""
    report, manifest, reference = checkpoint.report, checkpoint.manifest, checkpoint.request.reference
    if manifest.kind in WITHOUT_WEIGHTS:
        raise Unsupported(
            f"{reference} is {WITHOUT_WEIGHTS[manifest.kind]}, so it gives no scores to compare with",
            "give the folder or the Hub ID of a whole checkpoint",
        )
    check_scores_texts(checkpoint)
    missing = find_missing(report)
    if missing.head or missing.elsewhere:
        raise Unsupported(
            f"{reference} lacks weights that the scores depend on, so its scores are random",
            "run `headscope diff-weights` to see them; give the checkpoint that is served",
        )


def check_scores_texts(checkpoint: Checkpoint, *, or_tokens: bool = False) -> None:
    """Raises Unsupported for a model whose scores are not those of whole texts, or of each token."""
    model = checkpoint.report.model
    tasks = {Task.SEQUENCE_CLASSIFICATION, *((Task.TOKEN_CLASSIFICATION,) if or_tokens else ())}
    if model.task not in tasks or checkpoint.choice.rows:
        what = "texts or of tokens" if or_tokens else "whole texts"
        raise Unsupported(
            f"headscope compares scores of {what}, and {model.class_name} gives none",
            f"give a checkpoint for {' or '.join(sorted(task.value for task in tasks))}",
        )


def local_folder(checkpoint: Checkpoint) -> Path:
    """Gives the checkpoint's folder on this machine for an engine. Raises Unsupported if there is none."""
    folder = Path(checkpoint.location.reference)
    if not folder.is_dir() or checkpoint.request.location.subfolder:
        raise Unsupported(
            f"{checkpoint.request.reference} is not a folder on this machine, and engines are run on a folder",
            "download it with `hf download` and give the folder",
        )
    return folder


@dataclass(frozen=True, slots=True)
class InputLayout:
    """How an engine gets its inputs: the first `padded` texts in batches of `size` padded on a side, the others alone.

    Batches hold texts of one kind, so a batch of pairs begins at a multiple of `size`.
    """

    padded: int
    size: int
    side: str


@dataclass(frozen=True, slots=True)
class TextScorer:
    """A checkpoint's model and tokenizer, loaded for its scores of texts. `batch_size` is that of the engine.

    `own_side` is where the tokenizer pads. With a layout, variants read the padding of its inputs and no other, and
    changed inputs have variants of the head only where engines are known for both.
    """

    choice: Choice
    place: Any
    tokenizer: Any
    model: PreTrainedModel
    batch_size: int
    own_side: str = "right"
    layout: InputLayout | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, checkpoint: Checkpoint, batch_size: int) -> TextScorer:
        """Loads model and tokenizer. Raises Unsupported if one of them cannot be loaded."""
        choice, place = checkpoint.choice, checkpoint.location
        tokenizer = open_tokenizer(place)
        own_side, tokenizer.padding_side = tokenizer.padding_side, "right"
        model = load_model(choice, place, torch.device("cpu"), torch.float32)
        limit_length(tokenizer, model)
        return cls(choice, place, tokenizer, model, batch_size, own_side, prompts=_read_prompts(checkpoint))

    def reference(self, texts: Sequence[TextOrPair], labels: Sequence[str], activation: str) -> ReferenceScores:
        """Scores texts; scores in another precision and of variants are computed when they are called for."""
        own = self._scores_of_texts(self.model, texts)
        return ReferenceScores(
            own,
            labels,
            activation,
            cache(partial(self._scores_in_precision, texts)),
            cache(partial(self.find_variants, texts, own)),
            {name: at for name, at in (self.model.config.label2id or {}).items() if type(at) is int},
            # Beyond its own limit, the model reads none, and has no positions.
            [min(count, self.tokenizer.model_max_length) for count in self.count_tokens(texts)],
            partial(self._scores_when_cut, texts),
        )

    def scores_in_batches(self, texts: Sequence[TextOrPair]) -> Scores:
        """Scores texts in the batches in which variants are computed."""
        longest = min(self.longest(texts), self.tokenizer.model_max_length)
        return np.asarray(score_texts(self.model, self._encode_texts(texts, longest)).double().numpy())

    def scores_with_attention(self, texts: Sequence[TextOrPair], kind: str) -> Scores | None:
        """Scores texts with another implementation of attention; None where it is the model's own, or not there."""
        try:
            with attention_of_kind(self.model, kind) as is_other:
                return self._scores_of_texts(self.model, texts) if is_other else None
        except (ValueError, ImportError, Unsupported):
            return None

    def padded_scores(self, texts: Sequence[TextOrPair], side: str) -> Scores:
        """Scores texts in one batch, padded on a side."""
        return replace(self, layout=InputLayout(len(texts), len(texts), side)).scores_in_batches(texts)

    @property
    def limit(self) -> int | None:
        """The tokens to which the tokenizer truncates; None if it has no limit."""
        most = self.tokenizer.model_max_length
        return most if most < NO_LIMIT else None

    @property
    def can_pad(self) -> bool:
        """True if texts of different lengths can be in one batch."""
        return self.tokenizer.pad_token is not None and getattr(self.model.config, "pad_token_id", None) is not None

    @property
    def joins_pairs(self) -> bool:
        """True if the tokenizer marks where the second text of a pair begins: by a special token or by a segment."""
        alone, pair = (self.tokenizer.num_special_tokens_to_add(pair=is_pair) for is_pair in (False, True))
        return bool(pair > alone or any(self.tokenizer("a", "a").get("token_type_ids", ())))

    def longest(self, texts: Sequence[TextOrPair]) -> int:
        """Counts the tokens of the longest text, before it is truncated."""
        return max(self.count_tokens(texts))

    def count_tokens(self, texts: Sequence[TextOrPair]) -> list[int]:
        """Counts the tokens of each text, before it is truncated."""
        return [len(self.tokenizer(*text, truncation=False, verbose=False)["input_ids"]) for text in texts]

    def _scores_when_cut(self, texts: Sequence[TextOrPair], rows: Sequence[int], limit: int) -> Scores:
        with self._limited_to(limit):
            return self._scores_of_texts(self.model, [texts[row] for row in rows])

    @contextmanager
    def _limited_to(self, limit: int) -> Iterator[None]:
        """Sets the tokenizer's limit: the same one serves every variant, so it is set back."""
        before = self.tokenizer.model_max_length
        self.tokenizer.model_max_length = limit
        try:
            yield
        finally:
            self.tokenizer.model_max_length = before

    def _scores_of_texts(self, model: PreTrainedModel, texts: Sequence[TextOrPair]) -> Scores:
        scores = score_texts(model, encode_batches(self.tokenizer, model, texts, 1)).double().numpy()
        if scores.ndim != 2:
            raise Unsupported(f"the model gives scores of the shape {scores.shape}, not one row for each text", "")
        if not np.isfinite(scores).all():
            raise Unsupported("the checkpoint's own scores are not all finite", "run `headscope check --for inference`")
        return np.asarray(scores)

    def _scores_in_precision(self, texts: Sequence[TextOrPair], precision: str) -> Scores | None:
        try:
            model = load_model(self.choice, self.place, torch.device("cpu"), getattr(torch, precision))
            return self._scores_of_texts(model, texts)
        except Unsupported:  # an operation that PyTorch lacks in this precision, or one that overflows
            return None

    def find_variants(self, texts: Sequence[TextOrPair], own: Scores) -> Mapping[str, VariantScores]:
        """Scores variants of the head on the inputs as they are and on changed ones; of several alike, the first."""
        found = {AS_IT_IS: VariantScores(own)}
        tolerance = _CLOSE * max(float(np.abs(own).max()), 1.0)
        plain: list[Mapping[str, torch.Tensor]] = []
        for change, batches in self._changed_inputs(texts):
            plain = plain or batches
            if change and _is_alike(batches, plain):
                continue
            no_segments = change == _NO_SEGMENTS
            whole = self.layout is None or not change or no_segments
            for name, item in self._head_variants(batches, found[AS_IT_IS], whole).items():
                if item.logits.shape != own.shape:  # another number of tokens, whose scores have no counterpart
                    continue
                words = ", ".join(word for word in (change, "" if name == AS_IT_IS else name) if word)
                if not words and _is_close(item.logits, own, tolerance):
                    found[AS_IT_IS] = replace(item, logits=own)
                elif not any(_is_close(item.logits, known.logits, tolerance) for known in found.values()):
                    found[words or "padded on the right in batches"] = replace(item, is_without_segments=no_segments)
        for words, logits in self._mask_variants(plain, own, tolerance):
            if not any(_is_close(logits, known.logits, tolerance) for known in found.values()):
                found[words] = replace(found[AS_IT_IS], logits=logits)
        return found

    def _mask_variants(
        self, batches: Sequence[Mapping[str, torch.Tensor]], own: Scores, tolerance: float
    ) -> Iterator[tuple[str, Scores]]:
        """Yields the scores with the other one of two attention masks: over all tokens, or up to each token.

        None unless the model gives its own scores with the first one, so that it is known to use the mask as it is.
        """

        def added_mask(mask: torch.Tensor, is_causal: bool) -> torch.Tensor:
            # Added to the attention's scores: this form is understood with and without fused attention.
            kept = mask.bool()[:, None, None, :].expand(-1, 1, mask.shape[1], -1)
            kept = kept.tril() if is_causal else kept
            dtype = self.model.dtype
            return torch.zeros(kept.shape, dtype=dtype).masked_fill(~kept, torch.finfo(dtype).min)

        def scores(*, is_causal: bool) -> Scores | None:
            try:
                changed = [{**one, "attention_mask": added_mask(one["attention_mask"], is_causal)} for one in batches]
                found = score_texts(self.model, changed).double().numpy()
            except (Unsupported, KeyError, IndexError):  # no mask, or one with two axes only
                return None
            return found if found.shape == own.shape and np.isfinite(found).all() else None

        over_all, up_to_each = scores(is_causal=False), scores(is_causal=True)
        if over_all is None or up_to_each is None:
            return
        if _is_close(over_all, own, tolerance):
            yield "with a causal mask", up_to_each
        elif _is_close(up_to_each, own, tolerance):
            yield "without the causal mask", over_all

    def _head_variants(
        self, batches: Sequence[Mapping[str, torch.Tensor]], own: VariantScores, whole: bool
    ) -> dict[str, VariantScores]:
        """Scores variants of the head on inputs; without `whole`, only the head as it is."""
        if not whole:
            return {AS_IT_IS: replace(own, logits=score_texts(self.model, batches).double().numpy())}
        first = batches[0]["input_ids"][0, 0].item()
        tokenizer = self.tokenizer
        names = {tokenizer.bos_token_id: tokenizer.bos_token, tokenizer.cls_token_id: tokenizer.cls_token}
        padded = len(batches) if self.layout is None else -(-self.layout.padded // self.layout.size)
        try:
            alone = range(padded, len(batches))
            found = head_variants(self.model, *batches, first=names.get(first) or "", alone=alone)
        except (Unsupported, KeyError):  # no proven expression, or no attention mask
            return {AS_IT_IS: VariantScores(score_texts(self.model, batches).double().numpy())}
        return {
            name: VariantScores(item.logits.double().numpy(), item.formula, item.is_sum) for name, item in found.items()
        }

    def _changed_inputs(self, texts: Sequence[TextOrPair]) -> Iterator[tuple[str, list[Mapping[str, torch.Tensor]]]]:
        """Encodes the texts as they are, and as an engine may change them."""
        limit = self.tokenizer.model_max_length
        longest = min(self.longest(texts), limit)
        plain = self._encode_texts(texts, longest)
        yield "", plain
        if any("token_type_ids" in batch and batch["token_type_ids"].any() for batch in plain):
            yield _NO_SEGMENTS, [{**batch, "token_type_ids": batch["token_type_ids"] * 0} for batch in plain]
        positioned: list[Mapping[str, torch.Tensor]] = [
            {**batch, "position_ids": batch["input_ids"].new_ones(batch["input_ids"].shape).cumsum(1) - 1}
            for batch in plain
        ]
        if self._reads_positions(plain[0], positioned[0]):
            yield "position IDs from 0", positioned
        for words, changed in _changed_texts(texts, self.prompts).items():
            yield words, self._encode_texts(changed, min(self.longest(changed), limit))
        for shorter in _SHORT_LIMITS:
            if shorter < longest:
                with self._limited_to(shorter):
                    yield f"texts cut to {shorter} tokens", self._encode_texts(texts, shorter)

    def _reads_positions(self, plain: Mapping[str, torch.Tensor], positioned: Mapping[str, torch.Tensor]) -> bool:
        """True if the model takes position IDs, and its own don't count from 0."""
        if "position_ids" not in inspect.signature(self.model.forward).parameters:
            return False
        one, other = (score_texts(self.model, [batch]).double().numpy() for batch in (plain, positioned))
        return not _is_close(one, other, _CLOSE * max(float(np.abs(one).max()), 1.0))

    def _encode_texts(self, texts: Sequence[TextOrPair], longest: int) -> list[Mapping[str, torch.Tensor]]:
        """Encodes texts in the batches of the layout, otherwise in batches padded on the right."""
        size = max(1, min(self.batch_size, _TOKENS_AT_ONCE // longest))
        if self.layout is None:
            return self._encode_runs(texts, size)
        return [*self._encode_padded(texts, self.layout), *self._encode_runs(texts[self.layout.padded :], size)]

    def encode_inputs(self, texts: Sequence[TextOrPair], layout: InputLayout) -> list[Mapping[str, torch.Tensor]]:
        """Encodes the batches of a layout, then each other text alone: what an engine gets."""
        return [*self._encode_padded(texts, layout), *self._encode_runs(texts[layout.padded :], 1)]

    def _encode_padded(self, texts: Sequence[TextOrPair], layout: InputLayout) -> list[Mapping[str, torch.Tensor]]:
        self.tokenizer.padding_side = layout.side
        try:
            return self._encode_runs(texts[: layout.padded], layout.size)
        finally:
            self.tokenizer.padding_side = "right"

    def _encode_runs(self, texts: Sequence[TextOrPair], size: int) -> list[Mapping[str, torch.Tensor]]:
        runs = [list(run) for _, run in groupby(texts, key=len)]
        return [batch for run in runs for batch in encode_batches(self.tokenizer, self.model, run, size)]


def _is_alike(batches: Sequence[Mapping[str, torch.Tensor]], others: Sequence[Mapping[str, torch.Tensor]]) -> bool:
    """True if two lists of batches hold the same inputs."""
    if batches is others or len(batches) != len(others):
        return False
    return all(
        one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)
        for one, other in zip(batches, others, strict=True)
    )


def _read_prompts(checkpoint: Checkpoint) -> dict[str, str]:
    """Reads the prompts of sentence-transformers by their names; none where they can't be read."""
    place = checkpoint.location
    if checkpoint.manifest.sentence is None:
        return {}
    try:
        path: Any = cached_file(place.reference, LIBRARY, **place.keywords())
        found = read_prompts(parse_object(Path(path).read_bytes(), LIBRARY))
    except (OSError, TypeError, Malformed):
        return {}
    return dict(list(found.items())[:_MOST_PROMPTS])


def _changed_texts(texts: Sequence[TextOrPair], prompts: Mapping[str, str]) -> dict[str, Sequence[TextOrPair]]:
    """Changes texts as a server may do before it scores them."""
    found: dict[str, Sequence[TextOrPair]] = {
        "texts in lower case": [tuple(part.lower() for part in text) for text in texts]
    }
    if any(len(text) == 2 for text in texts):
        found["pairs in the other order"] = [text[::-1] for text in texts]
        found["pairs joined to one text"] = [(" ".join(text),) for text in texts]
    for name, prompt in prompts.items():
        found[f"the prompt {shortened(name)} in front"] = [(prompt + text[0], *text[1:]) for text in texts]
        if any(len(text) == 2 for text in texts):
            found[f"the prompt {shortened(name)} in front of both"] = [
                tuple(prompt + one for one in text) for text in texts
            ]
    return found


def _is_close(one: Scores, other: Scores, tolerance: float) -> bool:
    # Row by row, so that it stops at the first text that differs.
    return all(np.allclose(row, beside, rtol=0, atol=tolerance) for row, beside in zip(one, other, strict=True))
