"""Small files that ask a reader for much work or memory: pickles, JSON texts and GGUF headers."""

import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hostile.corpus.case import CONFIG, ONE_TENSOR, Build, Case, file_of, safetensors, snapshot_of, with_files
from hostile.corpus.pickles import in_zip, text_of

_WORLD = 2**61 - 1
"""Python hashes an integer modulo this number: its multiples all have the hash 0."""
_MANY = 100_000
_REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"
_SIZE = b"ctorch\nSize\n"
_ORDERED = b"ccollections\nOrderedDict\n"


def _long(value: int) -> bytes:
    """LONG4 with so many bytes as the number takes."""
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8b" + len(raw).to_bytes(4, "little") + raw


_DIGITS = _long(10**5000)


def _tensor(*, shape: bytes = b"K\x01", stride: bytes = b"K\x01", offset: bytes = b"K\x00") -> bytes:
    """The pickle of one tensor under the key `x`, whose values are the given operations."""
    storage = b"(" + text_of("storage") + b"ctorch\nFloatStorage\n" + text_of("0") + text_of("cpu") + b"K\x01tQ"
    sizes = b"(" + shape + b"t(" + stride + b"t"
    return b"}" + text_of("x") + _REBUILD + b"(" + storage + offset + sizes + b"\x89" + _ORDERED + b")RtRs."


def _colliding_keys(count: int) -> bytes:
    return b"}(" + b"".join(_long(_WORLD * at) + b"N" for at in range(1, count)) + b"u."


def _colliding_memo(count: int) -> bytes:
    return b"}" + b"".join(b"p%d\n" % (_WORLD * at) for at in range(1, count)) + b"."


def _colliding_pairs(count: int) -> bytes:
    pairs = b"".join(_long(_WORLD * at) + b"N\x86" for at in range(1, count))
    return _ORDERED + b"](" + pairs + b"e\x85R."


# ruff: noqa: E501, PLW0108  one bomb a line; each is built when its case runs, not before
_PICKLES: dict[str, Callable[[], bytes]] = {
    "key of 5,000 digits": lambda: b"}" + _DIGITS + b"Ns.",
    "value of 5,000 digits": lambda: b"}" + text_of("x") + _DIGITS + b"s.",
    "top of 5,000 digits": lambda: _DIGITS + b".",
    "shape of 5,000 digits": lambda: _tensor(shape=_DIGITS),
    "stride of 5,000 digits": lambda: _tensor(stride=_DIGITS),
    "offset of 5,000 digits": lambda: _tensor(offset=_DIGITS),
    "shape of 2^63": lambda: _tensor(shape=_long(2**63)),
    "number as text of 5,000 digits": lambda: b"}" + text_of("x") + b"L" + b"9" * 5000 + b"L\ns.",
    "keys of one hash": lambda: _colliding_keys(_MANY),
    "memo of one hash": lambda: _colliding_memo(_MANY),
    "pairs of one hash": lambda: _colliding_pairs(_MANY),
    "memo far away": lambda: b"}r\xff\xff\xff\x7f.",
    "memo of lists": lambda: b"\x80\x04}0" + b"]\x940" * 1_600_000 + b"}.",
    "memo of sets": lambda: b"\x80\x04}0" + b"\x8f\x940" * 1_600_000 + b"}.",
    "memo of floats": lambda: b"\x80\x04}0" + (b"G" + b"\x01" * 8 + b"\x940") * 1_600_000 + b"}.",
    "lists": lambda: b"](" + b"]" * 4_900_000 + b"e.",
    "dicts": lambda: b"](" + b"}" * 4_900_000 + b"e.",
    "dicts of one item": lambda: b"](" + b"}K\x01Ns" * 1_200_000 + b"e.",
    "floats": lambda: b"](" + (b"G" + b"\x01" * 8) * 4_900_000 + b"e.",
    "numbers": lambda: b"](" + b"J\x01\x01\x01\x01" * 4_900_000 + b"e.",
    "ordered dicts": lambda: _ORDERED + b"q\x000](" + b"h\x00)R" * 1_600_000 + b"e.",
    "sizes of a long tuple": lambda: b"(" + b"N" * 10_000 + b"tq\x000" + _SIZE + b"q\x010](" + b"h\x01h\x00\x85R" * 20_000 + b"e.",
    "tensors of a long tuple": lambda: b"(" + b"N" * _MANY + b"tq\x000" + _REBUILD + b"q\x010"
    + b"h\x01h\x00R0" * 20_000 + b"}.",
    "tuples a million deep": lambda: b")" + b"\x85" * 1_000_000 + b".",
    "tuples a million deep as a key": lambda: b"})" + b"\x85" * 1_000_000 + b"Ns.",
    "lists a million deep": lambda: b"]" + b"]" * 1_000_000 + b"a" * 1_000_000 + b".",
    "subclasses a hundred thousand deep": lambda: b"ctorch._tensor\n_rebuild_from_type_v2\nq\x000" + b"h\x00(h\x00N" * _MANY
    + b")N" + b"tR" * _MANY + b".",
    "nested subclasses": lambda: b"ctorch._tensor\n_rebuild_from_type_v2\nq\x000h\x00(" + b"h\x00N(" * 50_000 + b")"
    + b"tN" * 50_000 + b"tR.",
    "a text of 20 MB": lambda: b"}" + b"X" + (20_000_000).to_bytes(4, "little") + "\U0001f600".encode() * 5_000_000 + b"Ns.",
    "texts of 64 kB": lambda: b"](" + (b"X\xff\xff\0\0" + b"a" * 65_535) * 900 + b"e.",
    "a text shown again": lambda: b"}X\xff\xff\0\0" + b"a" * 65_535 + b"q\x000](" + b"h\x00" * 4_000_000 + b"e.",
}  # fmt: skip


