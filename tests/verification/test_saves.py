"""`verify_save` on real saves, healthy and broken; `from_pretrained` and safetensors say what a save lacks."""

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, BertForTokenClassification, BertModel

import headscope
from headscope.core.facts.verdict import Verdict
from headscope.core.source.live.module import unwrap
from headscope.errors import Malformed, NotFound, UsageError
from headscope.shared.loaded.facts import Scope, TensorStatus
from headscope.shared.loaded.head_memory import HeadMemory
from headscope.slices.loaded.save_verification import SaveWatch, selection_of_saves
from tests.edits import edit_json, edit_tensors
from tests.families import FAMILIES
from tests.saving import FORMATS
from tests.verification.tiny import HEAD, TINY, ids, loaded, reloaded

LABELS = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    BertModel(BertConfig(**TINY)).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def model(base: Path) -> BertForSequenceClassification:
    made = loaded(base, **LABELS)
    nn.init.normal_(made.classifier.bias)
    return made


@pytest.fixture
def folder(model: Any, tmp_path: Path) -> Path:
    model.save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


def lacking(folder: Path, cls: Any = BertForSequenceClassification) -> set[str]:
    """What the loader makes random."""
    _, info = cls.from_pretrained(folder, output_loading_info=True)
    return set(info["missing_keys"])


# Healthy saves raise no alarm.

OWN = [(name, saved_as) for name in ("bert", "roberta", "gpt2", "t5", "deberta-v2", "llama") for saved_as in FORMATS]
OWN += [(name, "safetensors") for name in ("distilbert", "modernbert", "vit")]


@pytest.mark.parametrize(("name", "saved_as"), OWN)
def test_a_whole_save_passes(name: str, saved_as: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    model = family.build(family.classifier)
    FORMATS[saved_as](model, tmp_path)
    result = headscope.verify_save(model, tmp_path)
    assert (result.verdict, ids(result)) == (Verdict.PASSED, []), str(result)
    assert {item.status for item in result.tensors} == {TensorStatus.EQUAL}
    assert result.scope.compared == result.scope.tensors == len(model.state_dict())


def merged(model: Any) -> Any:
    return peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"])).merge_and_unload()


@pytest.mark.parametrize(
    "change",
    [lambda model: model.bfloat16(), lambda model: model.half(), lambda model: model.double(), merged],
    ids=["bfloat16", "float16", "float64", "merged"],
)
@pytest.mark.parametrize("shard", ["1GB", "20kB"])
def test_a_save_of_what_the_model_has_become_passes(
    model: Any, change: Callable[[Any], Any], shard: str, tmp_path: Path
) -> None:
    changed = change(model)
    changed.save_pretrained(tmp_path / "saved", max_shard_size=shard)
    assert (len(list((tmp_path / "saved").glob("*.safetensors"))) > 1) is (shard == "20kB")
    result = headscope.verify_save(changed, tmp_path / "saved")
    assert (result.verdict, result.findings) == (Verdict.PASSED, ())


def test_the_whole_model_is_read_and_with_head_the_head_alone(model: Any, folder: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    result = headscope.verify_save(model, folder)
    assert result.bytes_read == sum(item.nbytes for item in stored.values())
    assert result.scope == Scope(len(stored), len(stored))
    assert " live model: 41 of 41 tensors" in str(result)
    result = headscope.verify_save(model, folder, head=True)
    assert result.bytes_read == sum(stored[name].nbytes for name in HEAD)
    assert result.scope == Scope(len(stored), len(HEAD), head_only=True)
    assert " live head: 4 of 41 tensors" in str(result)
    assert "not compared" in " ".join(str(result).split())


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"task_type": "SEQ_CLS", "target_modules": ["query"]}, "default"),
        ({"modules_to_save": ["classifier"], "target_modules": ["query"]}, "default"),
        ({"task_type": "SEQ_CLS", "target_modules": ["query", "pooler.dense"]}, "mine"),
    ],
    ids=["by its task", "by its name", "another name, and LoRA in the head"],
)
def test_an_adapter_with_its_head_passes(model: Any, options: dict[str, Any], name: str, tmp_path: Path) -> None:
    wrapped = peft.get_peft_model(model, peft.LoraConfig(**options), adapter_name=name)
    wrapped.save_pretrained(tmp_path / "adapter")
    result = headscope.verify_save(wrapped, tmp_path / "adapter")
    assert (result.verdict, result.findings) == (Verdict.PASSED, ()), result.not_determined
    statuses = {item.name: item.status for item in result.tensors}
    assert statuses[f"classifier.modules_to_save.{name}.weight"] is TensorStatus.EQUAL
    in_head = {status for path, status in statuses.items() if path.startswith("bert.pooler.dense.lora_A")}
    assert in_head == ({TensorStatus.EQUAL} if name == "mine" else set())
    pooler = "bert.pooler.dense.base_layer.weight" if in_head else "bert.pooler.dense.weight"
    assert statuses[pooler] is TensorStatus.BASE


