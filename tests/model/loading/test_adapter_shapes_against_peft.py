"""Faults of adapters against PEFT: headscope reports one exactly where the real load fails or leaves something out."""

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

import headscope
from headscope.core.facts.verdict import Verdict
from tests.edits import State, edit_json, edit_tensors
from tests.families import FAMILIES

peft = pytest.importorskip("peft")

_LABELS = {"id2label": {0: "no", 1: "maybe", 2: "yes"}, "label2id": {"no": 0, "maybe": 1, "yes": 2}}


class Made:
    """A base model and an adapter in a folder, to be broken."""

    def __init__(self, folder: Path, family: str, config: Any) -> None:
        chosen = FAMILIES[family]
        self.folder, self.classifier = folder / "adapter", chosen.classifier
        chosen.build(chosen.base).save_pretrained(folder / "base")
        torch.manual_seed(1)
        model = peft.get_peft_model(self._base(), config)
        for name, parameter in model.named_parameters():
            if "lora_" in name or "ia3_" in name or ".modules_to_save." in name:
                parameter.data.uniform_(0.5, 1.5)
        model.save_pretrained(self.folder)

    def _base(self) -> Any:
        cls = getattr(transformers, self.classifier)
        return cls.from_pretrained(self.folder.parent / "base", **_LABELS)

    def change_config(self, **changes: Any) -> None:
        edit_json(self.folder / "adapter_config.json", changes)

    def change_weights(self, edit: Callable[[State], State | None]) -> None:
        edit_tensors(self.folder / "adapter_model.safetensors", edit)

    def loads(self) -> tuple[bool, bool, bool]:
        """Whether PEFT loads the adapter, whether it found every tensor, whether it used every tensor."""
        stored = load_file(self.folder / "adapter_model.safetensors")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                model = self.load()
            except Exception:  # whatever PEFT raises is a refusal
                return False, False, False
        held = list(model.state_dict().values())
        used = (any(torch.equal(tensor.to(one.dtype), one) for one in held) for tensor in stored.values())
        return True, not any("missing adapter keys" in str(item.message) for item in caught), all(used)

    def load(self) -> Any:
        return peft.PeftModel.from_pretrained(self._base(), self.folder)

    def check(self) -> Any:
        return headscope.check(str(self.folder), "inference", model_class=self.classifier, num_labels=3, offline=True)


def _lora(**settings: Any) -> Any:
    return peft.LoraConfig(**({"task_type": "SEQ_CLS", "r": 4, "target_modules": ["query", "value"]} | settings))


def _kinds(result: Any) -> set[str]:
    return {item.kind.value for item in result.report.adapter.faults}


def _assert_agrees(made: Made) -> Any:
    """Headscope's faults are those that the real load shows."""
    loaded, complete, used = made.loads()
    result = made.check()
    faults = _kinds(result)
    assert (not result.report.adapter.is_refused) == loaded, result.report.adapter.faults
    if loaded:
        assert ("missing" in faults) == (not complete), result.report.adapter.faults
        assert ("unexpected" in faults or bool(result.report.weights.unused)) == (not used)
    if faults:
        assert result.verdict is Verdict.FAILED
        assert "HS109" in {item.id for item in result.findings}
    return result


