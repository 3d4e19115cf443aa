"""The header of a safetensors file: read, and checked as strictly as the official parser does."""

import json
import math
import re
from collections.abc import Iterable
from itertools import chain
from typing import Any

from headscope.core.checkpoints.formats.bytes import ByteSource
from headscope.core.checkpoints.formats.config_file import check_cost
from headscope.core.checkpoints.formats.dtypes import SAFETENSORS
from headscope.core.facts import TensorHeader
from headscope.errors import Malformed

_PREFIX = 8
_LARGEST_HEADER = 25_000_000
_LARGEST_INDEX = 2**64 - 1
_DEEPEST = 127
_METADATA = "__metadata__"
_HALF = re.compile("[\ud800-\udfff]")
_TENSOR_FIELDS = ("dtype", "shape", "data_offsets")


def read_safetensors_header(source: ByteSource) -> tuple[TensorHeader, ...]:
    """Reads the tensors of a safetensors file, in the order of their data.

    Reads 8 bytes and the header. Raises Malformed for anything that the official parser rejects.
    """
    text = _header_text(source)
    entries = _parse_header(text, source.name)
    _check_metadata(entries, source.name)
    start = _PREFIX + len(text)
    described = {key: _read_entry(key, entry, source.name, start) for key, entry in entries if key != _METADATA}
    tensors = sorted(described.values(), key=_place_of)
    _check_layout(tensors, start, source)
    return tuple(tensors)


def _place_of(header: TensorHeader) -> tuple[int, int]:
    assert header.data is not None  # every tensor of a safetensors file has its place
    return header.data


def _header_error(name: str, what: str) -> Malformed:
    return Malformed(f"{name} is not a valid safetensors file: {what}", "download it or save it again")


def _header_text(source: ByteSource) -> bytes:
    if source.size < _PREFIX:
        raise _header_error(source.name, f"it holds {source.size} bytes, fewer than a header's length field")
    length = int.from_bytes(source.read_at(0, _PREFIX), "little")
    if length > source.size - _PREFIX:
        raise _header_error(source.name, f"its header claims {length} bytes, and the file has {source.size}")
    if length > _LARGEST_HEADER:
        raise _header_error(source.name, f"its header of {length} bytes is over the limit of {_LARGEST_HEADER}")
    return source.read_at(_PREFIX, length)


class _Object(list[tuple[str, Any]]):
    """A JSON object as its pairs, with repeated keys: what they mean depends on where the object stands."""

    __slots__ = ()


class _NoIndex:
    """A number that does not fit into 64 bits, or is not whole."""

    __slots__ = ()


def _parse_header(text: bytes, name: str) -> _Object:
    check_cost(text, name)
    try:
        entries = json.loads(
            text.decode("utf-8"),
            object_pairs_hook=_Object,
            parse_constant=_refuse_constant,
            parse_float=_parse_float,
            parse_int=_parse_int,
        )
    except (ValueError, RecursionError) as err:
        raise _header_error(name, f"its header is not valid JSON ({err})") from err
    if not isinstance(entries, _Object):
        raise _header_error(name, "its header is not a JSON object")
    _check_values(entries, name)
    return entries


def _check_values(entries: _Object, name: str) -> None:
    """Checks what Python's JSON lets pass and the official parser does not, anywhere: depth, half characters."""
    level: list[Any] = [entries]
    for _ in range(_DEEPEST):
        if any(isinstance(value, str) and _is_broken(value) for value in level):
            raise _header_error(name, "a text holds half a surrogate pair")
        lists = [value for value in level if isinstance(value, list)]
        # An object is a list of pairs.
        parts = (chain.from_iterable(value) if isinstance(value, _Object) else value for value in lists)
        level = list(chain.from_iterable(parts))
        if not level:
            return
    if any(isinstance(value, list) for value in level):
        raise _header_error(name, f"its header is nested deeper than {_DEEPEST} levels")


def _is_broken(text: str) -> bool:
    return _HALF.search(text) is not None


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _parse_float(text: str) -> _NoIndex:
    # The official parser refuses a number that overflows, even one that it doesn't need.
    if math.isinf(float(text)):
        raise ValueError("a number is out of range")
    return _NoIndex()


