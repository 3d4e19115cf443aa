"""Adapters against PEFT itself: what differs between two loads of one adapter is what nobody gave."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers.pytorch_utils import Conv1D

import headscope
from headscope.errors import HeadscopeError, NotFound, UsageError
from tests.edits import edit_json, edit_tensors
from tests.families import FAMILIES
from tests.verdicts.runs import RunCase, make_tokenizer

peft = pytest.importorskip("peft")

_TEXT = [family for family in FAMILIES.values() if not family.classifier.endswith("ImageClassification")]
_LABELS = 3


@dataclass(frozen=True)
class Saved:
    """A base model and an adapter on disk."""

    base: Path
    adapter: Path
    classifier: str

    @property
    def weights(self) -> Path:
        return self.adapter / "adapter_model.safetensors"


def _save(family: Any, folder: Path, *, classifier: str = "", task: str = "SEQ_CLS", **settings: Any) -> Saved:
    """A base checkpoint, and an adapter trained on a classifier made from it."""
    name = classifier or family.classifier
    family.build(family.base).save_pretrained(folder / "base")
    model = _classifier(name, folder / "base", seed=1)
    settings = {"target_modules": _linear_layers_of_the_base(model)} | settings
    wrapped = peft.get_peft_model(model, peft.LoraConfig(task_type=task, r=2, **settings))
    wrapped.save_pretrained(folder / "adapter")
    return Saved(folder / "base", folder / "adapter", name)


def _linear_layers_of_the_base(model: Any) -> list[str]:
    """The names that layers of the base model end with; in encoder-decoders, those of the head among them."""
    kinds = (torch.nn.Linear, Conv1D)
    base = model.base_model.named_modules()
    names = {path.rpartition(".")[2] for path, module in base if isinstance(module, kinds)}
    return sorted(names - {"dense"}) or ["dense"]


def _classifier(name: str, base: Path, seed: int, num_labels: int = _LABELS) -> Any:
    torch.manual_seed(seed)
    extra = {} if name.endswith("QuestionAnswering") else {"num_labels": num_labels}
    return getattr(transformers, name).from_pretrained(base, **extra)


def _with_words(count: int) -> Any:
    """A tokenizer with so many words more than the base model has."""
    tokenizer = make_tokenizer("english", "Bert")
    tokenizer.add_tokens([f"<new{at}>" for at in range(count)])
    return tokenizer


@pytest.mark.parametrize("is_trained", [False, True])
def test_an_adapter_with_words_more_than_its_base(tmp_path: Path, *, is_trained: bool) -> None:
    base, adapter = RunCase("base", "Bert").write(tmp_path / "base"), tmp_path / "adapter"
    tokenizer = _with_words(40)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(base)
    model.resize_token_embeddings(len(tokenizer))
    whole = {"modules_to_save": ["word_embeddings"]} if is_trained else {}
    config = peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query"], **whole)
    peft.get_peft_model(model, config).save_pretrained(adapter, save_embedding_layers=True)
    tokenizer.save_pretrained(adapter)
    peft.AutoPeftModelForSequenceClassification.from_pretrained(adapter)
    found = headscope.inspect(adapter)
    assert any(f"resize_token_embeddings({len(tokenizer)})" in note for note in found.notes)
    assert not found.weights.new and not found.weights.mismatched and not found.adapter.faults
    result = headscope.check(adapter, "inference", run=True, ignore=["HS502"])
    assert [item.id for item in result.findings if item.severity.value == "error"] == []
    assert result.trial is not None and result.trial.failed == 0
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (adapter / name).unlink()
    for load in (peft.AutoPeftModelForSequenceClassification.from_pretrained, partial(_on_base, base)):
        with pytest.raises(RuntimeError, match="size mismatch"):
            load(adapter)
    result = headscope.check(adapter, "inference", run=True, ignore=["HS502"])
    (misfit,) = (item for item in result.findings if item.id == "HS109")
    assert f"resize_token_embeddings({len(tokenizer)})" in misfit.remedy and "read" not in misfit.message
    kinds = {item.kind.value for item in headscope.inspect(adapter).adapter.faults}
    assert kinds == {"shape" if is_trained else "refused", "word_rows"}
    model = transformers.AutoModelForSequenceClassification.from_pretrained(base)
    model.resize_token_embeddings(len(tokenizer))
    peft.PeftModel.from_pretrained(model, adapter)


@pytest.mark.parametrize(
    ("stored", "classes", "words", "options"),
    [
        (3, 5, 0, ("num_labels=5", "ignore_mismatched_sizes=True")),
        (0, 3, 0, ("num_labels=3",)),
        (3, 3, 40, ()),
        (3, 5, 40, ("num_labels=5", "ignore_mismatched_sizes=True")),
        (3, 3, 4, ()),
        (3, 3, 0, None),
        (0, 2, 0, None),
    ],
)
def test_an_adapter_of_other_sizes_than_its_base_is_named_with_the_code_that_loads_it(
    stored: int, classes: int, words: int, options: tuple[str, ...] | None, tmp_path: Path
) -> None:
    cls, base, adapter = transformers.BertForSequenceClassification, tmp_path / "base", tmp_path / "adapter"
    RunCase("base", "Bert", classes=stored or 2).write(base)
    if not stored:
        transformers.BertModel.from_pretrained(base).save_pretrained(base)
    model, tokenizer = cls.from_pretrained(base, num_labels=classes, ignore_mismatched_sizes=True), None
    if words:
        tokenizer = _with_words(words)
        model.resize_token_embeddings(len(tokenizer))
    peft_model = peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query"]))
    peft_model.save_pretrained(adapter, save_embedding_layers=bool(words))
    if tokenizer is not None:
        tokenizer.save_pretrained(adapter)
    result = headscope.check(adapter, "inference", run=True, ignore=["HS502"])
    found = [item for item in result.findings if item.id == "HS109"]
    if options is None:
        _on_base(base, adapter)
        assert found == []
        return
    with pytest.raises(RuntimeError, match="size mismatch"):
        _on_base(base, adapter)
    assert [item.severity.value for item in found] == ["warning"] and "error" not in str(result.verdict)
    assert result.report is not None and result.report.adapter is not None
    assert result.report.adapter.load_options == options
    assert result.report.adapter.word_rows == (len(tokenizer) if tokenizer is not None else None)
    names: dict[str, Any] = {}
    exec(found[0].code, names)  # what people run
    inputs = torch.tensor([[2, 7, 8, 3]])
    assert torch.equal(names["model"].eval()(inputs).logits, peft_model.eval()(inputs).logits)


def _on_base(base: Path, adapter: Path) -> Any:
    return peft.PeftModel.from_pretrained(
        transformers.AutoModelForSequenceClassification.from_pretrained(base), adapter
    )


def _loaded_state(saved: Saved, seed: int) -> dict[str, torch.Tensor]:
    model = _classifier(saved.classifier, saved.base, seed)
    wrapped = peft.PeftModel.from_pretrained(model, saved.adapter)
    state = {}
    for name, tensor in wrapped.base_model.model.state_dict().items():
        plain = name.replace(".modules_to_save.default.", ".").replace(".base_layer.", ".")
        if ".original_module." not in name and ".lora_" not in plain:
            state[plain] = tensor.clone()
    return state


def _expected(saved: Saved, report: Any) -> set[str]:
    """The live parameters whose values differ between two loads of base and adapter: zeros are the same in both."""
    first, second = (_loaded_state(saved, seed) for seed in (11, 12))
    live = {item.name for item in report.head.parameters if item.live}
    return {name for name in live if name in first and not torch.equal(first[name], second[name])}


def _inspect(saved: Saved, **options: Any) -> Any:
    return headscope.inspect(str(saved.adapter), model_class=saved.classifier, offline=True, **options)


@pytest.mark.parametrize("family", _TEXT, ids=lambda family: family.name)
def test_what_is_not_carried_is_what_differs_between_two_loads(family: Any, tmp_path: Path) -> None:
    saved = _save(family, tmp_path)
    report = _inspect(saved, num_labels=_LABELS)
    weights = {name for name in report.adapter.not_carried if not _is_constant(name)}
    assert weights == _expected(saved, report)
    assert not report.adapter.promised


@pytest.mark.parametrize("family", _TEXT, ids=lambda family: family.name)
def test_the_setting_that_is_printed_saves_everything(family: Any, tmp_path: Path) -> None:
    lost = _inspect(_save(family, tmp_path / "before"), num_labels=_LABELS).adapter
    if not lost.not_carried:
        assert lost.modules_to_save == ()
        return
    saved = _save(family, tmp_path / "after", modules_to_save=list(lost.modules_to_save))
    report = _inspect(saved, num_labels=_LABELS)
    assert not report.adapter.not_carried
    assert _expected(saved, report) == set()


@pytest.mark.parametrize("family", ["Wav2Vec2", "ViT", "ConvNext", "Swin"])
def test_models_of_images_and_sounds_name_no_words(family: str, tmp_path: Path) -> None:
    task = "SequenceClassification" if family == "Wav2Vec2" else "ImageClassification"
    base = RunCase("base", family, task).write(tmp_path / "base")
    cls = getattr(transformers, f"{family}For{task}")
    layers = [name for name, module in cls.from_pretrained(base).named_modules() if isinstance(module, torch.nn.Linear)]
    config = peft.LoraConfig(r=2, target_modules=layers[:2], modules_to_save=["classifier"])
    peft.get_peft_model(cls.from_pretrained(base), config).save_pretrained(tmp_path / "adapter")
    assert headscope.inspect(tmp_path / "adapter").verdict.value == "complete"


@pytest.mark.parametrize(
    ("suffix", "task"), [("ForTokenClassification", "TOKEN_CLS"), ("ForQuestionAnswering", "QUESTION_ANS")]
)
def test_other_tasks(suffix: str, task: str, tmp_path: Path) -> None:
    saved = _save(FAMILIES["bert"], tmp_path, classifier=f"Bert{suffix}", task=task)
    report = headscope.inspect(str(saved.adapter))
    assert report.model.class_name == f"Bert{suffix}"
    assert report.model.num_labels == (2 if task == "QUESTION_ANS" else _LABELS)
    assert not report.adapter.not_carried
    assert _expected(saved, report) == set()


def _is_constant(name: str) -> bool:
    """Biases and norms start from constants, which are the same at every load, and still nobody's."""
    return name.endswith((".bias", "LayerNorm.weight")) or ".norm." in name or "layer_norm" in name


