"""Small models of images and of sounds with their processors, files for them, and tables that name these."""

import wave
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    ASTConfig,
    ASTFeatureExtractor,
    ASTForAudioClassification,
    CLIPConfig,
    CLIPForImageClassification,
    ConvNextConfig,
    ConvNextForImageClassification,
    Dinov2Config,
    Dinov2ForImageClassification,
    PreTrainedModel,
    ResNetConfig,
    ResNetForImageClassification,
    SwinConfig,
    SwinForImageClassification,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
    Wav2Vec2Config,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForSequenceClassification,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForAudioClassification,
)

_SIZES = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20}
_VIT = _SIZES | {"image_size": 16, "patch_size": 8, "num_labels": 3}
_MAPS = {"hidden_sizes": [8, 12], "depths": [1, 1], "num_labels": 3}


def wav2vec() -> PreTrainedModel:
    return Wav2Vec2ForSequenceClassification(
        Wav2Vec2Config(
            conv_dim=(16, 16),
            conv_stride=(5, 2),
            conv_kernel=(10, 3),
            num_conv_pos_embeddings=16,
            num_conv_pos_embedding_groups=4,
            classifier_proj_size=12,
            num_feat_extract_layers=2,
            num_labels=3,
            **_SIZES,
        )
    )


def ast() -> PreTrainedModel:
    return ASTForAudioClassification(ASTConfig(max_length=32, num_mel_bins=32, num_labels=3, **_SIZES))


def clip() -> PreTrainedModel:
    """A model with a tower for texts beside the one for images."""
    texts = {"vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2, **_SIZES}
    return CLIPForImageClassification(CLIPConfig(vision_config=_VIT, text_config=texts, num_labels=3))


def whisper() -> PreTrainedModel:
    """A model whose family has a decoder too."""
    sizes = {f"{part}_{name}": 2 for part in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    return WhisperForAudioClassification(
        WhisperConfig(
            vocab_size=60,
            d_model=12,
            encoder_ffn_dim=20,
            decoder_ffn_dim=20,
            num_mel_bins=16,
            max_source_positions=50,
            classifier_proj_size=8,
            num_labels=3,
            **sizes,
            **ends,
        )
    )


IMAGES: dict[str, Any] = {
    "vit": lambda: ViTForImageClassification(ViTConfig(**_VIT)),
    "dinov2": lambda: Dinov2ForImageClassification(Dinov2Config(**_VIT)),
    "swin": lambda: SwinForImageClassification(
        SwinConfig(
            image_size=16, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4, num_labels=3
        )
    ),
    "resnet": lambda: ResNetForImageClassification(ResNetConfig(embedding_size=8, layer_type="basic", **_MAPS)),
    "convnext": lambda: ConvNextForImageClassification(ConvNextConfig(num_stages=2, **_MAPS)),
    "clip": clip,
}
SOUNDS: dict[str, Any] = {"wav2vec2": wav2vec, "ast": ast, "whisper": whisper}
WITH_FIRST = ("vit", "dinov2", "ast", "clip")


BASES = {"clip": "vision_model", "whisper": "encoder"}
"""The base model where it is not under the prefix of its family."""


def save(name: str, folder: Path) -> Path:
    """A checkpoint with random weights and its processor."""
    torch.manual_seed(0)
    model = (IMAGES | SOUNDS)[name]()
    model.save_pretrained(folder)
    if name in IMAGES:
        ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(folder)
    elif name == "ast":
        ASTFeatureExtractor(max_length=32, num_mel_bins=32).save_pretrained(folder)
    elif name == "whisper":
        WhisperFeatureExtractor(feature_size=16, chunk_length=1).save_pretrained(folder)
    else:
        Wav2Vec2FeatureExtractor().save_pretrained(folder)
    return folder


def write_sound(path: Path, width: int, rate: int, frames: bytes) -> None:
    with wave.open(str(path), "wb") as file:
        file.setparams((1, width, rate, 0, "NONE", ""))
        file.writeframes(frames)


def files(name: str, folder: Path, count: int = 7) -> list[str]:
    """Pictures, or sounds of two lengths."""
    from PIL import Image

    draw = np.random.default_rng(0)
    paths = [folder / f"{number}.{'png' if name in IMAGES else 'wav'}" for number in range(count)]
    for number, path in enumerate(paths):
        if name in IMAGES:
            Image.fromarray(draw.integers(0, 255, (20 + number, 24, 3), dtype=np.uint8)).save(path)
            continue
        write_sound(path, 2, 16_000, draw.integers(-9000, 9000, 2000 + 800 * (number % 2), dtype=np.int16).tobytes())
    return [str(path) for path in paths]


def table(paths: list[str], place: Path) -> Path:
    """A csv with paths beside it, and a label for each."""
    rows = [f"{Path(path).name},{'ab'[number % 2]}" for number, path in enumerate(paths)]
    place.write_text("\n".join(["file,label", *rows]), encoding="utf-8")
    return place
