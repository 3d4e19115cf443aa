"""A save held against the head of the live model that it was made of.

Only the tensors of the head are read. Which these are is known from one trace, made when training starts: nothing is
traced at a save.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope.errors import HeadscopeError
from headscope.examination.head_memory import HeadMemory, bytes_of, digest_of, why_not_here
from headscope.examination.module import Unwrapped
from headscope.examination.stored_head import MAY_BE_MERGED, StoredHead, against, unchecked
from headscope.examination.verification import Place, open_gaps
from headscope.facts import ParameterStatus, TensorHeader, Unavailable
from headscope.facts.verification import Compared, HeadMove, LoadedModel, SavedModel, TensorCheck, TensorStatus
from headscope.facts.weights import NEW_AT_LOAD
from headscope.upstream.peft import layer_of, plain_name

if TYPE_CHECKING:
    import torch
    from torch import nn

_DTYPES = {"torch.float32": "F32", "torch.float16": "F16", "torch.bfloat16": "BF16", "torch.float64": "F64"}
"""The usual dtypes of a head, as safetensors names them."""
_LONGEST_HEADER = 20_000_000


def compare_with_save(
    module: nn.Module, path: Path, memory: HeadMemory, *, steps_behind: int = 0, moves: tuple[HeadMove, ...] = ()
) -> tuple[SavedModel, Compared]:
    """The head of `module` against what a save wrote to a folder or file, and what stayed open.

    Raises a HeadscopeError where the save can't be read.
    """
    from headscope.checkpoints import read_save

    quick = _all_equal(path, memory)
    if quick is not None:
        return quick
    saved = read_save(path, _adapter_of(module))
    stored = StoredHead(module, saved, memory)
    checks = tuple(_checked(name, tensor, stored) for name, tensor in stored.wanted())
    nothing = () if checks else (Unavailable("the head", "headscope found no tensor of it to compare"),)
    lost = [item.name for item in checks if item.status in (TensorStatus.RANDOM, TensorStatus.RENAMED)]
    found = SavedModel(
        reference=str(path),
        class_name=type(memory.unwrapped.module).__name__,
        tensors=checks,
        is_adapter=saved.is_adapter,
        modules_to_save=_modules_to_save(memory, lost) if saved.is_adapter and lost else (),
        labels=_named_labels(_config_of(memory.unwrapped)),
        saved_labels=None if saved.config is None else _named_labels(saved.config),
        missing_shards=saved.missing_shards,
        hollow=tuple(stored.hollow),
        steps_behind=steps_behind,
        moves=moves,
    )
    loaded = LoadedModel(found.reference, found.class_name, checks)
    return found, Compared(loaded, tuple(stored.notes), (*nothing, *open_gaps(checks)), stored.bytes_read)


def _all_equal(path: Path, memory: HeadMemory) -> tuple[SavedModel, Compared] | None:
    """The result for a whole save in one file that holds just what it should; None for anything else.

    It is the usual save, and this is many times faster: nothing is looked up but the keys of the head.
    """
    file, unwrapped = path / "model.safetensors", memory.unwrapped
    if set(memory.keys) != set(memory.names) or not memory.names or unwrapped.is_sharded or not file.is_file():
        return None
    try:
        config = json.loads((path / "config.json").read_bytes())
        tensors = {name: _tensor_at(unwrapped.module, name) for name in memory.names}
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            header = opened.read(min(length, _LONGEST_HEADER)).decode()
            for name, tensor in tensors.items():
                entry = _entry_in(header, memory.keys[name])
                begin, end = entry["data_offsets"]
                opened.seek(8 + length + begin)
                is_same = entry["dtype"] == _DTYPES.get(str(tensor.dtype)) and entry["shape"] == list(tensor.shape)
                if not is_same or bytes_of(tensor).tobytes() != opened.read(end - begin):
                    return None
    except Exception:  # whatever is wrong with it, the whole comparison says what
        return None
    labels = _named_labels(_config_of(unwrapped))
    if _named_labels(config) != labels or any(why_not_here(memory, item) for item in tensors.values()):
        return None
    checks = tuple(
        replace(unchecked(name, item), status=TensorStatus.EQUAL, max_error=0.0, keys=(memory.keys[name],))
        for name, item in tensors.items()
    )
    name = type(unwrapped.module).__name__
    found = SavedModel(str(path), name, checks, labels=labels, saved_labels=labels)
    size = sum(item.numel() * item.element_size() for item in tensors.values())
    return found, Compared(LoadedModel(found.reference, name, checks), bytes_read=size)


def _entry_in(header: str, key: str) -> dict[str, Any]:
    """What the header of a safetensors file says of one tensor, without a look at the others. Raises ValueError."""
    sign = f"{json.dumps(key, ensure_ascii=False)}:"
    found: dict[str, Any] = json.JSONDecoder().raw_decode(header, header.index(sign) + len(sign))[0]
    return found


def _tensor_at(module: nn.Module, name: str) -> torch.Tensor:
    path, _, last = name.rpartition(".")
    tensor: torch.Tensor = getattr(module.get_submodule(path), last)
    return tensor.detach() if type(tensor).__name__ in ("Parameter", "Tensor", "Buffer") else tensor


def _adapter_of(module: Any) -> str:
    """The name of the adapter that PEFT has active."""
    active = getattr(module, "active_adapter", "default")
    return active if isinstance(active, str) else "default"


def _checked(name: str, tensor: torch.Tensor, stored: StoredHead) -> TensorCheck:
    """What a save holds of one tensor of the head."""
    bare = unchecked(name, tensor)
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
        return _by_names(replace(bare, reason=reason), tensor, found, stored)
    if found is None:
        return _without_its_name(bare, tensor, stored)
    compared = against(bare, own, *found)
    is_wrapped = ".base_layer." in name and not stored.saved.is_adapter
    return stored.as_merged(compared, *found) if is_wrapped else compared


def _by_names(
    open_check: TensorCheck, tensor: torch.Tensor, found: tuple[Place, TensorHeader] | None, stored: StoredHead
) -> TensorCheck:
    """What names and shapes alone tell of a tensor whose numbers this process does not hold."""
    shape = _whole_shape(tensor)
    if found is not None or stored.saved.is_adapter or stored.why_open(open_check.name, tensor):
        return open_check
    if open_check.name in stored.of_adapter or stored.may_be_elsewhere(open_check.name, tensor, shape):
        return open_check
    return replace(open_check, status=TensorStatus.RANDOM, reason="the save holds nothing for it")


def _without_its_name(bare: TensorCheck, tensor: torch.Tensor, stored: StoredHead) -> TensorCheck:
    """A tensor of the head for which a save holds no key of its name."""
    if stored.saved.is_adapter:
        return _not_in_adapter(bare, tensor, stored)
    if bare.name in stored.of_adapter:
        return _of_merged_layer(bare, stored)
    return stored.find_by_loader(bare.name, tensor) or _not_found(bare, bare.name, tensor, stored)


def _of_merged_layer(bare: TensorCheck, stored: StoredHead) -> TensorCheck:
    """A tensor of an adapter, in a save that holds the layer which it changes."""
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
    """The whole shape of a live tensor, of which ZeRO-3 leaves a process nothing."""
    whole = getattr(tensor, "ds_shape", None)
    return tuple(whole) if whole is not None else tuple(tensor.shape)


def _not_found(bare: TensorCheck, name: str, tensor: torch.Tensor, stored: StoredHead) -> TensorCheck:
    reason = stored.why_open(name, tensor)
    if reason:
        return replace(bare, reason=reason)
    try:
        other = stored.find_renamed(tensor)
    except HeadscopeError as err:
        return replace(bare, reason=err.message)
    if other is not None:
        return replace(
            bare, status=TensorStatus.RENAMED, keys=(other.key,), reason=f"its numbers are under {other.key}"
        )
    return replace(bare, status=TensorStatus.RANDOM, reason="the save holds nothing for it")


def _not_in_adapter(bare: TensorCheck, tensor: torch.Tensor, stored: StoredHead) -> TensorCheck:
    """A tensor of the head that an adapter does not hold: all is well only if the base checkpoint gives its numbers."""
    memory = stored.memory
    given = memory.given.get(bare.name, ParameterStatus.UNKNOWN)
    before = memory.digests.get(bare.name)
    if before is not None and digest_of(tensor)[0] != before:
        return replace(bare, status=TensorStatus.RANDOM, reason="training changed it")
    if given in NEW_AT_LOAD:
        return replace(bare, status=TensorStatus.RANDOM, reason="the base checkpoint does not give it")
    if given is ParameterStatus.CHANGED:
        return replace(bare, status=TensorStatus.RANDOM, reason="the base checkpoint gives other numbers")
    if given is ParameterStatus.UNKNOWN and tensor.requires_grad:
        return replace(bare, status=TensorStatus.RANDOM, reason="it is trained")
    if given is ParameterStatus.UNKNOWN:
        return replace(bare, reason="the adapter leaves it to a base checkpoint that headscope could not compare")
    return replace(bare, status=TensorStatus.BASE, reason="the base checkpoint gives it")


def _modules_to_save(memory: HeadMemory, lost: Iterable[str]) -> tuple[str, ...]:
    """The setting under which PEFT saves the lost tensors, with what it already saves."""
    from headscope.model.adapters import modules_to_save

    every = [name for name, _ in memory.unwrapped.module.named_parameters(remove_duplicate=False)]
    names, head = {plain_name(name) for name in every}, {plain_name(name) for name in memory.names}
    modules = {name[:at] for name in names for at, sign in enumerate(name) if sign == "."}
    marker = ".modules_to_save."
    kept = {plain_name(name.partition(marker)[0]) for name in every if marker in name}
    return modules_to_save([plain_name(name) for name in lost], sorted(names - head), sorted(modules), sorted(kept))


def _config_of(unwrapped: Unwrapped) -> dict[str, Any]:
    config = getattr(unwrapped.origin, "config", None)
    return {"id2label": getattr(config, "id2label", None)}


def _named_labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The class names of a configuration in order; () for none, and for those that Transformers invents."""
    given = config.get("id2label")
    if not isinstance(given, Mapping) or not given:
        return ()
    try:
        ordered = tuple(str(given[key]) for key in sorted(given, key=int))
    except (TypeError, ValueError):
        ordered = tuple(str(item) for item in given.values())
    return () if ordered == tuple(f"LABEL_{number}" for number in range(len(ordered))) else ordered
