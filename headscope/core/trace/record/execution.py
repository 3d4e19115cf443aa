"""Runs of a model's own forward: the graph, the logits, and what headscope had to set for the run."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from inspect import Parameter, signature
from threading import RLock
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from headscope.core.trace.batch.inputs import forward_parameters
from headscope.core.trace.batch.probe_batch import ProbeBatch
from headscope.core.trace.record.base import ModelNames
from headscope.core.trace.record.engine import CPU, ShapeOnlyMode
from headscope.core.trace.record.outputs import read_outputs
from headscope.core.trace.record.randomness import OwnRandomness
from headscope.core.trace.record.recorder import Graph, Recorder, recording
from headscope.core.trace.record.untouched import configurations, tensors_beside_parameters, untouched
from headscope.core.upstream.torch import autocast_on_meta
from headscope.core.upstream.transformers import watching
from headscope.errors import HeadscopeError, Unsupported

_ONE_AT_A_TIME = RLock()
"""A run puts the model into evaluation mode and back: two in parallel would each restore what the other set."""
_NO_PAD_TOKEN = "no pad token is set: a batch of more than one text fails"


@dataclass(frozen=True)
class Execution:
    """Record of one forward. `logits` are the score tensors; `loss` is None if the forward gave none.

    `others` are the score tensors of other heads, by name. `reads_problem_type` says whether the forward read that
    field of the configuration for its loss; None where it computed none. `fails_without_pad` is how the run fails
    without the pad token that headscope set for it; "" where it set none. `draws_from` names a generator outside
    PyTorch from which a forward that is not of Transformers drew; "" where it drew from none. `output` is the name of
    the scores that were requested.
    """

    model: nn.Module
    probe: ProbeBatch
    graph: Graph
    logits: tuple[torch.Tensor, ...]
    loss: torch.Tensor | None
    notes: tuple[str, ...] = ()
    others: tuple[tuple[str, torch.Tensor], ...] = ()
    reads_problem_type: bool | None = None
    fails_without_pad: str = ""
    draws_from: str = ""
    output: str | None = None

    @property
    def has_lent_token(self) -> bool:
        """True if headscope set a pad token for this run."""
        return bool(self.fails_without_pad)

    @cached_property
    def names(self) -> ModelNames:
        """Names of the model's modules, parameters and buffers."""
        return ModelNames(self.model)


def run_forward(
    model: nn.Module,
    probe: ProbeBatch,
    *,
    hint: str,
    lend: bool = True,
    output: str | None = None,
    fails_without_pad: str = "",
) -> Execution:
    """Runs and records a forward: of a skeleton or of real weights, on a probe or on somebody's inputs.

    `model` is left as it was. Labels are passed where it takes them. With `lend`, a model without a pad token gets one
    for the length of the run, and a note reports it. `fails_without_pad` is how another run of this class and
    configuration failed without one: then the run with one comes first. `output` names the scores where the forward
    returns several. Raises Unsupported, with `hint`, where the forward fails (`SystemExit` is a failure,
    `KeyboardInterrupt` passes), and where it returns no scores.
    """
    probe = replace(probe, inputs=_move_inputs(probe.inputs, model), labels=_move_inputs(probe.labels, model))
    failure: BaseException | None = None
    for attempt in _with_other_labels(probe, model):
        expected = _run_padded(model, attempt, output, fails_without_pad) if lend and fails_without_pad else None
        if expected is not None:
            return expected
        execution = _try_forward(model, attempt, output)
        if isinstance(execution, Execution):
            return execution
        failure = execution
        # Only after a failure: a model that runs without a pad token is shown as it is, with no setting that its user
        # lacks.
        padded = _run_padded(model, attempt, output, class_and_line(failure))
        if padded is None:
            continue
        if not lend:
            hint = "set pad_token_id in config.json to the tokenizer's pad token, or give one input at a time"
            break
        return padded
    assert failure is not None
    if isinstance(failure, HeadscopeError):
        raise failure
    unpadded = _run_unpadded(model, probe, output, class_and_line(failure)) if lend else None
    if unpadded is not None:
        return unpadded
    tried = f"{_shapes_tried(probe)}{_missing_arguments(model, probe)}{_missing_decoder_start(model)}"
    raise Unsupported(
        f"the forward of {type(model).__name__} fails ({class_and_line(failure)}); {tried}", hint
    ) from failure