def _parse_int(text: str) -> int | _NoIndex:
    _parse_float(text)
    is_index = not text.startswith("-") and len(text) <= len(str(_LARGEST_INDEX)) and int(text) <= _LARGEST_INDEX
    return int(text) if is_index else _NoIndex()


def _check_metadata(entries: _Object, name: str) -> None:
    """Checks that there is at most one `__metadata__`, null or a map of text to text."""
    found = [value for key, value in entries if key == _METADATA]
    if len(found) > 1:
        raise _header_error(name, "__metadata__ occurs twice")
    for metadata in found:
        is_map = isinstance(metadata, _Object) and all(
            isinstance(value, str) and not _is_broken(key + value) for key, value in metadata
        )
        if metadata is not None and not is_map:
            raise _header_error(name, "__metadata__ is not a map of strings to strings")


def _fields_of_entry(key: str, entry: Any, name: str) -> dict[str, Any]:
    """Gives the fields of a tensor's entry, by name or position.

    Unknown names are left out, as by the official parser.
    """
    # serde, which parses it there, takes the fields of a struct from a list as well.
    if isinstance(entry, list) and not isinstance(entry, _Object) and len(entry) == len(_TENSOR_FIELDS):
        return dict(zip(_TENSOR_FIELDS, entry, strict=True))
    if not isinstance(entry, _Object):
        raise _header_error(name, f"the entry of {key!r} is not an object")
    known = [(field, value) for field, value in entry if field in _TENSOR_FIELDS]
    fields = dict(known)
    if len(known) != len(_TENSOR_FIELDS) or len(fields) != len(known):
        raise _header_error(name, f"the entry of {key!r} doesn't have dtype, shape and data_offsets exactly once each")
    return fields


def _read_entry(key: str, entry: Any, name: str, start: int) -> TensorHeader:
    """Reads a tensor's entry; offsets count from `start`, where all data begins."""
    fields = _fields_of_entry(key, entry, name)
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(dtype, str) or dtype not in SAFETENSORS:
        raise _header_error(name, f"{key!r} has the unknown dtype {dtype!r}")
    if not _are_indices(shape):
        raise _header_error(name, f"the shape of {key!r} is not a list of whole numbers")
    if not _are_indices(offsets) or len(offsets) != 2:
        raise _header_error(name, f"the data_offsets of {key!r} are not a pair of whole numbers")
    _check_size(key, dtype, shape, offsets, name)
    place = start + offsets[0], start + offsets[1]
    return TensorHeader(key, SAFETENSORS[dtype][0], tuple(shape), name, place)


def _are_indices(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int for item in value)


def _check_size(key: str, dtype: str, shape: list[int], offsets: list[int], name: str) -> None:
    elements = 1
    for size in shape:  # the official parser multiplies in 64 bits and refuses what overflows, zeros or not
        elements *= size
        if elements > _LARGEST_INDEX:
            raise _header_error(name, f"the shape of {key!r} overflows")
    bits = elements * SAFETENSORS[dtype][1]
    if bits > _LARGEST_INDEX or bits % 8:
        raise _header_error(name, f"the shape of {key!r} overflows or fills no whole bytes")
    if offsets[1] - offsets[0] != bits // 8:
        raise _header_error(
            name, f"{key!r} of shape {shape} in {dtype} needs {bits // 8} bytes, but its offsets don't match"
        )


def _check_layout(tensors: Iterable[TensorHeader], start: int, source: ByteSource) -> None:
    """Checks that the tensors fill the data, which begins at `start`, to the last byte, without gap or overlap."""
    at, name = start, source.name
    for header in tensors:
        begin, end = _place_of(header)
        if begin != at:
            fault = f"begins at byte {begin - start} where {at - start} was expected: a gap or an overlap"
            raise _header_error(name, f"{header.key!r} {fault}")
        at = end
    if at != source.size:
        raise _header_error(
            name, f"its header accounts for {at - start} bytes of data, and the file has {source.size - start}"
        )
