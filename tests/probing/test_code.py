"""The module that probe prints: it runs, its vectors are those of the candidate, and it learns."""

import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from probing import tiny
from probing.made import LABELS, LINES, configured, extracted, imported

import headscope
from headscope.errors import HeadscopeError
from headscope.shell.completion import complete_vector
from headscope.slices.probe.coding import VectorName
from headscope.slices.probe.facts.data import ProbeClass
from headscope.slices.probe.facts.result import Problem, Vector
from headscope.slices.probe.hidden.candidates import list_vectors
from headscope.slices.probe.screen.code import probe_code
from tests import warm
from tests.families import FAMILIES

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", {}),
    "roberta": ("roberta", {}),
    "distilbert": ("distilbert", {}),
    "gpt2, left": ("gpt2", {"side": "left"}),
    "llama without a pad token": ("llama", {"pads": False}),
    "qwen2 with an end": ("qwen2", {"side": "left", "eos": True}),
    "xlnet": ("xlnet", {"side": "left"}),
    "bart": ("bart", {"eos": True}),
    "t5": ("t5", {"eos": True}),
}


def features_of(module: Any, *columns: Sequence[str]) -> torch.Tensor:
    """The vectors that a module makes of texts, or of pairs of texts."""
    with torch.no_grad():
        return module.Classifier().eval().features(**module.encode(module.load_tokenizer(), *columns))


@pytest.mark.parametrize("name", CASES)
def test_the_features_of_the_module_are_those_of_the_candidate(name: str, tmp_path: Path) -> None:
    family, options = CASES[name]
    folder = tiny.save(tmp_path / "model", family, **options)
    found = extracted(family, folder)
    seen = set()
    for number, item in enumerate(list_vectors(found.features)):
        if item.pooling is Vector.HEAD or (item.layer not in (None, 1, found.layers)):
            continue
        seen.add(item.pooling)
        module = found.module(item)
        model = module.Classifier().eval()
        with torch.no_grad():
            made = model.features(**module.encode(module.load_tokenizer(), LINES))
            scores = model(**module.encode(module.load_tokenizer(), LINES))["logits"]
        np.testing.assert_allclose(made, item.make(), rtol=0, atol=1e-5, err_msg=item.name)
        assert scores.shape == (len(LINES), 3)
        if item.pooling.value in get_args(VectorName) and item.layer in (None, found.layers):
            text = headscope.code(folder, pooling=item.pooling.value, labels=LABELS, layer=item.layer)
            same = features_of(imported(text, tmp_path / f"own{number}.py"), LINES)
            np.testing.assert_allclose(same, item.make(), rtol=0, atol=1e-5, err_msg=item.name)
    assert {Vector.FIRST_TOKEN, Vector.MASKED_MEAN, Vector.LAST_NON_PAD_TOKEN, Vector.MAX, Vector.MEAN_AND_MAX} <= seen
    assert (Vector.EOS_TOKEN in seen) is bool(options.get("eos"))


@pytest.mark.parametrize(("name", "classifier"), [("bert", "classifier"), ("roberta", "classifier.out_proj")])
def test_the_class_itself_is_advised_where_its_head_reads_the_best(name: str, classifier: str, tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "model", name)
    found = extracted(name, folder)
    head = found.vector(Vector.HEAD)
    given = found.result(head)
    text = probe_code(given)
    assert f"import {found.loading.model_class}" in text.replace("AutoTokenizer, ", "")
    module = found.module(head)
    model = module.Classifier().eval()
    with torch.no_grad():
        inputs = module.encode(module.load_tokenizer(), LINES)
        np.testing.assert_allclose(model.features(**inputs), head.make(), rtol=0, atol=1e-5)
        np.testing.assert_allclose(model(**inputs)["logits"], found.features.scores, rtol=0, atol=1e-5)
    own = imported(headscope.code(folder), tmp_path / "without.py")
    assert classifier == own.LAST_LAYER
    with torch.no_grad():
        scores = own.Classifier().eval()(**inputs)["logits"]
        np.testing.assert_allclose(scores, found.features.scores, rtol=0, atol=1e-5)
    twin = replace(given.candidates[0], name="pooler", pooling=Vector.POOLER)
    both = replace(given, best="pooler", candidates=(twin, replace(given.candidates[0], same_as="pooler")))
    assert probe_code(both) == text


def test_the_vectors_of_four_layers(bert: Path) -> None:
    FAMILIES["bert"].build("BertForSequenceClassification", num_hidden_layers=5, num_labels=3).save_pretrained(bert)
    found = extracted("bert", bert)
    several = (Vector.FIRST_LAST_MEAN, Vector.LAST_FOUR_CONCAT, Vector.LAST_FOUR_AVERAGE)
    assert [item.pooling for item in list_vectors(found.features) if item.pooling in several] == [*several]
    for vector in several:
        made = features_of(found.module(vector), LINES)
        np.testing.assert_allclose(made, found.vector(vector).make(), rtol=0, atol=1e-5, err_msg=vector)


def test_the_module_learns_and_runs_alone(bert: Path) -> None:
    module = extracted("bert", bert).module("masked_mean-1")
    assert module.LABELS == LABELS
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202e]", Path(module.__file__).read_bytes().decode())
    torch.manual_seed(0)
    model = module.Classifier()
    texts, labels = [f"w{11 + place % 3} w20 w21" for place in range(24)], [place % 3 for place in range(24)]
    before = model.base.embeddings.word_embeddings.weight[11].clone()
    assert module.train(model, [texts], labels, epochs=25, batch=8, rate=1e-2) < 0.3
    assert not torch.equal(before, model.base.embeddings.word_embeddings.weight[11])
    with torch.no_grad():
        assert model(**module.encode(module.load_tokenizer(), texts))["logits"].argmax(1).tolist() == labels
    ran = subprocess.run([*warm.python(), module.__file__], capture_output=True, text=True, check=True, timeout=120)
    assert ran.stdout.startswith("Classifier: ") and "(2, 3)" in ran.stdout


