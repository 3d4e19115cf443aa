"""The head trace of a checkpoint, and the effect of padding on its scores."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headscope.errors import Unsupported
from headscope.facts import HeadTrace, PaddingEffect, Unavailable

if TYPE_CHECKING:
    from headscope.checkpoints.tokenizer_file import FirstToken
    from headscope.model.loading import Loaded
    from headscope.model.model_request import Choice


@dataclass(frozen=True, slots=True)
class Traced:
    """A head trace, or the reason why there is none."""

    trace: HeadTrace | None
    gaps: tuple[Unavailable, ...] = ()


def trace_checkpoint(loaded: Loaded, choice: Choice, own: FirstToken | None = None, *, verify: bool = False) -> Traced:
    """The head trace of a loaded skeleton; `own` is what the checkpoint's own tokenizer puts first.

    With `verify` the proof is kept, and the effect of padding is measured.
    """
    from headscope.model.quiet import quiet
    from headscope.model.reduced_config import shallow_twin
    from headscope.model.tokenizers import special_tokens_of
    from headscope.trace import TokenNames, trace_head

    family = special_tokens_of(str(loaded.model.config.model_type))
    names = TokenNames(own.token if own else family.first, family.eos, is_own=own is not None)
    try:
        with quiet():
            trace = trace_head(loaded.model, choice.task, names, verify=True, twin=lambda: shallow_twin(loaded.model))
        return Traced(with_padding(trace, choice) if verify else unless_contradicted(trace))
    except Unsupported as err:
        return Traced(None, (Unavailable("head path", err.message),))


def unless_contradicted(trace: HeadTrace) -> HeadTrace:
    """The trace without its proof, which was not asked for, unless the proof failed."""
    failed = trace.verification is not None and trace.verification.agrees is False
    return trace if failed else replace(trace, verification=None)


def with_padding(trace: HeadTrace, choice: Choice) -> HeadTrace:
    """The trace with the effect of padding, measured on a small random model of the class and configuration."""
    import torch

    from headscope.model.quiet import quiet
    from headscope.model.reduced_config import fitting_config
    from headscope.trace.invariance import SIDES, measure_padding, reads_padded_texts
    from headscope.trace.randomness import OwnRandomness

    def count(config: Any) -> int:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in choice.cls(config).parameters())

    if trace.verification is None or not reads_padded_texts(choice.cls):
        return trace
    try:
        with quiet(), OwnRandomness():
            small = fitting_config(choice.config, count)
            if small is None:
                raise ValueError("the smallest model of this configuration is too large to be run")
            model = choice.cls(small).train(False)
            effects = measure_padding(model, choice.task)
    except Exception as err:  # a class that cannot be built small is not measured, which is said
        effects = tuple(PaddingEffect(side, None, reason=f"{type(err).__name__}: {err}") for side in SIDES)
    return replace(trace, verification=replace(trace.verification, padding=effects))
