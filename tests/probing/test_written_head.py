"""The classifier that `probe --write-head` writes: fitted as scikit-learn fits, held by the class, proven before."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from probing import tiny
from probing.made import add, command, keep_tensors, probed, rows_file
from safetensors.torch import load_file
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier

import headscope
from headscope.core.facts.heads.tasks import Input
from headscope.errors import HeadscopeError, Unsupported, UsageError
from headscope.shell.app import main
from headscope.slices.probe import head_proof, written_head
from headscope.slices.probe.facts.result import HeadLayout, Problem
from headscope.slices.probe.head_proof import HeadProof, HeadProofTask, prove_fit_apart
from headscope.slices.probe.scoring.scores import RIDGES, STRENGTHS, fit_all, make_trial
from tests import warm


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5"])
def test_the_class_holds_the_classifier(name: str, tmp_path: Path) -> None:
    """GPT-2's classifier has no bias, T5 reads the last end token; each load finds everything, the base is the old."""
    source = tiny.save(tmp_path / name, name, side="left" if name == "gpt2" else "right", eos=name == "t5")
    data, output = rows_file(tmp_path), tmp_path / "written"
    result = probed(source, data, write_head=output)
    found = result.written
    assert (found.failure, found.layout, found.vector) == ("", HeadLayout.OWN, "head")
    cls: Any = getattr(transformers, tiny.FAMILIES[name].classifier)
    model, info = cls.from_pretrained(output, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert sorted(model.config.label2id) == ["mid", "neg", "pos"]
    before = cls.from_pretrained(source).state_dict()
    changed = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    assert changed == set(found.parameters)
    tokenizer = transformers.AutoTokenizer.from_pretrained(output)
    right, lines = 0, data.read_text().splitlines()[1:]
    with torch.inference_mode():
        for line in lines:
            text, label = line.split(",")
            scores = model.eval()(**{k: v for k, v in tokenizer(text, return_tensors="pt").items() if k != "x"}).logits
            right += model.config.id2label[int(scores.argmax())] == label
    assert right / len(lines) >= found.score.low  # on rows that it was fitted on


def test_a_new_layer_before_the_classifier_makes_it_a_module(tmp_path: Path) -> None:
    source = tiny.save(tmp_path / "base", "distilbert")
    keep_tensors(source, lambda name: name.startswith("distilbert."))
    output = tmp_path / "written"
    found = probed(source, rows_file(tmp_path), write_head=output).written
    assert found.layout is HeadLayout.MODULE
    assert found.failure == ""
    assert "pre_classifier" in found.why_module
    done = subprocess.run(
        [*warm.python(), output / "classifier.py"], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert "(2, 3)" in done.stdout
    assert load_file(output / "classifier.safetensors")["weight"].shape[0] == 3
    with pytest.raises(Unsupported, match="wrote as a Python module"):
        headscope.check(output)


def test_a_base_without_weights_is_refused(bert: Path, tmp_path: Path) -> None:
    keep_tensors(bert, lambda name: "layer.1.output" not in name)
    with pytest.raises(HeadscopeError, match="depends on random values"):
        probed(bert, rows_file(tmp_path), write_head=tmp_path / "written")
    assert not (tmp_path / "written").exists()


def test_an_existing_folder_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "written").mkdir()
    (tmp_path / "written" / "file").touch()
    with pytest.raises(UsageError, match="exists already"):
        probed(tmp_path / "nothing", rows_file(tmp_path), write_head=tmp_path / "written")


@pytest.mark.parametrize(
    ("key", "said"), [("classifier.bias", "scores differ"), ("bert.pooler.dense.bias", "other weights have changed"),
                      ("classifier.weight", "new or unused weights")],
)  # fmt: skip
def test_what_is_not_proven_is_not_written(
    key: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A written file with another number in it, or without a tensor."""

    def tampered(task: HeadProofTask) -> HeadProof:
        if key == "classifier.weight":
            keep_tensors(Path(task.folder), lambda name: name != key)
        else:
            add(Path(task.folder), key, 1)
        return prove_fit_apart(task)

    monkeypatch.setattr(written_head, "prove_fit_apart", tampered)
    source, data = tiny.save(tmp_path / "bert", "bert"), rows_file(tmp_path)
    assert main(command(source, data, "--write-head", str(tmp_path / "written"), "--json")) == 1
    assert said in json.loads(capsys.readouterr().out)["written"]["failure"]
    assert not (tmp_path / "written").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bert", "rows.csv"]


def data_of(problem: Problem, classes: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    vectors = draw.normal(3, 2, (120, 12)).astype(np.float32)
    logits = (vectors - 3) @ draw.normal(size=(12, classes))
    if problem is Problem.REGRESSION:
        return vectors, logits[:, 0]
    if problem is Problem.MULTI_LABEL:
        return vectors, (logits > 0).astype(int)
    return vectors, logits.argmax(1) if classes > 2 else (logits[:, 0] > 0).astype(int)


@pytest.mark.parametrize("has_offset", [True, False])
@pytest.mark.parametrize(
    ("problem", "classes"),
    [(Problem.SINGLE_LABEL, 3), (Problem.SINGLE_LABEL, 2), (Problem.MULTI_LABEL, 3), (Problem.REGRESSION, 1)],
)
def test_the_fit_is_that_of_scikit_learn(problem: Problem, classes: int, has_offset: bool) -> None:
    vectors, labels = data_of(problem, classes)
    trial = make_trial(labels, np.arange(len(labels)), 4, seed=0, problem=problem)
    found = fit_all(vectors, trial, has_offset=has_offset)(vectors.astype(np.float64))
    wide = vectors.astype(np.float64)
    scaled = (wide - wide.mean(0)) / wide.std(0) if has_offset else wide / np.sqrt((wide**2).mean(0))
    near = []
    for strength in RIDGES if problem is Problem.REGRESSION else STRENGTHS:
        if problem is Problem.REGRESSION:
            expected = Ridge(strength, fit_intercept=has_offset).fit(scaled, labels).predict(scaled)[:, None]
        else:
            model = LogisticRegression(C=strength, fit_intercept=has_offset, tol=1e-8, max_iter=5000)
            one = OneVsRestClassifier(model) if problem is Problem.MULTI_LABEL else model
            expected = one.fit(scaled, labels).decision_function(scaled)
            if classes == 2 and problem is Problem.SINGLE_LABEL:
                expected = np.stack([-expected, expected], 1) / 2
        gap = found - expected
        if problem is Problem.SINGLE_LABEL:  # a softmax doesn't see what all classes have in common
            gap = gap - gap.mean(1, keepdims=True)
        near.append(np.abs(gap).max())
    assert min(near) < 2e-2  # one of the strengths
    assert sorted(near)[1] > 2 * min(near)


@pytest.mark.parametrize("at", [0, 1])
def test_a_score_that_is_no_number_proves_nothing(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's `max` passes over a NaN that isn't the first."""
    scores = [[1.0, 2.0], [3.0, 4.0]]
    scores[1][at] = float("nan")
    monkeypatch.setattr(head_proof, "_scores_of_class", lambda task: iter(scores))
    task = HeadProofTask(
        str(tmp_path), HeadLayout.OWN, Input.TEXT, (), (), expected=((1.0, 2.0), (3.0, 4.0)), tolerance=1
    )
    assert "not a finite number" in head_proof.prove_fit_here(task).failure