@pytest.mark.parametrize("pooling", [Vector.MASKED_MEAN, Vector.HEAD])
@pytest.mark.parametrize("problem", [Problem.REGRESSION, Problem.MULTI_LABEL])
def test_numbers_and_several_labels_are_learnt_too(problem: Problem, pooling: Vector, bert: Path) -> None:
    classes = () if problem is Problem.REGRESSION else tuple(ProbeClass(label, 3) for label in LABELS)
    found = extracted("bert", bert)
    module = found.module(pooling, problem=problem, classes=classes)
    texts = [f"w{11 + place % 3} w20 w21" for place in range(24)]
    marks = [[place % 3 == 0, place % 3 > 0, False] for place in range(24)]
    labels = marks if problem is Problem.MULTI_LABEL else [place % 3 - 1.5 for place in range(24)]
    torch.manual_seed(0)
    model = module.Classifier()
    first, last = (module.train(model, [texts], labels, epochs=epochs, batch=24, rate=5e-3) for epochs in (1, 30))
    assert last < first / 3


def test_pairs_are_encoded_as_pairs(bert: Path) -> None:
    pairs = list(zip(LINES[1:], LINES, strict=False))
    found = extracted("bert", bert, given=pairs)
    made = features_of(found.module("first_token-2"), *zip(*pairs, strict=True))
    np.testing.assert_allclose(made, found.vector("first_token-2").make(), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        ("gpt2", {"pooling": "pooler"}, "no such pooling"),
        ("gpt2", {"pooling": "head", "layer": 3}, "takes no layer"),
        ("BertForSequenceClassification", {}, "is a class"),
        ("bert-base-uncased", {"task": "token-classification"}, "classifiers of whole inputs"),
        ("no/such", {}, "no/such"),
    ],
)
def test_what_no_module_can_be_written_for_is_refused(given: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(HeadscopeError, match=said):
        headscope.code(given, offline=True, **options)


HEADS = {
    "xlnet, which reads the last position": ("xlnet", {}),
    "gpt2": ("gpt2", {"side": "left"}),
    "llama, whose texts end with the only special token": ("llama", {"pads": False, "eos": True}),
    "bart": ("bart", {"eos": True}),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_text_in_a_batch_has_the_scores_that_it_has_alone(name: str, tmp_path: Path) -> None:
    family, options = HEADS[name]
    folder = tiny.save(tmp_path / "model", family, **options)
    module = imported(headscope.code(folder, offline=True), tmp_path / "own.py")
    model, tokenizer = tiny.load(folder, family)
    with torch.no_grad():
        batch = module.Classifier().eval()(**module.encode(module.load_tokenizer(), LINES))["logits"]
        for text, scores in zip(LINES, batch, strict=True):
            alone = tokenizer([text], return_tensors="pt")
            if family != "xlnet":
                alone.pop("token_type_ids", None)
            np.testing.assert_allclose(model(**alone).logits[0], scores, rtol=0, atol=1e-4)


@pytest.mark.parametrize("pooling", ["head", "mean"])
def test_a_regression_has_a_number_for_each_label(pooling: str, bert: Path, tmp_path: Path) -> None:
    folder = configured(bert, problem_type="regression")
    module = imported(headscope.code(folder, pooling=pooling, offline=True), tmp_path / "own.py")
    texts, labels = ["w11", "w12 w13"], [[0.1, 0.2, 0.3], [1.0, 2.0, 3.0]]
    assert np.isfinite(module.train(module.Classifier(), [texts], labels, epochs=1))


@pytest.mark.parametrize(
    ("layer", "words"), [(-4, "no layer"), (3, "no layer"), (10**30, "no layer"), (True, "layer must be int")]
)
def test_a_layer_that_the_model_does_not_have_is_refused(layer: int, words: str, bert: Path) -> None:
    with pytest.raises(HeadscopeError, match=words):
        headscope.code(bert, pooling="mean", layer=layer, offline=True)
    for known in (-3, 2):
        assert f"LAYER = {known} " in headscope.code(bert, pooling="mean", layer=known, offline=True)


def test_what_from_pretrained_would_load_otherwise_is_refused(bert: Path) -> None:
    with pytest.raises(HeadscopeError, match="from_pretrained"):
        headscope.code(bert / "model.safetensors", offline=True)
    single = configured(bert, problem_type="single_label_classification")
    with pytest.raises(HeadscopeError, match="two labels"):
        headscope.code(single, labels=["one"], offline=True)
    for file in bert.glob("*token*"):
        file.unlink()
    with pytest.raises(HeadscopeError, match="needs a tokenizer"):
        headscope.code(bert, offline=True)


def test_completion_offers_the_vectors_that_code_takes() -> None:
    assert complete_vector("") == list(get_args(VectorName))


def test_a_module_of_a_hub_checkpoint_names_the_commit_that_was_examined() -> None:
    report = headscope.inspect("roberta-base", offline=True)
    text = headscope.code("hf://roberta-base", pooling="cls", offline=True, num_labels=3)
    assert 'CHECKPOINT = "roberta-base"' in text
    assert report.checkpoint.commit in text
    assert "MAX_TOKENS: int | None = 512" in text, "514 positions, of which RoBERTa reserves two"
