"""A save held against the head of the live model that it was made of, and what training did to that head.

Only the tensors of the head are read. Which these are is known from one trace, made when training starts: nothing is
traced at a save.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headscope.errors import HeadscopeError
from headscope.examination.module import Unwrapped, unwrap
from headscope.examination.reading import StoredFiles
from headscope.examination.verification import (
    Own,
    Pairing,
    Place,
    against_stored,
    is_of_transformers,
    numbers_of,
    open_gaps,
    read_offloaded,
)
from headscope.facts import ParameterStatus, Report, TensorHeader, Unavailable
from headscope.facts.verification import (
    Compared,
    HeadMove,
    LoadedModel,
    SavedModel,
    Standstill,
    TensorCheck,
    TensorStatus,
)
from headscope.facts.weights import NEW_AT_LOAD
from headscope.upstream.peft import key_in_adapter, layer_of, merged_layer, plain_name

if TYPE_CHECKING:
    import torch
    from torch import nn

    from headscope.checkpoints import Saved, SavedPart

_SHARDED = "it is sharded over processes: no process holds its whole numbers"
_PICKLED = "it is in a pickle, whose numbers headscope does not compare"
_MAY_BE_MERGED = "an adapter is on the live model, and the save may hold it merged"
_DTYPES = {"torch.float32": "F32", "torch.float16": "F16", "torch.bfloat16": "BF16", "torch.float64": "F64"}
"""The usual dtypes of a head, as safetensors names them."""
_LONGEST_HEADER = 20_000_000
_ROUNDING = 8
"""How many times the rounding step of its dtype a weight may be off that was merged elsewhere."""
_PIECE = 16_000_000
"""How many elements are hashed at a time."""


@dataclass(frozen=True, slots=True)
class HeadMemory:
    """The head of a model at one time, without copies.

    `names` are those of its tensors in `unwrapped.module`, `given` is what the load did to each. `keys` are the names
    that `save_pretrained` gives them. `digests` and `norms` are those of the tensors whose numbers this process holds.
    """

    unwrapped: Unwrapped
    names: tuple[str, ...]
    given: Mapping[str, ParameterStatus] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    norms: Mapping[str, float] = field(default_factory=dict)


def remember_head(module: nn.Module, report: Report, *, watches: bool = True) -> HeadMemory | None:
    """The head of `module` as it is now, whose trace a report holds; None for a report without one.

    With `watches`, the numbers are kept too, to see later whether they changed.
    """
    if report.head is None:
        return None
    unwrapped = unwrap(module)
    persistent = unwrapped.module.state_dict(keep_vars=True)
    live = {item.name: item.status for item in report.head.tensors if item.live and item.name in persistent}
    names = tuple(dict.fromkeys((*live, *_beside(unwrapped.module, live))))
    memory = HeadMemory(unwrapped, names, live, _keys_of(unwrapped, names))
    if not watches:
        return memory
    held = _held(unwrapped)
    taken = {name: _digest(held[name]) for name in memory.names if name in held and not _why_not(memory, held[name])}
    return replace(
        memory,
        digests={name: digest for name, (digest, _) in taken.items()},
        norms={name: norm for name, (_, norm) in taken.items()},
    )


def _keys_of(unwrapped: Unwrapped, names: Iterable[str]) -> dict[str, str]:
    """The names that `save_pretrained` gives to tensors of the model of Transformers; none for those beside it."""
    if not is_of_transformers(unwrapped.origin):
        return {}
    prefix = unwrapped.prefix
    return {name: plain_name(name.removeprefix(prefix)) for name in names if name.startswith(prefix)}


def _beside(module: nn.Module, names: Iterable[str]) -> list[str]:
    """The tensors that PEFT adds to the layers of some tensors."""
    layers = tuple(f"{name.partition('.base_layer.')[0]}." for name in names if ".base_layer." in name)
    return sorted(name for name in _added_by_peft(module) if name.startswith(layers)) if layers else []


def every_tensor(module: nn.Module) -> HeadMemory:
    """All tensors that a save of `module` has to hold, for a model whose head is not known."""
    unwrapped = unwrap(module)
    return HeadMemory(unwrapped, tuple(dict.fromkeys(unwrapped.module.state_dict(keep_vars=True))))


def _held(unwrapped: Unwrapped) -> dict[str, torch.Tensor]:
    """The tensors of a model by all their names, as they are now."""
    module = unwrapped.module
    found = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    return dict(found)


def _why_not(memory: HeadMemory, tensor: torch.Tensor) -> str:
    """Why this process can't compare a live tensor; "" where it can."""
    from headscope.model.numbers import why_not_comparable

    if memory.unwrapped.is_sharded or not tensor.numel():
        return _SHARDED
    return why_not_comparable(tensor)


