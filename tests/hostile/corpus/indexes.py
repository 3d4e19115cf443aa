"""Indexes of sharded checkpoints: paths that lead elsewhere, shards that are not there."""

import json
from typing import Any

from hostile.corpus.case import ONE_TENSOR, Case, inspected, safetensors, with_files

_INDEX = "model.safetensors.index.json"
_TORCH_INDEX = "pytorch_model.bin.index.json"
_PATHS: dict[str, Any] = {
    "parent": "../model.safetensors",
    "parent, hidden": "a/../../model.safetensors",
    "two dots": "..",
    "one dot": ".",
    "absolute": "/etc/passwd",
    "home": "~/model.safetensors",
    "backslash": "..\\model.safetensors",
    "drive": "C:model.safetensors",
    "share": "\\\\host\\share\\model.safetensors",
    "URL": "https://example.org/model.safetensors",
    "file URL": "file:///etc/passwd",
    "NUL": "model.safetensors\0.bin",
    "nothing": "",
    "number": 1,
    "null": None,
    "list": ["model.safetensors"],
    "object": {"a": "b"},
    "truth": True,
    "escapes": "\x1b[2J/..",
}
_INDEXES: dict[str, bytes] = {
    "empty": b"",
    "not an object": b"[]",
    "not a map": b"{}",
    "empty map": b'{"weight_map": {}}',
    "map as a list": b'{"weight_map": ["a"]}',
    "map as null": b'{"weight_map": null}',
    "key twice": b'{"weight_map": {"a": "x", "a": "y"}}',
    "not UTF-8": b'{"weight_map": {"\xff": "x"}}',
    "deep": b'{"weight_map":' + b"[" * 100_000,
    "cut": b'{"weight_map": {"a": "mod',
    "pointer": b"version https://git-lfs.github.com/spec/v1\n",
}


def _index(shards: dict[str, Any]) -> bytes:
    return json.dumps({"weight_map": shards}).encode()


CASES = (
    *(
        Case(f"{file} names {name}", with_files(files={file: _index({"x": path})}), words=("names the shard", "hint:"))
        for name, path in _PATHS.items()
        for file in (_INDEX, _TORCH_INDEX)
    ),
    *(
        Case(f"index: {name}", with_files(files={_INDEX: content}), words=(_INDEX, "hint:"))
        for name, content in _INDEXES.items()
    ),
    Case(
        "a missing shard",
        inspected({
            _INDEX: _index({"x": "a.safetensors", "y": "b.safetensors"}),
            "a.safetensors": safetensors(ONE_TENSOR),
        }),
        words=("b.safetensors",),
    ),
    Case("all shards missing", inspected({_INDEX: _index({"x": "a.safetensors"})}), words=("a.safetensors",)),
    Case("no weights at all", inspected({}), words=("no weight file",)),
)  # fmt: skip
