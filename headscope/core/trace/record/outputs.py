"""Scores among the tensors that a forward returns: those examined, and those of other heads."""

from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any

import torch
from torch import nn

from headscope.core.trace.record.recorder import Graph, Operation
from headscope.errors import Unsupported, UsageError

_LOGITS = ("logits", "start_logits", "end_logits", "seq_relationship_logits", "logits_per_image")
_LOSS = "loss"


@dataclass(frozen=True, slots=True)
class Outputs:
    """Scores to examine, and the score tensors beside them by name. `loss` is None if there is none."""

    scores: tuple[torch.Tensor, ...]
    loss: torch.Tensor | None
    others: tuple[tuple[str, torch.Tensor], ...] = ()


def read_outputs(model: nn.Module, returned: Any, graph: Graph, wanted: str | None = None) -> Outputs:
    """Finds the scores in what `model` returned: the output named `wanted`, or those that Transformers calls logits, or
    the first tensor from which no weights make another output.

    Raises Unsupported where there are none, and UsageError for a name that is not among them.
    """
    named = _outputs_by_name(returned)
    usable = _possible_scores(named)
    if wanted is not None and wanted not in usable:
        raise UsageError(f"{type(model).__name__} returns no scores called {wanted}", f"outputs: {', '.join(usable)}")
    if not usable:
        found = ", ".join(f"{name} {list(value.shape)}" for name, value in named.items()) or "nothing"
        raise Unsupported(
            f"{type(model).__name__} returns no scores (found: {found})",
            "scores are floating-point numbers with a batch axis and a class axis",
        )
    chosen = (wanted,) if wanted is not None else _transformers_scores(usable) or _first_final_output(usable, graph)
    scores = tuple(usable[name] for name in chosen)
    apart = {name: value for name, value in usable.items() if name not in chosen and _is_apart(value, scores, graph)}
    return Outputs(scores, named.get(_LOSS), tuple((name, apart[name]) for name in _without_derived(apart, graph)))


def usual_scores(returned: Any) -> tuple[torch.Tensor, ...]:
    """Returns the scores in what a forward returned, if they have a name that Transformers gives them; otherwise ()."""
    usable = _possible_scores(_outputs_by_name(returned))
    return (
        tuple(usable[name] for name in _transformers_scores(usable)) if not isinstance(returned, torch.Tensor) else ()
    )


def _outputs_by_name(returned: Any) -> dict[str, torch.Tensor]:
    if isinstance(returned, torch.Tensor):
        return {"logits": returned}
    # The outputs of Transformers are both; as mappings they leave out what is None.
    if is_dataclass(returned) and not isinstance(returned, Mapping):
        returned = vars(returned)
    if isinstance(returned, Mapping):
        items = returned.items()
    elif isinstance(returned, tuple | list):
        items = enumerate(returned)  # type: ignore[assignment]  # positions are names too
    else:
        return {}
    return {str(name): value for name, value in items if isinstance(value, torch.Tensor)}


def _possible_scores(named: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Selects floating tensors with a class axis; if there are none, those with one number for each row."""
    floating = {name: value for name, value in named.items() if name != _LOSS and value.is_floating_point()}
    with_classes = {name: value for name, value in floating.items() if value.dim() > 1}
    return with_classes or {name: value for name, value in floating.items() if value.dim() == 1}


def _transformers_scores(usable: dict[str, torch.Tensor]) -> tuple[str, ...]:
    return tuple(name for name in _LOGITS if name in usable)


def _first_final_output(usable: dict[str, torch.Tensor], graph: Graph) -> tuple[str, ...]:
    """Returns the first output from which no layer with weights makes another output: not intermediate features."""
    made_from = {name: graph.after(value) for name, value in usable.items()}
    for name in usable:
        later = made_from[name]
        ends = [value for other, value in usable.items() if other != name and graph.producer(value) in later]
        if not any(_reads_weights(operation) for operation in graph.before(*ends) if operation.index in later):
            return (name,)
    return (next(iter(usable)),)


def _is_apart(value: torch.Tensor, scores: tuple[torch.Tensor, ...], graph: Graph) -> bool:
    """True if an output is made beside the examined scores: neither from them nor on the way to them."""
    # What no weights make is not a score: a mask, a position.
    if not any(map(_reads_weights, graph.before(value))):
        return False
    return not any(_depends_on(score, value, graph) or _depends_on(value, score, graph) for score in scores)


def _without_derived(named: dict[str, torch.Tensor], graph: Graph) -> list[str]:
    """Leaves out outputs that are made from another one: probabilities are not a second head."""
    return [
        name
        for name, own in named.items()
        if not any(
            graph.producer(other) != graph.producer(own) and _depends_on(own, other, graph) for other in named.values()
        )
    ]


def _depends_on(tensor: torch.Tensor, other: torch.Tensor, graph: Graph) -> bool:
    """True if a tensor was made by the operation that made another one, or depends on that."""
    return any(operation is graph.maker(other) for operation in graph.before(tensor))


def _reads_weights(operation: Operation) -> bool:
    return any(isinstance(item, nn.Parameter) for item in operation.inputs)
