"""Tables of loads and saves that were tampered with, and of healthy ones, over families, formats and dtypes.

Every load is made by Transformers or PEFT. Whether a case is healthy is told by `torch.equal` on the state dicts that
these libraries load, not by headscope.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    MixtralConfig,
    MixtralForSequenceClassification,
    ResNetConfig,
    ResNetForImageClassification,
    TrainerControl,
    TrainerState,
    Wav2Vec2Config,
    Wav2Vec2ForPreTraining,
    Wav2Vec2ForSequenceClassification,
)

import headscope
from headscope.checkpoints.reading import read_manifest
from headscope.examination.base.request import Request
from headscope.examination.evidence.base_numbers import live_base_numbers
from headscope.examination.evidence.stored_tensors import open_stored_files
from headscope.examination.memory.live_tensors import tensors_of
from headscope.examination.stored.pairing import StoredPairing
from headscope.examination.stored.tensor_checks import IN_A_PICKLE, against_saved, checked, open_gaps, unchecked
from headscope.facts.results.check import Verdict
from headscope.facts.results.verification import TensorStatus
from headscope.facts.stored.location import Location
from headscope.facts.stored.sentence import SentencePipeline
from headscope.facts.stored.weights import DroppedGroup
from headscope.model.classes.unexpected_keys import describe_unused, find_dropped
from tests.edits import edit_json, edit_tensors
from tests.families import FAMILIES
from tests.verification.tiny import TINY, adapted, ids

KINDS = ("bert", "roberta", "distilbert", "gpt2", "t5", "llama", "deberta-v2", "modernbert", "vit")


def lost_in_a_load(folder: Path, model: Any) -> set[str]:
    """The names under which Transformers loads from a folder other numbers than a live model has, or random ones."""
    again, info = type(model).from_pretrained(
        folder, dtype=model.dtype, ignore_mismatched_sizes=True, output_loading_info=True
    )
    one, other = model.state_dict(), again.state_dict()
    differing = {name for name in one.keys() & other.keys() if not torch.equal(one[name], other[name])}
    drawn = set(info["missing_keys"]) | {name for name, *_ in info["mismatched_keys"]}
    return differing | drawn | (one.keys() ^ other.keys())


def on_save(model: Any, folder: Path, verify_saves: Any = True) -> Any:
    """What the callback says of a save: it saw the model before, and the checkpoint is the folder given."""
    callback = headscope.HeadscopeCallback(on_fail="warn", verify_saves=verify_saves, ignore=("HS1", "HS2", "HS6"))
    arguments = SimpleNamespace(output_dir=folder.parent)
    callback.on_train_begin(arguments, TrainerState(), TrainerControl(), model=model)  # type: ignore[arg-type]
    callback.on_save(arguments, TrainerState(global_step=1), TrainerControl(), model=model)  # type: ignore[arg-type]
    return callback.saves[-1]


# Healthy loads: each family in each dtype; tests/verification/test_loaded_models.py has the formats.

SINGLE, BRAIN, HALF, DOUBLE = torch.float32, torch.bfloat16, torch.float16, torch.float64
CASTS = [(name, SINGLE, loaded) for name in KINDS for loaded in (BRAIN, HALF)]
CASTS += [
    (name, stored, loaded)
    for name in ("bert", "llama")
    for stored in (BRAIN, HALF, DOUBLE)
    for loaded in (SINGLE, BRAIN)
]


@pytest.mark.parametrize(("name", "stored", "loaded"), CASTS, ids=str)
def test_a_load_in_another_dtype_passes_whole(
    name: str, stored: torch.dtype, loaded: torch.dtype, tmp_path: Path
) -> None:
    family = FAMILIES[name]
    family.build(family.classifier).to(stored).save_pretrained(tmp_path)
    model = getattr(transformers, family.classifier).from_pretrained(tmp_path, dtype=loaded)
    result = headscope.verify(model, tmp_path)
    assert (result.verdict, ids(result)) == (Verdict.PASSED, []), str(result)
    assert result.scope.compared == result.scope.tensors
    assert not result.scope.head_only
    own = {item for item, _ in (*model.named_parameters(), *model.named_buffers())}
    assert own <= {item.name for item in result.tensors}
    if (stored.itemsize, loaded) == (2, SINGLE):  # longer numbers hold the shorter ones
        assert {item.max_error for item in result.tensors if item.status is TensorStatus.CAST} == {0.0}


@pytest.mark.parametrize("name", KINDS)
def test_a_checkpoint_of_another_class_drops_nothing_that_the_base_needs(name: str, tmp_path: Path) -> None:
    """The heads of pretraining, a pooler and a decoder are left out in every such load: no layer is missing."""
    family = FAMILIES[name]
    for source in (family.base, family.language_model):
        if source is None:
            continue
        family.build(source).save_pretrained(tmp_path / source)
        for target in (family.classifier, family.base):
            model = getattr(transformers, target).from_pretrained(tmp_path / source)
            result = headscope.verify(model, tmp_path / source)
            assert not {"HS701", "HS703", "HS705", "HS707"} & set(ids(result)), str(result)


def test_speech_is_compared_whole_and_what_only_pretraining_needs_is_not_missed(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 37}
    convolutions = {"conv_dim": (8, 8), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_feat_extract_layers": 2}
    others = {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "codevector_dim": 8}
    config = Wav2Vec2Config(**sizes, **convolutions, **others, proj_codevector_dim=8, classifier_proj_size=8)
    Wav2Vec2ForSequenceClassification(config).save_pretrained(tmp_path / "own")
    model = Wav2Vec2ForSequenceClassification.from_pretrained(tmp_path / "own")
    for result in (headscope.verify(model, tmp_path / "own"), headscope.verify_save(model, tmp_path / "own")):
        assert (result.verdict, ids(result)) == (Verdict.PASSED, []), str(result)
        assert result.scope.compared == result.scope.tensors
    with torch.no_grad():
        model.wav2vec2.encoder.layers[1].attention.k_proj.weight.zero_()
    assert ids(headscope.verify(model, tmp_path / "own")) == ["HS705"]
    Wav2Vec2ForPreTraining(config).save_pretrained(tmp_path / "pretrained")
    model = Wav2Vec2ForSequenceClassification.from_pretrained(tmp_path / "pretrained")
    assert ids(headscope.verify(model, tmp_path / "pretrained")) == ["HS702"]


def test_a_model_without_a_head_is_compared_whole(tmp_path: Path) -> None:
    BertModel(BertConfig(**TINY)).save_pretrained(tmp_path)
    model = BertModel.from_pretrained(tmp_path)
    for head in (False, True):
        result = headscope.verify(model, tmp_path, head=head)
        assert result.verdict is Verdict.PASSED
        assert not any(item.is_head for item in result.tensors)
        assert result.scope.compared == result.scope.tensors == 41
        assert bool(result.notes) == head
        assert not result.scope.head_only
    with torch.no_grad():
        model.embeddings.word_embeddings.weight.normal_()
    result = headscope.verify(model, tmp_path)
    assert ids(result) == ["HS705"]
    assert "outside" not in result.findings[0].message


# Tampered loads.


def redraw(name: str) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        model.get_parameter(name).normal_()

    return change


def zero_a_layer(model: Any) -> None:
    for item in model.bert.encoder.layer[1].parameters():
        item.zero_()


def remove_a_layer(model: Any) -> None:
    del model.bert.encoder.layer[1]


def remove_a_layer_and_say_so(model: Any) -> None:
    remove_a_layer(model)
    model.config.num_hidden_layers = 1


def swap_layers(model: Any) -> None:
    layers = model.bert.encoder.layer
    layers[0], layers[1] = layers[1], layers[0]


def swap_heads(model: Any) -> None:
    weight = model.bert.encoder.layer[0].attention.self.query.weight
    weight.copy_(torch.cat([weight[16:], weight[:16]]))


def transpose(model: Any) -> None:
    model.bert.encoder.layer[0].attention.self.key.weight.t_()


def through(dtype: torch.dtype) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        model.to(dtype).to(torch.float32)

    return change


def one_number(model: Any) -> None:
    model.bert.embeddings.LayerNorm.bias[3] += 1e-6


def not_a_number(model: Any) -> None:
    model.bert.encoder.layer[0].output.dense.weight[0, 0] = float("nan")


def infinite(model: Any) -> None:
    model.bert.encoder.layer[0].output.dense.weight[0, 0] = float("inf")


def more_classes(model: Any) -> None:
    model.classifier = nn.Linear(32, 5)


def fewer_classes(model: Any) -> None:
    model.classifier = nn.Linear(32, 1)
    model.config.num_labels = 1


def one_more_layer(model: Any) -> None:
    model.bert.encoder.layer.append(deepcopy(model.bert.encoder.layer[0]))


def no_encoder(model: Any) -> None:
    model.bert.encoder.layer = nn.ModuleList()


def empty_classifier(model: Any) -> None:
    model.classifier.weight = nn.Parameter(torch.empty(0))


def permuted_rows(model: Any) -> None:
    model.classifier.weight.copy_(model.classifier.weight.flip(0))


LOADS: dict[str, tuple[Callable[[Any], None], set[str]]] = {
    "word embeddings redrawn": (redraw("bert.embeddings.word_embeddings.weight"), {"HS705"}),
    "position embeddings redrawn": (redraw("bert.embeddings.position_embeddings.weight"), {"HS705"}),
    "a query redrawn": (redraw("bert.encoder.layer.0.attention.self.query.weight"), {"HS705"}),
    "a bias redrawn": (redraw("bert.encoder.layer.1.output.dense.bias"), {"HS705"}),
    "the pooler redrawn": (redraw("bert.pooler.dense.weight"), {"HS701"}),
    "the classifier redrawn": (redraw("classifier.weight"), {"HS701"}),
    "a layer zeroed": (zero_a_layer, {"HS705"}),
    "a layer removed": (remove_a_layer, {"HS707"}),
    "a layer removed, config too": (remove_a_layer_and_say_so, {"HS707"}),
    "all layers removed": (no_encoder, {"HS707"}),
    "layers swapped": (swap_layers, {"HS705"}),
    "attention heads swapped": (swap_heads, {"HS705"}),
    "transposed": (transpose, {"HS705"}),
    "through bfloat16": (through(torch.bfloat16), {"HS701", "HS705"}),
    "through float16": (through(torch.float16), {"HS701", "HS705"}),
    "one number of the base": (one_number, {"HS705"}),
    "NaN in the base": (not_a_number, {"HS705"}),
    "infinity in the base": (infinite, {"HS705"}),
    "five classes": (more_classes, {"HS701"}),
    "one class": (fewer_classes, {"HS701"}),
    "a layer more than the file": (one_more_layer, {"HS706"}),
    "rows of the classifier permuted": (permuted_rows, {"HS701"}),
    "one number of the head": (lambda model: model.classifier.weight[0, 0].add_(1e-6), {"HS701"}),
    "the pooler transposed": (lambda model: model.bert.pooler.dense.weight.t_(), {"HS701"}),
    "infinity in the head": (lambda model: model.classifier.bias[1].fill_(float("inf")), {"HS701", "HS708"}),
    "NaN in the head": (lambda model: model.classifier.bias[1].fill_(float("nan")), {"HS704", "HS708"}),
    "the classifier zeroed": (lambda model: model.classifier.weight.zero_(), {"HS704", "HS708"}),
    "the classifier emptied": (empty_classifier, {"HS704"}),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tampered") / "bert"
    torch.manual_seed(3)
    BertForSequenceClassification(BertConfig(**TINY)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("case", LOADS)
def test_a_load_that_was_tampered_with_fails(case: str, saved: Path) -> None:
    change, rules = LOADS[case]
    model = BertForSequenceClassification.from_pretrained(saved)
    with torch.no_grad():
        change(model)
    result = headscope.verify(model, saved)
    assert result.verdict is Verdict.FAILED, str(result)
    assert set(ids(result)) == rules, str(result)
    healthy = (TensorStatus.EQUAL, TensorStatus.COMPUTED)
    assert {item.name for item in result.tensors if item.status not in healthy} == lost_in_a_load(saved, model)


def test_what_went_through_shorter_numbers_is_named(saved: Path) -> None:
    model = BertForSequenceClassification.from_pretrained(saved).bfloat16().float()
    result = headscope.verify(model, saved)
    assert "rounded to bfloat16" in result.findings[0].message
    assert TensorStatus.CAST not in {item.status for item in result.tensors}


@pytest.mark.parametrize("keep", [torch.float32, torch.bfloat16], ids=str)
def test_another_class_count_is_a_finding_in_every_dtype(saved: Path, keep: torch.dtype) -> None:
    model = BertForSequenceClassification.from_pretrained(saved, num_labels=7, ignore_mismatched_sizes=True, dtype=keep)
    result = headscope.verify(model, saved)
    assert ids(result) == ["HS701"]
    assert set(result.findings[0].parameters) == {"classifier.weight", "classifier.bias"}


def test_fewer_layers_than_the_file_fail_in_every_family(tmp_path: Path) -> None:
    for name, field in (("llama", "num_hidden_layers"), ("gpt2", "n_layer"), ("t5", "num_layers")):
        family = FAMILIES[name]
        family.build(family.classifier).save_pretrained(tmp_path / name)
        model = getattr(transformers, family.classifier).from_pretrained(tmp_path / name, **{field: 1})
        result = headscope.verify(model, tmp_path / name)
        assert ids(result) == ["HS707"], (name, str(result))


def test_a_bias_that_the_configuration_switches_off_is_dropped(tmp_path: Path) -> None:
    family = FAMILIES["llama"]
    family.build(family.classifier, attention_bias=True).save_pretrained(tmp_path)
    model, info = getattr(transformers, family.classifier).from_pretrained(
        tmp_path, attention_bias=False, output_loading_info=True
    )
    result = headscope.verify(model, tmp_path)
    assert ids(result) == ["HS707"]
    assert set(result.findings[0].parameters) == set(info["unexpected_keys"])


def test_running_statistics_that_changed_are_seen(tmp_path: Path) -> None:
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], num_labels=3)
    ResNetForImageClassification(config).save_pretrained(tmp_path / "r")
    model = ResNetForImageClassification.from_pretrained(tmp_path / "r")
    assert headscope.verify(model, tmp_path / "r").verdict is Verdict.PASSED
    assert headscope.verify_save(model, tmp_path / "r").verdict is Verdict.PASSED
    model.train()(pixel_values=torch.randn(2, 3, 32, 32))
    assert ids(headscope.verify(model, tmp_path / "r")) == ["HS705"]
    assert "HS719" in ids(headscope.verify_save(model, tmp_path / "r"))


def test_a_tie_that_code_broke_is_seen(tmp_path: Path) -> None:
    family = FAMILIES["t5"]
    family.build(family.classifier).save_pretrained(tmp_path)
    model: Any = getattr(transformers, family.classifier).from_pretrained(tmp_path)
    encoder = model.transformer.encoder
    encoder.embed_tokens.weight = nn.Parameter(encoder.embed_tokens.weight + 1)
    assert headscope.verify(model, tmp_path).verdict is Verdict.FAILED
    assert headscope.verify_save(model, tmp_path).verdict is Verdict.FAILED


def test_wrappers_change_nothing(saved: Path) -> None:
    model = BertForSequenceClassification.from_pretrained(saved)
    for wrapped in (torch.compile(model), nn.DataParallel(model)):
        for look in (headscope.verify, headscope.verify_save):
            result = look(wrapped, saved)
            assert (result.verdict, ids(result)) == (Verdict.PASSED, []), str(result)
    with torch.no_grad():
        swap_layers(model)
    for wrapped in (torch.compile(model), nn.DataParallel(model)):
        assert ids(headscope.verify(wrapped, saved)) == ["HS705"]


# Saves: what is in the folder, against the live model, by `verify_save` and by the callback.

Change = Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]


def without(part: str) -> Change:
    return lambda state: {key: item for key, item in state.items() if part not in key}


def behind(prefix: str) -> Change:
    return lambda state: {prefix + key: item for key, item in state.items()}


def put(name: str, number: float) -> Change:
    return lambda state: state | {name: torch.full_like(state[name], number)}


def as_name(old: str, new: str) -> Change:
    return lambda state: {key.replace(old, new): item for key, item in state.items()}


def swapped(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    names = {"layer.0.": "layer.1.", "layer.1.": "layer.0."}
    return {next((key.replace(a, b) for a, b in names.items() if a in key), key): item for key, item in state.items()}


LAYER = "bert.encoder.layer.1."
SAVES: dict[str, tuple[Change, set[str]]] = {
    "without a layer": (without(LAYER), {"HS719"}),
    "without the embeddings": (without("bert.embeddings."), {"HS719"}),
    "without one bias": (without(f"{LAYER}output.dense.bias"), {"HS719"}),
    "without the pooler": (without("pooler"), {"HS711"}),
    "without the head": (without("classifier"), {"HS711"}),
    "without anything of the base": (lambda state: {k: v for k, v in state.items() if k[0] == "c"}, {"HS711", "HS719"}),
    "a layer under another name": (as_name("encoder.layer.1.", "encoder.blocks.1."), {"HS712"}),
    "as it was written": (lambda state: state, set()),
    "a layer zeroed": (put(f"{LAYER}output.dense.weight", 0), {"HS719"}),
    "a norm changed": (put(f"{LAYER}output.LayerNorm.weight", 2), {"HS719"}),
    "NaN in the base": (put(f"{LAYER}output.dense.weight", float("nan")), {"HS719"}),
    "layers swapped": (swapped, {"HS719"}),
    "embeddings cut": (
        lambda state: state | {"bert.embeddings.word_embeddings.weight": torch.zeros(98, 32)}, {"HS719"},
    ),
    "the classifier zeroed": (put("classifier.weight", 0), {"HS713"}),
    "without one bias of the head": (without("classifier.bias"), {"HS711"}),
    "one weight of the head renamed": (as_name("classifier.weight", "score.weight"), {"HS712"}),
    "three classes": (
        lambda state: state | {"classifier.weight": torch.zeros(3, 32), "classifier.bias": torch.zeros(3)}, {"HS713"},
    ),
    "placeholders of ZeRO-3": (
        lambda state: state | dict.fromkeys(("classifier.weight", "classifier.bias"), torch.empty(0)), {"HS717"},
    ),
    "older names that the loader knows": (
        lambda state: as_name("LayerNorm.weight", "LayerNorm.gamma")(as_name("Norm.bias", "Norm.beta")(state)), set(),
    ),
    "behind model.": (behind("model."), {"HS712"}),
    "behind module.": (behind("module."), {"HS712"}),
    "behind _orig_mod.": (behind("_orig_mod."), {"HS712"}),
    "behind 0.auto_model.": (behind("0.auto_model."), {"HS712"}),
}  # fmt: skip


@pytest.mark.parametrize("saved_as", ["safetensors", "bin"])
@pytest.mark.parametrize("case", SAVES)
def test_a_save_that_was_tampered_with_fails(case: str, saved_as: str, saved: Path, tmp_path: Path) -> None:
    change, rules = SAVES[case]
    model = BertForSequenceClassification.from_pretrained(saved)
    folder = tmp_path / "checkpoint-1"
    model.save_pretrained(folder)
    edit_tensors(folder / "model.safetensors", change)
    if saved_as == "bin":
        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    result, seen = headscope.verify_save(model, folder), on_save(model, folder)
    lost = lost_in_a_load(folder, model)
    for each in (result, seen):
        assert set(ids(each)) == rules, str(each)
        assert {name for finding in each.findings for name in finding.parameters} == lost
        assert each.verdict is (Verdict.FAILED if rules else Verdict.PASSED)
        assert each.bytes_read


@pytest.mark.parametrize("case", ["without a layer", "without the embeddings", "embeddings cut", "without the head"])
def test_with_the_head_alone_what_is_missing_is_still_found(case: str, saved: Path, tmp_path: Path) -> None:
    change, rules = SAVES[case]
    model = BertForSequenceClassification.from_pretrained(saved)
    folder = tmp_path / "checkpoint-1"
    model.save_pretrained(folder)
    edit_tensors(folder / "model.safetensors", change)
    for result in (headscope.verify_save(model, folder, head=True), on_save(model, folder, "head")):
        assert set(ids(result)) == rules, str(result)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["classifier.weight", "bert.encoder.layer.0.output.dense.bias"])
def test_numbers_that_are_lost_in_both_never_pass(name: str, number: float, saved: Path, tmp_path: Path) -> None:
    model = BertForSequenceClassification.from_pretrained(saved)
    with torch.no_grad():
        model.get_parameter(name)[0] = number
    folder = tmp_path / "checkpoint-1"
    model.save_pretrained(folder)
    for result in (headscope.verify_save(model, folder), on_save(model, folder)):
        assert ids(result) == ["HS720"], str(result)
        assert result.findings[0].parameters == (name,)
    again = BertForSequenceClassification.from_pretrained(folder)
    assert headscope.verify(again, folder).verdict is Verdict.FAILED


def test_a_step_after_the_save_and_another_models_folder_are_seen(saved: Path, tmp_path: Path) -> None:
    model = BertForSequenceClassification.from_pretrained(saved)
    folder = tmp_path / "checkpoint-1"
    model.save_pretrained(folder)
    model.bert.embeddings.LayerNorm.bias.data += 1e-3  # what a step of a frozen head leaves
    assert ids(headscope.verify_save(model, folder)) == ["HS719"]
    other = BertForTokenClassification(BertConfig(**TINY))
    assert headscope.verify_save(other, folder).verdict is Verdict.FAILED


# Adapters: what PEFT saves, and what it loads.


@pytest.fixture
def lora(saved: Path) -> Any:
    config = peft.LoraConfig(task_type="SEQ_CLS", r=4, lora_alpha=12, target_modules=["query", "value"])
    model = peft.get_peft_model(BertForSequenceClassification.from_pretrained(saved), config)
    for name, item in model.named_parameters():
        if "lora_B" in name or "modules_to_save" in name:
            nn.init.normal_(item)
    return model


def test_a_healthy_adapter_passes(lora: Any, saved: Path, tmp_path: Path) -> None:
    """PEFT's unused copy of the classifier is not part of what the scores need."""
    lora.save_pretrained(tmp_path / "checkpoint-1")
    for result in (headscope.verify_save(lora, tmp_path / "checkpoint-1"), on_save(lora, tmp_path / "checkpoint-1")):
        assert (result.verdict, ids(result)) == (Verdict.PASSED, []), str(result)
        assert result.scope.adapter_only
        assert sum("lora_" in item.name for item in result.tensors) == 8
    bare = BertModel(BertConfig(**TINY))
    bare.save_pretrained(tmp_path / "base")  # without a classifier: only the adapter gives one
    base = BertForSequenceClassification.from_pretrained(tmp_path / "base")
    model = peft.PeftModel.from_pretrained(base, tmp_path / "checkpoint-1")
    result = headscope.verify(model, tmp_path / "base", adapter=tmp_path / "checkpoint-1")
    lost = [item.name for item in result.tensors if item.status is TensorStatus.RANDOM]
    assert lost == ["bert.pooler.dense.weight", "bert.pooler.dense.bias"] or not lost, lost
    assert not any("original_module" in item.name for item in result.tensors)


