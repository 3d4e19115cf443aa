"""Scores of a BertForSequenceClassification for the inputs of a card, with numpy alone: a small engine to seed bugs in.

python engine.py MODEL CARD SCORES [BUG]. MODEL is a folder that save_pretrained wrote in float32.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
erf = np.vectorize(math.erf, otypes=[np.float32])


def read_weights(path: Path) -> dict[str, Array]:
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        assert entry["dtype"] == "F32", f"{name} is in {entry['dtype']}"
        first, last = entry["data_offsets"]
        found[name] = np.frombuffer(data[start + first : start + last], "<f4").reshape(entry["shape"])
    return found


def softmax(values: Array) -> Array:
    powers = np.exp(values - values.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


class Engine:
    """A model, and the bug that it has; "" for none."""

    def __init__(self, folder: Path, bug: str) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        assert self.config["hidden_act"] == "gelu"
        self.weights, self.bug = read_weights(folder / "model.safetensors"), bug

    def linear(self, name: str, values: Array) -> Array:
        return values @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, name: str, values: Array) -> Array:
        centered = values - values.mean(-1, keepdims=True)
        scaled = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + self.config["layer_norm_eps"])
        return np.asarray(scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"], np.float32)

    def gelu(self, values: Array) -> Array:
        if self.bug == "tanh GELU":
            return values / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (values + 0.044715 * values**3)))
        if self.bug == "sigmoid GELU":
            return values / (1 + np.exp(-1.702 * values))
        return np.asarray(values / 2 * (1 + erf(values / math.sqrt(2))))

    def attend(self, name: str, hidden: Array, mask: Array) -> Array:
        heads = self.config["num_attention_heads"]

        def split(kind: str) -> Array:
            values = self.linear(f"{name}.self.{kind}", hidden)
            return values.reshape(len(hidden), heads, -1).transpose(1, 0, 2)

        query, key, value = map(split, ("query", "key", "value"))
        logits = query @ key.transpose(0, 2, 1) / math.sqrt(query.shape[-1])
        if self.bug != "mask ignored":
            logits = np.where(mask > 0, logits, np.float32(-1e30))
        return (softmax(logits) @ value).transpose(1, 0, 2).reshape(hidden.shape)

    def encode(self, ids: Array, mask: Array, types: Array) -> Array:
        own = "bert.embeddings"
        hidden = self.weights[f"{own}.word_embeddings.weight"][ids]
        hidden = hidden + self.weights[f"{own}.position_embeddings.weight"][: len(ids)]
        types = types * 0 if self.bug == "segments ignored" else types
        hidden = self.norm(f"{own}.LayerNorm", hidden + self.weights[f"{own}.token_type_embeddings.weight"][types])
        for layer in range(self.config["num_hidden_layers"]):
            own = f"bert.encoder.layer.{layer}"
            attended = self.linear(f"{own}.attention.output.dense", self.attend(f"{own}.attention", hidden, mask))
            hidden = self.norm(f"{own}.attention.output.LayerNorm", hidden + attended)
            inner = self.gelu(self.linear(f"{own}.intermediate.dense", hidden))
            hidden = self.norm(f"{own}.output.LayerNorm", hidden + self.linear(f"{own}.output.dense", inner))
        return hidden

    def score(self, given: dict[str, Any]) -> list[float]:
        ids, mask, types = (np.array(given[name]) for name in ("input_ids", "attention_mask", "token_type_ids"))
        hidden = self.encode(ids, mask, types)
        pooled = hidden[0]
        if self.bug == "last token":
            pooled = hidden[mask.nonzero()[0].max()]
        if self.bug == "mean of the tokens":
            pooled = hidden[mask > 0].mean(0)
        if self.bug != "no pooler":
            pooled = self.linear("bert.pooler.dense", pooled)
        if self.bug not in ("no pooler", "no tanh"):
            pooled = np.tanh(pooled)
        scores = softmax(self.linear("classifier", pooled))
        return [float(score) for score in (scores[::-1] if self.bug == "labels in another order" else scores)]


if __name__ == "__main__":
    folder, card, output, *bug = sys.argv[1:]
    engine = Engine(Path(folder), *(bug or [""]))
    rows = [engine.score(given) for given in json.loads(Path(card).read_text())["inputs"]]
    Path(output).write_text(json.dumps({"engine": "tiny in Python", "dtype": "float32", "scores": rows}))