IN_THE_HEAD = [
    peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query", "pooler.dense"]),
    peft.LoraConfig(task_type="SEQ_CLS", target_modules=["pooler.dense"], use_dora=True),
    peft.OFTConfig(task_type="SEQ_CLS", target_modules=["pooler.dense"], oft_block_size=8, r=0),
]


@pytest.mark.parametrize("number", range(len(IN_THE_HEAD)))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_merged_save_of_a_live_adapter_passes(model: Any, number: int, dtype: torch.dtype, tmp_path: Path) -> None:
    """An independent merge, by PEFT on a copy of the whole model, is what the save holds."""
    wrapped = peft.get_peft_model(model.to(dtype), IN_THE_HEAD[number])
    with torch.no_grad():
        for name, item in wrapped.named_parameters():
            if item.requires_grad and "modules_to_save" not in name:
                item.add_(torch.randn_like(item), alpha=0.1)
    wrapped.save_pretrained(tmp_path / "adapter")
    deepcopy(wrapped).merge_and_unload().save_pretrained(tmp_path / "merged")
    stored = load_file(tmp_path / "merged" / "model.safetensors")
    own = wrapped.base_model.model.bert.pooler.dense.base_layer.weight
    assert not torch.equal(stored["bert.pooler.dense.weight"], own)
    result = headscope.verify_save(wrapped, tmp_path / "merged")
    assert (result.verdict, ids(result)) == (Verdict.PASSED, []), str(result)
    found = {item.name: item.status for item in result.tensors}
    assert found["bert.pooler.dense.base_layer.weight"] is TensorStatus.MERGED

    saved = tmp_path / "merged" / "model.safetensors"
    edit_tensors(saved, lambda state: state | {"bert.pooler.dense.weight": own.detach()})
    result = headscope.verify_save(wrapped, tmp_path / "merged")
    assert ids(result) == ["HS711"], str(result)
    edit_tensors(saved, lambda state: state | {"bert.pooler.dense.weight": own.detach() + 7})
    assert "HS713" in ids(headscope.verify_save(wrapped, tmp_path / "merged"))


# Each fault is made for real, and caught.


def test_one_more_step_after_the_save_is_seen(model: Any, folder: Path) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(input_ids=torch.tensor([[5, 6, 7]]), labels=torch.tensor([1])).loss.backward()
    optimizer.step()
    result = headscope.verify_save(model, folder)
    assert ids(result) == ["HS713", "HS719"]
    assert ids(headscope.verify_save(model, folder, head=True)) == ["HS713"]
    stored = load_file(folder / "model.safetensors")
    now = model.state_dict()
    assert set(result.findings[0].parameters) == {name for name in HEAD if not torch.equal(stored[name], now[name])}
    errors = {item.name: item.max_error for item in result.tensors}
    assert errors["classifier.weight"] == pytest.approx(
        float((stored["classifier.weight"] - now["classifier.weight"]).abs().max()), rel=1e-6
    )