def run_unrecorded(model: nn.Module, inputs: Mapping[str, Any]) -> Any:
    """Returns what the forward of a model with real weights returns, faster than `run_forward` and without its graph.

    `model` is left as it was. Raises whatever the forward raises.
    """
    with _ONE_AT_A_TIME, untouched(model), torch.no_grad(), OwnRandomness():
        return model(**inputs)


def runs_with_values(model: nn.Module, execution: Execution) -> bool:
    """True if a model with real weights takes what its copy without values took in `execution`.

    Runs all texts of the probe, or one image or sound. Without values, PyTorch doesn't check an index against the rows
    of the matrix that it picks from.
    """
    probe = execution.probe
    without_values = {name for name, item in probe.inputs.items() if isinstance(item, torch.Tensor) and item.is_meta}
    if without_values or execution.has_lent_token:
        probe = probe.one_row(0)
    inputs = {
        name: torch.zeros_like(item, device=CPU) if name in without_values else item
        for name, item in probe.inputs.items()
    }
    try:
        run_unrecorded(model, _move_inputs(inputs, model))
    except Exception:  # whatever a forward raises means that it failed
        return False
    return True


def run_on_probe(
    model: PreTrainedModel,
    build: Callable[..., ProbeBatch],
    *,
    hint: str,
    output: str | None = None,
    fails_without_pad: str = "",
) -> Execution:
    """Runs the forward on what `build` makes; if it fails on texts alone and takes images too, on texts with images.

    Raises the Unsupported of the first run if neither works.
    """

    def attempt(*, with_image: bool) -> Execution:
        probe = build(with_image=with_image)
        return run_forward(model, probe, hint=hint, output=output, fails_without_pad=fails_without_pad)

    try:
        return attempt(with_image=False)
    except Unsupported as err:
        takes_both = {"input_ids", "pixel_values"} <= signature(model.forward).parameters.keys()
        if not takes_both or model.main_input_name != "input_ids":
            raise
        try:
            return attempt(with_image=True)
        except Unsupported:  # the error on texts alone is the one that its user can act on
            raise err from None


def _with_other_labels(probe: ProbeBatch, model: nn.Module) -> Iterator[ProbeBatch]:
    """Yields `probe` as it is, then with class ids as labels, then without labels."""
    yield probe
    # Not every loss takes floating-point labels, even if the configuration asks for them.
    if any(isinstance(value, torch.Tensor) and value.is_floating_point() for value in probe.labels.values()):
        ids = {name: torch.zeros(probe.sizes.batch, dtype=torch.long) for name in probe.labels}
        yield replace(probe, labels=_move_inputs(ids, model))
    if probe.labels:
        yield replace(probe, labels={})


def _try_forward(
    model: nn.Module, probe: ProbeBatch, output: str | None, token: int | None = None
) -> Execution | Exception | SystemExit:
    """Runs the forward once, with `token` as pad token if one is given; returns the exception if it fails."""
    try:
        with _ONE_AT_A_TIME, untouched(model):
            for config in () if token is None else _configs_without_pad(model):
                config.pad_token_id = token
            return _record_forward(model, probe, output)
    except (Exception, SystemExit) as err:  # whatever a forward raises means that it failed
        return err


def _run_padded(model: nn.Module, probe: ProbeBatch, output: str | None, failure: str) -> Execution | None:
    """Runs the forward with a pad token that the model does not have; None if that doesn't help.

    `failure` is how a run without it failed.
    """
    sizes = [config.vocab_size for config in _configs_without_pad(model)]
    if not sizes or not {"input_ids", "inputs_embeds"} & probe.inputs.keys():
        return None
    # The last token of the smallest vocabulary: every text part of the model must have an embedding for it.
    token = min(sizes) - 1
    execution = _try_forward(model, _with_padding(probe, token), output, token)
    if not isinstance(execution, Execution):
        return None
    setting = f"what is shown was seen with pad_token_id={token}, which headscope set for its own run"
    return replace(execution, notes=(f"{_NO_PAD_TOKEN} ({failure}); {setting}",), fails_without_pad=failure)


