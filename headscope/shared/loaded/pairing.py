"""Pairs of stored and loaded tensors: by name and shape, by Transformers' own loader, or by the adapter of PEFT."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import nn
from transformers import PreTrainedModel

from headscope.core.facts import Carried, CheckpointManifest, Gap, ParameterStatus, TensorHeader
from headscope.core.facts.counting import few_of
from headscope.core.facts.stored.unplaced import Unplaced
from headscope.core.facts.stored.weights import modern_name
from headscope.core.model.classes.model_request import Choice
from headscope.core.model.loading.adapters import scale_of, with_adapter
from headscope.core.model.loading.conversion import check_size, computed_buffers, converted
from headscope.core.model.loading.loader import Loaded, load_skeleton
from headscope.core.model.tensors.held import added_by_peft, fresh_skeleton, has_kinds_of
from headscope.core.source.live.live_facts import task_of
from headscope.core.source.live.live_tensors import LiveTensor, is_of_transformers, models_of_transformers, tensors_of
from headscope.core.source.reading.unseen_settings import without_idle_tensors
from headscope.core.source.stored_tensors import StoredFiles
from headscope.core.upstream.peft import PROMPTS, held_adapters, key_in_adapter, plain_name, rows_of_tokens
from headscope.errors import Unsupported


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
        is_of_adapter = key in self.adapter.headers
        return self.adapter.is_second_copy(key) or (not is_of_adapter and self.loader.is_ignored(key))

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


class AdapterShare:
    """The adapter in a model, and the manifest of its file; None if none was given."""

    def __init__(self, module: nn.Module, manifest: CheckpointManifest | None) -> None:
        self.manifest = manifest
        self.held = held_adapters(module)
        self.headers = {header.key: header for header in manifest.tensors} if manifest else {}
        self._module = module

    def header_of(self, name: str) -> TensorHeader | None:
        """Finds what the file holds for a tensor of the model; None for nothing."""
        key = key_in_adapter(name, self.headers, self.held.active) if not _is_copied(name) else None
        return None if key is None else self.headers[key]

    def has(self, name: str) -> bool:
        """True if the file may hold a tensor."""
        return bool(self.headers) and not _is_copied(name) and (name in self.added or self.header_of(name) is not None)

    def changes_at(self, path: str) -> dict[str, TensorHeader]:
        """Finds what the file holds to change a module's weight, by the ends of the keys; {} if it isn't merged."""
        start = f"base_model.model.{path}."
        return {key.removeprefix(start): header for key, header in self.headers.items() if key.startswith(start)}

    @cached_property
    def added(self) -> frozenset[str]:
        """Tensors that PEFT adds to the model."""
        return added_by_peft(self._module) if self.held.names else frozenset()

    @cached_property
    def settled(self) -> Mapping[str, torch.Tensor]:
        """Parameters that PEFT stores nowhere, because the stored ones decide them."""
        ranks = {
            name: self.header_of(name.replace(".ranknum.", ".lora_E.")) for name in self.added if ".ranknum." in name
        }
        # AdaLoRA's rank, by which the forward divides
        return {name: torch.tensor([float(item.shape[0])]) for name, item in ranks.items() if item is not None}

    def is_not_given(self, item: LiveTensor) -> bool:
        """True if a tensor belongs to an adapter of the model, and nothing was named that stores the adapter."""
        return not self.headers and (item.name in self.added or item.name.startswith(PROMPTS))

    def is_unused(self, item: LiveTensor) -> bool:
        """True if a tensor belongs to an inactive adapter, or to a module that PEFT runs a copy of."""
        return self.held.is_of_inactive(item.name) or item.name.startswith(tuple(self.held.replaced))

    def is_second_copy(self, key: str) -> bool:
        """True if a key is one under which PEFT saves a tensor once more with bias="all"."""
        once = key.replace(".original_module.", ".").replace(".modules_to_save.", ".")
        return once != key and once in self.headers

    @property
    def inactive(self) -> tuple[str, ...]:
        """Adapters that the model holds and does not use, beside the given one."""
        return tuple(sorted(self.held.names - self.held.active)) if self.manifest is not None else ()

    def gaps(self) -> Iterator[Gap]:
        """Explains why the scores of a model may not be those of the adapter whose tensors it holds."""
        if self.manifest is None or not self.held.names:
            return
        if self.held.is_disabled:
            yield Gap("adapter", "the model holds it disabled, so the scores are those of the base model")
        if len(self.held.active) > 1:
            yield Gap("adapter", f"several adapters are active: {few_of(sorted(self.held.active))}")
        settings = {**self.manifest.config, "use_dora": False}  # DoRA scales as LoRA does
        wrong = [path for path, scale in self.held.scales.items() if not self._is_scale(path, scale, settings)]
        if wrong:
            reason = "the model multiplies the change by another factor than the adapter's configuration says"
            yield Gap(few_of(wrong), reason)

    def _is_scale(self, path: str, scale: float, settings: Mapping[str, object]) -> bool:
        """True if a layer's factor is the one that the configuration gives; unknown counts as right."""
        plain = plain_name(f"{path}.")[:-1]
        changes = self.changes_at(plain)
        down = changes.get("lora_A.weight", changes.get("lora_embedding_A"))
        with suppress(Unsupported):
            return down is None or math.isclose(scale, scale_of(plain, settings, down.shape[0]), rel_tol=1e-6)
        return True


