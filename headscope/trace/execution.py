"""One shape-only run of a model's own forward: the graph, the logits, and what had to be helped along."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from threading import RLock
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from transformers import PreTrainedModel

from headscope.errors import Unsupported, UsageError
from headscope.trace.engine import ShapeOnlyMode
from headscope.trace.inputs import text_config_of
from headscope.trace.outputs import read_outputs
from headscope.trace.probe import Probe
from headscope.trace.recorder import Graph, Recorder, recording

_ONE_AT_A_TIME = RLock()
"""Recording uses hooks of the whole process."""


_NO_PAD_TOKEN = "no pad token is set: a batch of more than one text fails"


@dataclass(frozen=True, slots=True)
class Execution:
    """What one forward ran. `logits` are the score tensors; `loss` is None where the forward gave none.

    `others` are the score tensors of other heads, by name.
    """

    model: nn.Module
    probe: Probe
    graph: Graph
    logits: tuple[torch.Tensor, ...]
    loss: torch.Tensor | None
    notes: tuple[str, ...] = ()
    others: tuple[tuple[str, torch.Tensor], ...] = ()


def run_forward(model: PreTrainedModel, probe: Probe, output: str | None = None) -> Execution:
    """Runs `model` on `probe`, with labels where it takes them; a missing pad token is lent for the run, and said.

    Raises Unsupported where the forward fails or returns no scores.
    """
    lent = _pad_token_to_lend(model) if "input_ids" in probe.inputs else None
    failure: Exception | None = None
    for labels in (probe.labels, {}):
        attempt = replace(probe, labels=labels)
        try:
            return run_once(model, attempt, output)
        except UsageError:
            raise
        except Exception as err:
            failure = err
        padded = None if lent is None else _run_padded(model, attempt, lent, output)
        if padded is not None:
            return replace(padded, notes=(f"{_NO_PAD_TOKEN} ({_sentence(failure)})",))
    raise Unsupported(
        f"the forward of {type(model).__name__} fails on dummy inputs ({', '.join(probe.inputs)}): "
        f"{_sentence(failure) if failure else 'no reason given'}",
        "its head path cannot be traced; the weight status does not depend on it",
    ) from failure


def _run_padded(model: PreTrainedModel, probe: Probe, token: int, output: str | None) -> Execution | None:
    """The run with a pad token that the model does not have; None where that does not help."""
    with _pad_token(model, token):
        try:
            return run_once(model, _with_padding(probe, token), output)
        except Exception:  # then the token was not what was missing
            return None


def run_once(model: nn.Module, probe: Probe, output: str | None = None) -> Execution:
    """One recorded forward, as it is; `output` names the scores to examine.

    Raises what the forward raises, and Unsupported where it returns no scores.
    """
    with _ONE_AT_A_TIME, recording() as recorder, torch.no_grad(), _engine(model, recorder):
        outputs = model(**probe.inputs, **probe.labels)
    found = read_outputs(model, outputs, recorder.graph, output)
    return Execution(model, probe, recorder.graph, found.scores, found.loss, others=found.others)


@contextmanager
def _engine(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    """Shape-only execution for a model on the meta device; a model with real weights runs as it is."""
    if not any(parameter.is_meta for parameter in model.parameters()):
        yield
        return
    with _autocast_on_meta(), ShapeOnlyMode(recorder.note_guess):
        yield


@contextmanager
def _autocast_on_meta() -> Iterator[None]:
    """Autocast on the meta device is off and turning it off does nothing; PyTorch alone would raise.

    Rotary embeddings of early Transformers 5 ask for it, by `torch.is_autocast_enabled(device_type)`.
    """

    def autocast(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return nullcontext() if device_type == "meta" else real_autocast(device_type, *args, **kwargs)

    def is_autocast_enabled(*args: Any) -> bool:
        return False if args == ("meta",) else real_is_enabled(*args)

    real_autocast, real_is_enabled = torch.autocast, torch.is_autocast_enabled
    with patch.object(torch, "autocast", autocast), patch.object(torch, "is_autocast_enabled", is_autocast_enabled):
        yield


def _pad_token_to_lend(model: PreTrainedModel) -> int | None:
    """A token id to pad with, where the configuration has none; None where it has one."""
    config = text_config_of(model.config)
    if getattr(config, "pad_token_id", 0) is not None:
        return None
    size = getattr(config, "vocab_size", None)
    return size - 1 if isinstance(size, int) and size > 1 else None


@contextmanager
def _pad_token(model: PreTrainedModel, token: int) -> Iterator[None]:
    config = text_config_of(model.config)
    config.pad_token_id = token
    try:
        yield
    finally:
        config.pad_token_id = None


def _with_padding(probe: Probe, token: int) -> Probe:
    ids = probe.inputs["input_ids"].clone()
    rows = ids.view(-1, ids.shape[-1])
    for at, row in enumerate(probe.rows):
        rows[at, : row.first] = token
        rows[at, row.last + 1 :] = token
    return replace(probe, inputs=probe.inputs | {"input_ids": ids})


def _sentence(err: BaseException) -> str:
    lines = str(err).strip().splitlines()
    return f"{type(err).__name__}: {lines[0]}" if lines else type(err).__name__
