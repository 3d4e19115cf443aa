"""The operations of a head, in order, against TorchLens: an independent tracer that runs small models on real values.

Compared is all between the hidden states and the scores, as pairs of module and operation, in the order of execution. A
leaf module counts once, whatever lines it is written in; conversions and copies count in neither.
"""

import gc
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from transformers import PreTrainedModel

from headscope.core.model.quiet import quiet
from headscope.core.trace import TokenNames, trace_head
from headscope.core.trace.batch.probe_batch import ProbeBatch, build_probe
from headscope.errors import Unsupported
from headscope.facts import HeadTrace, Task

pytest.importorskip("torchlens")

from tests.trace.record.operations import bound, ours, theirs
from tests.trace.small import small_model, spread

FLOOR = 60
SECONDS = 5
_EACH = {Task.SEQUENCE_CLASSIFICATION: 22, Task.TOKEN_CLASSIFICATION: 15, Task.IMAGE_CLASSIFICATION: 9}
CLASSES = spread(dict.fromkeys(Task, 6) | _EACH)
_FOLDED = ("BigBirdForSequenceClassification", "NystromformerForSequenceClassification")
_WHY_FOLDED = "its activation is a module that the model does not register: one stage here, its single lines there"


_agreed: list[str] = []


@pytest.mark.parametrize(("task", "name", "model_type"), CLASSES, ids=[name for _, name, _ in CLASSES])
def test_both_tracers_see_the_same_operations_in_the_same_order(task: Task, name: str, model_type: str) -> None:
    if name in _FOLDED:
        pytest.skip(_WHY_FOLDED)
    try:
        model = small_model(name, model_type)
    except ValueError as err:  # or not be built without its own packages
        pytest.skip(f"cannot be made small: {str(err)[:200]}")
    probe = build_probe(model, task)
    try:
        with quiet():
            trace = trace_head(model, task, TokenNames()).trace  # a crash of headscope fails
    except Unsupported:
        failure = _own_failure(model, probe)
        assert failure, "headscope refuses a model that runs on the same inputs"
        pytest.skip(f"its own forward fails: {failure}")
    hidden, scores = _shapes(trace, probe)
    gc.freeze()  # so that the collection below looks at what TorchLens makes, and not at all that is imported
    try:
        with quiet(), _at_most(SECONDS):
            seen = theirs(model, probe.inputs, hidden, scores)
    except Exception as err:
        pytest.skip(f"TorchLens does not run it: {type(err).__name__}: {str(err)[:200]}")
    finally:
        gc.collect()  # TorchLens' graphs are cycles
    assert ours(trace, model) == seen
    _agreed.append(name)


def _own_failure(model: PreTrainedModel, probe: ProbeBatch) -> str:
    """How the model's forward fails on the probe without headscope; "" where it runs."""
    try:
        with quiet(), torch.no_grad():
            model(**probe.inputs)
    except Exception as err:
        return f"{type(err).__name__}: {str(err)[:200]}"
    return ""


@contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    """Raises TimeoutError after so many seconds of processor time, which doesn't depend on what else runs."""

    def end(signal_number: int, frame: object) -> None:
        raise TimeoutError(f"slower than {seconds} s")

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _shapes(trace: HeadTrace, probe: ProbeBatch) -> tuple[tuple[int, ...], tuple[int, ...]]:
    sizes = probe.sizes
    named = {
        "batch": sizes.batch,
        "sequence": sizes.length,
        "choices": sizes.choices,
        "batch*choices": probe.batch,
        "batch*sequence": sizes.batch * sizes.length,
        "batch*choices*sequence": probe.batch * sizes.length,
    }
    scores = trace.stages[-1].output_shape if trace.stages else trace.hidden_shape
    return bound(trace.hidden_shape, named), bound(scores, named)


def test_enough_classes_were_compared(request: pytest.FixtureRequest) -> None:
    """Of a sample, no more differ than of all classes may."""
    asked = sum(item.path == request.path for item in request.session.items) - 1
    assert len(_agreed) >= asked - (len(CLASSES) - FLOOR), f"{len(_agreed)} of {asked} classes"
