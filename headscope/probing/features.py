"""Every candidate vector of each text, from one pass of a real model: hidden states, the pooler, the head's input."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from headscope.errors import Unsupported, UsageError
from headscope.facts import Unavailable
from headscope.facts.counting import counted
from headscope.facts.location import Location
from headscope.facts.probe import Vector
from headscope.model.inference import NO_LIMIT, check_device, limit_length, load_model, open_tokenizer, run_texts
from headscope.model.model_request import Choice
from headscope.model.quiet import quiet
from headscope.trace.base import base_module

Array = np.ndarray[Any, Any]
Part = tuple[Vector, int | None]
"""A vector that the pass stores, and the layer that it is made of; None for the pooler and the head's input."""
Texts = Sequence[tuple[str, ...]]

_CHUNK = 1024
_EXACT = {torch.float32: 1e-5, torch.float64: 1e-5}
_COARSE = 2e-2
"""How much padding may change a vector, relative to its largest number: rounding, by the dtype of the model."""
_SAME_SCORES = 1e-4
_PER_TOKEN = 3
_ROOM = 1.05
_SECOND = 1.0
_OF_LAYERS = (Vector.FIRST_TOKEN, Vector.MASKED_MEAN, Vector.LAST_NON_PAD_TOKEN)


@dataclass(frozen=True, slots=True)
class Features:
    """What the pass stored: an array in a file for each part, a row for each text, in float32.

    `scores` are the model's own logits. `padded` says whether texts of different lengths shared a batch. `left_out`
    are parts that this model or these texts don't have, `not_determined` those that could not be read.
    """

    parts: dict[Part, Array]
    scores: Array
    layers: int
    padded: bool
    left_out: tuple[Unavailable, ...]
    not_determined: tuple[Unavailable, ...]
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Reader:
    """A model with its tokenizer, and the module whose input is that of the head ("" where it is not known)."""

    model: PreTrainedModel
    tokenizer: Any
    device: torch.device
    classifier: str = ""
    takes: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self.takes = frozenset(signature(self.model.forward).parameters)

    @property
    def truncates(self) -> bool:
        """Whether the tokenizer or the model knows a longest text."""
        return bool(self.tokenizer.model_max_length < NO_LIMIT)


def open_reader(choice: Choice, place: Location, device: str, classifier: str, seed: int) -> Reader:
    """The model with its real weights; weights that the checkpoint lacks are drawn from the seed.

    Raises Unsupported where there is no tokenizer, or the weights cannot be loaded.
    """
    where = check_device(device)
    tokenizer = open_tokenizer(place)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = load_model(choice, place, where)
    limit_length(tokenizer, model)
    return Reader(model, tokenizer, where, classifier)


def extract_features(
    reader: Reader, texts: Texts, folder: Path, *, batch_size: int, tell: Callable[[str], None]
) -> Features:
    """One pass over the texts, the longest first; memory does not grow with their number.

    Texts of different lengths share a batch, padded as the tokenizer pads, if that changes no vector of the shortest
    and the longest text. Otherwise only texts of equal length do, without any padding: so a model that reads padding
    gives the vectors that it gives for each text alone.
    """
    lengths = token_lengths(reader, texts)
    lent = _lend_pad_token(reader, texts)
    padded = not lent and _padding_holds(reader, texts, lengths)
    size = 1 if getattr(reader.model.config, "pad_token_id", 0) is None else batch_size  # no token is left to lend
    store = _Store(folder, len(texts))
    cut = int((lengths >= reader.tokenizer.model_max_length).sum())
    if cut:
        store.note(f"{counted(cut, 'text')} with {lengths.max():,} tokens, the most that the model takes: may be cut")
    started, done = time.monotonic(), 0
    for rows in _batches(lengths, size, padded=padded):
        for some, batch in _run_all(reader, texts, rows, store):
            store.write(some, batch)
        done += len(rows)
        tell(_progress(done, len(texts), time.monotonic() - started))
    return store.finished(padded=padded)


def token_lengths(reader: Reader, texts: Texts) -> Array:
    """How many tokens each text has. Raises UsageError for a text without any."""
    found: list[int] = []
    for start in range(0, len(texts), _CHUNK):
        found += [len(ids) for ids in _tokens(reader, texts[start : start + _CHUNK])]
    lengths = np.array(found)
    if not lengths.all():
        text = " ".join(texts[int(np.flatnonzero(lengths == 0)[0])])
        raise UsageError(f"the tokenizer makes no token of the text {text[:60]!r}", "leave out its row")
    return lengths


