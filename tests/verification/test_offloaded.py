"""Models whose weights Accelerate keeps on the disk or in the CPU's memory: their real values are compared."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from accelerate import cpu_offload, disk_offload

import headscope
from headscope.core.facts.verdict import Verdict
from headscope.core.source.live.module import unwrap
from headscope.shared.loaded.head_memory import HeadMemory
from headscope.slices.loaded.save_verification import SaveWatch, selection_of_saves
from tests.verification.tiny import loaded

TOKENS = torch.arange(9)[None]


def to_cpu(model: Any, folder: Path) -> Any:
    return cpu_offload(model, execution_device=torch.device("cpu"))


def to_disk(model: Any, folder: Path) -> Any:
    return disk_offload(model, str(folder / "offloaded"), execution_device=torch.device("cpu"))


WAYS = [to_cpu, to_disk]


@pytest.mark.parametrize("offload", WAYS)
def test_an_offloaded_model_is_compared(saved: Path, offload: Callable[..., Any], tmp_path: Path) -> None:
    model = offload(loaded(saved), tmp_path)
    assert all(item.is_meta for item in model.parameters())
    before = model(input_ids=TOKENS).logits
    result = headscope.verify(model, saved)
    assert result.verdict is Verdict.PASSED, str(result)
    assert len([item for item in result.tensors if item.status == "equal"]) == len(list(model.parameters()))
    save = headscope.verify_save(model, saved)
    assert (save.verdict, len(save.tensors)) == (Verdict.PASSED, 41), str(save)
    assert all(item.is_meta for item in model.parameters())
    assert torch.equal(model(input_ids=TOKENS).logits, before)


@pytest.mark.parametrize("offload", WAYS)
def test_an_offloaded_head_that_changed_is_caught(
    saved: Path, model: Any, offload: Callable[..., Any], tmp_path: Path
) -> None:
    with torch.no_grad():
        model.classifier.weight += 1
    model = offload(model, tmp_path)
    assert not torch.equal(model(input_ids=TOKENS).logits, loaded(saved)(input_ids=TOKENS).logits)
    assert [item.id for item in headscope.verify(model, saved).findings] == ["HS701"]
    assert [item.id for item in headscope.verify_save(model, saved).findings] == ["HS713"]


@pytest.mark.parametrize("classifier", ["cpu", "disk"])
def test_a_device_map_with_a_disk_is_compared(saved: Path, classifier: str, tmp_path: Path) -> None:
    model = loaded(
        saved, device_map={"bert": "disk", "classifier": classifier}, offload_folder=str(tmp_path / "offloaded")
    )
    result = headscope.verify(model, saved)
    assert result.verdict is Verdict.PASSED, str(result)
    model.save_pretrained(tmp_path / "again")
    assert headscope.verify_save(model, tmp_path / "again").verdict is Verdict.PASSED


def test_an_offloaded_adapter_is_compared(saved: Path, tmp_path: Path) -> None:
    wrapped = peft.get_peft_model(loaded(saved), peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"]))
    wrapped.save_pretrained(tmp_path / "adapter")
    model = to_cpu(wrapped, tmp_path)
    result = headscope.verify(model, saved, adapter=tmp_path / "adapter")
    assert result.verdict is Verdict.PASSED, str(result)


def test_numbers_that_are_gone_are_not_determined(saved: Path, tmp_path: Path) -> None:
    model = to_disk(loaded(saved), tmp_path)
    shutil.rmtree(tmp_path / "offloaded")
    for result in (headscope.verify(model, saved), headscope.verify_save(model, saved)):
        assert result.verdict is Verdict.NOT_DETERMINED
        assert "read back" in result.not_determined[0].reason
        assert len(result.not_determined) == 1


def test_the_head_of_an_offloaded_model_is_traced(saved: Path, tmp_path: Path) -> None:
    whole, model = headscope.inspect(loaded(saved)), headscope.inspect(to_cpu(loaded(saved), tmp_path))
    assert model.head.formula == whole.head.formula
    assert [item.name for item in model.head.parameters] == [item.name for item in whole.head.parameters]


def test_a_save_of_which_nothing_was_compared_is_never_green(model: Any, saved: Path) -> None:
    result = SaveWatch(HeadMemory(unwrap(model), ()), selection_of_saves()).compare(model, saved)
    assert result.verdict is Verdict.NOT_DETERMINED
