"""Classifier that `probe` fits on all rows: written into a checkpoint of the class or beside a module, if proven."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from headscope.copies.writing import put_in_place, staged
from headscope.core.facts import Report
from headscope.core.facts.counting import few_of
from headscope.core.facts.report import find_missing
from headscope.core.facts.stored.checkpoint import WRITTEN_HEAD
from headscope.core.model.loading.inference import load_model, open_processor
from headscope.core.model.quiet import quiet
from headscope.errors import Unsupported
from headscope.shared.loaded.head_memory import digest_of
from headscope.slices.probe.arrays import Array
from headscope.slices.probe.facts.data import HeadInput
from headscope.slices.probe.facts.result import HeadLayout, ProbeResult, Score, Vector, WrittenHead
from headscope.slices.probe.head_proof import HeadProofTask, prove_fit_apart
from headscope.slices.probe.hidden.opening import HALF_TOLERANCE, InputSource
from headscope.slices.probe.scoring.comparison import ScoredCandidate, rate
from headscope.slices.probe.scoring.scores import Trial, fit_all, predict_from_vectors
from headscope.slices.probe.scoring.solvers import LinearModel
from headscope.slices.probe.screen.code import fitted_code

if TYPE_CHECKING:
    from headscope.slices.probe.hidden.candidates import Vectors

_MODULE, _WEIGHTS = WRITTEN_HEAD
_MOST_ROWS = 16
"""Rows that the proof runs, one at a time."""
_ROUNDING = 1e-3
"""How far scores may be from the fitted ones, relative to the largest: single precision, in batches of other shapes."""


@dataclass(frozen=True, slots=True)
class FittedHead:
    """A classifier fitted on all rows: its candidate, the score of such classifiers, and some rows to prove it by.

    `vectors` are those of `rows`, [rows, features]. `why_module` says why the class can't hold it, "" if it can.
    """

    vector: str
    why_module: str
    model: LinearModel
    score: Score
    rows: Array
    vectors: Array


def fit_head(
    report: Report,
    head: HeadInput | None,
    scored: ScoredCandidate,
    vectors: tuple[Vectors, ...],
    trial: Trial,
    *,
    remote_code: bool,
) -> FittedHead:
    """Fits the classifier on what the class reads if the class can hold it, otherwise on the best vector.

    Raises Unsupported where every vector depends on numbers that no checkpoint gave.
    """
    missing = [name for name in find_missing(report).elsewhere if "pooler" not in name.split(".")]
    if missing:
        raise Unsupported(
            f"the checkpoint lacks weights of the base model ({few_of(missing)}), so every vector depends on random "
            "values, and a fitted classifier would be lost with them",
            "give a checkpoint that holds the base model",
        )
    why = _why_module(report, head, remote_code=remote_code)
    loaded = [
        at for at, item in enumerate(scored.candidates)
        if not item.new and (item.pooling is Vector.HEAD) is (not why)
    ]  # fmt: skip
    if not loaded:
        raise Unsupported("every vector passes weights that the checkpoint doesn't give", "train the head instead")
    at = max(loaded, key=lambda at: scored.candidates[at].mean)
    matrix, found = vectors[at].make(), scored.candidates[at]
    has_offset = True
    if not why:
        assert head is not None
        assert report.head is not None
        has_offset = any(item.name == f"{head.classifier}.bias" for item in report.head.tensors)
    score = Score(found.metric, found.mean, found.low, found.high)
    if not has_offset:
        score = rate([predict_from_vectors(matrix, trial, has_offset=False).values], trial)[0].main
    rows = np.unique(np.linspace(0, len(matrix) - 1, _MOST_ROWS).round().astype(int))
    model = fit_all(matrix, trial, has_offset=has_offset)
    return FittedHead(found.name, why, model, score, rows, matrix[rows].astype(np.float64))


def _why_module(report: Report, head: HeadInput | None, *, remote_code: bool) -> str:
    """Gives the reason why the classifier can't be written into the parameters of the class; "" if it can."""
    if head is None or report.head is None:
        return "the input of the class's head is not determined"
    if head.new:
        return f"the checkpoint doesn't give all weights before the classifier: {few_of(head.new)}"
    if remote_code:
        return "the class is code of the repository"
    weights = [item for item in report.head.tensors if item.name == f"{head.classifier}.weight"]
    if not weights or len(weights[0].shape) != 2 or weights[0].quantized:
        return f"{head.classifier} has no plain weight with a row for each class"
    return ""


