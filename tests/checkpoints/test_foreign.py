"""Folders of other libraries: named for what they are, with the head that their files describe."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import headscope
from headscope.core.facts.export import ExportHead, HeadBasis, WeightInventory
from headscope.errors import HeadscopeError, Unsupported
from headscope.facts import PoolingKind
from headscope.shell import main
from tests.checkpoints import foreign
from tests.checkpoints.foreign import ADAPTER_CONFIG, CLASSIFICATION, FOLDERS, TIMM_CONFIG, WRAPPER_CONFIG
from tests.families import FAMILIES


def refused(path: Path | str) -> tuple[WeightInventory, Unsupported]:
    """What a refusal tells of the contents."""
    with pytest.raises(Unsupported) as caught:
        headscope.inspect(path, offline=True)
    assert isinstance(caught.value.contents, WeightInventory)
    return caught.value.contents, caught.value


def head_of(path: Path | str) -> ExportHead:
    head = refused(path)[0].head
    assert head.basis is HeadBasis.CONFIG
    return head


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("command", ["inspect", "diff-weights", "check", "forward"])
def test_a_folder_is_named_with_its_library_and_the_next_step(
    name: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "timm wrapper" and find_spec("timm") is not None:
        pytest.skip("timm is installed")
    write, words = FOLDERS[name]
    folder = tmp_path / "saved"
    folder.mkdir()
    write(folder)
    assert main([command, str(folder)]) == 3
    shown = " ".join("".join(capsys.readouterr()).split())
    assert words in shown
    assert "hint: " in shown
    assert "no classifier" not in shown
    assert "HS401" not in shown
    assert "HS8" not in shown
    assert main([command, str(folder), "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["error"]["code"] == "unsupported"
    assert words in document["error"]["message"]
    assert ("contents" in document) == name.startswith(("adapters", "timm"))


@pytest.mark.parametrize(
    ("changes", "pooling"),
    [
        ({}, PoolingKind.FIRST_TOKEN),
        ({"layers": 3, "dropout_prob": 0.25}, PoolingKind.FIRST_TOKEN),
        ({"activation_function": None}, PoolingKind.FIRST_TOKEN),
        ({"layers": 1, "bias": False}, PoolingKind.FIRST_TOKEN),
        ({"use_pooler": True, "head_type": "multilabel_classification"}, None),
        ({"head_type": "tagging", "layers": 1}, PoolingKind.NONE),
        ({"head_type": "question_answering", "num_labels": 2, "label2id": None}, PoolingKind.NONE),
    ],
)
def test_a_prediction_head_is_the_one_that_adapters_builds(
    changes: dict[str, Any], pooling: PoolingKind | None, tmp_path: Path
) -> None:
    config = CLASSIFICATION | changes
    modules = foreign.prediction_head(config)
    foreign.write_prediction_head(tmp_path, config)
    head = head_of(tmp_path)
    names = {nn.Dropout: "dropout", nn.Linear: "linear", nn.Tanh: "tanh"}
    assert [step.operation for step in head.steps] == [names[type(module)] for module in modules]
    assert [step.detail for step in head.steps if step.operation == "dropout"] == (
        [f"p={config['dropout_prob']}" if config["dropout_prob"] else "p of the base model"] * config["layers"]
    )
    layers = [module for module in modules if isinstance(module, nn.Linear)]
    shapes = {item.key: item.shape for item in head.tensors}
    steps = [step for step in head.steps if step.operation == "linear"]
    assert [shapes[step.tensors[0]] for step in steps] == [tuple(layer.weight.shape) for layer in layers]
    assert [len(step.tensors) == 2 for step in steps] == [layer.bias is not None for layer in layers]
    assert (head.classes, head.pooling) == (layers[-1].out_features, pooling)
    assert head.labels == (("neg", "neu", "pos") if config["label2id"] else ())
    assert [gap.topic for gap in head.not_determined] == ([] if pooling is not None else ["pooling"])


def test_a_model_that_picks_its_own_vector_is_not_said_to_read_the_first_token(tmp_path: Path) -> None:
    foreign.write_prediction_head(tmp_path)
    foreign.write_json(tmp_path / "head_config.json", foreign.head_config(CLASSIFICATION, model_type="gpt2"))
    head = head_of(tmp_path)
    assert head.pooling is None
    assert "pooling" in [gap.topic for gap in head.not_determined]


def test_the_head_of_a_class_of_transformers_beside_an_adapter(tmp_path: Path) -> None:
    """What `save_adapter(with_head=True)` writes for `adapters.init(BertForSequenceClassification(...))`."""
    foreign.write_adapter(tmp_path)
    settings = foreign.head_config(None, name=None, num_labels=4, model_class="BertForSequenceClassification")
    foreign.write_json(tmp_path / "head_config.json", settings)
    tensors = {"classifier.weight": torch.ones(4, 32), "classifier.bias": torch.ones(4)}
    torch.save(tensors, tmp_path / "pytorch_model_head.bin")
    contents, _ = refused(tmp_path)
    assert ADAPTER_CONFIG["model_name"] in contents.architecture
    head = contents.head
    assert (head.classes, head.steps[0].tensors) == (4, tuple(tensors))
    assert [gap.topic for gap in head.not_determined] == ["pooling"]


def test_a_peft_adapter_stays_one(tmp_path: Path) -> None:
    """Also where its configuration holds what that of adapters holds, and beside a head file of that name."""
    of_peft = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["query"]}
    foreign.write_json(tmp_path / "adapter_config.json", of_peft | {"config": {}, "model_class": "x"})
    save_file({"base_model.model.x.lora_A.weight": torch.ones(2, 2)}, tmp_path / "adapter_model.safetensors")
    for _ in range(2):
        with pytest.raises(HeadscopeError, match="base model"):
            headscope.inspect(tmp_path, offline=True)
        foreign.write_json(tmp_path / "head_config.json", foreign.head_config(CLASSIFICATION))


def test_a_whole_model_of_adapters_keeps_its_heads(tmp_path: Path) -> None:
    """What `BertAdapterModel.save_pretrained` writes: Transformers loads the base model and no head."""
    import transformers

    model = transformers.BertModel(FAMILIES["bert"].build_config())
    config = json.loads(model.config.to_json_string())
    config |= {
        "architectures": ["BertAdapterModel"],
        "prediction_heads": {"sst": CLASSIFICATION, "m": {"head_type": "x"}},
    }
    foreign.write_json(tmp_path / "config.json", config)
    tensors = {f"bert.{key}": value.contiguous() for key, value in model.state_dict().items()}
    tensors |= {
        f"heads.sst.{key}": value for key, value in foreign.prediction_head(CLASSIFICATION).state_dict().items()
    }
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    result = headscope.check(tmp_path, "inference", offline=True)
    (head,) = result.report.checkpoint.score_heads
    assert (head.name, head.scores, head.weight) == ("heads.sst", 3, "heads.sst.4.weight")
    assert "HS406" in [item.id for item in result.findings]
    assert "HS401" not in [item.id for item in result.findings]


def test_the_classifier_of_timm_is_the_one_that_its_configuration_names(tmp_path: Path) -> None:
    foreign.write_timm(tmp_path)
    contents, error = refused(tmp_path)
    head = contents.head
    assert (head.classes, head.labels, head.labels_from) == (5, ("a", "b", "c", "d", "e"), "config.json")
    assert [(step.operation, step.tensors) for step in head.steps] == [("linear", ("fc.weight", "fc.bias"))]
    assert head.pooling is None
    assert "global_pool is avg" in head.pooling_rule
    assert [gap.topic for gap in head.not_determined] == ["pooling"]
    assert "without a trace" in error.message
    assert "resnet18" in contents.architecture


@pytest.mark.parametrize(
    ("changes", "written", "classes", "gaps"),
    [
        ({"num_classes": 7}, {}, 5, ["pooling", "classes"]),
        ({"num_classes": 0, "label_names": None}, {"names": ()}, 0, ["pooling"]),
        ({"pretrained_cfg": {"classifier": "head"}}, {}, None, ["pooling", "head"]),
        ({"pretrained_cfg": {}}, {}, 5, ["pooling"]),
        ({"pretrained_cfg": {"classifier": ["fc", "fc_dist"]}}, {"names": ("fc", "fc_dist")}, 5, ["pooling"]),
        ({"label_names": [1, 2]}, {}, 5, ["pooling", "labels"]),
        ({"label_names": ["a"]}, {}, 5, ["pooling", "labels"]),
        ({"num_classes": 10**30}, {}, 5, ["pooling", "classes"]),
        ({"num_classes": "five"}, {}, 5, ["pooling", "classes"]),
    ],
)
def test_what_a_configuration_of_timm_says_is_held_against_its_tensors(
    changes: dict[str, Any], written: dict[str, Any], classes: int | None, gaps: list[str], tmp_path: Path
) -> None:
    foreign.write_timm(tmp_path, TIMM_CONFIG | changes, **written)
    head = head_of(tmp_path)
    assert (head.classes, [gap.topic for gap in head.not_determined]) == (classes, gaps)
    assert head.labels in ((), ("a", "b", "c", "d", "e"))


def test_the_wrapper_of_timm_without_timm(tmp_path: Path) -> None:
    if find_spec("timm") is not None:
        pytest.skip("timm is installed")
    foreign.write_timm(tmp_path, WRAPPER_CONFIG)
    head = head_of(tmp_path)
    assert (head.classes, head.steps[0].tensors) == (5, ("timm_model.fc.weight", "timm_model.fc.bias"))
    assert head.labels == ("a", "b", "c", "d", "e")


def test_a_checkpoint_of_clip_beside_the_files_of_open_clip_is_examined(tmp_path: Path) -> None:
    import transformers

    foreign.write_open_clip(tmp_path)
    transformers.BertForSequenceClassification(FAMILIES["bert"].build_config()).save_pretrained(tmp_path)
    assert headscope.inspect(tmp_path, offline=True).weights.new == ()


def test_a_pickle_of_flair_is_read_and_not_executed(tmp_path: Path) -> None:
    foreign.write_flair(tmp_path / "pytorch_model.bin", ["POS", "NEG", "ü"], tokenizer=5_000_000)
    with pytest.raises(Unsupported, match="model of Flair") as caught:
        headscope.inspect(tmp_path, offline=True)
    assert "flair.nn.Classifier.load" in caught.value.hint


@pytest.mark.parametrize("name", ["adapters", "timm", "spacy"])
def test_a_model_of_another_library_is_no_export_of_a_checkpoint(name: str, tmp_path: Path) -> None:
    FOLDERS[name][0](tmp_path)
    with pytest.raises(Unsupported) as caught:
        headscope.compare("bert-base-uncased", str(tmp_path), offline=True)
    assert FOLDERS[name][1] in caught.value.message


def test_heads_names_the_command_for_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    foreign.write_prediction_head(tmp_path)
    assert main(["heads", str(tmp_path)]) == 2
    assert f"run `headscope inspect {tmp_path}`" in " ".join(capsys.readouterr().err.split())
