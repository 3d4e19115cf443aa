"""Shapes that are found once: what comes from them is what PyTorch itself gives, and nothing else is kept."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import BertConfig, BertForSequenceClassification, ConvNextConfig, ConvNextForImageClassification

from headscope.core.trace.record import engine
from headscope.core.trace.record.engine import run_by_shape

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def none_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[Any, Any]]:
    known: dict[Any, Any] = {}
    monkeypatch.setattr(engine, "_known_results", known)
    yield known


def meta(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(*sizes, dtype=dtype, device="meta")


def described(result: Any) -> Any:
    tensors = [result] if isinstance(result, torch.Tensor) else list(result)
    return type(result), [(item.shape, item.stride(), item.dtype, item.device) for item in tensors]


CALLS = {
    "a sum": (aten.add.Tensor, (meta(2, 3), meta(3)), {}),
    "an integer is no float": (aten.mul.Tensor, (meta(2, dtype=torch.int64), 2), {}),
    "a float": (aten.mul.Tensor, (meta(2, dtype=torch.int64), 2.0), {}),
    "a truth": (aten.mul.Tensor, (meta(2, dtype=torch.int64), True), {}),
    "strides": (aten.clone.default, (meta(4, 3).t(),), {}),
    "no strides": (aten.clone.default, (meta(3, 4),), {}),
    "a dtype": (aten._to_copy.default, (meta(2, 3),), {"dtype": torch.bfloat16}),
    "three results": (aten.native_layer_norm.default, (meta(2, 3, 4), [4], meta(4), meta(4), 1e-5), {}),
    "a list of tensors": (aten.cat.default, ([meta(2, 3), meta(2, 5)], 1), {}),
    "a mean": (aten.mean.dim, (meta(2, 3, 4), [1]), {"keepdim": True}),
}


def test_a_result_by_shape_is_what_pytorch_gives_and_calls_that_differ_share_none(none_known: dict[Any, Any]) -> None:
    wanted = {name: described(func(*args, **kwargs)) for name, (func, args, kwargs) in CALLS.items()}
    for _ in range(2):
        found = {name: described(run_by_shape(func, args, kwargs)) for name, (func, args, kwargs) in CALLS.items()}
        assert found == wanted
        assert len(none_known) == len(CALLS)


def test_the_default_dtype_takes_part() -> None:
    operands = meta(2, dtype=torch.int64), meta(2, dtype=torch.int64)
    assert run_by_shape(aten.div.Tensor, operands, {}).dtype is torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert run_by_shape(aten.div.Tensor, operands, {}).dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("func", "args"),
    [
        (aten.view.default, (meta(2, 3), [3, 2])),
        (aten._unsafe_view.default, (meta(2, 3), [3, 2])),  # PyTorch's table does not say that it aliases
        (aten.add_.Tensor, (meta(2), meta(2))),
        (aten.alias.default, (meta(2),)),
    ],
    ids=str,
)
def test_what_shares_memory_is_run_each_time(func: Any, args: tuple[Any, ...], none_known: dict[Any, Any]) -> None:
    for _ in range(2):
        made = run_by_shape(func, args, {})
        assert made.untyped_storage()._cdata == args[0].untyped_storage()._cdata
    assert none_known == {}


class Compared(TorchDispatchMode):
    """Runs each operator both ways."""

    compared = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        real = func(*args, **kwargs)
        if isinstance(real, torch.Tensor) and real.is_meta and not func._schema.is_mutable:
            assert described(run_by_shape(func, args, kwargs)) == described(real), func
            type(self).compared += 1
        return real


@pytest.mark.parametrize(
    ("model_class", "config", "given"),
    [
        (BertForSequenceClassification, BertConfig(num_hidden_layers=3), meta(2, 5, dtype=torch.int64)),
        (ConvNextForImageClassification, ConvNextConfig(), meta(2, 3, 64, 64)),
    ],
)
def test_every_operator_of_a_model_has_the_shape_that_pytorch_gives(
    model_class: Any, config: Any, given: torch.Tensor, none_known: dict[Any, Any]
) -> None:
    with torch.device("meta"):
        model = model_class(config).eval()
        with torch.no_grad(), Compared():
            model(given)
    assert Compared.compared > len(none_known) > 0