@pytest.mark.parametrize("unfrozen", [False, True])
def test_an_adapter_without_its_head_is_caught(base: Path, unfrozen: bool, tmp_path: Path) -> None:
    wrapped = peft.get_peft_model(loaded(base, **LABELS), peft.LoraConfig(task_type=None, target_modules=["query"]))
    wrapped.base_model.model.classifier.requires_grad_(unfrozen)
    wrapped.save_pretrained(tmp_path / "adapter")
    assert not any("classifier" in key for key in load_file(tmp_path / "adapter" / "adapter_model.safetensors"))
    result = headscope.verify_save(wrapped, tmp_path / "adapter")
    assert ids(result) == ["HS714"]
    assert set(result.findings[0].parameters) == {"classifier.weight", "classifier.bias"}
    assert "modules_to_save=['classifier']" in result.findings[0].remedy
    again = peft.PeftModel.from_pretrained(loaded(base, **LABELS), tmp_path / "adapter")
    assert not torch.equal(again.base_model.model.classifier.weight, wrapped.base_model.model.classifier.weight)


def test_a_trained_head_of_a_checkpoint_that_the_adapter_lacks_is_caught(model: Any, tmp_path: Path) -> None:
    trained = reloaded(model, tmp_path / "whole")
    wrapped = peft.get_peft_model(trained, peft.LoraConfig(target_modules=["query"]))
    wrapped.save_pretrained(tmp_path / "adapter")
    assert headscope.verify_save(wrapped, tmp_path / "adapter").verdict is Verdict.PASSED
    with torch.no_grad():
        trained.classifier.weight += 1
    wrapped.save_pretrained(tmp_path / "adapter")
    result = headscope.verify_save(wrapped, tmp_path / "adapter")
    assert ids(result) == ["HS714"]
    assert result.findings[0].parameters == ("classifier.weight",)


def test_an_adapter_on_a_base_that_is_not_there_is_not_determined(model: Any, tmp_path: Path) -> None:
    wrapped = peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"]))
    wrapped.save_pretrained(tmp_path / "adapter")
    (tmp_path / "base").rename(tmp_path / "moved")
    result = headscope.verify_save(wrapped, tmp_path / "adapter", offline=True)
    assert result.verdict is Verdict.NOT_DETERMINED
    assert any("pooler" in gap.topic for gap in result.not_determined)


def test_labels_that_the_save_lost_or_has_in_another_order_are_caught(model: Any, folder: Path) -> None:
    own, model.config.id2label = model.config.id2label, {0: "yes", 1: "no"}
    assert ids(headscope.verify_save(model, folder)) == ["HS715"]
    model.config.id2label = own
    edit_json(folder / "config.json", {}, without=("id2label", "label2id"))
    assert loaded(folder).config.id2label == {0: "LABEL_0", 1: "LABEL_1"}
    result = headscope.verify_save(model, folder)
    assert (result.verdict, ids(result)) == (Verdict.FAILED, ["HS715"])


def test_a_model_without_names_of_classes_lost_none(tmp_path: Path) -> None:
    model = BertForTokenClassification(BertConfig(**TINY, num_labels=5))
    model.save_pretrained(tmp_path)
    assert ids(headscope.verify_save(model, tmp_path)) == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_shorter_dtype_is_a_warning(model: Any, dtype: torch.dtype, tmp_path: Path) -> None:
    model.save_pretrained(
        tmp_path / "saved", state_dict={name: item.to(dtype) for name, item in model.state_dict().items()}
    )
    result = headscope.verify_save(model, tmp_path / "saved")
    assert ids(result) == ["HS716"]
    assert result.verdict is Verdict.PASSED
    assert str(dtype).removeprefix("torch.") in result.findings[0].message
    assert headscope.verify_save(model, tmp_path / "saved", fail_on="warning").verdict is Verdict.FAILED


def test_a_longer_dtype_is_a_warning(model: Any, folder: Path) -> None:
    assert ids(headscope.verify_save(model.to(torch.bfloat16), folder)) == ["HS716"]