@pytest.fixture
def bert(tmp_path: Path) -> Saved:
    return _save(FAMILIES["bert"], tmp_path)


def test_the_class_count_is_that_of_the_adapters_head(bert: Saved) -> None:
    report = _inspect(bert)
    assert report.model.num_labels == _LABELS
    assert any(f"num_labels={_LABELS}" in note for note in report.notes)


def test_a_wrong_class_count_is_a_mismatch(bert: Saved) -> None:
    report = _inspect(bert, num_labels=5)
    assert [item.parameter for item in report.weights.mismatched] == ["classifier.bias", "classifier.weight"]
    assert set(report.adapter.not_carried) >= {"classifier.weight"}


def test_a_head_that_was_promised_and_is_not_there_makes_peft_fail(bert: Saved) -> None:
    edit_tensors(bert.weights, lambda state: {key: value for key, value in state.items() if "classifier" not in key})
    with pytest.raises(KeyError):
        _loaded_state(bert, 1)
    report = _inspect(bert, num_labels=_LABELS)
    assert report.adapter.promised == ("classifier",)
    assert "classifier.weight" in report.adapter.not_carried
    assert "PEFT cannot" in " ".join(str(report).split())


def test_the_file_is_believed_before_the_configuration(bert: Saved) -> None:
    edit_json(bert.adapter / "adapter_config.json", {"task_type": None, "modules_to_save": None})
    report = _inspect(bert, num_labels=_LABELS)
    assert {"classifier.weight", "classifier.bias"} <= set(report.adapter.saved)
    assert _expected(bert, report) == set(report.adapter.not_carried) == set()


