"""Real models to read vectors from, in the requested dtype, or in one that changes no vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Any

import numpy as np
import torch

from headscope.core.facts.heads.tasks import Input
from headscope.core.facts.stored.location import Location
from headscope.core.model.classes.model_request import Choice
from headscope.core.model.loading.inference import (
    audio_encoder,
    check_device,
    image_encoder,
    lacked_memory,
    limit_length,
    load_model,
    open_tokenizer,
)
from headscope.errors import Unsupported
from headscope.slices.probe.data.media import Media
from headscope.slices.probe.facts.data import Precision
from headscope.slices.probe.hidden.features import Reader, Texts, largest_change, run_batch, token_lengths
from headscope.slices.probe.hidden.pooled import LayerVector

AUTO = "auto"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
HALF_TOLERANCE = 5e-2
"""How much half precision may change a vector of a sample text, relative to its largest number."""
_SAMPLE = 8


@dataclass(frozen=True, slots=True)
class InputSource:
    """Origin of a model, and the dtype of its stored weights.

    `new` are its parameters that the checkpoint doesn't give, drawn from `seed`.
    """

    choice: Choice
    place: Location
    stored: str = "float32"
    classifier: str = ""
    seed: int = 0
    new: tuple[str, ...] = ()
    input: Input = Input.TEXT


def open_reader(source: InputSource, device: str, dtype: str, texts: Texts) -> Reader:
    """Loads the model with its real weights; weights that the checkpoint lacks are drawn from the seed.

    With `auto`, the dtype is float32 on the CPU; elsewhere it is the checkpoint's half precision if the vectors of
    sample texts are those of float32, as far as `HALF_TOLERANCE` allows. Raises Unsupported where there is no
    tokenizer, or the weights cannot be loaded.
    """
    where = check_device(device, runs_weights=True)
    tokenizer = open_tokenizer(source.place) if source.input is Input.TEXT else _ENCODERS[source.input](source.place)
    of_its_own = source.stored if where.type != "cpu" and source.stored in ("bfloat16", "float16") else "float32"
    wanted = DTYPES[of_its_own if dtype == AUTO else dtype]
    if wanted is torch.float32:
        return _load_reader(source, tokenizer, where, torch.float32)
    return _open_in_half(source, tokenizer, where, wanted, texts, may_refuse=dtype == AUTO)


def _open_in_half(
    source: InputSource, tokenizer: Any, where: torch.device, dtype: torch.dtype, texts: Texts, *, may_refuse: bool
) -> Reader:
    """Loads the model in half precision, and compares it with float32 on sample texts.

    Uses float32 if the vectors change too much and `may_refuse` is set.
    """
    wide = _read_in_float32(source, tokenizer, where, texts)
    half = _load_reader(source, tokenizer, where, dtype)
    if wide is None:  # float32 doesn't fit the device: there is nothing to compare with
        return half
    with torch.no_grad():  # otherwise the comparison would be one of random values
        for name, value in wide.drawn.items():
            half.model.get_parameter(name).copy_(value)
    change = 0.0
    for vectors, text in zip(wide.vectors, wide.texts, strict=True):
        narrow = run_batch(half, [text]).vectors
        for part, exact in vectors.items():
            change = max(change, largest_change(exact, narrow[part]) if part in narrow else inf)
    if may_refuse and change > HALF_TOLERANCE:
        del half  # the device may have no memory for both models
        half = _load_reader(source, tokenizer, where, torch.float32)
    measured = change if isfinite(change) else None
    half.precision = replace(half.precision, change=measured, tolerance=HALF_TOLERANCE, texts=len(wide.texts))
    return half


@dataclass(frozen=True, slots=True)
class _Float32Sample:
    """Sample texts with their vectors in float32, and the values of parameters that the checkpoint doesn't give."""

    texts: Sequence[tuple[str, ...]]
    vectors: list[dict[LayerVector | None, torch.Tensor]]
    drawn: dict[str, torch.Tensor]


def _read_in_float32(source: InputSource, tokenizer: Any, where: torch.device, texts: Texts) -> _Float32Sample | None:
    """Runs the model in float32 on sample texts; gives None if the device has too little memory for it."""
    try:
        reader = _load_reader(source, tokenizer, where, torch.float32)
        sample = _sample_texts(reader, texts)
        # Another dtype draws other values for new parameters from the same seed.
        drawn = {name: value.detach().cpu() for name, value in reader.model.named_parameters() if name in source.new}
        return _Float32Sample(sample, [run_batch(reader, [text]).vectors for text in sample], drawn)
    except (Unsupported, torch.OutOfMemoryError) as err:
        if lacked_memory(err):
            return None
        raise


def _load_reader(source: InputSource, tokenizer: Any, where: torch.device, dtype: torch.dtype) -> Reader:
    # Missing weights are drawn while the model is loaded, and the caller's generator keeps its state.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(source.seed)
        model = load_model(source.choice, source.place, where, dtype)
    precision = Precision(str(dtype).removeprefix("torch."), source.stored)
    if source.input is not Input.TEXT:
        return Reader(model, None, where, source.classifier, precision, Media(source.input, tokenizer))
    limit_length(tokenizer, model)
    return Reader(model, tokenizer, where, source.classifier, precision)


_ENCODERS = {Input.IMAGE: image_encoder, Input.AUDIO: audio_encoder}


def _sample_texts(reader: Reader, texts: Texts) -> Sequence[tuple[str, ...]]:
    """Picks texts from the shortest to the longest, spread over all lengths."""
    if reader.media is not None:  # paths, each once
        return list(dict.fromkeys(texts))[:_SAMPLE]
    order = np.argsort(token_lengths(reader, texts), kind="stable")
    places = np.unique(np.linspace(0, len(order) - 1, _SAMPLE).round().astype(int))
    return [texts[order[place]] for place in places]
