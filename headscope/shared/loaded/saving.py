"""A save held against the live model that it was made of.

Which tensors are those of the head is known from one trace, made when training starts: nothing is traced at a save.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headscope.core.facts import Gap, ParameterStatus, TensorHeader
from headscope.core.facts.stored.checkpoint import LABEL_MAPS
from headscope.core.facts.stored.weights import NEW_AT_LOAD
from headscope.core.model.classes.labels import placeholders
from headscope.core.model.loading.adapters import modules_to_save
from headscope.core.model.quiet import quiet
from headscope.core.source.live.live_tensors import is_of_transformers
from headscope.core.source.live.module import Unwrapped
from headscope.core.source.stored_tensors import StoredFiles
from headscope.core.upstream.peft import key_in_adapter, layer_of, plain_name, state_of_adapter
from headscope.core.upstream.torch import on_meta
from headscope.errors import HeadscopeError
from headscope.shared.loaded.facts import (
    ModelComparison,
    SavedModel,
    Scope,
    TensorCheck,
    TensorStatus,
)
from headscope.shared.loaded.head_memory import HeadMemory, digest_of, why_not_here
from headscope.shared.loaded.saved_place import read_save
from headscope.shared.loaded.saved_tensors import MAY_BE_MERGED, SavedTensors
from headscope.shared.loaded.tensor_checks import against_saved, open_gaps, unchecked


def compare_with_save(
    module: nn.Module, path: Path, memory: HeadMemory, *, steps_behind: int = 0, head_only: bool = False
) -> ModelComparison:
    """Compares `module` with what a save wrote to a folder or file.

    With `head_only`, the tensors outside the head are looked up by their names and shapes, and not read. Raises a
    HeadscopeError if the save can't be read.
    """
    # PEFT calls an unnamed adapter "default"; what isn't a text names no single adapter.
    active: Any = getattr(module, "active_adapter", "default")
    adapter = active if isinstance(active, str) else "default"
    saved = read_save(path, adapter)
    stored = SavedTensors(module, saved, memory, adapter)
    head = tuple(_check_tensor(unchecked(name, tensor), tensor, stored) for name, tensor in stored.live(memory.names))
    nothing = () if head else (Gap("the head", "headscope found no tensor of it to compare"),)
    rest = _adapter_checks(head, stored) if saved.is_adapter else _rest_checks(stored, head_only=head_only)
    checks = (*head, *rest)
    lost = [item.name for item in head if item.status in (TensorStatus.RANDOM, TensorStatus.RENAMED)]
    config = getattr(memory.unwrapped.origin, "config", None)
    found = SavedModel(
        reference=str(path),
        class_name=type(memory.unwrapped.module).__name__,
        tensors=checks,
        is_adapter=saved.is_adapter,
        modules_to_save=_modules_to_save(memory, lost) if saved.is_adapter and lost else (),
        labels=_named_labels({"id2label": getattr(config, "id2label", None)}),
        saved_labels=None if saved.config is None else _named_labels(saved.config),
        missing_shards=saved.missing_shards,
        hollow=tuple(stored.hollow),
        steps_behind=steps_behind,
        settings=stored.settings_of_adapter() if saved.is_adapter else (),
        fields=_other_fields(memory.unwrapped.origin, saved.config) if saved.config else (),
        unfilled=_made_up_by_a_load(memory.unwrapped, saved.config) if saved.config else (),
    )
    scope, gaps = _scope_of_checks(checks, stored, head_only=head_only), (*nothing, *open_gaps(checks))
    return ModelComparison(found, (), gaps, stored.bytes_read, scope)


def _scope_of_checks(checks: Sequence[TensorCheck], stored: SavedTensors, *, head_only: bool) -> Scope:
    """Counts how much was compared. An adapter is whole without what it leaves to its base checkpoint."""
    compared = sum(item.status is not TensorStatus.UNKNOWN for item in checks)
    if stored.saved.is_adapter:
        return Scope(len(checks), compared, adapter_only=True)
    every = len(stored.memory.names) + len(stored.memory.rest)
    return Scope(every, compared, head_only=head_only and bool(stored.memory.rest))


def _rest_checks(stored: SavedTensors, *, head_only: bool) -> Iterator[TensorCheck]:
    """Checks the tensors outside the head; with `head_only`, those that the save lacks or holds in another shape."""
    for name, tensor in stored.live(stored.memory.rest):
        found = stored.find(name, tensor) if head_only else None
        if found is None or found[1].shape != _whole_shape(tensor):
            yield _check_tensor(unchecked(name, tensor, is_head=False), tensor, stored)


def _adapter_checks(head: Sequence[TensorCheck], stored: SavedTensors) -> Iterator[TensorCheck]:
    """Checks what PEFT would save of the live adapter outside the head, and trained tensors that it leaves out."""
    try:
        live = state_of_adapter(stored.root, stored.adapter)
    except HeadscopeError as err:
        yield TensorCheck("the adapter", TensorStatus.UNKNOWN, (), "", reason=err.message)
        return
    names = frozenset({stored.adapter})
    known = {key_in_adapter(item.name, live, names) for item in head}
    for key, tensor in live.items():
        if key in known:
            continue
        bare, found = unchecked(key, tensor, is_head=False), stored.header_of(key)
        reason = why_not_here(stored.memory, tensor)
        if found is None:
            yield replace(bare, status=TensorStatus.RANDOM, reason="the adapter's file lacks it")
        else:
            yield replace(bare, reason=reason) if reason else against_saved(bare, tensor, *found)
    for name, tensor in stored.live(stored.memory.rest):
        is_left_out = tensor.requires_grad and key_in_adapter(name, live, names) is None
        if is_left_out and stored.find(name, tensor) is None:
            bare = unchecked(name, tensor, is_head=False)
            yield replace(bare, status=TensorStatus.RANDOM, reason="it is trained, and the adapter leaves it out")


def _check_tensor(bare: TensorCheck, tensor: torch.Tensor, stored: SavedTensors) -> TensorCheck:
    """Checks what a save holds of one tensor of the model."""
    name = bare.name
    found = stored.find(name, tensor)
    if found is not None and 0 in found[1].shape and 0 not in _whole_shape(tensor):
        stored.hollow.append(found[1].key)
        reason = "the save holds a placeholder without elements for it"
        return replace(bare, status=TensorStatus.PLACEHOLDER, keys=(found[1].key,), reason=reason)
    try:
        own = stored.numbers(name, tensor)
    except HeadscopeError as err:
        return replace(bare, reason=err.message)
    reason = why_not_here(stored.memory, own)
    if reason:
        return _check_by_names(replace(bare, reason=reason), tensor, found, stored)
    if found is None:
        return _check_unnamed(bare, tensor, stored)
    compared = against_saved(bare, own, *found)
    is_wrapped = ".base_layer." in name and not stored.saved.is_adapter
    return stored.as_merged(compared, *found) if is_wrapped else compared


def _check_by_names(
    open_check: TensorCheck, tensor: torch.Tensor, found: tuple[StoredFiles, TensorHeader] | None, stored: SavedTensors
) -> TensorCheck:
    """Checks a tensor whose values this process does not hold, by names and shapes alone."""
    shape = _whole_shape(tensor)
    if found is not None or stored.saved.is_adapter or stored.why_open(open_check.name, tensor):
        return open_check
    if open_check.name in stored.of_adapter or stored.may_be_elsewhere(open_check.name, tensor, shape):
        return open_check
    return replace(open_check, status=TensorStatus.RANDOM, reason="the save holds nothing for it")


def _check_unnamed(bare: TensorCheck, tensor: torch.Tensor, stored: SavedTensors) -> TensorCheck:
    """Checks a tensor of the model for which a save holds no key of its name."""
    if stored.saved.is_adapter:
        return _check_left_to_base(bare, tensor, stored)
    if bare.name in stored.of_adapter:
        return _check_in_merged_layer(bare, stored)
    return stored.find_by_loader(bare, tensor) or _check_not_found(bare, tensor, stored)


def _check_in_merged_layer(bare: TensorCheck, stored: SavedTensors) -> TensorCheck:
    """Checks a tensor of an adapter, in a save that holds the layer which it changes."""
    layer = layer_of(stored.memory.unwrapped.module, bare.name)
    match stored.layers.get(layer):
        case TensorStatus.MERGED:
            return replace(bare, status=TensorStatus.MERGED, reason=f"the save holds {layer} with it merged")
        case TensorStatus.RANDOM:
            return replace(bare, status=TensorStatus.RANDOM, reason=f"the save holds {layer} without it")
        case TensorStatus.EQUAL | TensorStatus.CAST:
            return replace(bare, status=TensorStatus.MERGED, reason=f"it does not change {layer}")
        case _:
            return replace(bare, reason=MAY_BE_MERGED)


def _whole_shape(tensor: torch.Tensor) -> tuple[int, ...]:
    """Gives the whole shape of a live tensor, of which ZeRO-3 leaves a process nothing."""
    whole = getattr(tensor, "ds_shape", None)
    return tuple(whole) if whole is not None else tuple(tensor.shape)


def _check_not_found(bare: TensorCheck, tensor: torch.Tensor, stored: SavedTensors) -> TensorCheck:
    reason = stored.why_open(bare.name, tensor)
    if reason:
        return replace(bare, reason=reason)
    try:
        other = stored.find_renamed(tensor)
    except HeadscopeError as err:
        return replace(bare, reason=err.message)
    if other is not None:
        return replace(bare, status=TensorStatus.RENAMED, keys=(other.key,), reason=f"its values are under {other.key}")
    return replace(bare, status=TensorStatus.RANDOM, reason="the save holds nothing for it")


def _check_left_to_base(bare: TensorCheck, tensor: torch.Tensor, stored: SavedTensors) -> TensorCheck:
    """Checks a tensor of the head that an adapter does not hold: the base checkpoint has to give its values."""
    memory = stored.memory
    given = memory.given.get(bare.name, ParameterStatus.UNKNOWN)
    before = memory.digests.get(bare.name)
    if before is not None and digest_of(tensor)[0] != before:
        return replace(bare, status=TensorStatus.RANDOM, reason="training changed it")
    if given in NEW_AT_LOAD:
        return replace(bare, status=TensorStatus.RANDOM, reason="the base checkpoint does not give it")
    if given is ParameterStatus.CHANGED:
        return replace(bare, status=TensorStatus.RANDOM, reason="the base checkpoint gives other values")
    if given is ParameterStatus.UNKNOWN and tensor.requires_grad:
        return replace(bare, status=TensorStatus.RANDOM, reason="it is trained")
    if given is ParameterStatus.UNKNOWN:
        return replace(bare, reason="the adapter leaves it to a base checkpoint that headscope could not compare")
    return replace(bare, status=TensorStatus.BASE, reason="the base checkpoint gives it")


def _modules_to_save(memory: HeadMemory, lost: Iterable[str]) -> tuple[str, ...]:
    """Finds the setting under which PEFT saves the lost tensors, with what it already saves."""
    every = [name for name, _ in memory.unwrapped.module.named_parameters(remove_duplicate=False)]
    names, head = {plain_name(name) for name in every}, {plain_name(name) for name in memory.names}
    modules = {name[:at] for name in names for at, sign in enumerate(name) if sign == "."}
    marker = ".modules_to_save."
    kept = {plain_name(name.partition(marker)[0]) for name in every if marker in name}
    return modules_to_save([plain_name(name) for name in lost], sorted(names - head), sorted(modules), sorted(kept))


_OF_A_SAVE = frozenset(
    {*LABEL_MAPS, "_name_or_path", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version"}
)
"""Fields that a save sets, and the names of classes, for which there is HS715."""


def _other_fields(origin: Any, saved: Mapping[str, Any]) -> tuple[str, ...]:
    """Lists where the saved configuration differs from that of the live model."""
    live = getattr(origin, "config", None)
    if not is_of_transformers(origin) or live is None:
        return ()
    if saved.get("model_type") != live.model_type:
        return (_field_in_words("model_type", live.model_type, saved.get("model_type")),)
    try:
        with quiet():
            read = type(live).from_dict(dict(saved)).to_dict()
    except Exception as err:  # whatever a class makes of the fields
        return (f"the saved fields can't be read: {type(err).__name__}: {err}",)
    own = live.to_dict()
    if read.get("problem_type") is None:
        own["problem_type"] = read["problem_type"] = None  # a forward with labels sets it in memory
    both = sorted((own.keys() | read.keys()) - _OF_A_SAVE)
    return tuple(
        _field_in_words(name, own.get(name), read.get(name))
        for name in both
        if _field_as_json(own.get(name)) != _field_as_json(read.get(name))
    )


def _field_in_words(name: str, live: object, saved: object) -> str:
    return f"{name} is {live!r} in memory and {saved!r} in the save"


def _field_as_json(value: object) -> object:
    """Converts a field as JSON would; drops what a save sets from nested configurations."""
    found = json.loads(json.dumps(value, default=str))
    return {name: item for name, item in found.items() if name not in _OF_A_SAVE} if isinstance(found, dict) else found


def _made_up_by_a_load(unwrapped: Unwrapped, saved: Mapping[str, Any]) -> tuple[str, ...]:
    """Lists the parameters of the saved configuration's model that the live model lacks: a load makes them up."""
    origin: Any = unwrapped.origin
    if not is_of_transformers(origin) or saved.get("model_type") != origin.config.model_type:
        return ()
    try:
        with quiet(), on_meta():
            fresh = type(origin)(type(origin.config).from_dict(dict(saved)))
    except Exception:  # whatever a class makes of the fields: the load says it
        return ()
    held = {plain_name(name) for name, _ in origin.named_parameters(remove_duplicate=False)}
    return tuple(name for name, _ in fresh.named_parameters() if name not in held)


def _named_labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Lists the class names of a configuration in order; () for none, and for those that Transformers invents."""
    given = config.get("id2label")
    if not isinstance(given, Mapping) or not given:
        return ()
    try:
        ordered = tuple(str(given[key]) for key in sorted(given, key=int))
    except (TypeError, ValueError):
        ordered = tuple(str(item) for item in given.values())
    return () if ordered == placeholders(len(ordered)) else ordered
