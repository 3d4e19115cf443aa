"""Every candidate vector of each text, from one pass of a real model: hidden states, pooler output, head input."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import signature
from itertools import chain
from math import inf, isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from headscope.core.facts.counting import counted
from headscope.core.facts.heads.tasks import Input
from headscope.core.model.loading.inference import NO_LIMIT, lacked_memory, run_texts
from headscope.core.model.quiet import quiet
from headscope.core.trace.record.base import base_module
from headscope.errors import Unsupported, UsageError
from headscope.slices.probe.arrays import Array
from headscope.slices.probe.data.media import Media
from headscope.slices.probe.facts.data import Precision
from headscope.slices.probe.facts.result import Vector
from headscope.slices.probe.hidden.pooled import Batch, LayerVector, at, pool_positions, pool_tokens
from headscope.slices.probe.hidden.store import Features, Store, TextLengths

Texts = Sequence[tuple[str, ...]]

_CHUNK = 1024
_EXACT = {torch.float32: 1e-5, torch.float64: 1e-5}
_COARSE = 2e-2
"""How much padding may change a vector, relative to its largest number: rounding, by the dtype of the model."""
_SAME_SCORES = 1e-4


@dataclass(slots=True)
class Reader:
    """A model with its tokenizer, and the module whose input is that of the head ("" if it isn't known).

    `media` makes the tensors where the rows are paths of images or sounds, and no tokenizer is needed.
    """

    model: PreTrainedModel
    tokenizer: Any
    device: torch.device
    classifier: str = ""
    precision: Precision = Precision("float32", "float32")  # noqa: RUF009  frozen
    media: Media | None = None
    takes: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self.takes = frozenset(signature(self.model.forward).parameters)

    @property
    def input(self) -> Input:
        """Kind of the rows."""
        return Input.TEXT if self.media is None else self.media.kind

    @property
    def noun(self) -> str:
        """Word for one row."""
        return self.input.noun

    @property
    def limit(self) -> int | None:
        """Longest text that the tokenizer or the model takes, in tokens; None if neither limits it."""
        most = int(self.tokenizer.model_max_length)
        return most if most < NO_LIMIT else None


def extract_features(
    reader: Reader, texts: Texts, folder: Path, *, batch_size: int, tell: Callable[[str], None]
) -> Features:
    """Runs the model once over the texts, the longest first; the memory doesn't grow with their number.

    Texts of different lengths share a batch, padded as the tokenizer pads, if that changes no vector of the shortest
    and the longest text. Otherwise only texts of equal length do, without any padding: so a model that reads padding
    gives the vectors that it gives for each text alone.
    """
    if reader.media is not None:
        return _extract_media(reader, reader.media, texts, folder, batch_size=batch_size, tell=tell)
    uncut = token_lengths(reader, texts)
    lengths = uncut if reader.limit is None else np.minimum(uncut, reader.limit)
    lent = _lend_pad_token(reader, texts)
    effects = None if lent else padding_of_vectors(reader, texts, lengths)
    padded = effects is not None and all(effect.holds for effect in effects.values())
    size = 1 if getattr(reader.model.config, "pad_token_id", 0) is None else batch_size  # no token is left to lend
    store = Store(folder, len(texts))
    cut = int((uncut > lengths).sum())
    if cut:
        share = f"{counted(cut, 'text')} of {len(texts):,} ({cut / len(texts):.1%})"
        store.note(f"{share} longer than the {reader.limit:,} tokens that the model takes: cut")
    _read_all(reader, texts, _batch_rows(lengths, size, padded=padded), store, tell)
    return store.finished(
        padded=padded,
        several=lengths > 1,
        effects={part: effect.change for part, effect in (effects or {}).items() if isfinite(effect.change)},
        tokens=TextLengths(int(uncut.min()), int(uncut.max()), reader.limit, cut),
        precision=reader.precision,
    )


def _extract_media(
    reader: Reader, media: Media, files: Texts, folder: Path, *, batch_size: int, tell: Callable[[str], None]
) -> Features:
    """Runs the model once over images or sounds. Sounds of different lengths share no batch, so nothing is padded."""
    store = Store(folder, len(files), media.kind.noun)
    batches = _batch_rows(media.lengths([path for (path,) in files]), batch_size, padded=False)
    _read_all(reader, files, batches, store, tell)
    # Only models with a separate first token, such as [CLS] of a ViT, have a vector of it.
    store.keep_first_if_constant(f"the first position of {type(reader.model).__name__} is a part of the input")
    return store.finished(padded=False, several=None, effects={}, tokens=None, precision=reader.precision)


def _read_all(
    reader: Reader, texts: Texts, batches: Iterator[Array], store: Store, tell: Callable[[str], None]
) -> None:
    """Runs the batches and stores their vectors; reports the progress after each."""
    started, done = time.monotonic(), 0
    for rows in batches:
        for some, batch in _run_all(reader, texts, rows, store):
            store.write(some, batch)
        done += len(rows)
        tell(_progress_line(f"{reader.noun}s", done, len(texts), time.monotonic() - started))


def token_lengths(reader: Reader, texts: Texts) -> Array:
    """Counts the tokens of each text before it is cut. Raises UsageError for a text without any.

    The result is [texts].
    """
    lengths = np.array([len(ids) for ids in _tokenize_texts(reader, texts, cut=False)])
    if not lengths.all():
        text = " ".join(texts[int(np.flatnonzero(lengths == 0)[0])])
        raise UsageError(f"the tokenizer makes no token of the text {text[:60]!r}", "leave out its row")
    return lengths


def _tokenize_texts(reader: Reader, texts: Texts, *, cut: bool) -> Iterator[list[int]]:
    for start in range(0, len(texts), _CHUNK):
        columns = _text_columns(texts[start : start + _CHUNK])
        with quiet():
            given = reader.tokenizer(*columns, truncation=cut and reader.limit is not None)
        yield from given["input_ids"]


def _text_columns(texts: Texts) -> list[list[str]]:
    """Gives the texts as one column, or pairs as two columns."""
    return [list(column) for column in zip(*texts, strict=True)]


def _lend_pad_token(reader: Reader, texts: Texts) -> bool:
    """Gives a model without a pad token one, because it refuses batches otherwise; True if texts can't be padded.

    The token is one that no text holds, so that the last token that isn't padding is the text's last token.
    """
    if reader.tokenizer.pad_token is None or getattr(reader.model.config, "pad_token_id", 0) is None:
        used = set(chain.from_iterable(_tokenize_texts(reader, texts, cut=True)))
        embeddings: Any = reader.model.get_input_embeddings()
        size = embeddings.weight.shape[0]
        free = next((number for number in reversed(range(size)) if number not in used), None)
        if getattr(reader.model.config, "pad_token_id", None) is None:
            reader.model.config.pad_token_id = free
        return True
    return False


@dataclass(frozen=True, slots=True)
class Effect:
    """Change of a vector by padding, relative to its largest number, and whether it is small enough to be rounding."""

    change: float
    holds: bool


def padding_of_vectors(reader: Reader, texts: Texts, lengths: Array) -> dict[LayerVector | None, Effect] | None:
    """Measures the effect of padding on each vector of the shortest and the longest text, and on the scores (None).

    None where a vector exists only with or only without padding; empty where all texts are of one length. `lengths` is
    [texts].
    """
    rows = np.array([int(lengths.argmax()), int(lengths.argmin())])
    if lengths[rows[0]] == lengths[rows[1]]:
        return {}
    together = _forward_texts(reader, [texts[row] for row in rows]).vectors
    found: dict[LayerVector | None, Effect] = {}
    for place, row in enumerate(rows):
        alone = _forward_texts(reader, [texts[row]]).vectors
        if alone.keys() != together.keys():
            return None
        for part, value in alone.items():
            padded, tolerance = together[part][place], _EXACT.get(reader.model.dtype, _COARSE)
            here = Effect(largest_change(value[0], padded), _is_close(value[0], padded, tolerance))
            before = found.get(part, here)
            found[part] = Effect(max(here.change, before.change), here.holds and before.holds)
    return found


def largest_change(one: torch.Tensor, other: torch.Tensor) -> float:
    """Computes the largest difference at one place, relative to the largest number of `one`.

    Both have one shape, whichever it is. It is infinite where only one of them is finite.
    """
    both = one.isfinite()
    if not torch.equal(both, other.isfinite()):
        return inf
    if not bool(both.any()):
        return 0.0
    scale = float(one[both].abs().max())
    return float((one[both] - other[both]).abs().max()) / (scale or 1.0)


def _is_close(one: torch.Tensor, other: torch.Tensor, tolerance: float) -> bool:
    finite = one[one.isfinite()]
    scale = max(float(finite.abs().max()), 1.0) if finite.numel() else 1.0
    return bool(torch.allclose(one, other, rtol=0, atol=tolerance * scale, equal_nan=True))


def _batch_rows(lengths: Array, size: int, *, padded: bool) -> Iterator[Array]:
    """Yields rows that run together, the longest first, so that a batch that is too large fails immediately."""
    order = np.argsort(-lengths, kind="stable")
    ends = [len(order)] if padded else [*np.flatnonzero(np.diff(lengths[order])) + 1, len(order)]
    start = 0
    for end in ends:
        yield from (order[first : min(first + size, end)] for first in range(start, end, size))
        start = end


def _run_all(reader: Reader, texts: Texts, rows: Array, store: Store) -> Iterator[tuple[Array, Batch]]:
    """Runs a batch, or its halves if the device has too little memory for it."""
    try:
        batches = list(_run_together(reader, texts, rows))
    except (Unsupported, torch.OutOfMemoryError) as err:
        if not lacked_memory(err):
            raise
        if len(rows) == 1:
            raise Unsupported(
                f"{reader.device} has too little memory for one {reader.noun}",
                "give --device cpu" if reader.noun == "image" else f"give --device cpu, or shorter {reader.noun}s",
            ) from err
    else:
        yield from batches
        return
    store.note(
        f"{reader.device} has too little memory for a batch of {len(rows)} {reader.noun}s, so smaller batches were used"
    )
    middle = len(rows) // 2
    yield from _run_all(reader, texts, rows[:middle], store)
    yield from _run_all(reader, texts, rows[middle:], store)


def _run_together(reader: Reader, texts: Texts, rows: Array) -> Iterator[tuple[Array, Batch]]:
    """Runs one batch, or several if the tensors of images or sounds have different shapes."""
    if reader.media is None:
        yield rows, _forward_texts(reader, [texts[row] for row in rows])
        return
    for places, tensors in reader.media.batches([texts[row][0] for row in rows]):
        yield rows[places], _forward_tensors(reader, tensors)


def _forward_tensors(reader: Reader, tensors: dict[str, torch.Tensor]) -> Batch:
    given = {
        name: value.to(reader.device, reader.model.dtype if value.is_floating_point() else None)
        for name, value in tensors.items() if name in reader.takes
    }  # fmt: skip
    with torch.inference_mode(), _attach_taps(reader) as taps:
        output = run_texts(reader.model, given, reader.input, output_hidden_states=True)
        return _add_tapped_vectors(reader, pool_positions(_hidden_states_of(reader, output)), output, taps)


def run_batch(reader: Reader, texts: Texts) -> Batch:
    """Computes the vectors of some texts, images or sounds of one shape. Raises Unsupported if the model fails."""
    return next(batch for _, batch in _run_together(reader, texts, np.arange(len(texts))))


def _forward_texts(reader: Reader, texts: Texts) -> Batch:
    """Runs one forward pass, and collects all that is read from it. Raises Unsupported if the model fails."""
    encoded, mask = _encode_texts(reader, texts)
    with torch.inference_mode(), _attach_taps(reader) as taps:
        # By default, a decoder keeps the keys and values of every layer for the next token.
        options = {"use_cache": False} if "use_cache" in reader.takes else {}
        output = run_texts(reader.model, encoded, **options, output_hidden_states=True)
        end = reader.tokenizer.eos_token_id
        ends = None if end is None else (encoded["input_ids"] == end) & mask
        return _add_tapped_vectors(reader, pool_tokens(_hidden_states_of(reader, output), mask, ends), output, taps)


def _hidden_states_of(reader: Reader, output: Any) -> Sequence[torch.Tensor]:
    # An encoder-decoder model has those of its encoder.
    states = getattr(output, "hidden_states", None) or getattr(output, "encoder_hidden_states", None)
    if not states:
        raise Unsupported(
            f"{type(reader.model).__name__} returns no hidden states", "name another class with --model-class"
        )
    found: Sequence[torch.Tensor] = states
    return found


def _encode_texts(reader: Reader, texts: Texts) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Gives the model's inputs, and a mask of the positions that are tokens of the texts."""
    is_padded = reader.tokenizer.pad_token is not None
    with quiet():
        given = reader.tokenizer(
            *_text_columns(texts), return_tensors="pt", padding=is_padded, truncation=reader.limit is not None,
            return_attention_mask=True,
        )  # fmt: skip
    tensors = {name: value.to(reader.device) for name, value in given.items()}
    return {name: value for name, value in tensors.items() if name in reader.takes}, tensors["attention_mask"].bool()


@dataclass(slots=True)
class _Taps:
    """Tensors that hooks recorded: the input and output of the classifier, and the output of the pooler."""

    entered: torch.Tensor | None = None
    left: torch.Tensor | None = None
    pooled: torch.Tensor | None = None


@contextmanager
def _attach_taps(reader: Reader) -> Iterator[_Taps]:
    """Records what enters and leaves the classifier, and what the pooler gives, for the forward passes inside."""
    taps = _Taps()

    def see_classifier(module: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        if given and isinstance(given[0], torch.Tensor) and isinstance(output, torch.Tensor):
            taps.entered, taps.left = given[0], output

    def see_base(module: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        pooled = getattr(output, "pooler_output", None)
        taps.pooled = pooled if isinstance(pooled, torch.Tensor) else None

    base = base_module(reader.model)
    hooks = [base.register_forward_hook(see_base)] if base is not None else []
    if reader.classifier:
        hooks.append(reader.model.get_submodule(reader.classifier).register_forward_hook(see_classifier))
    try:
        yield taps
    finally:
        for hook in hooks:
            hook.remove()


def _add_tapped_vectors(reader: Reader, batch: Batch, output: Any, taps: _Taps) -> Batch:
    """Adds the vectors of the pooler and of the head's input, and the scores."""
    # The poolers of image models keep a height and a width of 1.
    row = None if taps.pooled is None else taps.pooled.flatten(1) if taps.pooled.shape[2:] == (1, 1) else taps.pooled
    if row is not None and row.dim() == 2:  # a row for each text
        batch.parts[Vector.POOLER, None] = row
    else:
        batch.absent["pooler"] = f"the base model inside {type(reader.model).__name__} has no pooler"
    head = _head_input(taps, output.logits) if reader.classifier else None
    if head is not None:
        batch.parts[Vector.HEAD, None] = head
    elif reader.classifier:
        batch.gaps["head"] = f"the logits are not what {reader.classifier} makes of one vector for each {reader.noun}"
    batch.parts[None] = output.logits
    return batch


def _head_input(taps: _Taps, logits: torch.Tensor) -> torch.Tensor | None:
    """Gives the vectors that the classifier scored; None if its scores aren't the logits.

    A classifier that scores every token is read at the token whose scores are the logits.
    """
    entered, left = taps.entered, taps.left
    if entered is None or left is None:
        return None
    if left.dim() == 3 and left.shape[0] == logits.shape[0] and left.shape[-1] == logits.shape[-1]:
        distance = (left - logits[:, None, :]).abs().amax(-1)
        places = distance.shape[1] - 1 - distance.flip(1).argmin(1)  # the last of several that are equal
        entered, left = at(entered, places), at(left, places)
    if left.shape != logits.shape or entered.dim() != 2:
        return None
    return entered if _is_close(left.float(), logits.float(), _SAME_SCORES) else None


def _progress_line(what: str, done: int, total: int, seconds: float) -> str:
    if seconds < 1:  # too short for a rate
        return f"reading {total:,} {what}"
    rate = done / seconds
    return f"reading {what}: {done:,} of {total:,}, {rate:,.0f} a second, {(total - done) / rate:,.0f} s left"