def write_head(
    result: ProbeResult, fitted: FittedHead, source: InputSource, given: tuple[tuple[str, ...], ...], output: Path
) -> WrittenHead:
    """Writes a fitted classifier, and puts it in place if a separate process finds the fitted scores with it.

    `given` are the texts, or the paths of files, of all rows. Raises WriteFailed where the system refuses to write, and
    Unsupported where the class can't hold the classifier.
    """
    layout = HeadLayout.MODULE if fitted.why_module else HeadLayout.OWN
    with staged(output) as folder:
        if layout is HeadLayout.OWN:
            task = _write_own(result, fitted, source, folder)
        else:
            task = _write_module(result, fitted, source, folder)
        sample = tuple(given[row] for row in fitted.rows)
        proof = prove_fit_apart(replace(task, rows=sample, cache_dir=str(source.place.hub.cache_dir or "")))
        written = WrittenHead(
            str(output), layout, fitted.vector, fitted.score, task.parameters, fitted.why_module, proof.rows,
            proof.difference, task.tolerance, proof.failure,
        )  # fmt: skip
        if not proof.failure:
            place = Path(source.place.reference)
            put_in_place(folder, output, None, (place,) if place.is_dir() else ())
    return written


def _write_own(result: ProbeResult, fitted: FittedHead, source: InputSource, folder: Path) -> HeadProofTask:
    """Writes a whole checkpoint of the class, with the tokenizer or processor."""
    config: Any = deepcopy(source.choice.config)
    names = tuple(item.label for item in result.classes)
    config.num_labels = len(names) or 1
    if names:
        config.id2label = dict(enumerate(names))
        config.label2id = {name: at for at, name in enumerate(names)}
    config.problem_type = result.problem.value
    model = load_model(replace(source.choice, config=config), source.place, torch.device("cpu"))
    layer = _fill_layer(model.get_submodule(source.classifier), fitted.model)
    prefix = f"{source.classifier}."
    others = tuple(
        (name, digest_of(item)[0]) for name, item in model.state_dict().items() if not name.startswith(prefix)
    )
    with quiet():
        model.save_pretrained(folder)
        open_processor(source.place, source.input.value).save_pretrained(folder)
    parameters = tuple(f"{prefix}{name}" for name, _ in layer.named_parameters())
    task = HeadProofTask(str(folder), HeadLayout.OWN, source.input, parameters, names, others)
    return _add_expected_scores(task, fitted, layer, result)


def _fill_layer(layer: nn.Module, model: LinearModel) -> nn.Linear:
    """Copies the values of a fitted classifier into a layer. Raises Unsupported for another kind of layer."""
    weight = torch.from_numpy(model.weights.T.copy())
    if not isinstance(layer, nn.Linear) or layer.weight.shape != weight.shape:
        raise Unsupported(
            f"the classifier is a {type(layer).__name__}, whose weight isn't a row for each class",
            "write a module with -o FILE.py instead",
        )
    with torch.no_grad():
        layer.weight.copy_(weight)
        if layer.bias is not None:
            layer.bias.copy_(torch.from_numpy(model.offsets))
    return layer


def _write_module(result: ProbeResult, fitted: FittedHead, source: InputSource, folder: Path) -> HeadProofTask:
    """Writes a Python module and the weights of its classifier; the base model isn't copied."""
    from safetensors.torch import save_file

    loading = result.loading
    assert loading is not None  # set by every measurement
    if Path(loading.reference).exists():
        loading = replace(loading, reference=str(Path(loading.reference).resolve()))
    vector = result.candidate(fitted.vector)
    code = fitted_code(replace(result, loading=loading), vector, _WEIGHTS)
    (folder / _MODULE).write_text(code, encoding="utf-8")
    layer = _fill_layer(nn.Linear(*fitted.model.weights.shape), fitted.model)
    save_file({name: item.detach().contiguous() for name, item in layer.named_parameters()}, folder / _WEIGHTS)
    parameters = tuple(f"classifier.{name}" for name, _ in layer.named_parameters())
    task = HeadProofTask(str(folder), HeadLayout.MODULE, source.input, parameters, ())
    return _add_expected_scores(task, fitted, layer, result)


def _add_expected_scores(
    task: HeadProofTask, fitted: FittedHead, layer: nn.Linear, result: ProbeResult
) -> HeadProofTask:
    """Adds the scores that the layer, rounded to its dtype, gives the vectors of the rows."""
    expected = fitted.vectors @ layer.weight.detach().double().numpy().T
    if layer.bias is not None:
        expected = expected + layer.bias.detach().double().numpy()
    is_half = result.numbers is not None and result.numbers.precision.dtype != "float32"
    tolerance = (HALF_TOLERANCE if is_half else _ROUNDING) * max(1.0, float(np.abs(expected).max()))
    return replace(task, expected=tuple(map(tuple, expected.tolist())), tolerance=tolerance)
