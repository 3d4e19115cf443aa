"""GGUF headers, against the files that the format's own package writes."""

import struct
from pathlib import Path

import pytest

from headscope.core.checkpoints.exports.gguf.file import _FORMATS, read_gguf
from headscope.core.checkpoints.formats.bytes import LocalBytes
from headscope.errors import HeadscopeError, Malformed, Unsupported

gguf = pytest.importorskip("gguf")
np = pytest.importorskip("numpy")

TENSORS = {
    "token_embd.weight": (30, 8),
    "blk.0.attn_q.weight": (8, 8),
    "blk.1.attn_q.weight": (8, 8),
    "cls.weight": (8, 8),
    "cls.output.weight": (2, 8),
    "cls.output.bias": (2,),
}


def write(path: Path, tokens: int = 100) -> Path:
    """A BERT re-ranker with a tokenizer in its header."""
    writer = gguf.GGUFWriter(str(path), "bert")
    writer.add_uint32("bert.pooling_type", 4)
    writer.add_array("bert.classifier.output_labels", ["neg", "pos"])
    writer.add_token_list([f"token {number}" for number in range(tokens)])
    writer.add_token_scores([0.5] * tokens)
    for name, shape in TENSORS.items():
        writer.add_tensor(name, np.zeros(shape, np.float16 if "blk" in name else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("tokens", [1, 100, 40_000])
def test_names_shapes_and_settings_are_those_of_the_official_reader(tmp_path: Path, tokens: int) -> None:
    file = write(tmp_path / "model.gguf", tokens)
    contents = read_gguf(LocalBytes(file, file.name))
    official = gguf.GGUFReader(str(file))
    shapes = {item.name: tuple(int(size) for size in reversed(item.shape)) for item in official.tensors}
    assert shapes == TENSORS
    assert {item.key: item.shape for item in contents.outside_blocks} == {
        name: shape for name, shape in shapes.items() if not name.startswith("blk.")
    }
    assert (contents.architecture, contents.tensors) == ("bert", len(official.tensors))
    assert contents.elements == sum(int(item.n_elements) for item in official.tensors)
    assert {item.dtype: item.tensors for item in contents.dtypes} == {"F16": 2, "F32": 4}
    assert [item.value for item in contents.settings] == ["RANK", "neg, pos"]


def test_number_formats_have_their_official_names() -> None:
    official = {item.value: item.name for item in gguf.GGMLQuantizationType}
    assert {number: official[number] for number in _FORMATS} == _FORMATS


def _header(tensors: int = 0, settings: int = 0, version: int = 3, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, settings) + rest


def _text(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


@pytest.mark.parametrize(
    ("data", "error", "said"),
    [
        (b"", Malformed, "not a whole GGUF file"),
        (b"GGML" + b"\0" * 40, Malformed, "is not a GGUF file"),
        (_header(version=2**31), Unsupported, "GGUF of version 2147483648"),
        (_header(version=1), Unsupported, "convert it again"),
        (_header(version=4), Unsupported, "update headscope"),
        (_header(tensors=2**63), Malformed, "over the limit"),
        (_header(settings=2**63), Malformed, "over the limit"),
        (_header(tensors=1), Malformed, "not a whole GGUF file"),
        (_header(settings=1, rest=struct.pack("<Q", 2**63)), Malformed, "announces a text"),
        (_header(settings=1, rest=_text(b"a") + struct.pack("<I", 77)), Malformed, "unknown kind 77"),
        (_header(settings=1, rest=_text(b"a") + struct.pack("<IIQ", 9, 9, 1)), Malformed, "array of the kind 9"),
        (_header(settings=1, rest=_text(b"a") + struct.pack("<IIQ", 9, 0, 2**60)), Malformed, "not a whole GGUF file"),
        (_header(settings=1, rest=_text(b"a") + struct.pack("<IIQ", 9, 8, 2**60)), Malformed, "over the limit"),
        (_header(tensors=1, rest=_text(b"t") + struct.pack("<I", 2**31)), Malformed, "axes"),
    ],
)
def test_a_broken_file_is_refused_at_once(tmp_path: Path, data: bytes, error: type[HeadscopeError], said: str) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(data)
    with pytest.raises(error) as caught:
        read_gguf(LocalBytes(file, file.name))
    assert said in f"{caught.value.message}: {caught.value.hint}"


def test_no_truncation_and_no_flipped_byte_gets_past_the_errors(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.gguf", 20).read_bytes()
    file = tmp_path / "model.gguf"
    outcomes = set()
    for at in range(0, len(whole), 7):
        for data in (whole[:at], whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]):
            file.write_bytes(data)
            try:
                read_gguf(LocalBytes(file, file.name))
                outcomes.add("read")
            except HeadscopeError as err:
                outcomes.add(type(err).__name__)
    assert outcomes >= {"read", "Malformed"}
