"""Keys of tensors: the numbers of layers in them."""

import re

_NUMBER = re.compile(r"[0-9]{1,9}")
_OF_A_LAYER = re.compile(r"(?<=\.)\d+(?=\.)")


def layer_numbers(key: str) -> tuple[int, ...]:
    """The numbers in a key, in their order: 3 for `encoder.layer.3.output.dense.bias`."""
    return tuple(int(part) for part in key.split(".") if _NUMBER.fullmatch(part))


def of_any_layer(key: str) -> str:
    """A key without the numbers of its layers: `encoder.layer.*.output.dense.bias`."""
    return _OF_A_LAYER.sub("*", key)
