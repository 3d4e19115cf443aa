"""A probe batch made from a caller's own example inputs: stretched to sizes that nothing else has, padded in turn."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from headscope.errors import UsageError
from headscope.trace.inputs import Sizes
from headscope.trace.probe import Probe, free_sizes, make_rows

_TOKEN_RANK = 2


def probe_from_examples(model: nn.Module, examples: Any) -> Probe:
    """`examples` (a mapping of arguments, one tensor, or a sequence of tensors in order) as a probe.

    Rows are repeated until their number, and columns of token tensors until their length, occurs nowhere in the
    model; an `attention_mask` gets rows without, with right and with left padding. Raises UsageError without tensors.
    """
    named = _named(model, examples)
    tensors = [value for value in named.values() if isinstance(value, torch.Tensor) and value.dim()]
    if not tensors:
        raise UsageError("the example inputs hold no tensor with a batch axis", "give what the model's forward takes")
    batch, length = tensors[0].shape[0], _token_length(tensors)
    taken = {size for parameter in model.parameters() for size in parameter.shape}
    taken |= {size for value in tensors for size in value.shape[1:] if size != length}
    sizes = free_sizes(taken, has_tokens=length > 0)
    inputs = {name: _stretched(value, batch, length, sizes) for name, value in named.items()}
    rows = make_rows(sizes)
    if length and "attention_mask" in inputs:
        mask = [[int(row.first <= at <= row.last) for at in range(sizes.length)] for row in rows]
        inputs["attention_mask"] = torch.tensor(mask, device=tensors[0].device).to(inputs["attention_mask"].dtype)
    return Probe(inputs, {}, sizes, rows if length else ())


def _named(model: nn.Module, examples: Any) -> dict[str, Any]:
    if isinstance(examples, Mapping):
        return dict(examples)
    values = [examples] if isinstance(examples, torch.Tensor) else list(examples)
    names = [name for name in _argument_names(model) if name != "self"]
    return dict(zip(names, values, strict=False))


def _argument_names(model: nn.Module) -> tuple[str, ...]:
    code = getattr(model.forward, "__code__", None)
    return code.co_varnames[: code.co_argcount] if code else ()


def _token_length(tensors: list[torch.Tensor]) -> int:
    """The length of the first batch of whole numbers, which are tokens; 0 without any."""
    tokens = (item for item in tensors if item.dim() == _TOKEN_RANK and not item.is_floating_point())
    return next((item.shape[1] for item in tokens), 0)


def _stretched(value: Any, batch: int, length: int, sizes: Sizes) -> Any:
    if not isinstance(value, torch.Tensor) or not value.dim() or value.shape[0] != batch:
        return value
    rows = torch.arange(sizes.batch, device=value.device) % batch
    stretched = value.index_select(0, rows)
    if length and value.dim() >= _TOKEN_RANK and value.shape[1] == length:
        stretched = stretched.index_select(1, torch.arange(sizes.length, device=value.device) % length)
    return stretched
