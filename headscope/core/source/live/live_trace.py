"""The trace of a model in memory: on a probe of its family, or on the caller's own example inputs."""

from __future__ import annotations

import os
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope.core.facts import HeadTrace, PaddingEffect, Pooling, PoolingKind, Task
from headscope.core.source.live.module import Unwrapped
from headscope.core.source.reading.tracing import with_padding
from headscope.errors import Unsupported, UsageError

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

    from headscope.core.source.live.scorers import Scorer
    from headscope.core.trace import TokenNames, TracedHead


_LIBRARIES = tuple(
    f"{Path(spec.origin).parent}{os.sep}"
    for spec in map(find_spec, ("torch", "transformers", "peft"))
    if spec is not None and spec.origin is not None
)
"""The folders of the code that is known."""


def trace_live_model(
    unwrapped: Unwrapped, example_inputs: Any, task: Task, output: str | None, *, by_shape: bool = False
) -> TracedHead:
    """Traces the head; a model of Transformers runs on the probe that its checkpoint would be traced with.

    It runs without its values where only known code runs: eleven large images can take more memory than there is. With
    `by_shape`, a trace without values is kept even if it leaves something undetermined.
    """
    from transformers import PreTrainedModel

    from headscope.core.model.quiet import quiet
    from headscope.core.trace import trace_called, trace_head
    from headscope.core.trace.record.execution import runs_with_values

    module = unwrapped.module
    caller = unwrapped.caller
    if (example_inputs is not None and caller is None) or not isinstance(unwrapped.origin, PreTrainedModel):
        return _trace_with_examples(module, example_inputs, output)
    with quiet():
        if unwrapped.scorer is not None:
            return _trace_scorer(unwrapped.scorer, task, output)
        assert isinstance(module, PreTrainedModel)
        if caller is not None:
            return trace_called(caller, task, token_names(module), output=output)
        traced = _trace_by_shape(module, task, output) if by_shape or _runs_known_code(module) else None
        if traced is not None and (
            by_shape or (not traced.trace.not_determined and runs_with_values(module, traced.program.head.execution))
        ):
            return traced
        return trace_head(module, task, token_names(module), prove=True, output=output)


def _trace_by_shape(module: PreTrainedModel, task: Task, output: str | None) -> TracedHead | None:
    """Traces a copy of a model without its values; None if that can't be made or run."""
    from transformers import PreTrainedModel

    from headscope.core.trace import trace_head
    from headscope.core.trace.record.execution import meta_copy

    copied = meta_copy(module)
    with suppress(Unsupported):
        if isinstance(copied, PreTrainedModel):
            return trace_head(copied, task, token_names(module), prove=True, output=output)
    return None


def _runs_known_code(module: nn.Module) -> bool:
    """True if the forwards and hooks that run are written in PyTorch, Transformers or PEFT, and the weights are plain.

    Such code computes the same on shapes as on values, unless the trace notes a guess. Looked at is the file of the
    code, which a wrapped function doesn't borrow. A function of PyTorch that somebody replaced isn't noticed.
    """
    from torch.nn import Module, Parameter

    from headscope.core.upstream.torch import forward_hooks_of, has_hooks_of_all_modules

    if has_hooks_of_all_modules():
        return False
    code: list[Any] = []
    for part in module.modules():
        if "forward" in vars(part) or type(part).__call__ is not Module.__call__:  # somebody put another one there
            return False
        code += [type(part).forward, *forward_hooks_of(part)]
    files = [getattr(getattr(item, "__code__", None), "co_filename", "") for item in code]
    return all(item.startswith(_LIBRARIES) for item in files) and all(
        type(item) is Parameter for item in module.parameters()
    )


def _trace_scorer(scorer: Scorer, task: Task, output: str | None) -> TracedHead:
    """Traces the head of a scorer, which runs on the probe of the model of Transformers inside."""
    from headscope.core.trace.batch.probe_batch import build_probe
    from headscope.core.trace.head import read_head
    from headscope.core.trace.record.execution import Execution, run_forward

    sizes = frozenset(size for item in scorer.module.parameters() for size in item.shape)

    def run(subject: nn.Module, turn: int, taken: frozenset[int]) -> Execution:
        inside: Any = subject.get_submodule(scorer.path)
        probe = replace(build_probe(inside, task, taken | sizes, turn), labels={})
        return run_forward(subject, probe, hint="give example_inputs that its forward takes", output=output)

    return read_head(scorer.module, run, token_names(scorer.inside), prove=True)


def token_names(module: nn.Module) -> TokenNames:
    """Names the special tokens as the tokenizer of the model's family does."""
    from headscope.core.model.tokenizers import special_tokens_of
    from headscope.core.trace import TokenNames

    tokens = special_tokens_of(str(getattr(getattr(module, "config", None), "model_type", "")))
    return TokenNames(tokens.first, tokens.eos)


def with_live_padding(trace: HeadTrace, unwrapped: Unwrapped, task: Task) -> HeadTrace:
    """Adds the effect of padding to the trace, measured on a fresh model of the class."""
    from transformers import PreTrainedModel

    from headscope.core.model.classes.model_request import Choice
    from headscope.core.model.tensors.held import has_own_modules

    module, caller = unwrapped.module, unwrapped.caller
    if not isinstance(module, PreTrainedModel):
        return trace
    settings = {} if caller is None else caller.settings
    measured = with_padding(trace, Choice(type(module), task, deepcopy(module.config), adapter=settings))
    # Measured on a fresh model of the class. A module that was put into this one afterwards may treat padding
    # differently.
    if measured.verification is None or not measured.verification.padding or has_own_modules(module):
        return measured
    gap = PaddingEffect("any", None, reason=f"some modules are not those of {type(module).__name__}")
    return replace(measured, verification=replace(measured.verification, padding=(gap,)))


def _trace_with_examples(module: nn.Module, example_inputs: Any, output: str | None) -> TracedHead:
    from headscope.core.trace.batch.examples import probe_from_examples
    from headscope.core.trace.head import read_head
    from headscope.core.trace.record.execution import Execution, run_forward

    if example_inputs is None:
        name = type(module).__name__
        raise UsageError(
            f"{name} is not a model of Transformers, so headscope doesn't know its inputs", "give example_inputs"
        )

    def run(subject: nn.Module, turn: int, taken: frozenset[int]) -> Execution:
        probe = probe_from_examples(subject, example_inputs, taken, turn)
        return run_forward(subject, probe, hint="give example_inputs that its forward takes", output=output)

    return read_head(module, run, token_names(module), prove=True)


def trace_without_run(module: nn.Module) -> HeadTrace:
    """Describes a head without a run of the model: only where its base model lies."""
    from headscope.core.trace.record.base import ModelNames, base_module

    base = base_module(module)
    name = "" if base is None else ModelNames(module).modules.get(id(base), "")
    return HeadTrace((), Pooling(PoolingKind.OTHER, (), "", ()), (), "", (), (), name, ())
