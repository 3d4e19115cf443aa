"""Vectors of images and sounds against plain forwards of each file alone."""

import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
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
    Wav2Vec2Config,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForSequenceClassification,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForAudioClassification,
)

import headscope
from headscope.core.facts.heads.tasks import Input
from headscope.core.facts.stored.location import Location
from headscope.core.model.loading.inference import audio_encoder, image_encoder
from headscope.core.words.console import plain_text
from headscope.errors import HeadscopeError
from headscope.slices.probe.data.media import Media
from headscope.slices.probe.facts.result import Vector
from headscope.slices.probe.hidden.candidates import classifier_of_model
from headscope.slices.probe.hidden.features import Reader, extract_features
from headscope.slices.probe.hidden.store import Features
from headscope.slices.probe.screen.screen import probe_screen

pytest.importorskip("PIL", reason="Pillow is not installed")
_VIT = {"image_size": 16, "patch_size": 8, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 20, "num_labels": 3}  # fmt: skip
_MAPS = {"hidden_sizes": [8, 12], "depths": [1, 1], "num_labels": 3}


def wav2vec() -> PreTrainedModel:
    return Wav2Vec2ForSequenceClassification(
        Wav2Vec2Config(
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=20,
            conv_dim=(16, 16),
            conv_stride=(5, 2),
            conv_kernel=(10, 3),
            num_conv_pos_embeddings=16,
            num_conv_pos_embedding_groups=4,
            classifier_proj_size=12,
            num_feat_extract_layers=2,
            num_labels=3,
        )
    )


def ast() -> PreTrainedModel:
    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20}
    return ASTForAudioClassification(ASTConfig(max_length=32, num_mel_bins=32, num_labels=3, **sizes))


