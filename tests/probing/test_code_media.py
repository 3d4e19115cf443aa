"""The module that probe prints for images and sounds: it runs, it learns, its vectors are those of the candidate."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from probing.made import extracted_files, imported, probed_files
from probing.media import BASES, IMAGES, SOUNDS, files, save, table, write_sound

from headscope.slices.probe.facts.result import Problem, Vector
from headscope.slices.probe.hidden.candidates import list_vectors
from headscope.slices.probe.screen.code import probe_code
from tests import warm

pytest.importorskip("PIL", reason="Pillow is not installed")


def rows_of(model: Any, module: Any, paths: list[str], method: str) -> np.ndarray[Any, Any]:
    """What a method of the module gives for each file."""
    with torch.no_grad():
        given = [getattr(model, method)(**inputs) for inputs in module.encode(module.load_processor(), paths)]
    rows: np.ndarray[Any, Any] = torch.cat([item if method == "features" else item["logits"] for item in given]).numpy()
    return rows


@pytest.mark.parametrize("name", [*IMAGES, *SOUNDS])
def test_the_features_of_the_module_are_those_of_the_candidate(name: str, tmp_path: Path) -> None:
    folder, paths = save(name, tmp_path / "model"), files(name, tmp_path)
    found = extracted_files(name, folder, paths)
    seen = set()
    for item in list_vectors(found.features):
        if item.layer not in (None, 1, found.layers):
            continue
        seen.add(item.pooling)
        module = found.module(item)
        model = module.Classifier().eval()
        made = rows_of(model, module, paths, "features")
        np.testing.assert_allclose(made, item.make(), rtol=0, atol=1e-5, err_msg=item.name)
        scores = rows_of(model, module, paths, "forward")
        assert scores.shape == (len(paths), 3)
        if item.pooling is Vector.HEAD:
            np.testing.assert_allclose(scores, found.features.scores, rtol=0, atol=1e-5)
    assert {Vector.MASKED_MEAN, Vector.MAX, Vector.MEAN_AND_MAX, Vector.HEAD} <= seen


@pytest.mark.parametrize("problem", list(Problem))
@pytest.mark.parametrize(("name", "pooling"), [("vit", Vector.MEAN_AND_MAX), ("wav2vec2", Vector.HEAD)])
def test_the_module_learns(name: str, pooling: Vector, problem: Problem, tmp_path: Path) -> None:
    folder, paths = save(name, tmp_path / "model"), files(name, tmp_path, 6)
    changes: dict[str, Any] = {"problem": problem}
    classes = [place % 3 if name == "vit" else 2 for place in range(6)]  # the sounds are all alike: noise
    labels: list[Any] = classes
    if problem is Problem.MULTI_LABEL:
        labels = [[place == 0, place > 0, False] for place in classes]
    if problem is Problem.REGRESSION:
        changes["classes"], labels = (), [place - 1.5 for place in classes]
    module = extracted_files(name, folder, paths).module(pooling, **changes)
    torch.manual_seed(0)
    model = module.Classifier()
    first, last = (module.train(model, paths, labels, epochs=epochs, batch=6, rate=3e-3) for epochs in (1, 60))
    assert last < 0.6 * first


@pytest.mark.parametrize("name", ["clip", "whisper"])
def test_the_base_is_the_part_that_gave_the_vectors(name: str, tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    folder, paths = save(name, tmp_path / "model"), files(name, tmp_path, 12)
    found = probed_files(folder, table(paths, tmp_path / "rows.csv"), "image" if name in IMAGES else "audio")
    assert found.loading.base == BASES[name]
    best = next(item for item in found.candidates if item.pooling is Vector.MASKED_MEAN)
    module = imported(probe_code(replace(found, best=best.name, head=None)), tmp_path / "advised.py")
    assert rows_of(module.Classifier().eval(), module, paths, "forward").shape == (12, 2)


SHOWN = {
    Problem.SINGLE_LABEL: lambda logits: logits.softmax(-1),
    Problem.MULTI_LABEL: lambda logits: logits.sigmoid(),
    Problem.REGRESSION: lambda logits: logits,
}


@pytest.mark.parametrize("problem", list(Problem))
def test_the_module_runs_alone(problem: Problem, tmp_path: Path) -> None:
    folder, paths = save("vit", tmp_path / "model"), files("vit", tmp_path, 3)
    found = extracted_files("vit", folder, paths)
    command = [*warm.python(), found.module(Vector.HEAD, problem=problem).__file__, *paths]
    rows, said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.splitlines()
    expected = SHOWN[problem](torch.from_numpy(np.array(found.features.scores)))
    np.testing.assert_allclose(json.loads(rows), expected, rtol=0, atol=1e-5)
    assert said.startswith("Classifier: ")


def test_a_sound_of_another_width_is_refused_without_a_known_rate(tmp_path: Path) -> None:
    folder, paths = save("wav2vec2", tmp_path / "model"), files("wav2vec2", tmp_path, 2)
    module = extracted_files("wav2vec2", folder, paths).module("masked_mean-1")
    write_sound(Path(paths[0]), 1, 8000, bytes(2000))
    with pytest.raises(ValueError, match=r"16-bit .* 8000 Hz"):
        module.read(object(), paths[0])
