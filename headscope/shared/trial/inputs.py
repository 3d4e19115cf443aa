"""The inputs of a run, the same at each call: sentences and texts of the tokenizer's vocabulary, images, sounds."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headscope.core.facts import Task
from headscope.core.model.loading.inference import NO_LIMIT
from headscope.errors import Unsupported
from headscope.shared.trial.encoded import Encoded, is_content

SENTENCES = (
    "The film was good, and I would see it again.",
    "No.",
    "She never thought that a train could be so late in the middle of a quiet summer afternoon.",
    "Profits fell by 12% in the third quarter.",
    "Where can I change the address of my order?",
    "I don't like this at all!",
)
_SEED = 20
_OF_VOCABULARY = (3, 5, 8, 8, 12, 20)
"""Tokens of the texts that are drawn from the vocabulary."""
_TRIED_TOKENS = 4000
"""Tokens of the vocabulary that are looked at for texts."""
_IMAGES, _SOUNDS, _FRAMES, _USUAL_SIZE = 8, 8, 16, (224, 224)

TASKS_OF_PAIRS = (Task.QUESTION_ANSWERING, Task.NEXT_SENTENCE_PREDICTION, Task.MULTIPLE_CHOICE)


@dataclass(frozen=True, slots=True)
class TextInput:
    """A text, or a pair of texts, and what it is called in a report."""

    name: str
    parts: tuple[str, ...]


def text_inputs(tokenizer: Any, task: Task, *, takes_pairs: bool = False) -> tuple[TextInput, ...]:
    """Makes at most fourteen inputs: sentences, texts of the vocabulary, pairs. With `takes_pairs`, only pairs."""
    drawn = tuple(_texts_of_vocabulary(tokenizer))
    if takes_pairs or task in TASKS_OF_PAIRS:
        texts = (*SENTENCES, *drawn)
        return tuple(TextInput("pair", pair) for pair in zip(texts, (*texts[1:], texts[0]), strict=True))
    singles = [TextInput("text", (text,)) for text in SENTENCES]
    singles += [TextInput("text of the vocabulary", (text,)) for text in drawn]
    pairs = [TextInput("pair", (SENTENCES[0], SENTENCES[4])), TextInput("pair", (SENTENCES[2], SENTENCES[3]))]
    return (*singles, *(pairs if task is Task.SEQUENCE_CLASSIFICATION else ()))


def ordinary_tokens(tokenizer: Any) -> list[int]:
    """Draws IDs of the vocabulary without special tokens: the same some thousand at each call."""
    special, size = set(tokenizer.all_special_ids), len(tokenizer)
    generator = random.Random(_SEED)
    found = generator.sample(range(size), min(size, _TRIED_TOKENS))
    added = {at for at, token in tokenizer.added_tokens_decoder.items() if token.special}
    return [at for at in found if at not in special and at not in added]


def _texts_of_vocabulary(tokenizer: Any) -> Iterator[str]:
    """Makes texts of the tokenizer's own tokens, so that a model of proteins or of Thai has words to read."""
    tokens = ordinary_tokens(tokenizer)
    generator = random.Random(_SEED)
    drawn = [generator.choices(tokens, k=count) for count in _OF_VOCABULARY if tokens]
    yield from filter(None, _texts_read_back(tokenizer, drawn))


_SEPARATORS = (",", "|", ";", "\t", "\n", "_")
"""What stands between the words of a vocabulary that isn't of a language: names of events, of genes, of moves."""


def _texts_read_back(tokenizer: Any, drawn: Sequence[Sequence[int]]) -> list[str]:
    """Decodes rows of token IDs, with a separator if the tokenizer doesn't know its own words otherwise."""
    texts = [tokenizer.decode(row, skip_special_tokens=True).strip() for row in drawn]
    if _are_read_back(tokenizer, drawn, texts):
        return texts
    words = [[tokenizer.decode([at]) for at in row] for row in drawn]
    ways = ([mark.join(row) for row in words] for mark in _SEPARATORS)
    return next((way for way in ways if _are_read_back(tokenizer, drawn, way)), texts)