def test_a_base_that_is_not_there_is_said_with_what_the_adapter_holds(bert: Saved) -> None:
    bert.base.rename(bert.base.with_name("moved"))
    with pytest.raises(NotFound, match=r"/base .*classifier\.bias") as caught:
        _inspect(bert)
    assert "--adapter" in caught.value.hint
    report = headscope.inspect(str(bert.base.with_name("moved")), adapter=str(bert.adapter))
    assert {item.adapter for item in report.head.parameters if item.name.startswith("classifier")} == {"saved"}


def test_an_adapter_that_is_none(bert: Saved) -> None:
    with pytest.raises(UsageError, match="is not a PEFT adapter"):
        headscope.inspect(str(bert.base), adapter=str(bert.base))


@pytest.mark.parametrize("value", [None, 3, "", ["a"], {}])
def test_a_base_that_is_no_name(bert: Saved, value: Any) -> None:
    edit_json(bert.adapter / "adapter_config.json", {"base_model_name_or_path": value})
    with pytest.raises(HeadscopeError, match="base model"):
        _inspect(bert)


def test_a_snapshot_keeps_the_adapter(bert: Saved, tmp_path: Path) -> None:
    file = tmp_path / "snapshot.json"
    headscope.api.snapshot(str(bert.adapter), str(file))
    once, again = _inspect(bert), headscope.inspect(str(file), model_class=bert.classifier)
    assert again.adapter == once.adapter
    assert again.head == once.head


