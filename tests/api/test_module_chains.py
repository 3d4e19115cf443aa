"""Chains of modules that sentence-transformers saves: headscope's scores are those of the library's own load."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import headscope
from headscope.facts import PoolingKind, Severity, Verdict
from tests.chains import save_chain
from tests.edits import edit_json, edit_tensors
from tests.scorers import save_language_model

library = pytest.importorskip("sentence_transformers")
from sentence_transformers.base.modules import Dense  # noqa: E402 - only where the library is installed
from sentence_transformers.sentence_transformer.modules import (  # noqa: E402
    Dropout,
    LayerNorm,
    Normalize,
    Pooling,
)

TEXTS, SECOND = ["w1 w2", "w6"], ["w3 w4 w5", "w7 w8"]


def _dense(size: int, out: int, activation: nn.Module | None = None, **more: Any) -> Dense:
    return Dense(size, out, activation_function=activation, **more)


def _scores(size: int, count: int = 1, **more: Any) -> Dense:
    return _dense(size, count, module_output_name="scores", **more)


def _official() -> list[nn.Module]:
    return [Pooling(16, "cls"), _dense(16, 16, nn.GELU(), bias=False), LayerNorm(16), Dropout(0.1), _scores(16)]


Layout = tuple[str, Callable[[], Sequence[nn.Module]], str]
SCORED: dict[str, Layout] = {
    "the official reranker": (
        "ModernBert", _official, "5_Dense.linear(norm(gelu(2_Dense.linear(h[CLS]))))"
    ),
    "the same on BERT": ("Bert", _official, "5_Dense.linear(norm(gelu(2_Dense.linear(h[CLS]))))"),
    "mean": ("Bert", lambda: [Pooling(16, "mean"), _scores(16)], "linear(mean(h[non-pad]))"),
    "three scores": ("Bert", lambda: [Pooling(16, "cls"), _scores(16, 3)], "linear(h[CLS])"),
    "three scores of a mean": (
        "ModernBert", lambda: [Pooling(16, "mean"), _dense(16, 8, nn.Tanh()), _scores(8, 3)],
        "3_Dense.linear(tanh(2_Dense.linear(mean(h[non-pad]))))",
    ),
    "XLM-R": (
        "XLMRoberta", lambda: [Pooling(16, "cls"), _dense(16, 16, nn.Tanh()), Dropout(0.2), _scores(16)],
        "4_Dense.linear(tanh(2_Dense.linear(h[CLS])))",
    ),
    "maximum": ("DistilBert", lambda: [Pooling(16, "max"), _scores(16)], ""),
    "residual": (
        "DistilBert",
        lambda: [Pooling(16, "mean"), _dense(16, 16, nn.ReLU(), use_residual=True), _scores(16, bias=False)],
        "3_Dense.linear(relu(2_Dense.linear(mean(h[non-pad]))) + mean(h[non-pad]))",
    ),
    "projected residual": (
        "MPNet", lambda: [Pooling(16, "mean"), _dense(16, 8, nn.SiLU(), use_residual=True), Normalize(), _scores(8, 2)],
        "4_Dense.linear(normalize(silu(2_Dense.linear(mean(h[non-pad]))) + residual(mean(h[non-pad])), p=2, dim=-1, "
        "eps=1e-12))",
    ),
    "last token": ("Qwen3", lambda: [Pooling(16, "lasttoken"), _scores(16, bias=False)], "linear(h[last non-pad])"),
    "last token, normed": (
        "Llama", lambda: [Pooling(16, "lasttoken"), LayerNorm(16), _scores(16)], "linear(norm(h[last non-pad]))"
    ),
    "later tokens count more": ("Qwen3", lambda: [Pooling(16, "weightedmean"), _scores(16)], ""),
    "root of the length": ("Bert", lambda: [Pooling(16, "mean_sqrt_len_tokens"), _scores(16)], ""),
    "three modes": ("Electra", lambda: [Pooling(16, ["cls", "mean", "max"]), _scores(48)], ""),
    "sigmoid inside": ("Roberta", lambda: [Pooling(16, "cls"), _scores(16, activation=nn.Sigmoid())], ""),
    "T5's encoder": ("T5", lambda: [Pooling(16, "mean"), _scores(16)], "linear(mean(h[non-pad]))"),
}  # fmt: skip
EMBEDDED: dict[str, Layout] = {
    "normalized mean": (
        "Bert", lambda: [Pooling(16, "mean"), Normalize()], "normalize(mean(h[non-pad]), p=2, dim=-1, eps=1e-12)"
    ),
    "first token": ("XLMRoberta", lambda: [Pooling(16, "cls")], "h[CLS]"),
    "projected": (
        "DistilBert", lambda: [Pooling(16, "mean"), Dense(16, 8), Normalize()],
        "normalize(tanh(linear(mean(h[non-pad]))), p=2, dim=-1, eps=1e-12)",
    ),
    "last token": (
        "Llama", lambda: [Pooling(16, "lasttoken"), Normalize()],
        "normalize(h[last non-pad], p=2, dim=-1, eps=1e-12)",
    ),
    "T5": ("T5", lambda: [Pooling(16, "mean"), _dense(16, 8, bias=False)], "linear(mean(h[non-pad]))"),
    "two modes": ("MPNet", lambda: [Pooling(16, ("mean", "max")), LayerNorm(32), Normalize()], ""),
    "each token projected": (
        "Bert", lambda: [_dense(16, 8, module_input_name="token_embeddings"), Pooling(8, "mean")],
        "mean(linear(h)[non-pad])",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SCORED)
def test_the_scores_are_those_that_predict_gives(name: str, tmp_path: Path) -> None:
    family, make, formula = SCORED[name]
    save_chain(tmp_path / "saved", family, make())
    encoder = library.CrossEncoder(str(tmp_path / "saved"), device="cpu")
    pairs = list(zip(TEXTS, SECOND, strict=True))
    raw = encoder.predict(pairs, activation_fn=nn.Identity(), convert_to_tensor=True).reshape(2, -1)
    report = headscope.inspect(tmp_path / "saved")
    ours = headscope.forward(tmp_path / "saved", device="cpu", text=TEXTS, text_pair=SECOND)
    torch.testing.assert_close(torch.tensor(ours.logits), raw, atol=1e-5, rtol=0)
    if formula:
        assert report.head.formula == f"logits = {formula}"
    assert (report.model.class_name, report.model.num_labels) == ("CrossEncoder", encoder.num_labels)
    parts = report.checkpoint.sentence_transformers.parts
    assert [part.output_size for part in parts if part.scores] == [encoder.num_labels]
    count = "1 score" if encoder.num_labels == 1 else f"{encoder.num_labels} scores"
    assert f"This chain is the head that is shown; it gives {count}." in " ".join(str(report).split())
    assert report.model.activation == ("sigmoid" if encoder.num_labels == 1 else "none")
    assert not (report.weights.new or report.weights.mismatched)
    # How these two count their tokens, the trace can't tell: it withholds the rule.
    assert bool(report.not_determined) is (name in {"later tokens count more", "root of the length"})
    final = encoder.predict(pairs, convert_to_tensor=True).reshape(2, -1)
    named = [{item.label: item.probability for item in one.scores} for one in ours.scored]
    listed = torch.tensor([[one[label] for label in report.model.labels] for one in named])
    torch.testing.assert_close(listed, final, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", EMBEDDED)
def test_the_embedding_is_the_one_that_encode_gives(name: str, tmp_path: Path) -> None:
    family, make, formula = EMBEDDED[name]
    save_chain(tmp_path / "saved", family, make())
    encoder = library.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    report = headscope.inspect(tmp_path / "saved")
    ours = headscope.forward(tmp_path / "saved", device="cpu", text=TEXTS)
    theirs = encoder.encode(TEXTS, convert_to_tensor=True)
    torch.testing.assert_close(torch.tensor(ours.logits), theirs, atol=1e-5, rtol=0)
    if formula:
        assert report.head.formula == f"logits = {formula}"
    assert (report.model.class_name, report.model.labels, report.model.num_labels) == ("SentenceTransformer", (), 0)
    assert not (report.weights.new or report.not_determined)


def test_half_precision_is_that_of_the_library(tmp_path: Path) -> None:
    after = [Pooling(16, "mean"), _dense(16, 8, nn.Tanh()), _scores(8)]
    save_chain(tmp_path / "saved", "Bert", after, dtype=torch.float16)
    encoder = library.CrossEncoder(str(tmp_path / "saved"), device="cpu")
    raw = encoder.predict([(TEXTS[0], SECOND[0])], activation_fn=nn.Identity(), convert_to_tensor=True)
    ours = headscope.forward(tmp_path / "saved", device="cpu", text=TEXTS[0], text_pair=SECOND[0])
    assert ours.dtype == "float16"
    assert ours.logits[0][0] == pytest.approx(float(raw[0]), abs=2e-3)


def test_another_function_on_the_score_is_the_saved_one(tmp_path: Path) -> None:
    save_chain(tmp_path / "saved", "Bert", [Pooling(16, "mean"), _scores(16)], activation_fn=nn.Identity())
    assert headscope.inspect(tmp_path / "saved").model.activation == "none"


@pytest.mark.parametrize(("family", "make"), [("ModernBert", _official), ("Bert", EMBEDDED["normalized mean"][1])])
def test_a_healthy_chain_passes_and_the_library_is_called(
    family: str, make: Callable[[], Sequence[nn.Module]], tmp_path: Path
) -> None:
    save_chain(tmp_path / "saved", family, make())
    result = headscope.check(tmp_path / "saved", profile="inference", run=True)
    assert result.verdict is Verdict.PASSED
    assert result.trial.library in {"CrossEncoder", "SentenceTransformer"}
    assert not [item for item in result.findings if item.severity is not Severity.NOTE]
    loaded = headscope.verify(tmp_path / "saved")
    assert loaded.verdict is Verdict.PASSED
    assert not [item for item in loaded.tensors if item.status == "dropped"]


def _change_dense(folder: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    edit_tensors(
        folder / "5_Dense" / "model.safetensors", lambda state: {key: change(item) for key, item in state.items()}
    )


def _swap(folder: Path) -> None:
    entries = json.loads((folder / "modules.json").read_text())
    entries[1], entries[2] = entries[2], entries[1]
    (folder / "modules.json").write_text(json.dumps(entries))


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "zeros": (lambda folder: _change_dense(folder, torch.zeros_like), "HS501"),
    "NaN": (lambda folder: _change_dense(folder, lambda item: item * float("nan")), "HS501"),
    "missing": (lambda folder: (folder / "5_Dense" / "model.safetensors").unlink(), "HS405"),
    "wrong size": (lambda folder: _change_dense(folder, lambda item: item.repeat_interleave(2, -1)), "HS405"),
    "swapped order": (_swap, "HS405"),
    "no scores": (
        lambda folder: edit_json(folder / "5_Dense" / "config.json", {"module_output_name": None}), "HS405"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_chain_fails_and_is_never_told_to_be_trained_first(name: str, tmp_path: Path) -> None:
    spoil, rule = BROKEN[name]
    save_chain(tmp_path / "saved", "Bert", _official())
    spoil(tmp_path / "saved")
    result = headscope.check(tmp_path / "saved", profile="inference")
    assert result.verdict is Verdict.FAILED
    assert rule in [item.id for item in result.findings], result.findings
    assert "Train it first" not in str(result)


def test_a_module_of_another_class_is_not_determined(tmp_path: Path) -> None:
    save_chain(tmp_path / "saved", "Bert", _official())
    entries = json.loads((tmp_path / "saved" / "modules.json").read_text())
    entries[2]["type"] = "my_modules.Dense"
    (tmp_path / "saved" / "modules.json").write_text(json.dumps(entries))
    report = headscope.inspect(tmp_path / "saved")
    assert (report.head, report.model.class_name) == (None, "CrossEncoder")
    assert "2_Dense (Dense): its class is my_modules.Dense" in report.not_determined[0].reason
    assert headscope.check(tmp_path / "saved", profile="inference").verdict is Verdict.NOT_DETERMINED


def test_a_wish_for_classes_gives_the_class_that_people_would_train(tmp_path: Path) -> None:
    save_chain(tmp_path / "saved", "Bert", [Pooling(16, "mean"), Normalize()])
    for wish in ({"num_labels": 3}, {"task": "token-classification"}, {"model_class": "BertForSequenceClassification"}):
        report = headscope.inspect(tmp_path / "saved", **wish)
        assert report.model.class_name.startswith("BertFor")
        assert all(key.startswith("pooler.") for key in report.weights.unused)


def test_engines_say_that_an_embedding_has_no_scores_and_what_to_do(tmp_path: Path) -> None:
    embeds = {}
    for name, last in {"embedder": Normalize(), "scorer": _scores(16, 2)}.items():
        save_chain(tmp_path / name, "Bert", [Pooling(16, "mean"), last])
        found = headscope.engines(tmp_path / name, engine="vllm@0.33.0")
        assert found.verdict == "not_determined"
        embeds[name] = "embedding model" in found.engines[0].reason and "SentenceTransformer.encode" in str(found)
    assert embeds == {"embedder": True, "scorer": False}


def test_a_snapshot_of_a_chain_has_its_formula(tmp_path: Path) -> None:
    save_chain(tmp_path / "saved", "Bert", _official())
    whole = headscope.inspect(tmp_path / "saved")
    headscope.snapshot(tmp_path / "saved", tmp_path / "one.json")
    shutil.rmtree(tmp_path / "saved")
    report = headscope.inspect(tmp_path / "one.json")
    assert (report.head.formula, report.head.pooling.kind) == (whole.head.formula, PoolingKind.FIRST_TOKEN)
    assert report.checkpoint.sentence_transformers == whole.checkpoint.sentence_transformers
    assert report.weights.loaded == whole.weights.loaded
    assert headscope.inspect(tmp_path / "one.json", num_labels=2).weights.unused == ()


def test_a_reranker_of_two_tokens_runs_and_passes(tmp_path: Path) -> None:
    save_language_model("Qwen3", tmp_path / "plain")
    encoder = library.CrossEncoder(str(tmp_path / "plain"), device="cpu")
    encoder.save_pretrained(str(tmp_path / "saved"))
    ours = headscope.forward(tmp_path / "saved", device="cpu", text=TEXTS[0], text_pair=SECOND[0])
    named = {item.label: item.probability for item in ours.scored[0].scores}
    assert named["yes"] == pytest.approx(float(encoder.predict([(TEXTS[0], SECOND[0])])[0]), abs=1e-5)
    result = headscope.check(tmp_path / "saved", profile="inference", run=True)
    assert not [item for item in result.findings if item.id == "HS521"]
