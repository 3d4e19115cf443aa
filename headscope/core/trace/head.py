"""Head trace: everything that shape-only runs of a model show of its head."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TypeVar

from torch import nn
from transformers import PreTrainedModel

from headscope.core.facts import Gap, GapTopic, HeadTrace, Task, UnusedModule, Verification
from headscope.core.trace.batch.probe_batch import build_probe, passed_probe
from headscope.core.trace.loss import observed_loss
from headscope.core.trace.proof.agreement import Agreement, Look, agree, look_at, withdrawn
from headscope.core.trace.proof.other_inputs import held_against_other_inputs
from headscope.core.trace.record.base import base_module, declared_base
from headscope.core.trace.record.execution import (
    Execution,
    lacks_pad_token,
    meta_copy,
    on_one_device,
    run_forward,
    run_on_probe,
)
from headscope.core.trace.replay.picks import TokenNames
from headscope.core.trace.replay.replay import HeadProgram, head_program
from headscope.core.trace.replay.rows import read_head_rows, with_rows
from headscope.core.trace.slice.axes import has_ambiguous_batch
from headscope.core.trace.slice.head_slice import HeadSlice, locate_head
from headscope.core.trace.slice.learned_tokens import learned_tokens
from headscope.core.trace.slice.reads import config_fields_read
from headscope.core.trace.slice.stages import place_of
from headscope.core.upstream.optional.peft_prompts import PromptCaller
from headscope.errors import Unsupported

_Result = TypeVar("_Result")
Run = Callable[[nn.Module, int, frozenset[int]], Execution]
Twins = Callable[[], Iterable[nn.Module]]
"""Makes smaller models of the same class and configuration, the smallest first."""
_DEEP = 4
"""A model with this many times the modules of its twin: one run of the twin saves one run that is known to fail."""
_HINT = "its head path cannot be traced; the weight status does not depend on it"


@dataclass(frozen=True, slots=True)
class TracedHead:
    """A trace, and the head of its first run as a program."""

    trace: HeadTrace
    program: HeadProgram


def trace_head(
    model: PreTrainedModel,
    task: Task,
    tokens: TokenNames | None = None,
    *,
    prove: bool = False,
    output: str | None = None,
    twins: Twins | None = None,
) -> TracedHead:
    """Runs `model` (on the meta device) on a probe batch and reads its head off the recorded operations.

    A second run, with other sizes, shows what follows from the model alone; `twins` makes smaller models of the same
    class and configuration for it, of which the first that runs is taken. Real weights take no part in it. With
    `prove` the head is replayed on random values and its gradients are held against the pooling. `output` names the
    scores where the forward returns several. Raises Unsupported where the forward fails or returns no scores. The model
    is left as it was.
    """
    runner = _ProbeRunner(task, output)
    made = None if twins is None else cache(lambda: tuple(twins()))
    # A model without a pad token fails on a batch, and runs again with one. A small twin shows first how it fails.
    if made is not None and lacks_pad_token(model):
        most = sum(1 for _ in model.modules()) / _DEEP
        small = (twin for twin in made() if sum(1 for _ in twin.modules()) < most)
        _first_that_runs(small, lambda twin: runner.run(twin, 0, frozenset()))
    return read_head(model, runner.run, tokens or TokenNames(), twins=made, prove=prove)


def look_once(model: PreTrainedModel, task: Task) -> Look:
    """Runs a model once on a probe batch, and reads its head; a coincidence of this one run may be in it."""
    return _HeadRuns(on_one_device(model), _ProbeRunner(task, None).run, TokenNames(), tuple).look(model, 0)


@dataclass(slots=True)
class _ProbeRunner:
    """Runs models of one class and configuration on probes; `failure` is how the last run failed without a pad
    token.
    """

    task: Task
    output: str | None
    failure: str = ""

    def run(self, subject: nn.Module, turn: int, taken: frozenset[int]) -> Execution:
        """Runs a model in a turn, with sizes that are not in `taken`."""
        assert isinstance(subject, PreTrainedModel)
        build = partial(build_probe, subject, self.task, taken, turn)
        execution = run_on_probe(subject, build, hint=_HINT, output=self.output, fails_without_pad=self.failure)
        self.failure = execution.fails_without_pad
        return execution


def trace_called(caller: PromptCaller, task: Task, tokens: TokenNames, *, output: str | None = None) -> TracedHead:
    """Traces the head of a model as PEFT calls it, if an adapter gives it virtual tokens; see `trace_head`.

    Every run is one of this model: a smaller one would need its own adapter.
    """
    model = caller.base

    def execute(subject: nn.Module, turn: int, taken: frozenset[int]) -> Execution:
        build = partial(passed_probe, caller, task, taken, turn)
        return run_on_probe(model, build, hint=_HINT, output=output)

    names = replace(tokens, first=None, ahead=caller.ahead) if caller.ahead else tokens
    with caller.taking_calls():
        traced = read_head(model, execute, names, twins=tuple, prove=True)
    trace, read = traced.trace, caller.read_before
    unused = (item for item in trace.unused_modules if not any(name.startswith(f"{item.path}.") for name in read))
    live = tuple(sorted({*trace.live, *read}))
    trace = replace(trace, virtual_tokens=caller.ahead, live=live, unused_modules=tuple(unused))
    return TracedHead(trace, traced.program)


def _first_that_runs(models: Iterable[nn.Module], run: Callable[[nn.Module], _Result]) -> _Result | None:
    """Returns the result of the first model whose run doesn't fail."""
    for model in models:
        with suppress(Unsupported):
            return run(model)
    return None


