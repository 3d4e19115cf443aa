"""`forward`: shapes at every stage of the head, and with real weights the scores of real inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, Unpack, overload

from headscope.core.facts import CheckpointKind, Report
from headscope.core.facts.environment import tool_version
from headscope.core.facts.heads.tasks import Activation
from headscope.core.facts.stored.location import Location
from headscope.core.source.checkpoint import Checkpoint, examine
from headscope.core.source.environment import environment
from headscope.core.source.reading.reading import WITHOUT_WEIGHTS, read_checkpoint
from headscope.core.source.request import ModuleRequest, Progress, Request, is_in_memory
from headscope.errors import HeadscopeError, Unsupported, UsageError
from headscope.shell.options.calls import use_case
from headscope.shell.options.checkpoint import ModuleOptions
from headscope.shell.options.option import with_defaults
from headscope.shell.shown import Shown
from headscope.shell.values import make_request, module_options
from headscope.slices.forward.facts import ForwardReport, LabelScore, Scored
from headscope.slices.forward.options import CheckpointForward, ForwardOptions, InputOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import nn
    from transformers import PreTrainedModel

    from headscope.core.model.classes.model_request import Choice
    from headscope.core.trace.slice.observe import Observation

_META = "meta"


class Forwarded(Shown, ForwardReport):
    """The result of `forward`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Material:
    """Inputs to run through the model, of at most one kind."""

    texts: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    image: str | None = None
    audio: str | None = None

    def kinds(self) -> tuple[str, ...]:
        """Gives the kinds of input that the caller gave."""
        given = {"text": self.texts, "image": self.image, "audio": self.audio}
        return tuple(kind for kind, value in given.items() if value)


@overload
def forward(
    reference: str | PathLike[str],
    *,
    progress: Progress | None = None,
    **options: Unpack[CheckpointForward],
) -> Forwarded: ...
@overload
def forward(
    reference: nn.Module, *, progress: Progress | None = None, **options: Unpack[ModuleOptions]
) -> Forwarded: ...
@use_case
def forward(
    reference: str | PathLike[str] | nn.Module,
    *,
    progress: Progress | None = None,
    **options: Unpack[ForwardOptions],
) -> Forwarded:
    """Runs a forward pass and returns the shape of the tensor at each stage of the head.

    On `meta` headscope reads no weights. On any other device it loads them; without `text`, `image` or `audio` the
    inputs are dummies, and no label gets a score. A model in memory runs on its own device, on `example_inputs` or on
    dummy inputs.

    Args:
        reference: A Hub ID, `id@revision`, an `hf://` URI, a Hub URL, a local folder or weight file, a PEFT adapter
            or a snapshot file; a class of Transformers by its name, in its default configuration; or a model in memory
            (`nn.Module`, also compiled or wrapped), which runs where it is and stays untouched.
        options: See `ForwardOptions`.
        progress: Called with a short sentence before each step.

    Returns:
        The stages in order. On `meta` the axes that vary have names (`batch`, `sequence`), on other devices they are
        integers; `logits` then has a row for each input, and `scored` the probabilities (0 to 1) by label.

    Raises:
        UsageError: An option is unknown, has an invalid value, or doesn't apply to this kind of model.
        HeadscopeError: The checkpoint can't be read or examined: `NotFound`, `Gated`, `Offline`, `NetworkError`,
            `Malformed` or `Unsupported`. `message` says what happened, `hint` what to do next.

    Example:
        >>> import headscope
        >>> result = headscope.forward("roberta-base", num_labels=3, offline=True)
        >>> result.logits_shape
        ('batch', 3)
    """
    wanted = with_defaults(InputOptions, options)
    rest = {name: value for name, value in options.items() if name not in wanted}
    device = wanted["device"]
    material = Material(_as_tuple(wanted["text"]), _as_tuple(wanted["text_pair"]), wanted["image"], wanted["audio"])
    if is_in_memory(reference):
        return _forward_in_memory(reference, device, material, module_options(rest, ModuleOptions.__annotations__))
    _check_material(material)
    request = make_request(reference, rest)
    if material.kinds() and device == _META:
        raise _needs_weights_error(material, request)
    checkpoint = examine("forward", request, progress, takes_class=True)
    report, manifest, choice = checkpoint.report, checkpoint.manifest, checkpoint.choice
    _check_kind(material, choice)
    if device == _META:
        return _build_result(report, device, _observe_shapes(choice, checkpoint.skeleton), material)
    place = _weights_location(checkpoint) if manifest.adapter is None else None
    from headscope.core.words.words import bytes_of

    (progress or (lambda sentence: None))(f"loading {bytes_of(manifest.bytes_total)} of weights")
    return _build_result(report, device, _observe_values(checkpoint, place, material, device), material)


_INVENTED_NOTE = (
    "the inputs are dummies, so the values say nothing about the labels; give example_inputs to score real ones"
)


