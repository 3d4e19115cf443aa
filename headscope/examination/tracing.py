"""The head trace of a checkpoint, and the effect of padding on its scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from headscope.errors import Unsupported
from headscope.facts import HeadTrace, PaddingEffect, Unavailable

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from headscope.checkpoints.tokenizer_file import FirstToken
    from headscope.model.model_request import Choice
    from headscope.trace import TokenNames


@dataclass(frozen=True, slots=True)
class Traced:
    """A head trace, or the reason why there is none."""

    trace: HeadTrace | None
    gaps: tuple[Unavailable, ...] = ()


def trace_checkpoint(
    skeleton: PreTrainedModel, choice: Choice, own: FirstToken | None = None, *, verify: bool = False
) -> Traced:
    """The head trace of a model on the meta device; `own` is what the checkpoint's own tokenizer puts first.

    With `verify` the proof is kept, and the effect of padding is measured.
    """
    from headscope.examination.token_rows import trace_token_rows
    from headscope.model.quiet import quiet
    from headscope.model.reduced_config import shallow_twins
    from headscope.model.tokenizers import special_tokens_of
    from headscope.trace import TokenNames, trace_head

    if choice.rows:
        try:
            trace, small = trace_token_rows(skeleton, choice)
        except Unsupported as err:
            return Traced(None, (Unavailable("head path", err.message),))
        return Traced(with_padding(trace, small) if verify else unless_contradicted(trace))
    family = special_tokens_of(str(skeleton.config.model_type))
    names = TokenNames(own.token if own else family.first, family.eos, is_own=own is not None)
    try:
        with quiet():
            trace = trace_head(skeleton, choice.task, names, verify=True, twins=lambda: shallow_twins(skeleton))
    except Unsupported as err:
        found = traced_with_numbers(skeleton, choice, names, err)
        if found is None:
            return Traced(None, (Unavailable("head path", err.message),))
        trace = replace(found, notes=(*found.notes, _WITH_NUMBERS))
    return Traced(with_padding(trace, choice) if verify else unless_contradicted(trace))


_WITH_NUMBERS = (
    "the forward needs the values of the weights, so the head was traced on a smaller model of this class with random "
    "weights"
)


def traced_with_numbers(
    skeleton: PreTrainedModel, choice: Choice, names: TokenNames, failure: Unsupported
) -> HeadTrace | None:
    """The head trace of a small random model of the class, for a base model that decides by its values (experts).

    None where numbers aren't what the failed run lacked: without them the small model must fail in the same words. None
    too where its head has other shapes than the skeleton's. What only the skeleton has, further layers of the base
    model, counts as live: the layers that were run are.
    """
    from headscope.model.quiet import quiet
    from headscope.trace import trace_head
    from headscope.trace.randomness import OwnRandomness

    try:
        with quiet(), OwnRandomness():
            model = _small_model(choice)
            trace = trace_head(model, choice.task, names, verify=True)
            # A small model may run for another reason than its numbers (fewer layers, a smaller vocabulary). Then it
            # isn't a witness for the large one.
            if not _fails_without_numbers(choice, model.config, failure):
                return None
    except Exception:  # whatever a foreign constructor or forward raises; the first failure is the one to show
        return None
    small, whole = ({name: tuple(item.shape) for name, item in of.state_dict().items()} for of in (model, skeleton))
    further = [name for name in whole if name not in small]
    is_same_head = all(small[name] == whole.get(name) for name in (*trace.parameters, *trace.buffers))
    if not is_same_head or not all(name.startswith(f"{trace.base_module}.") for name in further):
        return None
    return replace(trace, live=(*trace.live, *further))


def _fails_without_numbers(choice: Choice, config: Any, failure: Unsupported) -> bool:
    """Whether the model of a configuration fails on the meta device in the words of another failure."""

    from headscope.trace import trace_head
    from headscope.upstream.torch import on_meta

    with on_meta():
        model = choice.cls(config)
    model.train(False)
    try:
        trace_head(model, choice.task)
    except Unsupported as err:
        return err.message == failure.message
    return False


def _small_model(choice: Choice) -> PreTrainedModel:
    """A model of the class with random weights, and of the configuration as far as memory allows.

    Raises ValueError where the smallest is too large, and whatever the class raises.
    """
    return _made(choice, _small_config(choice))


def _made(choice: Choice, config: Any) -> PreTrainedModel:
    model: PreTrainedModel = choice.cls(config)
    model.train(False)
    return model


def _small_config(choice: Choice) -> Any:

    from headscope.model.reduced_config import fitting_config
    from headscope.upstream.torch import on_meta

    def count(config: Any) -> int:
        with on_meta():
            return sum(parameter.numel() for parameter in choice.cls(config).parameters())

    small = fitting_config(choice.config, count)
    if small is None:
        raise ValueError("the smallest model of this configuration is too large to be run")
    return small


def unless_contradicted(trace: HeadTrace) -> HeadTrace:
    """The trace without its proof, which was not requested, unless the proof failed."""
    failed = trace.verification is not None and trace.verification.agrees is False
    return trace if failed else replace(trace, verification=None)


def with_padding(trace: HeadTrace, choice: Choice) -> HeadTrace:
    """The trace with the effect of padding, measured on a small random model of the class and configuration."""
    from headscope.trace.invariance import reads_padded_texts

    if trace.verification is None or not reads_padded_texts(choice.cls):
        return trace
    return replace(trace, verification=replace(trace.verification, padding=padding_effects(choice)))


def padding_effects(choice: Choice) -> tuple[PaddingEffect, ...]:
    """The effect of padding on a small random model of the class and configuration; empty without text inputs."""
    from headscope.model.quiet import quiet
    from headscope.trace.invariance import SIDES, measure_padding
    from headscope.trace.randomness import OwnRandomness

    try:
        with quiet(), OwnRandomness():
            small = _small_model(choice)
        with quiet():
            return measure_padding(small, choice.task)
    except Exception as err:  # a class that cannot be built small is not measured, and a gap reports it
        return tuple(PaddingEffect(side, None, reason=f"{type(err).__name__}: {err}") for side in SIDES)


def id_effects(
    choice: Choice, of_tokenizer: Mapping[str, int], around: set[str], differing: Iterable[str], side: str
) -> dict[str, str | None]:
    """What each differing id of the configuration does to the scores: what `measure_ids` gives, by role.

    `around` are the roles of the tokens that the tokenizer puts around a text.

    Measured on small random models: one with the tokenizer's ids, and for each role one with the configuration's.
    """
    from headscope.model.quiet import quiet
    from headscope.trace.invariance import measure_ids
    from headscope.trace.randomness import OwnRandomness

    found: dict[str, str | None] = {}
    with quiet(), OwnRandomness():
        config = deepcopy(choice.config)
        own = _renumbered(config, of_tokenizer)
        configured = {role: getattr(_text_of(config), f"{role}_token_id") for role in differing}
        for role in configured:
            _set_id(config, role, own[role])
        right = _made(choice, small := _small_config(replace(choice, config=config)))
        for role, number in configured.items():
            other = deepcopy(small)
            _set_id(other, role, number)
            model = _made(choice, other)
            model.load_state_dict(right.state_dict())
            texts = _encoded(own, around, number, _text_of(small).vocab_size)
            found[role] = measure_ids(model, right, texts, own.get("pad"), side)
    return found


def _text_of(config: Any) -> Any:
    from headscope.trace.inputs import text_config_of

    return text_config_of(config)


def _set_id(config: Any, role: str, number: int) -> None:
    """Sets a special token's id where the configuration of the text or of the whole model names one."""
    for part in (config, _text_of(config)):
        if getattr(part, f"{role}_token_id", None) is not None:
            setattr(part, f"{role}_token_id", number)