ADAPTERS: dict[str, tuple[Change, set[str]]] = {
    "without half of its tensors": (without("layer.1."), {"HS719"}),
    "without lora_B": (without("lora_B"), {"HS719"}),
    "without one tensor": (without("layer.0.attention.self.query.lora_A"), {"HS719"}),
    "without the classifier": (without("classifier"), {"HS714"}),
    "with zeros": (put("base_model.model.bert.encoder.layer.0.attention.self.query.lora_B.weight", 0), {"HS719"}),
    "with NaN": (
        put("base_model.model.bert.encoder.layer.0.attention.self.query.lora_B.weight", float("nan")), {"HS719"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ADAPTERS)
def test_an_adapter_that_was_tampered_with_fails(case: str, lora: Any, tmp_path: Path) -> None:
    change, rules = ADAPTERS[case]
    folder = tmp_path / "checkpoint-1"
    lora.save_pretrained(folder)
    edit_tensors(folder / "adapter_model.safetensors", change)
    for result in (headscope.verify_save(lora, folder), on_save(lora, folder)):
        assert set(ids(result)) == rules, str(result)
        assert result.verdict is Verdict.FAILED


SETTINGS: dict[str, Any] = {
    "lora_alpha": 99,
    "use_rslora": True,
    "target_modules": ["query"],
    "layers_to_transform": [0],
    "fan_in_fan_out": True,
    "task_type": "CAUSAL_LM",
    "alpha_pattern": {"query": 1},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_an_edited_setting_of_the_adapter_is_named(name: str, lora: Any, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-1"
    lora.save_pretrained(folder)
    edit_json(folder / "adapter_config.json", {"lora_dropout": 0.5})  # only training reads it
    assert headscope.verify_save(lora, folder).verdict is Verdict.PASSED
    edit_json(folder / "adapter_config.json", {name: SETTINGS[name]})
    for result in (headscope.verify_save(lora, folder), on_save(lora, folder)):
        assert ids(result) == ["HS710"], str(result)
        assert name in result.findings[0].message


def test_a_trained_tensor_that_the_adapter_leaves_out_is_named(lora: Any, tmp_path: Path) -> None:
    norm = lora.base_model.model.bert.encoder.layer[0].output.LayerNorm
    norm.weight.requires_grad_(True)
    lora.save_pretrained(tmp_path / "checkpoint-1")
    result = headscope.verify_save(lora, tmp_path / "checkpoint-1")
    assert ids(result) == ["HS719"]
    assert "the adapter leaves" in result.findings[0].message


METHODS = [
    peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"], use_dora=True),
    peft.LoraConfig(task_type="SEQ_CLS", target_modules=["word_embeddings", "query"], bias="all"),
    peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"], trainable_token_indices=[3, 5]),
    peft.IA3Config(task_type="SEQ_CLS", target_modules=["key", "output.dense"], feedforward_modules=["output.dense"]),
    peft.AdaLoraConfig(task_type="SEQ_CLS", target_modules=["query"], total_step=10),
    peft.VeraConfig(task_type="SEQ_CLS", target_modules=["query"]),
    peft.LoHaConfig(task_type="SEQ_CLS", target_modules=["query"]),
    peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3),
    peft.LNTuningConfig(task_type="SEQ_CLS", target_modules=["LayerNorm"]),
]


@pytest.mark.parametrize("number", range(len(METHODS)))
def test_every_method_of_peft_passes_and_loses_nothing_unseen(number: int, saved: Path, tmp_path: Path) -> None:
    base = BertForSequenceClassification.from_pretrained(saved)
    model = peft.get_peft_model(base, deepcopy(METHODS[number]))
    model.save_pretrained(tmp_path / "a")
    result = headscope.verify_save(model, tmp_path / "a")
    assert (result.verdict, ids(result)) == (Verdict.PASSED, []), str(result)
    file = tmp_path / "a" / "adapter_model.safetensors"
    state = load_file(file)
    added = sorted(key for key in state if "classifier" not in key)  # PEFT copies the base's where the file lacks it
    for key in added[:: max(1, len(added) // 3)]:
        save_file({name: item for name, item in state.items() if name != key}, file, metadata={"format": "pt"})
        assert headscope.verify_save(model, tmp_path / "a").verdict is not Verdict.PASSED, key


# One tensor against the one that is stored, each way that numbers can differ

EQUAL, CAST, DIFFERENT, EMPTY = (
    TensorStatus.EQUAL, TensorStatus.CAST, TensorStatus.DIFFERENT, TensorStatus.PLACEHOLDER,
)  # fmt: skip
UNKNOWN = TensorStatus.UNKNOWN
NAN, INFINITE = float("nan"), float("inf")
ROW = torch.tensor([[0.1, -0.3], [2.0, 5.0]])
SHORT = ROW.bfloat16()
ROUNDING = float((ROW.double() - SHORT.double()).abs().max())
Case = tuple[torch.Tensor, torch.Tensor, bool, TensorStatus, float | None, str]
LOADED: dict[str, Case] = {  # stored, live, a buffer, and what a load of it is
    "equal": (ROW, ROW, False, EQUAL, 0.0, ""),
    "rounded": (ROW, SHORT, False, CAST, ROUNDING, ""),
    "widened": (SHORT, SHORT.float(), False, CAST, 0.0, ""),
    "another number": (ROW, ROW + torch.tensor([0, 0.5]), False, DIFFERENT, 0.5, ""),
    "rounded on the way": (ROW, SHORT.float(), False, DIFFERENT, ROUNDING, "rounded to bfloat16, which neither"),
    "NaN for a number": (ROW, ROW.where(ROW < 5, NAN), False, EMPTY, None, "NaN"),
    "NaN that is stored": (ROW * NAN, ROW * NAN, False, EMPTY, 0.0, "NaN"),
    "infinite as stored": (ROW / 0, ROW / 0, False, EMPTY, 0.0, "infinite numbers"),
    "infinite as stored, rounded": (ROW / 0, SHORT / 0, False, EMPTY, 0.0, "infinite numbers"),
    "a mask as stored": (ROW / 0, ROW / 0, True, EQUAL, 0.0, ""),
    "too large": (ROW * 1e30, (ROW * 1e30).half(), False, DIFFERENT, None, "too large for float16"),
    "a mask too large": (ROW * 1e30, (ROW * 1e30).half(), True, CAST, None, ""),
    "infinite for a number": (ROW, ROW / 0, False, DIFFERENT, None, "finite numbers are where the other has none"),
    "zeros for numbers": (ROW, ROW * 0, False, EMPTY, 5.0, "zeros throughout"),
    "zeros as stored": (ROW * 0, ROW * 0, False, EQUAL, 0.0, ""),
    "zeros as stored, rounded": (ROW * 0, SHORT * 0, False, CAST, 0.0, ""),
    "a vector of zeros": (ROW[0], ROW[0] * 0, False, DIFFERENT, float(ROW[0].abs().max()), ""),
    "no elements": (ROW, ROW[:0], False, EMPTY, None, "ZeRO-3"),
    "no elements as stored": (ROW[:0], ROW[:0], False, EQUAL, 0.0, ""),
    "rounded by a save": (SHORT, ROW, False, DIFFERENT, ROUNDING, ""),
    "another shape": (ROW, ROW[:1], False, DIFFERENT, None, "2x2, another shape"),
    "without an axis": (ROW[0, 0], ROW[0, :1], False, DIFFERENT, None, "one number, another shape"),
    "no numbers": (ROW, ROW.to("meta"), False, UNKNOWN, None, "meta device"),
    "whole numbers as a matrix": (ROW.to(torch.int8), ROW.to(torch.int8).float(), False, UNKNOWN, None, "as int8 "),
    "whole numbers": (ROW.long(), ROW.long(), True, EQUAL, 0.0, ""),
    "floats of 8 bits, widened": (ROW.to(torch.float8_e4m3fn), ROW.to(torch.float8_e4m3fn).float(), False, CAST, 0.0,
                                  ""),
    "floats of 8 bits": (ROW.to(torch.float8_e4m3fn), ROW.to(torch.float8_e4m3fn), False, EQUAL, 0.0, ""),
    "whole numbers, widened": (ROW.to(torch.int8), ROW.long(), True, CAST, 0.0, ""),
}  # fmt: skip
SAVED: dict[str, tuple[TensorStatus, float | None, str]] = {  # where a save of that is something else
    "rounded": (CAST, ROUNDING, "stored as float32"),
    "widened": (CAST, 0.0, "stored as bfloat16"),
    "rounded on the way": (DIFFERENT, ROUNDING, ""),
    "NaN for a number": (EMPTY, None, "NaN"),
    "NaN that is stored": (EMPTY, None, "NaN"),
    "infinite as stored": (EMPTY, None, "infinite"),
    "infinite as stored, rounded": (EMPTY, None, "infinite"),
    "too large": (EMPTY, None, "infinite"),
    "a mask too large": (CAST, INFINITE, "stored as float32"),
    "infinite for a number": (EMPTY, None, "infinite"),
    "zeros for numbers": (DIFFERENT, 5.0, ""),
    "zeros as stored, rounded": (CAST, 0.0, "stored as float32"),
    "no elements": (DIFFERENT, None, "the save holds 2x2"),
    "rounded by a save": (CAST, ROUNDING, "stored as bfloat16"),
    "another shape": (DIFFERENT, None, "the save holds 2x2"),
    "without an axis": (DIFFERENT, None, "the save holds one number"),
    "whole numbers as a matrix": (CAST, 0.0, "stored as int8"),
    "floats of 8 bits, widened": (CAST, 0.0, "stored as float8_e4m3fn"),
    "whole numbers, widened": (CAST, 0.0, "stored as int8"),
}


def paired(module: Any, folder: Path) -> StoredPairing:
    request = Request(Location(str(folder)))
    manifest = read_manifest(request.location)
    return StoredPairing(module, manifest, open_stored_files(request, manifest))


def one_tensor(folder: Path, stored: dict[str, torch.Tensor], live: torch.Tensor, is_buffer: bool) -> Any:
    """What pairs a module that holds one tensor `w` with a checkpoint of these."""
    (folder / "config.json").write_text("{}")
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    module = nn.Module()
    if is_buffer:
        module.register_buffer("w", live)
    else:
        module.register_parameter("w", nn.Parameter(live, requires_grad=False))
    return paired(module, folder), next(tensors_of(module))


@pytest.mark.parametrize("case", LOADED)
def test_one_tensor_against_the_one_that_is_stored(case: str, tmp_path: Path) -> None:
    stored, live, is_buffer, *expected = LOADED[case]
    pairing, item = one_tensor(tmp_path, {"w": stored}, live, is_buffer)
    found = checked(item, pairing, is_head=False, is_live=True)
    status, error, reason = expected
    assert (found.status, found.max_error) == (status, error if error is None else pytest.approx(error))
    assert (reason in found.reason) if reason else not found.reason
    assert (found.keys, found.shape, found.dtype) == (("w",), tuple(live.shape), str(live.dtype)[6:])
    assert (found.is_head, found.is_buffer, found.is_live) == (False, is_buffer, True)
    if live.is_meta:
        return
    pair = pairing.pair(item)
    status, error, reason = SAVED.get(case, expected)
    found = against_saved(unchecked("w", item.tensor), item.tensor, pair.place, pair.headers[0])
    assert (found.status, found.max_error) == (status, error if error is None else pytest.approx(error))
    assert reason in found.reason
    assert (found.keys, found.is_head, found.is_buffer) == (("w",), True, is_buffer)


@pytest.mark.parametrize(
    ("stored", "is_buffer", "status", "reason"),
    [({}, False, TensorStatus.RANDOM, "holds nothing"), ({}, True, UNKNOWN, "buffer"),
     ({"w": ROW.to(torch.float8_e4m3fn), "w_scale": ROW}, False, UNKNOWN, "float8_e4m3fn"),
     ({"w": ROW.to(torch.int8), "w_scale": ROW}, False, UNKNOWN, "int8")],
)  # fmt: skip
def test_one_tensor_that_cannot_be_compared(
    stored: dict[str, torch.Tensor], is_buffer: bool, status: TensorStatus, reason: str, tmp_path: Path
) -> None:
    pairing, item = one_tensor(tmp_path, {"other": ROW + 1} | stored, ROW.clone(), is_buffer)
    found = checked(item, pairing, is_head=True, is_live=True)
    assert (found.status, found.is_live, found.is_buffer) == (status, True, is_buffer)
    assert reason in found.reason
    gone = checked(item, pairing, is_head=True, is_live=True, numbers=lambda: tmp_path.joinpath("gone").read_bytes())
    if stored:
        assert (gone.status, "(FileNotFoundError)" in gone.reason, gone.keys) == (UNKNOWN, True, ())
    tied = checked(replace(item, tied_to="x", name="y"), pairing, is_head=True, is_live=True)
    assert tied.status is TensorStatus.TIED and tied.reason.endswith(" x")
    assert [(gap.topic, gap.reason) for gap in open_gaps([found, replace(found, is_live=False), tied])] == (
        [("w", found.reason)] if status is UNKNOWN else []
    )


def test_one_packed_tensor_is_compared_where_the_model_holds_it_packed(tmp_path: Path) -> None:
    packed = ROW.to(torch.float8_e4m3fn)
    pairing, item = one_tensor(tmp_path, {"w": packed, "w_scale": ROW}, packed.clone(), False)
    assert checked(item, pairing, is_head=True, is_live=True).status is EQUAL


def test_one_tensor_whose_file_is_gone_or_beside_a_pickle_is_unknown(tmp_path: Path) -> None:
    pairing, item = one_tensor(tmp_path, {"w": ROW}, ROW.clone(), False)
    pair = pairing.pair(item)
    (tmp_path / "model.safetensors").unlink()
    lost = checked(item, pairing, is_head=True, is_live=True)
    unsaved = against_saved(unchecked("w", item.tensor), item.tensor, pair.place, pair.headers[0])
    assert [(found.status, found.keys, bool(found.reason)) for found in (lost, unsaved)] == [
        (UNKNOWN, ("w",), True)
    ] * 2
    for classifier, status in (("model_head.pkl", UNKNOWN), ("", TensorStatus.RANDOM)):
        pairing.manifest = replace(pairing.manifest, sentence=SentencePipeline((), classifier=classifier))
        found = checked(replace(item, name="head"), pairing, is_head=True, is_live=True)
        assert (found.status, found.reason == IN_A_PICKLE) == (status, bool(classifier))


def test_one_tensor_that_the_loader_makes_of_several(tmp_path: Path) -> None:
    config = MixtralConfig(**TINY, num_key_value_heads=2, num_local_experts=2)
    MixtralForSequenceClassification(config).save_pretrained(tmp_path)
    model = MixtralForSequenceClassification.from_pretrained(tmp_path)
    pairing = paired(model, tmp_path)
    item = next(item for item in tensors_of(model) if item.name.endswith("0.mlp.experts.down_proj"))
    made = item.tensor.detach()
    for tensor, status in (
        (made, TensorStatus.TRANSFORMED), (made.bfloat16(), TensorStatus.TRANSFORMED), (made + 1, DIFFERENT),
        (made[:1], DIFFERENT), (made * 0, EMPTY),
    ):  # fmt: skip
        found = checked(replace(item, tensor=tensor), pairing, is_head=False, is_live=True)
        assert (found.status, len(found.keys)) == (status, 2)
        assert ("another shape" in found.reason) is (tensor.shape != made.shape)


def test_one_tensor_that_follows_from_an_adapter(saved: Path, tmp_path: Path) -> None:
    """PEFT stores neither AdaLoRA's ranks nor its copies of the rows that it trains."""
    for number, name in ((4, "ranknum"), (2, "trainable_tokens_original")):
        folder = tmp_path / name
        model = peft.get_peft_model(BertForSequenceClassification.from_pretrained(saved), deepcopy(METHODS[number]))
        model.save_pretrained(folder)
        live = peft.PeftModel.from_pretrained(BertForSequenceClassification.from_pretrained(saved), folder)
        pairing = paired(live, folder)
        item = next(item for item in tensors_of(live) if name in item.name)
        for tensor, status in (
            (item.tensor, TensorStatus.COMPUTED if name == "ranknum" else EQUAL), (item.tensor + 1, DIFFERENT),
            (item.tensor.to("meta"), UNKNOWN),
        ):  # fmt: skip
            found = checked(replace(item, tensor=tensor), pairing, is_head=False, is_live=True)
            assert (found.status, "computed" in found.reason) == (status, status is TensorStatus.COMPUTED)


def test_one_weight_against_what_peft_merges(tmp_path: Path) -> None:
    BertForSequenceClassification(BertConfig(**TINY)).save_pretrained(tmp_path / "base")
    adapter = adapted(tmp_path / "adapter", tmp_path / "base")
    base = BertForSequenceClassification.from_pretrained(tmp_path / "base")
    before = deepcopy(base.state_dict())
    live = peft.PeftModel.from_pretrained(base, adapter)
    beside = StoredPairing(live, read_manifest(Location(str(tmp_path / "base"))), [])
    lost = next(item for item in tensors_of(live) if "lora_A" in item.name)
    found = checked(lost, beside, is_head=True, is_live=True)
    assert (found.status, found.is_live, "adapter=" in found.reason) == (UNKNOWN, False, True)
    merged = live.merge_and_unload()
    pairing = paired(merged, adapter)
    items = {item.name: item for item in tensors_of(merged)}
    name = "bert.encoder.layer.0.attention.self.query.weight"
    made = items[name].tensor.detach()
    other = made.clone()
    other[0, 0] += 1
    for tensor, status, reason in (
        (made, TensorStatus.MERGED, ""), (made.bfloat16(), TensorStatus.MERGED, ""), (other, DIFFERENT, ""),
        (before[name], DIFFERENT, "these are the base model's numbers"), (made * NAN, EMPTY, "NaN"),
        (made / 0, DIFFERENT, "finite numbers"), (made * 0, EMPTY, "zeros"),
    ):  # fmt: skip
        found = checked(replace(items[name], tensor=tensor), pairing, is_head=False, is_live=True)
        assert (found.status, len(found.keys)) == (status, 3)
        assert (reason in found.reason) if reason else not found.reason


@pytest.mark.parametrize(
    ("lost", "number", "dtype", "expected"),
    [("adapter", NAN, torch.float32, (EMPTY, "NaN")), ("base", NAN, torch.float32, (EMPTY, "NaN")),
     ("adapter", 1e6, torch.float16, (DIFFERENT, "too large for float16"))],
)  # fmt: skip
def test_one_merge_that_is_not_finite_is_none(
    lost: str, number: float, dtype: torch.dtype, expected: tuple[TensorStatus, str], tmp_path: Path
) -> None:
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    BertForSequenceClassification(BertConfig(**TINY)).save_pretrained(base)
    adapted(adapter, base)
    name = "bert.encoder.layer.0.attention.self.query.weight"
    file = {"base": base / "model.safetensors", "adapter": adapter / "adapter_model.safetensors"}[lost]
    key = name if lost == "base" else f"base_model.model.{name.replace('weight', 'lora_B.weight')}"
    edit_tensors(file, lambda state: state | {key: torch.full_like(state[key], number)})
    model = BertForSequenceClassification.from_pretrained(base)
    merged = model if lost == "base" else peft.PeftModel.from_pretrained(model, adapter).merge_and_unload().to(dtype)
    assert not merged.get_parameter(name).isfinite().all()
    pairing = paired(merged, adapter)
    item = next(item for item in tensors_of(merged) if item.name == name)
    found = checked(item, pairing, is_head=False, is_live=True)
    assert (found.status, len(found.keys), expected[1] in found.reason) == (expected[0], 3, True)


@pytest.mark.parametrize(("change", "computed"), [(1.0, True), (1 + 2**-22, True), (1.01, False), (NAN, None)])
def test_one_buffer_against_the_one_that_the_class_computes(
    change: float, computed: bool | None, tmp_path: Path
) -> None:
    model = FAMILIES["llama"].build("LlamaModel")
    model.save_pretrained(tmp_path)
    pairing = paired(model, tmp_path)
    item = next(item for item in tensors_of(model) if item.name == "rotary_emb.inv_freq")
    found = checked(replace(item, tensor=item.tensor * change), pairing, is_head=False, is_live=True)
    assert found.status is (EMPTY if computed is None else TensorStatus.COMPUTED if computed else DIFFERENT)
    for other, reason in ((item.tensor[:1], "no such buffer"), (item.tensor.to("meta"), "meta device")):
        found = checked(replace(item, tensor=other), pairing, is_head=False, is_live=True)
        assert (found.status, reason in found.reason) == (UNKNOWN, True)


def test_one_buffer_of_whole_numbers_against_the_one_that_the_class_computes(saved: Path) -> None:
    model = BertForSequenceClassification.from_pretrained(saved)
    pairing = paired(model, saved)
    item = next(item for item in tensors_of(model) if item.name == "bert.embeddings.position_ids")
    for tensor, status in ((item.tensor, TensorStatus.COMPUTED), (item.tensor + 1, DIFFERENT)):
        assert checked(replace(item, tensor=tensor), pairing, is_head=False, is_live=True).status is status


def test_unused_keys_are_those_of_the_classes_that_have_them() -> None:
    model = BertForSequenceClassification(BertConfig(**TINY))
    others = [getattr(transformers, f"BertFor{name}")(model.config) for name in ("PreTraining", "QuestionAnswering")]
    own = model.state_dict().keys()
    keys = [*sorted({key for other in others for key in other.state_dict()} - own), "bert.nothing"]
    groups = describe_unused(model, tuple(keys))
    assert sorted(key for group in groups for key in group.keys) == sorted(keys)
    for group in groups:
        held = [getattr(transformers, name)(model.config).state_dict().keys() for name in group.classes]
        assert bool(held) is bool(group.description) is (group.keys != ("bert.nothing",))
        assert all(key in names for names in held for key in group.keys)
    assert find_dropped(model, groups, ()) == (DroppedGroup(("bert.nothing",)),)
    assert describe_unused(model, ()) == ()


def test_dropped_keys_are_those_of_other_layers_and_of_a_switch(tmp_path: Path) -> None:
    family = FAMILIES["llama"]
    family.build(family.classifier, attention_bias=True, num_hidden_layers=3).save_pretrained(tmp_path)
    headers = read_manifest(Location(str(tmp_path))).tensors
    model = family.build(family.classifier, num_hidden_layers=2)
    unused = {item.key for item in headers} - model.state_dict().keys()
    biases = tuple(sorted(key for key in unused if key.endswith("_proj.bias")))
    groups = describe_unused(model, tuple(sorted(unused)))
    expected = DroppedGroup(tuple(sorted(unused - set(biases)))), DroppedGroup(biases, "attention_bias")
    assert find_dropped(model, groups, headers) == expected
    assert all(key.startswith("model.layers.2.") for key in expected[0].keys)
    whole = [replace(item, dtype="int32") for item in headers]
    assert find_dropped(model, groups, whole) == ()


@pytest.mark.parametrize(
    ("name", "number", "lost", "doubtful", "answers"),
    [("encoder.layer.0.output.dense.weight", None, False, False, None),
     ("encoder.layer.0.output.dense.weight", NAN, True, False, None),
     ("encoder.layer.0.output.dense.weight", INFINITE, True, False, None),
     ("encoder.layer.0.output.dense.weight", -INFINITE, True, False, None),
     ("encoder.layer.0.output.dense.weight", 0.0, False, True, True),
     ("embeddings.LayerNorm.bias", 0.0, False, False, None),
     ("encoder.layer.1.output.LayerNorm.weight", 0.0, False, True, False)],
)  # fmt: skip
def test_numbers_of_a_base_model_in_memory(
    name: str, number: float | None, lost: bool, doubtful: bool, answers: bool | None
) -> None:
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**TINY)).eval()
    for item in model.parameters():
        nn.init.normal_(item, 1 if item.dim() == 1 else 0, 0.1)
    if number is not None:
        nn.init.constant_(model.bert.get_parameter(name), number)
    found = live_base_numbers(model, headscope.inspect(model))
    expected = (f"bert.{name}",)
    assert (found.broken, found.zeros) == (expected if lost else (), expected if doubtful else ())
    assert found.answers is answers
