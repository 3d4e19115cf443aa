"""Rules on a loaded model: whether it holds the numbers that its checkpoint stores."""

from collections.abc import Sequence
from functools import partial

from headscope.checks.rules.rule import Findings, Rule, rule
from headscope.checks.rules.values import what_fails
from headscope.core.facts import Severity
from headscope.core.facts.counting import counted, few_of, verb
from headscope.core.facts.stored.unplaced import UnplacedReason, describe_unplaced
from headscope.shared.loaded.facts import LoadedModel, ScoreComparison, TensorCheck, TensorStatus

verify_rule = partial(rule, command="verify")
_FINISHED = "Load the weights of a finished save: gather sharded weights first, and check the file for NaN."
_LOAD_AGAIN = "Load it with the class that the checkpoint names, and compare again."
_SAVE_OR_LOAD = (
    "If the model was trained or changed after the load, save it. If not, the loader put other values in: load it "
    "with the class that the checkpoint names, and compare again."
)


def tensor_names(items: Sequence[TensorCheck]) -> list[str]:
    """Gives the names of some tensors."""
    return [item.name for item in items]


def largest_of(items: Sequence[TensorCheck]) -> str:
    """Gives the largest difference among some tensors as the end of a sentence; "" where none was measured."""
    errors = [item.max_error for item in items if item.max_error is not None]
    return f"; the largest difference is {max(errors):.3g}" if errors else ""


def reasons_of(items: Sequence[TensorCheck]) -> str:
    """Gives the reasons of some tensors, each once, in brackets to follow a word; "" for none."""
    reasons = dict.fromkeys(item.reason for item in items if item.reason)
    return f" ({'; '.join(reasons)})" if reasons else ""


@verify_rule("HS701", "loaded-head-differs", "The loaded head differs from the checkpoint")
def _head_differs(this: Rule, loaded: LoadedModel) -> Findings:
    """A tensor of the head holds other values than the checkpoint stores for it."""
    found = list(loaded.of(TensorStatus.DIFFERENT, head=True))
    if found:
        yield this.find(
            Severity.ERROR,
            f"{few_of(tensor_names(found))} {verb(len(found), 'holds', 'hold')} other values than the checkpoint"
            f"{reasons_of(found)}{largest_of(found)}: the scores are not those of the checkpoint.",
            _SAVE_OR_LOAD,
            tensor_names(found),
        )


@verify_rule("HS702", "loaded-head-random", "The loaded head is not in the checkpoint")
def _head_random(this: Rule, loaded: LoadedModel) -> Findings:
    """A tensor of the head has no counterpart in the checkpoint: the load left it random."""
    found = list(loaded.of(TensorStatus.RANDOM, head=True))
    if found:
        yield this.find(
            Severity.ERROR,
            f"The checkpoint holds nothing for {few_of(tensor_names(found))}: every load gives other values.",
            "Train the head and save it, or load a checkpoint that has it.",
            tensor_names(found),
        )


@verify_rule("HS703", "loaded-head-dropped", "The load dropped the checkpoint's head")
def _head_dropped(this: Rule, loaded: LoadedModel) -> Findings:
    """A head in the checkpoint that nothing in the model took."""
    found = list(loaded.of(TensorStatus.DROPPED, head=True))
    if found:
        yield this.find(
            Severity.ERROR,
            f"The checkpoint holds {few_of(tensor_names(found))}, and no tensor of the {loaded.class_name} took "
            f"{'it' if len(found) == 1 else 'them'}: the trained head is lost.",
            _LOAD_AGAIN,
            tensor_names(found),
        )


@verify_rule("HS704", "loaded-head-placeholder", "The loaded head holds no real values")
def _head_placeholder(this: Rule, loaded: LoadedModel) -> Findings:
    """A tensor of the head is zero throughout, holds NaN or infinite values, or has no elements."""
    found = list(loaded.of(TensorStatus.PLACEHOLDER, head=True))
    if found:
        yield this.find(
            Severity.ERROR,
            f"{few_of(tensor_names(found))} {verb(len(found))} a placeholder{reasons_of(found)}.",
            _FINISHED,
            tensor_names(found),
        )


@verify_rule("HS705", "loaded-base-differs", "Loaded tensors outside the head differ from the checkpoint")
def _base_differs(this: Rule, loaded: LoadedModel) -> Findings:
    """A tensor or a buffer outside the head holds other values than the checkpoint, or none."""
    found = list(loaded.of(TensorStatus.DIFFERENT, head=False))
    if found:
        yield this.find(
            Severity.ERROR,
            f"{counted(len(found), 'tensor')}{loaded.outside} {verb(len(found), 'differs', 'differ')} from the "
            f"checkpoint: {few_of(tensor_names(found))}{reasons_of(found)}{largest_of(found)}.",
            _SAVE_OR_LOAD,
            tensor_names(found),
        )
    empty = list(loaded.of(TensorStatus.PLACEHOLDER, head=False))
    if empty:
        yield this.find(
            Severity.ERROR,
            f"{counted(len(empty), 'tensor')}{loaded.outside} {verb(len(empty), 'holds', 'hold')} no usable numbers: "
            f"{few_of(tensor_names(empty))}{reasons_of(empty)}.",
            _FINISHED,
            tensor_names(empty),
        )


