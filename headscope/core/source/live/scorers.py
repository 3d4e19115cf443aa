"""Objects of other libraries that make the scores themselves: as modules that take what the model inside takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import signature
from typing import TYPE_CHECKING, Any

from headscope.core.facts.heads.tasks import Activation
from headscope.core.source.live.live_tensors import models_of_transformers
from headscope.core.upstream.optional import lightning, sentence_transformers, setfit, trl
from headscope.errors import Unsupported

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

    from headscope.core.trace.batch.probe_batch import ProbeBatch

Call = Callable[[Any, Any, dict[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Scorer:
    """A module whose forward takes the inputs of `inside`, a model of Transformers that it holds at `path`.

    `labels` are the names of the classes; None where they are those of the configuration. `count` is how many scores a
    text or a token has; None where their shape says it, 0 for an embedding, which is not a score. `activation` makes
    probabilities of the scores, `padding_side` is that of its tokenizer; "" where nothing says it. `notes` are
    sentences on what it gives.
    """

    module: nn.Module
    inside: PreTrainedModel
    path: str
    labels: tuple[str, ...] | None = None
    activation: str = ""
    count: int | None = None
    padding_side: str = ""
    notes: tuple[str, ...] = ()


def scorer_of(module: nn.Module) -> Scorer | None:
    """Makes a scorer of a module of TRL or sentence-transformers; None for any other. Raises Unsupported."""
    if trl.has_value_head(module):
        note = "the scores are those of the value head, one for each token; the head of the language model is not shown"
        return _build_scorer(module, _call_value_head, labels=(), activation="none", count=1, notes=(note,))
    side = sentence_transformers.padding_side_of_encoder(module)
    if sentence_transformers.is_cross_encoder(module):
        return _build_scorer(module, _call_chain, labels=(), activation=activation_of(module), padding_side=side)
    if sentence_transformers.is_encoder(module):
        note = f"{type(module).__name__} returns an embedding, not class scores: its head makes the embedding"
        more = {"count": 0, "activation": Activation.NONE.value, "padding_side": side, "notes": (note,)}
        return _build_scorer(module, _call_chain, labels=(), **more)
    return None


def scorer_of_setfit(model: Any) -> Scorer:
    """Makes a scorer of a SetFitModel with its head. Raises Unsupported or UsageError for an unreadable head."""
    module, head = setfit.model_of(model)
    notes: tuple[str, ...] = ()
    if len(head.labels) == 2 and head.activation == Activation.SIGMOID:
        notes = (f"the one score is that of {head.labels[1]}; the probability of {head.labels[0]} is the rest to 1",)
    path, inside = _model_inside(module)
    side = sentence_transformers.padding_side_of_encoder(module.model_body)
    return Scorer(module, inside, path, head.labels, head.activation, padding_side=side, notes=notes)


def activation_of(encoder: nn.Module) -> str:
    """Names what a CrossEncoder applies to its scores: `sigmoid`, `softmax`, `none`, or another function."""
    name = sentence_transformers.activation_of_encoder(encoder)
    return {"Identity": Activation.NONE.value}.get(name, name.lower())


def _call_value_head(cls: Any, view: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    return trl.value_head_of(cls.forward(view, **inputs))


def _call_chain(cls: Any, view: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    return sentence_transformers.scores_of(cls.forward(view, dict(inputs)))


def _build_scorer(module: nn.Module, call: Call, **more: Any) -> Scorer:
    path, inside = _model_inside(module)
    return Scorer(_build_view(module, call, inside), inside, path, **more)


def _model_inside(module: nn.Module) -> tuple[str, PreTrainedModel]:
    """Finds the outermost model of Transformers in a module, and its path."""
    for path, part in models_of_transformers(module):
        return path, part
    raise Unsupported(f"{type(module).__name__} holds no model of Transformers", "pass a model of Transformers")


def _build_view(module: nn.Module, call: Call, inside: PreTrainedModel) -> nn.Module:
    """Makes a module of the same parts and names, whose forward takes the inputs of `inside` and gives only scores."""
    cls = type(module)

    def forward(self: Any, **inputs: Any) -> Any:
        return call(cls, self, inputs)

    forward.__signature__ = signature(type(inside).forward)  # type: ignore[attr-defined]  # read by inspect.signature
    kind = type(cls.__name__, (cls,), {"forward": forward, "__module__": cls.__module__, "__doc__": cls.__doc__})
    # Without __init__, which would make the parts a second time.
    view: nn.Module = object.__new__(kind)
    # Its own dictionary, but the same tables of parameters and modules: reads of it are reads of them.
    vars(view).update(vars(module))
    return view


def trained_inside(module: nn.Module) -> nn.Module | Scorer | None:
    """Gives the model that a LightningModule trains, if its forward only passes that model's scores on.

    A Scorer for a forward that makes scores itself; None for any other module. Raises Unsupported for a LightningModule
    without a forward that has weights beside one model.
    """
    if not lightning.is_lightning(module):
        return None
    parts = [(name, part) for name, part in module.named_children() if next(part.parameters(), None) is not None]
    alone = parts[0][1] if len(parts) == 1 and not list(module.parameters(recurse=False)) else None
    if lightning.has_forward(module):
        if alone is not None and passes_on(module, alone):
            return alone
        try:
            path, inside = _model_inside(module)
        except Unsupported:
            return None
        return Scorer(module, inside, path)
    if alone is not None:
        return alone
    names = ", ".join(name for name, _ in parts)
    raise Unsupported(
        f"{type(module).__name__} has no forward, so headscope can't see how {names} make the scores",
        "define a forward that returns the scores",
    )


def passes_on(module: nn.Module, inner: nn.Module) -> bool:
    """True if a module runs exactly what its part `inner` runs to make the scores, as seen on dummy inputs."""
    from headscope.core.facts import Task
    from headscope.core.model.classes.catalog import task_of_bases
    from headscope.core.trace.batch.probe_batch import build_probe

    try:
        _, model = _model_inside(inner)
        task = task_of_bases(type(model)) or Task.SEQUENCE_CLASSIFICATION
        probe = replace(build_probe(model, task), labels={})
        return _operations_of_scores(module, probe) == _operations_of_scores(inner, probe)
    except Unsupported:  # another signature, or no scores
        return False


def _operations_of_scores(module: nn.Module, probe: ProbeBatch) -> list[tuple[str, str, int]]:
    """Lists the operations on which the scores of a module depend, by name and place."""
    from headscope.core.model.quiet import quiet
    from headscope.core.trace.record.execution import run_forward
    from headscope.core.upstream.torch import uncompiled

    with quiet(), uncompiled(module):
        execution = run_forward(module, probe, hint="")
    return [(item.name, item.file, item.line) for item in execution.graph.before(*execution.logits)]