def read_head(
    model: nn.Module, run: Run, tokens: TokenNames, *, twins: Twins | None = None, prove: bool = False
) -> TracedHead:
    """Reads the head of a model from several runs of it: see `agreement`.

    `run` executes a model, in a turn, with sizes that the caller excludes. Raises Unsupported where the first run
    fails.
    """
    runs = _HeadRuns(on_one_device(model), run, tokens, twins)
    first = runs.look(runs.model, 0)
    program = head_program(first.head, first.unfaithful)
    agreed = agree(first, runs.look_again, prove=prove)
    small = first if runs.small is None else runs.small
    cheap = runs.model if runs.small is None else small.execution.model
    agreed = held_against_other_inputs(agreed, runs.looks, runs.model, cheap)
    witness = small if small.has_same_pooling(first) else first
    return TracedHead(_head_trace(first, witness, agreed, prove=prove), program)


@dataclass(slots=True)
class _HeadRuns:
    """Runs of a model and its twins, each read immediately.

    `looks` are what they showed, in order, `small` that of the twin that ran, `taken` the sizes that they had.
    """

    model: nn.Module
    run: Run
    tokens: TokenNames
    twins: Twins | None
    looks: list[Look] = field(default_factory=list)
    small: Look | None = None
    taken: set[int] = field(default_factory=set)

    def look(self, subject: nn.Module, turn: int) -> Look:
        """Runs a model so that nothing else has the size of the batch, if a few tries allow it, and reads its head."""
        base = base_module(subject)
        for _ in range(4):
            execution = self.run(subject, turn, frozenset(self.taken))
            head = locate_head(execution, base)
            made = next((item for item in head.operations if any(output.is_nested for output in item.outputs)), None)
            if made is not None:  # the axes of its result have no one size to recognize them by
                sentence = f"{place_of(made)} makes a nested tensor, and headscope reads only tensors with sizes"
                raise Unsupported(sentence, _HINT)
            self.taken.add(execution.probe.sizes.batch)
            if not has_ambiguous_batch(head):
                break
        self.taken.add(execution.probe.sizes.length)
        if not self.looks:  # a name isn't evidence: the first run gives it to all
            self.tokens = replace(self.tokens, learned=learned_tokens(head))
        self.looks.append(look_at(head, self.tokens))
        return self.looks[-1]

    def look_again(self, turn: int) -> Look:
        """Looks at the first twin that runs in the turn after the first, otherwise at the model."""
        if turn == 1:
            if self.twins is not None and len(self.looks[0].head.hidden) == 1:
                twins = self.twins()
            else:  # a copy of the model on the meta device, if one can be made
                twins = () if (copied := meta_copy(self.model)) is None else (copied,)
            self.small = _first_that_runs(twins, lambda twin: self.look(twin, turn))
            if self.small is not None:
                return self.small
        return self.look(self.model, turn)


def _note_on_one_text(look: Look) -> tuple[str, ...]:
    """Reports how the head pools a single text when no pad token was lent; empty if it pools as in a batch.

    The text has padding on its right, so that its last position isn't the last that is not padding.
    """
    probe, model = look.execution.probe, look.execution.model
    at = next((at for at, row in enumerate(probe.rows) if row.last + 1 < probe.length), None)
    if not look.execution.has_lent_token or at is None or probe.sizes.choices > 1:
        return ()
    try:
        execution = run_forward(model, probe.one_row(at), hint=_HINT, lend=False)
        alone = look_at(locate_head(execution, look.head.base), look.tokens)
    except Unsupported:
        return ()
    if not alone.pooling.parts or alone.has_same_pooling(look):
        return ()
    return (f"without a pad token, the head reads a single text differently: {alone.pooling.rule}",)