@verify_rule("HS706", "loaded-base-random", "Loaded tensors outside the head are not in the checkpoint", finds="EW|EW")
def _base_random(this: Rule, loaded: LoadedModel) -> Findings:
    """A tensor outside the head has no counterpart in the checkpoint."""
    found = list(loaded.of(TensorStatus.RANDOM, head=False))
    live = [item for item in found if item.is_live]
    if found:
        depends = "the scores depend" if loaded.outside else "what the model returns depends"
        effect = f"{depends} on random values" if live else "the scores do not depend on them"
        yield this.find(
            Severity.ERROR if live else Severity.WARNING,
            f"The checkpoint holds nothing for {counted(len(found), 'tensor')}{loaded.outside}: "
            f"{few_of(tensor_names(live or found))}; {effect}.",
            _LOAD_AGAIN,
            tensor_names(found),
        )


@verify_rule("HS707", "loaded-base-dropped", "The load dropped a part of the checkpoint's base model")
def _base_dropped(this: Rule, loaded: LoadedModel) -> Findings:
    """A weight of the base model in the checkpoint, such as a further layer, that nothing in the model took."""
    found = [item for item in loaded.of(TensorStatus.DROPPED, head=False) if item.is_live]
    if found:
        yield this.find(
            Severity.ERROR,
            f"The checkpoint holds {counted(len(found), 'tensor')} of its base model that the {loaded.class_name} "
            f"lacks: {few_of(tensor_names(found))}: the loaded model computes something else.",
            "Load it with the class and the configuration that it was saved with, and compare again.",
            tensor_names(found),
        )


@verify_rule("HS724", "loaded-unplaced", "The load dropped weights that find no place")
def _load_leaves_unplaced(this: Rule, loaded: LoadedModel) -> Findings:
    """Weights of the checkpoint that no class of the family takes: the saved model may have computed with them."""
    # One fault, one finding: HS703 and HS707 report these.
    reported = {item.name for item in loaded.of(TensorStatus.DROPPED) if item.is_head or item.is_live}
    found = [
        item for item in loaded.unplaced if item.reason is UnplacedReason.UNKNOWN and reported.isdisjoint(item.tensors)
    ]
    keys = [key for item in found for key in item.tensors]
    if keys:
        yield this.find(
            Severity.ERROR,
            f"{counted(len(keys), 'tensor')} of the checkpoint {verb(len(keys), 'finds', 'find')} no place in "
            f"{loaded.class_name}: {describe_unplaced(found)}. The model that was saved may have computed with them.",
            "Load it with the class that it was saved from, and compare again: --model-class FILE.py:CLASS.",
            keys,
        )


@verify_rule("HS708", "loaded-head-silent", "The loaded head can't answer")
def _head_silent(this: Rule, loaded: LoadedModel) -> Findings:
    """A loaded head that, tried on random hidden states, gives no scores or the same answer to everything."""
    fault = what_fails(loaded.trial) if loaded.trial is not None else ""
    if fault:
        yield this.find(
            Severity.ERROR,
            f"Tried on random hidden states with its loaded values, {fault}.",
            "If the checkpoint stores these numbers, run `headscope check` on it; if not, load it again.",
        )


_WRONG = (TensorStatus.DIFFERENT, TensorStatus.RANDOM, TensorStatus.DROPPED, TensorStatus.PLACEHOLDER)


@verify_rule("HS709", "loaded-scores-differ", "The model gives other scores than its checkpoint")
def _scores_differ(this: Rule, loaded: LoadedModel) -> Findings:
    """Code, hooks or settings of the model in memory change its scores, or they change from call to call."""
    found = loaded.scores
    if found is None or found.reason or any(item.is_head or item.is_live for item in loaded.of(*_WRONG)):
        return  # a tensor that differs is the cause, and has its own finding
    what = words_on_scores(found, "a fresh load of the checkpoint")
    if what:
        is_open = any(loaded.of(TensorStatus.UNKNOWN))
        origin = "Tensors that could not be compared, or" if is_open else "The tensors are equal, so"
        yield this.find(
            Severity.ERROR,
            f"{what} {origin} the model's code, its hooks or its settings make the difference.",
            "Load the checkpoint again, and look for hooks, replaced modules and changed settings: print(model), "
            "model.config.",
        )


def words_on_scores(found: ScoreComparison, fresh: str) -> str:
    """Says how the scores of a model differ from those of a fresh load; "" where they don't."""
    if found.live_error or found.fresh_error:
        if found.live_error != found.fresh_error:
            side = "the model in memory raises" if found.live_error else f"{fresh} raises"
            return f"Called on the same inputs, {side} {found.live_error or found.fresh_error}."
        if not found.inputs:
            return ""  # both fail alike, which `check` reports
    if not found.repeats_equal:
        return "Called twice with the same input, in eval mode, the model gives different scores."
    if found.differing:
        by = (
            "where one of the two gives NaN or infinity"
            if found.largest is None
            else f"by up to {found.largest:.2g} (rounding explains {found.bound:.2g})"
        )
        inputs = counted(found.inputs, "random input")
        return f"On {found.differing} of {inputs} the scores differ from those of {fresh}, {by}."
    return ""
