"""Dummy values for every input that a classification model takes, by the name of the argument."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from headscope.core.facts import Task
from headscope.core.upstream.transformers import text_config_of, word_table

_SAMPLES = (16000, 16400, 17200, 18800, 19600, 21200)
_AUDIO_FRAMES = 49
_ENTITY_COUNT = 2  # the pair classes of LUKE take exactly two
_VISUAL_FEATURES = 6
# Primes: a vocabulary seldom shares a factor with them, so ids repeat late.
_STEP, _SHIFT = 37, 61


@dataclass(frozen=True, slots=True)
class ProbeRow:
    """One row of the probe: the positions of its first and last real token, and of its `<eos>`."""

    first: int
    last: int
    eos: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """Number of examples, tokens per row (0: no tokens), and choices per example (1: no multiple choice)."""

    batch: int
    length: int
    choices: int = 1

    @property
    def leading(self) -> tuple[int, ...]:
        """Sizes of the axes before the token axis."""
        return (self.batch, self.choices) if self.choices > 1 else (self.batch,)


Maker = Callable[[PreTrainedModel, Sizes, tuple[ProbeRow, ...], Task], Any]


def _token_ids(model: PreTrainedModel, sizes: Sizes, rows: tuple[ProbeRow, ...], task: Task) -> Any:
    """Makes ordinary tokens with padding, an `<eos>`, and, for pairs of texts, the three separators that some models
    count.
    """
    config = text_config_of(model.config)
    ordinary = _ordinary_ids(config, token_count(model) or 100)
    pad, eos, sep = (_special_token_id(config, f"{name}_token_id") for name in ("pad", "eos", "sep"))
    separators = sep is not None and task in (Task.QUESTION_ANSWERING, Task.MULTIPLE_CHOICE)

    def token(number: int, row: ProbeRow, at: int) -> int:
        # Without a pad token the padding is ordinary tokens: then only the attention mask says what is padding.
        if not row.first <= at <= row.last:
            return pad if pad is not None else ordinary(number, at)
        if separators and at in (row.first + 1, row.first + 2, row.eos + 1):
            return int(sep or 0)
        return eos if eos is not None and at == row.eos and not separators else ordinary(number, at)

    ids = [[token(number, row, at) for at in range(sizes.length)] for number, row in enumerate(rows)]
    return torch.tensor(ids).reshape(*sizes.leading, sizes.length)


def _special_token_id(config: Any, name: str) -> int | None:
    """Returns a special token's id, the first if the configuration has several; None for one outside the vocabulary."""
    value = getattr(config, name, None)
    if isinstance(value, list | tuple):
        value = value[0] if value else None
    size = getattr(config, "vocab_size", None)
    known = isinstance(value, int) and (not isinstance(size, int) or 0 <= value < size)
    return value if known else None


def token_count(model: PreTrainedModel) -> int | None:
    """Returns the size of the vocabulary: from the configuration, or the number of rows of the embedding table."""
    size = getattr(text_config_of(model.config), "vocab_size", None)
    if isinstance(size, int) and size:
        return size
    tables = (module for module in model.modules() if isinstance(module, nn.Embedding))
    table = word_table(model) or next(tables, None)
    return table.num_embeddings if table is not None else None


def _ordinary_ids(config: Any, size: int) -> Callable[[int, int], int]:
    """Returns a function from row and position to a token id that isn't a special one.

    The ids neither rise nor fall along a row, and the largest stands elsewhere in each: CLIP looks for the largest.
    """
    names = [name for name in vars(config) if name.endswith("_token_id")]
    # An ordinary token must not be one that a head looks for: a second `<eos>` would move the position that is read.
    # The last one is lent to models without a pad token.
    special = {_special_token_id(config, name) for name in names} | {size - 1}
    free = [candidate for candidate in range(min(size, 200)) if candidate not in special] or [0]
    return lambda number, at: free[(at * _STEP + number * _SHIFT) % len(free)]


def _attention_mask(model: PreTrainedModel, sizes: Sizes, rows: tuple[ProbeRow, ...], task: Task) -> Any:
    if sizes.length:
        return mask_of_rows(rows, sizes.length).long().reshape(*sizes.leading, sizes.length)
    if task is Task.AUDIO_XVECTOR:  # it pools a batch with padding row by row; without padding all together
        return None
    if model.main_input_name == "input_values" and not _is_spectrogram(model.config):
        return _right_padded(sizes.batch, _waveform_length(model))
    if model.main_input_name == "input_features" and hasattr(model.config, "feature_projection_input_dim"):
        return _right_padded(sizes.batch, _AUDIO_FRAMES)
    return None


