"""Our header reading against the official parser: the same files accepted and refused, with the same content."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from benchmarks.fuzz_headers import examine, ours, theirs
from headscope.core.checkpoints.formats.bytes import LocalBytes
from headscope.core.checkpoints.formats.safetensors_header import read_safetensors_header

TENSORS = {
    "a.weight": torch.zeros(3, 4),
    "a.bias": torch.zeros(3),
    "b": torch.zeros(2, 2, dtype=torch.bfloat16),
    "empty": torch.zeros(0, 5),
    "scalar": torch.tensor(1, dtype=torch.int64),
}


def with_header(header: bytes, data: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + data


def test_a_good_file_is_read_as_the_official_parser_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "good.safetensors"
    path.write_bytes(save(TENSORS, {"format": "pt"}))
    assert ours(path) == theirs(path)
    assert len(ours(path) or ()) == len(TENSORS)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
        torch.uint8, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.uint16, torch.uint32,
        torch.uint64, torch.float8_e8m0fnu,
    ],
    ids=str,
)  # fmt: skip
def test_dtypes_carry_pytorchs_names(dtype: torch.dtype, tmp_path: Path) -> None:
    path = tmp_path / "one.safetensors"
    path.write_bytes(save({"x": torch.zeros(4, dtype=dtype)}))
    assert ours(path) == {"x": (str(dtype).removeprefix("torch."), (4,))}


def entry(dtype: str = "F32", shape: object = (1,), offsets: object = (0, 4), **more: object) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


def extra(value: bytes) -> bytes:
    return b'{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"y":' + value + b"}}"


HEADERS: dict[str, bytes] = {
    "fine": json.dumps({"x": entry()}).encode(),
    "padded with spaces": json.dumps({"x": entry()}).encode() + b"    ",
    "leading space": b" " + json.dumps({"x": entry()}).encode(),
    "duplicate key": b"{%s,%s}" % ((b'"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}',) * 2),
    "gap": json.dumps({"x": entry(offsets=(1, 5))}).encode(),
    "overlap": json.dumps({"x": entry(), "y": entry()}).encode(),
    "wrong size": json.dumps({"x": entry(shape=(2,))}).encode(),
    "negative": json.dumps({"x": entry(shape=(-1,))}).encode(),
    "float shape": json.dumps({"x": entry(shape=(1.0,))}).encode(),
    "huge": json.dumps({"x": entry(shape=(2**62, 4))}).encode(),
    "huge with zero": json.dumps({"x": entry(shape=(2**62, 4, 0), offsets=(0, 0)), "y": entry()}).encode(),
    "over 64 bits": json.dumps({"x": entry(shape=(2**70,))}).encode(),
    "unknown dtype": json.dumps({"x": entry("F31")}).encode(),
    "extra field": json.dumps({"x": entry(more=1)}).encode(),
    "no shape": json.dumps({"x": {"dtype": "F32", "data_offsets": [0, 4]}}).encode(),
    "not an object": b"[1]",
    "null": b"null",
    "NaN": b'{"x":{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}}',
    "nested": b'{"x":' * 200 + b"1" + b"}" * 200,
    "bad utf-8": b'{"\xff":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
    "half a surrogate": b'{"\\ud800":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
    "metadata": json.dumps({"__metadata__": {"a": "b"}, "x": entry()}).encode(),
    "metadata of numbers": json.dumps({"__metadata__": {"a": 1}, "x": entry()}).encode(),
    "metadata null": json.dumps({"__metadata__": None, "x": entry()}).encode(),
    "metadata twice": b'{"__metadata__":{},"__metadata__":{},"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
    "metadata key twice": b'{"__metadata__":{"a":"b","a":"c"},"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
    "boolean shape": b'{"x":{"dtype":"F32","shape":[true],"data_offsets":[0,4]}}',
    "leading zero": b'{"x":{"dtype":"F32","shape":[01],"data_offsets":[0,4]}}',
    "exponent": b'{"x":{"dtype":"F32","shape":[1e0],"data_offsets":[0,4]}}',
    "three offsets": b'{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4,4]}}',
    "nothing": b"{}",
    "field twice": b'{"x":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
    "extra field with floats": b'{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"y":[1.5,{"z":-3}]}}',
    "half a byte": json.dumps({"x": entry("F4", (1,), (0, 4))}).encode(),
    "extra field, deep": extra(b"[" * 126 + b"]" * 126),
    "extra field, as deep as may be": extra(b"[" * 125 + b"]" * 125),
    "extra field, objects": extra(b'{"a":' * 125 + b"1" + b"}" * 125),
    "extra field, very deep": extra(b"[" * 900 + b"]" * 900),
    "extra field, half a surrogate": extra(b'"\\ud800"'),
    "extra field, half a surrogate as name": extra(b'{"\\ud800":1}'),
    "extra field, number out of range": extra(b"1e999"),
    "extra field, large number": extra(b"1e308"),
    "extra field, long number": extra(b"9" * 5000),
    "extra field, number over 64 bits": extra(b"9" * 300),
    "entry by position": b'{"x":["F32",[1],[0,4]]}',
    "entry by position, too long": b'{"x":["F32",[1],[0,4],0]}',
    "entry by position, mixed": b'{"x":["F32",[0,4],[1]]}',
    "minus zero": b'{"x":{"dtype":"F32","shape":[1],"data_offsets":[-0,4]}}',
}


@pytest.mark.parametrize("name", HEADERS)
def test_an_odd_header_is_judged_like_the_official_parser_does(name: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.safetensors"
    path.write_bytes(with_header(HEADERS[name], b"" if name == "nothing" else b"\0" * 4))
    assert ours(path) == theirs(path)


@pytest.mark.parametrize("seed", [1, 2])
def test_mutated_headers_are_read_as_the_official_parser_reads_them(seed: int) -> None:
    count, accepted, odd = examine((seed, 3000))
    assert odd == []
    assert accepted > count / 10


def test_cut_files_and_false_lengths_are_judged_like_the_official_parser_does(tmp_path: Path) -> None:
    good, path = save(TENSORS, {"format": "pt"}), tmp_path / "cut.safetensors"
    lengths = [good[:at] + bytes([value]) + good[at + 1 :] for at in range(8) for value in (0, 1, 127, 255)]
    for data in (*lengths, *(good[:at] for at in range(1, len(good)))):
        path.write_bytes(data)
        assert ours(path) == theirs(path), data


def test_only_the_header_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large.safetensors"
    header = json.dumps({"x": entry(shape=(2**28,), offsets=(0, 2**30))}).encode()
    path.write_bytes(with_header(header, b""))
    with path.open("r+b") as file:
        file.truncate(8 + len(header) + 2**30)
    source = LocalBytes(path, path.name)
    assert read_safetensors_header(source)[0].shape == (2**28,)
    assert source.bytes_read == 8 + len(header)
