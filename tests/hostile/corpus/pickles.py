"""PyTorch files whose pickles would run something, go on for ever, or hide."""

import io
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

from hostile.corpus.case import CANARY, Build, Case, checkpoint, snapshot_of, with_files

_CALLS = (
    ("os", "system"), ("posix", "system"), ("nt", "system"), ("subprocess", "Popen"), ("builtins", "exec"),
    ("builtins", "eval"), ("builtins", "open"), ("builtins", "getattr"), ("builtins", "__import__"),
    ("__builtin__", "eval"),
    ("runpy", "run_path"), ("importlib", "import_module"), ("operator", "attrgetter"), ("functools", "partial"),
    ("torch", "load"), ("torch.hub", "load"), ("torch", "torch.os.system"), ("torch.serialization", "os.system"),
    ("numpy.testing._private.utils", "runstring"), ("webbrowser", "open"), ("shutil", "rmtree"), ("pty", "spawn"),
    ("asyncio.unix_events", "_UnixSubprocessTransport._start"), ("transformers", "pipeline"), ("\x1b[2J", "\x1b]0;x"),
)  # fmt: skip


def text_of(value: str) -> bytes:
    """The operation that puts a text on the stack."""
    raw = value.encode()
    return b"X" + len(raw).to_bytes(4, "little") + raw


def in_zip(content: bytes, name: str = "archive/data.pkl", *, packed: bool = False, again: str = "") -> bytes:
    """A PyTorch file of this pickle; `again` names another member with the same content."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as archive:
        archive.writestr(name, content)
        archive.writestr(f"{name.partition('/')[0]}/data/0", b"\0" * 4)
        archive.writestr(f"{name.partition('/')[0]}/version", b"3\n")
        if again:
            archive.writestr(again, content)
    return file.getvalue()


def _calling(module: str, name: str, argument: str) -> dict[str, bytes]:
    shell = text_of(argument)
    pair = module.encode() + b"\n" + name.encode() + b"\n"
    return {
        "reduce": b"\x80\x02c" + pair + shell + b"\x85R.",
        "stack": b"\x80\x04" + text_of(module) + text_of(name) + b"\x93" + shell + b"\x85R.",
        "inst": b"(" + shell + b"i" + pair + b".",
        "object": b"(c" + pair + shell + b"o.",
    }


def _called(module: str, name: str, way: str, around: Callable[[bytes], bytes] = in_zip) -> Build:
    def build(folder: Path) -> list[str]:
        content = _calling(module, name, f"touch {folder / CANARY}")[way]
        return snapshot_of(checkpoint(folder, {"pytorch_model.bin": around(content)}))

    return build


_EMPTY = b"\x80\x02}."
_OPERATIONS: dict[str, bytes] = {
    "no STOP": b"\x80\x02}",
    "nothing": b"",
    "only STOP": b".",
    "unknown operation": b"\x80\x02\xff.",
    "protocol 99": b"\x80\x63\x63.",
    "empty stack": b"\x80\x020.",
    "missing mark": b"\x80\x02t.",
    "unwritten memo": b"\x80\x02h\x05.",
    "list as key": b"\x80\x02}](K\x01ee].",
    "unhashable key": b"\x80\x02}]K\x01s.",
    "text cut": b"\x80\x02X\xff\xff\xff\x7fabc",
    "8-byte length": b"\x80\x04\x8d" + b"\xff" * 8 + b"a",
    "long of 2 GB": b"\x80\x02\x8b\xff\xff\xff\x7f",
    "not a dict": b"\x80\x02K\x01.",
    "dict of numbers": b"\x80\x02}" + text_of("a") + b"K\x01s.",
    "persistent text": b"\x80\x02Pname\n.",
    "extension": b"\x80\x02\x82\x01.",
    "next buffer": b"\x80\x05\x97.",
    "newobj": b"\x80\x02cos\nsystem\n)\x81.",
    "bytes after STOP": _EMPTY + b"cos\nsystem\n.",
    "tuple bomb": b"\x80\x02)" + b"\x86" * 0 + b"2\x86" * 60 + b".",
    "dup": b"\x80\x02}2.",
    "100,000 deep": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "six million operations": b"\x80\x02" + b"N0" * 3_000_000 + b"}.",
    "digits": b"I" + b"9" * 100_000 + b"\n.",
    "python's own": pickle.dumps({"a": Path("x")}),
}


def _directory(entries: int, *, sentence: int | None = None, size: int | None = None) -> bytes:
    """An archive whose directory names one empty file so many times, or says so."""
    local = struct.pack("<4s5H3I2H", b"PK\x03\x04", 20, 0, 0, 0, 0, 0, 0, 0, 1, 0) + b"a"
    entry = struct.pack("<4s6H3I5H2I", b"PK\x01\x02", 20, 20, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + b"a"
    listed = entry * entries
    size = len(listed) if size is None else size
    count = entries if sentence is None else sentence
    zip64 = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, size, len(local))
    place = struct.pack("<4sIQI", b"PK\x06\x07", 0, len(local) + len(listed), 1)
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return local + listed + zip64 + place + end


_ARCHIVES: dict[str, bytes] = {
    "two pickles": in_zip(_EMPTY, again="other/data.pkl"),
    "no pickle": in_zip(_EMPTY, "archive/other.pkl"),
    "pickle packed": in_zip(_EMPTY, packed=True),
    "pickle of zeros, packed": in_zip(bytes(80_000_000), packed=True),
    "path out of it": in_zip(_EMPTY, "../data.pkl", again="archive/data.pkl"),
    "cut": in_zip(_EMPTY)[:-10],
    "only its sign": b"PK\x03\x04",
    "a directory of a million files": _directory(1_000_000),
    "a directory said to be endless": _directory(1, sentence=2**63, size=2**62),
    "a directory longer than the file": _directory(1, size=10_000_000),
    "one file a hundred thousand times": _directory(100_000),
    "end without a start": in_zip(_EMPTY)[-22:] + b"PK",
}
_TOLD = ("pytorch_model.bin", "hint:")

CASES = (
    *(
        Case(f"pickle calls {module}.{name}".encode("unicode_escape").decode(), _called(module, name, "reduce"),
             words=("references", "not allowed"))
        for module, name in _CALLS
    ),
    *(
        Case(f"pickle calls by {way}", _called("os", "system", way), words=("pytorch_model.bin",))
        for way in ("stack", "inst", "object")
    ),
    Case("legacy pickle calls", _called("os", "system", "reduce", bytes), words=("references os.system",)),
    *(
        Case(f"pickle: {name}", with_files(files={"pytorch_model.bin": in_zip(content)}), words=_TOLD)
        for name, content in _OPERATIONS.items()
    ),
    *(
        Case(f"archive: {name}", with_files(files={"pytorch_model.bin": content}), words=_TOLD)
        for name, content in _ARCHIVES.items()
    ),
)  # fmt: skip
