"""Causal language model whose scores are the logits of a few tokens: a reranker that answers yes or no."""

from collections.abc import Mapping
from inspect import Parameter, Signature, signature
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput, TokenClassifierOutput

from headscope.core.facts import ScoreHead
from headscope.core.model.classes.reduced_config import with_vocabulary
from headscope.errors import UsageError

_BESIDE = ("labels", "logits_to_keep", "num_logits_to_keep")
_ROW_COUNTS = (499, 503, 509, 521, 523, 541, 547, 557, 563, 569, 571, 577, 587)
"""Sizes of a small vocabulary: one that no other size of a model equals is taken."""


def class_with_rows(cls: type[PreTrainedModel], rows: tuple[int, ...]) -> type[PreTrainedModel]:
    """Makes a language model's class whose forward gives the logits of the tokens `rows` at the last position.

    It has the weights of the class and its name. sentence-transformers' `LogitScore` reads the same values.
    """

    def forward(self: PreTrainedModel, *args: Any, **options: Any) -> SequenceClassifierOutput:
        logits = cls.forward(self, *args, **options).logits[:, -1]
        return SequenceClassifierOutput(logits=logits[:, list(rows)])

    return _with_forward(cls, forward)


def _with_forward(cls: type[PreTrainedModel], forward: Any) -> type[PreTrainedModel]:
    """Makes a class with a forward that takes the same inputs, but for labels and the choice of positions."""
    given = [
        item
        for item in signature(cls.forward).parameters.values()
        if item.name not in _BESIDE and item.kind is not Parameter.VAR_KEYWORD
    ]
    forward.__signature__ = Signature(given)
    own = {"forward": forward, "__module__": cls.__module__, "__doc__": cls.__doc__, _WHOLE: cls}
    return type(cls.__name__, (cls,), own)


def class_with_answers(cls: type[PreTrainedModel], head: ScoreHead) -> type[PreTrainedModel]:
    """Makes a language model's class whose output layer was cut to a few answers' rows; it scores each token.

    The arithmetic before and after that layer is the family's own.
    """

    def __init__(self: Any, config: Any) -> None:
        cls.__init__(self, config)
        setattr(self, head.name, nn.Linear(head.input_size or 0, head.scores, bias=head.has_bias))

    # The cut layer has other rows than the embeddings, so it can't be tied to them.
    own = {"__init__": __init__, "__module__": cls.__module__, "__doc__": cls.__doc__, "_tied_weights_keys": {}}
    cut = type(cls.__name__, (cls,), own)

    def forward(self: PreTrainedModel, *args: Any, **options: Any) -> TokenClassifierOutput:
        return TokenClassifierOutput(logits=cls.forward(self, *args, **options).logits)

    return _with_forward(cut, forward)


_WHOLE = "headscope_whole_class"


def with_few_tokens(cls: type[PreTrainedModel], config: Any, count: int) -> tuple[type[PreTrainedModel], Any, int]:
    """Makes the class and configuration of a model with a small vocabulary, whose last `count` tokens are scored.

    `cls` is one that `class_with_rows` made.
    The third result is the size of that vocabulary, which no other size in the configuration equals.
    """
    taken = set(_integers_in(config.to_dict()))
    size = next(size for size in _ROW_COUNTS if size not in taken)
    whole = getattr(cls, _WHOLE)
    return class_with_rows(whole, tuple(range(size - count, size))), with_vocabulary(config, size), size


def _integers_in(value: Any) -> list[int]:
    if isinstance(value, dict):
        return [number for item in value.values() for number in _integers_in(item)]
    return [value] if type(value) is int else []


def id_of(token: str, vocabulary: Mapping[str, int]) -> int:
    """Gives a token's ID as the tokenizer's files list it. Raises UsageError where they do not."""
    if token in vocabulary:
        return vocabulary[token]
    alike = sorted(item for item in vocabulary if item.strip(_SPACES).lower() == token.lower())[:5]
    hint = f"the vocabulary has {', '.join(map(repr, alike))}" if alike else "give its id, such as id:2152"
    raise UsageError(f"the vocabulary has no token {token!r}", hint)


_SPACES = "\u2581\u0120 "
"""What tokenizers write for a space before a word."""
