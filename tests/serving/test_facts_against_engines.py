"""Facts on engines that are installed, against the engine itself: the function on the scores by default."""

from pathlib import Path
from typing import Any

import pytest
import torch
from probing import tiny
from transformers import pipeline

import headscope
from tests.families import FAMILIES

TEXT = "w11 w12 w13"
FUNCTIONS = {
    "softmax": lambda logits: logits.softmax(-1),
    "sigmoid": torch.sigmoid,
    "none": lambda logits: logits,
    "tanh": torch.tanh,
}
PROBLEMS = (None, "regression", "single_label_classification", "multi_label_classification")
CASES = [(count, problem) for count in (1, 2, 3) for problem in PROBLEMS if (count, problem) != (1, PROBLEMS[2])]
"""Class counts and problem types; Transformers refuses one class of a single label."""


def saved(folder: Path, task: str, count: int, problem: str | None) -> tuple[Any, Any]:
    """A BERT classifier with class scores far from each other, and its tokenizer."""
    names = {number: f"name {number}" for number in range(count)}
    torch.manual_seed(0)
    model = FAMILIES["bert"].build(f"BertFor{task}", vocab_size=tiny.WORDS, id2label=names, problem_type=problem)
    with torch.no_grad():
        model.classifier.bias.copy_(torch.linspace(-1.5, 2.5, count))
    words = tiny.tokenizer(pad=1, eos=None, side="right", with_cls=True)
    model.eval().save_pretrained(folder)
    words.save_pretrained(folder)
    return model, words


def function_of(logits: torch.Tensor, scores: torch.Tensor) -> set[str]:
    """The functions that make these scores of these logits."""
    return {name for name, make in FUNCTIONS.items() if torch.allclose(make(logits), scores, atol=1e-4)}


def told(folder: Path, engine: str) -> str | None:
    (found,) = headscope.engines(folder, engine=engine).engines
    assert found.runs, found.reason
    return found.activation


@pytest.mark.parametrize(("count", "problem"), CASES)
def test_the_pipeline_of_transformers(count: int, problem: str | None, tmp_path: Path) -> None:
    model, words = saved(tmp_path, "SequenceClassification", count, problem)
    with torch.no_grad():
        logits = model(**words(TEXT, return_tensors="pt")).logits[0]
    items = pipeline("text-classification", str(tmp_path), top_k=None)(TEXT)
    while isinstance(items[0], list):  # how deep depends on the version
        (items,) = items
    answers = {item["label"]: item["score"] for item in items}
    scores = torch.tensor([answers[f"name {number}"] for number in range(count)])
    activation = told(tmp_path, "transformers-pipeline")
    assert activation is None or activation in function_of(logits, scores)
    assert activation is not None or problem is None, "what the facts leave open is what the class leaves open"


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_pipeline_of_transformers_on_tokens(problem: str | None, tmp_path: Path) -> None:
    model, words = saved(tmp_path, "TokenClassification", 3, problem)
    with torch.no_grad():
        logits = model(**words(TEXT, return_tensors="pt")).logits[0, 1:-1]
    answers = pipeline("token-classification", str(tmp_path), ignore_labels=[])(TEXT)
    scores = torch.tensor([item["score"] for item in answers])
    activation = told(tmp_path, "transformers-pipeline")
    made = {name for name, make in FUNCTIONS.items() if torch.allclose(make(logits).amax(-1), scores, atol=1e-4)}
    assert activation in made


@pytest.mark.parametrize(("count", "problem"), CASES)
def test_the_cross_encoder_of_sentence_transformers(count: int, problem: str | None, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    model, words = saved(tmp_path, "SequenceClassification", count, problem)
    with torch.no_grad():
        logits = model(**words(TEXT, "w14 w15", return_tensors="pt")).logits[0]
    scores = torch.tensor(library.CrossEncoder(str(tmp_path)).predict([(TEXT, "w14 w15")])[0]).reshape(-1)
    activation = told(tmp_path, "sentence-transformers")
    assert activation in function_of(logits, scores)