def _tokens(reader: Reader, texts: Texts) -> list[list[int]]:
    with quiet():
        ids: list[list[int]] = reader.tokenizer(*_columns(texts), truncation=reader.truncates)["input_ids"]
    return ids


def _columns(texts: Texts) -> list[list[str]]:
    """The texts, or the first and the second texts of pairs."""
    return [list(column) for column in zip(*texts, strict=True)]


def _lend_pad_token(reader: Reader, texts: Texts) -> bool:
    """Names a pad token for a model without one, which refuses batches then; whether texts can't be padded.

    It is a token that no text holds, so that the last token that is no padding is the last token.
    """
    if reader.tokenizer.pad_token is None or getattr(reader.model.config, "pad_token_id", 0) is None:
        used: set[int] = set()
        for start in range(0, len(texts), _CHUNK):
            used.update(*_tokens(reader, texts[start : start + _CHUNK]))
        embeddings: Any = reader.model.get_input_embeddings()
        size = embeddings.weight.shape[0]
        free = next((number for number in reversed(range(size)) if number not in used), None)
        if getattr(reader.model.config, "pad_token_id", None) is None:
            reader.model.config.pad_token_id = free
        return True
    return False


def _padding_holds(reader: Reader, texts: Texts, lengths: Array) -> bool:
    """Whether the shortest text has the same vectors beside the longest as alone."""
    rows = np.array([int(lengths.argmax()), int(lengths.argmin())])
    if lengths[rows[0]] == lengths[rows[1]]:
        return True
    together = _run(reader, [texts[row] for row in rows])
    tolerance = _EXACT.get(reader.model.dtype, _COARSE)
    for place, row in enumerate(rows):
        alone = _run(reader, [texts[row]])
        if alone.parts.keys() != together.parts.keys():
            return False
        pairs = [(alone.parts[part][0], together.parts[part][place]) for part in alone.parts]
        pairs.append((alone.scores[0], together.scores[place]))
        if not all(_is_close(one, other, tolerance) for one, other in pairs):
            return False
    return True


def _is_close(one: torch.Tensor, other: torch.Tensor, tolerance: float) -> bool:
    finite = one[one.isfinite()]
    scale = max(float(finite.abs().max()), 1.0) if finite.numel() else 1.0
    return bool(torch.allclose(one, other, rtol=0, atol=tolerance * scale, equal_nan=True))


def _batches(lengths: Array, size: int, *, padded: bool) -> Iterator[Array]:
    """Rows that run together, the longest first, so that too large a batch fails at once."""
    order = np.argsort(-lengths, kind="stable")
    ends = [len(order)] if padded else [*np.flatnonzero(np.diff(lengths[order])) + 1, len(order)]
    start = 0
    for end in ends:
        yield from (order[first : min(first + size, end)] for first in range(start, end, size))
        start = end


@dataclass(frozen=True, slots=True)
class _Batch:
    """The vectors of some texts; `layers` counts the hidden states."""

    parts: dict[Part, torch.Tensor]
    scores: torch.Tensor
    layers: int
    gaps: dict[str, str]
    absent: dict[str, str]


def _run_all(reader: Reader, texts: Texts, rows: Array, store: _Store) -> Iterator[tuple[Array, _Batch]]:
    """The batch, or its halves where the device has too little memory for it."""
    try:
        batch = _run(reader, [texts[row] for row in rows])
    except (Unsupported, torch.OutOfMemoryError) as err:
        if not isinstance(err.__cause__ or err, torch.OutOfMemoryError):
            raise
        if len(rows) == 1:
            raise Unsupported(
                f"{reader.device} has too little memory for one text", "give --device cpu, or shorter texts"
            ) from err
    else:
        yield rows, batch
        return
    store.note(f"{reader.device} had too little memory for {len(rows)} texts at once: smaller batches were run")
    middle = len(rows) // 2
    yield from _run_all(reader, texts, rows[:middle], store)
    yield from _run_all(reader, texts, rows[middle:], store)


