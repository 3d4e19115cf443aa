"""PyTorch weight files: where their pickles are in the zip format of today, the older zip and the legacy format."""

import io
import math
from collections.abc import Callable, Mapping
from typing import Any

from headscope.core.checkpoints.formats.archive import Archive, bad_file
from headscope.core.checkpoints.formats.bytes import REFUSED, ByteSource, RangeFile
from headscope.core.checkpoints.formats.dtypes import SAFETENSORS
from headscope.core.checkpoints.formats.pickle.interpreter import read_pickle
from headscope.core.checkpoints.formats.pickle.machine import OverLimit
from headscope.core.checkpoints.formats.pickle.values import Opaque, PickledStorage, PickledTensor
from headscope.core.facts import TensorHeader
from headscope.errors import Unsupported

_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
_LARGEST_PICKLE = 32_000_000
_BLOCK = 1 << 16
_COUNT_BYTES = 8
"""In the legacy format the data of a storage follow the count of its elements."""
_TAR_MAGIC_AT, _TAR_MAGIC = 257, b"ustar"
_ELEMENT_BYTES = {name: bits // 8 for name, bits in SAFETENSORS.values() if bits % 8 == 0} | {"complex128": 16}


def read_torch_headers(source: ByteSource) -> tuple[tuple[TensorHeader, ...], tuple[tuple[str, ...], ...]]:
    """Reads the tensors of a PyTorch weight file, and the groups of keys whose tensors share one storage.

    Reads the archive's directory and the pickle, never the data. Raises Malformed, or Unsupported for the tar format of
    before 2017.
    """
    return _headers_and_sharing(_read_value(source), source.name)


def read_torch_value(source: ByteSource) -> tuple[Any, set[str]]:
    """Reads whatever a PyTorch file holds, with its tensors as headers, and the names that loading it would import.

    Objects of other packages are there as `Opaque`. Raises Malformed or Unsupported, as `read_torch_headers` does.
    """
    names: set[str] = set()
    return _read_value(source, names), names


def torch_places(source: ByteSource, inside: str = "") -> Callable[[str], tuple[int, int] | None]:
    """Gives the function that finds the data of a tensor by its key: its first byte, and the byte after the last.

    A tensor that isn't there, whose elements are in another order (a transposed view) or whose file was written by a
    big-endian machine has no place. `inside` is the key of the dict that holds the tensors. Raises Malformed or
    Unsupported, as `read_torch_headers` does.
    """
    value, start_of = locate_torch_value(source, set() if inside else None)
    held = value.get(inside) if inside and isinstance(value, dict) else value
    state = held.get("state_dict", held) if isinstance(held, dict) else {}
    tensors = state if isinstance(state, dict) else {}

    def place_of(key: str) -> tuple[int, int] | None:
        tensor = tensors.get(key)
        if not isinstance(tensor, PickledTensor) or tensor.begin is None or tensor.dtype not in _ELEMENT_BYTES:
            return None
        start = start_of(tensor.storage.key)
        size = _ELEMENT_BYTES[tensor.dtype]
        begin = None if start is None else start + tensor.begin * size
        return None if begin is None else (begin, begin + math.prod(tensor.shape) * size)

    return place_of


StartOf = Callable[[str], int | None]
"""What gives the first byte of a storage in its file by its key; None where that isn't known."""


def locate_torch_value(source: ByteSource, names: set[str] | None = None) -> tuple[Any, StartOf]:
    """Reads whatever a PyTorch file holds, as `read_torch_value` does, and finds where its storages begin.

    Without `names` only a state dict is read. Raises Malformed or Unsupported, as `read_torch_headers` does.
    """
    if not _is_zip(source):
        value, order, at = _read_legacy(source, names)
        return value, _legacy_starts(value, order, at).get
    archive = Archive(source)
    value = _read_zip(archive, source.name, names)
    is_big = f"{archive.folder}byteorder" in archive.records and archive.read("byteorder", 16) != b"little"
    return value, lambda key: None if is_big else archive.place_of(f"data/{key}")[0]


def _legacy_starts(value: Any, order: Any, at: int) -> dict[str, int]:
    """Finds the data of each storage, up to the first whose length no tensor tells."""
    storages = _storages_in(value)
    found = {}
    for key in order if isinstance(order, list) else ():
        storage = storages.get(key) if isinstance(key, str) else None
        if storage is None:
            break
        found[key] = at + _COUNT_BYTES
        at = found[key] + storage.count * _ELEMENT_BYTES.get(storage.dtype, 1)
    return found


def _read_value(source: ByteSource, names: set[str] | None = None) -> Any:
    refused = REFUSED.get()
    before = refused.get((source.name, source.size)) if refused is not None else None
    if before is not None:
        raise OverLimit(*before)
    try:
        return _read_zip(Archive(source), source.name, names) if _is_zip(source) else _read_legacy(source, names)[0]
    except OverLimit as err:
        if refused is not None:
            refused[source.name, source.size] = err.message, err.hint
        raise


def _is_zip(source: ByteSource) -> bool:
    return source.read_at(0, min(source.size, 4)).startswith(b"PK")


def headers_of(tensors: Mapping[Any, Any], name: str) -> tuple[TensorHeader, ...]:
    """Gives the headers of a flat dict of tensors inside a PyTorch file; what is not a tensor in it is left out."""
    found = {key: item for key, item in tensors.items() if isinstance(key, str) and isinstance(item, PickledTensor)}
    return _headers_and_sharing(found, name)[0]


def _read_zip(archive: Archive, name: str, names: set[str] | None = None) -> Any:
    # TorchScript keeps its program in this folder.
    if any(record.startswith(f"{archive.folder}code/") for record in archive.records):
        hint = "give the model that it was made from, as save_pretrained writes it"
        raise Unsupported(f"{name} is TorchScript, a compiled program, and not a state dict", hint)
    pickles = sum(record.count("/") == 1 and record.endswith("/data.pkl") for record in archive.records)
    if pickles > 1:
        raise bad_file(name, f"it holds {pickles} data.pkl where one was expected")
    content = archive.read("data.pkl", _LARGEST_PICKLE)
    file = io.BytesIO(content)
    value = read_pickle(file, name, names)
    if file.tell() != len(content):
        raise bad_file(name, f"{len(content) - file.tell()} bytes follow the end of its pickle")
    _check_storages(value, archive, name)
    return value


def _check_storages(value: Any, archive: Archive, name: str) -> None:
    """Checks that every storage that a tensor refers to is in the archive, and large enough."""
    for tensor in value.values() if isinstance(value, dict) else ():
        if isinstance(tensor, PickledTensor):
            storage = tensor.storage
            present = archive.records.get(f"{archive.folder}data/{storage.key}")
            needed = storage.count * _ELEMENT_BYTES.get(storage.dtype, 1)
            if present is None or present.size < needed:
                raise bad_file(name, f"the data of storage {storage.key!r} is missing or short")


def _read_legacy(source: ByteSource, names: set[str] | None = None) -> tuple[Any, Any, int]:
    """Reads the value of a file in the legacy format, the keys of its storages in order, and where their data begin."""
    _refuse_tar(source)
    file: Any = io.BufferedReader(RangeFile(source), _BLOCK)
    if read_pickle(file, source.name) != _MAGIC_NUMBER:
        raise bad_file(source.name, "it does not begin with PyTorch's magic number")
    read_pickle(file, source.name)  # protocol version
    read_pickle(file, source.name)  # byte order and sizes of the machine that wrote it
    value = read_pickle(file, source.name, names)
    order = read_pickle(file, source.name)
    start = file.tell()
    storages = _storages_in(value).values()
    needed = sum(_COUNT_BYTES + item.count * _ELEMENT_BYTES.get(item.dtype, 1) for item in storages)
    if start + needed > source.size:
        raise bad_file(source.name, f"it ends early: {start + needed} bytes were expected, {source.size} are there")
    return value, order, start


def _storages_in(value: Any) -> dict[str, PickledStorage]:
    """Collects the storages of all tensors in a value, whatever holds them, by key."""
    found, seen, left = dict[str, PickledStorage](), set[int](), [value]
    while left:
        item = left.pop()
        if isinstance(item, PickledTensor):
            found[item.storage.key] = item.storage
        # A pickle can make a list that holds itself.
        elif isinstance(item, dict | list | tuple | Opaque) and id(item) not in seen:
            seen.add(id(item))
            parts = (item.state, *item.arguments, *item.items) if isinstance(item, Opaque) else item
            left += parts.values() if isinstance(parts, dict) else parts
    return found


def _refuse_tar(source: ByteSource) -> None:
    is_long = source.size > _TAR_MAGIC_AT + len(_TAR_MAGIC)
    if is_long and source.read_at(_TAR_MAGIC_AT, len(_TAR_MAGIC)) == _TAR_MAGIC:
        raise Unsupported(
            f"{source.name} is in PyTorch's tar format from before 2017, which headscope doesn't read",
            "load it and save it again",
        )


def _headers_and_sharing(value: Any, name: str) -> tuple[tuple[TensorHeader, ...], tuple[tuple[str, ...], ...]]:
    if not isinstance(value, dict):
        raise bad_file(name, f"it holds a {type(value).__name__} where a dict of tensors was expected")
    headers, by_storage = [], dict[str, list[str]]()
    for key, tensor in value.items():
        if not isinstance(key, str) or not isinstance(tensor, PickledTensor):
            raise bad_file(
                name, f"the entry {str(key)[:80]!r} is not a tensor; expected a flat dict from names to tensors"
            )
        # PyTorch refuses a view beyond its storage too. An untyped storage counts bytes, so bytes are compared.
        sizes = [_ELEMENT_BYTES.get(dtype, 1) for dtype in (tensor.dtype, tensor.storage.dtype)]
        if tensor.extent * sizes[0] > tensor.storage.count * sizes[1]:
            raise bad_file(name, f"{key[:80]!r} of shape {tensor.shape} does not fit into its storage")
        headers.append(TensorHeader(key, tensor.dtype, tensor.shape, name))
        by_storage.setdefault(tensor.storage.key, []).append(key)
    return tuple(headers), tuple(tuple(keys) for keys in by_storage.values() if len(keys) > 1)
