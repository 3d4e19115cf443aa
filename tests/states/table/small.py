"""Small models with random weights, of text, vision and audio, and what surrounds them in a training run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.families import FAMILIES

LABELS = {"id2label": {0: "no", 1: "maybe", 2: "yes"}, "label2id": {"no": 0, "maybe": 1, "yes": 2}}
_AUDIO = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37, "conv_dim": (32, 32),
    "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2,
    "classifier_proj_size": 16, "vocab_size": 40,
}  # fmt: skip


def classifier(name: str) -> Any:
    """A classifier of three named classes."""
    torch.manual_seed(0)
    if name == "wav2vec2":
        model = transformers.Wav2Vec2ForSequenceClassification(transformers.Wav2Vec2Config(**_AUDIO, **LABELS)).eval()
    else:
        family = FAMILIES[name]
        model = family.build(family.classifier, **(family.pad_token | LABELS))
    model.config.architectures = [type(model).__name__]
    return model


def configured(model: Any, folder: Path) -> Path:
    """The folder with the model's config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)
    return folder


def texts(count: int = 8) -> Any:
    """A data set of texts in numbers, with a label each."""
    rows = torch.randint(5, 40, (count, 6))
    return [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": at % 3} for at, row in enumerate(rows)]


def stepped(model: Any, optimizer: Any) -> None:
    """One step of a training."""
    rows = torch.randint(5, 40, (2, 6))
    model(input_ids=rows, labels=torch.tensor([0, 1])).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


@contextmanager
def one_process(folder: Path) -> Iterator[None]:
    """A process group of one."""
    place = folder.parent / f"{folder.name}.store"
    torch.distributed.init_process_group("gloo", store=torch.distributed.FileStore(str(place), 1), rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()
        place.unlink(missing_ok=True)
