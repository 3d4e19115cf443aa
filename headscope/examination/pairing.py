"""Which stored tensors make which of a loaded model's: by name and shape, or by Transformers' own loader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from headscope.errors import Unsupported
from headscope.examination.live_facts import task_of
from headscope.examination.stored_tensors import StoredFiles
from headscope.facts import Carried, CheckpointManifest, ParameterOrigin, ParameterStatus, TensorHeader
from headscope.facts.weights import modern_name
from headscope.upstream.peft import PROMPTS, held_adapters, key_in_adapter, plain_name, rows_of_tokens

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedModel

    from headscope.model.loading import Loaded


@dataclass(frozen=True, slots=True)
class Own:
    """A tensor of the model by its name; `tied_to` is the name under which the same tensor came before."""

    name: str
    tensor: torch.Tensor
    is_buffer: bool
    is_persistent: bool
    tied_to: str = ""


@dataclass(frozen=True, slots=True)
class Pair:
    """The stored tensors that make one of the model; `change` are those of an adapter that were merged into it."""

    headers: tuple[TensorHeader, ...]
    place: StoredFiles
    change: Mapping[str, TensorHeader] = field(default_factory=dict)
    is_converted: bool = False


def tensors_of(module: nn.Module) -> Iterator[Own]:
    """The parameters and buffers of a model under all their names."""
    persistent = set(module.state_dict(keep_vars=True))
    first: dict[int, str] = {}
    parameters = ((name, item, False) for name, item in module.named_parameters(remove_duplicate=False))
    buffers = ((name, item, True) for name, item in module.named_buffers(remove_duplicate=False))
    for name, tensor, is_buffer in (*parameters, *buffers):
        source = first.setdefault(id(tensor), name)
        yield Own(name, tensor, is_buffer, name in persistent, "" if source == name else source)


def _headers_of_modules(manifest: CheckpointManifest, module: nn.Module) -> Iterator[tuple[str, TensorHeader]]:
    """The tensors of sentence-transformers' modules after the first, by their names in the model."""
    children = {name for name, _ in module.named_children()}
    for number, part in enumerate(manifest.sentence.parts if manifest.sentence else ()):
        if part.folder and str(number) in children:
            for tensor in part.weights:
                file = f"{part.folder}/model.safetensors"
                yield f"{number}.{tensor.name}", TensorHeader(tensor.name, tensor.dtype, tensor.shape, file)


def is_of_transformers(module: Any) -> bool:
    """Whether a model is one of Transformers' own classes."""
    from transformers import PreTrainedModel

    return isinstance(module, PreTrainedModel)


def _with_dtypes_of(module: nn.Module, skeleton: PreTrainedModel) -> PreTrainedModel:
    """A skeleton whose tensors have the dtypes of a model, which a loader may have cast."""
    held = {item.name: item.tensor.dtype for item in tensors_of(module)}
    for item in tensors_of(skeleton):
        if item.name in held and item.tensor.is_floating_point():
            item.tensor.data = item.tensor.data.to(held[item.name])
    return skeleton


