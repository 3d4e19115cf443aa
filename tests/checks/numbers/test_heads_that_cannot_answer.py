"""Broken and healthy heads, saved and loaded by Transformers: its forward says what each can answer."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedModel

import headscope
from headscope.core.facts.health import HealthVerdict
from headscope.core.facts.verdict import Verdict
from headscope.core.model.tensors.head_statistics import matrix_statistics
from headscope.core.source.health.judging import judge_numbers
from tests.checks.broken import Change, Edit, changed, filled, put, scaled
from tests.edits import edit_tensors
from tests.families import FAMILIES

pytestmark = pytest.mark.usefixtures("remembered")


@dataclass(frozen=True)
class Kind:
    """A class at a small size. `weight` makes its scores; `dense` is a layer before it, if the head has one."""

    cls: str
    config: dict[str, Any]
    weight: str
    dense: str = ""


_OF_SOUND = {
    "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48, "conv_dim": [8, 8],
    "conv_stride": [5, 2], "conv_kernel": [10, 3], "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2,
    "classifier_proj_size": 16,
}  # fmt: skip
_OF_CONVNEXT = {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "image_size": 32}


def _of(family: str, *layers: str) -> Kind:
    known = FAMILIES[family]
    return Kind(known.classifier, known.config | known.extra | known.pad_token, *layers)


KINDS = {
    "bert": _of("bert", "classifier", "bert.pooler.dense"),
    "bert-tokens": Kind("BertForTokenClassification", FAMILIES["bert"].config, "classifier"),
    "bert-answers": Kind("BertForQuestionAnswering", FAMILIES["bert"].config | {"num_labels": 2}, "qa_outputs"),
    "roberta": _of("roberta", "classifier.out_proj", "classifier.dense"),
    "electra": _of("electra", "classifier.out_proj", "classifier.dense"),
    "distilbert": _of("distilbert", "classifier", "pre_classifier"),
    "albert": _of("albert", "classifier", "albert.pooler"),
    "deberta": _of("deberta-v2", "classifier", "pooler.dense"),
    "gpt2": _of("gpt2", "score"),
    "llama": _of("llama", "score"),
    "vit": _of("vit", "classifier"),
    "convnext": Kind("ConvNextForImageClassification", _OF_CONVNEXT, "classifier"),
    "wav2vec2": Kind("Wav2Vec2ForSequenceClassification", _OF_SOUND, "classifier", "projector"),
}


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
            scores = model.eval()(**_batch(model)).logits
            last.bias.sub_(scores.flatten(0, -2).mean(0))
    return model.eval()


_NAN_AT_THE_END = put((-1, -1), float("nan"))
BROKEN_WEIGHT: dict[str, Change] = {
    "NaN in the last number": _NAN_AT_THE_END,
    "zeros": torch.zeros_like,
    "zeros as int8": lambda weight: torch.zeros_like(weight, dtype=torch.int8),
    "equal rows": lambda weight: weight[:1].expand_as(weight).contiguous(),
    "1e-12": scaled(1e-12),
    "1e-40": scaled(1e-39),
    "1e300 in float64": scaled(1e300, torch.float64),
    "1e-300 in float64": scaled(1e-300, torch.float64),
    "overflows in the sum": lambda weight: weight.sign() * 3e38,
}
BROKEN_BIAS = {
    "infinite bias": put(0, float("inf")), "NaN bias": put(0, float("nan")), "one bias wins": put(0, 1e9),
}  # fmt: skip
BROKEN_DENSE: dict[str, Change] = {
    "NaN before": _NAN_AT_THE_END, "zeros before": torch.zeros_like, "1e-30 before": scaled(1e-30),
}  # fmt: skip


def _cases(kind: Kind) -> Iterator[tuple[str, Edit]]:
    yield from ((name, changed(f"{kind.weight}.weight", change)) for name, change in BROKEN_WEIGHT.items())
    if kind.weight != "score":
        yield from ((name, changed(f"{kind.weight}.bias", change)) for name, change in BROKEN_BIAS.items())
    if kind.dense:
        yield from ((name, changed(f"{kind.dense}.weight", change)) for name, change in BROKEN_DENSE.items())
        yield "saturated before", filled(f"{kind.dense}.bias", value=-1e9)


def _healthy(folder: Path, kind: str = "bert", **changes: Any) -> Path:
    _grown(KINDS[kind], 1, **changes).save_pretrained(folder / "healthy")
    return folder / "healthy"


def _with(healthy: Path, edit: Edit, name: str) -> Path:
    """A copy beside a checkpoint, with other numbers."""
    to = Path(shutil.copytree(healthy, healthy.with_name(name)))
    edit_tensors(to / "model.safetensors", edit)
    return to


def _verdict(folder: Path, **options: Any) -> Verdict:
    return headscope.check(folder, "inference", select=["HS501"], **options).verdict


def _batch(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    torch.manual_seed(5)
    if model.main_input_name == "input_ids":
        return {"input_ids": torch.randint(3, 60, (32, 9))}
    size = getattr(model.config, "image_size", 0)
    return {model.main_input_name: torch.randn((32, 3, size, size) if size else (32, 400))}


def _can_answer(model: PreTrainedModel) -> bool:
    """What a real forward shows: scores that are finite, and probabilities and winners that inputs change."""
    with torch.no_grad():
        found = model(**_batch(model))
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
        "check": _verdict(folder, cache=True),
        "scan": row.verdict,
        "in memory": headscope.check(model, "inference", select=["HS501"]).verdict,
    }


@pytest.mark.parametrize("name", KINDS)
def test_every_surface_says_of_a_head_what_its_forward_shows(name: str, tmp_path: Path) -> None:
    kind, healthy = KINDS[name], _healthy(tmp_path, name)
    for number, (way, edit) in enumerate([("healthy", lambda state: None), *_cases(kind)]):
        folder = _with(healthy, edit, str(number))
        model = getattr(transformers, kind.cls).from_pretrained(folder)
        assert _can_answer(model) is (way == "healthy"), f"the case is not what it should be: {way}"
        expected = Verdict.PASSED if way == "healthy" else Verdict.FAILED
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
    for number, dtype in enumerate(("float32", "bfloat16", "float16")):
        folder = tmp_path / str(number)
        _grown(kind, number, **changes).to(getattr(torch, dtype)).save_pretrained(folder)
        found = headscope.check(folder, "inference", select=["HS501"])
        assert found.verdict is Verdict.PASSED, (dtype, found.findings, found.not_determined)
    fresh = getattr(transformers, kind.cls)(_grown(kind, 1, **changes).config)
    assert headscope.check(fresh, "training", select=["HS501"]).verdict is Verdict.PASSED


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64, torch.bool])
def test_a_head_stored_as_whole_numbers_without_their_scale_fails(dtype: torch.dtype, tmp_path: Path) -> None:
    folder = _with(_healthy(tmp_path), changed("classifier.weight", scaled(500, dtype)), "x")
    model = transformers.BertForSequenceClassification.from_pretrained(folder)
    assert set(_verdicts(folder, model).values()) == {Verdict.FAILED}
    found = headscope.check(folder, "inference", select=["HS501"]).findings[0]
    assert "without a quantization config" in found.message


def test_a_head_of_one_score_that_no_input_changes_fails_and_any_other_passes(tmp_path: Path) -> None:
    healthy = _healthy(tmp_path, num_labels=1)
    assert _verdict(healthy) is Verdict.PASSED
    assert _verdict(_with(healthy, filled("classifier.weight", value=0.0), "same")) is Verdict.FAILED
    shifted = _with(healthy, changed("classifier.bias", lambda bias: bias + 1e4), "shifted")
    assert _verdict(shifted) is Verdict.PASSED


def test_a_large_head_is_read_to_its_last_number(tmp_path: Path) -> None:
    healthy = _healthy(tmp_path, num_labels=200_000)  # 25 MB
    assert _verdict(healthy) is Verdict.PASSED
    assert _verdict(_with(healthy, changed("classifier.weight", _NAN_AT_THE_END), "broken")) is Verdict.FAILED


def test_a_buffer_of_the_head_that_makes_scores_nan_fails(tmp_path: Path) -> None:
    config = transformers.LevitConfig(
        image_size=64, hidden_sizes=[16, 16, 16], num_attention_heads=[2, 2, 2], depths=[1, 1, 1], key_dim=[8, 8, 8]
    )
    torch.manual_seed(0)
    transformers.LevitForImageClassification(config).save_pretrained(tmp_path / "healthy")
    assert _verdict(tmp_path / "healthy") is Verdict.PASSED
    for value in (float("nan"), -1.0):
        edit = filled("classifier.batch_norm.running_var", value=value)
        assert _verdict(_with(tmp_path / "healthy", edit, str(value))) is Verdict.FAILED


def test_a_snapshot_has_no_numbers_and_a_check_of_nothing_else_is_not_determined(tmp_path: Path) -> None:
    file = tmp_path / "snapshot.json"
    headscope.snapshot(_healthy(tmp_path), file)
    assert json.loads(file.read_text(encoding="utf-8"))
    for rules in (["HS501"], ["HS5"]):
        assert headscope.check(file, "inference", select=rules, fail_on="note").verdict is Verdict.NOT_DETERMINED
    assert headscope.check(file, "inference").verdict is Verdict.PASSED


def test_compare_counts_numbers_that_differ_and_nothing_else(tmp_path: Path) -> None:
    healthy = _healthy(tmp_path)
    permuted = _with(healthy, changed("classifier.weight", lambda weight: weight[[1, 0, 2]]), "permuted")
    broken = _with(healthy, changed("classifier.weight", _NAN_AT_THE_END), "broken")
    same = _with(healthy, lambda state: None, "same")
    differs = [headscope.compare(healthy, folder, values=True).differs for folder in (permuted, broken, same)]
    assert differs == [True, True, False]
    assert not headscope.compare(healthy, permuted).differs  # without their values, the heads are alike


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
    folder = _with(_healthy(tmp_path), changed("classifier.weight", scaled(factor, torch.float64)), "x")
    assert headscope.inspect(folder, health=True).health.verdict is HealthVerdict.COLLAPSED


def test_only_the_rows_of_a_rerankers_tokens_are_read(tmp_path: Path) -> None:
    FAMILIES["llama"].build("LlamaForCausalLM", vocab_size=300).save_pretrained(tmp_path / "healthy")
    broken = _with(tmp_path / "healthy", changed("lm_head.weight", put(9, float("nan"))), "broken")
    assert _verdict(tmp_path / "healthy", tokens="id:5,id:9") is Verdict.PASSED
    assert _verdict(broken, tokens="id:5,id:9") is Verdict.FAILED
    assert _verdict(broken, tokens="id:5,id:8") is Verdict.PASSED


def test_a_report_from_the_cache_is_tried_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HEADSCOPE_NO_CACHE", raising=False)
    healthy = _healthy(tmp_path)
    zeros = _with(healthy, filled("classifier.weight", value=0.0), "zeros")
    for folder, expected in ((healthy, Verdict.PASSED), (zeros, Verdict.FAILED), (zeros, Verdict.FAILED)):
        assert _verdict(folder, cache=True) is expected