def test_a_shard_that_was_deleted_is_caught(model: Any, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    model.save_pretrained(folder, max_shard_size="20kB")
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    (folder / index["classifier.weight"]).unlink()
    with pytest.raises(OSError, match="safetensors"):
        BertForSequenceClassification.from_pretrained(folder)
    result = headscope.verify_save(model, folder)
    assert ids(result) == ["HS717"]
    assert index["classifier.weight"] in result.findings[0].message
    assert result.verdict is Verdict.FAILED


def test_a_live_placeholder_is_not_determined(model: Any, folder: Path) -> None:
    memory = HeadMemory(unwrap(model), HEAD)
    model.classifier.weight.data = torch.empty(0)
    result = SaveWatch(memory, selection_of_saves()).compare(model, folder)
    assert result.verdict is Verdict.NOT_DETERMINED
    assert result.not_determined[0].topic == "classifier.weight"


def test_a_head_that_the_save_of_a_sharded_model_left_out_is_caught(model: Any, tmp_path: Path) -> None:
    """No process holds the whole numbers; that the save has no key for the head shows without them."""
    model.save_pretrained(tmp_path / "whole")
    model.bert.save_pretrained(tmp_path / "saved")
    watch = SaveWatch(HeadMemory(replace(unwrap(model), is_sharded=True), HEAD), selection_of_saves(ignore="HS715"))
    assert watch.compare(model, tmp_path / "whole").verdict is Verdict.NOT_DETERMINED
    result = watch.compare(model, tmp_path / "saved")
    assert (result.verdict, ids(result)) == (Verdict.FAILED, ["HS711"])
    found = {item.name: item.status for item in result.tensors}
    assert found["classifier.bias"] is TensorStatus.RANDOM
    assert found["classifier.weight"] is TensorStatus.UNKNOWN  # its shape is also that of the token types' embeddings
    assert set(result.findings[0].parameters) <= lacking(tmp_path / "saved")
    edit_tensors(
        tmp_path / "whole" / "model.safetensors", lambda state: {f"model.{key}": item for key, item in state.items()}
    )
    assert watch.compare(model, tmp_path / "whole").verdict is Verdict.NOT_DETERMINED


# What cannot be read is an error or is not determined, and never passed.


def test_an_empty_folder_is_not_determined(model: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = headscope.verify_save(model, tmp_path / "empty")
    assert result.verdict is Verdict.NOT_DETERMINED


def test_a_folder_that_is_not_there_is_an_error(model: Any, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nowhere"):
        headscope.verify_save(model, tmp_path / "nowhere")


def test_a_name_in_place_of_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="in memory"):
        headscope.verify_save(str(tmp_path), tmp_path)
    with pytest.raises(UsageError, match="rulez"):
        headscope.verify_save(nn.Linear(1, 1), tmp_path, rulez=())
    with pytest.raises(UsageError, match="HS701"):
        headscope.verify_save(nn.Linear(1, 1), tmp_path, select="HS701")


def test_a_model_whose_head_cannot_be_traced_is_compared_whole(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    result = headscope.verify_save(model, tmp_path)
    assert {item.name for item in result.tensors} == set(model.state_dict())
    assert result.verdict is Verdict.PASSED
    with torch.no_grad():
        model[1].bias += 1
    assert ids(headscope.verify_save(model, tmp_path)) == ["HS713"]


def test_a_result_shows_itself_and_is_a_document(model: Any, tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    from scripts.pages.write_schema import build_schema

    model.bert.save_pretrained(tmp_path / "saved")
    result = headscope.verify_save(model, tmp_path / "saved")
    assert "not hold" in str(result)
    assert "HS711" in str(result)
    jsonschema.validate(result.to_dict(), build_schema())


# Accelerate: one call after the save.


@pytest.mark.parametrize("safe", [True, False])
def test_saves_of_accelerate_pass(model: Any, safe: bool, tmp_path: Path) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    prepared, _ = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    accelerator.save_model(prepared, str(tmp_path / "model"), safe_serialization=safe)
    accelerator.save_state(str(tmp_path / "state"), safe_serialization=safe)
    for folder in ("model", "state"):
        result = headscope.verify_save(prepared, tmp_path / folder)
        assert result.verdict is Verdict.PASSED, (result.findings, result.not_determined)
        assert {item.severity.value for item in result.findings} <= {"note"}
    with torch.no_grad():
        model.classifier.bias += 1
    for folder in ("model", "state"):
        assert "HS713" in ids(headscope.verify_save(prepared, tmp_path / folder))


def test_a_fully_broken_file_is_an_error(model: Any, folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x00" * 100)
    with pytest.raises(Malformed):
        headscope.verify_save(model, folder)
