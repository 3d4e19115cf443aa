"""A repository's own code runs when it is trusted, and not before."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import headscope
from headscope.core.model.classes.remote_code import models_in_auto_map
from headscope.errors import Unsupported
from headscope.facts import PoolingKind
from tests.edits import edit_json
from tests.families import FAMILIES

CODE = """
import pathlib
import torch
from transformers import PretrainedConfig, PreTrainedModel

pathlib.Path(r"{canary}").write_text("ran")


class OwnConfig(PretrainedConfig):
    model_type = "own"


class OwnClassifier(PreTrainedModel):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.embed = torch.nn.Embedding(99, 16)
        self.out = torch.nn.Linear(16, config.num_labels)
        self.post_init()

    def forward(self, input_ids=None, attention_mask=None):
        return {{"logits": self.out(self.embed(input_ids)[:, 0])}}
"""


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = tmp_path / "own"
    folder.mkdir()
    auto_map = {"AutoConfig": "own.OwnConfig", "AutoModelForSequenceClassification": "own.OwnClassifier"}
    (folder / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": auto_map}))
    (folder / "own.py").write_text(CODE.format(canary=tmp_path / "canary"))
    tensors = {"embed.weight": torch.zeros(99, 16), "out.weight": torch.zeros(2, 16), "out.bias": torch.zeros(2)}
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_untrusted_code_does_not_run(checkpoint: Path) -> None:
    with pytest.raises(Unsupported) as caught:
        headscope.inspect(str(checkpoint))
    assert "--trust-remote-code" in caught.value.hint
    assert "OwnClassifier in auto_map" in caught.value.message
    assert not (checkpoint.parent / "canary").exists()


def test_trusted_code_is_examined(checkpoint: Path) -> None:
    report = headscope.inspect(str(checkpoint), trust_remote_code=True)
    assert report.model.class_name == "OwnClassifier"
    assert report.weights.new == ()
    assert report.head.pooling.kind is PoolingKind.FIRST_TOKEN


def test_own_code_with_a_configuration_of_transformers(tmp_path: Path) -> None:
    FAMILIES["bert"].build("BertForSequenceClassification").save_pretrained(tmp_path)
    code = "import transformers\n\n\nclass Own(transformers.BertForSequenceClassification):\n    pass\n"
    (tmp_path / "modeling_own.py").write_text(code)
    named = {"auto_map": {"AutoModelForSequenceClassification": "modeling_own.Own"}, "architectures": ["Own"]}
    edit_json(tmp_path / "config.json", named)
    report = headscope.inspect(str(tmp_path), trust_remote_code=True)
    assert (report.model.class_name, report.weights.new) == ("Own", ())


def test_a_class_that_auto_map_names_without_a_configuration_is_not_said_to_be_missing(checkpoint: Path) -> None:
    edit_json(checkpoint / "config.json", {"auto_map": {"AutoModelForSequenceClassification": "own.OwnClassifier"}})
    with pytest.raises(Unsupported, match="defines no AutoConfig"):
        headscope.inspect(str(checkpoint), trust_remote_code=True)
    assert not (checkpoint.parent / "canary").exists()


@pytest.mark.parametrize(
    ("auto_map", "named"),
    [
        ({"AutoModel": "a.B", "AutoModelForSequenceClassification": "x--a.C", "AutoConfig": "a.D"}, "B, C"),
        ({"AutoTokenizer": ["a.T", None]}, ""), ({}, ""), ("own.py", ""), (None, ""),
    ],
)  # fmt: skip
def test_models_are_named_as_auto_map_names_them(auto_map: object, named: str) -> None:
    assert models_in_auto_map({"auto_map": auto_map}) == named
