"""What a model in memory holds now: the loader, PEFT and the stored bytes say it, and never the name alone."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import nn

import headscope
from headscope.checks.facts import CheckResult
from headscope.core.facts.verdict import Verdict
from headscope.facts import Finding, Severity
from tests.edits import edit_json
from tests.families import FAMILIES
from tests.saving import save_safetensors, save_torch_zip, skip_without_native_adapters

BERT = transformers.BertForSequenceClassification
NAMED = {"id2label": {0: "a", 1: "b", 2: "c"}, "label2id": {"a": 0, "b": 1, "c": 2}}
PASSED, FAILED, OPEN = Verdict.PASSED, Verdict.FAILED, Verdict.NOT_DETERMINED


def spread(model: nn.Module) -> None:
    """Every parameter away from its initialization, as training leaves it."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for item in model.parameters():
            item.add_(torch.randn(item.shape, generator=generator) * 0.1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("whole")
    model = FAMILIES["bert"].build("BertForSequenceClassification", **NAMED)
    spread(model)
    model.save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, whole: Path) -> Path:
    place = tmp_path_factory.mktemp("base")
    BERT.from_pretrained(whole).bert.save_pretrained(place)
    return place


def findings(model: Any, profile: str = "inference", **options: Any) -> dict[str, Finding]:
    return {item.id: item for item in headscope.check(model, profile, **options).findings}


def statuses(result: CheckResult) -> dict[str, str]:
    return {item.name: item.status.value for item in result.report.head.parameters if item.live}


def replaced(model: Any) -> None:
    model.classifier = nn.Linear(32, 3)


def longer(model: Any) -> None:
    model.classifier = nn.Sequential(nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 3))


def other_parameter(model: Any) -> None:
    model.classifier.weight = nn.Parameter(torch.randn(3, 32))


def reset(model: Any) -> None:
    model.classifier.reset_parameters()


def drawn(model: Any) -> None:
    nn.init.normal_(model.classifier.weight)


def pooler(model: Any) -> None:
    model.bert.pooler = type(model.bert.pooler)(model.config)


def layer(model: Any) -> None:
    model.bert.encoder.layer[0] = type(model.bert.encoder.layer[0])(model.config)


def resized(model: Any) -> None:
    model.resize_token_embeddings(150)


def on_meta(model: Any) -> None:
    model.to("meta")


def guarded(model: Any) -> None:
    """Transformers' own initialization leaves what the loader filled alone: nothing changes."""
    model.init_weights()


EDITS: list[tuple[Callable[[Any], None], str | None]] = [
    (replaced, "new"),
    (longer, "new"),
    (other_parameter, "new"),
    (reset, "changed"),
    (drawn, "changed"),
    (pooler, "new"),
    (layer, None),
    (resized, None),
    (on_meta, "unknown"),
    (guarded, "loaded"),
]


@pytest.mark.parametrize("with_info", [False, True])
@pytest.mark.parametrize(("edit", "status"), EDITS, ids=[row[0].__name__ for row in EDITS])
def test_what_was_replaced_after_the_load_is_not_called_loaded(
    edit: Callable[[Any], None], status: str | None, with_info: bool, whole: Path
) -> None:
    model, info = BERT.from_pretrained(whole, output_loading_info=True)
    assert not info["missing_keys"]
    edit(model)
    stored = load_file(whole / "model.safetensors")
    held = {name: item for name, item in model.named_parameters() if not item.is_meta}
    intact = {name for name in stored if name in held and torch.equal(held[name], stored[name])}
    options = {"loading_info": info} if with_info else {}
    result = headscope.check(model, "inference", **options)
    report = headscope.inspect(model, **options)
    told = statuses(result)
    if not with_info:
        assert {name for name, item in told.items() if item == "loaded"} == intact & set(told)
    changed = [name for name in told if name not in intact]
    if intact == set(stored) == set(held):
        assert (result.verdict, result.findings) == (PASSED, ())
        assert "Head fully loaded" in str(report)
        return
    if changed and status != "changed":
        assert {told[name] for name in changed} == {status}
        assert result.verdict is not PASSED
    elif not with_info and changed:
        assert {told[name] for name in changed} == {status}
        # A draw that is wide enough shows in its values too.
        assert [item.id for item in result.findings if item.id != "HS502"] == ["HS110"]
    if not (with_info and status == "changed"):
        assert "Head fully loaded" not in str(report) or not changed
    if edit in (layer, resized) and not (with_info and edit is resized):
        assert result.verdict is (FAILED if edit is layer else OPEN)


def test_a_copied_model_is_compared_with_its_bytes_and_else_not_known(whole: Path, tmp_path: Path) -> None:
    model, info = BERT.from_pretrained(whole, output_loading_info=True)
    made = copy.deepcopy(model)
    assert not any(getattr(item, "_is_hf_initialized", False) for item in made.parameters())
    assert set(statuses(headscope.check(made, "inference")).values()) == {"loaded"}
    assert headscope.check(made, "inference").verdict is PASSED
    assert headscope.check(made, "inference", loading_info=info).verdict is OPEN
    assert set(statuses(headscope.check(made, "inference", loading_info=info)).values()) == {"unknown"}


