"""Probe batches made from a caller's own example inputs: stretched to sizes that nothing else has, padded in turn."""

from collections.abc import Mapping
from inspect import Parameter
from typing import Any

import torch
from torch import nn

from headscope.core.trace.batch.inputs import ProbeRow, Sizes, forward_parameters, mask_of_rows
from headscope.core.trace.batch.probe_batch import (
    ProbeBatch,
    free_sizes,
    lengths_of_turn,
    longest_text,
    make_rows,
    resize_input,
)
from headscope.errors import UsageError

_TOKEN_RANK = 2


def probe_from_examples(
    model: nn.Module, examples: Any, avoid: frozenset[int] = frozenset(), turn: int = 0
) -> ProbeBatch:
    """Builds a probe from `examples` (a mapping of arguments, one tensor, or a sequence of tensors in order).

    Rows are repeated until their number, and columns of token tensors until their length, occurs nowhere in the
    model; an `attention_mask`, and the `input_ids` of a model whose configuration names a pad token, get rows without,
    with right and with left padding. Each `turn` has other sizes (none of `avoid`) and other rows padded. Raises
    UsageError without tensors.
    """
    named = named_examples(model, examples)
    tensors = [value for value in named.values() if isinstance(value, torch.Tensor) and value.dim()]
    empty = next((name for name, value in named.items() if isinstance(value, torch.Tensor) and not value.numel()), None)
    if empty is not None:
        shape = list(named[empty].shape)
        raise UsageError(f"the example input {empty} is empty: its shape is {shape}", "give at least one row with data")
    batch, length = tensors[0].shape[0], _token_length(tensors)
    # An axis is recognized by its size, so no parameter and no other axis of the examples may have the same one.
    taken = {size for parameter in model.parameters() for size in parameter.shape}
    taken |= {size for value in tensors for size in value.shape[1:] if size != length}
    config = getattr(model, "config", None)
    sizes = free_sizes(
        taken | avoid, has_tokens=length > 0, lengths=lengths_of_turn(turn, longest_text(config)), turn=turn
    )
    inputs = {name: resize_input(value, Sizes(batch, length), sizes) for name, value in named.items()}
    rows = make_rows(sizes, turn)
    # Integers may be lengths, positions or token ids that the caller chose: what a head finds by them doesn't follow
    # from the padding that the probe makes.
    given = {name for name, item in inputs.items() if isinstance(item, torch.Tensor) and not item.is_floating_point()}
    if length and "attention_mask" in inputs:
        dtype = inputs["attention_mask"].dtype
        inputs["attention_mask"] = mask_of_rows(rows, sizes.length).to(tensors[0].device, dtype)
        given.discard("attention_mask")
    pad = getattr(config, "pad_token_id", None)
    if length and isinstance(pad, int) and "input_ids" in inputs:
        inputs["input_ids"] = _place_special_tokens(
            inputs["input_ids"], rows, pad, getattr(config, "eos_token_id", None)
        )
        given.discard("input_ids")
    return ProbeBatch(inputs, {}, sizes, rows if length else (), frozenset(given), named)


def probe_as_given(model: nn.Module, examples: Any) -> ProbeBatch:
    """Keeps a caller's inputs as they are and reads each row's padding; without rows if it is between tokens."""
    named = named_examples(model, examples)
    tensors = [value for value in named.values() if isinstance(value, torch.Tensor) and value.dim()]
    batch, length = tensors[0].shape[0], _token_length(tensors)
    config, ids = getattr(model, "config", None), named.get("input_ids")
    mask: Any = named.get("attention_mask")
    pad, eos = (getattr(config, f"{name}_token_id", None) for name in ("pad", "eos"))
    if not isinstance(mask, torch.Tensor):
        has_pads = isinstance(ids, torch.Tensor) and isinstance(pad, int)
        mask = torch.as_tensor(ids != pad) if has_pads else torch.ones(batch, length)
    rows = []
    for at in range(batch if length and mask.shape == (batch, length) else 0):
        kept = mask[at].nonzero().flatten().tolist()
        # A row is described by its first and last token. A mask with a hole has no such description.
        if not kept or len(kept) != kept[-1] - kept[0] + 1:
            return ProbeBatch(named, {}, Sizes(batch, length), ())
        ends = (
            (ids[at] == eos).nonzero().flatten().tolist() if isinstance(ids, torch.Tensor) and eos is not None else []
        )
        rows.append(ProbeRow(kept[0], kept[-1], ends[0] if ends else -1))
    return ProbeBatch(named, {}, Sizes(batch, length), tuple(rows))


def named_examples(model: nn.Module, examples: Any) -> dict[str, Any]:
    """Maps `examples` to the forward's argument names. Raises UsageError without any tensor with a batch axis."""
    named = _examples_by_name(model, examples)
    if not any(isinstance(value, torch.Tensor) and value.dim() for value in named.values()):
        raise UsageError("the example inputs hold no tensor with a batch axis", "give what the model's forward takes")
    return named


def _examples_by_name(model: nn.Module, examples: Any) -> dict[str, Any]:
    if isinstance(examples, Mapping):
        return {str(name): value for name, value in examples.items()}
    if isinstance(examples, torch.Tensor):
        values = [examples]
    elif isinstance(examples, tuple | list):
        values = list(examples)
    else:
        raise UsageError(
            f"example_inputs is a {type(examples).__name__}, not tensors",
            "give a mapping of arguments, a tensor, or several tensors in order",
        )
    # Those that the forward takes by position; for a decorated forward, those of the function inside.
    by_position = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    names = [item.name for item in forward_parameters(model) if item.kind in by_position]
    if len(values) > len(names):
        raise UsageError(
            f"{len(values)} example inputs were given, but the forward of {type(model).__name__} names "
            f"{len(names)} arguments{': ' + ', '.join(names) if names else ''}",
            "give a mapping of the arguments' names",
        )
    return dict(zip(names, values, strict=False))


def _token_length(tensors: list[torch.Tensor]) -> int:
    """Returns the length of the first integer tensor [rows, tokens]; 0 if there is none."""
    tokens = (item for item in tensors if item.dim() == _TOKEN_RANK and not item.is_floating_point())
    return next((item.shape[1] for item in tokens), 0)


def _place_special_tokens(ids: torch.Tensor, rows: tuple[ProbeRow, ...], pad: int, eos: Any) -> torch.Tensor:
    """Puts the pad token exactly where a row has padding, and one end token into each row of ids [rows, tokens].

    A model may look for them there.
    """
    at = torch.arange(ids.shape[1], device=ids.device)
    first = torch.tensor([[row.first] for row in rows], device=ids.device)
    last = torch.tensor([[row.last] for row in rows], device=ids.device)
    end = eos if isinstance(eos, int) and eos != pad else None
    others = ids[(ids != pad) & (ids != (pad if end is None else end))]
    # Replaces special tokens inside the text: a second end token would move the position that a head looks for.
    token = int(others[0]) if len(others) else next(free for free in range(3) if free not in (pad, end))
    ids = torch.where((ids == pad) | (ids == end if end is not None else ids == pad), token, ids)
    if end is not None:
        ids = torch.where(at == torch.tensor([[row.eos] for row in rows], device=ids.device), end, ids)
    return torch.where((at < first) | (at > last), pad, ids)