def test_keys_with_the_name_of_the_adapter_are_those_without(tmp_path: Path) -> None:
    saved = _save(FAMILIES["bert"], tmp_path, init_lora_weights=False)
    stored = load_file(saved.weights)
    edit_tensors(
        saved.weights, lambda state: {key.replace(".lora_A.", ".lora_A.default."): state[key] for key in state}
    )
    loaded = peft.PeftModel.from_pretrained(_classifier(saved.classifier, saved.base, 11), saved.adapter).state_dict()
    names = [key for key in stored if key.endswith(".lora_A.weight")]
    assert names
    assert all(torch.equal(loaded[key.replace(".lora_A.", ".lora_A.default.")], stored[key]) for key in names)
    found = headscope.check(str(saved.adapter), "inference").findings
    assert [(item.severity.value, f"num_labels={_LABELS}" in item.code) for item in found if item.id == "HS109"] == [
        ("warning", True)  # of its classes alone: every tensor has its place
    ]


@pytest.mark.parametrize("rows", [[1, 2], {"word_embeddings": [3]}], ids=["list", "by name"])
def test_rows_of_embeddings_that_the_file_lacks_are_a_keyerror(rows: Any, tmp_path: Path) -> None:
    saved = _save(FAMILIES["bert"], tmp_path, trainable_token_indices=rows)
    assert "HS107" not in {item.id for item in headscope.check(str(saved.adapter), "inference").findings}
    edit_tensors(
        saved.weights, lambda state: {key: value for key, value in state.items() if "token_adapter" not in key}
    )
    with pytest.raises(KeyError) as raised:
        _loaded_state(saved, 11)
    found = next(item for item in headscope.check(str(saved.adapter), "inference").findings if item.id == "HS107")
    assert found.severity == "error"
    assert str(raised.value.args[0]).endswith(found.parameters[0])


_EVERY_LINEAR = ["query", "key", "value", "dense"]


@pytest.mark.parametrize(
    "config",
    [
        lambda: peft.LoraConfig(r=2, target_modules=_EVERY_LINEAR),
        lambda: peft.LoraConfig(r=2, target_modules=_EVERY_LINEAR, lora_bias=True),
        lambda: peft.LoraConfig(r=2, target_modules=_EVERY_LINEAR, use_dora=True),
        lambda: peft.IA3Config(target_modules=_EVERY_LINEAR, feedforward_modules=["dense"]),
        lambda: peft.IA3Config(target_modules=_EVERY_LINEAR, feedforward_modules=[]),
    ],
    ids=["lora", "lora-with-bias", "dora", "ia3-on-input", "ia3-on-output"],
)
def test_what_the_adapter_is_said_to_change_is_what_changes_when_it_is_merged(config: Any, tmp_path: Path) -> None:
    bert = FAMILIES["bert"]
    base = bert.build(bert.classifier, num_labels=_LABELS)
    with torch.no_grad():
        for parameter in base.parameters():
            parameter.add_(torch.rand_like(parameter))  # scaled zeros would look unchanged
    base.save_pretrained(tmp_path / "base")
    before = _classifier(bert.classifier, tmp_path / "base", seed=1).state_dict()
    wrapped = peft.get_peft_model(_classifier(bert.classifier, tmp_path / "base", seed=1), config())
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_" in name or "ia3_" in name:
                parameter.copy_(torch.rand_like(parameter) + 0.5)
    wrapped.save_pretrained(tmp_path / "adapter")
    merged = wrapped.merge_and_unload().state_dict()
    changed = {name for name, tensor in before.items() if not torch.equal(tensor, merged[name])}
    report = headscope.inspect(str(tmp_path / "adapter"), model_class=bert.classifier, offline=True)
    adapted = {item.name for item in report.weights.parameters if item.adapter == "adapted"}
    assert adapted == changed
    assert "bert.pooler.dense.weight" in adapted
    found = headscope.compare(
        str(tmp_path / "adapter"), str(tmp_path / "base"), values=True, model_class=bert.classifier, offline=True
    )
    assert {item.parameter: item.identical for item in found.values} == {
        item.name: None if item.name in changed else True for item in report.head.parameters
    }
    reasons = {item.reason for item in found.values if item.identical is None}
    assert all(f"adapter {tmp_path / 'adapter'}" in reason for reason in reasons)


@pytest.mark.parametrize("given", [{}, {"labels": ("no", "maybe", "yes")}], ids=["counted", "named"])
def test_a_forward_has_the_adapters_classes_even_when_the_report_is_cached(
    given: Any, bert: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADSCOPE_NO_CACHE")
    monkeypatch.setenv("HEADSCOPE_CACHE", str(tmp_path / "cache"))
    for _ in range(2):
        report = headscope.forward(str(bert.adapter), model_class=bert.classifier, cache=True, offline=True, **given)
        assert (report.logits_shape, report.model.num_labels) == (("batch", _LABELS), _LABELS)