_WORDS = range(60, 100)
"""Where ids beyond a small vocabulary move to."""


def _renumbered(config: Any, of_tokenizer: Mapping[str, int]) -> dict[str, int]:
    """The tokenizer's ids as a model with a small vocabulary has them; equal ones of the configuration stay equal."""
    parts = (config, _text_of(config))
    fields = {
        (at, name): value[0] if isinstance(value, list) and value else value
        for at, part in enumerate(parts)
        for name, value in part.to_dict().items()
        if name.endswith("_token_id")
    }
    known = sorted({number for number in (*fields.values(), *of_tokenizer.values()) if type(number) is int})
    free = iter([number for number in _WORDS if number not in known])
    small = {number: number if number < _WORDS.stop else next(free) for number in known}
    for (at, name), number in fields.items():
        if type(number) is int:
            setattr(parts[at], name, small[number])
    return {role: small[number] for role, number in of_tokenizer.items()}


def _encoded(ids: Mapping[str, int], around: set[str], configured: int, size: int) -> dict[str, tuple[int, ...]]:
    """Texts as the tokenizer writes them: of ordinary words, and with the token that the configuration means."""
    words = [number for number in range(10, min(size, _WORDS.start)) if number not in {*ids.values(), configured}][:6]
    first, last = (
        [ids[role] for role in roles if role in around and role in ids][:1]
        for roles in (("cls", "bos"), ("sep", "eos"))
    )
    texts = {"texts": words, "texts that hold it": [*words[:2], configured, *words[2:]]}
    return {name: (*first, *text, *last) for name, text in texts.items()}


def length_effect(choice: Choice, length: int) -> str | None:
    """The error that a text of `length` tokens raises in a model of the class; "" for none, None where unknown."""
    from headscope.model.quiet import quiet
    from headscope.trace.invariance import longest_that_fits
    from headscope.trace.randomness import OwnRandomness

    with quiet(), OwnRandomness():
        return longest_that_fits(partial(_made, choice), _small_config(choice), length)