def mask_of_rows(rows: tuple[ProbeRow, ...], length: int) -> torch.Tensor:
    """Makes the truth values [rows, tokens] that keep what is not padding."""
    return torch.tensor([[row.first <= at <= row.last for at in range(length)] for row in rows])


def _right_padded(batch: int, length: int) -> torch.Tensor:
    """Makes a mask whose rows keep all, three fifths and one fifth of the positions, in turn."""
    # Not fewer: SEW counts the frames to keep before it halves them.
    kept = [length - (row % 3) * (2 * length // 5) for row in range(batch)]
    return torch.tensor([[int(at < real) for at in range(length)] for real in kept])


def _pixel_values(model: PreTrainedModel, sizes: Sizes, rows: tuple[ProbeRow, ...], task: Task) -> Any:
    return None if model.main_input_name in {"input_ids", "inputs"} else make_pixels(model, sizes, task)


def make_pixels(model: PreTrainedModel, sizes: Sizes, task: Task) -> torch.Tensor:
    """Makes images, or videos, of the size that the configuration names.

    The result is [batch, channels, height, width], with frames behind the batch for videos, or [batch, patches,
    numbers].
    """
    config = model.config
    channels = _first_integer_field(config, ("num_channels", "in_channels", "in_chans")) or 3
    # A forward that takes `spatial_shapes` gets images as flat patches.
    if "spatial_shapes" in _forward_arguments(model):
        vision = getattr(config, "vision_config", config)
        return _make_floats(model, sizes.batch, vision.num_patches, channels * vision.patch_size**2)
    height, width = _image_size(config)
    if task is Task.VIDEO_CLASSIFICATION:
        frames = _first_integer_field(config, ("num_frames", "frames_per_clip")) or 16
        return _make_floats(model, sizes.batch, frames, channels, height, width)
    return _make_floats(model, sizes.batch, channels, height, width)


def _forward_arguments(model: PreTrainedModel) -> tuple[str, ...]:
    return tuple(inspect.signature(model.forward).parameters)


def forward_parameters(model: nn.Module) -> tuple[inspect.Parameter, ...]:
    """Lists the parameters of a forward; empty for one that is not written in Python."""
    try:
        return tuple(inspect.signature(model.forward).parameters.values())
    except (TypeError, ValueError):
        return ()


def _first_integer_field(config: Any, names: tuple[str, ...]) -> int | None:
    """Returns the first integer among the fields `names` of a configuration or its vision part; None without any."""
    for part in (config, getattr(config, "vision_config", None), getattr(config, "backbone_config", None)):
        for name in names:
            value = getattr(part, name, None)
            if isinstance(value, int):
                return value
    return None


def _image_size(config: Any) -> tuple[int, int]:
    for part in (config, getattr(config, "vision_config", None)):
        size = getattr(part, "image_size", None) or getattr(part, "crop_size", None)
        if isinstance(size, dict):
            return int(size["height"]), int(size["width"])
        if isinstance(size, int):
            return size, size
        if isinstance(size, list | tuple):
            return int(size[0]), int(size[1])
    # The usual size of images, for a configuration that names none.
    return 224, 224


def _make_floats(model: PreTrainedModel, *shape: int) -> torch.Tensor:
    """Makes floats where the model is: only shapes on the meta device, small random values elsewhere."""
    if model.device.type == "meta":
        return torch.empty(*shape, device="meta", dtype=model.dtype)
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0)).to(model.device, model.dtype)


def _pixel_attention_mask(model: PreTrainedModel, sizes: Sizes, rows: tuple[ProbeRow, ...], task: Task) -> Any:
    if "spatial_shapes" not in _forward_arguments(model):
        return None
    patches = getattr(model.config, "vision_config", model.config).num_patches
    kept = [int(height) * int(width) for height, width in _spatial_shapes(model, sizes, rows, task)]
    return torch.tensor([[int(at < real) for at in range(patches)] for real in kept])


