"""Mutated safetensors files, read by us and by the official parser: rate, and every disagreement with its bytes.

python -m benchmarks.fuzz_headers --count 1000000
"""

import argparse
import json
import math
import random
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from headscope.core.checkpoints.formats.bytes import LocalBytes
from headscope.core.checkpoints.formats.dtypes import SAFETENSORS
from headscope.core.checkpoints.formats.safetensors_header import read_safetensors_header
from headscope.errors import Malformed

Found = dict[str, tuple[str, tuple[int, ...]]]
_BATCH = 5000
_COMPOSED = 0.4
_SIGNS = b'0123456789{}[],:"-.eE \\'
_PIECES = (
    b'"shape":[', b"18446744073709551615", b"18446744073709551616", b"4294967296", b'"dtype":"F4",', b'"__metadata__":',
    b"null", b"true", b"NaN", b"1e999", b"[[[[", b'{"a":', b"\\ud800", b"\\ud83d\\ude00", b"\xff", b"\x00",
    b"\xef\xbb\xbf",
    b"\n", b"-0", b"1.0", b"[0,0]", b'"F6_E2M3"', b'"x":', b"0,", b"}", b",",
)  # fmt: skip


def ours(path: Path) -> Found | None:
    """What we read, or None where we refuse; any other exception is a bug and ends the run."""
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


def good_files() -> tuple[bytes, ...]:
    """What is mutated: files as the library writes them, and one of every dtype that is read."""
    tensors = {
        "a.weight": torch.zeros(3, 4),
        "b": torch.zeros(2, 2, dtype=torch.bfloat16),
        "empty": torch.zeros(0, 5),
        "scalar": torch.tensor(1, dtype=torch.int64),
    }
    header, at = dict[str, object](), 0
    for dtype, (_, bits) in SAFETENSORS.items():
        header[dtype] = {"dtype": dtype, "shape": [4, 2], "data_offsets": [at, at + bits]}
        at += bits
    text = json.dumps(header).encode()
    return save(tensors), save(tensors, {"format": "pt"}), len(text).to_bytes(8, "little") + text + bytes(at)


def composed(chance: random.Random) -> bytes:
    """A file with a header made by the rules, of odd names, shapes, orders and spaces; half of them with one fault."""
    entries, at = [], 0
    for number in range(chance.randint(0, 5)):
        dtype = chance.choice(list(SAFETENSORS))
        shape = [chance.choice((0, 1, 2, 4, 8)) for _ in range(chance.randint(0, 4))]
        size = math.prod(shape) * SAFETENSORS[dtype][1] // 8
        entries.append([f"{chance.choice(_NAMES)}{number}", dtype, shape, [at, at + size]])
        at += size
    if entries and chance.random() < 0.5:
        _spoil(chance.choice(entries), chance)
    chance.shuffle(entries)
    text = _written(entries, chance).encode("utf-8", "surrogatepass")
    spare = chance.choice((0, 0, 0, 0, 1, -1))
    return len(text).to_bytes(8, "little") + text + bytes(max(0, at + spare))


def _spoil(entry: list[Any], chance: random.Random) -> None:
    """One thing that may be wrong, or happen to be right."""
    match chance.randrange(5):
        case 0:
            entry[1] = chance.choice((*SAFETENSORS, "F6_E2M3", "f32", ""))
        case 1:
            entry[2] = [*entry[2], chance.choice((0, 1, 2, -1, 2**64))]
        case 2:
            entry[3] = [entry[3][0] + chance.choice((-1, 1)), entry[3][1]]
        case 3:
            entry[3] = entry[3][::-1]
        case 4:
            entry[0] = chance.choice(("__metadata__", "", "a0", "\ud800"))


def _written(entries: list[list[Any]], chance: random.Random) -> str:
    """The header as JSON, with spaces wherever JSON allows them."""
    parts = []
    for name, dtype, shape, offsets in entries:
        fields = [
            f'"dtype":{json.dumps(dtype)}',
            f'"shape":{json.dumps(shape)}',
            f'"data_offsets":{json.dumps(offsets)}',
        ]
        chance.shuffle(fields)
        space = chance.choice(("", " ", "\n\t"))
        parts.append(f"{space}{json.dumps(name, ensure_ascii=chance.random() < 0.5)}{space}:{{{','.join(fields)}}}")
    if chance.random() < 0.3:
        parts.append(f'"__metadata__":{chance.choice(_METADATA)}')
    return "{" + ",".join(parts) + "}" + " " * chance.randrange(9)


_NAMES = ("a.weight", "b", "ü", "\x00", "\x7f", "😀", 'q"', "\\", "/", "x" * 300)
_METADATA = ('{"format":"pt"}', "{}", "null", '{"a":1}', '{"a":{}}', "[]", '{"a":"1","a":"2"}')


def mutated(data: bytes, chance: random.Random) -> bytes:
    """A copy with a few changes, in half of the cases with a length field that is true again."""
    length = int.from_bytes(data[:8], "little")
    header, rest = bytearray(data[8 : 8 + length]), data[8 + length :]
    for _ in range(chance.randint(1, 3)):
        _change(header, chance)
    prefix = len(header) if chance.random() < 0.9 else max(0, len(header) + chance.randint(-3, 3))
    if chance.random() < 0.05:
        rest = rest[: chance.randrange(len(rest) + 1)]
    return prefix.to_bytes(8, "little") + bytes(header) + rest


def _change(header: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(header)) if header else 0
    match chance.randrange(6):
        case 0:
            header[at : at + 1] = bytes([chance.randrange(256)])
        case 1:
            del header[at : at + chance.randint(1, 4)]
        case 2:
            header[at:at] = header[at : at + chance.randint(1, 12)]
        case 3:
            header[at : at + 1] = bytes([chance.choice(_SIGNS)])
        case 4:
            header[at:at] = chance.choice(_PIECES)
        case 5:
            header[at : at + chance.randint(1, 6)] = chance.choice(_PIECES)


def examine(task: tuple[int, int]) -> tuple[int, int, list[tuple[bytes, Found | None, Found | None]]]:
    """Mutations of one seed: how many, how many were accepted by both, and the disagreements."""
    seed, count = task
    chance, good, accepted, odd = random.Random(seed), good_files(), 0, []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fuzz.safetensors"
        for _ in range(count):
            data = composed(chance) if chance.random() < _COMPOSED else mutated(chance.choice(good), chance)
            path.write_bytes(data)
            mine, official = ours(path), theirs(path)
            accepted += mine is not None and mine == official
            if mine != official:
                odd.append((data, mine, official))
    return count, accepted, odd


def main() -> int:
    """Runs the fuzz; 1 where the two disagree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=None)
    wanted = parser.parse_args()
    sizes = [min(_BATCH, wanted.count - at) for at in range(0, wanted.count, _BATCH)]
    tasks = [(wanted.seed * 1_000_003 + number, size) for number, size in enumerate(sizes)]
    began, done, accepted, odd = time.perf_counter(), 0, 0, 0
    with ProcessPoolExecutor(wanted.workers) as pool:
        for count, both, found in pool.map(examine, tasks):
            done, accepted, odd = done + count, accepted + both, odd + len(found)
            for data, mine, official in found:
                print(f"disagreement on {data!r}\n  headscope: {mine}\n  official:  {official}")
    seconds = time.perf_counter() - began
    print(f"{done:,} files, {done / seconds:,.0f} a second; {accepted:,} accepted by both; {odd} disagreements")
    return 1 if odd else 0


if __name__ == "__main__":
    sys.exit(main())
