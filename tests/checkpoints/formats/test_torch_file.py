"""PyTorch files: what we interpret equals what PyTorch unpickles, and nothing hostile runs."""

import collections
import io
import os
import pickle
import random
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from headscope.core.checkpoints.formats import torch_file
from headscope.core.checkpoints.formats.bytes import LocalBytes, refusing_once
from headscope.core.checkpoints.formats.torch_file import (
    read_torch_headers,
    read_torch_value,
    torch_places,
)
from headscope.errors import HeadscopeError, Malformed, Unsupported

base = torch.zeros(6, 4)
STATES: dict[str, dict[str, Any]] = {
    "plain": {"a.weight": torch.zeros(3, 4), "a.bias": torch.zeros(3)},
    "ordered": collections.OrderedDict(a=torch.zeros(2), b=torch.zeros(())),
    "parameters": {"w": torch.nn.Parameter(torch.zeros(2, 3))},
    "dtypes": {
        str(dtype): torch.zeros(2, dtype=dtype)
        for dtype in (
            torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
            torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn,
        )
    },
    "views": {"head": base[:2], "column": base[:, 1], "whole": base},
    "empty": {"none": torch.zeros(0, 7)},
}  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pytorch_model.bin"


def read(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    headers, _ = read_torch_headers(LocalBytes(path, path.name))
    return {header.key: (header.dtype, header.shape) for header in headers}


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("name", STATES)
def test_names_shapes_and_dtypes_equal_what_pytorch_loads(name: str, zipped: bool, path: Path) -> None:
    state = {key: item for key, item in STATES[name].items() if zipped or "float8" not in key}  # legacy knows none
    torch.save(state, path, _use_new_zipfile_serialization=zipped)
    loaded = torch.load(path, map_location="cpu", weights_only=True)
    assert read(path) == {
        key: (str(item.dtype).removeprefix("torch."), tuple(item.shape)) for key, item in loaded.items()
    }


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_pickle_protocol_is_read(protocol: int, path: Path) -> None:
    torch.save(STATES["plain"], path, pickle_protocol=protocol)
    assert set(read(path)) == set(STATES["plain"])


def test_keys_that_share_a_storage_are_grouped(path: Path) -> None:
    torch.save(STATES["views"] | {"other": torch.zeros(1)}, path)
    _, shared = read_torch_headers(LocalBytes(path, path.name))
    assert shared == (("head", "column", "whole"),)


def test_the_data_is_not_read(path: Path) -> None:
    torch.save({"large": torch.zeros(4_000_000)}, path)
    source = LocalBytes(path, path.name)
    read_torch_headers(source)
    assert source.bytes_read < 300_000 < source.size


class Payload:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_a_payload_is_named_and_never_runs(zipped: bool, path: Path) -> None:
    canary = path.with_name("canary")
    torch.save({"w": torch.zeros(2), "x": Payload(f"touch {canary}")}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(Malformed) as caught:
        read(path)
    assert "system" in caught.value.message
    assert not canary.exists()


MANY_DICTS = (
    b"ccollections\nOrderedDict\nq\x01]("
    + b"(X\x01\x00\x00\x00aK\x01l" * 2000
    + b"e\x85q\x02"
    + b"h\x01h\x02R0" * 200_000
    + b"}."
)
PICKLES: dict[str, bytes] = {
    "eval": b"cbuiltins\neval\n(V1\ntR.",
    "import by stack": b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x02id\x85R.",
    "instance": b"(S'ls'\nios\nsystem\n.",
    "empty stack": b"R.",
    "unwritten memo": b"h\x05.",
    "no stop": b"}",
    "mark missing": b"u.",
    "list": b"].",
    "number": b"K\x01.",
    "nested": pickle.dumps({"state_dict": {"a": 1}}, 2),
    "objects": pickle.dumps({"a": [1, 2]}, 2),
    "extension": b"\x82\x01.",
    "build on nothing": b"}b.",
    "key too deep to be hashed": b"})" + b"\x85" * 100_000 + b"K\x01s.",
    "key that doubles": b"})" + b"q\x00h\x00\x86" * 60 + b"K\x01s.",
    "call that doubles": b")" + b"q\x00h\x00\x86" * 60 + b")R.",
    "bytes after the end": pickle.dumps({}, 2) + b"more",
    "one long list, many dicts": MANY_DICTS,
    "key that cannot be one": b"}]K\x01s.",
}


def zipped_pickle(path: Path, content: bytes, name: str = "archive/data.pkl", method: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, content, method)
        archive.writestr(f"{name.partition('/')[0]}/version", b"3\n")


@pytest.mark.parametrize("name", PICKLES)
def test_a_pickle_that_is_no_state_dict_is_refused(name: str, path: Path) -> None:
    zipped_pickle(path, PICKLES[name])
    with pytest.raises(Malformed) as caught:
        read(path)
    assert "pytorch_model.bin" in caught.value.message


def test_archives_that_pytorch_never_writes_are_refused(path: Path) -> None:
    zipped_pickle(path, pickle.dumps({}), method=zipfile.ZIP_DEFLATED)
    with pytest.raises(Malformed, match="compressed"):
        read(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", pickle.dumps({}))
        archive.writestr("b/data.pkl", pickle.dumps({}))
        archive.writestr("a/version", b"3\n")
    with pytest.raises(Malformed, match="2 data"):
        read(path)


def _end_record(**changed: int) -> Callable[[bytes], bytes]:
    """Changes fields of the zip end record of a file without the one for large archives, which would win."""
    names = ("disk", "first_disk", "here", "total", "size", "start", "comment")

    def change(content: bytes) -> bytes:
        content = _without("nothing")(content)
        at = content.rindex(b"PK\x05\x06")
        values = dict(zip(names, struct.unpack("<4H2IH", content[at + 4 : at + 22]), strict=True))
        return content[: at + 4] + struct.pack("<4H2IH", *(values | changed).values()) + content[at + 22 :]

    return change


def rezipped(content: bytes, change: Callable[[str, bytes], bytes | None]) -> bytes:
    """The archive with its records changed, by their names; None leaves one out."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            record = change(name, old.read(name))
            if record is not None:
                new.writestr(name, record)
    return made.getvalue()


def _without(record: str) -> Callable[[bytes], bytes]:
    return lambda content: rezipped(content, lambda name, held: None if name.endswith(record) else held)


def _version(text: bytes) -> Callable[[bytes], bytes]:
    return lambda content: rezipped(content, lambda name, held: text if name.endswith("/version") else held)


LIES: dict[str, Callable[[bytes], bytes]] = {
    "no version": _without("/version"),
    "no pickle": _without("/data.pkl"),
    "version in words": _version(b"three"),
    "version 0": _version(b"0\n"),
    "version 11": _version(b"11\n"),
    "empty version": _version(b""),
    "no records announced": _end_record(here=0, total=0),
    "more records than there are": _end_record(here=999, total=999),
    "records on other disks": _end_record(here=1),
    "another disk": _end_record(disk=7, first_disk=7),
    "directory beyond the file": _end_record(start=0x7FFFFFFF),
    "directory too long": _end_record(size=0x7FFFFFFF),
    "directory at the start": _end_record(start=0),
    "directory of no size": _end_record(size=0),
    "end cut": lambda content: content[:-1],
    "no end": lambda content: content[: content.rindex(b"PK\x05\x06")],
    "something before it": lambda content: b"PK\x03\x04" + content,
    "pickle damaged": lambda content: content.replace(b"FloatStorage", b"LongxStorage"),
}


@pytest.mark.parametrize("name", LIES)
def test_an_archive_that_torch_load_refuses_is_refused(name: str, path: Path) -> None:
    torch.save(STATES["plain"], path)
    path.write_bytes(LIES[name](path.read_bytes()))
    with pytest.raises(Exception):  # noqa: B017  whatever PyTorch raises
        torch.load(path, weights_only=True, map_location="meta")
    with pytest.raises(Malformed) as caught:
        read(path)
    assert "pytorch_model.bin" in caught.value.message


def test_an_archive_with_a_zip64_end_is_read_as_torch_load_reads_it(path: Path) -> None:
    """PyTorch writes this record for more than 65,535 records, or over 4 GB."""
    torch.save(STATES["plain"], path)
    content = path.read_bytes()
    at = content.rindex(b"PK\x05\x06")
    _, _, here, total, size, start, _ = struct.unpack("<4H2IH", content[at + 4 : at + 22])
    large = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, here, total, size, start)
    end64 = start + size
    place = struct.pack("<4sIQI", b"PK\x06\x07", 0, end64, 1)
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    path.write_bytes(content[:end64] + large + place + end)
    loaded = torch.load(path, weights_only=True, map_location="meta")
    assert set(read(path)) == set(loaded)


def test_a_missing_storage_is_said(path: Path) -> None:
    torch.save(STATES["plain"], path)
    path.write_bytes(_without("/data/0")(path.read_bytes()))
    with pytest.raises(Malformed, match=r"missing|short"):
        read(path)


def rewritten(path: Path, old: bytes, new: bytes, record: str = "data.pkl") -> None:
    """Replaces bytes of a record of the archive."""
    path.write_bytes(
        rezipped(path.read_bytes(), lambda name, held: held.replace(old, new, 1) if name.endswith(record) else held)
    )


@pytest.mark.parametrize(
    ("old", "new"), [(b"K\x02K\x03\x86", b"K\x7fK\x03\x86"), (b"K\x03K\x01\x86", b"K\x09K\x01\x86")]
)
def test_a_tensor_beyond_its_storage_is_refused_as_by_pytorch(old: bytes, new: bytes, path: Path) -> None:
    torch.save({"w": torch.zeros(2, 3)}, path)
    assert read(path) == {"w": ("float32", (2, 3))}
    rewritten(path, old, new)
    with pytest.raises(Malformed, match="fit"):
        read(path)
    with pytest.raises(RuntimeError):
        torch.load(path, weights_only=True)


def test_views_without_data_of_their_own_are_read(path: Path) -> None:
    torch.save(
        {
            "wide": torch.zeros(1, 3).expand(5000, 3),
            "tail": base[5:, 3:],
            "complex": torch.zeros(2).to(torch.complex128),
        },
        path,
    )
    assert read(path) == {"wide": ("float32", (5000, 3)), "tail": ("float32", (1, 1)), "complex": ("complex128", (2,))}


def test_a_file_of_endless_text_is_not_read_through(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b"\x80\x02" + b"")
        for _ in range(40):
            file.write(b"X" + (60_000_000).to_bytes(4, "little"))
            file.seek(60_000_000, io.SEEK_CUR)
        file.truncate()
    source = LocalBytes(path, path.name)
    with pytest.raises(Malformed):
        read_torch_headers(source)
    assert source.bytes_read < 300_000_000 < source.size


def test_a_pickle_over_a_limit_is_read_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, read_pickle = [], torch_file.read_pickle
    zipped_pickle(path, b"\x80\x02](" + b"N" * 2_000_000 + b"e.")
    monkeypatch.setattr(torch_file, "read_pickle", lambda *given: reads.append(given[1]) or read_pickle(*given))
    source = LocalBytes(path, path.name)
    with refusing_once():
        for read_it in (read_torch_headers, read_torch_value, read_torch_headers):
            with pytest.raises(Malformed, match="more than 1,500,000 operations"):
                read_it(source)
        assert len(reads) == 1
        torch.save(STATES["plain"], path)
        assert read(path)  # another file of that name
    with pytest.raises(HeadscopeError):
        read_torch_headers(source)


def test_the_tar_format_is_refused_by_name(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo("storages"), io.BytesIO())
    with pytest.raises(Unsupported, match="tar format"):
        read(path)


def test_mutated_files_never_raise_anything_else(path: Path) -> None:
    chance = random.Random(11)
    for zipped in (True, False):
        torch.save(STATES["plain"], path, _use_new_zipfile_serialization=zipped)
        good = path.read_bytes()
        for _ in range(400):
            changed = bytearray(good)
            for _ in range(chance.randint(1, 6)):
                changed[chance.randrange(len(changed))] = chance.randrange(256)
            path.write_bytes(changed[: chance.randint(1, len(changed))] if chance.random() < 0.2 else changed)
            try:
                read(path)
            except HeadscopeError:
                continue


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_the_data_of_a_tensor_is_where_its_place_says(zipped: bool, path: Path) -> None:
    shared = torch.arange(24.0).reshape(4, 6)
    state = {
        "rows": shared[1:3], "whole": shared, "half": torch.randn(3, 5).bfloat16(),
        "bytes": torch.arange(7).to(torch.uint8), "turned": shared.T,
        "empty": torch.zeros(0, 4), "alone": torch.tensor(3.5, dtype=torch.float64),
        "column": torch.arange(6.0).reshape(6, 1)[2:],
    }  # fmt: skip
    torch.save(state, path, _use_new_zipfile_serialization=zipped)
    find = torch_places(LocalBytes(path, path.name))
    places = {key: place for key in (*state, "absent") if (place := find(key)) is not None}
    assert set(state) - set(places) == {"turned"}
    data = path.read_bytes()
    for key, (begin, end) in places.items():
        expected = state[key].contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        assert data[begin:end] == expected, key


def test_a_file_of_a_big_endian_machine_has_no_places(path: Path) -> None:
    torch.save({"weight": torch.ones(2, 3)}, path)
    rewritten(path, b"little", b"big", "byteorder")
    assert torch_places(LocalBytes(path, path.name))("weight") is None


def test_a_legacy_file_whose_storages_are_not_all_known_gives_no_place_behind_them(path: Path) -> None:
    torch.save({"a": {"nested": torch.ones(9)}, "b": torch.ones(2)}, path, _use_new_zipfile_serialization=False)
    place = torch_places(LocalBytes(path, path.name))("b")
    for begin, end in () if place is None else (place,):
        assert path.read_bytes()[begin:end] == torch.ones(2).numpy().tobytes()