def _forward_in_memory(module: nn.Module, device: str, material: Material, options: dict[str, Any]) -> Forwarded:
    """Runs a model in memory. Raises UsageError for inputs that only a checkpoint's own files can encode."""
    from headscope.slices.forward.live_forward import device_of, observe_live, runs_by_itself
    from headscope.slices.inspect.live import inspect_module

    if material.kinds() or material.pairs:
        kind = (*material.kinds(), "text_pair")[0]
        raise UsageError(
            f"{kind} needs a tokenizer or processor, and a model in memory has none", "give example_inputs"
        )
    if device != _META:
        raise UsageError("device doesn't apply to a model in memory: it runs where it is", "leave it out")
    given = {name: options.get(name) for name in ("example_inputs", "output")}
    if runs_by_itself(module):  # then the probe has labels too, and shows the loss
        options = {name: value for name, value in options.items() if name != "example_inputs"}
    report = inspect_module(module, ModuleRequest(**options))
    observation = observe_live(module, report.model.task, **given)
    if observation.invented and observation.logits is not None:
        observation = replace(observation, notes=(*observation.notes, _INVENTED_NOTE))
    return _build_result(report, device_of(module), observation, material)


def _as_tuple(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _check_material(material: Material) -> None:
    """Checks that the inputs go together. Raises UsageError."""
    kinds = material.kinds()
    if len(kinds) > 1:
        raise UsageError(f"{' and '.join(kinds)} can't be combined", "give one kind of input")
    if material.pairs and not material.texts:
        raise UsageError("--text-pair needs --text", "pass the first text of each pair with --text")


def _needs_weights_error(material: Material, request: Request) -> UsageError:
    """Makes the error for inputs on the meta device."""
    hint = "add --device cpu"
    try:
        kind = read_checkpoint(request, None, takes_class=True).kind
    except HeadscopeError:  # only the hint depends on it, and the next run reports what is wrong
        kind = CheckpointKind.HUB
    # Another device helps only if the checkpoint holds weights.
    if kind in WITHOUT_WEIGHTS:
        hint = f"{request.reference} is {WITHOUT_WEIGHTS[kind]}: {_WHOLE_CHECKPOINT}, and add --device cpu"
    return UsageError(f"{material.kinds()[0]} needs real weights, and the device is meta", hint)


_ARGUMENTS_OF_KIND = {"text": ("input_ids",), "image": ("pixel_values",), "audio": ("input_values", "input_features")}
_NOUNS = {"text": "texts", "image": "images", "audio": "sounds"}


def _check_kind(material: Material, choice: Choice) -> None:
    """Checks that the model's `forward` has an argument for the given kind of input. Raises UsageError."""
    from inspect import signature

    arguments = signature(choice.cls.forward).parameters
    taken = [kind for kind, names in _ARGUMENTS_OF_KIND.items() if any(name in arguments for name in names)]
    for kind in material.kinds():
        if taken and kind not in taken:  # a `forward(*args)` names none, and may take anything
            raise UsageError(
                f"{choice.cls.__name__} takes {' and '.join(_NOUNS[item] for item in taken)}, not {_NOUNS[kind]}",
                f"give {' or '.join(f'--{item}' for item in taken)}",
            )


_WHOLE_CHECKPOINT = "give the folder or the Hub ID of a whole checkpoint"


def _weights_location(checkpoint: Checkpoint) -> Location:
    """Gives the place from which the weights are loaded. Raises Unsupported for a source without weights."""
    kind = checkpoint.manifest.kind
    if kind not in (CheckpointKind.LOCAL, CheckpointKind.HUB):
        raise Unsupported(
            f"{checkpoint.request.reference} is {WITHOUT_WEIGHTS.get(kind, kind.value)}",
            f"{_WHOLE_CHECKPOINT}, or leave out --device",
        )
    return checkpoint.location


def _observe_shapes(choice: Choice, skeleton: PreTrainedModel | None) -> Observation:
    """Observes a model without weights, on the meta device."""
    import torch

    from headscope.core.model.quiet import quiet
    from headscope.core.trace.slice.observe import observe_probe
    from headscope.core.upstream.optional.peft_prompts import caller_in_copy

    with quiet():
        if skeleton is None:  # a report from the cache comes without a model
            with torch.device(_META):
                skeleton = choice.cls(choice.config)
        caller = caller_in_copy(skeleton, choice.adapter)
        return observe_probe(skeleton if caller is None else caller.base, choice.task, caller)


def _observe_values(checkpoint: Checkpoint, place: Location | None, material: Material, device: str) -> Observation:
    """Observes a model with its real weights; without a `place`, a base model with its adapter, as PEFT calls it."""
    from headscope.core.model.loading.inference import check_device, load_model
    from headscope.core.model.quiet import quiet
    from headscope.core.trace.slice.observe import observe_inputs, observe_probe
    from headscope.core.upstream.optional.peft_prompts import caller_of
    from headscope.shared.trial.opening import load_adapted

    where, choice = check_device(device), checkpoint.choice
    if place is None:
        with quiet():
            adapted, base_place = load_adapted(checkpoint.request, checkpoint.manifest, choice, device)
            inputs = _encode_material(base_place, material)
        model, caller = adapted.get_base_model(), caller_of(adapted)
    else:
        inputs = _encode_material(place, material)
        model, caller = load_model(choice, place, where), None
    with quiet():
        return observe_inputs(model, inputs, caller) if inputs else observe_probe(model, choice.task, caller)


def _encode_material(place: Location, material: Material) -> Mapping[str, Any] | None:
    from headscope.core.model.loading.inference import audio_encoder, encode_texts, image_encoder

    if material.texts:
        return encode_texts(place, material.texts, material.pairs)
    if material.image:
        return image_encoder(place)(material.image)
    return audio_encoder(place)(material.audio) if material.audio else None


def _build_result(report: Report, device: str, observation: Observation, material: Material) -> Forwarded:
    logits = observation.logits
    rows = [] if logits is None else logits.reshape(-1, logits.shape[-1]).tolist()
    return Forwarded(
        tool_version=tool_version(),
        environment=environment(),
        checkpoint=report.checkpoint,
        model=report.model,
        device=device,
        dtype=report.model.dtype,
        inputs=observation.inputs,
        dummy_inputs=observation.invented,
        hidden_shape=observation.hidden_shape,
        stages=observation.stages,
        logits_shape=observation.logits_shape,
        logits=tuple(tuple(map(_finite_or_none, row)) for row in rows),
        scored=() if logits is None or observation.invented else _score_labels(logits, report, material),
        notes=tuple(dict.fromkeys((*report.notes, *observation.notes, *_list_doubts(report, device, observation)))),
        not_determined=report.not_determined,
    )


def _list_doubts(report: Report, device: str, observation: Observation) -> Iterator[str]:
    """Lists the sentences on why scores can't be trusted or shown by label."""
    from headscope.core.facts.report import find_missing
    from headscope.core.words.words import axes_of
    from headscope.shared.report.verdict import unplaced_clauses

    yield from unplaced_clauses(report)
    if device == _META:
        return
    missing = len(find_missing(report).head)
    if missing:
        count = f"{missing:,} {'tensor of the head is' if missing == 1 else 'tensors of the head are'}"
        yield f"the scores mean nothing yet: {count} newly initialized on every load"
    # A model in memory has another note (_INVENTED_NOTE): it takes example_inputs, not options.
    if observation.invented and report.checkpoint.kind is not CheckpointKind.MEMORY:
        names = [name for name, _ in observation.inputs]
        option = next((option for name, option in _OPTION_OF_ARGUMENT.items() if name in names), "")
        remedy = f"; give {option} to score a real input" if option else ""
        yield f"the inputs are dummies, so the values say nothing about the labels{remedy}"
    logits = observation.logits
    if not observation.invented and logits is not None and not _is_by_label(logits, report):
        shape = axes_of(observation.logits_shape)
        yield f"the scores have the shape {shape}, so they are not listed by label: see `logits` in the JSON report"


def _is_by_label(logits: torch.Tensor, report: Report) -> bool:
    return logits.dim() == 2 and logits.shape[-1] == len(report.model.labels)


_OPTION_OF_ARGUMENT = {
    "input_ids": "--text",
    "pixel_values": "--image",
    "input_values": "--audio",
    "input_features": "--audio",
}


def _finite_or_none(value: float) -> float | None:
    """Gives None for an infinity or NaN, which JSON can't write."""
    return value if math.isfinite(value) else None


def _score_labels(logits: torch.Tensor, report: Report, material: Material) -> tuple[Scored, ...]:
    """Lists the labels of each input with their scores, if there is one score for each label."""
    import torch

    labels = report.model.labels
    if not _is_by_label(logits, report):
        return ()
    functions: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        Activation.SOFTMAX: lambda scores: scores.softmax(-1),
        Activation.SIGMOID: torch.sigmoid,
        Activation.NONE: lambda scores: scores,
    }
    # The activation of a model in memory may be unknown: NaN then becomes "no probability" in the result.
    is_unknown = report.checkpoint.kind is CheckpointKind.MEMORY and report.model.activation not in functions
    probabilities = functions.get(report.model.activation, functions[Activation.NONE])(logits)
    probabilities = probabilities * float("nan") if is_unknown else probabilities
    names = material.texts or tuple(f"input {number}" for number in range(len(logits)))
    return tuple(
        Scored(name, _rank_labels(labels, row, chance))
        for name, row, chance in zip(names, logits.tolist(), probabilities.tolist(), strict=False)
    )


def _rank_labels(labels: tuple[str, ...], scores: list[float], chances: list[float]) -> tuple[LabelScore, ...]:
    """Sorts the labels of one input by logit, the largest first; a label without a finite one comes last."""
    rows = [
        LabelScore(label, _finite_or_none(score), _finite_or_none(chance))
        for label, score, chance in zip(labels, scores, chances, strict=True)
    ]
    return tuple(sorted(rows, key=lambda row: -(row.logit if row.logit is not None else float("-inf"))))
