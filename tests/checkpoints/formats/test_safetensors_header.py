"""Our header reading against the official parser: the same files accepted and refused, with the same content."""

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from headscope.core.checkpoints.formats.bytes import LocalBytes
from headscope.core.checkpoints.formats.dtypes import SAFETENSORS
from headscope.core.checkpoints.formats.safetensors_header import read_safetensors_header
from headscope.errors import Malformed

MUTATIONS = 3000
Found = dict[str, tuple[str, tuple[int, ...]]]
TENSORS = {
    "a.weight": torch.zeros(3, 4),
    "a.bias": torch.zeros(3),
    "b": torch.zeros(2, 2, dtype=torch.bfloat16),
    "empty": torch.zeros(0, 5),
    "scalar": torch.tensor(1, dtype=torch.int64),
}


def ours(path: Path) -> Found | None:
    """What we read, or None where we refuse."""
    try:
        headers = read_safetensors_header(LocalBytes(path, path.name))
    except Malformed:
        return None
    return {header.key: (header.dtype, header.shape) for header in headers}


def theirs(path: Path) -> Found | None:
    """What the official parser reads, or None where it refuses."""
    try:
        with safe_open(path, framework="pt") as file:
            slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118  no mapping
            return {key: (SAFETENSORS[part.get_dtype()][0], tuple(part.get_shape())) for key, part in slices.items()}
    except SafetensorError:
        return None


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


def mutated(data: bytes, chance: random.Random) -> bytes:
    """A copy with a few bytes changed, cut, doubled or swapped for signs that matter in JSON."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        changed = changed or bytearray(b"{")
        at = chance.randrange(len(changed)) if chance.random() < 0.3 else chance.randrange(min(len(changed), 400))
        match chance.randrange(5):
            case 0:
                changed[at] = chance.randrange(256)
            case 1:
                del changed[at : at + chance.randint(1, 4)]
            case 2:
                changed[at:at] = changed[at : at + chance.randint(1, 8)]
            case 3:
                changed[at] = chance.choice(b'0123456789{}[],:"-.eE \\')
            case 4:
                changed = changed[: max(1, at)]
    return bytes(changed)


def test_mutated_files_are_accepted_and_refused_like_the_official_parser_does(tmp_path: Path) -> None:
    chance, good, path = random.Random(7), save(TENSORS, {"format": "pt"}), tmp_path / "mutated.safetensors"
    accepted = 0
    for _ in range(MUTATIONS):
        data = mutated(good, chance)
        path.write_bytes(data)
        found = ours(path)
        assert found == theirs(path), data
        accepted += found is not None
    assert accepted > MUTATIONS / 100


def test_only_the_header_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large.safetensors"
    header = json.dumps({"x": entry(shape=(2**28,), offsets=(0, 2**30))}).encode()
    path.write_bytes(with_header(header, b""))
    with path.open("r+b") as file:
        file.truncate(8 + len(header) + 2**30)
    source = LocalBytes(path, path.name)
    assert read_safetensors_header(source)[0].shape == (2**28,)
    assert source.bytes_read == 8 + len(header)
