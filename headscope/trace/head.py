"""The head trace: everything that one shape-only run of a model tells about its head."""

from dataclasses import replace

from torch import nn
from transformers import PreTrainedModel

from headscope.facts import (
    HeadTrace,
    Pooling,
    PoolingKind,
    Stage,
    Task,
    Unavailable,
    UnusedModule,
    Verification,
)
from headscope.trace.axes import find_token_axes, has_ambiguous_batch
from headscope.trace.base import base_module, declared_base
from headscope.trace.execution import Execution, run_forward
from headscope.trace.formula import Formula, prove, write_formula
from headscope.trace.head_slice import HeadSlice, locate_head
from headscope.trace.loss import observed_loss
from headscope.trace.picks import TokenNames
from headscope.trace.pooling import read_pooling
from headscope.trace.probe import build_probe
from headscope.trace.reads import config_fields_read
from headscope.trace.sources import read_sources
from headscope.trace.stages import ModelNames, Step, build_stages, read_steps, short_path
from headscope.trace.verify import verify_pooling, with_weighed_positions

_TRIES = 4
_HINT = "its head path cannot be traced; the weight status does not depend on it"


def trace_head(
    model: PreTrainedModel,
    task: Task,
    tokens: TokenNames | None = None,
    *,
    verify: bool = False,
    output: str | None = None,
) -> HeadTrace:
    """Runs `model` (on the meta device) on a probe batch and reads its head off the recorded operations.

    With `verify` the head is replayed on random numbers and its gradients are held against the pooling. `output`
    names the scores where the forward returns several. Raises Unsupported where the forward fails or returns no
    scores. The model is left as it was.
    """
    taken: frozenset[int] = frozenset()
    for _ in range(_TRIES):
        execution = run_forward(model, build_probe(model, task, taken), hint=_HINT, output=output)
        head = locate_head(execution, base_module(model))
        if not has_ambiguous_batch(execution, head):
            break
        taken |= {execution.probe.sizes.batch}
    return read_head(execution, head, tokens or TokenNames(), verify=verify)


def read_head(execution: Execution, head: HeadSlice, tokens: TokenNames, *, verify: bool = False) -> HeadTrace:
    """The head trace of one execution, from its slice of the operations."""
    base, steps = head.base, read_steps(head)
    stages = build_stages(execution, head, steps)
    names = ModelNames(execution.model)
    axes, sources = find_token_axes(execution, head), read_sources(execution, head, names)
    replay = prove(execution, head)
    pooling = with_weighed_positions(
        read_pooling(execution, head, steps, tokens, axes, sources), execution, head, axes, replay
    )
    hidden = head.hidden[0] if head.hidden else None
    formula = write_formula(execution, head, steps, axes, tokens, sources, replay)
    verification = _with_formula(verify_pooling(execution, head, pooling, axes), formula) if verify else None
    return HeadTrace(
        modules=_head_modules(steps, names, base),
        pooling=_unless_contradicted(pooling, verification),
        stages=stages,
        formula=formula.text,
        parameters=_of_head(
            names.parameters, {name for stage in stages for name in stage.parameters}, names, execution.model
        ),
        buffers=_of_head(names.buffers, {name for stage in stages for name in stage.buffers}, names, execution.model),
        live=tuple(sorted(head.live)),
        base_module=names.modules.get(id(base), "") if base is not None else "",
        hidden_shape=() if hidden is None else execution.probe.shape(hidden.shape),
        loss=observed_loss(execution),
        reads_problem_type=execution.reads_problem_type,
        verification=verification,
        config_fields=config_fields_read(execution.model, head) if verify else (),
        unused_modules=_unused_modules(execution, head, names),
        notes=(*execution.notes, *_notes_on_others(execution), *_note_on_formula(formula, stages)),
        other_parameters=_of_other_heads(execution, base, head, stages),
        not_determined=(*_not_determined(execution, base, stages), *_contradictions(verification)),
    )


def _with_formula(verification: Verification, formula: Formula) -> Verification:
    """The verification with what became of the formula."""
    word = "equal" if formula.text else "withheld"
    return replace(verification, formula=word, formula_reason=formula.reason)


def _note_on_formula(formula: Formula, stages: tuple[Stage, ...]) -> tuple[str, ...]:
    """Why a head that was traced shows no formula."""
    return (f"no formula is shown: {formula.reason}",) if stages and not formula.text else ()


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


def _unless_contradicted(pooling: Pooling, verification: Verification | None) -> Pooling:
    """The pooling without its claim where the gradients contradict it: a rule that is withdrawn is not shown."""
    if verification is None or verification.agrees is not False:
        return pooling
    return replace(pooling, kind=PoolingKind.OTHER, tokens=(), rule="not determined", parts=())


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


def _of_head(tensors: dict[int, str], used: set[str], names: ModelNames, model: nn.Module) -> tuple[str, ...]:
    """The tensors that the stages use, and those outside a declared base model, in the model's order."""
    base = declared_base(model)
    prefix = names.modules.get(id(base), "") if base is not None else ""
    return tuple(name for name in tensors.values() if name in used or (prefix and not name.startswith(f"{prefix}.")))


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
