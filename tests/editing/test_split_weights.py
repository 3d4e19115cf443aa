"""Weights in parts: parts that overlap, lack numbers or lie are refused with a sentence."""

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from headscope.core.checkpoints.states.deepspeed import MergeZero
from headscope.core.checkpoints.states.distributed import MergeDistributed
from headscope.core.checkpoints.states.training_file import SavePickledModel
from headscope.errors import Malformed, Unsupported
from headscope.slices.repair.split_weights import split_tensors


def distributed(folder: Path, parts: list[tuple[int, torch.Tensor]], size: int, dtype: torch.dtype) -> torch.Tensor:
    """What headscope reads of one vector whose parts begin at these places."""
    content, chunks, stored = b"", [], {}
    for begin, part in parts:
        file = io.BytesIO()
        torch.save(part, file)
        chunks.append(ChunkStorageMetadata(torch.Size([begin]), part.shape))
        place = MetadataIndex("w", torch.Size([begin]), len(chunks))
        stored[place] = _StorageInfo("__0_0.distcp", len(content), len(file.getvalue()))
        content += file.getvalue()
    (folder / "__0_0.distcp").write_bytes(content)
    tensor = TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size([size]), chunks)
    (folder / ".metadata").write_bytes(pickle.dumps(Metadata({"w": tensor}, None, stored)))
    found = split_tensors(MergeDistributed(".", (), True), folder)
    assert found is not None and found["w"].numbers is not None
    return found["w"].numbers()


def test_parts_give_every_number_once_in_the_dtype_that_is_described(tmp_path: Path) -> None:
    one, two = torch.arange(4.0), torch.arange(4.0, 8.0)
    assert torch.equal(distributed(tmp_path, [(0, one), (4, two)], 8, torch.float32), torch.arange(8.0))
    for parts, match in (
        ([(0, one), (2, two)], "twice"),
        ([(0, one), (2, two), (6, one[:2])], "twice"),
        ([(0, one), (6, two[:2])], "6 of 8 numbers"),
        ([(0, one), (4, two.double())], "float64"),
        ([(0, one), (6, two)], "doesn't hold the part"),
    ):
        with pytest.raises(Malformed, match=match):
            distributed(tmp_path, parts, 8, torch.float32)
    with pytest.raises(Malformed, match="fewer numbers"):
        distributed(tmp_path, [(0, one)], 10**9, torch.float32)


def zero(folder: Path, stage: int, model: Any = None, optimizer: Any = None, ranks: int = 2) -> dict[str, Any]:
    """What headscope reads of two processes with a matrix of 15 numbers and a frozen one of 6; both may be changed."""
    numbers, frozen = torch.arange(16.0), torch.arange(6.0)
    for rank in range(ranks):
        name = f"zero_pp_rank_{rank}_mp_rank_00"
        fragment = frozen.reshape(2, 3) if stage < 3 else frozen[3 * rank : 3 * rank + 3]
        held: Any = {
            "module": {"mask": torch.ones(2)}, "buffer_names": ["mask"], "param_shapes": [{"w": torch.Size([3, 5])}],
            "frozen_param_shapes": {"f": torch.Size([2, 3])}, "frozen_param_fragments": {"f": fragment},
            "shared_params": {"second": "w"},
        }  # fmt: skip
        held = model(held) if model else held
        if stage == 3 or not rank:
            torch.save(held, folder / f"{name if stage == 3 else 'mp_rank_00'}_model_states.pt")
        key = "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"
        state: Any = {"zero_stage": stage, "partition_count": 2, key: [numbers[8 * rank : 8 * rank + 8].clone()]}
        state = optimizer(state, key) if optimizer else state
        torch.save({"optimizer_state_dict": state}, folder / f"{name}_optim_states.pt")
    found = split_tensors(MergeZero(".", "", has_script=False), folder)
    assert found is not None
    return {name: item.numbers() for name, item in found.items() if item.numbers is not None}


@pytest.mark.parametrize("stage", [2, 3])
def test_zero_gives_weights_buffers_frozen_and_shared_parameters(stage: int, tmp_path: Path) -> None:
    found = zero(tmp_path, stage)
    assert sorted(found) == ["f", "mask", "second", "w"]
    assert torch.equal(found["w"], torch.arange(15.0).reshape(3, 5)) and torch.equal(found["second"], found["w"])
    assert torch.equal(found["f"], torch.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("count", [4, 12])
def test_numbers_that_no_parameter_takes_are_refused(count: int, stage: int, tmp_path: Path) -> None:
    with pytest.raises(Malformed, match=r"15 numbers|8 numbers"):
        zero(tmp_path, stage, optimizer=lambda state, key: state | {key: [torch.arange(float(count))]})


def test_padding_to_the_alignment_of_zero_is_none_of_them(tmp_path: Path) -> None:
    with pytest.raises(Malformed, match="gives 20"):
        zero(tmp_path, 2, optimizer=lambda state, key: state | {key: [torch.cat([state[key][0], torch.zeros(2)])]})


def _with(**changed: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda held: held | changed


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize(
    "model",
    [
        _with(param_shapes=[7]), _with(param_shapes=5), _with(param_shapes=[{"w": (3, "x")}]),
        _with(param_shapes=[{"w": torch.Size([3, 5])}] * 2 + [{"x": torch.Size([9])}]),
        _with(frozen_param_shapes=[1]), _with(frozen_param_fragments=7), _with(frozen_param_fragments={"f": [1]}),
        _with(frozen_param_fragments={"f": torch.tensor(1.0)}), _with(param_shapes=[{"w": (2**40, 2**20)}]),
        lambda held: [held], lambda held: 7,
    ],
)  # fmt: skip
def test_files_of_deepspeed_that_lie_are_a_sentence(model: Any, stage: int, tmp_path: Path) -> None:
    with pytest.raises((Malformed, Unsupported)):
        zero(tmp_path, stage, model)


@pytest.mark.parametrize("optimizer", [
    lambda state, key: 7, lambda state, key: state | {key: [torch.ones(()).expand(8)]},
    lambda state, key: state | {key: 7}, lambda state, key: state | {"partition_count": {}},
])  # fmt: skip
def test_states_of_an_optimizer_that_lie_are_a_sentence(optimizer: Any, tmp_path: Path) -> None:
    with pytest.raises((Malformed, Unsupported)):
        zero(tmp_path, 2, optimizer=optimizer)


def test_names_that_are_no_list_are_none(tmp_path: Path) -> None:
    found = zero(tmp_path, 2, _with(buffer_names=7, shared_params={"second": [1], "third": {}}))
    assert sorted(found) == ["f", "w"]


def test_files_of_some_processes_are_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(Malformed):
        zero(tmp_path, 2, ranks=1)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(Malformed):
        split_tensors(MergeZero("nothing", "", has_script=False), tmp_path)


def test_a_pickled_module_whose_names_are_a_number_is_read(tmp_path: Path) -> None:
    module = torch.nn.BatchNorm1d(2)
    module._non_persistent_buffers_set = _SevenNames()  # type: ignore[assignment]
    torch.save(module, tmp_path / "model.pt")
    found = split_tensors(SavePickledModel("model.pt", is_of_transformers=False), tmp_path)
    assert found is not None and sorted(found)[:2] == ["bias", "num_batches_tracked"]


class _SevenNames(set):  # type: ignore[type-arg]
    """A set that a pickle makes from a number."""

    def __reduce__(self) -> tuple[Any, ...]:
        return set, (7,)
