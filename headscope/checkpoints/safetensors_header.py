"""The header of a safetensors file: read, and checked as strictly as the official parser does."""

import json
from collections.abc import Iterable
from typing import Any

from headscope.checkpoints.bytes import ByteSource
from headscope.checkpoints.dtypes import SAFETENSORS
from headscope.errors import Malformed
from headscope.facts import TensorHeader

_PREFIX = 8
_LARGEST_HEADER = 25_000_000
_LARGEST_INDEX = 2**64 - 1
_TENSOR_FIELDS = {"dtype", "shape", "data_offsets"}


def read_safetensors_header(source: ByteSource) -> tuple[TensorHeader, ...]:
    """The tensors of a safetensors file, in the order of their data.

    Reads 8 bytes and the header. Raises Malformed for anything that the official parser rejects.
    """
    text = _header_text(source)
    entries = _parsed(text, source.name)
    metadata = entries.pop("__metadata__", None)
    if metadata is not None and not _is_text_map(metadata):
        raise _bad(source.name, "__metadata__ is no map of text to text")
    tensors = [_tensor(key, entry, source.name) for key, entry in entries.items()]
    tensors.sort(key=lambda item: (item[1], item[2]))
    _check_layout(tensors, source.size - _PREFIX - len(text), source.name)
    return tuple(header for header, _, _ in tensors)


def _bad(name: str, what: str) -> Malformed:
    return Malformed(f"{name} is no valid safetensors file: {what}", "fetch the file again, or save it anew")


def _header_text(source: ByteSource) -> bytes:
    if source.size < _PREFIX:
        raise _bad(source.name, f"it holds {source.size} bytes, fewer than a header's length field")
    length = int.from_bytes(source.read_at(0, _PREFIX), "little")
    if length > source.size - _PREFIX:
        raise _bad(source.name, f"its header claims {length} bytes, and the file has {source.size}")
    if length > _LARGEST_HEADER:
        raise _bad(source.name, f"its header of {length} bytes is over the limit of {_LARGEST_HEADER}")
    text = source.read_at(_PREFIX, length)
    if not text.startswith(b"{"):
        raise _bad(source.name, "its header does not begin with {")
    return text


def _parsed(text: bytes, name: str) -> dict[str, Any]:
    try:
        entries = json.loads(
            text.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_float=_refuse_constant,
            parse_int=_bounded_int,
        )
    except (ValueError, RecursionError) as err:
        raise _bad(name, f"its header is no valid JSON ({err})") from err
    if not isinstance(entries, dict):
        raise _bad(name, "its header is no JSON object")
    return entries


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    if any("\ud800" <= character <= "\udfff" for key in found for character in key):
        raise ValueError("a key holds half a surrogate pair")
    return found


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} where a whole number belongs")


def _bounded_int(text: str) -> int:
    value = int(text) if len(text) <= len(str(_LARGEST_INDEX)) else -1
    if not 0 <= value <= _LARGEST_INDEX or text.startswith("-"):
        raise ValueError(f"the number {text[:24]} is out of range")
    return value


def _is_text_map(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


def _tensor(key: str, entry: Any, name: str) -> tuple[TensorHeader, int, int]:
    if not isinstance(entry, dict) or set(entry) != _TENSOR_FIELDS:
        raise _bad(name, f"the entry of {key!r} is not {{dtype, shape, data_offsets}}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in SAFETENSORS:
        raise _bad(name, f"{key!r} has the unknown dtype {dtype!r}")
    if not _are_indices(shape):
        raise _bad(name, f"the shape of {key!r} is no list of whole numbers")
    if not _are_indices(offsets) or len(offsets) != len(("begin", "end")):
        raise _bad(name, f"the data_offsets of {key!r} are no pair of whole numbers")
    _check_size(key, dtype, shape, offsets, name)
    return TensorHeader(key, SAFETENSORS[dtype][0], tuple(shape), name), offsets[0], offsets[1]


def _are_indices(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int for item in value)


def _check_size(key: str, dtype: str, shape: list[int], offsets: list[int], name: str) -> None:
    elements = 1
    for size in shape:  # the official parser multiplies in 64 bits and refuses what overflows, zeros or not
        elements *= size
        if elements > _LARGEST_INDEX:
            raise _bad(name, f"the shape of {key!r} overflows")
    bits = elements * SAFETENSORS[dtype][1]
    if bits > _LARGEST_INDEX or bits % 8:
        raise _bad(name, f"the shape of {key!r} overflows or fills no whole bytes")
    if offsets[1] - offsets[0] != bits // 8:
        raise _bad(
            name, f"{key!r} of shape {shape} in {dtype} needs {bits // 8} bytes, its offsets hold another number"
        )


def _check_layout(tensors: Iterable[tuple[TensorHeader, int, int]], data: int, name: str) -> None:
    """The tensors fill the data from first to last byte, without gap or overlap."""
    at = 0
    for header, begin, end in tensors:
        if begin != at:
            raise _bad(name, f"{header.key!r} begins at byte {begin} where {at} was expected: a gap or an overlap")
        at = end
    if at != data:
        raise _bad(name, f"its header accounts for {at} bytes of data, and the file has {data}")
