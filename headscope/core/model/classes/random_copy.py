"""Small copy of a configuration with random weights, saved with a tokenizer of whole words, for any engine to run."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from headscope.core.model.classes.reduced_config import (
    fitting_config,
    reduced_config,
    with_vocabulary,
    with_wider_heads,
)
from headscope.core.model.quiet import quiet
from headscope.core.model.tokenizers import special_tokens_of
from headscope.core.upstream.torch import on_meta
from headscope.core.upstream.transformers import text_config_of
from headscope.errors import Unsupported, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from headscope.core.model.classes.model_request import Choice

_MOST_PARAMETERS = 20_000_000
"""80 MB in single precision: a second to write, and for an engine to load."""
_FACTORS = (8, 4, 2)
_SMALLEST_SIZE = 512
"""Smaller sizes are kept."""
_HEAD_WIDTH = 64
"""Numbers for each attention head: engines have no kernels for heads of 8 or 16."""
_BIAS = 0.3
"""The size of random biases and of what norms deviate from 1: a bias that an engine drops changes the scores."""
_SPREAD = 2.0
"""The size of random weights, in relation to what keeps the size of a vector: texts get scores that lie apart."""
_SEED = 29


@dataclass(frozen=True, slots=True)
class RandomCopy:
    """Copy in memory, as it was saved. `words` are those that are not special; `limit` is that of a text."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    words: tuple[str, ...]
    limit: int | None


def save_random_copy(choice: Choice, folder: Path, *, ends_text: bool) -> RandomCopy:
    """Makes and saves the copy. With `ends_text`, the tokenizer puts a token after each text.

    Raises Unsupported where the class can't be made small.
    """
    try:
        with quiet(), torch.random.fork_rng(devices=[]):
            config = _small_config(choice)
            torch.default_generator.manual_seed(_SEED)
            model: PreTrainedModel = choice.cls(config).train(False)
            _randomize_parameters(model)
            model.save_pretrained(folder)
            made = RandomCopy(model, *_build_tokenizer(model, ends_text))
            made.tokenizer.save_pretrained(folder)
    except Exception as err:  # whatever a foreign class raises, and one without a vocabulary
        raise Unsupported(f"no small copy of {choice.cls.__name__} can be made: {first_line(err)}", "") from err
    return made


def _small_config(choice: Choice) -> Any:
    start = with_vocabulary(choice.config, 256, moves_all=True)
    # Some classes fail on meta at every size: for them, a failure says nothing about a size.
    can_run = _runs_on_meta(choice.cls, reduced_config(start))

    def count(config: Any) -> int:
        with on_meta():
            model = choice.cls(config)
        if can_run and not _runs_on_meta(choice.cls, config):
            raise ValueError("sizes that don't fit together")
        return sum(parameter.numel() for parameter in model.parameters())

    small = fitting_config(start, count, _MOST_PARAMETERS, factors=_FACTORS, smallest=_SMALLEST_SIZE)
    if small is None:
        raise ValueError("the smallest model is too large")
    small = with_wider_heads(small, _HEAD_WIDTH, count)
    small.architectures = [choice.cls.__name__]
    return small


def _runs_on_meta(model_class: type[PreTrainedModel], config: Any) -> bool:
    """True if the base model of a configuration computes something for three tokens, without values."""
    try:
        with on_meta():
            model = model_class(config).train(False)
            model.base_model(input_ids=torch.ones(1, 3, dtype=torch.long))
    except Exception:  # whatever a foreign class raises
        return False
    return True


def _randomize_parameters(model: PreTrainedModel) -> None:
    """Gives every parameter random values, so that each has an effect on the scores that can be measured."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, _SPREAD * parameter[0].numel() ** -0.5)
            else:
                parameter.add_(torch.randn_like(parameter) * _BIAS)


def _build_tokenizer(
    model: PreTrainedModel, ends_text: bool
) -> tuple[PreTrainedTokenizerFast, tuple[str, ...], int | None]:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    config = text_config_of(model.config)
    size, special = config.vocab_size, _special_ids(config)
    first = special_tokens_of(str(model.config.model_type)).first
    names = {number: f"<{role}>" for role, number in reversed(special.items())} | {special["bos"]: first or "<bos>"}
    vocabulary = {names.get(number, f"w{number}"): number for number in range(size)}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token=names[special["unk"]]))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    start, end = names[special["bos"]], names[special["eos"]]
    after = f" {end}" if ends_text else ""
    inner.post_processor = processors.TemplateProcessing(
        single=f"{start} $A{after}",
        pair=f"{start} $A{after} $B:1{after and after + ':1'}",
        special_tokens=[(start, special["bos"]), (end, special["eos"])],
    )
    accepted = inspect.signature(type(model).forward).parameters
    has_types = "token_type_ids" in accepted and getattr(config, "type_vocab_size", 0) > 1
    most = getattr(config, "max_position_embeddings", None)
    # Two positions less, for the families that count from behind the pad token.
    limit = most - 2 if isinstance(most, int) and 16 < most <= 1026 else None
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # has no annotations
        tokenizer_object=inner,
        model_input_names=["input_ids", "attention_mask", *(["token_type_ids"] * has_types)],
        padding_side="right",
        **({"model_max_length": limit} if limit else {}),
        **{f"{role}_token": names[number] for role, number in special.items()},
    )
    words = tuple(word for word, number in vocabulary.items() if number not in names)
    return tokenizer, words, limit


def _special_ids(config: Any) -> dict[str, int]:
    """Gives the special tokens by role: those that the configuration names, and others at the vocabulary's end."""
    size = config.vocab_size
    found = {role: getattr(config, f"{role}_token_id", None) for role in ("pad", "bos", "eos")}
    named = {role: number for role, number in found.items() if isinstance(number, int) and 0 <= number < size}
    free = iter(number for number in range(size - 1, -1, -1) if number not in named.values())
    wanted = ("bos", "eos", "unk", *(("pad",) if "pad" in named else ()))
    return {role: named[role] if role in named else next(free) for role in wanted}
