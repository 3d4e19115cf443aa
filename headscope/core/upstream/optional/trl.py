"""TRL: the wrapper that puts a value head on a language model. It is not imported."""

from typing import Any

from torch import nn

from headscope.core.upstream.python import descends_from
from headscope.errors import moved

VALUE = "value"


def has_value_head(module: nn.Module) -> bool:
    """True if `module` is a language model with TRL's value head, `v_head`, beside its own."""
    return descends_from(module, "trl", "PreTrainedModelWrapper") and isinstance(
        getattr(module, "v_head", None), nn.Module
    )


def value_head_of(returned: Any) -> dict[str, Any]:
    """Takes the value per token from the wrapper's output: the logits, the loss, the value, and more.

    Raises Unsupported for another form.
    """
    if not isinstance(returned, tuple) or len(returned) < 3:
        raise moved("trl", "the forward of a model with a value head does not return (logits, loss, value)")
    return {VALUE: returned[2]}
