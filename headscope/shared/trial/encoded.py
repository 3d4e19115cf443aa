"""Facts on encoded inputs, before the model is called: tokens that are unknown, missing, or not taken."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import nn

Encoded = Mapping[str, Any]
"""What the tokenizer or processor makes of some inputs."""
Inputs = Sequence[Encoded | None]
"""Inputs encoded one by one; None for one that can't be."""


def not_taken(model: nn.Module, encoded: Inputs) -> tuple[str, ...]:
    """Lists the inputs that the tokenizer or processor gives and the model has no parameter for."""
    given = next((item for item in encoded if item is not None), None)
    try:
        parameters = inspect.signature(model.forward).parameters
    except (TypeError, ValueError):
        return ()
    if given is None or any(item.kind is inspect.Parameter.VAR_KEYWORD for item in parameters.values()):
        return ()
    return tuple(sorted(name for name in given if name not in parameters))


def begins_with_cls(tokenizer: Any, names: Sequence[str], encoded: Inputs) -> bool | None:
    """True if all texts begin with the token that the tokenizer names for classifiers; of pairs, if all are.

    None without such a token, and if other special tokens begin the texts: a family may have two for one purpose.
    """
    if any(name != "pair" for name in names):  # a tokenizer for single texts may have no template for two
        encoded = [item for name, item in zip(names, encoded, strict=True) if name != "pair"]
    cls, special = getattr(tokenizer, "cls_token_id", None), set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    ids = [item["input_ids"].flatten().tolist() for item in encoded if item is not None and "input_ids" in item]
    first = {row[0] for row in ids if row}
    if cls is None or not first or (first != {cls} and first <= special):
        return None
    return first == {cls}


def unknown_share(tokenizer: Any, names: Sequence[str], encoded: Inputs) -> float | None:
    """Computes the share of unknown tokens in the kind of texts that has the fewest.

    The kinds are plain texts and those of the vocabulary. A text of which nothing but special tokens is left counts as
    unknown, and so do words that almost all become one token, whatever the tokenizer calls it.
    """
    unknown = tokenizer.unk_token_id
    special = set(tokenizer.all_special_ids) - {unknown}
    counts: dict[str, Counter[int | None]] = {}
    for name, item in zip(names, encoded, strict=True):
        if item is not None and "input_ids" in item:
            ids = [token for token in item["input_ids"].flatten().tolist() if token not in special]
            counts.setdefault(name, Counter()).update(ids or [_NOTHING])
    shares = []
    for found in counts.values():
        total, lost = found.total(), found.pop(_NOTHING, 0) + found.pop(unknown, 0)
        with_one = lost + max(found.values(), default=0)
        is_one = with_one >= _ALMOST_ALL * total and total >= _FEW
        shares.append((with_one if is_one else lost) / total)
    # The best kind decides: a tokenizer of proteins lacks English words, and is right for its model.
    return min(shares) if shares else None


_NOTHING = -1
"""Stands for the tokens of a text that has none."""
_ALMOST_ALL, _FEW = 0.9, 6
"""The share of one token in a kind of texts from which their words are lost, and the tokens that show it."""


def keeps_sizes(encoded: Inputs) -> bool:
    """True if the tensors of some images, one by one, have other shapes than those of others."""
    items = (item.values() for item in encoded if item is not None)
    return len({tuple(value.shape for value in item if torch.is_tensor(value)) for item in items}) > 1


def is_content(value: Any) -> bool:
    """True if a value of an encoded image or sound is its numbers, and no mask: 8-bit ones if nothing scales."""
    return torch.is_tensor(value) and (value.is_floating_point() or value.dtype is torch.uint8)


def image_spread(encoded: Inputs) -> float | None:
    """Measures how far apart the values of a channel are, in the image where they are farthest.

    The distance is in relation to the largest value (at least 1). None if an image has values that are not finite, or
    no tensor of channels.
    """
    values = [value for item in encoded if item is not None for value in item.values() if is_content(value)]
    pixels = [value.float() for value in values if value.dim() > 2]
    spans = [(item.amax((-2, -1)) - item.amin((-2, -1))).max() / item.abs().max().clamp(min=1) for item in pixels]
    found = torch.stack(spans) if spans else torch.tensor([torch.nan])
    return float(found.max()) if bool(found.isfinite().all()) else None


def is_empty(encoded: Encoded | None) -> bool:
    """True if an input was encoded to no token at all."""
    ids = None if encoded is None else encoded.get("input_ids")
    return isinstance(ids, torch.Tensor) and ids.numel() == 0
