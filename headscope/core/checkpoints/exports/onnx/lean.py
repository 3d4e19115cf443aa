"""An ONNX file without its weights: the protobuf messages that describe the graph, copied from as few bytes as will do.

The messages are those of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto. Numbers of tensors, subgraphs,
model-local functions and documentation are passed over, so what is left is small whatever the file holds.
"""

from dataclasses import dataclass
from enum import Enum, auto

from headscope.core.checkpoints.formats.bytes import ByteSource
from headscope.errors import Malformed, Unsupported

_MOST_FIELDS = 500_000
_MOST_NODES = 50_000
_MOST_BYTES = 8_000_000
_LARGEST_FIELD = 1_000_000
_SMALL_TENSOR = 512
_WINDOW = 1 << 16
_LONGEST_NUMBER = 10
_AGAIN = "export or download the file again"


class _Message(Enum):
    """The messages that are copied in parts."""

    MODEL = auto()
    GRAPH = auto()
    NODE = auto()
    ATTRIBUTE = auto()
    TENSOR = auto()


_PARTS: dict[_Message, dict[int, _Message]] = {
    _Message.MODEL: {7: _Message.GRAPH},
    _Message.GRAPH: {1: _Message.NODE, 5: _Message.TENSOR},
    _Message.NODE: {5: _Message.ATTRIBUTE},
    _Message.ATTRIBUTE: {5: _Message.TENSOR},
    _Message.TENSOR: {},
}
"""Fields that hold a message which is copied in parts."""
_WHOLE: dict[_Message, frozenset[int]] = {
    _Message.MODEL: frozenset({1, 8, 14}),
    _Message.GRAPH: frozenset({2, 11, 12, 13}),
    _Message.NODE: frozenset({1, 2, 3, 4, 7}),
    _Message.ATTRIBUTE: frozenset({1, 2, 3, 4, 7, 8, 20}),
    _Message.TENSOR: frozenset({1, 2, 8, 14}),
}
"""Fields that are copied as they are."""
_NUMBERS = frozenset({4, 5, 7, 9, 10, 11})
"""Fields of a tensor that hold its values: copied only where they are few, as those of an index are."""


@dataclass(slots=True)
class LeanModel:
    """A `ModelProto` without weights as bytes, and what was passed over that a reader of the graph must know."""

    data: bytes
    nodes: int
    has_functions: bool


def lean_model(source: ByteSource) -> LeanModel:
    """Copies the description of the graph from an ONNX file.

    Raises Malformed if it is not protobuf, Unsupported over the limits.
    """
    return _Lean(source).copy()


class _Lean:
    """Copies a file's messages through a window that moves forward."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._start = 0
        self._data = b""
        self._fields = 0
        self._copied = 0
        self._nodes = 0
        self._has_functions = False

    def copy(self) -> LeanModel:
        """Copies the whole file."""
        data = self._copy_message(_Message.MODEL, 0, self._source.size)
        return LeanModel(data, self._nodes, self._has_functions)

    def _copy_message(self, kind: _Message, at: int, end: int) -> bytes:
        """Copies the fields of one message that are kept."""
        parts: list[bytes] = []
        while at < end:
            begin = at
            tag, at = self._read_varint(at, end)
            field, wire = tag >> 3, tag & 7
            size, at = self._value_size(wire, at, end)
            stop = at + size
            if stop > end or field == 0:
                raise self._invalid_file_error()
            self._count_field(kind, field)
            inner = _PARTS[kind].get(field)
            if inner is not None and wire == 2:  # the wire type of a message
                # The content got shorter, so its length is written again.
                content = self._copy_message(inner, at, stop)
                parts.append(_encode_varint(field << 3 | 2) + _encode_varint(len(content)) + content)
            elif field in _WHOLE[kind] or (kind is _Message.TENSOR and field in _NUMBERS and size <= _SMALL_TENSOR):
                parts.append(self._copy_bytes(begin, stop))
            at = stop
        return b"".join(parts)

    def _count_field(self, kind: _Message, field: int) -> None:
        """Counts the work, and notes what is passed over."""
        self._fields += 1
        self._nodes += kind is _Message.GRAPH and field == 1
        self._has_functions |= kind is _Message.MODEL and field == 25  # the number of a field
        for found, most, what in ((self._nodes, _MOST_NODES, "nodes"), (self._fields, _MOST_FIELDS, "fields")):
            if found > most:
                raise Unsupported(
                    f"{self._source.name} holds over {most:,} {what}, the limit",
                    "inspect its checkpoint",
                )

    def _value_size(self, wire: int, at: int, end: int) -> tuple[int, int]:
        """Gives the length of a field's value, and where it begins."""
        # Wire types of protobuf: 0 is a varint, 1 has eight bytes, 2 begins with its length, 5 has four bytes.
        match wire:
            case 0:
                return self._read_varint(at, end)[1] - at, at
            case 1:
                return 8, at
            case 2:
                return self._read_varint(at, end)
            case 5:
                return 4, at
        raise self._invalid_file_error()

    def _read_varint(self, at: int, end: int) -> tuple[int, int]:
        """Reads a varint, and gives the position behind it."""
        value = 0
        for place in range(_LONGEST_NUMBER):
            if at >= end:
                break
            if not self._start <= at < self._start + len(self._data):
                self._start = at
                self._data = self._source.read_at(at, min(_WINDOW, self._source.size - at))
            byte = self._data[at - self._start]
            at += 1
            value |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:  # the bit that says that another byte follows
                return value, at
        raise self._invalid_file_error()

    def _copy_bytes(self, at: int, end: int) -> bytes:
        """Reads the bytes of a small field."""
        self._copied += end - at
        if end - at > _LARGEST_FIELD or self._copied > _MOST_BYTES:
            raise Unsupported(
                f"the graph in {self._source.name} is over the limit of {_MOST_BYTES:,} bytes without its weights",
                "inspect its checkpoint",
            )
        begin = at - self._start
        # Outside of the window the field is read alone: moving the window back would fetch it again and again.
        if begin >= 0 and end <= self._start + len(self._data):
            return self._data[begin : end - self._start]
        return self._source.read_at(at, end - at)

    def _invalid_file_error(self) -> Malformed:
        return Malformed(f"{self._source.name} is not a valid ONNX file: it ends early or is not protobuf", _AGAIN)


def _encode_varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:  # seven bits a byte
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])
