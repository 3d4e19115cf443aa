"""Classes of one's own whose forward ends in a function that its loss and the pipelines apply too."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_outputs import SequenceClassifierOutput, TokenClassifierOutput

from tests.checks.broken import LABELS, Build, named
from tests.families import FAMILIES

Ending = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor | None]]
"""Makes what a forward returns, and its loss, of the scores and the labels."""


def cross_entropy(scores: Tensor, labels: Tensor | None) -> Tensor | None:
    if labels is None:
        return None
    return functional.cross_entropy(scores.view(-1, scores.shape[-1]), labels.view(-1))


def binary_cross_entropy(scores: Tensor, labels: Tensor | None) -> Tensor | None:
    return None if labels is None else functional.binary_cross_entropy_with_logits(scores, labels.float())


class EndedBert(transformers.BertForSequenceClassification):
    """A classifier of texts whose scores another function ends."""

    ending: Ending

    def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None) -> Any:
        pooled = self.bert(input_ids, attention_mask=attention_mask).pooler_output
        returned, loss = type(self).ending(self.classifier(self.dropout(pooled)), labels)
        return SequenceClassifierOutput(loss=loss, logits=returned)


class SoftmaxedBert(EndedBert):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None) -> Any:
        pooled = self.bert(input_ids, attention_mask=attention_mask).pooler_output
        scores = self.softmax(self.classifier(self.dropout(pooled)))
        return SequenceClassifierOutput(loss=cross_entropy(scores, labels), logits=scores)


class SigmoidBert(EndedBert):
    @staticmethod
    def ending(scores: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor | None]:
        scores = torch.sigmoid(scores)
        return scores, binary_cross_entropy(scores, labels)


class SoftmaxedViT(transformers.ViTForImageClassification):
    def forward(self, pixel_values: Any = None, labels: Any = None) -> Any:
        scores = super().forward(pixel_values).logits.softmax(1)
        return SequenceClassifierOutput(loss=cross_entropy(scores, labels), logits=scores)


class SoftmaxedTagger(transformers.BertForTokenClassification):
    def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None) -> Any:
        scores = functional.softmax(super().forward(input_ids, attention_mask).logits, dim=2)
        return TokenClassifierOutput(loss=cross_entropy(scores, labels), logits=scores)


def ended(name: str) -> Build:
    """A builder of a checkpoint of one of these classes, small and with random numbers."""

    def build(folder: Path) -> Path:
        family, problem = ("vit" if name.endswith("ViT") else "bert"), dict[str, str]()
        if name.startswith("Sigmoid"):
            problem = {"problem_type": "multi_label_classification"}
        config = FAMILIES[family].build(FAMILIES[family].classifier, **named(LABELS), **problem).config
        model = globals()[name](config)
        model.save_pretrained(folder)
        return folder

    return build
