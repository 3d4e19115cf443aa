"""Proof of a written classifier: a separate process loads the files and runs some rows.

`python -m headscope.slices.probe.head_proof` reads the task as JSON from standard input and prints a
`HeadProof` as JSON.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headscope.copies.proving import answer_task, prove_apart
from headscope.core.facts.counting import few_of
from headscope.core.facts.heads.tasks import Input
from headscope.errors import HeadscopeError
from headscope.slices.probe.facts.result import HeadLayout


@dataclass(frozen=True, slots=True)
class HeadProofTask:
    """Task of the proof: the files, and the scores that they must give for some rows."""

    folder: str
    layout: HeadLayout
    input: Input
    parameters: tuple[str, ...]
    """The parameters of the classifier."""
    labels: tuple[str, ...]
    others: tuple[tuple[str, str], ...] = ()
    """The other tensors with their digests, as the source was loaded."""
    rows: tuple[tuple[str, ...], ...] = ()
    expected: tuple[tuple[float, ...], ...] = ()
    tolerance: float = 0.0
    cache_dir: str = ""


@dataclass(frozen=True, slots=True)
class HeadProof:
    """Number of rows that ran, the largest difference of a score, and why it isn't proven ("" if it is)."""

    rows: int = 0
    difference: float | None = None
    failure: str = ""


def prove_fit_apart(task: HeadProofTask) -> HeadProof:
    """Proves the fit in a new process. If that process fails, nothing is proven, and the failure is the reason."""
    cache = {"HF_HUB_CACHE": task.cache_dir} if task.cache_dir else {}
    return prove_apart(prove_fit_here, task, lambda reason: HeadProof(failure=reason), **cache)


def prove_fit_here(task: HeadProofTask) -> HeadProof:
    """Proves the fit in this process."""
    try:
        scores = list(_scores_of_class(task) if task.layout is HeadLayout.OWN else _scores_of_module(task))
    except HeadscopeError as err:
        return HeadProof(failure=err.message)
    if len(scores) != len(task.expected) or not scores:
        return HeadProof(len(scores), failure=f"{len(scores)} of {len(task.expected)} rows were scored")
    if any(len(one) != len(other) for one, other in zip(scores, task.expected, strict=True)):
        return HeadProof(len(scores), failure="the written classifier gives another number of scores")
    pairs = [pair for row in zip(scores, task.expected, strict=True) for pair in zip(*row, strict=True)]
    if not all(map(math.isfinite, itertools.chain(*scores))):
        return HeadProof(len(scores), failure="a score is not a finite number")
    largest = max(abs(one - other) for one, other in pairs)
    failed = "" if largest <= task.tolerance else f"scores differ from the fitted ones by up to {largest:.3g}"
    return HeadProof(len(scores), largest, failed)


class _NotWritten(HeadscopeError):
    """Files that don't hold what was to be written."""


def _scores_of_class(task: HeadProofTask) -> Iterator[list[float]]:
    """Compares the written checkpoint's weights, and yields its logits for each row. Raises HeadscopeError."""
    import torch

    from headscope.core.facts.stored.location import HubOptions, Location
    from headscope.core.source.checkpoint import examine
    from headscope.core.source.request import Request
    from headscope.slices.probe.hidden.features import run_batch
    from headscope.slices.probe.hidden.opening import InputSource, open_reader
    from headscope.slices.probe.plan import TASK_OF

    place = Location(task.folder, hub=HubOptions(offline=True))
    request = Request(place, task=TASK_OF[task.input].value)
    checkpoint = examine("probe", request, None)
    weights, model = checkpoint.report.weights, checkpoint.report.model
    lost = [*weights.new, *(item.parameter for item in weights.mismatched), *weights.unused]
    if lost:
        raise _NotWritten(f"Transformers' loader finds new or unused weights: {few_of(lost)}", "")
    if task.labels and tuple(model.labels) != task.labels:
        raise _NotWritten("the labels are not those of the data", "")
    choice = checkpoint.choice
    _compare_others(task, choice, place)
    reader = open_reader(InputSource(choice, place, input=task.input), "cpu", "float32", task.rows)
    with torch.inference_mode():
        for row in task.rows:
            yield run_batch(reader, [row]).vectors[None][0].tolist()


def _compare_others(task: HeadProofTask, choice: Any, place: Any) -> None:
    """Raises HeadscopeError where a tensor beside the classifier has other bytes than when the source was loaded."""
    import torch

    from headscope.core.model.loading.inference import load_model
    from headscope.shared.loaded.head_memory import digest_of

    state = load_model(choice, place, torch.device("cpu")).state_dict()
    found = {name: digest_of(item)[0] for name, item in state.items() if name not in task.parameters}
    before = dict(task.others)
    changed = sorted(name for name in {*found, *before} if found.get(name) != before.get(name))
    if changed:
        raise _NotWritten(f"other weights have changed: {few_of(changed)}", "")


def _scores_of_module(task: HeadProofTask) -> Iterator[list[float]]:
    """Yields the scores that the written module gives each row."""
    import torch

    spec = importlib.util.spec_from_file_location("classifier", next(Path(task.folder).glob("*.py")))
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.Classifier().eval()
    is_text = task.input is Input.TEXT
    tool = (module.load_tokenizer if is_text else module.load_processor)()
    with torch.inference_mode():
        for row in task.rows:
            columns = [[item] for item in row]
            made = module.encode(tool, *columns)
            for inputs in [made] if is_text else made:
                yield model(**inputs)["logits"][0].tolist()


if __name__ == "__main__":
    answer_task(prove_fit_here)
