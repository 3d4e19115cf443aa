"""Tensors in a save of a live model: the keys that the loader finds for each, and how their values differ."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn

from headscope.core.facts import TensorHeader
from headscope.core.model.tensors.numbers import compare_numbers
from headscope.core.source.live.live_tensors import LiveTensor, is_of_transformers
from headscope.core.source.stored_tensors import StoredFiles
from headscope.core.upstream.peft import in_any_order, key_in_adapter, merged_layer, plain_name, settings_of
from headscope.errors import HeadscopeError
from headscope.shared.loaded.facts import TensorCheck, TensorStatus
from headscope.shared.loaded.head_memory import HeadMemory, beside_layers, held_tensors
from headscope.shared.loaded.pairing import StoredPairing
from headscope.shared.loaded.saved_place import Saved, SavedPart
from headscope.shared.loaded.tensor_checks import against_saved, against_stored, read_offloaded, unchecked

_PICKLED = "it is in a pickle, whose values headscope does not compare"
MAY_BE_MERGED = "an adapter is on the live model, and the save may hold it merged"


class SavedTensors:
    """Tensors of a save, as the loader finds them for those of the live model."""

    def __init__(self, module: nn.Module, saved: Saved, memory: HeadMemory, adapter: str) -> None:
        self.saved, self.memory, self.adapter = saved, memory, adapter
        self.hollow: list[str] = []
        self.layers: dict[str, TensorStatus] = {}
        self.root = module
        self._held = held_tensors(memory.unwrapped)
        self._places = [StoredFiles(part.files, part.manifest) for part in saved.parts]
        self._headers = [{header.key: header for header in part.manifest.tensors} for part in saved.parts]

    def live(self, names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """Lists the tensors of the model that have these names, as they are now."""
        return ((name, self._held[name]) for name in names if name in self._held)

    def settings_of_adapter(self) -> tuple[str, ...]:
        """Lists where the saved settings of an adapter differ from the live ones."""
        live, saved = settings_of(self.root, self.adapter), self.saved.parts[0].manifest.config
        both = sorted(live.keys() & saved.keys())
        others = [name for name in both if in_any_order(live[name]) != in_any_order(saved[name])]
        return tuple(f"{name} is {live[name]} in memory and {saved[name]} in the save" for name in others)

    def header_of(self, key: str) -> tuple[StoredFiles, TensorHeader] | None:
        """Finds a key in the file of an adapter."""
        header = self._headers[0].get(key)
        return None if header is None else (self._places[0], header)

    def numbers(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Gives a live tensor with its values, which may be offloaded. Raises Unsupported if they are gone."""
        offloaded = self.memory.unwrapped.offloaded.get(name)
        return tensor if offloaded is None else read_offloaded(offloaded)

    @property
    def bytes_read(self) -> int:
        """Stored bytes that were compared."""
        return sum(place.bytes_read for place in self._places)

    def find(self, name: str, tensor: torch.Tensor) -> tuple[StoredFiles, TensorHeader] | None:
        """Finds the tensor that the loader takes, by the name alone, whatever the shape."""
        if self.saved.is_adapter:
            key = key_in_adapter(name, self._headers[0])
            return None if key is None else (self._places[0], self._headers[0][key])
        del name  # under which names a loader knows it depends on the save
        for part, place, headers in zip(self.saved.parts, self._places, self._headers, strict=True):
            for other in self._names_by_tensor.get(id(tensor), ()):
                key = self._key_in_part(part, other)
                if key in headers:
                    return place, headers[key]
        return None

    def _key_in_part(self, part: SavedPart, name: str) -> str:
        """Gives the key of a live tensor in a part of a save; "" for a tensor of another part."""
        if part.prefix is not None:
            return name.removeprefix(part.prefix) if name.startswith(part.prefix) else ""
        return name

    @cached_property
    def _names_by_tensor(self) -> Mapping[int, tuple[str, ...]]:
        """Names by which a loader of this kind of save knows each live tensor.

        `from_pretrained` knows those of the model of Transformers; what restores a training knows those of the module
        that was trained.
        """
        unwrapped = self.memory.unwrapped
        found: dict[int, dict[str, None]] = {}
        inside = {id(item) for item in unwrapped.origin.state_dict(keep_vars=True).values()}
        by_transformers = self.saved.config is not None and is_of_transformers(unwrapped.origin)
        _add_names(found, unwrapped.origin)
        for module in (unwrapped.module, self.root):
            if not hasattr(module, "named_parameters"):
                continue
            names: dict[int, dict[str, None]] = {}
            _add_names(names, module)
            for key, known in names.items():
                if not (by_transformers and key in inside):
                    found.setdefault(key, {}).update(known)
        return {key: tuple(names) for key, names in found.items()}

    @cached_property
    def _unclaimed_tensors(self) -> list[tuple[StoredFiles, TensorHeader]]:
        """Stored tensors that no live tensor's name finds."""
        every = {
            self._key_in_part(part, name)
            for part in self.saved.parts
            for names in self._names_by_tensor.values()
            for name in names
        }
        taken = every | {f"base_model.model.{name}" for name in every}
        pairs = zip(self._places, self._headers, strict=True)
        return [(place, header) for place, headers in pairs for key, header in headers.items() if key not in taken]

    def as_merged(self, compared: TensorCheck, place: StoredFiles, header: TensorHeader) -> TensorCheck:
        """Compares a tensor of a layer that an adapter changes: the save may hold it merged, as PEFT merges it."""
        layer, _, own = compared.name.rpartition(".base_layer.")
        inside = self._merge_layer(layer)
        merged = dict(inside.named_parameters()).get(own) if inside is not None else None
        is_other = compared.status is TensorStatus.DIFFERENT
        if merged is None:
            self.layers[layer] = TensorStatus.UNKNOWN
            return replace(compared, status=TensorStatus.UNKNOWN, reason=MAY_BE_MERGED) if is_other else compared
        if torch.equal(merged.detach(), self._held[compared.name].detach()):
            self.layers.setdefault(layer, compared.status)
            return compared
        found = against_saved(unchecked(compared.name, merged, is_head=compared.is_head), merged, place, header)
        if found.status is not TensorStatus.DIFFERENT:
            self.layers[layer] = TensorStatus.MERGED
            return replace(found, status=TensorStatus.MERGED) if found.status is TensorStatus.EQUAL else found
        if is_other and _is_merged_elsewhere(merged, place, header):
            self.layers[layer] = TensorStatus.UNKNOWN
            return replace(compared, status=TensorStatus.UNKNOWN, reason=MAY_BE_MERGED)
        self.layers[layer] = TensorStatus.DIFFERENT if is_other else TensorStatus.RANDOM
        return compared

    def _merge_layer(self, path: str) -> nn.Module | None:
        """Merges one of PEFT's layers and gives the layer inside; None if PEFT can't merge it."""
        try:
            with torch.no_grad():
                found: nn.Module = merged_layer(self.memory.unwrapped.module.get_submodule(path))
        except Exception:  # whatever PEFT raises for a method or a packed layer
            return None
        return found

    @cached_property
    def of_adapter(self) -> frozenset[str]:
        """Tensors that PEFT adds to layers."""
        is_adapted = any(".base_layer." in name for name in self._held)
        return beside_layers(self.memory.unwrapped.module) if is_adapted else frozenset()

    def find_by_loader(self, bare: TensorCheck, tensor: torch.Tensor) -> TensorCheck | None:
        """Compares a tensor with what Transformers' loader makes of other keys, as of old and of packed weights."""
        unwrapped = self.memory.unwrapped
        if self.saved.is_adapter or not is_of_transformers(unwrapped.origin) or not self.saved.parts:
            return None
        own = bare.name.removeprefix(unwrapped.prefix)
        try:
            pair = self._pairing_of_save.pair(LiveTensor(own, tensor))
            return None if pair is None else against_stored(bare, tensor, pair, self._pairing_of_save)
        except HeadscopeError:
            return None

    def may_be_elsewhere(self, name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> bool:
        """True if a save may hold a tensor under another key, as far as names and shapes show."""
        if any(header.shape == shape for _, header in self._unclaimed_tensors):
            return True
        unwrapped = self.memory.unwrapped
        if not is_of_transformers(unwrapped.origin) or not self.saved.parts:
            return False
        try:
            return self._pairing_of_save.pair(LiveTensor(name.removeprefix(unwrapped.prefix), tensor)) is not None
        except HeadscopeError:
            return True

    @cached_property
    def _pairing_of_save(self) -> StoredPairing:
        origin: Any = self.memory.unwrapped.origin
        return StoredPairing(origin, self.saved.parts[0].manifest, self._places[:1])

    def find_renamed(self, tensor: torch.Tensor) -> TensorHeader | None:
        """Finds a stored tensor with the numbers of a live one, under a key that no tensor of the model has."""
        for place, header in self._unclaimed_tensors:
            # A single number is equal to another by chance too often.
            if header.shape == tuple(tensor.shape) and header.shape:
                found = compare_numbers(tensor, partial(place.part, header))
                if found.equal or found.cast:
                    return header
        return None

    def why_open(self, name: str, tensor: torch.Tensor) -> str:
        """Says why a tensor that was not found can't be judged; "" if it is not in the save."""
        if self.saved.state:
            return f"the save can't be read: {self.saved.state}"
        missing = set(self.saved.missing_shards)
        shard_of = dict(self.saved.shard_of)
        keys = (name, *self._names_by_tensor.get(id(tensor), ()))
        shard = next((shard_of[key] for key in keys if shard_of.get(key) in missing), "")
        if shard:
            return f"its shard {shard} is missing"
        is_outside = not name.startswith(self.memory.unwrapped.prefix or "\0")
        return _PICKLED if self.saved.pickled_head and is_outside else ""


def _add_names(found: dict[int, dict[str, None]], module: nn.Module) -> None:
    """Adds the names of a module's tensors by their ids, with and without what wrappers put into them."""
    items = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    for name, tensor in items:
        found.setdefault(id(tensor), {}).update({name: None, plain_name(name): None})


def _is_merged_elsewhere(merged: torch.Tensor, place: StoredFiles, header: TensorHeader) -> bool:
    """True if stored values may be those of a merge after a rounding, or on another device."""
    if header.shape != tuple(merged.shape) or "float" not in header.dtype:
        return False
    found = compare_numbers(merged, partial(place.part, header))
    return found.is_within_rounding(merged.dtype, getattr(torch, header.dtype))
