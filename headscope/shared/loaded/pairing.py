"""Pairs of stored and loaded tensors: by name and shape, or by Transformers' own loader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from headscope.core.facts import Carried, CheckpointManifest, ParameterStatus, TensorHeader
from headscope.core.source.live.live_tensors import LiveTensor, is_of_transformers, models_of_transformers, tensors_of
from headscope.core.source.stored_tensors import StoredFiles
from headscope.core.upstream.peft import plain_name, rows_of_tokens
from headscope.errors import Unsupported
from headscope.shared.loaded.adapter_share import AdapterShare
from headscope.shared.loaded.loader_pairs import LoaderPairs

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True, slots=True)
class StoredPair:
    """Stored tensors that make one of the model; `change` are those of an adapter that were merged into it."""

    headers: tuple[TensorHeader, ...]
    place: StoredFiles
    change: Mapping[str, TensorHeader] = field(default_factory=dict)
    is_converted: bool = False


class StoredPairing:
    """Stored tensors behind those of a model; `used` are the keys of those that were paired."""

    def __init__(self, module: nn.Module, manifest: CheckpointManifest, places: list[StoredFiles]) -> None:
        self.module = module
        self.manifest = manifest
        self.adapter = AdapterShare(module, manifest.adapter)
        self.loader = LoaderPairs(module, manifest)
        self.adapter_files = next((item for item in places if item.manifest is manifest.adapter), None)
        self.used: set[str] = set()
        self._base_files = next((item for item in places if item is not self.adapter_files), None)
        self._headers = {header.key: header for header in manifest.tensors}
        self._of_modules = dict(_headers_of_modules(manifest, module))
        self.prefixes = KeyPrefixes()
        if not is_of_transformers(module):
            inside = [f"{path}." for path, _ in models_of_transformers(module)]
            names = [plain_name(name) for name, _ in module.named_parameters()]
            # A head beside the one model of Transformers inside can have the name that it is stored under, and says
            # nothing about the model's.
            own = [name for name in names if name.startswith(inside[0])] if len(inside) == 1 else []
            self.prefixes = prefixes_between(own or list(map(plain_name, module.state_dict())), self._headers)
        self._pairs: dict[str, StoredPair | Unsupported | None] = {}
        self._converted: dict[torch.dtype, dict[str, torch.Tensor]] = {}

    def is_of_adapter(self, name: str) -> bool:
        """True if the adapter's file may hold a tensor, or change it."""
        if not self.adapter.headers or ".original_module." in name:
            return False
        item = self.loader.origins.get(plain_name(name))
        return self.adapter.has(name) or (item is not None and item.adapter is not None)

    def pair(self, item: LiveTensor) -> StoredPair | None:
        """Finds the stored tensors behind a tensor; None for none. Raises Unsupported for packed ones."""
        if item.name not in self._pairs:
            header = self.adapter.header_of(item.name)
            try:
                if header is not None and self.adapter_files is not None:
                    self._pairs[item.name] = self._mark_used(StoredPair((header,), self.adapter_files))
                else:
                    base = self._base_files
                    self._pairs[item.name] = self._find_in_base(item, base) if base is not None else None
            except Unsupported as err:
                # The error is kept as well: the search for dropped tensors looks up packed ones again.
                self._pairs[item.name] = err
        found = self._pairs[item.name]
        if isinstance(found, Unsupported):
            raise found
        return found

    def _find_in_base(self, item: LiveTensor, base: StoredFiles) -> StoredPair | None:
        """Finds the stored tensors of the base model, or of the only checkpoint, behind a tensor."""
        if item.name in self._of_modules:
            return self._mark_used(StoredPair((self._of_modules[item.name],), base))
        name = self.prefixes.key_of(item.name)
        origin = self.loader.origins.get(name)
        # A merge adds the adapter's tensors to a weight, unless the model holds the adapter beside it.
        path = plain_name(item.name).rpartition(".")[0]
        is_beside = plain_name(item.name) != item.name and path not in self.adapter.held.merged
        is_merged = origin is not None and origin.adapter is Carried.ADAPTED and not is_beside
        change = self.adapter.changes_at(path) if is_merged else {}
        same = self._headers.get(name)
        if same is not None and same.shape == tuple(item.tensor.shape) and not change:
            return self._mark_used(StoredPair((same,), base))
        is_as_stored = same is not None and str(item.tensor.dtype) == f"torch.{same.dtype}"
        if origin is not None and origin.quantized is not None and not is_as_stored:
            self.used.update(origin.checkpoint_keys)
            raise Unsupported("the checkpoint holds it packed, and headscope does not unpack values", "")
        if origin is None or not origin.checkpoint_keys:
            return self._mark_used(StoredPair((same,), base)) if same is not None else None
        found = tuple(self._headers[key] for key in origin.checkpoint_keys if key in self._headers)
        if len(found) < len(origin.checkpoint_keys):
            return None
        return self._mark_used(StoredPair(found, base, change, origin.status is ParameterStatus.LOADED))

    def _mark_used(self, pair: StoredPair) -> StoredPair:
        self.used.update(header.key for header in (*pair.headers, *pair.change.values()))
        return pair

    def converted(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """Makes a tensor as the loader does; all that it converts are made together. Raises Unsupported."""
        from headscope.core.model.loading.conversion import check_size, converted

        if dtype not in self._converted:
            check_size(self.module)  # type: ignore[arg-type]  # the loader paired it, so it is Transformers' own
            pairs: dict[str, StoredPair] = {}
            for item in tensors_of(self.module):
                pair, shape = self.pair(item), tuple(item.tensor.shape)
                if pair and pair.is_converted and (len(pair.headers) > 1 or pair.headers[0].shape != shape):
                    pairs[item.name] = pair
            stored = {h.key: pair.place.whole(h) for pair in pairs.values() for h in pair.headers}
            names = [plain_name(each) for each in pairs]
            self._converted[dtype] = converted(self.module, names, stored, dtype)  # type: ignore[arg-type]
        if plain_name(name) not in self._converted[dtype]:
            raise Unsupported("Transformers' loader makes no such tensor a second time", "")
        return self._converted[dtype][plain_name(name)].detach()

    def computed(self, item: LiveTensor) -> torch.Tensor | None:
        """Gives numbers that no file holds: they follow from the adapter, or the class computes them."""
        return self.adapter.settled.get(item.name, self._class_buffers.get(item.name))

    @cached_property
    def _class_buffers(self) -> Mapping[str, torch.Tensor]:
        """Buffers that the class computes; none if it cannot be made, or is not one of Transformers."""
        from headscope.core.model.loading.conversion import computed_buffers

        found: dict[str, torch.Tensor] = {}
        for path, part in models_of_transformers(self.module):
            # PEFT can't put every method on a bare model
            for names in dict.fromkeys([frozenset[str](), self.adapter.held.active]):
                with suppress(Unsupported):
                    made = computed_buffers(part, names)
                    found |= {f"{path}.{name}".lstrip("."): item for name, item in made.items()}
        return found

    def rows_behind(self, item: LiveTensor) -> torch.Tensor | None:
        """Reads the stored rows of an embedding that PEFT copies beside those it trains; None for other tensors."""
        is_copy = item.is_buffer and item.name in self.adapter.added
        name, rows = rows_of_tokens(self.module).get(item.name, ("", ())) if is_copy else ("", ())
        header = self._headers.get(self.prefixes.key_of(name)) if name else None
        if header is None or self._base_files is None or item.tensor.dim() != len(header.shape):
            return None
        if any(not 0 <= row < header.shape[0] for row in rows):
            return None
        return self._base_files.together({header: rows})[header]

    @cached_property
    def is_scaled(self) -> bool:
        """True if the checkpoint says, or its keys show, that the loader scales packed values."""
        keys = (key.rpartition(".")[2] for key in self._headers)
        return "quantization_config" in self.manifest.config or any("scale" in end for end in keys)

    def is_ignored(self, key: str) -> bool:
        """True if a load leaves a stored tensor out on purpose."""
        if key in self.adapter.headers:
            return self.adapter.is_second_copy(key)
        return self.adapter.is_second_copy(key) or self.loader.is_ignored(key)

    @cached_property
    def _below_bases(self) -> Mapping[str, nn.Module]:
        """Modules below the base models, by the paths that stored keys may give them."""
        found: dict[str, nn.Module] = {}
        for _, part in models_of_transformers(self.module):
            below = {plain_name(f"{path}.")[:-1]: item for path, item in part.base_model.named_modules() if path}
            found |= below | {f"{part.base_model_prefix}.{path}": item for path, item in below.items()}
        return found

    def is_inside_base(self, header: TensorHeader) -> bool:
        """True if a stored weight is in a module of the base model that this model has: a layer more, or a bias.

        The class works without what is beside these modules, such as a pooler, and without a parameter for which its
        module has no slot, such as the token of a masked patch.
        """
        parent, _, name = header.key.removeprefix(self.prefixes.of_file).rpartition(".")
        module = self._below_bases.get(parent)
        if module is not None:
            return name not in vars(module) and getattr(module, name, module) is None
        paths = (parent[:at] for at, sign in enumerate(parent) if sign == ".")
        return "float" in header.dtype and not self._below_bases.keys().isdisjoint(paths)


def _headers_of_modules(manifest: CheckpointManifest, module: nn.Module) -> Iterator[tuple[str, TensorHeader]]:
    """Lists the tensors of sentence-transformers' modules after the first, by their names in the model."""
    children = {name for name, _ in module.named_children()}
    for number, part in enumerate(manifest.sentence.parts if manifest.sentence else ()):
        if part.folder and str(number) in children:
            for tensor in part.weights:
                key, file = f"{part.folder}.{tensor.name}", f"{part.folder}/{part.file}"
                yield f"{number}.{tensor.name}", TensorHeader(key, tensor.dtype, tensor.shape, file)


@dataclass(frozen=True, slots=True)
class KeyPrefixes:
    """Prefixes: `of_model` is before the names of the model, `of_file` before the stored keys; "" for none."""

    of_model: str = ""
    of_file: str = ""

    def key_of(self, name: str) -> str:
        """Gives the key under which a tensor of the model would be stored."""
        return f"{self.of_file}{plain_name(name).removeprefix(self.of_model)}"

    def notes(self) -> Iterator[str]:
        """Explains to the reader how names were matched."""
        if self.of_model:
            yield f"names were matched without {self.of_model!r}, which the model puts before them"
        if self.of_file:
            yield f"names were matched with {self.of_file!r}, which the checkpoint puts before them"


def prefixes_between(names: Sequence[str], keys: Iterable[str]) -> KeyPrefixes:
    """Finds the prefixes by the first name that is the end of a key, or ends with a key."""
    position = {key: number for number, key in enumerate(keys)}
    inside: dict[str, str] = {}
    for key in position:
        for end in _ends_of(key):
            inside.setdefault(end, key)
    for name in names if not any(name in position for name in names) else ():
        found = [end for end in _ends_of(name) if end in position]
        found += [inside[name]] if name in inside else []
        if found:
            key = min(found, key=position.__getitem__)
            is_shorter = len(key) < len(name)
            return KeyPrefixes(name.removesuffix(key), "") if is_shorter else KeyPrefixes("", key.removesuffix(name))
    return KeyPrefixes()


def _ends_of(name: str) -> Iterator[str]:
    """`a.b.c` -> `b.c`, `c`."""
    return (name[at + 1 :] for at, sign in enumerate(name) if sign == ".")