def _run_unpadded(model: nn.Module, probe: ProbeBatch, output: str | None, failure: str) -> Execution | None:
    """Runs the forward without padding if padding is the end of a text; None if that doesn't help."""
    config = getattr(model, "config", None)
    pad, end = getattr(config, "pad_token_id", None), getattr(config, "eos_token_id", None)
    is_end = pad is not None and pad in (end if isinstance(end, list) else [end])
    if not is_end or not probe.rows or "attention_mask" not in probe.inputs:
        return None
    execution = _try_forward(model, probe.without_padding(), output)
    if not isinstance(execution, Execution):
        return None
    note = f"padding is the end-of-text token {pad}, and a batch of texts of several lengths fails ({failure}); "
    return replace(execution, notes=(f"{note}what is shown was seen without padding",))


def lacks_pad_token(model: nn.Module) -> bool:
    """True if a model of texts has no pad token, so that its forward may fail without one."""
    return bool(_configs_without_pad(model))


def _record_forward(model: nn.Module, probe: ProbeBatch, output: str | None) -> Execution:
    # headscope can control PyTorch's generators only. That another one was used shows in its state, before and after.
    states = _states_outside(model)
    # No gradients: the graph of PyTorch would keep every result of the base model. The proofs need gradients of the
    # head alone, and get them from a replay.
    with recording() as recorder, watching("problem_type") as reads, torch.no_grad(), _execution_mode(model, recorder):
        returned = model(**probe.inputs, **probe.labels)
        returned = recorder.graph.memory.renewed_output(returned)
    found = read_outputs(model, returned, recorder.graph, output)
    recorder.finish(found.scores)
    read = True if reads else None if found.loss is None else False
    drawn = (name for name, state in _states_outside(model).items() if state != states.get(name, state))
    return Execution(
        model,
        probe,
        recorder.graph,
        found.scores,
        found.loss,
        others=found.others,
        reads_problem_type=read,
        draws_from=next(drawn, ""),
        output=output,
    )


def _states_outside(model: nn.Module) -> dict[str, Any]:
    """Reads the states of the random generators of Python and NumPy, by name; none for a model of Transformers."""
    if type(model).__module__.startswith("transformers."):
        return {}
    return {"Python's random module": random.getstate(), "NumPy": repr(np.random.get_state(legacy=False))}


def _move_inputs(values: dict[str, Any], model: nn.Module) -> dict[str, Any]:
    """Moves `values` to the model's device, or to the CPU for a shape-only run, whose floats may be on meta."""
    device = CPU if is_shape_only(model) else next((tensor.device for tensor in model.parameters()), None)
    if device is None:
        return values
    moves = {name for name, value in values.items() if isinstance(value, torch.Tensor) and not value.is_meta}
    return {name: value.to(device) if name in moves else value for name, value in values.items()}


def _shapes_tried(probe: ProbeBatch) -> str:
    """Lists the shapes of the inputs, and before them those that the caller gave if they were stretched."""
    if probe.examples is None:
        return f"tried: {_named_shapes(probe.inputs)}"
    return f"given: {_named_shapes(probe.examples)}; stretched for the trace to {_named_shapes(probe.inputs)}"


def _named_shapes(inputs: Mapping[str, Any]) -> str:
    shapes = {name: list(value.shape) if hasattr(value, "shape") else "" for name, value in inputs.items()}
    return ", ".join(f"{name} {shape}".strip() for name, shape in shapes.items()) or "no inputs"


