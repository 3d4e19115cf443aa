"""The gate for a model in memory on its way into training: what the load gave it, and what training will leave out."""

from __future__ import annotations

from dataclasses import replace
from itertools import starmap
from typing import TYPE_CHECKING, Any

from headscope.checks.evidence.base_numbers import live_base_numbers
from headscope.checks.evidence.run import with_run
from headscope.checks.facts import LiveFacts, Subject, TensorValues
from headscope.core.facts import Gap, GapTopic, ParameterStatus, Profile, Report
from headscope.core.facts.trial import HeadTrial
from headscope.core.source.live.live_model import LiveModel
from headscope.core.source.live.origin import LoadOrigin
from headscope.core.source.reading.configuration import config_facts
from headscope.core.source.request import ModuleRequest
from headscope.core.source.tokenizer import read_tokenizer, with_effects
from headscope.core.upstream.peft import plain_name
from headscope.shared.trial.live_trial import live_run

if TYPE_CHECKING:
    import torch
    from torch import nn


_ORIGIN = "origin"
_NAMES_NONE = "headscope doesn't know which checkpoint the model was loaded from"
_NEVER_LOADED = "the model was not loaded from a checkpoint, so headscope can't see whether its head was trained"
_SHARDED = Gap("values", "the parameters are sharded: no process holds all their values")
_NO_TOKENIZER = Gap("tokenizer", "a model in memory has no tokenizer")


def live_subject(module: nn.Module, profile: Profile, module_request: ModuleRequest, optimizer: Any = None) -> Subject:
    """Gathers everything the rules look at, for a model in memory.

    Labels, special tokens and the loss are those of the model's own configuration. The status of its weights comes from
    the checkpoint it was loaded from: `loaded_from`, or the name that `from_pretrained` leaves in the configuration.
    Where that cannot be read, the rules on weights are not determined; a model made from a configuration has no
    checkpoint, and they do not apply, except that nobody knows whether its head was trained: for inference that is not
    determined. With `loading_info`, which `from_pretrained` returns under `output_loading_info=True`, nothing is read.
    """
    from headscope.checks.evidence.tensor_values import values_of

    live_model = LiveModel(module, replace(module_request, prove=True))
    unwrapped = live_model.unwrapped
    is_whole = not unwrapped.is_sharded
    subject = Subject(
        report=live_model.own_report,
        profile=profile,
        config=config_facts(live_model.config),
        built=live_model.built,
        values=tuple(starmap(values_of, _live_tensors(live_model).items())) if is_whole else None,
        trial=_live_trial(live_model) if is_whole else None,
        numbers=live_base_numbers(unwrapped.module, live_model.own_report) if is_whole else None,
        live=_training_facts(live_model, optimizer),
        inapplicable=(_NO_TOKENIZER,),
    )
    if module_request.loading_info is not None:
        found = replace(subject, report=live_model.report)
    else:
        found = _with_statuses(subject, live_model)
    found = with_run(found, live_run(live_model, module), is_wanted=False)
    found = replace(found, health=live_model.health)
    return found if is_whole else replace(found, unknown=(*found.unknown, _SHARDED))


def _with_statuses(subject: Subject, live_model: LiveModel) -> Subject:
    """Adds what the checkpoint gave, if one is known."""
    match live_model.origin:
        case LoadOrigin() as origin:
            return _compare_with_origin(subject, live_model, origin)
        case Gap() as gap:
            return replace(subject, unknown=(gap, Gap(_ORIGIN, gap.reason)))
        case _:
            none = (Gap(GapTopic.CHECKPOINT, _NAMES_NONE), _NO_TOKENIZER)
            # For training it does not matter what gave the weights.
            if subject.profile is Profile.TRAINING:
                return replace(subject, inapplicable=(*none, Gap(_ORIGIN, _NAMES_NONE)))
            return replace(subject, inapplicable=none, unknown=(Gap(_ORIGIN, _NEVER_LOADED),))


