"""Vectors of images and sounds against plain forwards of each file alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from probing.made import extracted_files, probed_files
from probing.media import BASES, IMAGES, SOUNDS, WITH_FIRST, files, save, table

import headscope
from headscope.core.facts.stored.location import Location
from headscope.core.model.loading.inference import audio_encoder, image_encoder
from headscope.core.words.console import plain_text
from headscope.errors import HeadscopeError
from headscope.slices.probe.facts.result import Vector
from headscope.slices.probe.screen.screen import probe_screen

pytest.importorskip("PIL", reason="Pillow is not installed")


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
        features = extracted_files(name, folder, paths, size).features
        assert features.seen.not_determined == ()
        assert set(features.parts) - {(Vector.HEAD, None)} == set(expected[0][0])
        for part, stored in features.parts.items():
            if part[0] is not Vector.HEAD:
                wanted = np.stack([row[part].numpy() for row, _ in expected])
                np.testing.assert_allclose(stored, wanted, rtol=0, atol=1e-5, err_msg=f"{part} in batches of {size}")
        logits = torch.stack([scores for _, scores in expected])
        np.testing.assert_allclose(features.scores, logits, rtol=0, atol=1e-5)
        *_, classifier = [item for item in model.modules() if getattr(item, "out_features", 0) == 3]
        with torch.no_grad():
            made = classifier(torch.from_numpy(np.array(features.parts[Vector.HEAD, None])))
        torch.testing.assert_close(made, logits, rtol=0, atol=1e-4)
        if name not in WITH_FIRST:
            reasons = {gap.topic: gap.reason for gap in features.seen.left_out}
            assert "input" in reasons["first_token"]


def test_images_of_a_column_of_paths_are_probed(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    folder, data = save("vit", tmp_path / "model"), table(files("vit", tmp_path, 12), tmp_path / "rows.csv")
    result = probed_files(folder, data, features=tmp_path / "kept")
    assert (result.texts, result.candidate("head").same_as) == (12, "first_token-2") or result.head == "head"
    assert result.against("tfidf") is None
    assert "image files" in {gap.topic: gap.reason for gap in result.left_out}["tfidf"]
    assert probed_files(folder, data, features=tmp_path / "kept").numbers.reused
    from PIL import Image

    Image.new("RGB", (9, 9)).save(tmp_path / "3.png")
    assert not probed_files(folder, data, features=tmp_path / "kept").numbers.reused


def test_bytes_in_the_cells_are_the_same_as_paths(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import parquet

    folder, paths = save("vit", tmp_path / "model"), files("vit", tmp_path, 12)
    cells = [{"bytes": Path(path).read_bytes(), "path": None} for path in paths]
    labels = ["ab"[number % 2] for number in range(12)]
    parquet.write_table(pyarrow.table({"file": cells, "label": labels}), tmp_path / "rows.parquet")
    stored = probed_files(folder, tmp_path / "rows.parquet")
    assert stored.candidates == probed_files(folder, table(paths, tmp_path / "rows.csv")).candidates


def test_equal_images_under_two_names_stay_in_one_fold(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    folder, paths = save("vit", tmp_path / "model"), files("vit", tmp_path, 12)
    copies = [str(tmp_path / f"copy{number}.png") for number in range(12)]
    for path, copy in zip(paths, copies, strict=True):
        Path(copy).write_bytes(Path(path).read_bytes())
    data = table([*paths, *copies], tmp_path / "rows.csv")
    result = probed_files(folder, data)
    assert (result.texts, result.distinct) == (24, 12)
    assert any(note.startswith("12 repeated images ") for note in result.notes)
    assert (result.labels.repeated, result.labels.contradicting) == (12, 0)
    screen = plain_text(probe_screen(result, details=True), 200)
    assert "over positions" in screen
    assert "images      24 images of" in screen
    assert "text" not in screen.replace("the rows are image files, not texts", "")
    few = table([*paths[:2], *copies[:2]], tmp_path / "few.csv")
    with pytest.raises(HeadscopeError, match="2 different images"):
        probed_files(folder, few)


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
