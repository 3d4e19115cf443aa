"""Dummy labels of the form that each task's loss takes."""

from typing import Any

import torch
from transformers import PreTrainedModel

from headscope.facts import Task
from headscope.trace.inputs import Sizes


def make_labels(model: PreTrainedModel, task: Task, sizes: Sizes) -> dict[str, Any]:
    """The label arguments of `model.forward` for `task`; empty where the form of the labels is not known."""
    if task is Task.QUESTION_ANSWERING:
        position = torch.ones(sizes.batch, dtype=torch.long)
        return {"start_positions": position, "end_positions": position.clone()}
    if task is Task.TOKEN_CLASSIFICATION:
        return {"labels": torch.zeros(sizes.batch, sizes.length, dtype=torch.long)}
    if task is Task.AUDIO_FRAME_CLASSIFICATION:
        return {}
    if task in (Task.MULTIPLE_CHOICE, Task.NEXT_SENTENCE_PREDICTION):
        return {"labels": torch.zeros(sizes.batch, dtype=torch.long)}
    return {"labels": _sequence_labels(model, sizes.batch)}


def _sequence_labels(model: PreTrainedModel, batch: int) -> torch.Tensor:
    count, problem = model.config.num_labels or 1, getattr(model.config, "problem_type", None)
    if problem == "multi_label_classification":
        return torch.zeros(batch, count, device=model.device)
    if problem == "regression" or (problem is None and count == 1):
        return torch.zeros(batch, *((count,) if count > 1 else ()), device=model.device)
    return torch.zeros(batch, dtype=torch.long)
