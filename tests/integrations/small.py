"""What the tests of trainers share: a classifier with a new head, four rows to train it on, and what was found."""

from pathlib import Path
from typing import Any

import torch
import transformers
from torch.utils.data import Dataset

from tests.families import FAMILIES

LABELS = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}


class Texts(Dataset[dict[str, torch.Tensor]]):
    """Four rows of numbers."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.tensor([5, 6, 7, 8 + index])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor(index % 2)}


def with_new_head(folder: Path) -> transformers.PreTrainedModel:
    """A classifier that was loaded from a base model, which is in `base`."""
    FAMILIES["bert"].build("BertModel").save_pretrained(folder / "base")
    return transformers.BertForSequenceClassification.from_pretrained(folder / "base", **LABELS)


def ids(callback: Any) -> list[str]:
    """The rules that found something after the start, each once."""
    results = [*callback.saves, *([callback.trained] if callback.trained else [])]
    return list(dict.fromkeys(finding.id for result in results for finding in result.findings))