def _pickled(content: Callable[[], bytes]) -> Build:
    return lambda folder: with_files(files={"pytorch_model.bin": in_zip(b"\x80\x02" + content())})(folder)


def _legacy(content: Callable[[], bytes]) -> Build:
    """The same without a zip around it, after the magic number and what follows it."""
    start = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + b"\x80\x02M\xe9\x03." + b"\x80\x02}."
    return lambda folder: with_files(files={"pytorch_model.bin": start + b"\x80\x02" + content()})(folder)


_SMALL = 24_000_000
_JSON: dict[str, Callable[[int], bytes]] = {
    "empty objects": lambda size: b'{"x":[' + b"{}," * (size // 3) + b"{}]}",
    "empty lists": lambda size: b'{"x":[' + b"[]," * (size // 3) + b"[]]}",
    "objects of one entry": lambda size: b'{"x":[' + b'{"a":1},' * (size // 8) + b"1]}",
    "lists of one entry": lambda size: b'{"x":[' + b"[1]," * (size // 4) + b"1]}",
    "numbers": lambda size: b'{"x":[' + b"999," * (size // 4) + b"1]}",
    "fractions": lambda size: b'{"x":[' + b"1.5," * (size // 4) + b"1]}",
    "texts": lambda size: b'{"x":[' + b'"",' * (size // 3) + b"1]}",
    "names": lambda size: b"{" + b",".join(b'"%x":1' % at for at in range(size // 11)) + b"}",
    "wide letters": lambda size: b'{"x":"' + "\U0001f600".encode() * (size // 4) + b'"}',
    "one wide letter": lambda size: b'{"x":"' + b"a" * (size - 20) + "\U0001f600".encode() + b'"}',
    "wide letters as escapes": lambda size: b'{"x":"' + b"\\ud83d\\ude00" * (size // 12) + b'"}',
    "pairs of wide texts": lambda size: b'{"x":[' + '"\U0001f600",'.encode() * (size // 7) + b"1]}",
    "metadata": lambda size: b'{"__metadata__":{' + b",".join(b'"%x":""' % at for at in range(size // 12)) + b"}}",
}


def _in_place(name: str, make: Callable[[], bytes]) -> Build:
    def build(folder: Path) -> list[str]:
        text = make()
        files = {
            "header": {"model.safetensors": safetensors(text)},
            "index": {"model.safetensors.index.json": text},
            "config": {"model.safetensors": safetensors(ONE_TENSOR)},
        }
        return with_files(files=files[name], config=text if name == "config" else CONFIG)(folder)

    return build


def _gguf(tensors: int, settings: int = 0, labels: int = 0, axes: int = 0) -> bytes:
    """A GGUF header of so many entries, each with a short name."""

    def text(value: bytes) -> bytes:
        return struct.pack("<Q", len(value)) + value

    setting = b"".join(text(b"s%x" % at) + struct.pack("<IB", 0, 1) for at in range(settings))
    listed = text(b"a.output_labels") + struct.pack("<IIQ", 9, 8, labels) + text(b"") * labels
    sizes = struct.pack("<I", axes) + struct.pack("<Q", 1) * axes + struct.pack("<IQ", 0, 0)
    entries = b"".join(text(b"t%x" % at) + sizes for at in range(tensors))
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, settings + 1) + setting + listed + entries


_GGUF: dict[str, Callable[[], bytes]] = {
    "500,000 tensors": lambda: _gguf(500_000, axes=4),
    "a million tensors": lambda: _gguf(1_000_000),
    "100,000 settings": lambda: _gguf(0, 100_000),
    "seven million texts": lambda: _gguf(0, 0, 7_000_000),
}

CASES: tuple[Case, ...] = (
    *(
        Case(f"bomb: pickle, {name}", _pickled(content), words=("pytorch_model.bin", "hint:"))
        for name, content in _PICKLES.items()
    ),
    *(
        Case(f"bomb: legacy pickle, {name}", _legacy(_PICKLES[name]), words=("pytorch_model.bin", "hint:"))
        for name in ("memo of one hash", "memo of lists", "floats", "a text of 20 MB", "shape of 5,000 digits")
    ),
    *(
        Case(f"bomb: {place}, {name}", _in_place(place, partial(make, size)), codes=(0, 3))
        for name, make in _JSON.items()
        for place, size in (("header", _SMALL), ("config", 19_000_000), ("index", 19_000_000))
    ),
    *(Case(f"bomb: snapshot, {name}", file_of("one.json", partial(make, _SMALL)), codes=(3,)) for name, make in _JSON.items()),
    *(
        Case(f"bomb: gguf, {name}", file_of("model.gguf", make, snapshot_of), words=("model.gguf",))
        for name, make in _GGUF.items()
    ),
)  # fmt: skip
