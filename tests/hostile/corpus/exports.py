"""Exports that lie, act or burst: ONNX files written field by field, and GGUF files with hostile heads."""

import struct
from collections.abc import Callable

from hostile.corpus.case import Case, file_of

_NAMED = "\x1b[2J\x9b31m\u202egnp\u200b[red]x[/0]\0"


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _text(number: int, value: str) -> bytes:
    return _field(number, value.encode("utf-8", "surrogatepass"))


def _node(operation: str, inputs: list[str], outputs: list[str], attributes: bytes = b"") -> bytes:
    named = b"".join(_text(1, name) for name in inputs) + b"".join(_text(2, name) for name in outputs)
    return _field(1, named + _text(4, operation) + attributes)


def _tensor(name: str, sizes: list[int], more: bytes = b"") -> bytes:
    return _field(5, b"".join(_field(1, size) for size in sizes) + _field(2, 1) + _text(8, name) + more)


def _value(number: int, name: str, sizes: list[int]) -> bytes:
    shape = b"".join(_field(1, _field(1, size)) for size in sizes)
    return _field(number, _text(1, name) + _field(2, _field(1, _field(1, 1) + _field(2, shape))))


def _model(graph: bytes, more: bytes = b"") -> bytes:
    ends = _value(11, "x", [1, 4, 8]) + _value(12, "logits", [1, 2])
    return _field(1, 8) + _field(7, graph + ends) + _field(8, _field(2, 17)) + more


def _nested(depth: int) -> bytes:
    """Attributes that hold graphs that hold nodes with such attributes."""
    inner = b""
    for _ in range(depth):
        inner = _node("If", ["x"], ["y"], _field(5, _text(1, "then_branch") + _field(6, inner)))
    return inner


def _functions(count: int) -> bytes:
    """Functions that each call the next one twice."""
    calls = (
        _text(1, f"f{at}") + _field(7, _node(f"f{at + 1}", ["a"], ["b"])[2:]) * 2 + _text(10, "evil")
        for at in range(count)
    )
    return b"".join(_field(25, call) for call in calls)


_SCORE = _node("MatMul", ["x", "w"], ["logits"]) + _tensor("w", [8, 2])
_ONNX: dict[str, Callable[[], bytes]] = {
    "two million nodes": lambda: _model(_field(1, b"\x22\x00") * 2_000_000),
    "two million tensors": lambda: _model(_field(5, b"") * 2_000_000),
    "a million inputs of a node": lambda: _model(_node("Sum", ["x"] * 1_000_000, ["logits"])),
    "60,000 nodes in a row": lambda: _model(b"".join(_node("Relu", [f"v{n}"], [f"v{n + 1}"]) for n in range(60_000))),
    "a text of 20 MB": lambda: _model(_SCORE + _text(10, "a" * 20_000_000)),
    "a name of 5 MB": lambda: _model(_node("Relu", ["x"], ["y" * 5_000_000])),
    "graphs nested 3,000 deep": lambda: _model(_nested(3_000)),
    "types nested 50,000 deep": lambda: _model(_field(13, _text(1, "v") + _field(2, b"\x22" * 50_000))),
    "functions that double": lambda: _model(_node("f0", ["x"], ["logits"]), _functions(40)),
    "a circle": lambda: _model(_node("Relu", ["b"], ["logits"]) + _node("Relu", ["logits"], ["b"])),
    "sizes near 2^63": lambda: _model(_node("MatMul", ["x", "w"], ["logits"]) + _tensor("w", [2**62, 2**62])),
    "negative sizes": lambda: _model(_node("MatMul", ["x", "w"], ["logits"]) + _tensor("w", [2**64 - 1, 2])),
    "a file elsewhere": lambda: _model(
        _node("MatMul", ["x", "w"], ["logits"])
        + _tensor("w", [8, 2], _field(14, 1) + _field(13, _text(1, "location") + _text(2, "../../../etc/passwd")))
    ),
    "two graphs": lambda: _model(_SCORE) + _model(_SCORE),
    "no graph": lambda: _field(1, 8),
    "nothing": lambda: b"",
    "a length that lies": lambda: _field(1, 8) + b"\x3a" + _varint(2**40),
    "a number without end": lambda: b"\x08" + b"\xff" * 30,
    "groups": lambda: b"\x0b" * 1000,
    "a page": lambda: b"<!DOCTYPE html><html></html>",
    "labels of no object": lambda: _model(_SCORE, _field(14, _text(1, "id2label") + _text(2, "[" * 100_000))),
    "labels of a digit more": lambda: _model(
        _SCORE, _field(14, _text(1, "id2label") + _text(2, '{"' + "9" * 6000 + '": "a"}'))
    ),
    "names, each named to act": lambda: _model(
        _node(_NAMED, ["x", _NAMED], ["logits"]) + _tensor(_NAMED, [8, 2]) + _value(12, _NAMED, [1]),
        _field(14, _text(1, "labels") + _text(2, '["\\u001b[2J", "\\u202e"]')),
    ),
    "bytes for names": lambda: _model(_field(1, _field(1, b"\xff\xfe") + _field(2, b"logits") + _field(4, b"\xc0"))),
}


def _string(value: str) -> bytes:
    data = value.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(data)) + data


def _gguf(tensors: dict[str, list[int]], labels: list[str], pooling: int = 4) -> bytes:
    """A BERT with these tensors and labels, and no data behind the header."""
    listed = struct.pack("<IIQ", 9, 8, len(labels)) + b"".join(map(_string, labels))
    settings = (
        _string("general.architecture") + struct.pack("<I", 8) + _string("bert")
        + _string("bert.pooling_type") + struct.pack("<II", 4, pooling)
        + _string("bert.classifier.output_labels") + listed
    )  # fmt: skip
    entries = b"".join(
        _string(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, 0, 0) for name, sizes in tensors.items()
    )
    return b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 3) + settings + entries


_GGUF: dict[str, Callable[[], bytes]] = {
    "labels, each named to act": lambda: _gguf({f"cls.{_NAMED}": [8], "cls.weight": [8, 8]}, [_NAMED, "b"]),
    "sizes near 2^64": lambda: _gguf({"cls.weight": [2**64 - 1, 2**64 - 1], "cls.output.weight": [2**63, 1]}, []),
    "an unknown pooling": lambda: _gguf({"cls.output.weight": [8, 2]}, ["a", "b"], 2**31),
    "axes that do not fit": lambda: _gguf({"cls.weight": [1, 2, 3], "cls.output.weight": []}, ["a"]),
    "40,000 tensors of a head": lambda: _gguf({f"cls.{at}": [1] for at in range(40_000)}, ["a"] * 1000),
}


CASES: tuple[Case, ...] = (
    *(Case(f"export: onnx, {name}", file_of("m.onnx", make), words=("m.onnx",)) for name, make in _ONNX.items()),
    *(Case(f"export: gguf, {name}", file_of("m.gguf", make), words=("m.gguf",)) for name, make in _GGUF.items()),
)