def _missing_decoder_start(model: nn.Module) -> str:
    """Says what to set if nothing names the token with which the decoder begins; "" for other models."""
    # T5's configuration has no default; its code says that it is usually the pad token.
    config = getattr(model, "config", None)
    if not getattr(config, "is_encoder_decoder", False) or getattr(config, _START, None) is not None:
        return ""
    stated = (getattr(type(config), _START, None), getattr(config, "pad_token_id", None))
    usual = next((number for number in stated if type(number) is int), None)
    value = "to the ID of the token that the decoder starts with" if usual is None else f"(usually {usual})"
    return f"; {_START} isn't set: set it in config.json {value}"


_START = "decoder_start_token_id"


def _missing_arguments(model: nn.Module, probe: ProbeBatch) -> str:
    """Lists the arguments that a forward names and did not get; "" for a model of Transformers."""
    # Its forward names very many optional arguments: a list of them would not help.
    if isinstance(model, PreTrainedModel):
        return ""
    by_name = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    named = (item.name for item in forward_parameters(model) if item.kind in by_name)
    missing = [name for name in named if name not in probe.inputs]
    return f"; the forward also takes {', '.join(missing)}" if missing else ""


@contextmanager
def _execution_mode(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    """Turns on shape-only execution for a model on the meta device; a model with real weights runs as it is."""
    if is_shape_only(model):
        with autocast_on_meta(), ShapeOnlyMode(recorder.note_guess):
            yield
    else:
        with OwnRandomness():
            yield


def is_shape_only(model: nn.Module) -> bool:
    """True if `model` has parameters without values; some of a skeleton's may be real nevertheless."""
    return any(parameter.is_meta for parameter in model.parameters())


def _configs_without_pad(model: nn.Module) -> tuple[PreTrainedConfig, ...]:
    """Lists the configurations of texts in `model` that name no pad token."""
    # A configuration of texts has a vocabulary. One that lacks the field for the pad token doesn't use it.
    sizes = ((config, getattr(config, "vocab_size", None)) for config in configurations(model))
    of_texts = (config for config, size in sizes if isinstance(size, int) and size > 1)
    return tuple(config for config in of_texts if getattr(config, "pad_token_id", 0) is None)


def _with_padding(probe: ProbeBatch, token: int) -> ProbeBatch:
    if "input_ids" not in probe.inputs:
        return probe
    # Real pad tokens, not only a mask: a model that finds the last token by its id must see them.
    ids = probe.inputs["input_ids"].clone()
    rows = ids.view(-1, ids.shape[-1])
    for at, row in enumerate(probe.rows):
        rows[at, : row.first] = token
        rows[at, row.last + 1 :] = token
    return replace(probe, inputs=probe.inputs | {"input_ids": ids}, given=probe.given - {"input_ids"})


def class_and_line(err: BaseException) -> str:
    """Writes an error as its class and the first line of its message."""
    lines = str(err).strip().splitlines()
    return f"{type(err).__name__}: {lines[0]}" if lines else type(err).__name__


def meta_copy(model: nn.Module) -> nn.Module | None:
    """Copies `model` with its parameters on the meta device; None if it is there already or cannot be copied.

    Buffers keep their values, on the CPU: a position or a mask that is computed from them decides what a head reads.
    """
    return None if is_shape_only(model) else _copied_to_meta(model)


def on_one_device(model: nn.Module) -> nn.Module:
    """Returns `model`, or a copy on the meta device if one part of it is there already and another part is on a GPU."""
    elsewhere = any(item.device.type not in {"cpu", "meta"} for item in model.parameters())
    return (_copied_to_meta(model) if elsewhere and is_shape_only(model) else None) or model


def _copied_to_meta(model: nn.Module) -> nn.Module | None:
    # `deepcopy` takes what is in its memo for copied, so no parameter is copied with its values.
    memo: dict[int, Any] = {
        id(parameter): nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False)
        for parameter in model.parameters()
    }
    try:
        memo |= {id(item): item.detach().cpu() for item in tensors_beside_parameters(model) if item.device != CPU}
        copied: nn.Module = deepcopy(model, memo)
    except Exception:  # a module that holds what cannot be copied: a lock, a generator, an open file
        return None
    return copied if is_shape_only(copied) else None
