"""SetFit and scikit-learn: a sentence-transformers body with a classifier. Neither is imported."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from headscope.core.facts.heads.tasks import Activation
from headscope.core.upstream.python import descends_from
from headscope.errors import Unsupported, UsageError, moved


@dataclass(frozen=True, slots=True)
class SetFitHead:
    """Classifier of a SetFitModel: a module, the labels of its classes, and what makes probabilities of scores."""

    module: nn.Module
    labels: tuple[str, ...]
    activation: str


class LinearClassifier(nn.Module):
    """Linear function of a fitted LogisticRegression of scikit-learn, under its names.

    The parameters are copies that train: `fit` is what trains the classifier.
    """

    def __init__(self, coef: Any, intercept: Any) -> None:
        super().__init__()
        self.coef_ = nn.Parameter(torch.as_tensor(coef))
        self.intercept_ = nn.Parameter(torch.as_tensor(intercept))

    def forward(self, embedding: torch.Tensor) -> torch.Tensor:
        """Computes embeddings x coef_.T + intercept_: [texts, features] to [texts, rows of coef_]."""
        if embedding.dtype != self.coef_.dtype:
            embedding = embedding.to(self.coef_.dtype)
        return functional.linear(embedding, self.coef_, self.intercept_)


class SetFitModel(nn.Module):
    """SetFitModel as a module: its body, and its head on the sentence embedding. The parameters are shared."""

    base_model_prefix = "first_of_body"

    def __init__(self, body: nn.Module, head: nn.Module, *, normalized: bool) -> None:
        super().__init__()
        self.model_body, self.model_head, self.normalized = body, head, normalized

    @property
    def first_of_body(self) -> nn.Module:
        """Module that makes the hidden states: what follows it in the body pools them."""
        return next(self.model_body.children())

    def forward(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        """Computes the scores of texts that are tokenized: `logits` is [texts, outputs]."""
        embedding = self.model_body(dict(inputs))["sentence_embedding"]
        if self.normalized:
            embedding = functional.normalize(embedding, p=2, dim=1)
        scores = self.model_head(embedding)
        return {"logits": scores[0] if isinstance(scores, tuple) else scores}


def is_setfit(value: object) -> bool:
    """True if `value` is a SetFitModel, which is not a module."""
    return descends_from(value, "setfit", "SetFitModel")


def model_of(setfit: Any) -> tuple[SetFitModel, SetFitHead]:
    """Makes a module of a SetFitModel, with its head. Raises Unsupported for a head that is not one linear layer."""
    try:
        body, own, normalized = setfit.model_body, setfit.model_head, bool(setfit.normalize_embeddings)
        labels = tuple(map(str, setfit.labels or ()))
    except AttributeError as err:
        raise moved("setfit", f"a SetFitModel keeps its parts elsewhere ({err})") from err
    if isinstance(own, nn.Module):
        head = SetFitHead(own, labels, "sigmoid" if getattr(own, "multitarget", False) else "softmax")
    else:
        head = _head_of_sklearn(own, labels)
    return SetFitModel(body, head.module, normalized=normalized), head


def _head_of_sklearn(head: Any, labels: tuple[str, ...]) -> SetFitHead:
    name = type(head).__name__
    if not any(descends_from(head, "sklearn", kind) for kind in ("LogisticRegression", "LogisticRegressionCV")):
        raise Unsupported(
            f"the head of the SetFitModel is a {name}, and headscope reads only LogisticRegression of scikit-learn and "
            "heads that are modules of PyTorch",
            "give model.model_body to examine the body",
        )
    if not all(hasattr(head, part) for part in ("coef_", "intercept_", "classes_")):
        raise UsageError(f"the head of the SetFitModel, a {name}, is not fitted", "train it first")
    rows = head.coef_.shape[0] if head.coef_.ndim == 2 else 0
    classes = tuple(_class_name(item, labels) for item in head.classes_.tolist())
    # liblinear fits a classifier for each class, and scales their probabilities to a sum of 1.
    several = Activation.NOT_DETERMINED if getattr(head, "solver", "") == "liblinear" else Activation.SOFTMAX
    activation = Activation.SIGMOID if rows == 1 else several
    return SetFitHead(LinearClassifier(head.coef_, head.intercept_), classes, activation.value)


def _class_name(value: Any, labels: tuple[str, ...]) -> str:
    """Gives the name of a class: the classifier's own, or the model's where it numbers them."""
    return labels[value] if type(value) is int and 0 <= value < len(labels) else str(value)