@pytest.mark.parametrize("name", sorted(FAMILIES))
@pytest.mark.parametrize("save", [save_safetensors, save_torch_zip])
def test_a_model_that_was_just_loaded_holds_what_is_stored(
    name: str, save: Callable[..., None], tmp_path: Path
) -> None:
    family = FAMILIES[name]
    made = family.build(family.classifier, **family.pad_token)
    spread(made)
    save(made, tmp_path)
    for dtype in (torch.float32, torch.bfloat16):
        model, info = getattr(transformers, family.classifier).from_pretrained(
            tmp_path, dtype=dtype, output_loading_info=True
        )
        assert not info["missing_keys"]
        report = headscope.inspect(model.float())
        found = {item.status.value for item in report.weights.parameters if not item.is_buffer}
        assert found <= {"loaded", "tied"}, found
        assert report.weights.new == ()


def test_a_head_that_was_new_may_have_been_trained_since(base: Path, tmp_path: Path) -> None:
    model = BERT.from_pretrained(base, **NAMED)
    assert not model.classifier.bias.any()
    fresh = headscope.check(model, "inference")
    assert fresh.verdict is FAILED
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    model(input_ids=torch.tensor([[5, 6, 7]]), labels=torch.tensor([1])).loss.backward()
    optimizer.step()
    assert model.classifier.bias.any()
    trained = headscope.check(model, "inference")
    assert trained.verdict is OPEN
    assert all(item.severity is not Severity.ERROR for item in trained.findings)
    model.save_pretrained(tmp_path / "trained")
    assert headscope.check(model, "inference", loaded_from=str(tmp_path / "trained")).verdict is PASSED
    assert headscope.check(str(tmp_path / "trained"), "inference").verdict is PASSED


def test_what_a_load_told_is_a_verdict_and_has_findings(base: Path) -> None:
    model, info = BERT.from_pretrained(base, output_loading_info=True, **NAMED)
    report = headscope.inspect(model, loading_info=info)
    assert set(report.weights.new) == set(info["missing_keys"])
    assert str(report).startswith("Head partly new")
    assert "HS103" in {item.id for item in report.findings}


def adapter_of(base: Path, place: Path, **settings: Any) -> Path:
    peft = pytest.importorskip("peft")
    made = peft.get_peft_model(BERT.from_pretrained(base, **NAMED), peft.LoraConfig(r=2, **settings))
    spread(made)
    made.save_pretrained(place)
    return place


def through_peft(base: Path, adapter: Path) -> Any:
    peft = pytest.importorskip("peft")
    return peft.PeftModel.from_pretrained(BERT.from_pretrained(base, **NAMED), adapter)


def through_transformers(base: Path, adapter: Path) -> Any:
    model = BERT.from_pretrained(base, **NAMED)
    model.load_adapter(adapter)
    return model


@pytest.mark.parametrize("load", [through_peft, through_transformers])
def test_a_classifier_that_an_adapter_gave_is_not_called_random(load: Any, base: Path, tmp_path: Path) -> None:
    place = adapter_of(base, tmp_path, task_type="SEQ_CLS", target_modules=["query"])
    model = load(base, place)
    stored = load_file(place / "adapter_model.safetensors")["base_model.model.classifier.weight"]
    held = next(item for name, item in model.named_parameters() if "modules_to_save.default.weight" in name)
    assert torch.equal(held, stored)
    for profile in ("training", "inference"):
        found = findings(model, profile)
        assert not {"HS101", "HS102", "HS103", "HS501"} & set(found), found
        assert "HS110" in found
    assert headscope.check(model, "inference").verdict is PASSED


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize(
    "settings",
    [{}, {"use_dora": True}, {"bias": "all"}, {"trainable_token_indices": [1, 2]}, {"modules_to_save": ["classifier"]}],
    ids=str,
)
def test_an_adapter_that_changes_nothing_yet_leaves_the_statuses(
    settings: dict[str, Any], native: bool, whole: Path
) -> None:
    peft = pytest.importorskip("peft")
    if native:
        skip_without_native_adapters()
    targets = ["query"] if "modules_to_save" in settings else ["query", "classifier"]
    config = peft.LoraConfig(target_modules=targets, **settings)
    model = BERT.from_pretrained(whole).eval()
    ids = torch.tensor([[5, 6, 7, 8]])
    before = model(ids).logits
    if native:
        model.add_adapter(config)
        wrapped = model.eval()
    else:
        wrapped = peft.get_peft_model(model, config).eval()
    assert torch.allclose(wrapped(ids).logits, before, atol=1e-5)
    result = headscope.check(wrapped, "inference")
    assert set(statuses(result).values()) == {"loaded"}
    assert result.verdict is PASSED, result


def test_a_head_replaced_below_an_adapter_is_new(base: Path, tmp_path: Path) -> None:
    model = through_peft(base, adapter_of(base, tmp_path, task_type="SEQ_CLS", target_modules=["query"]))
    longer(model.base_model.model)
    result = headscope.check(model, "inference")
    assert result.verdict in (OPEN, FAILED)  # failed if the numbers are enough to show that they are an untouched draw
    assert {item for name, item in statuses(result).items() if "classifier" in name} == {"new"}