def _are_read_back(tokenizer: Any, drawn: Sequence[Sequence[int]], texts: Sequence[str]) -> bool:
    """True if at least half of the drawn tokens are in what the tokenizer makes of the texts."""
    encoded = [set(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]) for text in texts]
    found = sum(at in ids for row, ids in zip(drawn, encoded, strict=True) for at in row)
    return 2 * found >= sum(map(len, drawn))


def with_other_middle(tokenizer: Any, encoded: Encoded, turn: int = 0) -> dict[str, Any] | None:
    """Puts other tokens between the first and the last ordinary one of a text; None for one that is too short.

    Special tokens stay where they are, and so does the token on each side: what reads only the ends sees no difference.
    Each `turn` puts in other tokens of the vocabulary. Of choices, [1, choices, tokens], each gets the same ones.
    """
    import torch

    ids = encoded["input_ids"]
    if ids.dim() > 2:
        rows = [with_other_middle(tokenizer, {"input_ids": ids[:, at]}, turn) for at in range(ids.shape[1])]
        made = [row["input_ids"] for row in rows if row is not None]
        return {**encoded, "input_ids": torch.stack(made, 1)} if len(made) == len(rows) else None
    own, special = ids[0].tolist(), set(tokenizer.all_special_ids)
    ordinary = [at for at, token in enumerate(own) if token not in special]
    others = [token for token in ordinary_tokens(tokenizer) if token not in own]
    return replace_middle(encoded, ordinary, others, turn)


def replace_middle(
    encoded: Encoded, ordinary: Sequence[int], others: Sequence[int], turn: int, step: int = 1
) -> dict[str, Any] | None:
    """Puts `others` at the `ordinary` positions of a row of token IDs, but for the first and the last of these.

    None if that changes fewer than two tokens. Each `turn` goes on where the one before ended, `step` by `step`.
    """
    middle = ordinary[1:-1]
    if len(middle) < 2 or not others:
        return None
    ids = encoded["input_ids"].clone()
    for place, at in enumerate(middle):
        ids[0, at] = others[(turn * len(middle) + place) * step % len(others)]
    return {**encoded, "input_ids": ids}


