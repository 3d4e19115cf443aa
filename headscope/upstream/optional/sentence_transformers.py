"""sentence-transformers: chains of modules that take and return a dictionary. It is not imported."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from headscope.errors import Unsupported, moved
from headscope.upstream.python import descends_from

_PACKAGE = "sentence_transformers"
_KINDS = ("SentenceTransformer", "SparseEncoder", "MultiVectorEncoder")


def is_cross_encoder(module: object) -> bool:
    """Whether `module` is a CrossEncoder: it gives scores of pairs."""
    return descends_from(module, _PACKAGE, "CrossEncoder")


def is_encoder(module: object) -> bool:
    """Whether `module` is a chain of modules that gives embeddings."""
    return any(descends_from(module, _PACKAGE, name) for name in _KINDS)


def classifier_inside(module: nn.Module) -> nn.Module | None:
    """The classifier of a CrossEncoder that has no module after it; None for anything else."""
    parts = list(module.children()) if is_cross_encoder(module) else []
    if len(parts) != 1:
        return None
    # Before version 5 the classifier was the only child.
    inner = getattr(parts[0], "model", None) if type(parts[0]).__module__.startswith(_PACKAGE) else parts[0]
    return inner if isinstance(inner, nn.Module) else None


def activation_of_encoder(encoder: nn.Module) -> str:
    """The class of the function that a CrossEncoder puts on its scores by default.

    Raises Unsupported if the class has no such function.
    """
    try:
        found: Any = encoder.activation_fn
    except AttributeError as err:
        raise moved(_PACKAGE, "a CrossEncoder has no activation_fn") from err
    return (
        type(found).__name__ if isinstance(found, nn.Module) else str(getattr(found, "__name__", type(found).__name__))
    )


def padding_side_of_encoder(encoder: nn.Module) -> str:
    """The side on which the tokenizer of an encoder pads; "" where none is known."""
    side = getattr(getattr(encoder, "tokenizer", None), "padding_side", "")
    return side if side in {"left", "right"} else ""


def scores_of(returned: Any) -> dict[str, Any]:
    """What a chain gives: its scores, or its embedding, under the library's name. Raises Unsupported."""
    found = returned if isinstance(returned, Mapping) else {}
    name = next((name for name in ("scores", "sentence_embedding", "token_embeddings") if name in found), None)
    if name is None:
        raise Unsupported(
            f"the modules of sentence-transformers return neither scores nor an embedding (found: {', '.join(found)})",
            "give the model of Transformers inside",
        )
    return {name: found[name]}