def clip() -> PreTrainedModel:
    """A model with a tower for texts beside the one for images."""
    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20}
    texts = {"vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2, **sizes}
    return CLIPForImageClassification(
        CLIPConfig(vision_config={"image_size": 16, "patch_size": 8, **sizes}, text_config=texts, num_labels=3)
    )


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
        from transformers import ViTImageProcessor

        ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(folder)
    elif name == "ast":
        ASTFeatureExtractor(max_length=32, num_mel_bins=32).save_pretrained(folder)
    elif name == "whisper":
        WhisperFeatureExtractor(feature_size=16, chunk_length=1).save_pretrained(folder)
    else:
        Wav2Vec2FeatureExtractor().save_pretrained(folder)
    return folder


def files(name: str, folder: Path, count: int = 7) -> list[str]:
    """Pictures, or sounds of two lengths."""
    from PIL import Image

    draw = np.random.default_rng(0)
    paths = [folder / f"{number}.{'png' if name in IMAGES else 'wav'}" for number in range(count)]
    for number, path in enumerate(paths):
        if name in IMAGES:
            Image.fromarray(draw.integers(0, 255, (20 + number, 24, 3), dtype=np.uint8)).save(path)
            continue
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(16000)
            file.writeframes(draw.integers(-9000, 9000, 2000 + 800 * (number % 2), dtype=np.int16).tobytes())
    return [str(path) for path in paths]


def extracted(name: str, folder: Path, paths: list[str], place: Path, size: int) -> Features:
    model = getattr(__import__("transformers"), type((IMAGES | SOUNDS)[name]()).__name__).from_pretrained(folder).eval()
    classifier = classifier_of_model(headscope.inspect(folder).head)
    assert isinstance(classifier, str)
    kind, encoder = (Input.IMAGE, image_encoder) if name in IMAGES else (Input.AUDIO, audio_encoder)
    place.mkdir()
    reader = Reader(model, None, torch.device("cpu"), classifier, media=Media(kind, encoder(Location(str(folder)))))
    return extract_features(reader, [(path,) for path in paths], place, batch_size=size, tell=lambda step: None)


def plain(name: str, model: Any, given: dict[str, Any]) -> tuple[dict[tuple[Vector, int | None], Any], Any]:
    """What each vector is, from one file alone."""
    with torch.no_grad():
        output = model(**given, output_hidden_states=True)
        base = getattr(model, BASES.get(name, model.base_model_prefix))(**given)
    found: dict[tuple[Vector, int | None], Any] = {}
    for layer, state in enumerate(output.hidden_states):
        positions = tuple(range(1, state.dim() - 1)) if state.dim() == 3 else (2, 3)
        found[Vector.MASKED_MEAN, layer] = state.mean(positions)[0]
        found[Vector.MAX, layer] = state.amax(positions)[0]
        if name in WITH_FIRST:
            found[Vector.FIRST_TOKEN, layer] = state[0, 0]
    if base.get("pooler_output") is not None:
        found[Vector.POOLER, None] = base.pooler_output[0].flatten()
    return found, output.logits[0]


@pytest.mark.parametrize("name", [*IMAGES, *SOUNDS])
def test_vectors_are_those_of_each_file_alone(name: str, tmp_path: Path) -> None:
    folder, paths = save(name, tmp_path / "model"), files(name, tmp_path)
    model = type((IMAGES | SOUNDS)[name]()).from_pretrained(folder).eval()
    encode = (image_encoder if name in IMAGES else audio_encoder)(Location(str(folder)))
    expected = [plain(name, model, dict(encode(path))) for path in paths]
    for size in (1, 4):
        features = extracted(name, folder, paths, tmp_path / f"features{size}", size)
        assert features.seen.not_determined == ()
        assert set(features.parts) - {(Vector.HEAD, None)} == set(expected[0][0])
        for part, stored in features.parts.items():
            if part[0] is not Vector.HEAD:
                wanted = np.stack([row[part].numpy() for row, _ in expected])
                np.testing.assert_allclose(stored, wanted, rtol=0, atol=1e-5, err_msg=f"{part} in batches of {size}")
        logits = torch.stack([scores for _, scores in expected])
        np.testing.assert_allclose(features.scores, logits, rtol=0, atol=1e-5)
        layers = [
            module for module in model.modules() if isinstance(module, torch.nn.Linear) and module.out_features == 3
        ]
        with torch.no_grad():
            made = layers[-1](torch.from_numpy(np.array(features.parts[Vector.HEAD, None])))
        torch.testing.assert_close(made, logits, rtol=0, atol=1e-4)
        if name not in WITH_FIRST:
            reasons = {gap.topic: gap.reason for gap in features.seen.left_out}
            assert "input" in reasons["first_token"]


def table(paths: list[str], place: Path) -> Path:
    """A csv with paths beside it, and a label for each."""
    rows = [f"{Path(path).name},{'ab'[number % 2]}" for number, path in enumerate(paths)]
    place.write_text("\n".join(["file,label", *rows]), encoding="utf-8")
    return place


def test_images_of_a_column_of_paths_are_probed(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    folder, data = save("vit", tmp_path / "model"), table(files("vit", tmp_path, 12), tmp_path / "rows.csv")
    options = {"image_column": "file", "label_column": "label", "folds": 2, "features": tmp_path / "kept"}
    result = headscope.probe(folder, data=data, **options)  # type: ignore[arg-type]
    assert (result.texts, result.candidate("head").same_as) == (12, "first_token-2") or result.head == "head"
    assert result.against("tfidf") is None
    assert "image files" in {gap.topic: gap.reason for gap in result.left_out}["tfidf"]
    assert headscope.probe(folder, data=data, **options).numbers.reused  # type: ignore[arg-type,union-attr]
    from PIL import Image

    Image.new("RGB", (9, 9)).save(tmp_path / "3.png")
    assert not headscope.probe(folder, data=data, **options).numbers.reused  # type: ignore[arg-type,union-attr]


def test_bytes_in_the_cells_are_the_same_as_paths(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import parquet

    folder, paths = save("vit", tmp_path / "model"), files("vit", tmp_path, 12)
    cells = [{"bytes": Path(path).read_bytes(), "path": None} for path in paths]
    labels = ["ab"[number % 2] for number in range(12)]
    parquet.write_table(pyarrow.table({"image": cells, "label": labels}), tmp_path / "rows.parquet")
    options = {"label_column": "label", "folds": 2}
    stored = headscope.probe(folder, data=tmp_path / "rows.parquet", image_column="image", **options)  # type: ignore[arg-type]
    named = headscope.probe(folder, data=table(paths, tmp_path / "rows.csv"), image_column="file", **options)  # type: ignore[arg-type]
    assert stored.candidates == named.candidates


def test_equal_images_under_two_names_stay_in_one_fold(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    folder, paths = save("vit", tmp_path / "model"), files("vit", tmp_path, 12)
    copies = [str(tmp_path / f"copy{number}.png") for number in range(12)]
    for path, copy in zip(paths, copies, strict=True):
        Path(copy).write_bytes(Path(path).read_bytes())
    data = table([*paths, *copies], tmp_path / "rows.csv")
    result = headscope.probe(folder, data=data, image_column="file", label_column="label", folds=2)
    assert (result.texts, result.distinct) == (24, 12)
    assert any(note.startswith("12 repeated images ") for note in result.notes)
    assert (result.labels.repeated, result.labels.contradicting) == (12, 0)
    screen = plain_text(probe_screen(result, details=True), 200)
    assert "over positions" in screen
    assert "images      24 images of" in screen
    assert "text" not in screen.replace("the rows are image files, not texts", "")
    few = table([*paths[:2], *copies[:2]], tmp_path / "few.csv")
    with pytest.raises(HeadscopeError, match="2 different images"):
        headscope.probe(folder, data=few, image_column="file", label_column="label", folds=2)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no file": ({"image_column": "gone"}, "nowhere0.png, which"),
    "two kinds": ({"image_column": "file", "text_column": "file"}, "columns of text and of image were given"),
    "none": ({}, "without the column of its texts"),
    "texts of images": ({"text_column": "file"}, "vit has no class for sequence-classification"),
    "no wave": ({"audio_column": "file"}, "vit has no class for audio-classification"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    folder = save("vit", tmp_path / "model")
    data = table(files("vit", tmp_path, 6), tmp_path / "rows.csv")
    lines = data.read_text().splitlines()
    data.write_text("\n".join([f"{lines[0]},gone", *(f"{line},nowhere{at}.png" for at, line in enumerate(lines[1:]))]))
    options, sentence = BAD[name]
    with pytest.raises(HeadscopeError) as raised:
        headscope.probe(folder, data=data, label_column="label", folds=2, **options)
    assert sentence in raised.value.message
    assert raised.value.hint
