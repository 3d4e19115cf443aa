"""The module that probe prints for images and sounds: it runs, it learns, its vectors are those of the candidate."""

import json
import subprocess
import wave
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from probing.test_code import imported
from probing.test_media import BASES, IMAGES, SOUNDS, extracted, files, save, table

import headscope
from headscope.core.facts.heads.tasks import Input
from headscope.slices.probe.facts.data import HeadInput, Loading, ProbeClass
from headscope.slices.probe.facts.result import Candidate, Metric, ProbeResult, Problem, Selected, Vector
from headscope.slices.probe.hidden.candidates import Vectors, classifier_of_model, list_vectors
from headscope.slices.probe.screen.code import probe_code
from tests import warm

pytest.importorskip("PIL", reason="Pillow is not installed")


def result(name: str, folder: Path, item: Vectors, layers: int) -> ProbeResult:
    best = Candidate(item.name, item.layer, item.pooling, Metric.ACCURACY, 0.9, 0.8, 1.0, item.make().shape[1])
    is_head = item.pooling is Vector.HEAD
    made = (IMAGES | SOUNDS)[name]()
    class_name = type(made).__name__
    classifier = classifier_of_model(headscope.inspect(folder).head)
    assert isinstance(classifier, str)
    input = Input.IMAGE if name in IMAGES else Input.AUDIO
    return ProbeResult(
        tool_version="1", reference=str(folder), data="rows.csv", texts=9, available=9, distinct=9,
        classes=tuple(ProbeClass(label, 3) for label in "abc"), folds=3, seed=0, device="cpu", padded=False,
        layers=layers, candidates=(best,), baselines=(), best=best.name, head="head" if is_head else None,
        selected=Selected(0.9, 0.8, 1.0, ()), versus=(),
        head_input=HeadInput(class_name, "mean", classifier) if is_head else None,
        loading=Loading(str(folder), None, None, class_name, input=input, base=BASES.get(name, made.base_model_prefix)),
    )  # fmt: skip


def rows_of(model: Any, module: Any, paths: list[str], method: str) -> np.ndarray[Any, Any]:
    """What a method of the module gives for each file."""
    with torch.no_grad():
        given = [getattr(model, method)(**inputs) for inputs in module.encode(module.load_processor(), paths)]
    rows: np.ndarray[Any, Any] = torch.cat([item if method == "features" else item["logits"] for item in given]).numpy()
    return rows


@pytest.mark.parametrize("name", [*IMAGES, *SOUNDS])
def test_the_features_of_the_module_are_those_of_the_candidate(name: str, tmp_path: Path) -> None:
    folder, paths = save(name, tmp_path / "model"), files(name, tmp_path)
    features = extracted(name, folder, paths, tmp_path / "features", 4)
    seen = set()
    for number, item in enumerate(list_vectors(features)):
        if item.layer not in (None, 1, features.seen.layers - 1):
            continue
        seen.add(item.pooling)
        module = imported(probe_code(result(name, folder, item, features.seen.layers - 1)), tmp_path / f"m{number}.py")
        model = module.Classifier().eval()
        made = rows_of(model, module, paths, "features")
        np.testing.assert_allclose(made, item.make(), rtol=0, atol=1e-5, err_msg=item.name)
        scores = rows_of(model, module, paths, "forward")
        assert scores.shape == (len(paths), 3)
        if item.pooling is Vector.HEAD:
            np.testing.assert_allclose(scores, features.scores, rtol=0, atol=1e-5)
    assert {Vector.MASKED_MEAN, Vector.MAX, Vector.MEAN_AND_MAX, Vector.HEAD} <= seen


@pytest.mark.parametrize("problem", list(Problem))
@pytest.mark.parametrize(("name", "pooling"), [("vit", Vector.MEAN_AND_MAX), ("wav2vec2", Vector.HEAD)])
def test_the_module_learns(name: str, pooling: Vector, problem: Problem, tmp_path: Path) -> None:
    folder, paths = save(name, tmp_path / "model"), files(name, tmp_path, 6)
    features = extracted(name, folder, paths, tmp_path / "features", 4)
    item = next(item for item in list_vectors(features) if item.pooling is pooling)
    given = replace(result(name, folder, item, features.seen.layers - 1), problem=problem)
    classes = [place % 3 if name == "vit" else 2 for place in range(6)]  # the sounds are all alike: noise
    labels: list[Any] = classes
    if problem is Problem.MULTI_LABEL:
        labels = [[place == 0, place > 0, False] for place in classes]
    if problem is Problem.REGRESSION:
        given, labels = replace(given, classes=()), [place - 1.5 for place in classes]
    module = imported(probe_code(given), tmp_path / "advised.py")
    torch.manual_seed(0)
    model = module.Classifier()
    first, last = (module.train(model, paths, labels, epochs=epochs, batch=6, rate=3e-3) for epochs in (1, 60))
    assert last < 0.6 * first


@pytest.mark.parametrize("name", ["clip", "whisper"])
def test_the_base_is_the_part_that_gave_the_vectors(name: str, tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    folder, paths = save(name, tmp_path / "model"), files(name, tmp_path, 12)
    data, input = table(paths, tmp_path / "rows.csv"), "image_column" if name in IMAGES else "audio_column"
    found = headscope.probe(folder, data=data, label_column="label", folds=2, **{input: "file"})  # type: ignore[arg-type]
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
    features = extracted("vit", folder, paths, tmp_path / "features", 4)
    item = next(item for item in list_vectors(features) if item.pooling is Vector.HEAD)
    place = tmp_path / "advised.py"
    given = replace(result("vit", folder, item, 2), problem=problem)
    place.write_text(probe_code(given), encoding="utf-8")
    ran = subprocess.run([*warm.python(), place, *paths], capture_output=True, text=True, check=True, timeout=120)
    rows, said = ran.stdout.splitlines()
    expected = SHOWN[problem](torch.from_numpy(np.array(features.scores)))
    np.testing.assert_allclose(json.loads(rows), expected, rtol=0, atol=1e-5)
    assert said.startswith("Classifier: ")


def test_a_sound_of_another_width_is_refused_without_a_known_rate(tmp_path: Path) -> None:
    folder, paths = save("wav2vec2", tmp_path / "model"), files("wav2vec2", tmp_path, 2)
    features = extracted("wav2vec2", folder, paths, tmp_path / "features", 4)
    item = next(item for item in list_vectors(features) if item.name == "masked_mean-1")
    module = imported(probe_code(result("wav2vec2", folder, item, 2)), tmp_path / "advised.py")
    with wave.open(paths[0], "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(1)
        file.setframerate(8000)
        file.writeframes(bytes(2000))
    with pytest.raises(ValueError, match=r"16-bit .* 8000 Hz"):
        module.read(object(), paths[0])
