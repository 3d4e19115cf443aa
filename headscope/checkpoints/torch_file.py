"""PyTorch weight files: where their pickles are in the zip format of today, the older zip and the legacy format."""

import io
import zipfile
from typing import Any

from headscope.checkpoints.bytes import ByteSource, RangeFile
from headscope.checkpoints.pickles import PickledTensor, read_pickle
from headscope.errors import HeadscopeError, Malformed, Unsupported
from headscope.facts import TensorHeader

_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
_LARGEST_PICKLE = 64_000_000
_LARGEST_DIRECTORY = 8_000_000  # some 80,000 tensors; zipfile takes a thousand bytes of memory for each
_TAR_MAGIC_AT, _TAR_MAGIC = 257, b"ustar"
_ELEMENT_BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2}
_ELEMENT_BYTES |= {"complex64": 8, "complex128": 16}


def read_torch_headers(source: ByteSource) -> tuple[tuple[TensorHeader, ...], tuple[tuple[str, ...], ...]]:
    """The tensors of a PyTorch weight file, and the groups of keys whose tensors share one storage.

    Reads the archive's directory and the pickle, never the data. Raises Malformed, or Unsupported for the tar
    format of before 2017.
    """
    start = source.read_at(0, min(source.size, 4))
    value = _zipped(source) if start.startswith(b"PK") else _legacy(source)
    return _tensors(value, source.name)


def _bad(name: str, what: str) -> Malformed:
    return Malformed(f"{name} is no valid PyTorch file: {what}", "fetch the file again, or save it anew")


def _zipped(source: ByteSource) -> Any:
    try:
        file = RangeFile(source, _LARGEST_DIRECTORY)
        with zipfile.ZipFile(file) as archive:
            file.largest = _LARGEST_PICKLE
            member = _pickle_member(archive, source.name)
            value = _whole_pickle(archive.read(member), source.name)
            _check_storages(value, archive, member.filename.removesuffix("data.pkl"), source.name)
            return value
    except HeadscopeError:
        raise
    except (zipfile.BadZipFile, ValueError, EOFError, OSError, NotImplementedError, RuntimeError) as err:
        raise _bad(source.name, f"its zip archive cannot be read ({err})") from err


def _whole_pickle(content: bytes, name: str) -> Any:
    file = io.BytesIO(content)
    value = read_pickle(file, name)
    if file.tell() != len(content):
        raise _bad(name, f"{len(content) - file.tell()} bytes follow the end of its pickle")
    return value


def _pickle_member(archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
    found = [
        info for info in archive.infolist() if info.filename.count("/") == 1 and info.filename.endswith("/data.pkl")
    ]
    if len(found) != 1:
        raise _bad(name, f"it holds {len(found)} data.pkl where one was expected")
    if found[0].compress_type != zipfile.ZIP_STORED:
        raise _bad(name, "its data.pkl is compressed, which PyTorch never writes")
    if found[0].file_size > _LARGEST_PICKLE:
        raise _bad(name, f"its data.pkl of {found[0].file_size} bytes is over the limit of {_LARGEST_PICKLE}")
    return found[0]


def _check_storages(value: Any, archive: zipfile.ZipFile, prefix: str, name: str) -> None:
    """Every storage that a tensor refers to is in the archive, and large enough."""
    sizes = {info.filename: info.file_size for info in archive.infolist()}
    for tensor in value.values() if isinstance(value, dict) else ():
        if isinstance(tensor, PickledTensor):
            storage = tensor.storage
            present = sizes.get(f"{prefix}data/{storage.key}")
            needed = storage.count * _ELEMENT_BYTES.get(storage.dtype, 1)
            if present is None or present < needed:
                raise _bad(name, f"the data of storage {storage.key!r} is missing or short")


def _legacy(source: ByteSource) -> Any:
    _refuse_what_it_is_not(source)
    file: Any = RangeFile(source)
    if read_pickle(file, source.name) != _MAGIC_NUMBER:
        raise _bad(source.name, "it begins with no magic number of PyTorch")
    read_pickle(file, source.name)  # protocol version
    read_pickle(file, source.name)  # byte order and sizes of the machine that wrote it
    value = read_pickle(file, source.name)
    read_pickle(file, source.name)  # the keys of the storages, whose data follow
    _check_length(value, source, file.tell())
    return value


def _check_length(value: Any, source: ByteSource, start: int) -> None:
    """The data of every storage, each after its length in 8 bytes, fit between `start` and the end of the file."""
    tensors = value.values() if isinstance(value, dict) else ()
    storages = {item.storage.key: item.storage for item in tensors if isinstance(item, PickledTensor)}
    needed = sum(8 + item.count * _ELEMENT_BYTES.get(item.dtype, 1) for item in storages.values())
    if start + needed > source.size:
        raise _bad(source.name, f"it ends early: {start + needed} bytes were expected, {source.size} are there")


def _refuse_what_it_is_not(source: ByteSource) -> None:
    is_long = source.size > _TAR_MAGIC_AT + len(_TAR_MAGIC)
    if is_long and source.read_at(_TAR_MAGIC_AT, len(_TAR_MAGIC)) == _TAR_MAGIC:
        raise Unsupported(
            f"{source.name} is in PyTorch's tar format of before 2017, which is not read", "load and save it anew"
        )


def _check_view(key: str, tensor: PickledTensor, name: str) -> None:
    """A tensor lies within its storage, as PyTorch demands; storages in bytes are counted in elements."""
    sizes = [_ELEMENT_BYTES.get(dtype, 1) for dtype in (tensor.dtype, tensor.storage.dtype)]
    if tensor.extent * sizes[0] > tensor.storage.count * sizes[1]:
        raise _bad(name, f"{key[:80]!r} of shape {tensor.shape} does not fit into its storage")


def _tensors(value: Any, name: str) -> tuple[tuple[TensorHeader, ...], tuple[tuple[str, ...], ...]]:
    if not isinstance(value, dict):
        raise _bad(name, f"it holds a {type(value).__name__} where a dict of tensors was expected")
    headers, by_storage = [], dict[str, list[str]]()
    for key, tensor in value.items():
        if not isinstance(key, str) or not isinstance(tensor, PickledTensor):
            raise _bad(name, f"the entry {str(key)[:80]!r} is no tensor; expected a flat dict from names to tensors")
        _check_view(key, tensor, name)
        headers.append(TensorHeader(key, tensor.dtype, tensor.shape, name))
        by_storage.setdefault(tensor.storage.key, []).append(key)
    return tuple(headers), tuple(tuple(keys) for keys in by_storage.values() if len(keys) > 1)