def _run(reader: Reader, texts: Texts) -> _Batch:
    """One forward, and everything that is read from it. Raises Unsupported where the model fails."""
    encoded, mask = _encoded(reader, texts)
    with torch.inference_mode(), _tapped(reader) as taps:
        output = run_texts(reader.model, encoded, **_without_cache(reader), output_hidden_states=True)
        return _read(reader, output, encoded["input_ids"], mask, taps)


def _without_cache(reader: Reader) -> dict[str, bool]:
    """A decoder keeps the keys and values of every layer for the next token, unless it is asked not to."""
    return {"use_cache": False} if "use_cache" in reader.takes else {}


def _encoded(reader: Reader, texts: Texts) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """What the model takes, and which positions are tokens of the texts."""
    is_padded = reader.tokenizer.pad_token is not None
    with quiet():
        given = reader.tokenizer(
            *_columns(texts), return_tensors="pt", padding=is_padded, truncation=reader.truncates,
            return_attention_mask=True,
        )  # fmt: skip
    tensors = {name: value.to(reader.device) for name, value in given.items()}
    return {name: value for name, value in tensors.items() if name in reader.takes}, tensors["attention_mask"].bool()


@dataclass(slots=True)
class _Taps:
    """What hooks saw: the input and the output of the classifier, and the output of the pooler."""

    entered: torch.Tensor | None = None
    left: torch.Tensor | None = None
    pooled: torch.Tensor | None = None


@contextmanager
def _tapped(reader: Reader) -> Iterator[_Taps]:
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


def _read(reader: Reader, output: Any, ids: torch.Tensor, mask: torch.Tensor, taps: _Taps) -> _Batch:
    states = getattr(output, "hidden_states", None) or getattr(output, "encoder_hidden_states", None)
    if not states:
        raise Unsupported(
            f"{type(reader.model).__name__} returns no hidden states", "name another class with --model-class"
        )
    scores = output.logits.detach().float().cpu()
    parts: dict[Part, torch.Tensor] = {}
    gaps: dict[str, str] = {}
    absent: dict[str, str] = {}
    for layer, state in enumerate(states):
        if state.shape[:2] != mask.shape:
            gaps[f"layer {layer}"] = f"its hidden states have {state.shape[1]} positions for {mask.shape[1]} tokens"
            continue
        parts |= {(vector, layer): _POOLED[vector](state, mask) for vector in _OF_LAYERS}
    last, state = len(states) - 1, states[-1]
    if state.shape[:2] == mask.shape:
        parts[Vector.MAX, last] = _maximum(state, mask)
        end = reader.tokenizer.eos_token_id
        found = (ids == end) & mask if end is not None else torch.zeros_like(mask)
        if bool(found.any(1).all()):
            parts[Vector.EOS_TOKEN, last] = _at(state, _last_of(found))
        else:
            absent["eos_token"] = "the tokenizer puts no end-of-sequence token behind the texts"
    if taps.pooled is not None and taps.pooled.dim() == 2:  # noqa: PLR2004  a row for each text
        parts[Vector.POOLER, None] = taps.pooled
    else:
        absent["pooler"] = f"the base model inside {type(reader.model).__name__} has no pooler"
    head = _head_input(taps, output.logits) if reader.classifier else None
    if head is not None:
        parts[Vector.HEAD, None] = head
    elif reader.classifier:
        gaps["head"] = f"the logits are not what {reader.classifier} makes of one vector for each text"
    kept = {part: value.detach().float().cpu() for part, value in parts.items()}
    return _Batch(kept, scores, len(states), gaps, absent)


def _head_input(taps: _Taps, logits: torch.Tensor) -> torch.Tensor | None:
    """The vectors that the classifier scored; None where its scores are not the logits.

    A classifier that scores every token is read at the token whose scores are the logits.
    """
    entered, left = taps.entered, taps.left
    if entered is None or left is None:
        return None
    if left.dim() == _PER_TOKEN and left.shape[0] == logits.shape[0] and left.shape[-1] == logits.shape[-1]:
        distance = (left - logits[:, None, :]).abs().amax(-1)
        places = distance.shape[1] - 1 - distance.flip(1).argmin(1)  # the last of several that are equal
        entered, left = _at(entered, places), _at(left, places)
    if left.shape != logits.shape or entered.dim() != 2:  # noqa: PLR2004
        return None
    return entered if _is_close(left.float(), logits.float(), _SAME_SCORES) else None


