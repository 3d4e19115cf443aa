"""Chains of modules in the layout that sentence-transformers saves, written without it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.chains import save_base

_LIBRARY = "sentence_transformers"
_TYPES = {
    "Pooling": f"{_LIBRARY}.sentence_transformer.modules.pooling.Pooling",
    "Dense": f"{_LIBRARY}.base.modules.dense.Dense",
    "LayerNorm": f"{_LIBRARY}.sentence_transformer.modules.layer_norm.LayerNorm",
    "Normalize": f"{_LIBRARY}.sentence_transformer.modules.normalize.Normalize",
}
_IDENTITY = "torch.nn.modules.linear.Identity"
Module = tuple[str, dict[str, Any], dict[str, torch.Tensor]]
"""The class, its settings and its tensors."""


def pooling(mode: str, size: int = 16) -> Module:
    return "Pooling", {"embedding_dimension": size, "pooling_mode": mode, "include_prompt": True}, {}


def normalize() -> Module:
    return "Normalize", {}, {}


def norm(size: int = 16) -> Module:
    drawn = torch.Generator().manual_seed(size)
    values = {"norm.weight": torch.rand(size, generator=drawn) + 0.5, "norm.bias": torch.randn(size, generator=drawn)}
    return "LayerNorm", {"dimension": size}, values


def dense(size: int, out: int, activation: str = "", *, bias: bool = True, residual: bool = False) -> Module:
    """A linear layer with random numbers, which makes the scores if it has no activation and comes last."""
    drawn = torch.Generator().manual_seed(100 * size + out)
    settings = {
        "in_features": size, "out_features": out, "bias": bias, "module_input_name": "sentence_embedding",
        "module_output_name": "sentence_embedding",
        "activation_function": f"torch.nn.modules.activation.{activation}" if activation else _IDENTITY,
    }  # fmt: skip
    values = {"linear.weight": torch.randn(out, size, generator=drawn) * 0.4}
    if bias:
        values["linear.bias"] = torch.randn(out, generator=drawn)
    return "Dense", settings | ({"use_residual": True} if residual else {}), values


def write_chain(folder: Path, family: str, after: Sequence[Module], **settings: Any) -> Path:
    """A CrossEncoder of a small base model and modules, of which the last one makes the scores."""
    save_base(family, folder)
    entries = [{"idx": 0, "name": "0", "path": "", "type": f"{_LIBRARY}.base.modules.transformer.Transformer"}]
    for at, (kind, own, values) in enumerate(after, 1):
        path = folder / f"{at}_{kind}"
        path.mkdir()
        scores = {"module_output_name": "scores"} if at == len(after) and kind == "Dense" else {}
        (path / "config.json").write_text(json.dumps(own | scores))
        if values:
            save_file(values, path / "model.safetensors")
        entries.append({"idx": at, "name": str(at), "path": path.name, "type": _TYPES[kind]})
    (folder / "modules.json").write_text(json.dumps(entries))
    library = {
        "model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.activation.Sigmoid", "prompts": {},
        "default_prompt_name": None, "__version__": {_LIBRARY: "6.2.0"},
    }  # fmt: skip
    (folder / "config_sentence_transformers.json").write_text(json.dumps(library | settings))
    modality = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
    transformer = {
        "transformer_task": "feature-extraction", "modality_config": modality,
        "module_output_name": "token_embeddings",
    }  # fmt: skip
    (folder / "sentence_bert_config.json").write_text(json.dumps(transformer))
    return folder