def _spatial_shapes(model: PreTrainedModel, sizes: Sizes, rows: tuple[ProbeRow, ...], task: Task) -> Any:
    """Counts the patches of each image, high and wide: every second image is half as high, so the rest is padding."""
    side = int(getattr(model.config, "vision_config", model.config).num_patches ** 0.5)
    return torch.tensor([[side // (1 + row % 2), side] for row in range(sizes.batch)])


def _input_values(model: PreTrainedModel, sizes: Sizes, rows: tuple[ProbeRow, ...], task: Task) -> Any:
    if _is_spectrogram(model.config):
        return _make_floats(model, sizes.batch, model.config.max_length, model.config.num_mel_bins)
    return _make_floats(model, sizes.batch, _waveform_length(model))


def _is_spectrogram(config: Any) -> bool:
    return hasattr(config, "num_mel_bins") and hasattr(config, "max_length")


def _waveform_length(model: PreTrainedModel) -> int:
    """Picks a length of waveform whose number of frames occurs nowhere else in the model."""
    taken = {size for parameter in model.parameters() for size in parameter.shape}
    count = getattr(model, "_get_feat_extract_output_lengths", None)
    if count is None:
        return _SAMPLES[0]
    return next((size for size in _SAMPLES if int(count(torch.tensor(size))) not in taken), _SAMPLES[0])


def _input_features(model: PreTrainedModel, sizes: Sizes, rows: tuple[ProbeRow, ...], task: Task) -> Any:
    config = model.config
    if hasattr(config, "feature_projection_input_dim"):
        return _make_floats(model, sizes.batch, _AUDIO_FRAMES, config.feature_projection_input_dim)
    if hasattr(config, "max_source_positions"):
        return _make_floats(model, sizes.batch, config.num_mel_bins, 2 * config.max_source_positions)
    audio = getattr(config, "audio_config", config)
    bins = _first_integer_field(audio, ("num_mel_bins", "feature_size")) or 80
    return _make_floats(model, sizes.batch, 8 * _AUDIO_FRAMES, bins)


def _bounding_boxes(model: PreTrainedModel, sizes: Sizes, rows: tuple[ProbeRow, ...], task: Task) -> Any:
    """Makes boxes: fractions for a model that projects them, integers up to 1000 for the others, which embed them."""
    if hasattr(model.config, "dim_bbox_projection") or hasattr(model.config, "dim_bbox"):
        return _make_floats(model, *sizes.leading, sizes.length, 4)
    return torch.tensor([1, 1, 2, 2]).expand(*sizes.leading, sizes.length, 4).clone()


def _entity_positions(model: PreTrainedModel, sizes: Sizes, rows: tuple[ProbeRow, ...], task: Task) -> Any:
    width = getattr(model.config, "max_mention_length", 30)
    # LUKE pads the positions of a mention with -1.
    positions = torch.full((*sizes.leading, _ENTITY_COUNT, width), -1)
    positions[..., 0] = 1
    return positions


def _ones_of_entities(model: PreTrainedModel, sizes: Sizes, rows: tuple[ProbeRow, ...], task: Task) -> Any:
    return torch.full((*sizes.leading, _ENTITY_COUNT), 1)


def _visual_input(width_field: str) -> Maker:
    """Returns a maker of a visual input whose width the configuration names in `width_field`."""

    def make(model: PreTrainedModel, sizes: Sizes, rows: tuple[ProbeRow, ...], task: Task) -> Any:
        if not hasattr(model.config, width_field):
            return None
        return _make_floats(model, sizes.batch, _VISUAL_FEATURES, getattr(model.config, width_field))

    return make


def _perceiver_inputs(model: PreTrainedModel, sizes: Sizes, rows: tuple[ProbeRow, ...], task: Task) -> Any:
    """Makes Perceiver's one argument, which holds every modality."""
    if task is Task.IMAGE_CLASSIFICATION:
        return _make_floats(model, sizes.batch, getattr(model.config, "num_channels", 3), *_image_size(model.config))
    return _token_ids(model, sizes, rows, task)


def _ids_by_name(model: PreTrainedModel, sizes: Sizes, rows: tuple[ProbeRow, ...], task: Task) -> Any:
    """Makes token ids, except for Perceiver, which takes them as `inputs`."""
    return None if "inputs" in _forward_arguments(model) else _token_ids(model, sizes, rows, task)


MAKERS: dict[str, Maker] = {
    "input_ids": _ids_by_name,
    "attention_mask": _attention_mask,
    "pixel_values": _pixel_values,
    "pixel_values_videos": _pixel_values,
    "pixel_attention_mask": _pixel_attention_mask,
    "spatial_shapes": _spatial_shapes,
    "input_values": _input_values,
    "input_features": _input_features,
    "bbox": _bounding_boxes,
    "lang_ids": lambda model, sizes, rows, task: torch.zeros(sizes.batch * sizes.choices, dtype=torch.long),
    "entity_ids": _ones_of_entities,
    "entity_attention_mask": _ones_of_entities,
    "entity_position_ids": _entity_positions,
    "entity_start_positions": _ones_of_entities,
    "entity_end_positions": _ones_of_entities,
    "visual_feats": _visual_input("visual_feat_dim"),
    "visual_pos": _visual_input("visual_pos_dim"),
    "inputs": _perceiver_inputs,
}
