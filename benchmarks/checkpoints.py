"""The checkpoints that are measured, made once in `benchmarks/.work` and kept.

The large ones are sparse: real headers and sizes, and holes where the weights would be, so that they cost no disk.
"""

import json
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

from benchmarks.timing import PYTHON, WORK
from headscope.core.checkpoints.snapshot import write_snapshot
from headscope.facts import CheckpointKind, CheckpointManifest, TensorHeader, WeightFile, WeightsFormat

SHARD_BYTES = 4_900_000_000
BYTES_PER_ELEMENT = 2  # bfloat16
Tensor = tuple[str, tuple[int, ...]]

_SAVE_BERT = (
    "import sys; from transformers import BertConfig, BertForPreTraining; "
    "BertForPreTraining(BertConfig()).save_pretrained(sys.argv[1])"
)


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """The sizes that make a Llama checkpoint."""

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_value_heads: int
    vocabulary: int

    def config(self) -> dict[str, object]:
        """The `config.json` of a causal language model of this shape."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.key_value_heads,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
            "dtype": "bfloat16",
        }

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor of the checkpoint, in the model's order."""
        key_value = self.hidden // self.heads * self.key_value_heads
        layer: dict[str, tuple[int, ...]] = {
            "self_attn.q_proj": (self.hidden, self.hidden),
            "self_attn.k_proj": (key_value, self.hidden),
            "self_attn.v_proj": (key_value, self.hidden),
            "self_attn.o_proj": (self.hidden, self.hidden),
            "mlp.gate_proj": (self.intermediate, self.hidden),
            "mlp.up_proj": (self.intermediate, self.hidden),
            "mlp.down_proj": (self.hidden, self.intermediate),
            "input_layernorm": (self.hidden,),
            "post_attention_layernorm": (self.hidden,),
        }
        yield "model.embed_tokens.weight", (self.vocabulary, self.hidden)
        for index in range(self.layers):
            for name, shape in layer.items():
                yield f"model.layers.{index}.{name}.weight", shape
        yield "model.norm.weight", (self.hidden,)
        yield "lm_head.weight", (self.vocabulary, self.hidden)


LLAMA_7B = LlamaShape("llama-7b", 4096, 11008, 32, 32, 32, 32000)
LLAMA_8B = LlamaShape("llama-8b", 4096, 14336, 32, 32, 8, 128256)
LLAMA_70B = LlamaShape("llama-70b", 8192, 28672, 80, 64, 8, 32000)


def bert_base() -> Path:
    """The folder of a BERT-base checkpoint with random weights, saved from the pretraining class."""
    folder = WORK / "bert-base"
    if not (folder / "model.safetensors").exists():
        subprocess.run((PYTHON, "-c", _SAVE_BERT, str(folder)), check=True, capture_output=True)
    return folder


def sparse_llama(shape: LlamaShape, shard_bytes: int = SHARD_BYTES) -> Path:
    """The folder of a checkpoint of `shape`, in shards of at most that many bytes, whose weights are holes."""
    folder = WORK / (shape.name if shard_bytes == SHARD_BYTES else f"{shape.name}-{shard_bytes // 1_000_000}MB")
    if not (folder / "model.safetensors.index.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        _write_sharded(folder, shape, shard_bytes)
    return folder


def llama_snapshot(shape: LlamaShape) -> Path:
    """A snapshot file of a checkpoint of `shape`, written again: it takes no time, and is never out of date."""
    names, shards = _named_shards(shape, SHARD_BYTES)
    manifest = CheckpointManifest(
        reference=shape.name,
        kind=CheckpointKind.LOCAL,
        format=WeightsFormat.SAFETENSORS,
        config=shape.config(),
        tensors=tuple(
            TensorHeader(key, "bfloat16", sizes, name)
            for name, tensors in zip(names, shards, strict=True)
            for key, sizes in tensors
        ),
        files=tuple(
            WeightFile(name, sum(map(_bytes_of, tensors))) for name, tensors in zip(names, shards, strict=True)
        ),
    )
    file = WORK / f"{shape.name}.json"
    write_snapshot(manifest, file, "a shape without weights, for benchmarks")
    return file


def _write_sharded(folder: Path, shape: LlamaShape, shard_bytes: int) -> None:
    names, shards = _named_shards(shape, shard_bytes)
    for name, tensors in zip(names, shards, strict=True):
        _write_sparse(folder / name, tensors)
    total = sum(_bytes_of(tensor) for tensor in shape.tensors())
    weight_map = {key: name for name, tensors in zip(names, shards, strict=True) for key, _ in tensors}
    (folder / "config.json").write_text(json.dumps(shape.config(), indent=2))
    # last, as its presence says that the folder is whole
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


def _named_shards(shape: LlamaShape, shard_bytes: int) -> tuple[list[str], list[list[Tensor]]]:
    shards = list(_shards(shape.tensors(), shard_bytes))
    return [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)], shards


def _shards(tensors: Iterator[Tensor], most: int) -> Iterator[list[Tensor]]:
    shard: list[Tensor] = []
    filled = 0
    for tensor in tensors:
        if shard and filled + _bytes_of(tensor) > most:
            yield shard
            shard, filled = [], 0
        shard.append(tensor)
        filled += _bytes_of(tensor)
    yield shard


def _bytes_of(tensor: Tensor) -> int:
    return prod(tensor[1]) * BYTES_PER_ELEMENT


def _write_sparse(file: Path, tensors: list[Tensor]) -> None:
    """A safetensors file: 8 bytes of header length, the header, and a hole of the tensors' size."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        begin, end = end, end + _bytes_of(tensor)
        header[tensor[0]] = {"dtype": "BF16", "shape": tensor[1], "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.truncate(8 + len(text) + end)
