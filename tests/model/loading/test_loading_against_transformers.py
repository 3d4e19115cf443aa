"""The weight diff against its oracle: a real load of the same files with `output_loading_info=True`."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from families import FAMILIES
from saving import FORMATS, assert_as_loaded
from transformers import PreTrainedModel

import headscope
from headscope.core.checkpoints.reading import read_manifest
from headscope.core.facts.stored.location import Location
from headscope.core.model.classes.model_request import ModelRequest, choose
from headscope.core.model.loading.loader import load_skeleton
from headscope.errors import Malformed, Unsupported
from headscope.facts import Gap, GapTopic, ParameterStatus, WeightDiff, WeightsFormat
from tests.edits import edit_json

USUAL = "safetensors"
OTHERS = [name for name in FORMATS if name != USUAL]
CASES = [(name, source) for name, family in FAMILIES.items() for source in family.sources]


def really_load(folder: Path, class_name: str, **changes: Any) -> tuple[Any, dict[str, Any]]:
    """What Transformers does with the files themselves."""
    return getattr(transformers, class_name).from_pretrained(
        folder, ignore_mismatched_sizes=True, output_loading_info=True, **changes
    )


def diff(folder: Path, class_name: str, num_labels: int | None, **changes: Any) -> WeightDiff:
    manifest = replace(read_manifest(Location(str(folder))), **changes)
    choice = choose(manifest.config, ModelRequest(num_labels=num_labels, model_class=class_name))
    return load_skeleton(choice, manifest).diff


@cache
def built(family_name: str, source: str) -> PreTrainedModel:
    """A model to save, not to change."""
    return FAMILIES[family_name].build(source)


@pytest.mark.parametrize("saved_as", [USUAL, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
@pytest.mark.parametrize(("family_name", "source"), CASES, ids=str)
def test_new_mismatched_and_unused_equal_a_real_load(
    family_name: str, source: str, saved_as: str, tmp_path: Path
) -> None:
    family = FAMILIES[family_name]
    FORMATS[saved_as](built(family_name, source), tmp_path)
    loaded, info = really_load(tmp_path, family.classifier, num_labels=3)
    found = diff(tmp_path, family.classifier, 3)
    assert_as_loaded(found, info)
    if saved_as == USUAL:  # other formats also hold what is tied
        others = {*info["missing_keys"], *(loaded.all_tied_weights_keys or ())}
        others |= {name for name, *_ in info["mismatched_keys"]}
        assert found.loaded == len(loaded.state_dict().keys() - others)


@pytest.mark.parametrize(("family_name", "source"), CASES, ids=str)
def test_a_loaded_parameter_holds_the_values_of_the_keys_it_names(
    family_name: str, source: str, tmp_path: Path
) -> None:
    family = FAMILIES[family_name]
    FORMATS["torch-zip"](built(family_name, source), tmp_path)
    saved = torch.load(tmp_path / "pytorch_model.bin", weights_only=True)
    loaded, _ = really_load(tmp_path, family.classifier, num_labels=3)
    values = dict(loaded.named_parameters(remove_duplicate=False)) | dict(loaded.named_buffers())
    parameters = diff(tmp_path, family.classifier, 3).parameters
    in_base = {f"{loaded.base_model_prefix}.{key}" for key in loaded.base_model.state_dict()}
    assert {item.name for item in parameters if item.in_base} == in_base
    for item in parameters:
        if item.status is ParameterStatus.LOADED and len(item.checkpoint_keys) == 1:
            assert torch.equal(values[item.name], saved[item.checkpoint_keys[0]]), item
        if item.status is ParameterStatus.LOADED:
            assert item.checkpoint_keys, item


@pytest.mark.parametrize("family_name", FAMILIES)
def test_tied_parameters_are_one_tensor_in_a_real_load(family_name: str, tmp_path: Path) -> None:
    family = FAMILIES[family_name]
    FORMATS["safetensors"](family.build(family.sources[1]), tmp_path)
    loaded, _ = really_load(tmp_path, family.classifier, num_labels=3)
    state = loaded.state_dict()
    found = diff(tmp_path, family.classifier, 3)
    ties = found.tied
    assert {item.name for item in found.parameters if item.status is ParameterStatus.TIED} == {
        tie.parameter for tie in ties
    }
    assert {tie.parameter: tie.source for tie in ties} == (loaded.all_tied_weights_keys or {})
    for tie in ties:
        assert state[tie.parameter].data_ptr() == state[tie.source].data_ptr()


def test_an_unchanged_label_count_loads_a_classifier_whole(tmp_path: Path) -> None:
    family = FAMILIES["distilbert"]
    FORMATS["safetensors"](family.build(family.classifier, num_labels=4), tmp_path)
    found = diff(tmp_path, family.classifier, None)
    assert (found.new, found.mismatched, found.unused) == ((), (), ())


def test_gamma_and_beta_are_loaded_under_their_new_names(tmp_path: Path) -> None:
    family = FAMILIES["bert"]
    model = family.build("BertForPreTraining")
    model.config.save_pretrained(tmp_path)
    old = {
        key.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for key, value in model.state_dict().items()
    }
    torch.save(old, tmp_path / "pytorch_model.bin")
    _, info = really_load(tmp_path, family.classifier, num_labels=3)
    found = diff(tmp_path, family.classifier, 3)
    assert_as_loaded(found, info)
    renamed = {item.parameter: item.checkpoint_keys for item in found.renamed}
    assert renamed["bert.embeddings.LayerNorm.weight"] == ("bert.embeddings.LayerNorm.gamma",)
    assert {header.key for header in found.unused_tensors} == set(found.unused)
    assert renamed.keys() == {item.name for item in found.parameters if "LayerNorm" in item.name}


def test_what_is_traced_has_plain_tensors_of_the_shapes_of_a_real_load(tmp_path: Path) -> None:
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], layer_type="basic")
    transformers.ResNetForImageClassification(config).save_pretrained(tmp_path)
    loaded, _ = really_load(tmp_path, "ResNetForImageClassification")
    manifest = read_manifest(Location(str(tmp_path)))
    skeleton = load_skeleton(choose(manifest.config, ModelRequest()), manifest).model
    assert {type(item) for item in skeleton.parameters()} == {torch.nn.Parameter}
    assert {type(item) for item in skeleton.buffers()} == {torch.Tensor}
    shapes = {name: item.shape for name, item in skeleton.state_dict().items()}
    assert shapes == {name: item.shape for name, item in loaded.state_dict().items()}


def test_fused_experts_name_every_key_they_were_made_from(tmp_path: Path) -> None:
    config = transformers.MixtralConfig(**FAMILIES["mistral"].config, num_local_experts=4, pad_token_id=0)
    transformers.MixtralForCausalLM(config).save_pretrained(tmp_path)
    _, info = really_load(tmp_path, "MixtralForSequenceClassification", num_labels=3)
    found = diff(tmp_path, "MixtralForSequenceClassification", 3)
    assert_as_loaded(found, info)
    fused = max(found.renamed, key=lambda item: len(item.checkpoint_keys))
    assert fused.parameter == "model.layers.0.mlp.experts.gate_up_proj"
    assert len(fused.checkpoint_keys) == 8


def test_experts_of_a_further_layer_are_unused_under_their_fused_names(tmp_path: Path) -> None:
    config = transformers.MixtralConfig(**FAMILIES["mistral"].config, num_local_experts=4, pad_token_id=0)
    transformers.MixtralForSequenceClassification(config).save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", {"num_hidden_layers": 1})
    _, info = really_load(tmp_path, "MixtralForSequenceClassification", num_labels=3)
    found = diff(tmp_path, "MixtralForSequenceClassification", 3)
    assert_as_loaded(found, info)
    stored = {header.key for header in read_manifest(Location(str(tmp_path))).tensors}
    assert {header.key for header in found.unused_tensors} == stored & set(found.unused) != set(found.unused)


@pytest.mark.parametrize(
    "changes", [{"format": WeightsFormat.NONE}, {"gaps": (Gap(GapTopic.CHECKPOINT, "a shard is cut short"),)}]
)
def test_what_could_not_be_read_is_unknown_and_not_new(changes: dict[str, Any], tmp_path: Path) -> None:
    built("bert", "BertModel").save_pretrained(tmp_path)
    found = diff(tmp_path, FAMILIES["bert"].classifier, 3, tensors=(), **changes)
    assert found.new == () and {item.status for item in found.parameters} == {ParameterStatus.UNKNOWN}


@pytest.mark.parametrize(
    ("raised", "error", "message"),
    [
        (None, Malformed, "KeyError: .*fast.*without hidden_act = 'fast'"),
        (ImportError("install fast_kernels"), Unsupported, "install fast_kernels"),
        (ModuleNotFoundError("No module named 'fast'", name="fast"), Unsupported, "fast is not installed"),
    ],
)
def test_only_a_fault_of_the_configuration_is_told_by_its_field(
    raised: ImportError | None, error: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built("bert", "BertModel").save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", {"hidden_act": "fast"})
    build = transformers.BertForSequenceClassification.__init__

    def build_with_package(model: Any, config: Any) -> None:
        if config.hidden_act == "fast" and raised is not None:
            raise raised
        build(model, config)

    monkeypatch.setattr(transformers.BertForSequenceClassification, "__init__", build_with_package)
    with pytest.raises(ImportError if raised is not None else KeyError):
        really_load(tmp_path, "BertForSequenceClassification")
    with pytest.raises(error, match=message):
        diff(tmp_path, "BertForSequenceClassification", 3)


def test_a_release_that_tells_loads_in_another_form_is_no_fault_of_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = built("bert", "BertModel")
    model.save_pretrained(tmp_path)
    other_form = (model, {"missing": []})
    monkeypatch.setattr(transformers.BertForSequenceClassification, "from_pretrained", lambda *_, **__: other_form)
    with pytest.raises(Unsupported, match="output_loading_info gives"):
        diff(tmp_path, "BertForSequenceClassification", 3)


def test_unused_keys_are_grouped_by_the_classes_that_own_them(tmp_path: Path) -> None:
    family = FAMILIES["bert"]
    FORMATS["safetensors"](family.build("BertForPreTraining"), tmp_path)
    groups = {group.description: group for group in diff(tmp_path, family.classifier, 3).unused_groups}
    assert set(groups) == {"masked-LM head", "next-sentence head"}
    assert groups["next-sentence head"].keys == ("cls.seq_relationship.bias", "cls.seq_relationship.weight")


@pytest.mark.parametrize("cls", ["BertForTokenClassification", "RobertaForSequenceClassification"])
def test_what_the_base_model_owns_is_never_called_a_head(cls: str, tmp_path: Path) -> None:
    """The oracle: the keys of the checkpoint's own base model, and the loader's unexpected keys."""
    bert = FAMILIES["bert"]
    saved = bert.build(bert.classifier, num_labels=3, num_hidden_layers=3)
    saved.save_pretrained(tmp_path)
    owned = {f"bert.{key}" for key in saved.bert.state_dict()}
    _, info = really_load(tmp_path, cls, num_labels=3)
    report = headscope.inspect(str(tmp_path), model_class=cls, num_labels=3, offline=True)
    groups = {key: group.description for group in report.weights.unused_groups for key in group.keys}
    assert set(groups) == set(info["unexpected_keys"])
    assert {key for key, word in groups.items() if word == "base model"} == set(groups) & owned
    assert "bert.pooler.dense.weight" in owned & set(groups)