def _compare_with_origin(subject: Subject, live_model: LiveModel, origin: LoadOrigin) -> Subject:
    """Adds the weights' statuses and the tokenizer of the checkpoint."""
    report, scorer = live_model.report, live_model.unwrapped.scorer
    read = read_tokenizer(origin.checkpoint, report)
    tokenizer = read.found
    if tokenizer is not None:
        if scorer is not None and scorer.padding_side:
            tokenizer = replace(tokenizer, padding_side=scorer.padding_side)
        tokenizer = with_effects(tokenizer, subject.built, origin.checkpoint)
    return replace(
        subject,
        report=report,
        values=None if subject.values is None else _with_stored_dtypes(subject.values, report, origin),
        live=replace(subject.live, resized=live_model.resized) if subject.live else None,
        tokenizer=tokenizer,
        unknown=read.unknown,
        inapplicable=read.inapplicable,
    )


def _training_facts(live_model: LiveModel, optimizer: Any) -> LiveFacts:
    """Finds the parameters of the head that training will leave as they are."""
    report = live_model.own_report
    live = [item.name for item in report.head.parameters if item.live] if report.head else []
    held = live_model.unwrapped.held
    trained = {name for name in live if name in held and held[name].requires_grad}
    # A weight of a layer that an adapter trains (`out_proj.base_layer.weight`) is frozen on purpose.
    layers = {name: f"{name.rpartition('.base_layer.')[0]}." for name in live if ".base_layer." in name}
    moving = trained | {name for name, layer in layers.items() if any(other.startswith(layer) for other in trained)}
    frozen = tuple(name for name in live if name in held and name not in moving)
    to_save = _modules_to_save(live_model, frozen) if live_model.held_parameters.of_adapter else ()
    if optimizer is None:
        return LiveFacts(frozen, modules_to_save=to_save)
    # By identity: an optimizer has no names of parameters.
    optimized = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    left_out = tuple(name for name in live if name in trained and id(held[name]) not in optimized)
    return LiveFacts(frozen, left_out, to_save)


def _modules_to_save(live_model: LiveModel, frozen: tuple[str, ...]) -> tuple[str, ...]:
    """Finds the setting under which PEFT trains the frozen weights, with what it already names."""
    from headscope.core.model.loading.adapters import modules_to_save

    report = live_model.own_report
    own_names = [item.name for item in report.weights.parameters]
    names = set(map(plain_name, own_names))
    head = {plain_name(item.name) for item in report.head.parameters} if report.head else set()
    modules = {name[:at] for name in names for at, sign in enumerate(name) if sign == "."}
    saved = [name.partition(".modules_to_save.") for name in own_names]
    kept = {plain_name(module) for module, mark, _ in saved if mark}
    lost = [plain_name(name) for name in frozen]
    return modules_to_save(lost, sorted(names - head), sorted(modules), sorted(kept))


def _with_stored_dtypes(
    values: tuple[TensorValues, ...], report: Report, origin: LoadOrigin
) -> tuple[TensorValues, ...]:
    """Adds the stored dtype to those values that the checkpoint stores as whole numbers."""
    stored = {header.key: header.dtype for header in origin.checkpoint.manifest.tensors}
    loaded = {
        item.name: stored.get(item.checkpoint_keys[0], "")
        for item in (report.head.tensors if report.head else ())
        if item.status is ParameterStatus.LOADED and len(item.checkpoint_keys) == 1 and item.quantized is None
        if "float" in item.dtype
    }
    whole = {name: dtype for name, dtype in loaded.items() if dtype.startswith(("int", "uint", "bool"))}
    return tuple(replace(item, whole=whole.get(item.name, "")) for item in values)


def _live_tensors(live_model: LiveModel) -> dict[str, torch.Tensor]:
    """Collects the tensors of the head in memory that the scores depend on; leaves out those without values."""
    module, head = live_model.unwrapped.module, live_model.own_report.head
    held = {
        **dict(module.named_buffers(remove_duplicate=False)),
        **dict(module.named_parameters(remove_duplicate=False)),
    }
    live = [item.name for item in head.tensors if item.live] if head else []
    return {name: held[name].detach() for name in live if name in held and not held[name].is_meta}


def _live_trial(live_model: LiveModel) -> HeadTrial:
    """Tries the head with the numbers that it has in memory."""
    from headscope.shared.trial.head_trial import try_head

    held, model = _live_tensors(live_model), live_model.own_report.model
    lost = [name for name in live_model.program.tensors if name not in held]
    found = try_head(
        live_model.program, {name: tensor.cpu() for name, tensor in held.items()}, model.task, model.problem_type
    )
    return replace(found, unread=tuple(f"{name} has no values in this process" for name in lost))