class Pairing:
    """Which stored tensors make which of the model's."""

    def __init__(self, module: nn.Module, manifest: CheckpointManifest, places: list[StoredFiles]) -> None:
        self.module = module
        self.manifest = manifest
        self.notes: list[str] = []
        self.used: set[str] = set()
        self._pairs: dict[str, Pair | Unsupported | None] = {}
        self._converted: dict[torch.dtype, dict[str, torch.Tensor]] = {}
        self._adapter = next((item for item in places if item.manifest is manifest.adapter), None)
        self._base = next((item for item in places if item is not self._adapter), None)
        self._headers = {header.key: header for header in manifest.tensors}
        self._of_adapter = {header.key: header for header in manifest.adapter.tensors} if manifest.adapter else {}
        self.held = held_adapters(module)
        self._of_modules = dict(_headers_of_modules(manifest, module))
        self._prefix, self._instead = self._prefixes()
        self._loaded = self._load() if self._needs_loader() else None
        self._origins = {item.name: item for item in self._loaded.diff.parameters} if self._loaded else {}

    def _prefixes(self) -> tuple[str, str]:
        """What is before the names of a model that is not Transformers' own, and before the stored keys."""
        names = [plain_name(name) for name in self.module.state_dict()]
        if not self._headers or any(name in self._headers for name in names) or is_of_transformers(self.module):
            return "", ""
        position = {key: number for number, key in enumerate(self._headers)}
        inside: dict[str, str] = {}
        for key in self._headers:
            for end in _ends_of(key):
                inside.setdefault(end, key)
        for name in names:
            found = [end for end in _ends_of(name) if end in position]
            found += [inside[name]] if name in inside else []
            if not found:
                continue
            key = min(found, key=position.__getitem__)
            if len(key) < len(name):
                prefix = name.removesuffix(key)
                self.notes.append(f"names were matched without {prefix!r}, which the model puts before them")
                return prefix, ""
            prefix = key.removesuffix(name)
            self.notes.append(f"names were matched with {prefix!r}, which the checkpoint puts before them")
            return "", prefix
        return "", ""

    def _needs_loader(self) -> bool:
        """Whether names and shapes alone don't pair everything. An adapter changes weights, which no name shows."""
        if not is_of_transformers(self.module):
            return False
        state = {plain_name(name): tuple(item.shape) for name, item in self.module.state_dict(keep_vars=True).items()}
        stored = {key: header.shape for key, header in self._headers.items()}
        return self.manifest.adapter is not None or state != stored

    def _load(self) -> Loaded:
        """What the loader pairs, from headers alone."""
        from headscope.model.adapters import with_adapter
        from headscope.model.loading import load_skeleton
        from headscope.model.model_request import Choice

        cls, config = type(self.module), deepcopy(self.module.config)
        loaded = load_skeleton(Choice(cls, task_of(self.module, None), config), self.manifest)  # type: ignore[arg-type]
        return with_adapter(loaded, self.manifest.adapter) if self.manifest.adapter else loaded

    def skeleton(self) -> PreTrainedModel | None:
        """The model without numbers; None where its modules are not those that its class makes."""
        from headscope.model.held import fresh_skeleton, has_kinds_of

        if not is_of_transformers(self.module):
            return None
        with suppress(Exception):  # whatever a foreign constructor raises
            fresh = self._loaded.model if self._loaded else fresh_skeleton(self.module)  # type: ignore[arg-type]
            return _with_dtypes_of(self.module, fresh) if has_kinds_of(self.module, fresh) else None
        return None

    def is_of_adapter(self, name: str) -> bool:
        """Whether the adapter's file may hold a tensor, or change it."""
        if not self._of_adapter or ".original_module." in name:
            return False
        if name in self._added or key_in_adapter(name, self._of_adapter, self.held.active) is not None:
            return True
        item = self._origins.get(plain_name(name))
        return item is not None and item.adapter is not None

    def pair(self, item: Own) -> Pair | None:
        """The stored tensors behind a tensor; None for none. Raises Unsupported for packed ones."""
        if item.name not in self._pairs:
            try:
                self._pairs[item.name] = self._found(item)
            except Unsupported as err:
                self._pairs[item.name] = err
        found = self._pairs[item.name]
        if isinstance(found, Unsupported):
            raise found
        return found

    def _found(self, item: Own) -> Pair | None:
        key = key_in_adapter(item.name, self._of_adapter, self.held.active)
        if key is not None and self._adapter is not None and ".original_module." not in item.name:
            return self._taken((self._of_adapter[key],), self._adapter)
        return self._in_base(item, self._base) if self._base is not None else None

    def _in_base(self, item: Own, base: StoredFiles) -> Pair | None:
        """The stored tensors of the base model, or of the only checkpoint, behind a tensor."""
        if item.name in self._of_modules:
            return Pair((self._of_modules[item.name],), base)
        name = f"{self._instead}{plain_name(item.name).removeprefix(self._prefix)}"
        origin = self._origins.get(name)
        change = self._change(item, origin)
        same = self._headers.get(name)
        if same is not None and same.shape == tuple(item.tensor.shape) and not change:
            return self._taken((same,), base)
        if origin is not None and origin.quantised is not None and not _is_as_stored(item, same):
            self.used.update(origin.checkpoint_keys)
            raise Unsupported("the checkpoint holds it packed, and headscope does not unpack numbers", "")
        if origin is None or not origin.checkpoint_keys:
            return self._taken((same,), base) if same is not None else None
        found = tuple(self._headers[key] for key in origin.checkpoint_keys if key in self._headers)
        if len(found) < len(origin.checkpoint_keys):
            return None
        is_converted = origin.status is ParameterStatus.LOADED
        return self._taken(found, base, change, is_converted=is_converted)

    def _taken(
        self,
        headers: tuple[TensorHeader, ...],
        place: StoredFiles,
        change: Mapping[str, TensorHeader] | None = None,
        *,
        is_converted: bool = False,
    ) -> Pair:
        self.used.update(header.key for header in (*headers, *(change or {}).values()))
        return Pair(headers, place, change or {}, is_converted)

    def converted(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """A tensor as the loader makes it; all that it converts are made together. Raises Unsupported."""
        from headscope.model.conversion import check_size, converted

        if dtype not in self._converted:
            check_size(self.module)  # type: ignore[arg-type]  # the loader paired it, so it is Transformers' own
            pairs = {item.name: found for item in tensors_of(self.module) if (found := self._if_converted(item))}
            stored = {h.key: pair.place.whole(h) for pair in pairs.values() for h in pair.headers}
            names = [plain_name(each) for each in pairs]
            self._converted[dtype] = converted(self.module, names, stored, dtype)  # type: ignore[arg-type]
        if plain_name(name) not in self._converted[dtype]:
            raise Unsupported("Transformers' loader makes no such tensor a second time", "")
        return self._converted[dtype][plain_name(name)].detach()

    def _if_converted(self, item: Own) -> Pair | None:
        pair = self.pair(item)
        is_other = pair is not None and (len(pair.headers) > 1 or pair.headers[0].shape != tuple(item.tensor.shape))
        return pair if is_other and pair is not None and pair.is_converted else None

    @cached_property
    def buffers(self) -> Mapping[str, torch.Tensor]:
        """The buffers that the class computes; none where it cannot be made, or is not one of Transformers."""
        from headscope.model.conversion import computed_buffers

        adapters = self.held.active
        found: dict[str, torch.Tensor] = {}
        for path, part in _parts_of_transformers(self.module):
            for names in dict.fromkeys([frozenset[str](), adapters]):  # PEFT can't put every method on a bare model
                with suppress(Unsupported):
                    made = computed_buffers(part, names)
                    found |= {f"{path}.{name}".lstrip("."): item for name, item in made.items()}
        return found

    @cached_property
    def _added(self) -> frozenset[str]:
        """The tensors that PEFT adds to the model."""
        from headscope.model.held import added_by_peft

        return added_by_peft(self.module) if self.held.names else frozenset()

    def is_of_adapter_not_given(self, item: Own) -> bool:
        """Whether a tensor belongs to an adapter of the model, while nothing was named that stores the adapter."""
        return not self._of_adapter and (item.name in self._added or item.name.startswith(PROMPTS))

    @cached_property
    def settled(self) -> Mapping[str, torch.Tensor]:
        """The parameters of an adapter that PEFT stores nowhere, because the stored ones decide them."""
        import torch

        found: dict[str, torch.Tensor] = {}
        for name in self._added:
            key = key_in_adapter(name.replace(".ranknum.", ".lora_E."), self._of_adapter, self.held.active)
            if ".ranknum." in name and key is not None:  # AdaLoRA's rank, by which the forward divides
                found[name] = torch.tensor([float(self._of_adapter[key].shape[0])])
        return found

    def rows_behind(self, item: Own) -> torch.Tensor | None:
        """The stored rows of an embedding that PEFT copies beside those which it trains; None for another tensor."""
        found = rows_of_tokens(self.module).get(item.name) if item.is_buffer and item.name in self._added else None
        header = self._headers.get(f"{self._instead}{found[0].removeprefix(self._prefix)}") if found else None
        if found is None or header is None or self._base is None or item.tensor.dim() != len(header.shape):
            return None
        if any(not 0 <= row < header.shape[0] for row in found[1]):
            return None
        return self._base.together({header: found[1]})[header]

    def why_packed(self, dtype: str) -> str:
        """Why numbers that are packed in a dtype aren't compared."""
        if "quantization_config" in self.manifest.config or self._scales:
            return f"it is stored as {dtype}, which the loader scales"
        return f"it is stored as {dtype} without a quantization config, so the loader takes its numbers without a scale"

    def is_plain_float8(self, pair: Pair) -> bool:
        """Whether a tensor is stored in a float of 8 bits, and nothing that the checkpoint holds would scale it."""
        if "quantization_config" in self.manifest.config:
            return False
        return all(header.dtype.startswith("float8") for header in pair.headers) and not self._scales

    @cached_property
    def _scales(self) -> bool:
        return any("scale" in key.rpartition(".")[2] for key in self._headers)

    @property
    def adapter_keys(self) -> Mapping[str, TensorHeader]:
        """The headers of the adapter's file by their keys."""
        return self._of_adapter

    def _change(self, item: Own, origin: ParameterOrigin | None) -> dict[str, TensorHeader]:
        """The adapter's tensors that a merge adds to a weight; none where the model holds the adapter beside it."""
        path = plain_name(item.name).rpartition(".")[0]
        is_beside = plain_name(item.name) != item.name and path not in self.held.merged
        if origin is None or origin.adapter is not Carried.ADAPTED or is_beside:
            return {}
        return {
            key.removeprefix(f"base_model.model.{path}."): header
            for key, header in self._of_adapter.items()
            if key.startswith(f"base_model.model.{path}.")
        }

    @property
    def adapter(self) -> StoredFiles | None:
        """The place of the adapter's file."""
        return self._adapter

    @cached_property
    def without_place(self) -> Mapping[str, frozenset[str]]:
        """The stored tensors of parameters that the class has and this model lacks, with the names of these."""
        own = {plain_name(item.name) for item in tensors_of(self.module)}
        found: dict[str, frozenset[str]] = {}
        for item in self._origins.values():
            for key in item.checkpoint_keys if item.name not in own else ():
                found[key] = found.get(key, frozenset()) | {item.name}
        return found

    @cached_property
    def _below_bases(self) -> Mapping[str, nn.Module]:
        """The modules below the base models, by the paths that stored keys may give them."""
        found: dict[str, nn.Module] = {}
        for _, part in _parts_of_transformers(self.module):
            below = {plain_name(f"{path}.")[:-1]: item for path, item in part.base_model.named_modules() if path}
            found |= below | {f"{part.base_model_prefix}.{path}": item for path, item in below.items()}
        return found

    def is_inside_base(self, header: TensorHeader) -> bool:
        """Whether a stored weight is in a module of the base model that this model has: a layer more, or a bias.

        The class works without what is beside these modules, such as a pooler, and without a parameter for which its
        module has no slot, such as the token of a masked patch.
        """
        parent, _, name = header.key.removeprefix(self._instead).rpartition(".")
        module = self._below_bases.get(parent)
        if module is not None:
            return name not in vars(module) and getattr(module, name, module) is None
        paths = (parent[:at] for at, sign in enumerate(parent) if sign == ".")
        return "float" in header.dtype and not self._below_bases.keys().isdisjoint(paths)

    def is_ignored(self, key: str) -> bool:
        """Whether the loader leaves a stored tensor out on purpose, as an old buffer or a second name of one tensor."""
        once = key.replace(".original_module.", ".").replace(".modules_to_save.", ".")
        if once != key and once in self._of_adapter:  # what PEFT saves a second time with bias="all"
            return True
        if self._loaded is None or key in self._of_adapter or key in self.without_place:
            return False
        return key not in self._loaded.diff.unused and modern_name(key) not in self._loaded.diff.unused


def _ends_of(name: str) -> Iterator[str]:
    """`a.b.c` -> `b.c`, `c`."""
    return (name[at + 1 :] for at, sign in enumerate(name) if sign == ".")


def _is_as_stored(item: Own, header: TensorHeader | None) -> bool:
    return header is not None and str(item.tensor.dtype) == f"torch.{header.dtype}"


def _parts_of_transformers(module: nn.Module) -> Iterator[tuple[str, PreTrainedModel]]:
    """The models of Transformers in a module, each with its path; those inside of others are left out."""
    from transformers import PreTrainedModel

    found: list[str] = []
    for path, part in module.named_modules():
        if isinstance(part, PreTrainedModel) and not any(path.startswith(f"{other}.") or not other for other in found):
            found.append(path)
            yield path, part
