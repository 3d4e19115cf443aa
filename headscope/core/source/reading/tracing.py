"""The head trace of a checkpoint, and the effect of padding on its scores."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from headscope.core.facts import Gap, GapTopic, HeadTrace, PaddingEffect
from headscope.core.facts.stored.tokenizer import AffectedTexts
from headscope.errors import Unsupported

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from headscope.core.checkpoints.contents.tokenizer_file import FirstToken
    from headscope.core.model.classes.model_request import Choice
    from headscope.core.trace import HeadProgram, TokenNames, TracedHead


SIZES = (8_000_000, 50_000_000)
"""How many numbers a small model may hold. The first takes a third of the time; not every class is made so narrow."""


_PADDED_DEPTH, _PADDED_SIZES = 2, (*SIZES, 200_000_000)
"""Layers of the model in which padding is measured: in one, what it does to other positions can't reach the first. Some
classes have no two layers of fewer numbers than the last of the sizes."""


@dataclass(frozen=True, slots=True)
class Traced:
    """A head trace with its program, or the reason why there is none."""

    trace: HeadTrace | None
    gaps: tuple[Gap, ...] = ()
    program: HeadProgram | None = None


def trace_checkpoint(
    skeleton: PreTrainedModel, choice: Choice, own: FirstToken | None = None, *, prove: bool = False
) -> Traced:
    """Traces the head of a model on the meta device; `own` is what the checkpoint's own tokenizer puts first.

    With `prove` the proof is kept, and the effect of padding is measured.
    """
    from headscope.core.model.classes.reduced_config import shallow_twins
    from headscope.core.model.quiet import quiet
    from headscope.core.model.tokenizers import special_tokens_of
    from headscope.core.source.reading.token_rows import trace_token_rows, without_own_places
    from headscope.core.trace import TokenNames, trace_called, trace_head
    from headscope.core.upstream.optional.peft_prompts import Uncalled, caller_in_copy

    if choice.rows:
        try:
            traced, small = trace_token_rows(skeleton, choice)
        except Unsupported as err:
            return Traced(None, (Gap(GapTopic.HEAD_PATH, err.message),))
        return _with_proof(traced, small, prove=prove)
    if choice.chain is not None and choice.chain.unknown:
        return Traced(None, (Gap(GapTopic.HEAD_PATH, choice.chain.unknown),))
    family = special_tokens_of(str(skeleton.config.model_type))
    names = TokenNames(own.token if own else family.first, family.eos, is_own=own is not None)
    caller = None
    try:
        with quiet():
            caller = caller_in_copy(skeleton, choice.adapter)
            twins = partial(shallow_twins, skeleton)
            if caller is not None:
                traced = trace_called(caller, choice.task, names)
            else:
                traced = trace_head(skeleton, choice.task, names, prove=True, twins=twins)
    except Unsupported as err:
        is_plain = caller is None and not isinstance(err, Uncalled)
        found = traced_with_numbers(skeleton, choice, names, err) if is_plain else None
        if found is None:
            return Traced(None, (Gap(GapTopic.HEAD_PATH, err.message),))
        traced = replace(found, trace=replace(found.trace, notes=(*found.trace.notes, _WITH_NUMBERS)))
    if choice.is_composed:
        traced = replace(traced, trace=without_own_places(traced.trace))
    return _with_proof(traced, choice, prove=prove)


def _with_proof(traced: TracedHead, choice: Choice, *, prove: bool) -> Traced:
    """Adds the effect of padding to a proven trace; drops a proof that was not requested, unless it failed."""
    trace = with_padding(traced.trace, choice) if prove else unless_contradicted(traced.trace)
    return Traced(trace, program=traced.program)


_WITH_NUMBERS = (
    "the forward needs the values of the weights, so the head was traced on a smaller model of this class with random "
    "weights"
)


def traced_with_numbers(
    skeleton: PreTrainedModel, choice: Choice, names: TokenNames, failure: Unsupported
) -> TracedHead | None:
    """Traces the head of a small random model of the class, for a base model that decides by its values (experts).

    None if numbers aren't what the failed run lacked: without them the small model must fail in the same words. None
    too if its head has other shapes than the skeleton's. What only the skeleton has, further layers of the base model,
    counts as live: the layers that were run are.
    """
    from headscope.core.model.quiet import quiet
    from headscope.core.trace import trace_head
    from headscope.core.trace.record.randomness import OwnRandomness

    try:
        with quiet(), OwnRandomness():
            config = _small_config(choice)
            # A small model may run for another reason than its values (fewer layers, a smaller vocabulary). Then it
            # isn't a witness for the large one. By shape it is tried first: images take memory, however few weights.
            if not _fails_without_numbers(choice, deepcopy(config), failure):
                return None
            model = _build_model(choice, config)
            traced = trace_head(model, choice.task, names, prove=True)
    except Exception:  # whatever a foreign constructor or forward raises; the first failure is the one to show
        return None
    small, whole = ({name: tuple(item.shape) for name, item in of.state_dict().items()} for of in (model, skeleton))
    further, trace = [name for name in whole if name not in small], traced.trace
    is_same_head = all(small[name] == whole.get(name) for name in (*trace.parameters, *trace.buffers))
    if not is_same_head or not all(name.startswith(f"{trace.base_module}.") for name in further):
        return None
    return replace(traced, trace=replace(trace, live=(*trace.live, *further)))


def _fails_without_numbers(choice: Choice, config: Any, failure: Unsupported) -> bool:
    """True if the model of a configuration fails on the meta device in the words of another failure."""
    from headscope.core.trace import trace_head
    from headscope.core.upstream.torch import on_meta

    with on_meta():
        model = choice.cls(config).train(False)
    try:
        trace_head(model, choice.task)
    except Unsupported as err:
        return err.message == failure.message
    return False


def small_model(choice: Choice, most: int, depth: int = 1) -> PreTrainedModel:
    """Builds a model of the class with at most `most` random weights, as close to the configuration as they allow.

    Raises ValueError if the smallest is too large, and whatever the class raises.
    """
    return _build_model(choice, _small_config(choice, most, depth))


def _build_model(choice: Choice, config: Any) -> PreTrainedModel:
    import torch

    from headscope.core.upstream.optional.peft_prompts import caller_with

    made: Any = choice.cls(config)
    if torch.get_default_dtype() is not torch.float32:  # the process's, in which the model was made
        made.float()
    model: PreTrainedModel = made.train(False)
    if (caller := caller_with(model, choice.adapter, is_reduced=True)) is not None:
        caller.take_calls()
    return model


def _small_config(choice: Choice, most: int = SIZES[-1], depth: int = 1) -> Any:
    from headscope.core.model.classes.reduced_config import fitting_config
    from headscope.core.upstream.torch import on_meta

    def count(config: Any) -> int:
        with on_meta():
            return sum(parameter.numel() for parameter in choice.cls(config).parameters())

    small = fitting_config(choice.config, count, most, depth=depth)
    if small is None:
        raise ValueError("the smallest model of this configuration is too large to be run")
    return small


def unless_contradicted(trace: HeadTrace) -> HeadTrace:
    """Drops the proof of the trace, which was not requested, unless the proof failed."""
    failed = trace.verification is not None and trace.verification.agrees is False
    return trace if failed else replace(trace, verification=None)


def with_padding(trace: HeadTrace, choice: Choice) -> HeadTrace:
    """Adds the effect of padding to the trace, measured on a small random model of the class and configuration."""
    from headscope.core.trace.slice.invariance import reads_padded_texts

    if trace.verification is None or not reads_padded_texts(choice.cls):
        return trace
    return replace(trace, verification=replace(trace.verification, padding=padding_effects(choice)))


def padding_effects(choice: Choice) -> tuple[PaddingEffect, ...]:
    """Measures padding on a small random model of a class that reads padded texts, in its configuration."""
    from headscope.core.trace.slice.invariance import unmeasured_effects
    from headscope.core.upstream.transformers import text_config_of

    if getattr(text_config_of(choice.config), "pad_token_id", None) is None:
        return unmeasured_effects("no pad token is set")  # however small a model of the class can be made
    found = _first_measured(choice, SIZES, 1)
    if all(effect.changes for effect in found):
        return found
    # What a model of one layer doesn't show may reach the head in one of two, with larger numbers.
    strong = {effect.side: effect for effect in _first_measured(choice, _PADDED_SIZES, _PADDED_DEPTH)}
    strong = {side: effect for side, effect in strong.items() if effect.changes}
    return tuple(strong.get(item.side, item) if item.changes is False else item for item in found)


def _first_measured(choice: Choice, sizes: tuple[int, ...], depth: int) -> tuple[PaddingEffect, ...]:
    """Measures the effect of padding on the first small model that runs."""
    found: tuple[PaddingEffect, ...] = ()
    for most in sizes:
        found = _try_to_measure(choice, most, depth)
        if all(effect.changes is not None for effect in found):
            break
    return found


def _try_to_measure(choice: Choice, most: int, depth: int) -> tuple[PaddingEffect, ...]:
    from headscope.core.model.quiet import quiet
    from headscope.core.trace.record.randomness import OwnRandomness
    from headscope.core.trace.slice.invariance import measure_padding, strengthen_weights, unmeasured_effects

    try:
        with quiet(), OwnRandomness():
            small = small_model(choice, most, depth)
            if depth > 1:
                strengthen_weights(small)
        with quiet():
            return measure_padding(small, choice.task)
    except Exception as err:  # a class that cannot be built small is not measured, and a gap reports it
        return unmeasured_effects(f"{type(err).__name__}: {err}")


def id_effects(
    choice: Choice, of_tokenizer: Mapping[str, int], around: set[str], differing: Mapping[str, bool], side: str
) -> dict[str, tuple[AffectedTexts | None, str]]:
    """Measures how each differing id of the configuration changes the scores: what `measure_ids` gives, by role.

    `around` are the roles of the tokens that the tokenizer puts around a text, and `differing` says for each role
    whether the configuration's id is that of a word. Measured on small random models: one with the tokenizer's ids, and
    for each role one with the configuration's.
    """
    from headscope.core.model.classes.reduced_config import with_vocabulary
    from headscope.core.model.quiet import quiet
    from headscope.core.trace.record.randomness import OwnRandomness
    from headscope.core.trace.slice.invariance import measure_ids, measured_texts
    from headscope.core.upstream.transformers import text_config_of

    config = deepcopy(choice.config)
    for role, number in of_tokenizer.items():
        setattr(text_config_of(config), f"{_OWN_PREFIX}{role}_token_id", number)
    for role in differing:
        stated = getattr(text_config_of(config), f"{role}_token_id")
        if isinstance(stated, list):
            setattr(text_config_of(config), f"{role}_token_id", stated[0])
    found, size = {}, min(text_config_of(config).vocab_size, _FEW_TOKENS)
    with quiet(), OwnRandomness():
        small = _small_config(replace(choice, config=with_vocabulary(config, size)))
        text = text_config_of(small)
        own = {role: getattr(text, f"{_OWN_PREFIX}{role}_token_id") for role in of_tokenizer}
        configured = {role: getattr(text, f"{role}_token_id") for role in differing}
        for role in configured:
            setattr(text, f"{role}_token_id", own[role])
        right = _build_model(choice, small)
        free = [number for number in range(size) if number not in {*own.values(), *configured.values()}]
        first, last = ([own[role] for role in pair if role in around & set(own)][:1] for pair in _ENDS)
        for role, number in configured.items():
            other = deepcopy(small)
            setattr(text_config_of(other), f"{role}_token_id", number)
            model = _build_model(choice, other)
            # Both models have the same weights, so only the id can make a difference.
            model.load_state_dict(right.state_dict())
            texts = measured_texts(free[-8:-1], (first, last), number if differing[role] else None)
            found[role] = measure_ids(model, right, texts, own.get("pad"), side)
    return found


_OWN_PREFIX = "of_tokenizer_"
_FEW_TOKENS = 128
_ENDS = (("cls", "bos"), ("sep", "eos"))


def length_effect(choice: Choice, length: int, ahead: int = 0) -> str | None:
    """Gives the error that a text of `length` tokens raises in a model of the class; "" for none, None if unknown.

    `ahead` counts the virtual tokens before it.
    """
    from headscope.core.model.quiet import quiet
    from headscope.core.trace.record.randomness import OwnRandomness
    from headscope.core.trace.slice.invariance import error_of_length

    with quiet(), OwnRandomness():
        return error_of_length(partial(_build_model, choice), _small_config(choice), length, ahead)