def _wide(numbers: torch.Tensor) -> torch.dtype:
    """The dtype in which a norm is computed: complex and whole numbers have their own."""
    import torch

    return torch.complex128 if numbers.is_complex() else torch.float64


def _digest(tensor: torch.Tensor) -> tuple[str, float]:
    """A digest of a tensor's bytes, and its Euclidean norm."""
    import torch

    found, squares = hashlib.blake2b(digest_size=16), 0.0
    flat = tensor.detach().reshape(-1)
    for begin in range(0, flat.numel(), _PIECE):
        piece = flat[begin : begin + _PIECE].cpu().contiguous()
        found.update(_bytes_of(piece))
        squares += float(torch.linalg.vector_norm(piece.to(_wide(piece)))) ** 2
    return found.hexdigest(), squares**0.5


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
    stored = _Stored(module, saved, memory)
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
                if not is_same or _bytes_of(tensor).tobytes() != opened.read(end - begin):
                    return None
    except Exception:  # whatever is wrong with it, the whole comparison says what
        return None
    labels = _named_labels(_config_of(unwrapped))
    if _named_labels(config) != labels or any(_why_not(memory, item) for item in tensors.values()):
        return None
    checks = tuple(
        replace(_bare(name, item), status=TensorStatus.EQUAL, max_error=0.0, keys=(memory.keys[name],))
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


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor in memory, without a copy where it is in one piece."""
    import torch

    data: memoryview = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
    return data


def _tensor_at(module: nn.Module, name: str) -> torch.Tensor:
    path, _, last = name.rpartition(".")
    tensor: torch.Tensor = getattr(module.get_submodule(path), last)
    return tensor.detach() if type(tensor).__name__ in ("Parameter", "Tensor", "Buffer") else tensor


def _adapter_of(module: Any) -> str:
    """The name of the adapter that PEFT has active."""
    active = getattr(module, "active_adapter", "default")
    return active if isinstance(active, str) else "default"


class _Stored:
    """The tensors of a save, and under which of its keys the loader finds those of the live head."""

    def __init__(self, module: nn.Module, saved: Saved, memory: HeadMemory) -> None:
        self.saved, self.memory = saved, memory
        self.notes: list[str] = []
        self.hollow: list[str] = []
        self.layers: dict[str, TensorStatus] = {}
        self._root = module
        self._held = _held(memory.unwrapped)
        self._places = [_place_of(part) for part in saved.parts]
        self._headers = [{header.key: header for header in part.manifest.tensors} for part in saved.parts]

    def wanted(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors of the head that a save has to hold, as they are now."""
        return ((name, self._held[name]) for name in self.memory.names if name in self._held)

    def numbers(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """A live tensor with its numbers, which may be offloaded. Raises Unsupported where they are gone."""
        offloaded = self.memory.unwrapped.offloaded.get(name)
        return tensor if offloaded is None else read_offloaded(offloaded)

    @property
    def bytes_read(self) -> int:
        """The stored bytes that were compared."""
        return sum(place.bytes.bytes_read for place in self._places)

    def find(self, name: str, tensor: torch.Tensor) -> tuple[Place, TensorHeader] | None:
        """Where the loader finds a tensor, by its name alone; whatever its shape there."""
        if self.saved.is_adapter:
            key = key_in_adapter(name, self._headers[0])
            return None if key is None else (self._places[0], self._headers[0][key])
        del name  # under which names a loader knows it depends on the save
        for part, place, headers in zip(self.saved.parts, self._places, self._headers, strict=True):
            for other in self._aliases.get(id(tensor), ()):
                key = self._key(part, other)
                if key in headers:
                    return place, headers[key]
        return None

    def _key(self, part: SavedPart, name: str) -> str:
        """What a part of a save calls a tensor of the live model; "" for a tensor of another part."""
        if part.prefix is not None:
            return name.removeprefix(part.prefix) if name.startswith(part.prefix) else ""
        return name

    @cached_property
    def _aliases(self) -> Mapping[int, tuple[str, ...]]:
        """The names that a loader of this kind of save knows each live tensor by.

        `from_pretrained` knows those of the model of Transformers; what restores a training knows those of the module
        that was trained.
        """
        unwrapped = self.memory.unwrapped
        found: dict[int, dict[str, None]] = {}
        inside = {id(item) for item in unwrapped.origin.state_dict(keep_vars=True).values()}
        by_transformers = self.saved.config is not None and is_of_transformers(unwrapped.origin)
        _add_names(found, unwrapped.origin)
        for module in (unwrapped.module, self._root):
            if not hasattr(module, "named_parameters"):
                continue
            names: dict[int, dict[str, None]] = {}
            _add_names(names, module)
            for key, known in names.items():
                if not (by_transformers and key in inside):
                    found.setdefault(key, {}).update(known)
        return {key: tuple(names) for key, names in found.items()}

    @cached_property
    def _unclaimed(self) -> list[tuple[Place, TensorHeader]]:
        """The stored tensors that no live tensor's name finds."""
        every = {
            self._key(part, name) for part in self.saved.parts for names in self._aliases.values() for name in names
        }
        taken = every | {f"base_model.model.{name}" for name in every}
        pairs = zip(self._places, self._headers, strict=True)
        return [(place, header) for place, headers in pairs for key, header in headers.items() if key not in taken]

    def as_merged(self, compared: TensorCheck, place: Place, header: TensorHeader) -> TensorCheck:
        """What a tensor of a layer is that an adapter changes: the save may hold it merged, as PEFT merges it."""
        layer, _, own = compared.name.rpartition(".base_layer.")
        inside = self._merged(layer)
        merged = dict(inside.named_parameters()).get(own) if inside is not None else None
        is_other = compared.status is TensorStatus.DIFFERENT
        if merged is None:
            self.layers[layer] = TensorStatus.UNKNOWN
            return replace(compared, status=TensorStatus.UNKNOWN, reason=_MAY_BE_MERGED) if is_other else compared
        if _are_same(merged, self._held[compared.name]):
            self.layers.setdefault(layer, compared.status)
            return compared
        found = _against(_bare(compared.name, merged), merged, place, header)
        if found.status is not TensorStatus.DIFFERENT:
            self.layers[layer] = TensorStatus.MERGED
            return replace(found, status=TensorStatus.MERGED) if found.status is TensorStatus.EQUAL else found
        if is_other and _is_rounded(found, merged, header):  # merged after it was rounded, or on another device
            self.layers[layer] = TensorStatus.UNKNOWN
            return replace(compared, status=TensorStatus.UNKNOWN, reason=_MAY_BE_MERGED)
        self.layers[layer] = TensorStatus.DIFFERENT if is_other else TensorStatus.RANDOM
        return compared

    def _merged(self, path: str) -> nn.Module | None:
        """The layer inside one of PEFT's after a merge; None where PEFT can't merge it."""
        import torch

        try:
            with torch.no_grad():
                found: nn.Module = merged_layer(self.memory.unwrapped.module.get_submodule(path))
        except Exception:  # whatever PEFT raises for a method or a packed layer
            return None
        return found

    @cached_property
    def of_adapter(self) -> frozenset[str]:
        """The tensors that PEFT adds to layers."""
        is_adapted = any(".base_layer." in name for name in self._held)
        return _added_by_peft(self.memory.unwrapped.module) if is_adapted else frozenset()

    def find_by_loader(self, name: str, tensor: torch.Tensor) -> TensorCheck | None:
        """What the loader of Transformers makes of other keys, as it does for old and for packed weights."""
        unwrapped = self.memory.unwrapped
        if self.saved.is_adapter or not is_of_transformers(unwrapped.origin) or not self.saved.parts:
            return None
        own = name.removeprefix(unwrapped.prefix)
        try:
            pair = self._pairing.pair(Own(own, tensor, False, True))
            return None if pair is None else against_stored(_bare(name, tensor), tensor, pair, self._pairing)
        except HeadscopeError:
            return None

    def may_be_elsewhere(self, name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> bool:
        """Whether a save may hold a tensor under another key, as far as names and shapes tell."""
        if any(header.shape == shape for _, header in self._unclaimed):
            return True
        unwrapped = self.memory.unwrapped
        if not is_of_transformers(unwrapped.origin) or not self.saved.parts:
            return False
        try:
            return self._pairing.pair(Own(name.removeprefix(unwrapped.prefix), tensor, False, True)) is not None
        except HeadscopeError:
            return True

    @cached_property
    def _pairing(self) -> Pairing:
        origin: Any = self.memory.unwrapped.origin
        return Pairing(origin, self.saved.parts[0].manifest, self._places[:1])

    def find_renamed(self, tensor: torch.Tensor) -> TensorHeader | None:
        """A stored tensor with the numbers of a live one, under a key that nothing in the model is called."""
        from headscope.model.numbers import compare

        for place, header in self._unclaimed:
            if header.shape == tuple(tensor.shape) and header.shape:
                found = compare(tensor, numbers_of(place, header))
                if found.equal or found.cast:
                    return header
        return None

    def why_open(self, name: str, tensor: torch.Tensor) -> str:
        """Why nothing can be said of a tensor that was not found; "" where it is not in the save."""
        if self.saved.state:
            return f"the save can't be read: {self.saved.state}"
        missing = set(self.saved.missing_shards)
        shard_of = dict(self.saved.shard_of)
        keys = (name, *self._aliases.get(id(tensor), ()))
        shard = next((shard_of[key] for key in keys if shard_of.get(key) in missing), "")
        if shard:
            return f"its shard {shard} is missing"
        is_outside = not name.startswith(self.memory.unwrapped.prefix or "\0")
        return _PICKLED if self.saved.pickled_head and is_outside else ""


def _add_names(found: dict[int, dict[str, None]], module: nn.Module) -> None:
    """The names of a module's tensors by their ids, with and without what wrappers put into them."""
    items = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    for name, tensor in items:
        found.setdefault(id(tensor), {}).update({name: None, plain_name(name): None})


def _place_of(part: SavedPart) -> Place:
    from headscope.checkpoints import TensorBytes

    return Place(StoredFiles(part.files, part.manifest), TensorBytes(part.files))


def _bare(name: str, tensor: torch.Tensor) -> TensorCheck:
    return TensorCheck(
        name=name,
        status=TensorStatus.UNKNOWN,
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        is_head=True,
    )


def _checked(name: str, tensor: torch.Tensor, stored: _Stored) -> TensorCheck:
    """What a save holds of one tensor of the head."""
    bare = _bare(name, tensor)
    found = stored.find(name, tensor)
    if found is not None and 0 in found[1].shape and 0 not in _whole_shape(tensor):
        stored.hollow.append(found[1].key)
        reason = "the save holds a placeholder without elements for it"
        return replace(bare, status=TensorStatus.PLACEHOLDER, keys=(found[1].key,), reason=reason)
    try:
        own = stored.numbers(name, tensor)
    except HeadscopeError as err:
        return replace(bare, reason=err.message)
    reason = _why_not(stored.memory, own)
    if reason:
        return _by_names(replace(bare, reason=reason), tensor, found, stored)
    if found is None:
        return _without_its_name(bare, tensor, stored)
    compared = _against(bare, own, *found)
    is_wrapped = ".base_layer." in name and not stored.saved.is_adapter
    return stored.as_merged(compared, *found) if is_wrapped else compared


def _by_names(
    open_check: TensorCheck, tensor: torch.Tensor, found: tuple[Place, TensorHeader] | None, stored: _Stored
) -> TensorCheck:
    """What names and shapes alone tell of a tensor whose numbers this process does not hold."""
    shape = _whole_shape(tensor)
    if found is not None or stored.saved.is_adapter or stored.why_open(open_check.name, tensor):
        return open_check
    if open_check.name in stored.of_adapter or stored.may_be_elsewhere(open_check.name, tensor, shape):
        return open_check
    return replace(open_check, status=TensorStatus.RANDOM, reason="the save holds nothing for it")


def _without_its_name(bare: TensorCheck, tensor: torch.Tensor, stored: _Stored) -> TensorCheck:
    """A tensor of the head for which a save holds no key of its name."""
    if stored.saved.is_adapter:
        return _not_in_adapter(bare, tensor, stored)
    if bare.name in stored.of_adapter:
        return _of_merged_layer(bare, stored)
    return stored.find_by_loader(bare.name, tensor) or _not_found(bare, bare.name, tensor, stored)


def _of_merged_layer(bare: TensorCheck, stored: _Stored) -> TensorCheck:
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
            return replace(bare, reason=_MAY_BE_MERGED)


def _is_rounded(found: TensorCheck, merged: torch.Tensor, header: TensorHeader) -> bool:
    """Whether the stored numbers differ from the merged ones by what a sum in their dtypes may leave."""
    import torch

    stored = getattr(torch, header.dtype)
    if found.max_error is None or not stored.is_floating_point:
        return False
    step = max(torch.finfo(merged.dtype).eps, torch.finfo(stored).eps)
    return found.max_error <= _ROUNDING * step * float(merged.detach().abs().max())


def _are_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    import torch

    return torch.equal(one.detach(), other.detach())


def _whole_shape(tensor: torch.Tensor) -> tuple[int, ...]:
    """The whole shape of a live tensor, of which ZeRO-3 leaves a process nothing."""
    whole = getattr(tensor, "ds_shape", None)
    return tuple(whole) if whole is not None else tuple(tensor.shape)


def _not_found(bare: TensorCheck, name: str, tensor: torch.Tensor, stored: _Stored) -> TensorCheck:
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


def _against(bare: TensorCheck, tensor: torch.Tensor, place: Place, header: TensorHeader) -> TensorCheck:
    """A live tensor against the stored one of its name."""
    keyed = replace(bare, keys=(header.key,))
    if header.shape != bare.shape:
        shape = "x".join(map(str, header.shape)) or "one number"
        return replace(keyed, status=TensorStatus.DIFFERENT, reason=f"the save holds {shape}")
    try:
        return _compared(keyed, tensor, place, header)
    except HeadscopeError as err:
        return replace(keyed, reason=err.message)


def _compared(keyed: TensorCheck, tensor: torch.Tensor, place: Place, header: TensorHeader) -> TensorCheck:
    import torch

    from headscope.model.numbers import compare

    read = numbers_of(place, header)
    found = compare(tensor, read)
    other = "" if header.dtype == keyed.dtype else f"stored as {header.dtype}"
    if found.equal and not other:
        return replace(keyed, status=TensorStatus.EQUAL, max_error=0.0)
    is_rounded = bool(other) and compare(tensor.detach().to(getattr(torch, header.dtype)), read).equal
    if other and (found.equal or found.cast or is_rounded):
        return replace(keyed, status=TensorStatus.CAST, max_error=found.largest, reason=other)
    return replace(keyed, status=TensorStatus.DIFFERENT, max_error=found.largest, reason=other)


def _not_in_adapter(bare: TensorCheck, tensor: torch.Tensor, stored: _Stored) -> TensorCheck:
    """A tensor of the head that an adapter does not hold: all is well only if the base checkpoint gives its numbers."""
    memory = stored.memory
    given = memory.given.get(bare.name, ParameterStatus.UNKNOWN)
    before = memory.digests.get(bare.name)
    if before is not None and _digest(tensor)[0] != before:
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


def moves_since(memory: HeadMemory, optimizer: Any = None) -> tuple[HeadMove, ...]:
    """What training did to each parameter of a head since it was recorded."""
    held = dict(memory.unwrapped.module.named_parameters(remove_duplicate=False))
    known = [name for name in memory.names if name in held and name in memory.digests]
    moves = [_move(name, held[name], memory, optimizer) for name in known]
    added = _added_by_peft(memory.unwrapped.module) if any(move.still for move in moves) else frozenset()
    # One of the two matrices of LoRA begins at zero, and so the other has no gradient in the first step.
    return tuple(move for move in moves if move.still is None or move.name not in added)


def _added_by_peft(module: nn.Module) -> frozenset[str]:
    """The tensors that PEFT adds to layers, without the modules that it saves whole."""
    from headscope.model.held import held_by

    return frozenset(name for name in held_by(module).of_adapter if ".modules_to_save." not in name)


def _move(name: str, parameter: nn.Parameter, memory: HeadMemory, optimizer: Any) -> HeadMove:
    if _why_not(memory, parameter):
        return HeadMove(name, memory.norms[name], memory.norms[name], Standstill.UNKNOWN)
    digest, norm = _digest(parameter)
    still = _still(parameter, optimizer) if digest == memory.digests[name] else _decayed(parameter, optimizer)
    is_new = memory.given.get(name) in NEW_AT_LOAD
    return HeadMove(name, memory.norms[name], norm, still, is_new, parameter.dim() > 1)


def _still(parameter: nn.Parameter, optimizer: Any) -> Standstill:
    """Why an optimizer left a parameter as it was."""
    if not parameter.requires_grad:
        return Standstill.FROZEN
    if optimizer is None:
        return Standstill.UNKNOWN
    group = next((group for group in optimizer.param_groups if any(p is parameter for p in group["params"])), None)
    if group is None:
        return Standstill.LEFT_OUT
    if not group.get("initial_lr", group.get("lr", 1.0)):
        return Standstill.NO_RATE
    state = optimizer.state.get(parameter)
    if not state:
        keeps_state = any(bool(item) for item in optimizer.state.values())
        return Standstill.NO_GRADIENT if keeps_state else Standstill.UNKNOWN
    return Standstill.ZERO_GRADIENT if _saw_only_zeros(state) else Standstill.TOO_SMALL


def _decayed(parameter: nn.Parameter, optimizer: Any) -> Standstill | None:
    """Why a parameter did not learn although its numbers changed: weight decay shrinks what gets no gradient too."""
    state = optimizer.state.get(parameter) if optimizer is not None else None
    return Standstill.ZERO_GRADIENT if state and _saw_only_zeros(state) else None


def _saw_only_zeros(state: Mapping[str, Any]) -> bool:
    """Whether what an optimizer sums up of a parameter's gradients is zero throughout."""
    import torch

    sums = [item for key in ("exp_avg_sq", "exp_avg", "square_avg", "sum") if torch.is_tensor(item := state.get(key))]
    momentum = state.get("momentum_buffer")
    sums += [momentum] if torch.is_tensor(momentum) else []
    return bool(sums) and not any(bool(item.any()) for item in sums)
