"""A hostile input: how it is built, the command that meets it, and how that has to end."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

CANARY = "canary"
"""The file that hostile code would make, in the folder that holds the checkpoint."""

CONFIG: dict[str, Any] = {
    "model_type": "distilbert",
    "architectures": ["DistilBertForSequenceClassification"],
    "dim": 8,
    "hidden_dim": 16,
    "n_heads": 2,
    "n_layers": 1,
    "vocab_size": 20,
    "max_position_embeddings": 16,
}
ONE_TENSOR = {"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}

Build = Callable[[Path], list[str]]


@dataclass(frozen=True)
class Case:
    """`build` fills a folder and returns the arguments; `words` all stand in what is printed."""

    id: str
    build: Build
    codes: tuple[int, ...] = (3,)
    words: tuple[str, ...] = ()


def safetensors(header: bytes | dict[str, Any], data: bytes = b"\0" * 4, length: int | None = None) -> bytes:
    """A safetensors file with this header, whose length field may lie."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def checkpoint(folder: Path, files: dict[str, bytes], config: bytes | dict[str, Any] | None = None) -> Path:
    """A checkpoint folder with these files and a configuration."""
    made = folder / "checkpoint"
    made.mkdir()
    text = CONFIG if config is None else config
    (made / "config.json").write_bytes(text if isinstance(text, bytes) else json.dumps(text).encode())
    for name, content in files.items():
        (made / name).write_bytes(content)
    return made


def zeros(shapes: dict[str, list[int]]) -> bytes:
    """A whole safetensors file with tensors of these shapes."""
    return save({key: torch.zeros(shape) for key, shape in shapes.items()})


def snapshot_of(path: Path) -> list[str]:
    """The arguments that read headers and nothing more."""
    return ["snapshot", str(path), "-o", str(path.parent / "out.json")]


def with_files(**options: Any) -> Build:
    """A checkpoint of these files, to be read."""

    def build(folder: Path) -> list[str]:
        return snapshot_of(checkpoint(folder, **options))

    return build


def inspected(files: dict[str, bytes], config: bytes | dict[str, Any] | None = None) -> Build:
    """A checkpoint of these files, to be examined whole."""

    def build(folder: Path) -> list[str]:
        return ["inspect", str(checkpoint(folder, files, config))]

    return build


def folder_of(files: Callable[[Path], dict[str, bytes]], *options: str) -> Build:
    """A folder with the files that a function gives, to be examined."""

    def build(folder: Path) -> list[str]:
        made = folder / "checkpoint"
        made.mkdir()
        for name, content in files(folder).items():
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            (made / name).write_bytes(content)
        return ["inspect", str(made), *options]

    return build


def inspect(path: Path) -> list[str]:
    """The arguments that examine a file."""
    return ["inspect", str(path)]


def file_of(name: str, make: Callable[[], bytes], arguments: Callable[[Path], list[str]] = inspect) -> Build:
    """One file, made when the case runs, and the command that meets it."""

    def build(folder: Path) -> list[str]:
        (folder / name).write_bytes(make())
        return arguments(folder / name)

    return build