def test_the_class_that_the_loader_would_take_is_examined(whole: Path, tmp_path: Path) -> None:
    BERT.from_pretrained(whole).save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", {"model_type": "roberta"})
    model, info = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    report = headscope.inspect(str(tmp_path))
    assert report.model.class_name == type(model).__name__
    assert set(report.weights.new) == set(info["missing_keys"])
    assert any("contradicts itself" in note for note in report.notes)
    assert headscope.check(str(tmp_path), "inference").verdict is FAILED
    own = headscope.inspect(str(tmp_path), model_class="BertForSequenceClassification")
    assert own.weights.new == ()


def test_layers_that_the_model_does_not_have_are_found(whole: Path, tmp_path: Path) -> None:
    BERT.from_pretrained(whole).save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", {"num_hidden_layers": 1})
    _, info = BERT.from_pretrained(tmp_path, output_loading_info=True)
    found = findings(tmp_path)["HS111"]
    assert found.severity is Severity.ERROR
    assert set(found.parameters) == set(info["unexpected_keys"])
    assert findings(tmp_path, "training")["HS111"].severity is Severity.WARNING
    assert "HS111" not in findings(whole)


class MeanPool(nn.Module):
    """A pooler that reads padding, in the place of one that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(32, 32)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.dense(hidden.mean(1)))


def padded_difference(model: Any) -> float:
    """How much a score moves when a text is padded on the right, with its mask."""
    short, padded = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[5, 6, 7, 8, 0, 0]])
    with torch.no_grad():
        alone = model(short, attention_mask=(short != 0).long()).logits
        return float((alone - model(padded, attention_mask=(padded != 0).long()).logits).abs().max())


def effects_on(model: Any) -> dict[str, bool | None]:
    head = headscope.inspect(model, prove=True).head
    return {effect.side: effect.changes for effect in head.verification.padding}


def test_padding_is_claimed_only_of_the_modules_of_the_class(whole: Path) -> None:
    model = BERT.from_pretrained(whole).eval()
    assert padded_difference(model) < 1e-5
    assert effects_on(model)["right"] is False
    model.bert.pooler = MeanPool()
    assert padded_difference(model) > 1e-4
    assert effects_on(model) == {"any": None}


def test_padding_is_claimed_below_an_adapter(whole: Path) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"], use_dora=True, trainable_token_indices=[1])
    model = peft.get_peft_model(BERT.from_pretrained(whole), config).eval()
    assert padded_difference(model) < 1e-5
    assert effects_on(model)["right"] is False


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_weights_that_hide_the_head_do_not_contradict_its_pooling(value: float, whole: Path) -> None:
    model = BERT.from_pretrained(whole)
    expected = headscope.inspect(model).head
    nn.init.constant_(model.classifier.weight, value)
    result = headscope.check(model, "inference")
    assert result.report.head.pooling == expected.pooling
    assert result.report.head.formula == expected.formula
    assert result.not_determined == ()
    assert "HS501" in {item.id for item in result.findings}


def test_a_new_batch_norm_is_not_called_random(tmp_path: Path) -> None:
    model = transformers.LevitForImageClassification(transformers.LevitConfig(**NAMED))
    model.levit.save_pretrained(tmp_path)
    found = findings(tmp_path, model_class="LevitForImageClassification", num_labels=3)
    message = next(found[rule].message for rule in ("HS102", "HS103") if rule in found)
    new, _, beside = message.partition("At their default values:")
    assert "running_mean" not in new
    assert "running_mean" in beside


@pytest.mark.parametrize("setting", ["attention_bias", "mlp_bias"])
def test_biases_that_the_configuration_leaves_out_are_an_error_and_change_the_scores(
    tmp_path: Path, setting: str
) -> None:
    cls = transformers.LlamaForSequenceClassification
    model = FAMILIES["llama"].build(cls.__name__, attention_bias=True, mlp_bias=True, pad_token_id=0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(tmp_path)
    assert "HS111" not in findings(tmp_path)
    edit_json(tmp_path / "config.json", {setting: False})
    other, info = cls.from_pretrained(tmp_path, output_loading_info=True)
    ids = torch.randint(1, 60, (2, 7))
    assert not torch.allclose(other.eval()(input_ids=ids).logits, model(input_ids=ids).logits)
    found = findings(tmp_path)["HS111"]
    assert found.severity is Severity.ERROR
    assert set(found.parameters) == set(info["unexpected_keys"])


def test_a_mask_token_and_another_head_left_unused_are_not_reported(tmp_path: Path) -> None:
    for name, stored, cls in (
        ("vit", "ViTForMaskedImageModeling", "ViTForImageClassification"),
        ("bert", "BertForPreTraining", "BertForTokenClassification"),
    ):
        FAMILIES[name].build(stored).save_pretrained(tmp_path / name)
        result = headscope.check(str(tmp_path / name), "inference", model_class=cls)
        assert result.report.weights.unused
        assert "HS111" not in {item.id for item in result.findings}