def _is_copied(name: str) -> bool:
    """True if a name is that of the module from which PEFT made the copy that it trains."""
    return ".original_module." in name


class LoaderPairs:
    """Keys that the loader pairs with the parameters of a model's class; none if the loader isn't needed.

    If the names and shapes of a model and of a checkpoint are the same, nothing is loaded. An adapter changes weights,
    which no name shows.
    """

    def __init__(self, module: nn.Module, manifest: CheckpointManifest) -> None:
        self._module = module
        self._loaded: Loaded | None = None
        if is_of_transformers(module):
            state = {plain_name(name): tuple(item.shape) for name, item in module.state_dict(keep_vars=True).items()}
            if manifest.adapter is not None or state != {header.key: header.shape for header in manifest.tensors}:
                self._loaded = _loaded_headers(module, manifest)
        self.origins = {item.name: item for item in self._loaded.diff.parameters} if self._loaded else {}

    def skeleton(self) -> PreTrainedModel | None:
        """Builds the model without values; None if its modules are not those that its class makes."""
        if not is_of_transformers(self._module):
            return None
        # The skeleton only saves a run: without it the model itself is traced.
        with suppress(Exception):  # whatever a foreign constructor raises
            fresh = self._loaded.model if self._loaded else fresh_skeleton(self._module)  # type: ignore[arg-type]
            return _with_dtypes_of(self._module, fresh) if has_kinds_of(self._module, fresh) else None
        return None

    @property
    def unplaced(self) -> tuple[Unplaced, ...]:
        """Stored tensors that the class has no place for, each with the reason; none if nothing was loaded."""
        return self._loaded.diff.unplaced if self._loaded else ()

    @cached_property
    def without_place(self) -> Mapping[str, frozenset[str]]:
        """Stored tensors of parameters that the class has and this model lacks, with the names of these."""
        own = {plain_name(item.name) for item in tensors_of(self._module)}
        found: dict[str, frozenset[str]] = {}
        for item in self.origins.values():
            for key in item.checkpoint_keys if item.name not in own else ():
                found[key] = found.get(key, frozenset()) | {item.name}
        return found

    def is_ignored(self, key: str) -> bool:
        """True if the loader leaves a tensor out on purpose, as an old buffer or a second name of one tensor."""
        if self._loaded is None or key in self.without_place:
            return False
        return key not in self._loaded.diff.unused and modern_name(key) not in self._loaded.diff.unused


def _loaded_headers(module: nn.Module, manifest: CheckpointManifest) -> Loaded:
    cls, config = type(module), deepcopy(module.config)
    choice = Choice(cls, task_of(module, None), config)  # type: ignore[arg-type]
    loaded = without_idle_tensors(load_skeleton(choice, manifest), choice)
    return with_adapter(loaded, manifest.adapter) if manifest.adapter else loaded


def _with_dtypes_of(module: nn.Module, skeleton: PreTrainedModel) -> PreTrainedModel:
    """Casts a skeleton's tensors to the dtypes of a model, which a loader may have cast."""
    held = {item.name: item.tensor.dtype for item in tensors_of(module)}
    for item in tensors_of(skeleton):
        if item.name in held and item.tensor.is_floating_point():
            item.tensor.data = item.tensor.data.to(held[item.name])
    return skeleton
