"""Broken and healthy heads, saved and loaded by Transformers: its forward says what each can answer."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

import headscope
from headscope.core.facts.health import HealthVerdict
from headscope.core.facts.verdict import Verdict
from headscope.core.model.tensors.head_statistics import matrix_statistics
from headscope.core.source.health.judging import judge_numbers

pytestmark = pytest.mark.usefixtures("remembered")

State = dict[str, torch.Tensor]
_TEXT: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48,
    "pad_token_id": 0,
}  # fmt: skip
_IMAGE = {**_TEXT, "image_size": 16, "patch_size": 8}
_AUDIO = {
    **_TEXT, "conv_dim": [8, 8], "conv_stride": [5, 2], "conv_kernel": [10, 3], "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2, "classifier_proj_size": 16,
}  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A class at a small size. `weight` makes its scores; `dense` is a layer before it, if the head has one."""

    cls: str
    config: dict[str, Any]
    weight: str
    dense: str = ""
    inputs: str = "input_ids"


KINDS = {
    "bert": Kind("BertForSequenceClassification", _TEXT, "classifier", "bert.pooler.dense"),
    "bert-tokens": Kind("BertForTokenClassification", _TEXT, "classifier"),
    "bert-answers": Kind("BertForQuestionAnswering", {**_TEXT, "num_labels": 2}, "qa_outputs"),
    "roberta": Kind(
        "RobertaForSequenceClassification", {**_TEXT, "pad_token_id": 1}, "classifier.out_proj", "classifier.dense"
    ),
    "electra": Kind("ElectraForSequenceClassification", _TEXT, "classifier.out_proj", "classifier.dense"),
    "distilbert": Kind(
        "DistilBertForSequenceClassification",
        {"vocab_size": 60, "dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 48}, "classifier", "pre_classifier",
    ),
    "albert": Kind("AlbertForSequenceClassification", _TEXT, "classifier", "albert.pooler"),
    "deberta": Kind("DebertaV2ForSequenceClassification", _TEXT, "classifier", "pooler.dense"),
    "gpt2": Kind(
        "GPT2ForSequenceClassification",
        {"vocab_size": 60, "n_embd": 32, "n_layer": 1, "n_head": 2, "pad_token_id": 0}, "score",
    ),
    "llama": Kind("LlamaForSequenceClassification", _TEXT, "score"),
    "vit": Kind("ViTForImageClassification", _IMAGE, "classifier", "", "pixel_values"),
    "convnext": Kind(
        "ConvNextForImageClassification",
        {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "image_size": 32}, "classifier", "", "pixel_values",
    ),
    "wav2vec2": Kind("Wav2Vec2ForSequenceClassification", _AUDIO, "classifier", "projector", "input_values"),
}  # fmt: skip


def _grown(kind: Kind, seed: int, **changes: Any) -> PreTrainedModel:
    """A model whose values have moved away from their initialization, and whose answer its input decides."""
    torch.manual_seed(seed)
    cls = getattr(transformers, kind.cls)
    model: PreTrainedModel = cls(cls.config_class(**{"num_labels": 3, **kind.config, **changes}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
        last: Any = model.get_submodule(kind.weight)
        last.weight.mul_(20)
        if last.bias is not None and "ForQuestion" not in kind.cls:  # then no class wins for all of a few inputs
            scores = model.eval()(**_batch(kind)).logits
            last.bias.sub_(scores.flatten(0, -2).mean(0))
    return model.eval()


def _last_row(weight: torch.Tensor) -> torch.Tensor:
    weight[-1, -1] = float("nan")
    return weight


def _first(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def changed(bias: torch.Tensor) -> torch.Tensor:
        bias[0] = value
        return bias

    return changed


def _scaled(factor: float, dtype: torch.dtype = torch.float32) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda numbers: (numbers.double() * factor).to(dtype)


BROKEN_WEIGHT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "NaN in the last number": _last_row,
    "zeros": torch.zeros_like,
    "zeros as int8": lambda weight: torch.zeros_like(weight, dtype=torch.int8),
    "equal rows": lambda weight: weight[:1].expand_as(weight).contiguous(),
    "1e-12": _scaled(1e-12),
    "1e-40": _scaled(1e-39),
    "1e300 in float64": _scaled(1e300, torch.float64),
    "1e-300 in float64": _scaled(1e-300, torch.float64),
    "overflows in the sum": lambda weight: weight.sign() * 3e38,
}
BROKEN_BIAS = {
    "infinite bias": _first(float("inf")), "NaN bias": _first(float("nan")), "one bias wins": _first(1e9),
}  # fmt: skip
BROKEN_DENSE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "NaN before": _last_row, "zeros before": torch.zeros_like, "1e-30 before": _scaled(1e-30),
}  # fmt: skip


def _cases(kind: Kind) -> Iterator[tuple[str, str, Callable[[torch.Tensor], torch.Tensor]]]:
    yield from ((name, f"{kind.weight}.weight", change) for name, change in BROKEN_WEIGHT.items())
    if kind.weight != "score":
        yield from ((name, f"{kind.weight}.bias", change) for name, change in BROKEN_BIAS.items())
    if kind.dense:
        yield from ((name, f"{kind.dense}.weight", change) for name, change in BROKEN_DENSE.items())
        yield "saturated before", f"{kind.dense}.bias", lambda bias: torch.full_like(bias, -1e9)


def _with(folder: Path, changes: dict[str, Callable[[torch.Tensor], torch.Tensor]], to: Path) -> Path:
    to.mkdir()
    (to / "config.json").write_text((folder / "config.json").read_text(encoding="utf-8"), encoding="utf-8")
    state: State = load_file(folder / "model.safetensors")
    for name, change in changes.items():
        state[name] = change(state[name].clone())
    save_file(state, to / "model.safetensors", metadata={"format": "pt"})
    return to


def _batch(kind: Kind) -> dict[str, torch.Tensor]:
    torch.manual_seed(5)
    if kind.inputs == "input_ids":
        return {"input_ids": torch.randint(3, 60, (32, 9))}
    shape = (
        (32, 3, kind.config["image_size"], kind.config["image_size"]) if kind.inputs == "pixel_values" else (32, 400)
    )
    return {kind.inputs: torch.randn(shape)}


def _can_answer(model: PreTrainedModel, kind: Kind) -> bool:
    """What a real forward shows: scores that are finite, and probabilities and winners that inputs change."""
    with torch.no_grad():
        found = model(**_batch(kind))
    if "logits" not in found:  # starts and ends
        scores = torch.stack([found.start_logits.flatten(), found.end_logits.flatten()], 1)
    else:
        scores = found.logits.flatten(0, -2)
    if not bool(scores.isfinite().all()):
        return False
    moves = bool((scores.softmax(-1).std(0) > 1e-7).any())
    return moves and ("logits" not in found or len(scores.argmax(1).unique()) > 1)


def _verdicts(folder: Path, model: PreTrainedModel) -> dict[str, Any]:
    (row,) = headscope.scan([folder], workers=0, profile="inference", select=["HS501"], cache=True)
    return {
        "check": headscope.check(folder, "inference", select=["HS501"], cache=True).verdict,
        "scan": row.verdict,
        "in memory": headscope.check(model, "inference", select=["HS501"]).verdict,
    }


@pytest.mark.parametrize("name", KINDS)
def test_every_surface_says_of_a_head_what_its_forward_shows(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    _grown(kind, 1).save_pretrained(tmp_path / "healthy")
    ways = [("healthy", "", None), *_cases(kind)]
    for number, (way, tensor, change) in enumerate(ways):
        folder = _with(tmp_path / "healthy", {tensor: change} if change else {}, tmp_path / str(number))
        model = getattr(transformers, kind.cls).from_pretrained(folder)
        assert _can_answer(model, kind) is (change is None), f"the case is not what it should be: {way}"
        expected = Verdict.PASSED if change is None else Verdict.FAILED
        assert set(_verdicts(folder, model).values()) == {expected}, (way, _verdicts(folder, model))


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    "changes",
    [{"num_labels": 2}, {"num_labels": 20}, {"num_labels": 2, "problem_type": "multi_label_classification"}, {}],
    ids=str,
)
def test_healthy_heads_pass_trained_or_fresh_in_every_float(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    kind = KINDS[name]
    if name == "bert-answers":
        changes = {}
    dtypes = {"float32": 1.0, "bfloat16": 1.0, "float16": 1.0}
    for number, dtype in enumerate(dtypes):
        folder = tmp_path / str(number)
        _grown(kind, number, **changes).to(getattr(torch, dtype)).save_pretrained(folder)
        found = headscope.check(folder, "inference", select=["HS501"])
        assert found.verdict is Verdict.PASSED, (dtype, found.findings, found.not_determined)
    fresh = getattr(transformers, kind.cls)(_grown(kind, 1, **changes).config)
    assert headscope.check(fresh, "training", select=["HS501"]).verdict is Verdict.PASSED


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64, torch.bool])
def test_a_head_stored_as_whole_numbers_without_their_scale_fails(dtype: torch.dtype, tmp_path: Path) -> None:
    kind = KINDS["bert"]
    _grown(kind, 1).save_pretrained(tmp_path / "healthy")
    folder = _with(tmp_path / "healthy", {"classifier.weight": lambda weight: (weight * 500).to(dtype)}, tmp_path / "x")
    model = getattr(transformers, kind.cls).from_pretrained(folder)
    assert set(_verdicts(folder, model).values()) == {Verdict.FAILED}
    found = headscope.check(folder, "inference", select=["HS501"]).findings[0]
    assert "without a quantization config" in found.message


def test_a_head_of_one_score_that_no_input_changes_fails_and_any_other_passes(tmp_path: Path) -> None:
    kind = KINDS["bert"]
    _grown(kind, 1, num_labels=1).save_pretrained(tmp_path / "healthy")
    assert headscope.check(tmp_path / "healthy", "inference", select=["HS501"]).verdict is Verdict.PASSED
    same = _with(tmp_path / "healthy", {"classifier.weight": torch.zeros_like}, tmp_path / "same")
    assert headscope.check(same, "inference", select=["HS501"]).verdict is Verdict.FAILED
    shifted = _with(tmp_path / "healthy", {"classifier.bias": lambda bias: bias + 1e4}, tmp_path / "shifted")
    assert headscope.check(shifted, "inference", select=["HS501"]).verdict is Verdict.PASSED


def test_a_large_head_is_read_to_its_last_number(tmp_path: Path) -> None:
    kind = KINDS["bert"]
    _grown(kind, 1, num_labels=200_000).save_pretrained(tmp_path / "healthy")  # 25 MB
    assert headscope.check(tmp_path / "healthy", "inference", select=["HS501"]).verdict is Verdict.PASSED
    folder = _with(tmp_path / "healthy", {"classifier.weight": _last_row}, tmp_path / "broken")
    assert headscope.check(folder, "inference", select=["HS501"]).verdict is Verdict.FAILED


def test_a_buffer_of_the_head_that_makes_scores_nan_fails(tmp_path: Path) -> None:
    config = transformers.LevitConfig(
        image_size=64, hidden_sizes=[16, 16, 16], num_attention_heads=[2, 2, 2], depths=[1, 1, 1], key_dim=[8, 8, 8]
    )
    torch.manual_seed(0)
    transformers.LevitForImageClassification(config).save_pretrained(tmp_path / "healthy")
    assert headscope.check(tmp_path / "healthy", "inference", select=["HS501"]).verdict is Verdict.PASSED
    for number, value in enumerate((float("nan"), -1.0)):
        change = {"classifier.batch_norm.running_var": lambda item, value=value: torch.full_like(item, value)}
        folder = _with(tmp_path / "healthy", change, tmp_path / str(number))
        assert headscope.check(folder, "inference", select=["HS501"]).verdict is Verdict.FAILED


def test_a_snapshot_has_no_numbers_and_a_check_of_nothing_else_is_not_determined(tmp_path: Path) -> None:
    _grown(KINDS["bert"], 1).save_pretrained(tmp_path / "model")
    file = tmp_path / "snapshot.json"
    headscope.snapshot(tmp_path / "model", file)
    assert json.loads(file.read_text(encoding="utf-8"))
    for rules in (["HS501"], ["HS5"]):
        assert headscope.check(file, "inference", select=rules, fail_on="note").verdict is Verdict.NOT_DETERMINED
    assert headscope.check(file, "inference").verdict is Verdict.PASSED


def test_compare_counts_numbers_that_differ_and_nothing_else(tmp_path: Path) -> None:
    _grown(KINDS["bert"], 1).save_pretrained(tmp_path / "a")
    permuted = _with(tmp_path / "a", {"classifier.weight": lambda weight: weight[[1, 0, 2]]}, tmp_path / "permuted")
    broken = _with(tmp_path / "a", {"classifier.weight": _last_row}, tmp_path / "broken")
    same = _with(tmp_path / "a", {}, tmp_path / "same")
    differs = {
        folder.name: headscope.compare(tmp_path / "a", folder, values=True).differs
        for folder in (permuted, broken, same)
    }
    assert differs == {"permuted": True, "broken": True, "same": False}
    assert not headscope.compare(tmp_path / "a", permuted).differs  # without their values, the heads are alike


@pytest.mark.parametrize("features", [32, 768])
def test_parallel_rows_are_not_the_same_and_equal_ones_are(features: int) -> None:
    torch.manual_seed(0)
    row = torch.randn(features) / 50

    def verdict(*rows: torch.Tensor) -> HealthVerdict:
        return judge_numbers(matrix_statistics("weight", torch.stack(rows), 0.02), None, None, True).verdict

    for factors in ((1, 2, 3), (1, 1.05, 1.1)):
        assert verdict(*(row * factor for factor in factors)) is not HealthVerdict.COLLAPSED
    assert verdict(row, row, row) is HealthVerdict.COLLAPSED
    assert verdict(row, row * 1.0001, row + torch.randn(features) * 1e-6) is HealthVerdict.COLLAPSED


@pytest.mark.parametrize("factor", [1e300, 1e-300])
def test_health_of_numbers_that_the_loader_cannot_hold_is_a_verdict(factor: float, tmp_path: Path) -> None:
    _grown(KINDS["bert"], 1).save_pretrained(tmp_path / "healthy")
    folder = _with(tmp_path / "healthy", {"classifier.weight": _scaled(factor, torch.float64)}, tmp_path / "x")
    found = headscope.inspect(folder, health=True).health
    assert found.verdict is HealthVerdict.COLLAPSED


def test_only_the_rows_of_a_rerankers_tokens_are_read(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(**{**_TEXT, "vocab_size": 300})
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "healthy")
    broken = _with(tmp_path / "healthy", {"lm_head.weight": lambda weight: _row_of_nan(weight, 9)}, tmp_path / "broken")
    verdicts = [
        headscope.check(folder, "inference", tokens=tokens, select=["HS501"]).verdict
        for folder, tokens in ((tmp_path / "healthy", "id:5,id:9"), (broken, "id:5,id:9"), (broken, "id:5,id:8"))
    ]
    assert verdicts == [Verdict.PASSED, Verdict.FAILED, Verdict.PASSED]


def _row_of_nan(weight: torch.Tensor, row: int) -> torch.Tensor:
    weight[row] = float("nan")
    return weight


def test_a_report_from_the_cache_is_tried_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HEADSCOPE_NO_CACHE", raising=False)
    kind = KINDS["bert"]
    _grown(kind, 1).save_pretrained(tmp_path / "healthy")
    zeros = _with(tmp_path / "healthy", {"classifier.weight": torch.zeros_like}, tmp_path / "zeros")
    for folder, expected in ((tmp_path / "healthy", Verdict.PASSED), (zeros, Verdict.FAILED), (zeros, Verdict.FAILED)):
        assert headscope.check(folder, "inference", select=["HS501"], cache=True).verdict is expected
