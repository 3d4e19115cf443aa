"""ONNX files made by `torch.onnx.export`: small classifiers of Transformers, and modules with one pooling each."""

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import torch
from torch import nn
from transformers import PreTrainedModel

from tests.families import FAMILIES

LABELS = ("neg", "neutral", "pos")


def classifier(name: str) -> PreTrainedModel:
    """A classifier with three labels and no weight of zero: the exporter leaves out a bias of zeros."""
    family = FAMILIES[name]
    names = {"id2label": dict(enumerate(LABELS)), "label2id": {text: at for at, text in enumerate(LABELS)}}
    model = family.build(family.classifier, **names, **family.pad_token)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    model.config.use_cache = False
    return model


def write_onnx(model: nn.Module, path: Path, *, dynamo: bool = False, images: bool = False) -> Path:
    """The model exported with axes that vary, and checked by onnx."""
    ids = torch.tensor([[5, 6, 7, 8, 9], [5, 6, 7, 8, 9]])
    given = {"pixel_values": torch.zeros(2, 3, 30, 30)} if images else {"input_ids": ids, "attention_mask": ids // ids}
    axes = {name: {0: "batch"} if images else {0: "batch", 1: "sequence"} for name in given}
    options = {"dynamic_shapes": axes, "kwargs": given} if dynamo else {"dynamic_axes": axes}
    torch.onnx.export(
        model, () if dynamo else tuple(given.values()), str(path), dynamo=dynamo, input_names=list(given),
        output_names=["logits"], **options, **({"external_data": False, "verbose": False} if dynamo else {}),
    )  # fmt: skip
    onnx.checker.check_model(str(path))
    return path


def with_labels(path: Path, labels: list[str] | str) -> Path:
    """The file with labels in its metadata, or with this text in their place."""
    model = onnx.load(str(path))
    onnx.helper.set_model_props(model, {"id2label": labels if isinstance(labels, str) else json.dumps(labels)})
    onnx.save(model, str(path))
    return path


class Pooled(nn.Module):
    """Normalized embeddings, a pooling, a linear layer."""

    def __init__(self, pool: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], width: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(20, 8)
        self.norm = nn.LayerNorm(8)
        self.score = nn.Linear(width, 3)
        self._pool = pool

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.score(self._pool(self.norm(self.embed(input_ids)), attention_mask))