def _head_trace(first: Look, witness: Look, agreed: Agreement, *, prove: bool) -> HeadTrace:
    """Builds the trace of the first run; what further runs must show is run on the model of `witness`."""
    execution, head = first.execution, first.head
    base, stages, formula = head.base, agreed.stages, agreed.formula
    names = execution.names
    verification = agreed.verification
    if verification is not None:
        word = "equal" if formula.text else "withheld"
        verification = replace(verification, formula=word, formula_reason=formula.reason)
    used = {name for stage in stages for name in stage.parameters}
    is_contradicted = verification is not None and verification.agrees is False
    used_buffers = {name for stage in stages for name in stage.buffers}
    without_formula = f"no formula is shown: {formula.reason}"
    rows = read_head_rows(first, first.runs.usual if first.runs else None)
    others = (locate_head(replace(execution, logits=(value,)), base) for _, value in execution.others)
    only_others = {name for other in others for name in other.live} - head.live - used
    return HeadTrace(
        modules=_head_modules(first),
        pooling=with_rows(withdrawn(agreed.pooling) if is_contradicted else agreed.pooling, rows),
        stages=stages,
        formula=formula.text,
        features=formula.features,
        parameters=_tensors_of_head(names.parameters, used, execution),
        buffers=_tensors_of_head(names.buffers, used_buffers, execution),
        live=tuple(sorted(head.live)),
        base_module=names.modules.get(id(base), ""),
        hidden_shape=agreed.hidden_shape,
        loss=observed_loss(execution),
        reads_problem_type=execution.reads_problem_type,
        token_rows=rows,
        verification=verification,
        config_fields=config_fields_read(head) if prove else (),
        unused_modules=_unused_modules(head),
        notes=(
            *execution.notes,
            *_note_on_one_text(witness),
            *_notes_on_others(execution),
            *((without_formula,) if stages and not formula.text else ()),
        ),
        other_parameters=tuple(sorted(only_others)),
        not_determined=_gaps_of_trace(agreed, verification),
    )


def _notes_on_others(execution: Execution) -> tuple[str, ...]:
    """Reports what else the forward returns: scores of other heads."""
    shape = execution.probe.shape
    named = [f"{name} [{', '.join(map(str, shape(value.shape)))}]" for name, value in execution.others]
    if not named:
        return ()
    return (
        f"the forward also returns {' and '.join(named)}: choose one of them with output={execution.others[0][0]!r}",
    )


def _gaps_of_trace(agreed: Agreement, verification: Verification | None) -> tuple[Gap, ...]:
    """Lists what could not be determined: by the runs, or because the gradients contradict the pooling."""
    gaps = list(dict.fromkeys(agreed.gaps))
    if not agreed.stages:
        gaps.insert(0, Gap(GapTopic.HEAD_PATH, "no operation between hidden states and scores was recorded"))
    if verification is not None and verification.agrees is False:
        gaps.append(Gap(GapTopic.POOLING, f"the gradients contradict the traced rule: {verification.told}"))
    return tuple(gaps)


def _head_modules(look: Look) -> tuple[str, ...]:
    """Lists the topmost registered modules that the head runs through: `bert.pooler`, `classifier`."""
    paths = look.execution.names.modules
    prefix = paths.get(id(look.head.base), "")
    modules = (module for step in look.steps for module in step.last.modules)
    found = dict.fromkeys(_top_module(paths.get(id(module), ""), prefix) for module in modules)
    return tuple(path for path in found if path)


def _top_module(path: str, prefix: str) -> str:
    """Returns the head module that `path` is in: a direct child of the model, or of the base model."""
    if not path or path == prefix:
        return ""
    if prefix and path.startswith(f"{prefix}."):
        return f"{prefix}.{path.removeprefix(f'{prefix}.').partition('.')[0]}"
    return path.partition(".")[0]


def _tensors_of_head(tensors: dict[int, str], used: set[str], execution: Execution) -> tuple[str, ...]:
    """Selects the tensors that the stages use, and those outside a declared base model, in the model's order."""
    prefix = execution.names.modules.get(id(declared_base(execution.model)), "")
    return tuple(name for name in tensors.values() if name in used or (prefix and not name.startswith(f"{prefix}.")))


def _unused_modules(head: HeadSlice) -> tuple[UnusedModule, ...]:
    """Lists the topmost modules that own parameters of which none reaches the logits."""
    execution, names = head.execution, head.execution.names
    found: list[UnusedModule] = []
    for path, module in execution.model.named_modules():
        if not path or any(path.startswith(f"{item.path}.") for item in found):
            continue
        own = [names.parameters.get(id(parameter), "") for parameter in module.parameters()]
        if own and not any(name in head.live for name in own):
            executed = any(inner in execution.graph.executed for inner in module.modules())
            found.append(UnusedModule(path, type(module).__name__, executed))
    return tuple(found)
