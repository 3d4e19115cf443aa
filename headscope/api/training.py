"""The gate for a model in memory on its way into training: what the load gave it, and what training will leave out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headscope.api.check import config_facts, gather
from headscope.api.examination import Examination, Examined, Request, built_facts, examine
from headscope.api.live import inspect_module, unwrapped
from headscope.errors import HeadscopeError, UsageError
from headscope.facts import Head, Mismatch, ParameterStatus, Profile, Report, Unavailable, WeightDiff
from headscope.facts.check import LiveFacts, Subject, TensorValues
from headscope.facts.tasks import WITHOUT_CLASSES

if TYPE_CHECKING:
    from torch import nn

_ADAPTERS = re.compile(r"\.(base_layer|original_module|modules_to_save\.\w+)\.")
"""What PEFT puts into the path of a weight that it wraps."""
_FROM_CONFIG = ("", ".", None)


def live_subject(
    module: nn.Module,
    profile: Profile,
    *,
    optimizer: Any = None,
    loaded_from: str | None = None,
    loading_info: Mapping[str, Any] | None = None,
    example_inputs: Any = None,
    labels: tuple[str, ...] = (),
    task: str | None = None,
    offline: bool = False,
) -> Subject:
    """Everything the rules look at, for a model in memory.

    What the load gave it is told by the checkpoint it came from: `loaded_from`, or the name that `from_pretrained`
    leaves in the configuration. Where that cannot be read, the rules on weights are not determined; a model made from
    a configuration has no checkpoint, and they do not apply. `loading_info` is what `from_pretrained` returned with
    `output_loading_info=True`: then nothing is read, and what it says is what is judged.
    """
    inner = unwrapped(module)
    if loading_info is not None:
        live = inspect_module(module, example_inputs=example_inputs, labels=labels, task=task)
        told = with_loading_info(live, loading_info)
        return _alone(inner, told, profile, _training_facts(inner, live, optimizer))
    name = loaded_from or getattr(getattr(inner, "config", None), "_name_or_path", None)
    live = inspect_module(module, example_inputs=example_inputs, labels=labels, task=task)
    facts = _training_facts(inner, live, optimizer)
    if name in _FROM_CONFIG:
        return _alone(inner, live, profile, facts, inapplicable=Unavailable("checkpoint", "the model names none"))
    try:
        examined, request = _examined(inner, str(name), live, offline)
    except HeadscopeError as err:
        gap = Unavailable("checkpoint", f"what the load of {name} gave is not known: {err.message}")
        return _alone(inner, live, profile, facts, unknown=gap)
    subject = gather(examined, request, profile)
    return replace(subject, values=_live_values(inner, live), live=facts, unknown=_without(subject, "values"))


def with_loading_info(live: Examination, info: Mapping[str, Any]) -> Examination:
    """The report on a model in memory with the statuses that its load told. Raises UsageError for no such thing."""
    try:
        missing, unused = set(info["missing_keys"]), tuple(sorted(info["unexpected_keys"]))
        reshaped = [Mismatch(name, tuple(found), tuple(wanted)) for name, found, wanted in info["mismatched_keys"]]
    except (KeyError, TypeError, ValueError) as err:
        raise UsageError(
            f"loading_info is not what from_pretrained returns ({type(err).__name__}: {err})",
            "model, info = Class.from_pretrained(..., output_loading_info=True)",
        ) from err

    mismatched = {item.parameter: item for item in reshaped}

    def status(name: str) -> ParameterStatus:
        plain = _ADAPTERS.sub(".", name)
        if plain in mismatched:
            return ParameterStatus.MISMATCHED
        return ParameterStatus.NEW if plain in missing else ParameterStatus.LOADED

    parameters = tuple(
        replace(item, status=status(item.name)) for item in live.weights.parameters if not _is_of_adapter(item.name)
    )
    names: dict[str, list[str]] = {}
    for item in parameters:
        if ".original_module." in item.name:  # PEFT's copy of what it trains; nothing reads it
            continue
        names.setdefault(_ADAPTERS.sub(".", item.name), []).append(item.name)
    diff = WeightDiff(
        loaded=sum(item.status is ParameterStatus.LOADED for item in parameters),
        new=tuple(sorted(here for name in missing for here in names.get(name, [name]))),
        mismatched=tuple(
            sorted(
                replace(item, parameter=here)
                for item in reshaped
                for here in names.get(item.parameter, [item.parameter])
            )
        ),
        unused=unused,
        tied=(),
        renamed=(),
        parameters=parameters,
    )
    if live.head is None:
        return replace(live, weights=diff)
    return replace(live, weights=diff, head=_with_status(live.head, status))


def _with_status(head: Head, status: Callable[[str], ParameterStatus]) -> Head:
    """The head with the status of everything in it but PEFT's own changes."""
    parameters, buffers = (
        tuple(replace(item, status=status(item.name)) for item in items if not _is_of_adapter(item.name))
        for items in (head.parameters, head.buffers)
    )
    return replace(head, parameters=parameters, buffers=buffers)


def _is_of_adapter(name: str) -> bool:
    """Whether a weight is a change that PEFT adds: no load of the base model speaks of it."""
    return ".lora_" in name


def _examined(module: nn.Module, name: str, live: Report, offline: bool) -> tuple[Examined, Request]:
    request = Request(
        name,
        num_labels=None if live.model.task in WITHOUT_CLASSES else live.model.num_labels,
        model_class=live.model.class_name,
        offline=offline,
        verify=True,
    )
    return examine("check", request, None), request


def _alone(
    module: nn.Module,
    live: Report,
    profile: Profile,
    facts: LiveFacts,
    *,
    unknown: Unavailable | None = None,
    inapplicable: Unavailable | None = None,
) -> Subject:
    """The subject of a model of which nothing is known but what is in memory."""
    config = getattr(module, "config", None)
    values = config.to_dict() if config is not None and hasattr(config, "to_dict") else {}
    return Subject(
        report=live,
        profile=profile,
        config=config_facts(values),
        built=built_facts(config),
        values=_live_values(module, live),
        live=facts,
        unknown=() if unknown is None else (unknown,),
        inapplicable=tuple(
            item for item in (inapplicable, Unavailable("tokenizer", "a model in memory has no tokenizer")) if item
        ),
    )


def _without(subject: Subject, what: str) -> tuple[Unavailable, ...]:
    return tuple(gap for gap in subject.unknown if gap.what != what)


def _training_facts(module: nn.Module, report: Report, optimizer: Any) -> LiveFacts:
    """Which parameters of the head training will leave as they are."""
    live = [item.name for item in report.head.parameters if item.live] if report.head else []
    held = dict(module.named_parameters(remove_duplicate=False))
    trained = {name for name in live if name in held and held[name].requires_grad}
    frozen = tuple(name for name in live if name in held and name not in trained and not _adapted(name, trained))
    if optimizer is None:
        return LiveFacts(frozen)
    optimized = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return LiveFacts(frozen, tuple(name for name in live if name in trained and id(held[name]) not in optimized))


def _adapted(name: str, trained: set[str]) -> bool:
    """Whether a frozen weight is that of a layer which an adapter trains (`out_proj.base_layer.weight`)."""
    layer, found, _ = name.rpartition(".base_layer.")
    return bool(found) and any(other.startswith(f"{layer}.") for other in trained)


def _live_values(module: nn.Module, report: Report) -> tuple[TensorValues, ...]:
    from headscope.model.values import live_values

    held = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))
    live = [item.name for item in report.head.tensors if item.live] if report.head else []
    measured = (live_values(name, held[name]) for name in live if name in held)
    return tuple(value for value in measured if value is not None)