HEALTHY = {
    "plain": ("bert", _lora()),
    "roberta": ("roberta", _lora()),
    "embedding": ("bert", _lora(target_modules=["query", "word_embeddings"])),
    "dora": ("bert", _lora(use_dora=True)),
    "dora embedding": ("bert", _lora(use_dora=True, target_modules=["word_embeddings"])),
    "bias": ("bert", _lora(lora_bias=True)),
    "all biases": ("bert", _lora(bias="all")),
    "biases of lora": ("bert", _lora(bias="lora_only")),
    "rslora": ("bert", _lora(use_rslora=True, lora_alpha=3)),
    "rank pattern": ("bert", _lora(rank_pattern={"query": 2, r"layer.0.attention.self.value": 3})),
    "alpha pattern": ("bert", _lora(alpha_pattern={"query": 0.5})),
    "regex": ("bert", _lora(target_modules=r".*\.self\.(query|key)")),
    "regex that is not evaluated": ("bert", _lora(target_modules=r"(.*\.)?(.+\.)?.*query")),
    "all linear": ("bert", _lora(target_modules="all-linear")),
    "one layer": ("bert", _lora(layers_to_transform=[1])),
    "excluded": ("bert", _lora(exclude_modules=["value"])),
    "head saved": ("bert", _lora(modules_to_save=["classifier", "pooler"])),
    "dense, head saved": ("bert", _lora(target_modules=["dense"], modules_to_save=["classifier", "pooler"])),
    "conv1d of gpt2": ("gpt2", _lora(target_modules=["c_attn", "c_proj"], fan_in_fan_out=True)),
    "convolution": ("vit", _lora(target_modules=["projection"], task_type=None, modules_to_save=["classifier"])),
    "dora convolution": (
        "vit",
        _lora(target_modules=["projection"], task_type=None, use_dora=True, modules_to_save=["classifier"]),
    ),
    "ia3": (
        "bert",
        peft.IA3Config(
            task_type="SEQ_CLS",
            target_modules=["key", "value", "output.dense"],
            feedforward_modules=["output.dense"],
            modules_to_save=["classifier", "pooler"],
        ),
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_an_adapter_as_peft_saves_it_has_no_fault(name: str, tmp_path: Path) -> None:
    made = Made(tmp_path, *HEALTHY[name])
    assert made.loads() == (True, True, True)
    report = made.check().report
    assert report.adapter.faults == ()
    assert report.not_determined == ()


_SETTINGS: dict[str, list[Any]] = {
    "r": ["x", "4", None, [], -1, 0, 4.0, 10**30, 8, 2],
    "lora_alpha": ["8", None, [], 16],
    "lora_dropout": ["x", 1.5, None],
    "rank_pattern": [
        {"query": 8}, {"query": "4"}, {"query": -1}, {"ery": 8}, {"^bert.*query$": 2}, {"nobody": 8}, {"(": 4},
    ],
    "alpha_pattern": [{"query": "x"}, {"(": 1}, {"query": 64}],
    "use_rslora": [True],
    "target_modules": [
        7, "classifier", None, ["nobody"], "nobody", ["query"], ["query", "value", "key"], ["word_embeddings"],
    ],
    "layers_to_transform": [[0]],
    "task_type": ["CAUSAL_LM", "SEQ_2_SEQ_LM", "FEATURE_EXTRACTION", None],
    "peft_type": ["NEWER", None, "IA3"],
    "modules_to_save": [["score"], ["dense"]],
    "exclude_modules": [["value"]],
    "trainable_token_indices": [[1]],
    "fan_in_fan_out": [True],
    "bias": ["all", "some"],
    "a_setting_of_tomorrow": [1],
    "use_dora": [True],
    "lora_bias": [True],
}  # fmt: skip
CONFIGURATIONS: list[dict[str, Any]] = [
    *({setting: value} for setting, values in _SETTINGS.items() for value in values),
    {"task_type": None, "modules_to_save": None},
]


@pytest.mark.parametrize("changes", CONFIGURATIONS, ids=lambda changes: json.dumps(changes)[:60])
def test_a_changed_configuration_is_judged_as_peft_does(changes: dict[str, Any], tmp_path: Path) -> None:
    made = Made(tmp_path, "bert", _lora(modules_to_save=["classifier", "pooler"]))
    made.change_config(**changes)
    _assert_agrees(made)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("setting", ["lora_alpha", "alpha_pattern"])
def test_a_scaling_that_is_not_finite_makes_every_score_nan(setting: str, value: float, tmp_path: Path) -> None:
    made = Made(tmp_path, "bert", _lora(modules_to_save=["classifier", "pooler"]))
    made.change_config(**{setting: value if setting == "lora_alpha" else {"value": value}})
    assert made.load().eval()(torch.tensor([[5, 6, 7]])).logits.isnan().all()
    result = made.check()
    assert _kinds(result) == {"scaling"}
    assert result.verdict is Verdict.FAILED


def _resized(end: str, *shape: int) -> Callable[[State], State]:
    return lambda state: {key: torch.zeros(shape) if key.endswith(end) else value for key, value in state.items()}


def _without(part: str) -> Callable[[State], State]:
    return lambda state: {key: value for key, value in state.items() if part not in key}


def _renamed(old: str, new: str) -> Callable[[State], State]:
    return lambda state: {key.replace(old, new): value for key, value in state.items()}


_ONE = "layer.0.attention.self.query."
WEIGHTS: dict[str, tuple[str, Any, Callable[[State], State]]] = {
    "A of nobody": ("bert", _lora(), _resized(f"{_ONE}lora_A.weight", 9, 3)),
    "A of another rank": ("bert", _lora(), _resized(f"{_ONE}lora_A.weight", 8, 32)),
    "A of another width": ("bert", _lora(), _resized(f"{_ONE}lora_A.weight", 4, 16)),
    "A flat": ("bert", _lora(), _resized(f"{_ONE}lora_A.weight", 128)),
    "B transposed": ("bert", _lora(), _resized(f"{_ONE}lora_B.weight", 4, 32)),
    "all B of another model": ("roberta", _lora(), _resized("lora_B.weight", 48, 4)),
    "A missing": ("bert", _lora(), _without(f"{_ONE}lora_A")),
    "B missing": ("bert", _lora(), _without(f"{_ONE}lora_B")),
    "a layer missing": ("bert", _lora(), _without("layer.1.")),
    "without prefix": ("bert", _lora(), _renamed("base_model.model.bert", "bert")),
    "unknown ending": ("bert", _lora(), _renamed(f"{_ONE}lora_A.weight", f"{_ONE}lora_C.weight")),
    "unknown layer": ("bert", _lora(), _renamed("layer.1.", "layer.7.")),
    "magnitude": ("bert", _lora(use_dora=True), _resized("query.lora_magnitude_vector", 9)),
    "magnitude missing": ("bert", _lora(use_dora=True), _without(f"{_ONE}lora_magnitude")),
    "bias": ("bert", _lora(lora_bias=True), _resized("lora_B.bias", 9)),
    "embedding A": ("bert", _lora(target_modules=["word_embeddings"]), _resized("lora_embedding_A", 4, 98)),
    "embedding B": ("bert", _lora(target_modules=["word_embeddings"]), _resized("lora_embedding_B", 4, 32)),
    "conv1d of gpt2": ("gpt2", _lora(target_modules=["c_attn"], fan_in_fan_out=True), _resized("lora_B.weight", 32, 4)),
    "convolution": ("vit", HEALTHY["convolution"][1], _resized("lora_A.weight", 4, 3, 6, 5)),
    "ia3": ("bert", HEALTHY["ia3"][1], _resized("key.ia3_l", 1, 32)),
    "ia3 missing": ("bert", HEALTHY["ia3"][1], _without("layer.0.attention.self.key.ia3_l")),
    "head of another width": (
        "bert",
        _lora(modules_to_save=["classifier", "pooler"]),
        _resized("classifier.weight", 3, 16),
    ),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_changed_weights_are_judged_as_peft_does(name: str, tmp_path: Path) -> None:
    family, config, edit = WEIGHTS[name]
    made = Made(tmp_path, family, config)
    made.change_weights(edit)
    assert made.loads() != (True, True, True)
    if name == "head of another width":
        assert made.check().verdict is Verdict.FAILED
        return
    result = _assert_agrees(made)
    assert "adapter" in str(headscope.inspect(str(made.folder), model_class=made.classifier, offline=True))
    assert _kinds(result)


def test_a_pattern_that_would_run_for_ever_is_not_run(tmp_path: Path) -> None:
    made = Made(tmp_path, "bert", _lora(modules_to_save=["classifier", "pooler"]))
    made.change_config(target_modules="(.*)*(.*)*(.*)*(.*)*x", rank_pattern={"(a+)+$": 4})
    assert made.check().verdict is Verdict.NOT_DETERMINED


def test_every_method_of_peft_is_judged_by_peft(tmp_path: Path) -> None:
    config = peft.LoHaConfig(task_type="SEQ_CLS", r=4, target_modules=["query"], modules_to_save=["classifier"])
    made = Made(tmp_path, "bert", config)
    assert _assert_agrees(made).verdict is Verdict.PASSED
    made.change_config(r=5)
    assert _kinds(_assert_agrees(made)) == {"shape"}


def test_without_peft_the_fit_is_not_determined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(tmp_path, "bert", _lora())
    assert made.check().verdict is Verdict.PASSED
    monkeypatch.setitem(sys.modules, "peft", None)
    result = made.check()
    assert result.verdict is Verdict.NOT_DETERMINED
    (gap,) = result.report.not_determined
    assert "(pip install peft)" in gap.reason
    assert {item.adapter for item in result.report.head.parameters if item.name.startswith("classifier")} == {"saved"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"peft_type": "XLORA"}, "X-LoRA"), ({"megatron_config": {"a": 1}, "megatron_core": "antigravity"}, "megatron")],
)
def test_what_peft_is_not_run_on_is_not_determined(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    made = Made(tmp_path, "bert", _lora())
    made.change_config(**changes)
    result = made.check()
    assert result.verdict is Verdict.NOT_DETERMINED
    assert reason in result.report.not_determined[0].reason
    assert "antigravity" not in sys.modules


def test_a_missing_weight_file_is_said_as_such(tmp_path: Path) -> None:
    made = Made(tmp_path, "bert", _lora())
    (made.folder / "adapter_model.safetensors").unlink()
    result = made.check()
    assert result.verdict is Verdict.FAILED
    found = next(item for item in result.findings if item.id == "HS109")
    assert "missing" in found.message
    assert "HS107" not in {item.id for item in result.findings}
    assert [gap.topic for gap in result.report.not_determined] == ["adapter weights"]


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64])
def test_a_head_of_whole_numbers_is_an_error(dtype: torch.dtype, tmp_path: Path) -> None:
    made = Made(tmp_path, "bert", _lora())
    end = "classifier.weight"
    made.change_weights(
        lambda state: {key: value.mul(100).to(dtype) if key.endswith(end) else value for key, value in state.items()}
    )
    loaded = made.load().base_model.model.classifier
    assert torch.equal(loaded.weight, loaded.weight.round())
    result = made.check()
    assert _kinds(result) == {"whole_numbers"}
    assert result.verdict is Verdict.FAILED


def test_a_report_made_without_peft_is_not_served_when_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADSCOPE_NO_CACHE", raising=False)
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path / "cache"))
    made = Made(tmp_path, "bert", _lora())
    options: dict[str, Any] = {"model_class": made.classifier, "num_labels": 3, "offline": True, "cache": True}
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "peft", None)
        without.setattr("headscope.core.source.storage.cache.package_version", lambda name: "")
        assert headscope.inspect(str(made.folder), **options).not_determined
    assert not headscope.inspect(str(made.folder), **options).not_determined
