"""Whether a classifier was trained: statistics against plain NumPy and SciPy, verdicts on heads made here, and gaps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import BertForSequenceClassification, BertModel, PreTrainedModel

import headscope
from headscope.core.facts.health import InitialSpread
from headscope.core.model.tensors.initialization import initial_spread
from headscope.errors import UsageError
from headscope.facts import HealthBasis
from tests.edits import edit_tensors
from tests.families import FAMILIES
from tests.model.loading.test_quantized import save as save_packed
from tests.model.tensors.classifiers import BRIEFLY, COLLAPSED, FRESH, OPEN, TRAINED, WIDTH, train
from tests.saving import save_sharded_safetensors, save_torch_legacy, save_torch_zip

REAL = Path(__file__).parents[4] / "shared" / "real" / "checkpoints"


def bert(**changes: Any) -> Any:
    return FAMILIES["bert"].build("BertForSequenceClassification", **{"hidden_size": WIDTH, "num_labels": 3} | changes)


def llama() -> Any:
    return FAMILIES["llama"].build("LlamaForSequenceClassification", hidden_size=WIDTH, num_labels=3, pad_token_id=0)


def health_of(target: Any, **options: Any) -> Any:
    return headscope.inspect(target, health=True, **options).health


def saved(model: PreTrainedModel, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("make", [bert, llama])
def test_heads_of_checkpoints(make: Callable[..., Any], tmp_path: Path) -> None:
    model = make()
    head = model.classifier if make is bert else model.score
    assert health_of(saved(model, tmp_path / "fresh")).verdict is FRESH
    train(head, 300, 3e-3)
    long = health_of(saved(model, tmp_path / "long"))
    assert (long.verdict, long.basis) == (TRAINED, HealthBasis.STATISTICS)
    assert 0.9 <= long.confidence < 1
    assert long.weight.mean_row_z < -4
    checked = headscope.check(tmp_path / "long", "inference", select="HS502")
    assert (checked.findings, checked.not_determined) == ((), ())
    half = health_of(saved(model.to(torch.bfloat16), tmp_path / "half"))
    assert half.verdict is (TRAINED if half.bias else half.verdict) is not FRESH
    assert half.trained > 0.8  # 384 coarse numbers without a bias may fall short of a verdict


def test_a_few_steps_show_in_the_bias_and_not_without_one(tmp_path: Path) -> None:
    model = bert()
    train(model.classifier, 20, 5e-5)
    found = health_of(saved(model, tmp_path / "bert"))
    assert (found.verdict, "at zero" in found.reasons[0]) == (BRIEFLY, True)
    other = llama()
    train(other.score, 20, 2e-5)
    found = health_of(saved(other.to(torch.bfloat16), tmp_path / "llama"))
    assert (found.verdict, found.confidence) == (OPEN, None)
    assert found.fresh + (found.briefly_trained or 0) + found.trained == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda w: w.fill_(float("nan")), "NaN"),
        (lambda w: w[0].fill_(float("inf")), "infinity"),
        (lambda w: w.zero_(), "only zeros"),
        (lambda w: w.copy_(w[:1].expand_as(w)), "rows"),
        (lambda w: w.copy_(torch.tensor([[0.1], [0.2], [0.3]]).expand_as(w)), "one number"),
    ],
)
def test_collapsed_heads(change: Callable[[torch.Tensor], Any], word: str, tmp_path: Path) -> None:
    model = bert()
    with torch.no_grad():
        change(model.classifier.weight)
    found = health_of(saved(model, tmp_path))
    assert (found.verdict, found.confidence) == (COLLAPSED, 1.0)
    assert word in found.reasons[0]


def test_a_classifier_that_the_load_makes_is_fresh_by_its_status(tmp_path: Path) -> None:
    BertModel(bert().config).save_pretrained(tmp_path / "base")
    found = health_of(tmp_path / "base", num_labels=3)
    assert (found.verdict, found.basis, found.bytes_read) == (FRESH, HealthBasis.STATUS, 0)
    assert "lacks classifier.weight" in found.reasons[0]
    model = bert()
    train(model.classifier, 100, 1e-3)
    found = health_of(saved(model, tmp_path / "other"), num_labels=5)
    assert (found.verdict, found.basis) == (FRESH, HealthBasis.STATUS)
    assert "3x128" in found.reasons[0]
    assert "5x128" in found.reasons[0]


@pytest.mark.parametrize("save", [save_sharded_safetensors, save_torch_zip, save_torch_legacy])
def test_every_format_gives_the_same_verdict(save: Callable[[Any, Path], None], tmp_path: Path) -> None:
    model = bert()
    train(model.classifier, 200, 3e-3)
    plain = health_of(saved(model, tmp_path / "plain"))
    (tmp_path / "other").mkdir()
    save(model, tmp_path / "other")
    found = health_of(tmp_path / "other")
    assert (found.verdict, found.weight, found.bias) == (TRAINED, plain.weight, plain.bias)


@pytest.mark.usefixtures("no_shipped_facts")
def test_a_known_structure_is_not_initialized_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADSCOPE_NO_CACHE")
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path / "cache"))
    calls: list[str] = []

    def counted(model: nn.Module, weight: str, stated: float | None) -> InitialSpread | None:
        calls.append(weight)
        return initial_spread(model, weight, stated)

    monkeypatch.setattr("headscope.core.model.tensors.initialization.initial_spread", counted)
    for name in "ab":
        saved(bert(initializer_range=0.05), tmp_path / name)
        checked = headscope.check(tmp_path / name, "inference", select="HS502", cache=True)
        assert [item.id for item in checked.findings] == ["HS502"]
        found = health_of(tmp_path / name, cache=True)
        assert found.weight.initial_spread == 0.05
    assert calls == ["classifier.weight"]
    other = health_of(saved(bert(initializer_range=0.03), tmp_path / "other"), cache=True)
    assert other.weight.initial_spread == 0.03
    assert len(calls) == 2


def test_losses_that_move_the_mean_row_are_said(tmp_path: Path) -> None:
    assert health_of(saved(bert(problem_type="single_label_classification"), tmp_path / "a")).mean_row_applies is True
    assert health_of(saved(bert(problem_type="multi_label_classification"), tmp_path / "b")).mean_row_applies is False
    report = headscope.inspect(tmp_path / "b", health=True)
    assert "not a softmax" in str(report)
    one = health_of(saved(bert(num_labels=1), tmp_path / "c"))
    assert one.mean_row_applies is False
    assert (one.weight.mean_row, one.weight.cosine, one.weight.spectrum.top_z) == (None, None, None)


# What is not determined


def test_a_snapshot_holds_no_numbers(tmp_path: Path) -> None:
    headscope.snapshot(saved(bert(), tmp_path / "model"), tmp_path / "snapshot.json")
    found = health_of(tmp_path / "snapshot.json")
    assert found.verdict is OPEN and "snapshot" in found.reasons[0]


def test_other_dtypes_and_missing_biases(tmp_path: Path) -> None:
    file, name = saved(bert(), tmp_path) / "model.safetensors", "classifier.weight"
    edit_tensors(file, lambda state: state | {name: state[name].to(torch.float8_e4m3fn)})
    found = health_of(tmp_path)
    assert found.verdict is OPEN
    assert "float8" in found.reasons[0]
    saved(bert(), tmp_path)
    edit_tensors(file, lambda state: {key: item for key, item in state.items() if key != "classifier.bias"})
    found = health_of(tmp_path)
    assert found.bias is None
    assert found.verdict in (FRESH, OPEN)


@pytest.mark.parametrize("packing", ["bnb4", "bnb8", "fp8"])
def test_a_packed_head_is_not_judged(packing: str, tmp_path: Path) -> None:
    found = health_of(save_packed(tmp_path, packing, head=True))
    assert (found.verdict, found.basis, found.bytes_read) == (OPEN, HealthBasis.UNREAD, 0)
    assert "quantized" in found.reasons[0]
    (tmp_path / "plain").mkdir()
    assert health_of(save_packed(tmp_path / "plain", packing)).bytes_read == 4 * 3 * 64


@pytest.mark.parametrize("kept", [True, False])
def test_of_an_adapter_the_classifier_that_it_saves_is_judged(kept: bool, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    BertModel(bert().config).save_pretrained(tmp_path / "base")
    model = BertForSequenceClassification.from_pretrained(tmp_path / "base", num_labels=3)
    train(model.classifier, 300, 3e-3)
    # Under FEATURE_EXTRACTION, PEFT adds no classifier to `modules_to_save`.
    settings = peft.LoraConfig(
        task_type="SEQ_CLS" if kept else "FEATURE_EXTRACTION", r=2, target_modules=["query"],
        modules_to_save=["classifier"] if kept else None,
    )  # fmt: skip
    peft.get_peft_model(model, settings).save_pretrained(tmp_path / "adapter")
    stored = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert any("classifier" in name for name in stored) is kept
    found = health_of(tmp_path / "adapter", num_labels=3, task="sequence-classification", offline=True)
    assert found.verdict is (TRAINED if kept else FRESH)
    assert found.basis is (HealthBasis.STATISTICS if kept else HealthBasis.STATUS)
    assert found.bytes_read == (4 * (3 * WIDTH + 3) if kept else 0)


def test_a_large_classifier_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headscope.core.source.health.reading._LOCAL_BYTES", 1000)
    found = health_of(saved(bert(), tmp_path))
    assert (found.verdict, found.bytes_read) == (OPEN, 0)
    assert " 1,000" in found.reasons[0]


# Models in memory, and the surfaces


def test_a_model_in_memory_is_judged_by_its_numbers() -> None:
    model = bert()
    assert health_of(model).verdict is FRESH
    train(model.classifier, 300, 3e-3)
    before = model.classifier.weight.detach().clone()
    assert health_of(model).verdict is TRAINED
    assert torch.equal(model.classifier.weight, before)
    with torch.device("meta"):
        empty = bert()
    assert health_of(empty).verdict is OPEN


def test_without_the_option_nothing_is_said(tmp_path: Path) -> None:
    report = headscope.inspect(saved(bert(), tmp_path))
    assert report.health is None
    assert report.to_dict()["health"] is None
    assert "health" not in str(report)
    with pytest.raises(UsageError, match="heatlh"):
        headscope.inspect(tmp_path, heatlh=True)  # type: ignore[call-overload]


@pytest.mark.skipif(not REAL.is_dir(), reason="the real checkpoints are not there")
def test_real_classifiers() -> None:
    assert health_of(REAL / "tiny-bert", num_labels=2).basis is HealthBasis.STATUS
    assert health_of(REAL / "tiny-modernbert-classifier").verdict is not TRAINED
