"""What the tests of trainers share: a classifier with a new head, four rows to train it on, and what was found."""

from pathlib import Path
from typing import Any

import torch
import transformers
from torch.utils.data import Dataset

from tests.families import FAMILIES

LABELS = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}


USUAL: dict[str, Any] = {
    "per_device_train_batch_size": 2, "report_to": [], "use_cpu": True, "disable_tqdm": True, "learning_rate": 1e-2,
}  # fmt: skip
"""Arguments of a short training run."""


class Texts(Dataset[dict[str, torch.Tensor]]):
    """Four rows of numbers."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.tensor([5, 6, 7, 8 + index])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor(index % 2)}


def with_new_head(folder: Path, saved: str = "BertModel", family: str = "bert", **options: Any) -> Any:
    """A classifier that was loaded from `base`, which holds another class of its family."""
    FAMILIES[family].build(saved).save_pretrained(folder / "base")
    classifier = getattr(transformers, FAMILIES[family].classifier)
    return classifier.from_pretrained(folder / "base", **(LABELS | options))


def arguments(folder: Path, **given: Any) -> transformers.TrainingArguments:
    return transformers.TrainingArguments(str(folder / "out"), **(USUAL | {"max_steps": 3, "save_steps": 2} | given))


def trained(
    model: Any,
    folder: Path,
    callback: Any,
    trainer_class: type[transformers.Trainer] = transformers.Trainer,
    *,
    others: Any = (),
    optimizers: Any = (None, None),
    **given: Any,
) -> transformers.Trainer:
    """The trainer after its run."""
    trainer = trainer_class(
        model, arguments(folder, **given), train_dataset=Texts(), eval_dataset=Texts(), callbacks=[callback, *others],
        optimizers=optimizers,
    )  # fmt: skip
    trainer.train()
    return trainer


def ids(callback: Any) -> list[str]:
    """The rules that found something after the start, each once."""
    results = [*callback.saves, *([callback.trained] if callback.trained else [])]
    return list(dict.fromkeys(finding.id for result in results for finding in result.findings))