def _at(state: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return state[torch.arange(len(state), device=state.device), places]


def _first(state: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return _at(state, mask.int().argmax(1))


def _last(state: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return _at(state, _last_of(mask))


def _last_of(mask: torch.Tensor) -> torch.Tensor:
    return mask.shape[1] - 1 - mask.flip(1).int().argmax(1)


def _mean(state: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    # Padding may hold NaN, which a product with 0 would keep.
    return state.float().masked_fill(~mask[:, :, None], 0).sum(1) / mask.sum(1, keepdim=True)


def _maximum(state: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return state.masked_fill(~mask[:, :, None], float("-inf")).amax(1)


_POOLED = {Vector.FIRST_TOKEN: _first, Vector.MASKED_MEAN: _mean, Vector.LAST_NON_PAD_TOKEN: _last}


class _Store:
    """Files with a row for each text, made when the first batch says how large they are."""

    def __init__(self, folder: Path, rows: int) -> None:
        self._folder, self._rows = folder, rows
        self._parts: dict[Part, Array] = {}
        self._scores: Array | None = None
        self._layers = 0
        self._gaps: dict[str, str] = {}
        self._absent: dict[str, str] = {}
        self._notes: dict[str, None] = {}

    def note(self, sentence: str) -> None:
        """A sentence for the result."""
        self._notes[sentence] = None

    def write(self, rows: Array, batch: _Batch) -> None:
        """The vectors of some texts. A part that one batch lacks is given up."""
        if self._scores is None:
            self._open(batch)
        assert self._scores is not None
        for part in [part for part in self._parts if part not in batch.parts]:
            del self._parts[part]
        for part, stored in self._parts.items():
            stored[rows] = batch.parts[part].numpy()
        self._scores[rows] = batch.scores.numpy()
        self._layers = max(self._layers, batch.layers)
        self._gaps |= batch.gaps
        self._absent |= batch.absent

    def _open(self, batch: _Batch) -> None:
        width = sum(value.shape[1] for value in (*batch.parts.values(), batch.scores))
        needed, free = 4 * width * self._rows, shutil.disk_usage(self._folder).free
        if needed * _ROOM > free:
            raise Unsupported(
                f"the vectors of {counted(self._rows, 'text')} need {needed / 1e9:.1f} GB, and {self._folder} has "
                f"{free / 1e9:.1f} GB free",
                "give a smaller --limit, or another folder with --features",
            )
        self._parts = {part: self._file(_name(part), value) for part, value in batch.parts.items()}
        self._scores = self._file("scores", batch.scores)

    def _file(self, name: str, value: torch.Tensor) -> Array:
        path = self._folder / f"{name}.npy"
        return np.lib.format.open_memmap(path, "w+", np.float32, (self._rows, value.shape[1]))

    def finished(self, *, padded: bool) -> Features:
        """What was stored, without parts that hold NaN or infinite numbers, which are named."""
        assert self._scores is not None
        for part in list(self._parts):
            wrong = _not_finite(self._parts[part])
            if wrong:
                self._gaps[_name(part)] = f"{counted(wrong, 'text')} of {self._rows:,} gave NaN or infinite numbers"
                del self._parts[part]
        if not self._parts:
            name, reason = next(iter(self._gaps.items()), ("vectors", "the model gave none"))
            raise Unsupported(
                f"no vector can be scored: {name}: {reason}", "see whether its weights are whole: headscope verify"
            )
        return Features(
            self._parts,
            self._scores,
            self._layers,
            padded,
            tuple(Unavailable(*item) for item in sorted(self._absent.items())),
            tuple(Unavailable(*item) for item in sorted(self._gaps.items())),
            tuple(self._notes),
        )


def _name(part: Part) -> str:
    vector, layer = part
    return vector.value if layer is None else f"{vector.value}-{layer}"


def _not_finite(stored: Array) -> int:
    starts = range(0, len(stored), _CHUNK)
    return sum(int((~np.isfinite(stored[start : start + _CHUNK]).all(1)).sum()) for start in starts)


def _progress(done: int, total: int, seconds: float) -> str:
    if seconds < _SECOND:
        return f"reading {total:,} texts"
    rate = done / seconds
    return f"reading texts: {done:,} of {total:,}, {rate:,.0f} a second, {(total - done) / rate:,.0f} s left"