def with_other_content(encoded: Encoded, turn: int = 0) -> dict[str, Any]:
    """Replaces an encoded image or sound by noise of the same mean and spread."""
    import torch

    generator = torch.Generator().manual_seed(_SEED + turn)

    def make_noise(value: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(value.shape, generator=generator) * value.float().std() + value.float().mean()
        return noise if value.is_floating_point() else noise.clamp(0, 255).to(value.dtype)

    return {name: make_noise(value) if is_content(value) else value for name, value in encoded.items()}


def encode_text(tokenizer: Any, inputs: Sequence[TextInput], task: Task) -> dict[str, Any]:
    """Encodes inputs with the checkpoint's tokenizer, padded if there are several.

    `input_ids` is [inputs, tokens]; for multiple choice [inputs, choices, tokens].
    """
    has_limit = tokenizer.model_max_length < NO_LIMIT
    options = {"return_tensors": "pt", "truncation": has_limit, "padding": len(inputs) > 1}
    if task is Task.MULTIPLE_CHOICE:
        first = [text for item in inputs for text in (item.parts[0], item.parts[0])]
        second = [text for item in inputs for text in (item.parts[1], item.parts[1][::-1])]
        encoded = tokenizer(first, second, **options | {"padding": True})
        return {name: value.reshape(len(inputs), 2, -1) for name, value in encoded.items()}
    pairs = [item.parts[1] for item in inputs if len(item.parts) > 1]
    return dict(tokenizer([item.parts[0] for item in inputs], pairs or None, **options))


def long_text(tokenizer: Any, tokens: int) -> str:
    """Makes a text of at least `tokens` tokens.

    It has words of the vocabulary too: some families count no position for other words.
    """
    text = " ".join((*_texts_of_vocabulary(tokenizer), *SENTENCES))
    per_round = max(len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]), 1)
    return " ".join([text] * (tokens // per_round + 2))


def image_inputs(size: tuple[int, int] | None = None, channels: int = 3) -> list[Any]:
    """Makes images as 8-bit arrays [height, width, channels]: noise, gradients and blocks.

    They are of several sizes if none is given.
    """
    generator = np.random.default_rng(_SEED)
    found = []
    for at in range(_IMAGES):
        height, width = size or (96 + 32 * at, 320 - 24 * at)
        y, x = np.mgrid[0:height, 0:width]
        noise = generator.integers(0, 256, (height, width, 3))
        gradient = np.stack([x * 255 // width, y * 255 // height, (x + y) % 256], -1)
        blocks = np.where(((x // 16 + y // 24) % 2)[..., None] > 0, generator.integers(0, 256, 3), 40 * (at % 6))
        found.append((noise, gradient, blocks)[at % 3].astype(np.uint8)[..., :channels])
    return found


def _images_for(processor: Any, config: Any) -> list[Any]:
    """Makes images as a model takes them: gray for one channel, and of one size if the processor changes none.

    A processor that resizes gets images of several sizes, as its user has them, whatever becomes of them.
    """
    channels = 1 if getattr(config, "num_channels", 3) == 1 else 3
    images = image_inputs(channels=channels)
    if getattr(processor, "do_resize", False):
        return images
    try:
        shapes = {np.shape(processor(images=image, return_tensors="np")["pixel_values"]) for image in images[:2]}
    except Exception:  # whatever a processor raises: the run shows it
        return images
    if len(shapes) == 1:
        return images
    size = getattr(config, "image_size", None)
    pair = tuple(size) if isinstance(size, list | tuple) and len(size) == 2 else (size, size)
    return image_inputs(pair if all(isinstance(side, int) for side in pair) else _USUAL_SIZE, channels)


def sound_inputs(rate: int) -> list[Any]:
    """Makes sounds of different lengths: tones and noise, as float arrays between -1 and 1."""
    generator = np.random.default_rng(_SEED)
    found = []
    for at in range(_SOUNDS):
        time = np.arange(int(rate * (0.5 + 0.1 * at))) / rate
        tone = 0.5 * np.sin(2 * np.pi * (180 + 90 * at) * time)
        found.append((tone + generator.normal(0, 0.05 + 0.1 * (at % 2), len(time))).astype(np.float32).clip(-1, 1))
    return found


def encoder_of_media(processor: Any, task: Task, config: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Encoded]]:
    """Makes inputs of a task that reads no text, and the function that encodes some.

    Raises Unsupported for another task.
    """
    if task is Task.IMAGE_CLASSIFICATION:
        return _images_for(processor, config), lambda some: dict(processor(images=list(some), return_tensors="pt"))
    if task is Task.VIDEO_CLASSIFICATION:
        count = getattr(config, "num_frames", None) or getattr(config, "frames_per_clip", None) or _FRAMES
        clips = [[np.roll(image, 8 * at, 1) for at in range(count)] for image in image_inputs()[:4]]
        return clips, lambda some: dict(processor(list(some), return_tensors="pt"))
    if task in (Task.AUDIO_CLASSIFICATION, Task.AUDIO_FRAME_CLASSIFICATION, Task.AUDIO_XVECTOR):
        rate = getattr(processor, "sampling_rate", 16000)

        def encode(some: Sequence[Any]) -> Encoded:
            options = {"sampling_rate": rate, "return_tensors": "pt"}
            try:
                return dict(processor(list(some), **options))
            except ValueError:  # sounds of several lengths, and no padding by default, unlike Whisper's
                return dict(processor(list(some), **options, padding=True))

        return sound_inputs(rate), encode
    raise Unsupported(f"headscope has no inputs for {task.value}", "")
