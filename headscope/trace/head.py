"""The head trace: everything that one shape-only run of a model tells about its head."""

from dataclasses import replace

from torch import nn
from transformers import PreTrainedModel

from headscope.facts import HeadTrace, Stage, Task, Unavailable, UnusedModule, Verification
from headscope.trace.base import base_module, declared_base
from headscope.trace.execution import Execution, run_forward
from headscope.trace.formula import hidden_of, write_formula
from headscope.trace.loss import observed_loss
from headscope.trace.pooling import TokenNames, read_pooling
from headscope.trace.probe import Probe, build_probe
from headscope.trace.reads import config_fields_read
from headscope.trace.slicing import HeadSlice, locate_head
from headscope.trace.stages import ModelNames, Step, build_stages, read_steps, short_path
from headscope.trace.verify import verify_pooling

_HINT = "its head path cannot be traced; the weight status does not depend on it"


def trace_head(
    model: PreTrainedModel,
    task: Task,
    tokens: TokenNames | None = None,
    *,
    verify: bool = False,
    probe: Probe | None = None,
    output: str | None = None,
) -> HeadTrace:
    """Runs `model` (on the meta device) on a probe batch and reads its head off the recorded operations.

    With `verify` the head is replayed on random numbers and its gradients are held against the pooling. `output`
    names the scores where the forward returns several. Raises Unsupported where the forward fails or returns no
    scores. The model is left as it was.
    """
    execution = run_forward(model, probe or build_probe(model, task), hint=_HINT, output=output)
    return read_head(execution, base_module(model), tokens or TokenNames(), verify=verify)


def read_head(execution: Execution, base: nn.Module | None, tokens: TokenNames, *, verify: bool = False) -> HeadTrace:
    """The head trace of one execution."""
    head = locate_head(execution, base)
    steps = read_steps(head)
    stages = build_stages(execution, head, steps)
    pooling = read_pooling(execution, head, steps, tokens)
    names = ModelNames(execution.model)
    hidden = hidden_of(head)
    verification = verify_pooling(execution, head, pooling) if verify else None
    return HeadTrace(
        modules=_head_modules(steps, names, base),
        pooling=pooling,
        stages=stages,
        formula=write_formula(execution, head, steps, pooling),
        parameters=_head_parameters(stages, names, declared_base(execution.model)),
        live=tuple(sorted(head.live)),
        base_module=names.modules.get(id(base), "") if base is not None else "",
        hidden_shape=() if hidden is None else execution.probe.shape(hidden.shape),
        loss=observed_loss(execution),
        verification=verification,
        config_fields=config_fields_read(execution.model, head) if verify else (),
        unused_modules=_unused_modules(execution, head, names),
        notes=(*execution.notes, *_notes_on_others(execution)),
        other_parameters=_of_other_heads(execution, base, head, stages),
        not_determined=(*_not_determined(execution, base, stages), *_contradictions(verification)),
    )


def _notes_on_others(execution: Execution) -> tuple[str, ...]:
    """What else the forward returns: scores of other heads."""
    shape = execution.probe.shape
    named = [f"{name} [{', '.join(map(str, shape(value.shape)))}]" for name, value in execution.others]
    if not named:
        return ()
    return (
        f"the forward also returns {' and '.join(named)}: choose one of them with output={execution.others[0][0]!r}",
    )


def _of_other_heads(
    execution: Execution, base: nn.Module | None, head: HeadSlice, stages: tuple[Stage, ...]
) -> tuple[str, ...]:
    """The parameters on the way from the hidden states to other scores alone: neither base model nor this head."""
    own = {*head.live, *(name for stage in stages for name in stage.parameters)}
    others = (locate_head(replace(execution, logits=(value,)), base) for _, value in execution.others)
    return tuple(sorted({name for other in others for name in other.live} - own))


def _contradictions(verification: Verification | None) -> tuple[Unavailable, ...]:
    """A pooling that its own gradients contradict is not known."""
    if verification is None or verification.agrees is not False:
        return ()
    return (Unavailable("pooling", f"the gradients contradict the traced rule: {verification.told}"),)


def _head_modules(steps: tuple[Step, ...], names: ModelNames, base: nn.Module | None) -> tuple[str, ...]:
    """The topmost registered modules that the head runs through: `bert.pooler`, `classifier`."""
    prefix = names.modules.get(id(base), "") if base is not None else ""
    found: dict[str, None] = {}
    for step in steps:
        for path in (names.modules.get(id(module), "") for module in step.last.modules):
            top = _topmost(path, prefix)
            if top:
                found[top] = None
    return tuple(found)


def _topmost(path: str, prefix: str) -> str:
    """The head module that `path` lies in: a direct child of the model, or of the base model."""
    if not path or path == prefix:
        return ""
    if prefix and path.startswith(f"{prefix}."):
        return f"{prefix}.{path.removeprefix(f'{prefix}.').partition('.')[0]}"
    return path.partition(".")[0]


def _head_parameters(stages: tuple[Stage, ...], names: ModelNames, base: nn.Module | None) -> tuple[str, ...]:
    """Parameters that the stages use, and those that lie outside a declared base model, in the model's order."""
    used = {name for stage in stages for name in stage.parameters}
    prefix = names.modules.get(id(base), "") if base is not None else ""
    return tuple(
        name for name in names.parameters.values() if name in used or (prefix and not name.startswith(f"{prefix}."))
    )


def _unused_modules(execution: Execution, head: HeadSlice, names: ModelNames) -> tuple[UnusedModule, ...]:
    """The topmost modules that own parameters of which none reaches the logits."""
    found: list[UnusedModule] = []
    for path, module in execution.model.named_modules():
        if not path or any(path.startswith(f"{item.path}.") for item in found):
            continue
        own = [names.parameters.get(id(parameter), "") for parameter in module.parameters()]
        if own and not any(name in head.live for name in own):
            executed = any(inner in execution.graph.executed for inner in module.modules())
            found.append(UnusedModule(path, type(module).__name__, executed))
    return tuple(found)


def _not_determined(execution: Execution, base: nn.Module | None, stages: tuple[Stage, ...]) -> tuple[Unavailable, ...]:
    """Guesses outside the base model leave the head path open; those inside come before the hidden states."""
    if not stages:
        return (Unavailable("head path", "no operation between hidden states and scores was recorded"),)
    return tuple(
        Unavailable(
            "head path",
            f"the forward branches on a floating-point value at {short_path(guess.file)}:{guess.line}, "
            "which a shape-only run does not have",
        )
        for guess in dict.fromkeys(execution.graph.guesses)
        if base is None or base not in guess.modules
    )
